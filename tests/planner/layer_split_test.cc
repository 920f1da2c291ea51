// SPDX-License-Identifier: Apache-2.0
#include "planner/layer_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

#include "core/model_presets.h"
#include "planner/feasibility.h"
#include "planner/search.h"
#include "planner/search_space.h"

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

// Of the slowest rank and of all, from the itemised estimate's own terms.
struct Measured {
  Seconds slowest, sum;
  Bytes peak;
  Seconds step, optimizer, data;
};
Measured Measure(const Estimator& estimator, const ShapeCosts& shape, const ParallelConfig& plan) {
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(estimator.model(), plan));
  PipelineTerms terms(estimator, shape, stages, plan);
  terms.SetInFlight();
  const TreatedStages treated = TreatStages(shape, stages, plan.Recomputes());
  Measured measured;
  std::size_t s = 0;
  for (const RankCost& cost : terms.CostOfRanks(treated.terms())) {
    measured.slowest = std::max(measured.slowest, cost.time);
    measured.sum += double(stages[s++].ranks.size()) * cost.time;
    measured.peak = std::max(measured.peak, cost.peak);
  }
  const Estimate estimate = terms.Itemise(plan, treated.terms());
  measured.step = estimate.step;
  measured.optimizer = estimate.time[TimeItem::kOptimizer];
  measured.data = estimate.time[TimeItem::kData];
  return measured;
}
Measured Measure(const Estimator& estimator, const ParallelConfig& plan) {
  return Measure(estimator, estimator.CostShape(ShapeOf(plan, estimator.training())), plan);
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
  // What it would be if it were divided well, by which the search ranks plans, is no longer than
  // any division is, but for what is not in proportion to layers.
  {
    const ShapeCosts shape = estimator.CostShape(ShapeOf(plan, training));
    const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(model, plan));
    const PipelineTerms terms(estimator, shape, stages, plan);
    const TreatedStages treated = TreatStages(shape, stages, plan.Recomputes());
    const Seconds divided = terms.StepIfDivided(treated.terms());
    EXPECT_LE(divided, estimator.Itemise(plan).step);
    Seconds fastest(1e9);
    for (const Measured& m : all) fastest = std::min(fastest, m.step);
    const bool in_proportion =
        FollowsFromStages(plan.schedule) && plan.recompute.offload_layers == 0;
    EXPECT_LE(divided / fastest, in_proportion ? 1.001 : 1.035);
    EXPECT_GE(divided / fastest, 0.90) << divided.value << " of " << fastest.value;
  }
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

// Every choice on every rank.
void ForEachAssignment(const std::vector<Recompute>& choices, int ranks,
                       const std::function<void(const std::vector<Recompute>&)>& act) {
  std::vector<Recompute> of_ranks(static_cast<std::size_t>(ranks));
  const std::function<void(std::size_t)> assign = [&](std::size_t rank) {
    if (rank == of_ranks.size()) return act(of_ranks);
    for (const Recompute& choice : choices) {
      of_ranks[rank] = choice;
      assign(rank + 1);
    }
  };
  assign(0);
}

const Recompute kFull{.granularity = RecomputeGranularity::kFull};
Recompute FirstLayers(int layers) {
  return {.granularity = RecomputeGranularity::kFull, .full_layers = layers};
}
Recompute Selective(std::vector<RecomputeModule> modules) {
  return {.granularity = RecomputeGranularity::kSelective, .modules = std::move(modules)};
}

struct RankCase {
  std::string_view preset;
  int dense, moe;
  ScheduleKind schedule;
  int pipeline;
  std::int64_t micro_batches;
  std::int64_t seq_length = 8192;
  std::vector<Recompute> choices = {{}, Selective({RecomputeModule::kMlp}), kFull, FirstLayers(1)};
  int virtual_stages = 1;
  int zero = 1;
  int data = 1;
};

// Answers of a case, those of them that are unlike from rank to rank, and memories too small for
// any.
struct Counts {
  int found = 0, by_rank = 0, none = 0;
};

