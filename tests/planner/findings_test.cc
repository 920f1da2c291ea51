// SPDX-License-Identifier: Apache-2.0
#include "planner/findings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "planner/findings_bytes.h"

namespace millwright {
namespace {

// However plans come and are merged, the fastest of each layout, schedule and micro-batch are
// there: those that are dropped on the way among them.
TEST(Leaders, AreTheFastestOfEachKeyInAnyOrder) {
  std::mt19937 random(4);
  const TrainingConfig training;
  std::vector<RankedPlan> plans;
  for (int i = 0; i < 20'000; ++i) {
    RankedPlan plan{};
    plan.plan.tensor = 1 << random() % 4;
    plan.plan.pipeline = 1 + int(random() % 8);
    plan.plan.micro_batch_size = 1 + int(random() % 16);
    plan.plan.schedule = random() % 2 == 0 ? ScheduleKind::k1F1B : ScheduleKind::kZbV;
    plan.plan.zero = int(random() % 4);
    plan.step = Seconds(1 + double(random() % 1'000'000) / 1e6);
    plan.peak = Bytes(double(random() % 1000));
    plans.push_back(plan);
  }
  std::map<std::tuple<int, int, int, ScheduleKind>, RankedPlan> best;
  for (const RankedPlan& plan : plans) {
    const auto [slot, first] = best.try_emplace(
        {plan.plan.tensor, plan.plan.pipeline, plan.plan.micro_batch_size, plan.plan.schedule},
        plan);
    if (!first && Before(plan, slot->second)) slot->second = plan;
  }
  std::vector<RankedPlan> expected;
  for (const auto& [key, plan] : best) expected.push_back(plan);
  ASSERT_GT(expected.size(), 4 * Leaders::kMost);
  std::sort(expected.begin(), expected.end(), Before);
  expected.resize(Leaders::kMost);
  const auto expect = [&](const Leaders& leaders) {
    const std::vector<RankedPlan> sorted = leaders.Sorted();
    ASSERT_EQ(sorted.size(), expected.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      EXPECT_EQ(sorted[i].plan, expected[i].plan) << i;
      EXPECT_EQ(sorted[i].step, expected[i].step) << i;
    }
  };
  Leaders one;
  Findings parts[3];
  for (std::size_t i = 0; i < plans.size(); ++i) {
    one.Add(plans[i], training);
    parts[i % 3].leaders.Add(plans[i], training);
  }
  expect(one);
  // Between processes too.
  Findings merged;
  for (const Findings& part : parts) Merge(merged, FindingsOf(BytesOf(part), training));
  expect(merged.leaders);
  Findings backwards;
  for (int i : {2, 1, 0}) Merge(backwards, parts[i]);
  expect(backwards.leaders);
}

}  // namespace
}  // namespace millwright
