// SPDX-License-Identifier: Apache-2.0
//
// Every way to cut a step against the step that is not cut: loss, each gradient, and in double the
// weights after three steps of Adam.
#include "runtime/execution.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>

#include "runtime/cpu_backend.h"
#include "runtime/verification.h"
#include "tests/runtime/expect_agreement.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

TEST(Execution, OneRank) {
  ExpectAgreement(TinyWorkload(TinyModel(), {}));
  ExpectAgreement(TinyWorkload(WithBiases(TinyModel()), {.micro_batch_size = 2}));
  ExpectAgreement(TinyWorkload(TinyModel(), {}), ElementType::kFp32);
}

TEST(Execution, EveryActivation) {
  for (Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kRelu, Activation::kSquaredRelu}) {
    for (bool gated : {false, true}) {
      ModelConfig model = WithLayers(TinyModel(), 1);
      model.activation = activation;
      model.gated_linear_unit = gated;
      ExpectAgreement(TinyWorkload(model, {.tensor = 2}));
    }
  }
}

// 4 ranks for 2 KV heads: each head is on two of them.
TEST(Execution, TensorAndSequenceParallel) {
  for (const ModelConfig& model : {TinyModel(), WithBiases(TinyModel())}) {
    for (int tensor : {2, 4, 8}) {
      for (bool sequence_parallel : {false, true}) {
        ExpectAgreement(TinyWorkload(WithLayers(model, 2),
                                     {.tensor = tensor, .sequence_parallel = sequence_parallel}));
      }
    }
  }
  ExpectAgreement(TinyWorkload(TinyModel(), {.tensor = 4, .sequence_parallel = true}),
                  ElementType::kFp32);
}

TEST(Execution, ContextParallel) {
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    for (int context : {2, 4}) {
      ExpectAgreement(
          TinyWorkload(WithLayers(TinyModel(), 2), {.context = context, .context_kind = kind}));
    }
    ExpectAgreement(TinyWorkload(WithBiases(WithLayers(TinyModel(), 2)), {.tensor = 2,
                                                                          .sequence_parallel = true,
                                                                          .context = 2,
                                                                          .context_kind = kind,
                                                                          .micro_batch_size = 2}));
  }
}

// Two KV heads: all-to-alls of 2 divide them, of 4 repeat them, and on two tensor ranks both do.
TEST(Execution, NestedContextParallel) {
  for (const auto& [context, inner] : {std::pair(4, 2), std::pair(8, 2), std::pair(8, 4)}) {
    ExpectAgreement(
        TinyWorkload(WithLayers(TinyModel(), 2), {.context = context,
                                                  .context_kind = ContextParallelKind::kNested,
                                                  .context_ulysses = inner}));
  }
  for (const bool sequence_parallel : {false, true}) {
    for (const int micro_batch : {1, 2}) {
      ExpectAgreement(TinyWorkload(WithBiases(WithLayers(TinyModel(), 2)),
                                   {.tensor = 2,
                                    .sequence_parallel = sequence_parallel,
                                    .context = 4,
                                    .context_kind = ContextParallelKind::kNested,
                                    .micro_batch_size = micro_batch,
                                    .context_ulysses = 2}));
    }
  }
  ExpectAgreement(
      TinyWorkload(WithBiases(TinyModel()), {.tensor = 2,
                                             .sequence_parallel = true,
                                             .context = 4,
                                             .context_kind = ContextParallelKind::kNested,
                                             .pipeline = 2,
                                             .data = 2,
                                             .zero = 3,
                                             .schedule = ScheduleKind::kZbH1,
                                             .context_ulysses = 2}));
  Recompute attention{.granularity = RecomputeGranularity::kSelective,
                      .modules = {RecomputeModule::kCoreAttn}};
  ExpectAgreement(TinyWorkload(TinyModel(), {.context = 4,
                                             .context_kind = ContextParallelKind::kNested,
                                             .recompute = attention,
                                             .context_ulysses = 2}));
}

// Two ZeRO stages for each schedule, in turn, so that each stage meets half of the schedules.
TEST(Execution, EveryScheduleAndZeroStage) {
  int index = 0;
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    ParallelConfig parallel{.pipeline = 4,
                            .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                            .zero = 1,
                            .schedule = name.value};
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 8), parallel, 8, 4));
    parallel.pipeline = parallel.data = 2;
    for (int zero : {index % 4, (index + 2) % 4}) {
      parallel.zero = zero;
      ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 8), parallel, 16, 4));
    }
    ++index;
  }
}

TEST(Execution, UnevenStagesAndDataRanks) {
  // 5 layers over 3 ranks, buckets that 3 data ranks cut unevenly.
  for (int zero : {0, 1, 2, 3}) {
    ExpectAgreement(
        TinyWorkload(WithLayers(TinyModel(), 5), {.pipeline = 3, .data = 3, .zero = zero}, 9, 4));
  }
}

