// SPDX-License-Identifier: Apache-2.0
//
// Which communicators a plan needs on NCCL, where one is made for each group of ranks by splitting
// that of all ranks, in which all ranks take part: the same list on every rank but for colours and
// keys.
//
// Groups of collectives have one each.  A pair of pipeline ranks has one for each direction
// ("channel"), and so its own order: a message there must wait for no other.
#pragma once

#include <set>
#include <vector>

#include "runtime/rank_group.h"
#include "runtime/workload.h"

namespace millwright {

struct CommunicatorSplit {
  int color = -1;   // negative: this rank takes no part
  int key = 0;      // its place in the group
  RankGroup group;  // of a channel: from its sender, one stride on, to its receiver
  bool channel = false;
};
std::vector<CommunicatorSplit> SplitsOf(const Workload& workload, int rank);
// To measure: the first `sizes` of all ranks, and messages between the first two.
std::vector<CommunicatorSplit> SplitsOfFirst(const std::set<int>& sizes, int ranks, int rank);

}  // namespace millwright
