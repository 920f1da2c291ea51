// SPDX-License-Identifier: Apache-2.0
#include "planner/contenders.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/model_presets.h"
#include "planner/step_spec.h"

namespace millwright {
namespace {

class ContendersTest : public testing::Test {
 protected:
  ContendersTest()
      : cluster_(TwoNodes()), result_(Search(model_, training_, cluster_, {.top = 8})) {}

  static ClusterConfig TwoNodes() {
    ClusterConfig config = FindCluster("dgx-h100");
    config.nodes = 2;
    return config;
  }
  Contenders Rank(const ContenderOptions& options) const {
    return RankContenders(model_, training_, cluster_, result_.plans, options);
  }
  // One by one, by nothing but SimulateStep.
  std::vector<SimulatedStep> Simulated() const {
    const Estimator estimator(model_, training_, cluster_);
    std::vector<SimulatedStep> steps;
    for (const RankedPlan& plan : result_.plans) {
      const ParallelConfig& p = plan.plan;
      steps.push_back(SimulateStep(
          estimator, p, ScheduleOf(p, training_.global_batch_size / p.data / p.micro_batch_size)));
    }
    return steps;
  }

  const ModelConfig model_ = PresetModel("llama-3.1-8b");
  const TrainingConfig training_{.global_batch_size = 64, .seq_length = 4096};
  const Cluster cluster_;
  const SearchResult result_;
};

TEST_F(ContendersTest, AreRankedByTheirSimulatedSteps) {
  const std::vector<SimulatedStep> steps = Simulated();
  ASSERT_EQ(steps.size(), 8U);
  std::vector<double> ascending, differences;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ascending.push_back(steps[i].step().value);
    differences.push_back(std::abs(result_.plans[i].step / steps[i].step() - 1));
  }
  std::sort(ascending.begin(), ascending.end());
  std::sort(differences.begin(), differences.end());

  for (int threads : {1, 2, 3}) {
    const Contenders c = Rank({.memory_limit = result_.memory_limit, .threads = threads});
    ASSERT_EQ(c.plans.size(), 8U);
    EXPECT_TRUE(c.left_out.empty());
    EXPECT_FALSE(c.none_fits_simulated);
    EXPECT_EQ(c.simulated, 8);
    EXPECT_NEAR(c.largest_difference, differences.back(), 1e-12);
    EXPECT_NEAR(c.median_difference, differences[4], 1e-12);
    for (std::size_t i = 0; i < c.plans.size(); ++i) {
      const Contender& one = c.plans[i];
      EXPECT_NEAR(one.step().value / ascending[i], 1, 1e-11);
      // The plan that the numbers are of.
      const auto at =
          std::find_if(result_.plans.begin(), result_.plans.end(),
                       [&](const RankedPlan& p) { return p.plan == one.estimate.plan; });
      ASSERT_NE(at, result_.plans.end());
      const SimulatedStep& step = steps[std::size_t(at - result_.plans.begin())];
      EXPECT_NEAR(one.simulated->step / step.step(), 1, 1e-11);
      EXPECT_NEAR(one.simulated->peak / *std::max_element(step.peak.begin(), step.peak.end()), 1,
                  1e-12);
      EXPECT_NEAR(one.estimate.step / at->step, 1, 1e-12);
    }
  }
}

TEST_F(ContendersTest, TooManyTasksKeepTheEstimate) {
  for (const ContenderOptions& options :
       {ContenderOptions{.memory_limit = result_.memory_limit, .most_tasks = 1},
        ContenderOptions{.simulate = false, .memory_limit = result_.memory_limit}}) {
    const Contenders c = Rank(options);
    EXPECT_EQ(c.simulated, 0);
    EXPECT_EQ(c.too_large, options.simulate ? int(result_.plans.size()) : 0);
    ASSERT_EQ(c.plans.size(), result_.plans.size());
    for (std::size_t i = 0; i < c.plans.size(); ++i) {
      EXPECT_FALSE(c.plans[i].simulated);
      EXPECT_EQ(c.plans[i].estimate.plan, result_.plans[i].plan);
      EXPECT_EQ(c.plans[i].step(), c.plans[i].estimate.step);
    }
  }
}

TEST_F(ContendersTest, WhatDoesNotFitSimulatedIsLeftOut) {
  std::vector<Bytes> peaks;
  for (const SimulatedStep& step : Simulated()) {
    peaks.push_back(step.peak[std::size_t(step.fullest())]);
  }
  std::sort(peaks.begin(), peaks.end());
  const Bytes limit = peaks.front() * (1 + 1e-12);  // sums in another order
  const std::ptrdiff_t fit =
      std::count_if(peaks.begin(), peaks.end(), [&](Bytes peak) { return peak <= limit; });
  ASSERT_LT(fit, 8);
  const Contenders smallest = Rank({.memory_limit = limit});
  EXPECT_EQ(std::ssize(smallest.plans), fit);
  EXPECT_EQ(std::ssize(smallest.left_out), 8 - fit);
  for (const Contender& c : smallest.plans) EXPECT_LE(c.peak(), limit);
  for (const Contender& c : smallest.left_out) EXPECT_GT(c.peak(), limit);
  EXPECT_FALSE(smallest.none_fits_simulated);

  const Contenders none = Rank({.memory_limit = 0.5 * peaks.front()});
  EXPECT_EQ(none.plans.size(), 8U);
  EXPECT_TRUE(none.left_out.empty());
  EXPECT_TRUE(none.none_fits_simulated);
}

}  // namespace
}  // namespace millwright
