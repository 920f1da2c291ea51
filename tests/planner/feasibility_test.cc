// SPDX-License-Identifier: Apache-2.0
#include "planner/feasibility.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"

namespace millwright {
namespace {

struct Question {
  ModelConfig model = PresetModel("llama-3.1-70b");
  TrainingConfig training{.global_batch_size = 1024, .seq_length = 8192};
  GpuSpec gpu = FindGpu("H100-SXM");
  std::string Ask(const ParallelConfig& plan, std::int64_t gpus = 128) const {
    const Verdict verdict = CheckPlan(model, training, gpu, gpus, plan);
    return verdict ? verdict->detail : "";
  }
};

ParallelConfig Plan(int tp, int pp, int dp) {
  ParallelConfig p;
  p.tensor = tp;
  p.sequence_parallel = tp > 1;
  p.pipeline = pp;
  p.data = dp;
  return p;
}

TEST(CheckPlan, AcceptsWhatPeopleRun) {
  Question q;
  EXPECT_EQ(q.Ask(Plan(8, 4, 4)), "");
  ParallelConfig interleaved = Plan(4, 4, 8);
  interleaved.virtual_stages = 5;
  interleaved.schedule = ScheduleKind::kInterleaved;
  EXPECT_EQ(q.Ask(interleaved), "");
  // 126 layers over 16 stages; DeepSeek-V3's 61 over 16 with 256 experts over 64.
  q.model = PresetModel("llama-3.1-405b");
  q.training.global_batch_size = 2048;
  EXPECT_EQ(q.Ask(Plan(8, 16, 128), 16384), "");
  q.model = PresetModel("deepseek-v3");
  q.training = {.global_batch_size = 15360, .seq_length = 4096};
  ParallelConfig deepseek = Plan(1, 16, 128);
  deepseek.expert = 64;
  EXPECT_EQ(q.Ask(deepseek, 2048), "");
}

TEST(CheckPlan, NamesWhatDoesNotDivide) {
  Question q;
  EXPECT_EQ(q.Ask(Plan(8, 4, 8)), "tp 8 x cp 1 x pp 4 x dp 8 is 256 GPUs, not 128");
  EXPECT_EQ(q.Ask(Plan(128, 1, 1)), "64 attention heads are not divisible by tp 128");
  EXPECT_EQ(q.Ask(Plan(1, 128, 1)), "80 layers are fewer than pp 128 x vpp 1 stages");
  ParallelConfig p = Plan(8, 4, 4);
  p.micro_batch_size = 512;
  EXPECT_EQ(q.Ask(p), "global batch 1024 is not divisible by dp 4 x micro-batch 512");
  p = Plan(8, 4, 4);
  p.virtual_stages = 2;
  EXPECT_EQ(q.Ask(p), "the 1f1b schedule does not go with vpp 2");
  p.schedule = ScheduleKind::kInterleaved;
  p.micro_batch_size = 256;  // one micro-batch
  EXPECT_EQ(q.Ask(p), "1 micro-batches are not a multiple of pp 4 (interleaved)");
  // 1,024 / (4 x 128) = 2 micro-batches; a V has 2 stages a rank.
  p = Plan(8, 4, 4);
  p.micro_batch_size = 128;
  p.schedule = ScheduleKind::kZbH1;
  EXPECT_EQ(q.Ask(p), "");
  p.schedule = ScheduleKind::kDualPipeV;
  EXPECT_EQ(q.Ask(p),
            "schedule dualpipe-v needs at least 8 micro-batches, two a pipeline rank, got 2");
  p.virtual_stages = 2;
  EXPECT_EQ(q.Ask(p), "the dualpipe-v schedule does not go with vpp 2");
  p = Plan(1, 64, 2);
  p.schedule = ScheduleKind::kZbV;
  EXPECT_EQ(q.Ask(p), "80 layers are fewer than the 128 stages of schedule zb-v");
  p = Plan(8, 4, 4);
  p.expert = 2;
  EXPECT_EQ(q.Ask(p), "llama-3.1-70b has no experts for ep 2 and etp 1");
  p = Plan(1, 4, 32);
  p.sequence_parallel = true;
  EXPECT_EQ(q.Ask(p), "sequence parallelism shards over tensor ranks, and tp is 1");
  p = Plan(8, 4, 4);
  p.recompute.granularity = RecomputeGranularity::kSelective;
  EXPECT_EQ(q.Ask(p), "selective recompute names no module");
  p.recompute.modules = {RecomputeModule::kMoe};
  EXPECT_EQ(q.Ask(p), "llama-3.1-70b has no experts for moe");
  p = Plan(8, 4, 4);
  p.recompute.offload_layers = 3;
  EXPECT_EQ(q.Ask(p), "");
  p.schedule = ScheduleKind::kZbH1;
  EXPECT_EQ(q.Ask(p), "offloaded layers do not go with schedule zb-h1, whose backward is split");
  p.recompute.granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(q.Ask(p), "offload_layers 3 is given, but full recompute leaves nothing to offload");
  p = Plan(8, 4, 4);
  p.zero_shard = 3;
  EXPECT_EQ(q.Ask(p), "zero_shard 3 does not divide the 4 data-parallel ranks (dp x cp)");
}

TEST(CheckPlan, UlyssesNeedsHeadsAndARingDoesNot) {
  Question q;
  q.training.seq_length = 131072;
  ParallelConfig p = Plan(8, 1, 1);
  p.context = 16;
  EXPECT_EQ(q.Ask(p), "");  // any degree for a ring
  p.context_kind = ContextParallelKind::kUlysses;
  EXPECT_EQ(q.Ask(p), "64 attention heads are not divisible by tp 8 x cp 16 (Ulysses)");
  p.context = 8;
  p.data = 2;
  EXPECT_EQ(q.Ask(p), "");
}

// 64 heads and 8 KV heads.
TEST(CheckPlan, NestedContextNeedsHeadsForTheInnerPart) {
  Question q;
  q.training.seq_length = 131072;
  ParallelConfig p = Plan(8, 1, 1);
  p.context = 16;
  p.context_kind = ContextParallelKind::kNested;
  p.context_ulysses = 8;
  EXPECT_EQ(q.Ask(p), "");  // 8 heads of a rank, one for each; its KV head for all
  p.context_ulysses = 3;
  EXPECT_EQ(q.Ask(p), "cp 16 cannot be nested with cp_ulysses 3: accepted 2, 4, 8");
  for (const int all : {0, 1, 16, 32}) {
    p.context_ulysses = all;
    EXPECT_EQ(q.Ask(p), "cp 16 cannot be nested with cp_ulysses " + std::to_string(all) +
                            ": accepted 2, 4, 8");
  }
  p.context = 2;
  p.data = 8;
  p.context_ulysses = 2;
  EXPECT_EQ(q.Ask(p), "cp 2 cannot be nested with cp_ulysses 2: accepted none");
  p.context_kind = ContextParallelKind::kRing;
  EXPECT_EQ(q.Ask(p), "cp_ulysses 2 goes with nested context parallelism alone");
  p = Plan(16, 1, 1);
  p.context = 8;
  p.context_kind = ContextParallelKind::kNested;
  p.context_ulysses = 4;
  EXPECT_EQ(q.Ask(p), "");  // 4 heads of a rank
  p.tensor = 32;
  p.context = 4;
  p.context_ulysses = 2;
  EXPECT_EQ(q.Ask(p), "");
  q.training.seq_length = 131072 + 64;  // 8 blocks, but 32,784 tokens of a rank are not 32 parts
  EXPECT_EQ(q.Ask(p),
            "sequence of 131136 tokens is not divisible by 256 (cp 4, two blocks a "
            "rank, tp 32)");
  q.training.seq_length = 131072;
  p.context = 8;
  p.tensor = 16;
  p.context_ulysses = 2;
  q.model.num_attention_heads = q.model.num_query_groups = 16;
  EXPECT_EQ(q.Ask(p), "16 attention heads are not divisible by tp 16 x cp_ulysses 2 (nested)");
  q.model.num_attention_heads = 192;
  q.model.num_query_groups = 48;  // 12 and 3 of a rank
  EXPECT_EQ(q.Ask(p),
            "3 KV heads of a rank cannot be split over or replicated on cp_ulysses 2 "
            "(nested)");
}

TEST(CheckPlan, ContextBlocksMustBeEven) {
  Question q;
  q.training.seq_length = 8200;
  ParallelConfig p = Plan(1, 4, 8);
  p.context = 4;
  EXPECT_EQ(q.Ask(p), "");  // 8 blocks of 1025
  p.context = 2;
  p.tensor = 2;
  p.sequence_parallel = true;
  EXPECT_EQ(q.Ask(p), "");
  q.training.seq_length = 8198;
  p = Plan(1, 4, 16);
  p.context = 2;
  EXPECT_EQ(q.Ask(p), "sequence of 8198 tokens is not divisible by 4 (cp 2, two blocks a rank)");
}

TEST(CheckPlan, TensorParallelBeyondKvHeadsReplicatesOrIsRefused) {
  Question q;  // 64 heads, 8 KV heads
  EXPECT_EQ(q.Ask(Plan(16, 1, 8)), "");
  q.model.num_attention_heads = 96;
  q.model.num_query_groups = 12;
  EXPECT_EQ(q.Ask(Plan(8, 1, 16)), "12 KV heads cannot be split over or replicated on tp 8");
}

TEST(CheckPlan, PrecisionMustExist) {
  Question q;
  q.gpu = FindGpu("A100-80GB");
  q.training.precision = Precision::kFp8;
  EXPECT_EQ(q.Ask(Plan(8, 4, 4)), q.gpu.name + " has no fp8");
}

TEST(CheckPlan, HugeDegreesDoNotOverflow) {
  Question q;
  const int huge = 1 << 30;
  ParallelConfig p = Plan(huge, huge, huge);
  p.context = huge;
  EXPECT_NE(q.Ask(p), "");
}

TEST(Rejections, HaveDistinctNamesAndKeys) {
  for (int i = 0; i < kRejectionReasons; ++i) {
    const auto a = static_cast<RejectionReason>(i);
    EXPECT_FALSE(Name(a).empty());
    for (int j = 0; j < i; ++j) {
      const auto b = static_cast<RejectionReason>(j);
      EXPECT_NE(Name(a), Name(b));
      EXPECT_NE(JsonKey(a), JsonKey(b));
    }
  }
}

TEST(CheckStageLayers, SaysWhatIsWrongWithASplit) {
  const ModelConfig model = PresetModel("llama-3.1-8b");  // 32 layers
  const auto said = [&](ScheduleKind schedule, std::vector<int> layers) {
    ParallelConfig plan{.pipeline = 4, .schedule = schedule};
    plan.stage_layers = std::move(layers);
    const Verdict verdict = CheckStageLayers(model, plan);
    return verdict ? verdict->detail : std::string("fine");
  };
  using enum ScheduleKind;
  EXPECT_EQ(said(k1F1B, {}), "fine");
  EXPECT_EQ(said(k1F1B, {0, 16, 16, 0}), "fine");
  EXPECT_EQ(said(k1F1B, {16, 16}), "layers of 2 stages are given, and the plan has 4");
  EXPECT_EQ(said(k1F1B, {8, 8, 8, 9}), "the stages hold 33 layers in all, and the model has 32");
  EXPECT_EQ(said(k1F1B, {8, 0, 16, 8}),
            "stage 1 has no layers; only the first and the last can be without");
  EXPECT_EQ(said(kZbH1, {0, 16, 8, 8}), "stage 0 has no layers; under zb-h1 the first needs some");
  EXPECT_EQ(said(kZbH1, {16, 8, 8, 0}), "fine");
}

TEST(Feasibility, RecomputeOfEachRank) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  ParallelConfig plan{.pipeline = 2};
  const Recompute full{.granularity = RecomputeGranularity::kFull};
  const auto detail = [&] {
    const Verdict verdict = CheckRecompute(model, plan);
    return verdict ? verdict->detail : "";
  };
  plan.rank_recompute = {full, {}};
  EXPECT_EQ(detail(), "");
  plan.rank_recompute = {full};
  EXPECT_EQ(detail(), "recompute of 1 pipeline ranks is given, and the plan has 2");
  plan.rank_recompute = {
      full, {.granularity = RecomputeGranularity::kSelective, .modules = {RecomputeModule::kMoe}}};
  EXPECT_EQ(detail(), "rank 1: llama-3.1-8b has no experts for moe");
  plan.rank_recompute = {full, {}};
  plan.recompute = full;
  EXPECT_EQ(detail(), "full of all ranks is given beside full|none of each");
  plan.recompute = {};
  plan.rank_recompute = {full, {.offload_layers = 1}};
  plan.schedule = ScheduleKind::kZbH1;
  EXPECT_TRUE(CheckOffload(plan));
  plan.schedule = ScheduleKind::k1F1B;
  EXPECT_FALSE(CheckOffload(plan));
  EXPECT_FALSE(RunsIn(Framework::kMegatron, plan));
  plan.rank_recompute.clear();
  EXPECT_TRUE(RunsIn(Framework::kMegatron, plan));
}

}  // namespace
}  // namespace millwright