// Against every split with every choice on every rank, with ever less memory until nothing fits.
void CheckAgainstEveryAssignment(const RankCase& c, Counts& counts) {
  const ModelConfig model = Small(c.preset, c.dense, c.moe);
  ClusterConfig config = FindCluster("dgx-h100");
  config.gpus_per_node = c.pipeline * c.data;
  config.nics_per_node = config.rails = 0;
  config.gpus_per_pcie_switch = config.sockets = 1;
  const Cluster cluster(config);
  ParallelConfig plan{.pipeline = c.pipeline,
                      .virtual_stages = c.virtual_stages,
                      .data = c.data,
                      .zero = c.zero,
                      .schedule = c.schedule};
  const TrainingConfig training{.global_batch_size = c.micro_batches * c.data,
                                .seq_length = c.seq_length};
  ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), cluster.gpus(), plan))
      << CheckPlan(model, training, cluster.gpu(), cluster.gpus(), plan)->detail;
  const Estimator estimator(model, training, cluster);
  const ShapeCosts shape = estimator.CostShape(ShapeOf(plan, training));

  std::vector<std::vector<int>> splits;
  if (CanSplit(plan)) {
    ForEachSplit(model.num_layers, StagesPerCopy(plan), SplitsBackward(plan.schedule) ? 1 : 0,
                 [&](const std::vector<int>& split) { splits.push_back(split); });
  } else {
    splits.emplace_back();
  }
  std::vector<Measured> all;
  const TreatedStages treated = TreatStages(shape, {}, c.choices);
  for (const std::vector<int>& split : splits) {
    ParallelConfig p = plan;
    p.stage_layers = split;
    const std::size_t first_of_split = all.size();
    ForEachAssignment(c.choices, c.pipeline, [&](const std::vector<Recompute>& of_ranks) {
      p.rank_recompute = of_ranks;
      if (plan.data > 1 || all.size() == first_of_split) {
        all.push_back(Measure(estimator, shape, p));
        return;
      }
      // The same with what does not depend on the assignment taken over: many times as fast.
      std::vector<StageContent> stages = StagesOfPlan(model, p);
      for (StageContent& stage : stages) {
        const Recompute& own = of_ranks[std::size_t(stage.ranks[0])];
        stage.treatment =
            int(std::find(c.choices.begin(), c.choices.end(), own) - c.choices.begin());
      }
      stages = DistinctStages(stages);
      PipelineTerms terms(estimator, shape, stages, p);
      terms.SetInFlight();
      const std::vector<int> some = SomeLayers(stages, c.choices);
      const RecomputeTerms of_all{.treated = treated.treated, .rest = treated.rest, .some = some};
      Measured measured = all[first_of_split];
      measured.slowest = measured.sum = Seconds(0);
      std::size_t s = 0;
      for (const RankCost& cost : terms.CostOfRanks(of_all)) {
        measured.slowest = std::max(measured.slowest, cost.time);
        measured.sum += double(stages[s++].ranks.size()) * cost.time;
      }
      const QuickCost cost = terms.Cost(of_all);
      measured.step = cost.step;
      measured.peak = cost.peak;
      all.push_back(measured);
    });
  }
  std::vector<double> peaks;
  Seconds optimizer[2] = {all[0].optimizer, all[0].optimizer}, data[2] = {all[0].data, all[0].data};
  for (const Measured& m : all) {
    peaks.push_back(m.peak.value);
    optimizer[0] = std::min(optimizer[0], m.optimizer);
    optimizer[1] = std::max(optimizer[1], m.optimizer);
    data[0] = std::min(data[0], m.data);
    data[1] = std::max(data[1], m.data);
  }
  std::sort(peaks.begin(), peaks.end());
  const Measured as_it_is = Measure(estimator, plan);
  for (const double share : {0.0, 0.001, 0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5}) {
    const Bytes limit(peaks[std::size_t(share * double(peaks.size() - 1))]);
    for (const Bytes memory : {limit, 0.999 * limit}) {
      // Split so badly that the slowest rank is this much slower it does not look.
      const Seconds slowest = 2.5 * as_it_is.slowest;
      std::vector<const Measured*> fitting;
      for (const Measured& m : all) {
        if (m.peak <= memory && m.slowest <= slowest) fitting.push_back(&m);
      }
      const auto best = BestByRank(estimator, plan, memory, c.choices);
      if (fitting.empty()) {
        EXPECT_FALSE(best);
        ++counts.none;
        continue;
      }
      const auto first = [&](const auto& before) {
        return **std::min_element(fitting.begin(), fitting.end(), before);
      };
      const Measured fastest =
          first([](const Measured* a, const Measured* b) { return a->step < b->step; });
      if (!best) {  // not worth it
        ASSERT_LE(as_it_is.peak, memory);
        if (FollowsFromStages(plan.schedule)) {
          EXPECT_GE(
              (fastest.step + (optimizer[1] - optimizer[0]) + (data[1] - data[0])) / as_it_is.step,
              0.999 - 1e-9);
        }
        continue;
      }
      ++counts.found;
      counts.by_rank += !best->plan.rank_recompute.empty();
      EXPECT_FALSE(CheckPlan(model, training, cluster.gpu(), cluster.gpus(), best->plan));
      EXPECT_LE(best->peak.value, memory.value * (1 + 1e-12));
      if (FollowsFromStages(plan.schedule)) {
        EXPECT_GE(best->step / fastest.step, 1 - 1e-12);
        // The fastest of all, but for what optimizer and data parallelism make of the layers.
        EXPECT_LE((best->step - (optimizer[1] - optimizer[0]) - (data[1] - data[0])) / fastest.step,
                  1 + 1e-9)
            << ShortName(best->plan) << " at " << memory.value;
      } else {
        // The fastest slowest rank, or a plan that is faster for all that.
        const Measured pace =
            first([](const Measured* a, const Measured* b) { return a->slowest < b->slowest; });
        const Measured own = Measure(estimator, best->plan);
        EXPECT_TRUE(own.slowest <= (1 + 1e-12) * pace.slowest || own.step <= pace.step)
            << ShortName(best->plan) << " at " << memory.value;
      }
    }
  }
}

