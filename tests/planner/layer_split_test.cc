// SPDX-License-Identifier: Apache-2.0
#include "planner/layer_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/model_presets.h"
#include "planner/feasibility.h"
#include "planner/search.h"

namespace millwright {
namespace {

// Every way to write `layers` as a sum over stages of which first and last may have none.
void ForEachSplit(int layers, int stages, int of_first,
                  const std::function<void(const std::vector<int>&)>& act) {
  std::vector<int> split;
  const std::function<void(int)> extend = [&](int left) {
    const int s = int(split.size());
    if (s == stages) {
      if (left == 0) act(split);
      return;
    }
    for (int n = s == 0 ? of_first : s == stages - 1 ? 0 : 1; n <= left; ++n) {
      split.push_back(n);
      extend(left - n);
      split.pop_back();
    }
  };
  extend(layers);
}

// Of the slowest rank, from the itemised estimate's own terms.
struct Measured {
  Seconds slowest;
  Bytes peak;
};
Measured Measure(const Estimator& estimator, const ParallelConfig& plan) {
  const ShapeCosts shape = estimator.CostShape(ShapeOf(plan, estimator.training()));
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(estimator.model(), plan));
  PipelineTerms terms(estimator, shape, stages, plan);
  terms.SetInFlight();
  const Recompute others = OfOthers(plan.recompute);
  std::vector<TreatedLayer> treated = shape.Treat(plan.recompute), rest = shape.Treat(others);
  shape.Pair(plan.recompute, treated);
  shape.Pair(others, rest);
  const std::vector<int> some = SomeLayers(stages, plan.recompute);
  Measured measured;
  for (const RankCost& cost : terms.CostOfRanks({.treated = treated, .rest = rest, .some = some})) {
    measured.slowest = std::max(measured.slowest, cost.time);
    measured.peak = std::max(measured.peak, cost.peak);
  }
  return measured;
}

ModelConfig Small(std::string_view preset, int dense, int moe) {
  ModelConfig model = PresetModel(preset);
  model.num_layers = dense + moe;
  if (dense == 0 || moe == 0) {  // the first of its layers, whatever kinds they are
    int left = dense + moe;
    for (LayerRun& run : model.layers) left -= run.count = std::min(run.count, left);
    std::erase_if(model.layers, [](const LayerRun& run) { return run.count == 0; });
  } else {
    model.layers[0].count = dense;
    model.layers[1].count = moe;
  }
  return model;
}

struct Case {
  std::string_view preset;
  int dense, moe;
  ScheduleKind schedule;
  int pipeline;
  Recompute recompute{};
};

class LayerSplit : public testing::TestWithParam<Case> {};

// Against every split, with ever less memory until nothing fits: none that fits has a faster
// slowest rank, and one is found whenever one fits.
TEST_P(LayerSplit, NoSplitThatFitsHasAFasterSlowestRank) {
  const Case c = GetParam();
  const ModelConfig model = Small(c.preset, c.dense, c.moe);
  const Cluster cluster(FindCluster("dgx-h100"));
  ParallelConfig plan{.tensor = 1,
                      .pipeline = c.pipeline,
                      .data = 8 / c.pipeline,
                      .recompute = c.recompute,
                      .schedule = c.schedule};
  TrainingConfig training{.global_batch_size = std::int64_t{4} * c.pipeline * plan.data,
                          .seq_length = 2048};
  ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), cluster.gpus(), plan))
      << CheckPlan(model, training, cluster.gpu(), cluster.gpus(), plan)->detail;
  ASSERT_TRUE(CanSplit(plan));
  const Estimator estimator(model, training, cluster);

  std::vector<Measured> all;
  const int of_first = SplitsBackward(plan.schedule) ? 1 : 0;
  ForEachSplit(model.num_layers, StagesPerCopy(plan), of_first, [&](const std::vector<int>& split) {
    ParallelConfig p = plan;
    p.stage_layers = split;
    all.push_back(Measure(estimator, p));
  });
  ASSERT_GE(all.size(), 10u);
  std::vector<double> peaks;
  for (const Measured& m : all) peaks.push_back(m.peak.value);
  std::sort(peaks.begin(), peaks.end());
  const Measured as_it_is = Measure(estimator, plan);
  int found = 0, none = 0, kept = 0;
  for (const double share : {0.0, 0.02, 0.1, 0.3, 0.6, 1.0}) {
    const Bytes limit(peaks[std::size_t(share * double(peaks.size() - 1))]);
    for (const Bytes memory : {limit, 0.999 * limit}) {
      Seconds best(1e9);
      for (const Measured& m : all) {
        if (m.peak <= memory) best = std::min(best, m.slowest);
      }
      const auto split = BestSplit(estimator, plan, memory);
      if (split) {
        EXPECT_LE(split->peak.value, memory.value * (1 + 1e-12));
        EXPECT_NEAR(Measure(estimator, split->plan).slowest / best, 1, 1e-12);
        ++found;
      } else if (as_it_is.peak <= memory) {
        // No split is worth it: no step is shorter by more than what the bound of a step says.
        ++kept;
        EXPECT_GE(best / as_it_is.slowest, 0.97);
      } else {
        EXPECT_EQ(best, Seconds(1e9));
        ++none;
      }
    }
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(found + kept, 0);
}

INSTANTIATE_TEST_SUITE_P(Small, LayerSplit,
                         testing::Values(Case{"llama-3.1-8b", 10, 0, ScheduleKind::k1F1B, 4},
                                         Case{"gemma-2-9b", 9, 0, ScheduleKind::k1F1B, 4},
                                         Case{"llama-3.1-8b", 10, 0, ScheduleKind::k1F1B, 4,
                                              Recompute{.offload_layers = 2}},
                                         Case{"llama-3.1-8b", 9, 0, ScheduleKind::kGpipe, 2},
                                         Case{"deepseek-v3", 3, 8, ScheduleKind::k1F1B, 4},
                                         Case{"deepseek-v3", 3, 8, ScheduleKind::kDualPipe, 4},
                                         Case{"llama-3.1-8b", 12, 0, ScheduleKind::kZbV, 4},
                                         Case{"deepseek-v3", 2, 8, ScheduleKind::kDualPipeV, 2},
                                         Case{"llama-3.1-8b", 11, 0, ScheduleKind::kZbH1, 8}),
                         [](const testing::TestParamInfo<Case>& one) {
                           return "Case" + std::to_string(one.index);
                         });

TEST(LayerSplitOf, InterleavedSchedulesStayAsTheyAre) {
  EXPECT_FALSE(CanSplit({.pipeline = 1}));
  EXPECT_FALSE(
      CanSplit({.pipeline = 4, .virtual_stages = 2, .schedule = ScheduleKind::kInterleaved}));
  EXPECT_TRUE(CanSplit({.pipeline = 4}));
  EXPECT_TRUE(CanSplit({.pipeline = 4, .schedule = ScheduleKind::kZbV}));
  EXPECT_TRUE(CanSplit({.pipeline = 4, .schedule = ScheduleKind::kDualPipe}));
}

}  // namespace
}  // namespace millwright
