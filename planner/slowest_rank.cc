// SPDX-License-Identifier: Apache-2.0
#include "planner/slowest_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millwright {
namespace {

// How many layers that take `each` a rank has time for.
double RoomOf(const RanksToFill& rank, Seconds time, Seconds each) {
  constexpr double kRounding = 1e-9;
  return std::max(0.0, std::floor((time - rank.own) / each + kRounding));
}

}  // namespace

Seconds LeastSlowest(std::span<LayersToDivide> layers, std::span<const RanksToFill> ranks) {
  Seconds sum, least;
  double all_ranks = 0;
  for (const RanksToFill& rank : ranks) {
    sum += rank.count * rank.own;
    all_ranks += rank.count;
    least = std::max(least, rank.own);
  }
  for (const LayersToDivide& kind : layers) sum += kind.count * kind.each;
  least = std::max(least, (1 / all_ranks) * sum);
  // Those that take longest, as if each took no more than the shortest of them.
  std::sort(layers.begin(), layers.end(),
            [](const LayersToDivide& a, const LayersToDivide& b) { return a.each > b.each; });
  double count = 0;
  for (const LayersToDivide& kind : layers) {
    count += kind.count;
    if (kind.count == 0 || kind.each.value <= 0) continue;
    while (true) {
      double room = 0;
      Seconds next(std::numeric_limits<double>::infinity());
      for (const RanksToFill& rank : ranks) {
        const double of_one = RoomOf(rank, least, kind.each);
        room += rank.count * of_one;
        next = std::min(next, rank.own + (of_one + 1) * kind.each);
      }
      if (room >= count) break;
      least = next;
    }
  }
  return least;
}

}  // namespace millwright
