// SPDX-License-Identifier: Apache-2.0
#include "cost_models/sm_share.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

PathProfile Path(int ranks, int domains) { return {.ranks = ranks, .domains = domains}; }

double Share(CollectiveKind kind, const PathProfile& path,
             MoeDispatcher dispatcher = MoeDispatcher::kAllToAll) {
  return SmShareOf(kind, path, dispatcher, FindGpu("H100-SXM"));
}

TEST(SmShare, IsWhatNcclHolds) {
  // Of the 132 multiprocessors of an H100.
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kAllGather, Path(8, 1)), 24.0 / 132);
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kSendRecv, Path(8, 1)), 32.0 / 132);
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kSendRecv, Path(8, 2)), 2.0 / 132);
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kAllToAll, Path(8, 1)), 32.0 / 132);
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kAllToAll, Path(64, 8)), 16.0 / 132);
  EXPECT_DOUBLE_EQ(Share(CollectiveKind::kAllToAll, Path(64, 8), MoeDispatcher::kDeepEp),
                   20.0 / 132);
  EXPECT_EQ(Share(CollectiveKind::kAllToAll, Path(1, 1)), 0);
}

TEST(SmShare, LeavesHalfOfASmallGpuAndACpuWhole) {
  GpuSpec gpu;
  for (const auto& [multiprocessors, expected] : {std::pair{20, 0.5}, {9, 4.0 / 9}, {1, 0.0}}) {
    gpu.sm_count = multiprocessors;
    EXPECT_DOUBLE_EQ(
        SmShareOf(CollectiveKind::kAllReduce, Path(8, 1), MoeDispatcher::kAllToAll, gpu), expected);
  }
}

TEST(SmShare, SlowsWhileBothRun) {
  // A quarter taken for 4 s: of 10 s of compute 3 are done meanwhile, and 7 are left: 11 s.
  EXPECT_DOUBLE_EQ(SlowedBeside(Seconds(10), Seconds(4), 0.25).value, 1);
  // For longer than the compute takes on the three quarters: 3 / 0.75 = 4 s.
  EXPECT_DOUBLE_EQ(SlowedBeside(Seconds(3), Seconds(9), 0.25).value, 1);
  EXPECT_EQ(SlowedBeside(Seconds(3), Seconds(9), 0).value, 0);
}

}  // namespace
}  // namespace millwright
