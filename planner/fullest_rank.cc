// SPDX-License-Identifier: Apache-2.0
#include "planner/fullest_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millwright {

template <class Amount>
Amount LeastOfFullest(std::span<LayersToDivide<Amount>> layers,
                      std::span<const RanksToFill<Amount>> ranks) {
  Amount sum, least;
  double all_ranks = 0;
  for (const RanksToFill<Amount>& rank : ranks) {
    sum += rank.count * rank.own;
    all_ranks += rank.count;
    least = std::max(least, rank.own);
  }
  for (const LayersToDivide<Amount>& kind : layers) sum += kind.count * kind.each;
  least = std::max(least, (1 / all_ranks) * sum);
  // Those that have most, as if each had no more than the smallest of them.
  std::sort(layers.begin(), layers.end(),
            [](const LayersToDivide<Amount>& a, const LayersToDivide<Amount>& b) {
              return a.each > b.each;
            });
  double count = 0;
  for (const LayersToDivide<Amount>& kind : layers) {
    count += kind.count;
    if (kind.count == 0 || kind.each.value <= 0) continue;
    while (true) {
      double room = 0;
      Amount next(std::numeric_limits<double>::infinity());
      for (const RanksToFill<Amount>& rank : ranks) {
        constexpr double kRounding = 1e-9;
        const double of_one = std::max(0.0, std::floor((least - rank.own) / kind.each + kRounding));
        room += rank.count * of_one;
        next = std::min(next, rank.own + (of_one + 1) * kind.each);
      }
      if (room >= count) break;
      least = next;
    }
  }
  return least;
}

template Seconds LeastOfFullest(std::span<LayersToDivide<Seconds>>,
                                std::span<const RanksToFill<Seconds>>);
template Bytes LeastOfFullest(std::span<LayersToDivide<Bytes>>,
                              std::span<const RanksToFill<Bytes>>);

}  // namespace millwright
