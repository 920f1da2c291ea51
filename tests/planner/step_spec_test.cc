// SPDX-License-Identifier: Apache-2.0
#include "planner/step_spec.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"
#include "core/parameters.h"

namespace millwright {
namespace {

double Elements(const std::vector<Weight>& weights) {
  double sum = 0;
  for (const Weight& weight : weights) sum += double(weight.elements());
  return sum;
}

class HeldByRanksTest : public testing::Test {
 protected:
  HeldByRanksTest() : cluster_(FindCluster("dgx-h100")) {}

  // Of every rank of four, unsharded: 2 B of weights, 4 of gradients and 12 of optimizer state for
  // each parameter that it holds.
  std::vector<StageMemory> Held(const ModelConfig& model, ScheduleKind kind, int chunks = 1) const {
    const Estimator estimator(model, training_, cluster_);
    ParallelConfig plan{.pipeline = 4, .virtual_stages = chunks, .data = 2, .zero = 0};
    return HeldByRanks(
        estimator, plan,
        BuildSchedule({.kind = kind, .pipeline = 4, .micro_batches = 8, .virtual_stages = chunks}));
  }

  const TrainingConfig training_{.global_batch_size = 16, .seq_length = 1024};
  const Cluster cluster_;
};

TEST_F(HeldByRanksTest, AddUpToTheModel) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const auto total = double(CountParameters(model).total);
  for (const EnumName<ScheduleKind>& name : ScheduleKindNames()) {
    SCOPED_TRACE(name.name);
    const bool looped =
        name.value == ScheduleKind::kInterleaved || name.value == ScheduleKind::kBreadthFirst;
    double weights = 0, gradients = 0, optimizer = 0;
    for (const StageMemory& rank : Held(model, name.value, looped ? 2 : 1)) {
      weights += rank[MemoryItem::kWeights].value;
      gradients += rank[MemoryItem::kGradients].value;
      optimizer += rank[MemoryItem::kOptimizer].value;
    }
    const double copies = name.value == ScheduleKind::kDualPipe ? 2 : 1;
    EXPECT_NEAR(weights / (copies * 2 * total), 1, 1e-12);
    EXPECT_NEAR(gradients / (copies * 4 * total), 1, 1e-12);
    EXPECT_NEAR(optimizer / (12 * total), 1, 1e-12);
  }
}

TEST_F(HeldByRanksTest, AVHasFirstAndLastStageOnTheFirstRank) {
  // 32 layers in 8 chunks of 4, two a rank; rank 0 has the embedding and the head beside them.
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const double layers = 8 * Elements(LayerWeights(model, model.layer(0)));
  const double ends = Elements(EmbeddingWeights(model)) + Elements(HeadWeights(model));
  for (ScheduleKind kind : {ScheduleKind::kZbV, ScheduleKind::kVHalf, ScheduleKind::kVMin,
                            ScheduleKind::kVZb, ScheduleKind::kDualPipeV}) {
    const std::vector<StageMemory> held = Held(model, kind);
    EXPECT_DOUBLE_EQ(held[0][MemoryItem::kWeights].value, 2 * (layers + ends));
    for (int rank : {1, 2, 3}) {
      EXPECT_DOUBLE_EQ(held[std::size_t(rank)][MemoryItem::kWeights].value, 2 * layers);
    }
  }
  // DualPipe: both ends, each on both outer ranks; the optimizer state of a stage once.
  const std::vector<StageMemory> dual = Held(model, ScheduleKind::kDualPipe);
  for (int rank : {0, 3}) {
    EXPECT_DOUBLE_EQ(dual[std::size_t(rank)][MemoryItem::kWeights].value, 2 * (2 * layers + ends));
    EXPECT_DOUBLE_EQ(dual[std::size_t(rank)][MemoryItem::kOptimizer].value,
                     12 * (2 * layers + ends) / 2);
  }
  EXPECT_DOUBLE_EQ(dual[1][MemoryItem::kWeights].value, 2 * 2 * layers);
}

TEST_F(HeldByRanksTest, ATiedEmbeddingIsThereTwiceOnlyWhereTheEndsAreApart) {
  ModelConfig model = PresetModel("llama-3.1-8b");
  model.tied_embeddings = true;
  const auto total = double(CountParameters(model).total);
  const double table = double(EmbeddingWeights(model).front().elements());
  const auto sum = [&](ScheduleKind kind) {
    double weights = 0;
    for (const StageMemory& rank : Held(model, kind)) weights += rank[MemoryItem::kWeights].value;
    return weights / 2;
  };
  EXPECT_DOUBLE_EQ(sum(ScheduleKind::k1F1B), total + table);
  EXPECT_DOUBLE_EQ(sum(ScheduleKind::kZbV), total);
}

}  // namespace
}  // namespace millwright
