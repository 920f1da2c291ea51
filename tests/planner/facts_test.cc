// SPDX-License-Identifier: Apache-2.0
//
// What is known of real models and machines must come out.
#include <gtest/gtest.h>

#include <numeric>

#include "core/model_presets.h"
#include "planner/feasibility.h"
#include "planner/search.h"
#include "tests/sanitized.h"

namespace millwright {
namespace {

Cluster ClusterOf(const char* name, int nodes) {
  ClusterConfig config = FindCluster(name);
  config.nodes = nodes;
  return Cluster(config);
}

// GPT-3 175B with Adam does not fit on 8 x A100-80: 16 x 175e9 / 8 = 350 GB a GPU at best.
TEST(Facts, Gpt3DoesNotFitOnOneDgxA100) {
  const ModelConfig model = PresetModel("gpt3-175b");
  const TrainingConfig training{.global_batch_size = 8, .seq_length = 2048};
  const Cluster cluster = ClusterOf("dgx-a100", 1);
  const SearchResult result = Search(model, training, cluster, {});
  EXPECT_TRUE(result.plans.empty());
  ASSERT_TRUE(result.nearest_miss.has_value());
  EXPECT_GT(result.nearest_miss->peak, Bytes(350e9));
}

// Llama-3-70B at TP8 PP1 on 8 H100: 18 bytes x 70.6e9 / 8 = 159 GB, of which the optimizer 106 GB.
TEST(Facts, Llama70BAtTp8OnEightH100NamesTheOptimizerState) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const TrainingConfig training{.global_batch_size = 8, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 1);
  ParallelConfig plan;
  plan.tensor = 8;
  plan.sequence_parallel = true;
  ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), 8, plan));
  const Estimate e = Estimator(model, training, cluster).Itemise(plan);
  EXPECT_FALSE(e.fits());
  EXPECT_EQ(e.memory[0].largest(), MemoryItem::kOptimizer);
  EXPECT_NEAR(e.memory[0][MemoryItem::kOptimizer].value / (12 * 70.553706496e9 / 8), 1, 2e-3);
}

// Llama-3 405B at TP8 PP16 DP128 on 16,384 H100 (arXiv:2407.21783, table 4) at micro-batch 1: fits
// with sharded gradients or with the SwiGLU product recomputed; with neither it does not.
TEST(Facts, Llama405BFitsWithShardedGradientsOrFusedSwiglu) {
  const ModelConfig model = PresetModel("llama-3.1-405b");
  TrainingConfig training{.global_batch_size = 2048, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 2048);
  ParallelConfig plan;
  plan.tensor = 8;
  plan.sequence_parallel = true;
  plan.pipeline = 16;
  plan.data = 128;
  ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), 16384, plan));
  const auto estimate = [&] { return Estimator(model, training, cluster).Itemise(plan); };

  const Estimate neither = estimate();
  EXPECT_FALSE(neither.fits());
  EXPECT_EQ(neither.peak_stage, 1);
  EXPECT_EQ(neither.memory[1].largest(), MemoryItem::kActivations);

  plan.zero = 2;
  const Estimate sharded = estimate();
  EXPECT_TRUE(sharded.fits());
  plan.zero = 1;
  training.fused_swiglu = true;
  EXPECT_TRUE(estimate().fits());
  // By hand, stage 1: 8 layers of (405.85e9 - embedding and head 4.2e9) / 126 / 8 parameters, 15
  // micro-batches in flight of 8 layers x 8192 tokens x 520,192 / 8 bytes.
  const double parameters = 8 * (405.853388800e9 - 2 * 128256.0 * 16384) / 126 / 8;
  EXPECT_NEAR(neither.memory[1][MemoryItem::kGradients].value / (4 * parameters), 1, 1e-3);
  EXPECT_NEAR(neither.memory[1][MemoryItem::kActivations].value / (15.0 * 8 * 8192 * 520192 / 8), 1,
              2e-3);  // and the statistics
}

