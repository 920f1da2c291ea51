// SPDX-License-Identifier: Apache-2.0
#include "planner/fullest_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

namespace millwright {
namespace {

// Of every division of `kinds` in any order, one rank after the other.
double BruteForce(std::vector<LayersToDivide<Seconds>> kinds, const std::vector<double>& own) {
  double least = 1e9;
  std::vector<double> time = own;
  const std::function<void(std::size_t, std::size_t)> divide = [&](std::size_t kind,
                                                                   std::size_t rank) {
    if (kind == kinds.size()) {
      least = std::min(least, *std::max_element(time.begin(), time.end()));
      return;
    }
    const LayersToDivide<Seconds> of_kind = kinds[kind];
    if (rank + 1 == own.size()) {
      time[rank] += of_kind.count * of_kind.each.value;
      divide(kind + 1, 0);
      time[rank] -= of_kind.count * of_kind.each.value;
      return;
    }
    for (int n = 0; n <= int(of_kind.count); ++n) {
      time[rank] += n * of_kind.each.value;
      kinds[kind].count -= n;
      divide(kind, rank + 1);
      kinds[kind].count += n;
      time[rank] -= n * of_kind.each.value;
    }
  };
  divide(0, 0);
  return least;
}

TEST(FullestRank, OfOneKindIsExactAndOfSeveralNoDivisionIsFaster) {
  std::mt19937 random(6);
  const auto draw = [&](int from, int to) {
    return int(std::uniform_int_distribution<int>(from, to)(random));
  };
  double looseness = 0;
  int of_several = 0;
  for (int i = 0; i < 400; ++i) {
    const int kinds = 1 + i % 3, ranks = draw(1, 4);
    std::vector<double> own(std::size_t(ranks), 0.0);
    own.front() = draw(0, 4) * 0.5;
    own.back() += draw(0, 12) * 0.5;
    std::vector<LayersToDivide<Seconds>> layers;
    for (int k = 0; k < kinds; ++k) {
      layers.push_back({.count = double(draw(0, 12 / kinds)), .each = Seconds(draw(2, 9) / 3.0)});
    }
    std::vector<RanksToFill<Seconds>> fill;
    for (const double time : own) fill.push_back({.count = 1, .own = Seconds(time)});
    const double expected = BruteForce(layers, own);
    std::vector<LayersToDivide<Seconds>> changed = layers;
    const double least = LeastOfFullest<Seconds>(changed, fill).value;
    if (kinds == 1) {
      EXPECT_NEAR(least, expected, 1e-9) << i;
    } else {
      EXPECT_LE(least, expected + 1e-9) << i;
      looseness += expected > 0 ? 1 - least / expected : 0;
      ++of_several;
    }
  }
  // Close, on average, to what divisions in any order reach.
  EXPECT_LT(looseness / of_several, 0.06);
}

// gpt-oss-120b over 8 ranks: the head takes as long as almost four of its 36 layers.
TEST(FullestRank, AHeavyHeadTakesLayersOff) {
  std::vector<LayersToDivide<Seconds>> layers = {{.count = 36, .each = Seconds(1)}};
  const std::vector<RanksToFill<Seconds>> ranks = {{.count = 7, .own = Seconds(0)},
                                                   {.count = 1, .own = Seconds(3.75)}};
  // Five each and one on the last are 36, in 5; 4.9675 is the mean.
  EXPECT_NEAR(LeastOfFullest<Seconds>(layers, ranks).value, 5, 1e-12);
}

}  // namespace
}  // namespace millwright
