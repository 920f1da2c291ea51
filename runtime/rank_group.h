// SPDX-License-Identifier: Apache-2.0
//
// The ranks that a collective joins, and those that a rank of a plan belongs to.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/workload.h"

namespace millwright {

// `ranks` ranks of all, `stride` apart from `first` on.
struct RankGroup {
  int first = 0;
  int stride = 1;
  int ranks = 1;
  int member(int index) const { return first + index * stride; }
  auto operator<=>(const RankGroup&) const = default;
};

// Which member `rank` is, and it is one.
int IndexIn(const RankGroup& group, int rank);

// Elements [first, second) of a buffer of which each member has a part: parts differ by one element
// at most, and are those of sim/collectives' ring.
std::pair<std::int64_t, std::int64_t> PartOf(const RankGroup& group, int rank,
                                             std::int64_t elements);

struct RankGroups {
  RankPlace place;
  RankGroup tensor, data, everyone;
  RankGroup ulysses, ring;  // of the context ranks
  RankGroup expert, expert_tensor, expert_data;
  RankGroup experts;      // expert and expert-tensor ranks together: one copy of every expert
  RankGroup micro_batch;  // tensor and context ranks together
  RankGroup stage;        // and data ranks
};
RankGroups GroupsOf(const ParallelConfig& parallel, int rank);

}  // namespace millwright