class RecomputeByRank : public testing::TestWithParam<RankCase> {};

TEST_P(RecomputeByRank, NoAssignmentThatFitsIsFaster) {
  Counts counts;
  CheckAgainstEveryAssignment(GetParam(), counts);
  EXPECT_GT(counts.found, 5);
  // Under others all ranks hold as much.
  const bool pipelined = FollowsFromStages(GetParam().schedule);
  EXPECT_GT(counts.by_rank, pipelined ? 3 : -1);
  EXPECT_GT(counts.none, 0);
}

TEST(RecomputeByRankOf, DrawnCasesAreAsFastAsAnyAssignment) {
  std::mt19937 random(29);
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  Counts counts;
  for (int trial = 0; trial < 150; ++trial) {
    const int which = pick({0, 1, 2, 3});
    RankCase c{.preset = std::array{"llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b",
                                    "deepseek-v3"}[std::size_t(which)],
               .dense = which == 3 ? pick({1, 2, 3}) : pick({4, 5, 6, 7}),
               .moe = which == 3 ? pick({2, 3, 4}) : 0,
               .schedule = ScheduleKind::k1F1B,
               .pipeline = pick({2, 3}),
               .micro_batches = pick({1, 2, 3, 5, 8, 12}),
               .seq_length = pick({2048, 8192, 32768}),
               .choices = {}};
    std::vector<Recompute> all = RecomputeChoices(Small(c.preset, c.dense, c.moe));
    for (const int layers : {1, 2, 3}) {
      all.push_back(FirstLayers(layers));
      all.push_back({.offload_layers = layers});
    }
    std::shuffle(all.begin(), all.end(), random);
    all.resize(5);
    c.choices = {{}};  // the plan that is to be made faster
    for (const Recompute& choice : all) {
      if (choice != Recompute{}) c.choices.push_back(choice);
    }
    CheckAgainstEveryAssignment(c, counts);
    if (testing::Test::HasFailure()) {
      FAIL() << "case " << trial << ": " << c.preset << " " << c.dense << "+" << c.moe << " pp"
             << c.pipeline << " " << c.micro_batches << " micro-batches of " << c.seq_length;
    }
  }
  EXPECT_GT(counts.found, 1000);
  EXPECT_GT(counts.by_rank, 500);
  EXPECT_GT(counts.none, 100);
}

