// SPDX-License-Identifier: Apache-2.0
//
// What models have beside RMSNorm, RoPE and whole causal attention: LayerNorm, learned positions, a
// head tied to the embedding, norms on queries and keys, sliding windows; each against the step
// that is not cut.
#include <gtest/gtest.h>

#include "tests/runtime/expect_agreement.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

ModelConfig WithNormedHeads(Normalization normalization) {
  ModelConfig model = WithLayers(TinyModel(), 2);
  model.normalization = normalization;
  model.qk_layernorm = true;
  return model;
}

// Windows shorter than a context rank's block, longer than one, and none.
ModelConfig WithWindows() {
  ModelConfig model = WithLayers(TinyModel(), 4);
  model.layers = {{.count = 1, .kind = {.sliding_window = 1}},
                  {.count = 1, .kind = {.sliding_window = 3}},
                  {.count = 1, .kind = {.sliding_window = 11}},
                  {.count = 1, .kind = {}}};
  return model;
}

TEST(LayerKinds, GptOnOneRank) {
  ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 2), {.micro_batch_size = 2}));
  ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 2), {}), ElementType::kFp32);
}

TEST(LayerKinds, GptWithTensorAndContextParallelism) {
  for (const bool sequence_parallel : {false, true}) {
    for (const int tensor : {2, 4}) {
      ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 2),
                                   {.tensor = tensor, .sequence_parallel = sequence_parallel}));
    }
  }
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 2), {.tensor = 2,
                                                            .sequence_parallel = true,
                                                            .context = 2,
                                                            .context_kind = kind,
                                                            .micro_batch_size = 2}));
  }
}

// First and last stage on two ranks, each with a token table; on one rank, with one; and under
// DualPipe, where both ranks have both ends of a direction.
TEST(LayerKinds, TiedHeadUnderEverySchedule) {
  int index = 0;
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    for (const int zero : {index % 4, (index + 2) % 4}) {
      ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 8),
                                   {.tensor = index % 2 + 1,
                                    .sequence_parallel = index % 2 == 1,
                                    .pipeline = 2,
                                    .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                                    .data = 2,
                                    .zero = zero,
                                    .schedule = name.value},
                                   8, 4));
    }
    ++index;
  }
  ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 5), {.pipeline = 3, .data = 3}, 9, 4));
}

// 4 and 8 ranks for 2 KV heads: each rank's part of a key's gradient goes through the norm.
TEST(LayerKinds, NormsOnQueriesAndKeys) {
  for (const Normalization norm : {Normalization::kRmsNorm, Normalization::kLayerNorm}) {
    ExpectAgreement(TinyWorkload(WithNormedHeads(norm), {}));
    for (const int tensor : {2, 4, 8}) {
      ExpectAgreement(TinyWorkload(WithNormedHeads(norm), {.tensor = tensor}));
    }
    for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
      ExpectAgreement(TinyWorkload(WithNormedHeads(norm), {.tensor = 2,
                                                           .sequence_parallel = true,
                                                           .context = 2,
                                                           .context_kind = kind,
                                                           .pipeline = 2,
                                                           .schedule = ScheduleKind::kZbH1}));
    }
    ExpectAgreement(
        TinyWorkload(WithNormedHeads(norm), {.tensor = 2,
                                             .sequence_parallel = true,
                                             .context = 4,
                                             .context_kind = ContextParallelKind::kNested,
                                             .context_ulysses = 2}));
  }
}

TEST(LayerKinds, SlidingWindows) {
  ExpectAgreement(TinyWorkload(WithWindows(), {}));
  ExpectAgreement(TinyWorkload(WithWindows(), {.tensor = 2}));
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    for (const int context : {2, 4}) {
      ExpectAgreement(TinyWorkload(WithWindows(), {.context = context, .context_kind = kind}));
    }
  }
  ExpectAgreement(TinyWorkload(
      WithWindows(),
      {.context = 4, .context_kind = ContextParallelKind::kNested, .context_ulysses = 2}));
}

TEST(LayerKinds, Recomputation) {
  using Module = RecomputeModule;
  for (const Recompute& recompute :
       {Recompute{.granularity = RecomputeGranularity::kFull},
        Recompute{.granularity = RecomputeGranularity::kSelective,
        .modules = {Module::kCoreAttn, Module::kMlp, Module::kLayerNorm}}}) {
    ModelConfig model = WithLayers(TinyGpt(), 2);
    model.qk_layernorm = true;
    model.layers = {{.count = 2, .kind = {.sliding_window = 5}}};
    ExpectAgreement(TinyWorkload(model, {.tensor = 2,
                                         .sequence_parallel = true,
                                         .pipeline = 2,
                                         .recompute = recompute,
                                         .schedule = ScheduleKind::kZbH1}));
  }
}

}  // namespace
}  // namespace millwright
