// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_size.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

ClusterSize Size(int nodes, double step, double peak_gib) {
  ClusterSize size{
      .nodes = nodes, .gpus = std::int64_t{8} * nodes, .best = Contender{}, .reason = {}};
  size.best->estimate.step = Seconds(step);
  size.best->estimate.peak = Bytes(peak_gib * 1024 * 1024 * 1024);
  return size;
}

// Steps of 1,000 tokens on 8, 16 and 32 GPUs that take 10, 4 and 2.5 s: 100, 250 and 400 tokens/s;
// 80, 64 and 80 GPU-seconds a step, so that the middle is cheapest.
SizeAnswer Three(SizeQuestion question) {
  SizeAnswer answer{.question = std::move(question),
                    .tokens_of_step = 1000,
                    .sizes = {Size(1, 10, 70), Size(2, 4, 60), Size(4, 2.5, 50)}};
  Choose(answer);
  return answer;
}

TEST(ClusterSize, ThroughputCostAndMemory) {
  EXPECT_EQ(Three({}).chosen, 2U);
  EXPECT_EQ(Three({.objective = Objective::kCost}).chosen, 1U);
  EXPECT_EQ(Three({.objective = Objective::kMemory}).chosen, 2U);
  const SizeAnswer a = Three({});
  EXPECT_DOUBLE_EQ(a.TokensPerSecond(a.sizes[1]), 250);
  // 64 GPU-seconds for 1,000 tokens.
  EXPECT_DOUBLE_EQ(a.GpuHoursPerToken(a.sizes[1]), 64.0 / 3600 / 1000);
}

// 9,500 tokens are ten steps: 100, 40 and 25 s, for 800, 640 and 800 GPU-seconds, which at 36 USD
// an hour, a cent a second, cost 8.00, 6.40 and 8.00 USD.
TEST(ClusterSize, DeadlinesTakeTheSmallestThatMeetsThem) {
  const SizeAnswer a = Three({.tokens = 9500.0, .deadline = Seconds(50), .price = 36.0});
  EXPECT_EQ(a.chosen, 1U);
  EXPECT_TRUE(a.met);
  EXPECT_DOUBLE_EQ(a.TimeOf(a.sizes[1]).value, 40);
  EXPECT_DOUBLE_EQ(a.UsdOf(a.sizes[0]), 8);
  EXPECT_DOUBLE_EQ(a.UsdOf(a.sizes[1]), 6.4);
  EXPECT_EQ(Three({.tokens = 9500.0, .deadline = Seconds(100)}).chosen, 0U);
  EXPECT_EQ(Three({.tokens = 9500.0, .deadline = Seconds(30)}).chosen, 2U);
  // Nothing is fast enough: the fastest, and no.
  const SizeAnswer late = Three({.tokens = 9500.0, .deadline = Seconds(20)});
  EXPECT_EQ(late.chosen, 2U);
  EXPECT_FALSE(late.met);
  // The cheapest of those that do.
  EXPECT_EQ(
      Three({.tokens = 9500.0, .deadline = Seconds(100), .objective = Objective::kCost}).chosen,
      1U);
}

// Ten steps of the two larger sizes that are ranked by 5.5 and 3 s: 55 and 30 s.
TEST(ClusterSize, GoesByWhatThePlansAreRankedBy) {
  SizeAnswer answer{.question = {.tokens = 9500.0, .deadline = Seconds(50), .price = 36.0},
                    .tokens_of_step = 1000,
                    .sizes = {Size(2, 4, 60), Size(4, 2.5, 50)}};
  answer.sizes[0].high = Seconds(5.5);
  answer.sizes[1].high = Seconds(3);
  Choose(answer);
  EXPECT_EQ(answer.chosen, 1U);
  EXPECT_DOUBLE_EQ(answer.TimeOf(answer.sizes[0]).value, 55);
  EXPECT_FALSE(answer.Meets(answer.sizes[0]));
  EXPECT_DOUBLE_EQ(answer.UsdOf(answer.sizes[1]), 9.6);  // 32 GPUs for 30 s, a cent a second
  EXPECT_DOUBLE_EQ(answer.TokensPerSecond(answer.sizes[1]), 1000.0 / 3);
}

TEST(ClusterSize, SizesWithoutAPlanAreNotChosen) {
  SizeAnswer answer{.tokens_of_step = 1000, .sizes = {{.nodes = 1}, Size(2, 4, 60), {.nodes = 4}}};
  Choose(answer);
  EXPECT_EQ(answer.chosen, 1U);
  EXPECT_TRUE(answer.met);
  SizeAnswer none{.tokens_of_step = 1000, .sizes = {{.nodes = 1}, {.nodes = 2}}};
  Choose(none);
  EXPECT_EQ(none.chosen, 1U);
  EXPECT_FALSE(none.met);
}

}  // namespace
}  // namespace millwright