INSTANTIATE_TEST_SUITE_P(
    Small, RecomputeByRank,
    testing::Values(
        RankCase{"llama-3.1-8b", 8, 0, ScheduleKind::k1F1B, 2, 4},
        RankCase{"llama-3.1-8b", 7, 0, ScheduleKind::k1F1B, 3, 6},
        RankCase{"llama-3.1-8b", 8, 0, ScheduleKind::k1F1B, 4, 4},
        RankCase{"llama-3.1-8b", 8, 0, ScheduleKind::k1F1B, 4, 16},
        RankCase{"llama-3.1-8b", 7, 0, ScheduleKind::k1F1B, 3, 1},
        RankCase{"llama-3.1-8b", 7, 0, ScheduleKind::k1F1B, 3, 2},
        RankCase{"llama-3.1-8b", 6, 0, ScheduleKind::k1F1B, 3, 5, 32768},
        RankCase{"llama-3.1-8b",
                 6,
                 0,
                 ScheduleKind::k1F1B,
                 3,
                 6,
                 4096,
                 {{}, kFull, FirstLayers(1), FirstLayers(2), FirstLayers(3)}},
        RankCase{"llama-3.1-8b",
                 6,
                 0,
                 ScheduleKind::k1F1B,
                 2,
                 8,
                 8192,
                 {{}, {.offload_layers = 1}, {.offload_layers = 3}, kFull, FirstLayers(2)}},
        RankCase{"llama-3.1-8b",
                 6,
                 0,
                 ScheduleKind::k1F1B,
                 3,
                 8,
                 8192,
                 {{},
                  Selective({RecomputeModule::kMlp}),
                  Selective({RecomputeModule::kLayerNorm}),
                  Selective({RecomputeModule::kMlp, RecomputeModule::kLayerNorm}),
                  kFull}},
        RankCase{"gpt-oss-20b", 7, 0, ScheduleKind::k1F1B, 3, 8, 16384},
        RankCase{"deepseek-v3", 2, 4, ScheduleKind::k1F1B, 3, 6, 2048},
        RankCase{"mixtral-8x7b",
                 6,
                 0,
                 ScheduleKind::k1F1B,
                 3,
                 9,
                 4096,
                 {{}, Selective({RecomputeModule::kMoeAct}), kFull, FirstLayers(1)}},
        RankCase{"llama-3.1-8b",
                 6,
                 0,
                 ScheduleKind::k1F1B,
                 2,
                 6,
                 8192,
                 {{}, Selective({RecomputeModule::kMlp}), kFull, FirstLayers(1)},
                 1,
                 3,
                 2},
        RankCase{"llama-3.1-8b",
                 8,
                 0,
                 ScheduleKind::kInterleaved,
                 4,
                 8,
                 8192,
                 {{}, Selective({RecomputeModule::kMlp}), kFull, FirstLayers(1)},
                 2},
        RankCase{"llama-3.1-8b",
                 12,
                 0,
                 ScheduleKind::kInterleaved,
                 2,
                 8,
                 8192,
                 {{}, Selective({RecomputeModule::kMlp}), kFull, FirstLayers(1), FirstLayers(2)},
                 3},
        RankCase{"llama-3.1-8b", 8, 0, ScheduleKind::kGpipe, 3, 3},
        RankCase{"llama-3.1-8b", 8, 0, ScheduleKind::kZbH1, 3, 6},
        RankCase{"llama-3.1-8b", 9, 0, ScheduleKind::kZbV, 2, 6},
        RankCase{"llama-3.1-8b", 9, 0, ScheduleKind::kDualPipe, 2, 4}),
    [](const testing::TestParamInfo<RankCase>& one) { return "Case" + std::to_string(one.index); });

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
