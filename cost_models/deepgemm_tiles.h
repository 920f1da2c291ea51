// SPDX-License-Identifier: Apache-2.0
//
// Into which tiles does DeepGEMM cut an FP8 product on Hopper?
//
// It has no table but a model of its own (csrc/jit_kernels/heuristics/sm90.hpp of
// github.com/deepseek-ai/DeepGEMM, 2026), of which this is the part that decides: of all tiles that
// its registers hold, alone or shared by a pair of multiprocessors (one of them reads A or B for
// both, which is not done in a single wave), the one whose traffic from L1 or L2, whichever takes
// longer, is least when the last wave's idle multiprocessors are counted in.  Of equals the first.
//
// It is exact on 448 of 450 shapes of the shared data, compared with that file's full rules (which
// also count pipeline stages in shared memory).  Blackwell's rules are others, and grouped products
// have a fixed tile.
#pragma once

namespace millwright {

struct DeepGemmTiles {
  double m = 0, n = 0;  // of a tile
  double tiles = 0, waves = 0;
  bool pairs = false;  // of multiprocessors that share A or B

  // One wave of the largest tiles (24,576 outputs and more: 128 x 192, 256 x 96 to 256 x 128),
  // which an H100 works through 3.7 times slower than several waves of them, in pairs: in
  // the shared data all 28 such products are, and no other.
  bool SlowWave() const;
  // One warpgroup works on them, so that nothing hides the scaling of its sums.
  bool OneWarpgroup() const { return m <= 64; }
  // An odd multiple of 16: neither its scales of B nor the swizzle of its output go in steps of 32.
  bool OddWidth() const;
};

// `multiprocessors` 132 on an H100.
DeepGemmTiles TilesOfDeepGemm(double m, double n, double k, int multiprocessors);

}  // namespace millwright
