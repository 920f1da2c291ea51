// SPDX-License-Identifier: Apache-2.0
#include "planner/robust.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"

namespace millwright {
namespace {

struct Asked {
  ModelConfig model = PresetModel("llama-3.1-8b");
  TrainingConfig training{.global_batch_size = 32, .seq_length = 4096};
  Cluster cluster = Cluster([] {
    ClusterConfig config = FindCluster("dgx-h100");
    config.nodes = 2;
    return config;
  }());

  std::vector<Contender> Contenders() const {
    const SearchResult result = Search(model, training, cluster, {.top = 4, .threads = 2});
    return RankContenders(model, training, cluster, result.plans,
                          {.memory_limit = result.memory_limit, .threads = 2})
        .plans;
  }
  RobustAnswer Rank(std::vector<Contender>& plans, const RobustOptions& options) const {
    return RankRobustly(model, training, cluster, plans, options);
  }
};

// GPUs that do not differ take what the simulation says, in every draw.
TEST(Robust, AlikeGpusTakeTheSimulatedStep) {
  const Asked asked;
  std::vector<Contender> plans = asked.Contenders();
  const std::vector<Contender> before = plans;
  const RobustAnswer answer = asked.Rank(plans, {.gpu_jitter = 0, .draws = 3});
  ASSERT_EQ(answer.costs.size(), plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(plans[i].estimate.plan, before[i].estimate.plan);
    ASSERT_TRUE(answer.costs[i].has_value());
    EXPECT_NEAR(answer.costs[i]->p95 / plans[i].simulated->step, 1, 1e-9);
    EXPECT_EQ(answer.costs[i]->median, answer.costs[i]->p95);
    EXPECT_DOUBLE_EQ(answer.costs[i]->high / answer.costs[i]->p95, answer.interval_high);
  }
}

// Every GPU at half its speed: compute takes twice as long and communication as long as before.
TEST(Robust, AllGpusAtHalfSpeedTakeUpToTwiceAsLong) {
  const Asked asked;
  std::vector<Contender> plans = asked.Contenders();
  RobustOptions options{.gpu_jitter = 0, .draws = 1, .plans = 1};
  options.slow.gpu_speed.assign(std::size_t(asked.cluster.gpus()), 0.5);
  const RobustAnswer answer = asked.Rank(plans, options);
  ASSERT_EQ(answer.costs.size(), 1U);
  const double slower = answer.costs[0]->p95 / plans[0].simulated->step;
  EXPECT_GT(slower, 1.5);
  EXPECT_LE(slower, 2 * (1 + 1e-9));
}

// One slow GPU of 16 holds all back, about as much as if all were slow: a synchronous step waits.
TEST(Robust, OneSlowGpuHoldsAllBack) {
  const Asked asked;
  std::vector<Contender> plans = asked.Contenders();
  RobustOptions options{.gpu_jitter = 0, .draws = 1, .plans = 1};
  options.slow.gpu_speed.assign(std::size_t(asked.cluster.gpus()), 1);
  options.slow.gpu_speed[11] = 0.5;
  const RobustAnswer answer = asked.Rank(plans, options);
  EXPECT_GT(answer.costs[0]->p95 / plans[0].simulated->step, 1.3);
}

TEST(Robust, MoreJitterIsSlowerAndThreadsChangeNothing) {
  const Asked asked;
  const std::vector<Contender> plans = asked.Contenders();
  Seconds before;
  for (const double jitter : {0.0, 0.02, 0.1}) {
    std::vector<Contender> one = plans, two = plans;
    const RobustAnswer a = asked.Rank(one, {.gpu_jitter = jitter, .draws = 5, .threads = 1});
    const RobustAnswer b = asked.Rank(two, {.gpu_jitter = jitter, .draws = 5, .threads = 2});
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].estimate.plan, two[i].estimate.plan);
      EXPECT_EQ(a.costs[i]->p95, b.costs[i]->p95);
      EXPECT_LE(a.costs[i]->median, a.costs[i]->p95);
      if (i > 0) {
        EXPECT_LE(a.costs[i - 1]->high, a.costs[i]->high);
      }
    }
    EXPECT_GT(a.costs[0]->p95, before);
    before = a.costs[0]->p95;
  }
}

}  // namespace
}  // namespace millwright