// A plan's own split of the layers, one stage, two mirrored ones and two copies a rank.
TEST(Execution, LayersDividedByThePlan) {
  for (const auto& [schedule, layers] :
       {std::pair{ScheduleKind::k1F1B, std::vector{1, 5, 2, 0}},
        std::pair{ScheduleKind::kZbV, std::vector{1, 1, 2, 1, 1, 1, 1, 0}},
        std::pair{ScheduleKind::kDualPipe, std::vector{1, 2, 4, 1}}}) {
    ParallelConfig parallel{.pipeline = 4, .schedule = schedule};
    parallel.stage_layers = layers;
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 8), parallel, 8, 4));
  }
}

// Embedding and head as stages of their own: 4 layers in 6 stages.
TEST(Execution, StagesWithoutLayers) {
  ExpectAgreement(TinyWorkload(
      TinyModel(),
      {.pipeline = 2, .virtual_stages = 3, .data = 2, .schedule = ScheduleKind::kInterleaved}, 8,
      4));
}

TEST(Execution, FullRecomputation) {
  for (int layers : {0, 1}) {
    ExpectAgreement(TinyWorkload(
        TinyModel(),
        {.tensor = 2,
         .sequence_parallel = true,
         .pipeline = 2,
         .zero = 3,
         .recompute = {.granularity = RecomputeGranularity::kFull, .full_layers = layers},
         .schedule = ScheduleKind::kZbH1}));
  }
}

TEST(Execution, SelectiveRecomputation) {
  using Module = RecomputeModule;
  for (const std::vector<Module>& modules :
       {std::vector{Module::kCoreAttn}, std::vector{Module::kMlp}, std::vector{Module::kLayerNorm},
        std::vector{Module::kCoreAttn, Module::kMlp, Module::kLayerNorm}}) {
    const Recompute recompute{.granularity = RecomputeGranularity::kSelective, .modules = modules};
    ExpectAgreement(TinyWorkload(WithBiases(TinyModel()), {.recompute = recompute}));
    for (bool sequence_parallel : {false, true}) {
      ExpectAgreement(TinyWorkload(TinyModel(), {.tensor = 2,
                                                 .sequence_parallel = sequence_parallel,
                                                 .context = 2,
                                                 .pipeline = 2,
                                                 .recompute = recompute,
                                                 .schedule = ScheduleKind::kZbH1}));
    }
  }
}

TEST(Execution, EveryDimensionAtOnce) {
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    for (int zero : {1, 3}) {
      ExpectAgreement(TinyWorkload(WithBiases(TinyModel()),
                                   {.tensor = 2,
                                    .sequence_parallel = true,
                                    .context = 2,
                                    .context_kind = kind,
                                    .pipeline = 2,
                                    .data = 2,
                                    .zero = zero,
                                    .schedule = ScheduleKind::kDualPipe},
                                   8));
    }
  }
}

// The passes of the schedule, in its order, each with the operators of the lists in theirs.
TEST(Execution, OrderIsThatOfTheSchedule) {
  const Workload workload =
      TinyWorkload(TinyModel(), {.tensor = 2, .pipeline = 2, .schedule = ScheduleKind::kZbH1});
  const LayerShape shape = ShapeOf(workload.parallel, workload.training);
  std::mutex mutex;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    Execution execution(workload, backend);
    execution.ComputeGradients(0);
    const int pipeline = PlaceOf(workload.parallel, communicator.rank()).pipeline;
    std::vector<std::string> expected;
    for (const Pass& pass : workload.schedule.orders[std::size_t(pipeline)]) {
      std::vector<std::string> operators;
      const auto add = [&](const std::vector<Operator>& list) {
        for (const Operator& op : list) {
          if (op.kind == OperatorKind::kHost) continue;
          operators.push_back(fmt::format("{} {} {}", int(pass.kind), pass.micro_batch, op.name));
        }
      };
      const auto& model = workload.model;
      if (pass.stage == 0) add(EmbeddingOperators(model, shape, workload.training));
      for (int layer = 0; layer < 2; ++layer) {
        add(LayerOperators(model, model.layer(0), shape, workload.training));
      }
      if (pass.stage == 1) add(HeadOperators(model, shape, workload.training));
      if (pass.kind != PassKind::kForward) std::reverse(operators.begin(), operators.end());
      expected.insert(expected.end(), operators.begin(), operators.end());
    }
    std::vector<std::string> executed;
    Seconds last;
    bool in_order = true;
    for (const ExecutedOperator& op : execution.operators()) {
      if (op.of_pass()) {
        executed.push_back(fmt::format("{} {} {}", int(op.pass), op.micro_batch, op.name));
      }
      in_order = in_order && op.start >= last && op.end >= op.start;
      last = op.end;
    }
    const std::lock_guard lock(mutex);
    EXPECT_EQ(executed, expected);
    EXPECT_TRUE(in_order);
  });
}

