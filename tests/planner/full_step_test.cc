// SPDX-License-Identifier: Apache-2.0
//
// A cluster whose nodes differ: the estimate, the folded and the full simulation beside each other.
#include "planner/full_step.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"

namespace millwright {
namespace {

struct Steps {
  double estimate, folded, full;
};

// Llama 3.1 8B on four nodes, one of which is a stage of four, or each a data-parallel rank.
Steps StepsOn(const std::vector<UnlikeNodes>& unlike, int pipeline) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  config.unlike_nodes = unlike;
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 32, .seq_length = 4096};
  const Cluster cluster(config);
  const Estimator estimator(model, training, cluster);
  const ParallelConfig plan{.tensor = 8,
                            .sequence_parallel = true,
                            .pipeline = pipeline,
                            .data = 4 / pipeline,
                            .zero = 1};
  const ScheduleChoice schedule = ScheduleOf(plan, 32 / plan.data);
  SimulatedStep step = SimulateStep(estimator, plan, schedule);
  Steps steps{.estimate = estimator.Itemise(plan).step.value, .folded = step.step().value};
  steps.full = SimulateEveryRank(estimator, plan, {}, step).steps.front().value;
  return steps;
}

TEST(FullStep, ASlowStageSetsThePace) {
  const Steps sound = StepsOn({}, 4);
  const Steps slow = StepsOn({{"2", {.compute = 0.5}}}, 4);
  // Two thirds of a stage's time are compute, which takes twice as long.
  EXPECT_GT(slow.full, 1.3 * sound.full);
  EXPECT_NEAR(slow.folded / slow.full, 1, 0.005);
  // The estimate has the other three as slow, of which the last computes the head too.
  EXPECT_GT(slow.estimate, slow.folded);
  EXPECT_LT(slow.estimate, 1.3 * slow.folded);
  const Steps all = StepsOn({{"0..3", {.compute = 0.5}}}, 4);
  EXPECT_DOUBLE_EQ(all.estimate, slow.estimate);
  EXPECT_NEAR(all.estimate / all.folded, 1, 0.02);
  EXPECT_NEAR(all.folded / all.full, 1, 0.005);
}

TEST(FullStep, OneSlowNodeOfAGroupIsAllOfIt) {
  for (const NodeSpeed& speed : {NodeSpeed{.compute = 0.7}, NodeSpeed{.nic = 0.25},
                                 NodeSpeed{.compute = 0.9, .nic = 0.5, .nvlink = 0.5}}) {
    const Steps one = StepsOn({{"1", speed}}, 1), all = StepsOn({{"0..3", speed}}, 1);
    EXPECT_DOUBLE_EQ(one.estimate, all.estimate);
    EXPECT_DOUBLE_EQ(one.folded, all.folded);
    EXPECT_NEAR(one.estimate / one.folded, 1, 0.02) << TextOf(speed);
    // The network draws out by bandwidth what the prices have as another algorithm's choice too.
    EXPECT_NEAR(one.folded / one.full, 1, 0.03) << TextOf(speed);
  }
}

}  // namespace
}  // namespace millwright