// DeepSeek-V3 as published (arXiv:2412.19437, section 3.1): EP64, PP16, ZeRO-1, no TP on 2,048
// H800; 61 layers over 16 stages.
TEST(Facts, DeepSeekV3PublishedLayoutFitsWithFullRecompute) {
  const ModelConfig model = PresetModel("deepseek-v3");
  const TrainingConfig training{
      .global_batch_size = 15360, .seq_length = 4096, .precision = Precision::kFp8};
  const Cluster cluster = ClusterOf("dgx-h800", 256);
  ParallelConfig plan;
  plan.pipeline = 16;
  plan.data = 128;
  plan.expert = 64;
  plan.recompute.granularity = RecomputeGranularity::kFull;
  ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), 2048, plan));
  const Estimate e = Estimator(model, training, cluster).Itemise(plan);
  EXPECT_TRUE(e.fits());
  // Its all-to-all is not overlapped here: that is what it loses most to.
  EXPECT_GT(e.time[TimeItem::kExpert], e.time[TimeItem::kRecompute]);
}

// The same as it was run: DualPipe with its all-to-all under other work, RMSNorm, SwiGLU and the
// up-projections computed again, activations and moments kept in fewer bits (sections 3.2 and 3.3).
// It fits with its layers divided by memory, recomputes no more than was published, and is as fast
// as the best of all schedules within 10%.
TEST(Facts, DeepSeekV3PublishedLayoutIsNearlyThePlannersBest) {
  const ModelConfig model = PresetModel("deepseek-v3");
  const TrainingConfig training{.global_batch_size = 15360,
                                .seq_length = 4096,
                                .precision = Precision::kFp8,
                                .moment_bytes = 4,
                                .fp8_activation_store = true,
                                .fused_cross_entropy = true,
                                .expert_overlap = true,
                                .moe_dispatcher = MoeDispatcher::kDeepEp};
  const Cluster cluster = ClusterOf("dgx-h800", 256);
  SearchOptions all, published;
  std::string schedules;
  for (const auto& name : TrainingScheduleNames()) schedules += "|" + std::string(name.name);
  all.filter.Require("schedule=" + schedules.substr(1));
  if (kSanitized) all.filter.Require("tp=1,cp=1,pp=16");
  published.filter.Require("tp=1,cp=1,pp=16,ep=64,zero=1,schedule=dualpipe");
  const SearchResult best = Search(model, training, cluster, all);
  const SearchResult theirs = Search(model, training, cluster, published);
  ASSERT_FALSE(best.plans.empty());
  ASSERT_FALSE(theirs.plans.empty());
  EXPECT_LE(theirs.plans.front().step, 1.1 * best.plans.front().step);
  EXPECT_FALSE(theirs.plans.front().plan.stage_layers.empty());
  for (const RecomputeModule module : theirs.plans.front().plan.recompute.modules) {
    EXPECT_TRUE(module == RecomputeModule::kLayerNorm || module == RecomputeModule::kMlaUpProj ||
                module == RecomputeModule::kMoeAct);
  }
}

// TP 8 is the most that 8 KV heads allow without holding any of them twice.
TEST(Facts, TensorParallelBeyondEightReplicatesLlamasKvHeads) {
  const ModelConfig model = PresetModel("llama-3.1-405b");
  const auto all_ranks = [&](int t) {
    return t * ParametersPerRank(LayerWeights(model, model.layer(0)), model, t, 1, 1).dense;
  };
  const double norms = 2 * 16384;
  const double once = all_ranks(1) - norms;
  EXPECT_DOUBLE_EQ(all_ranks(8) - 8 * norms, once);
  // 16 ranks hold 16 KV heads: K and V of 8 more, each 128 x 16384.
  EXPECT_DOUBLE_EQ(all_ranks(16) - 16 * norms, once + 8 * 2 * 128 * 16384.0);
}

// Tensor-parallel communication over compute does not depend on the batch.
TEST(Facts, TensorCommunicationShareDoesNotDependOnTheBatch) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  double before = 0;
  for (int b : {1, 2, 4}) {
    const LayerShape shape{.tensor = 8, .micro_batch_size = b, .seq_length = 8192};
    double payload = 0, flops = 0;
    for (const Operator& op : LayerOperators(model, model.layer(0), shape, {})) {
      if (op.kind == OperatorKind::kGemm) flops += op.forward_flops({}).value;
      if (op.kind == OperatorKind::kCollective) payload += op.payload.value;
    }
    if (before > 0) {
      EXPECT_DOUBLE_EQ(payload / flops, before);
    }
    before = payload / flops;
  }
}

}  // namespace
}  // namespace millwright
