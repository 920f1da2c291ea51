// SPDX-License-Identifier: Apache-2.0
#include "cost_models/deepgemm_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace millwright {
namespace {

// DeepGEMM's own figures.
constexpr double kL1PerCycle = 128;         // bytes of a multiprocessor
constexpr double kL2PerCycle = 8e6 / 1300;  // bytes of all: 8 TB/s at 1.3 GHz
constexpr int kStepOfN = 16, kMostOfN = 192;
constexpr int kBlockOfK = 128;     // elements to a scale
constexpr double kLeastRows = 64;  // that the tensor cores take at once
constexpr double kOutputBytes = 2;

// Beside one scale of B's a wider tile has a second, at a place that its loop can be unrolled to.
bool Unrolls(int n) {
  const int second = n - kBlockOfK;
  return second <= 0 || n % second == 0 || kBlockOfK % second == 0;
}

}  // namespace

bool DeepGemmTiles::SlowWave() const { return waves == 1 && m * n >= 128 * 192; }

bool DeepGemmTiles::OddWidth() const { return std::fmod(n, 2 * kStepOfN) != 0; }

DeepGemmTiles TilesOfDeepGemm(double m, double n, double k, int multiprocessors) {
  DeepGemmTiles best;
  double least = INFINITY;
  const double l1_rate = kL1PerCycle * multiprocessors;
  const double l2_rate = std::min(64.0 * multiprocessors, kL2PerCycle);
  struct Sharing {
    double of_a, of_b;  // multiprocessors that one reading serves
  };
  for (const Sharing& share : std::array<Sharing, 3>{{{1, 1}, {2, 1}, {1, 2}}}) {
    const bool pairs = share.of_a * share.of_b > 1;
    for (double tile_m : {64.0, 128.0, 16.0, 32.0, 256.0}) {
      if (tile_m < kLeastRows && m > tile_m) continue;
      const double strips = std::ceil(m / tile_m);
      for (int tile_n = kStepOfN; tile_n <= kMostOfN; tile_n += kStepOfN) {
        if ((tile_m > 128 && tile_n > 128) || !Unrolls(tile_n)) continue;
        const double tiles = strips * std::ceil(n / tile_n);
        const double waves = std::ceil(tiles / multiprocessors);
        if (pairs && waves == 1) continue;
        const double output = kOutputBytes * tile_m * tile_n;
        const double l1 = k * (tile_m + tile_n) +                        // written
                          k * (std::max(kLeastRows, tile_m) + tile_n) +  // read by tensor cores
                          2 * output;
        const double l2 = k * (tile_m / share.of_a + tile_n / share.of_b) + output;
        const double cycles = std::max(l1 / l1_rate, l2 / l2_rate) * waves * multiprocessors;
        constexpr double kRounding = 1e-9;
        if (cycles < least * (1 - kRounding)) {
          least = cycles;
          best = {.m = tile_m, .n = double(tile_n), .tiles = tiles, .waves = waves, .pairs = pairs};
        }
      }
    }
  }
  return best;
}

}  // namespace millwright
