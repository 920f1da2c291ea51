// SPDX-License-Identifier: Apache-2.0
//
// How little time, or memory, can the rank of a pipeline that has most of it do with, however whole
// layers are divided among the ranks?
//
// No division does with less: neither does this see in which order layers of different kinds come,
// nor that a rank may have to have one.  Of one kind of layer it is exact, for ranks that may be
// without (tests/planner/fullest_rank_test.cc holds it against every division).
#pragma once

#include <span>

#include "core/units.h"

namespace millwright {

template <class Amount>
struct LayersToDivide {
  double count = 0;
  Amount each;
};
template <class Amount>
struct RanksToFill {
  double count = 0;
  Amount own;  // what each of them has without layers: embedding, head
};

// Of Seconds or Bytes.  `layers` of each kind, in any order, which is changed.
template <class Amount>
Amount LeastOfFullest(std::span<LayersToDivide<Amount>> layers,
                      std::span<const RanksToFill<Amount>> ranks);
extern template Seconds LeastOfFullest(std::span<LayersToDivide<Seconds>>,
                                       std::span<const RanksToFill<Seconds>>);
extern template Bytes LeastOfFullest(std::span<LayersToDivide<Bytes>>,
                                     std::span<const RanksToFill<Bytes>>);

}  // namespace millwright