// Each pipeline rank drops and runs again what its own choice says, with layers divided by hand
// too.
TEST(Execution, RecomputeByRank) {
  const Recompute full{.granularity = RecomputeGranularity::kFull};
  const Recompute first{.granularity = RecomputeGranularity::kFull, .full_layers = 1};
  const Recompute mlp{.granularity = RecomputeGranularity::kSelective,
                      .modules = {RecomputeModule::kMlp, RecomputeModule::kLayerNorm}};
  ParallelConfig parallel{.tensor = 2, .sequence_parallel = true, .pipeline = 4};
  parallel.stage_layers = {1, 2, 3, 2};
  parallel.rank_recompute = {full, first, mlp, {}};
  const Workload uneven = TinyWorkload(WithLayers(TinyModel(), 8), parallel, 8, 4);
  ExpectAgreement(uneven);
  for (const ScheduleKind schedule :
       {ScheduleKind::kInterleaved, ScheduleKind::kZbV, ScheduleKind::kDualPipe}) {
    ParallelConfig two{.pipeline = 2,
                       .virtual_stages = ChoosesChunks(schedule) ? 2 : 1,
                       .data = 2,
                       .schedule = schedule};
    two.rank_recompute = {first, mlp};
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 8), two, 16, 4));
  }
  // All of the one layer of rank 0 and of the first of rank 1, parts of rank 2's, nothing of rank
  // 3's.
  std::array<int, 4> again{};
  std::mutex mutex;
  RunThreads(uneven.ranks(), [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    Execution execution(uneven, backend);
    execution.ComputeGradients(0);
    const int rank = PlaceOf(uneven.parallel, communicator.rank()).pipeline;
    const std::lock_guard lock(mutex);
    for (const ExecutedOperator& op : execution.operators()) {
      again[std::size_t(rank)] += op.recomputed;
    }
  });
  EXPECT_GT(again[0], 0);
  EXPECT_EQ(again[1], again[0]);
  EXPECT_GT(again[2], 0);
  EXPECT_LT(again[2], 3 * again[0]);
  EXPECT_EQ(again[3], 0);
}

// Attention does not depend on a key bias that is not rotated, so that its gradient is what
// rounding leaves, which Adam makes a hundred million times larger.
TEST(Execution, AGradientOfRoundingAloneIsNoDifference) {
  const Workload workload =
      TinyWorkload(WithLayers(TinyGpt(), 2),
                   {.tensor = 2, .sequence_parallel = true, .context = 2, .data = 2, .zero = 3});
  const RunOutcome outcome = RunInThreads(workload, {.steps = 12, .verify = true});
  const Agreement& weights = outcome.agreements.at(2);
  EXPECT_EQ(weights.what, "weights");
  EXPECT_THAT(weights.worst, testing::HasSubstr("kv_bias"));
  EXPECT_GT(weights.error, 1e-10);
  EXPECT_TRUE(weights.holds()) << weights.error << " of " << weights.limit;
  EXPECT_LT(weights.limit, 1e-8);
}

TEST(Execution, SameBytesEveryTime) {
  const Workload workload =
      TinyWorkload(TinyModel(), {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .data = 2});
  const RunOutcome first = RunInThreads(workload, {.steps = 2});
  const RunOutcome second = RunInThreads(workload, {.steps = 2});
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_LT(first.losses[1], first.losses[0] + 1);
}

TEST(Execution, WhatIsNotBuiltIsRefusedByName) {
  Workload workload = TinyWorkload(TinyMoe(), {});
  workload.model.hidden_dropout = true;
  workload.model.moe.num_groups = 4;
  workload.parallel.zero_shard = 2;
  workload.parallel.recompute.offload_layers = 1;
  EXPECT_EQ(WhyNotExecutable(workload),
            (std::vector<std::string>{
                "run does not execute dropout yet",
                "run does not execute node-limited routing (groups of experts) yet",
                "run does not execute ZeRO over a part of the data-parallel ranks (--zero-shard) "
                "yet",
                "run does not execute offloaded activations yet"}));
  workload = TinyWorkload(TinyGpt(), {});
  workload.training.seq_length = 65;
  EXPECT_EQ(WhyNotExecutable(workload),
            (std::vector<std::string>{
                "run does not execute sequences longer than the table of learned positions yet"}));
}

// A rank that fails must not leave the others waiting for it.
TEST(Execution, AFailingRankEndsAll) {
  try {
    RunThreads(4, [](Communicator& communicator) {
      if (communicator.rank() == 2) throw ConfigError("rank 2 has had enough");
      std::byte nothing{};
      communicator.Receive(2, 0, std::span(&nothing, 1));
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 2 has had enough");
  }
}

TEST(Execution, DifferentJobsOnRanksAreFound) {
  const Workload workload = TinyWorkload(TinyModel(), {.data = 2});
  Workload other = workload;
  other.training.seq_length = 32;
  try {
    RunThreads(2, [&](Communicator& communicator) {
      RunSteps(communicator.rank() == 0 ? workload : other, {}, communicator);
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "the ranks were given different jobs");
  }
}

}  // namespace
}  // namespace millwright
