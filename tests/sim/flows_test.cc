// SPDX-License-Identifier: Apache-2.0
#include "sim/flows.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/check.h"

namespace millwright {
namespace {

using namespace literals;

constexpr BytesPerSecond kUncapped{std::numeric_limits<double>::infinity()};
constexpr Seconds kEver{std::numeric_limits<double>::infinity()};

std::vector<std::pair<double, int>> RunAll(Flows& flows) {
  std::vector<Completion> done;
  flows.Advance(kEver, &done);
  std::vector<std::pair<double, int>> ends;
  for (const Completion& c : done) ends.emplace_back(c.time.value, int(c.tag));
  return ends;
}

void ExpectEnds(const std::vector<std::pair<double, int>>& got,
                const std::vector<std::pair<double, int>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].first, expected[i].first, 1e-9 * expected[i].first) << i;
    EXPECT_EQ(got[i].second, expected[i].second) << i;
  }
}

TEST(Flows, OneFlowIsLatencyAndBytesOverRate) {
  Flows flows(std::vector{10_GBps, 5_GBps});
  flows.Start(1_s, 2_s, 10_GB, kUncapped, std::vector<LinkUse>{{0, 1}, {1, 1}}, 7);
  ExpectEnds(RunAll(flows), {{1 + 2 + 2.0, 7}});
  EXPECT_EQ(flows.NextEvent(), kEver);
}

// 10 GB and 20 GB over one link of 10 GB/s: 5 GB/s each until 2 s, when the first is done and
// the second has 10 GB left, for which it has the link: 3 s.
TEST(Flows, TwoOverOneLink) {
  Flows flows(std::vector{10_GBps});
  flows.Start(0_s, 0_s, 20_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 1);
  flows.Start(0_s, 0_s, 10_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 2);
  ExpectEnds(RunAll(flows), {{2, 2}, {3, 1}});
  EXPECT_EQ(flows.CarriedBy(0), 30_GB);
  EXPECT_DOUBLE_EQ(flows.Loads(3_s)[0].utilisation, 1);
}

// Links 10 and 30 GB/s; A on the first, B on both, C on the second: 5, 5, 25.  15 GB each: C ends
// at 0.6 s; A and B keep 5, for link 0 binds: 3 s.
TEST(Flows, ThreeOverTwoLinks) {
  Flows flows(std::vector{10_GBps, 30_GBps});
  flows.Start(0_s, 0_s, 15_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 0);
  flows.Start(0_s, 0_s, 15_GB, kUncapped, std::vector<LinkUse>{{0, 1}, {1, 1}}, 1);
  flows.Start(0_s, 0_s, 15_GB, kUncapped, std::vector<LinkUse>{{1, 1}}, 2);
  ExpectEnds(RunAll(flows), {{0.6, 2}, {3, 0}, {3, 1}});
}

// A flow that comes at 1 s halves the rate: 10 GB of 20 are through, the rest takes 2 s.
TEST(Flows, ALateComerSlowsTheOther) {
  Flows flows(std::vector{10_GBps});
  std::vector<Completion> done;
  flows.Start(0_s, 0_s, 20_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 1);
  flows.Advance(1_s, &done);
  EXPECT_TRUE(done.empty());
  flows.Start(1_s, 0_s, 10_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 2);
  ExpectEnds(RunAll(flows), {{3, 1}, {3, 2}});
}

// The capped one takes 2 GB/s, the other 8: 8 GB in 1 s, and 2 + 8 GB of 10 at 2 GB/s in 5 s.
TEST(Flows, CapHoldsWhenTheLinkIsFree) {
  Flows flows(std::vector{10_GBps});
  flows.Start(0_s, 0_s, 10_GB, 2_GBps, std::vector<LinkUse>{{0, 1}}, 1);
  flows.Start(0_s, 0_s, 8_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 2);
  ExpectEnds(RunAll(flows), {{1, 2}, {5, 1}});
}

// Ties leave in the order of their start, whatever the order in which they were scheduled.
TEST(Flows, TiesInOrderOfStart) {
  Flows flows(std::vector{1_GBps, 2_GBps, 4_GBps});
  flows.Start(0_s, 1_s, 1_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 0);
  flows.Start(0_s, 0_s, 4_GB, kUncapped, std::vector<LinkUse>{{1, 1}}, 1);
  flows.Start(0_s, 0_s, 8_GB, kUncapped, std::vector<LinkUse>{{2, 1}}, 2);
  ExpectEnds(RunAll(flows), {{2, 0}, {2, 1}, {2, 2}});
}

TEST(Flows, TimeDoesNotRunBackwards) {
  Flows flows(std::vector{1_GBps});
  std::vector<Completion> done;
  flows.Start(0_s, 0_s, 1_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 0);
  flows.Advance(2_s, &done);
  EXPECT_THROW(flows.Start(1_s, 0_s, 1_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 1),
               InternalError);
  flows.Start(2_s, 0_s, 1_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 1);
  EXPECT_THROW(flows.Start(4_s, 0_s, 1_GB, kUncapped, std::vector<LinkUse>{{0, 1}}, 1),
               InternalError);  // past the end of the other
}

}  // namespace
}  // namespace millwright
