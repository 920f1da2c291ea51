// SPDX-License-Identifier: Apache-2.0
//
// How fast can the slowest rank of a pipeline be, however whole layers are divided among the ranks?
//
// No division is faster: neither does it see in which order layers of different kinds come, nor
// what memory allows.  Of one kind of layer it is exact, for ranks that may be without layers
// (tests/planner/slowest_rank_test.cc holds it against every division).
#pragma once

#include <span>

#include "core/units.h"

namespace millwright {

struct LayersToDivide {
  double count = 0;
  Seconds each;
};
struct RanksToFill {
  double count = 0;
  Seconds own;  // what each of them takes without layers: embedding, head
};

// `layers` of each kind, in any order, which is changed.
Seconds LeastSlowest(std::span<LayersToDivide> layers, std::span<const RanksToFill> ranks);

}  // namespace millwright
