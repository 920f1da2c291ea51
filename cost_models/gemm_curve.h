// SPDX-License-Identifier: Apache-2.0
//
// How long a GEMM takes: C (m x n) = A (m x k) B (k x n), `groups` of them at once.
//
// Model: the output is cut into tiles, each of which one multiprocessor works through in
// 2 tm tn (k + k0) (1 + c (1/tm + 1/tn)) FLOPs' time, k0 filling and draining the pipeline, c the
// price of fetching a tile's operands; tiles come in waves of one for each multiprocessor, of
// which the last may be partly empty (`quantisation` 1: a whole wave is paid, 0: none of it; other
// kernels, stream-K and power limits blur it).  Where there are few tiles k is split, at the price
// of adding up in memory.  Of eight tile shapes and four splits the fastest counts, as cuBLAS'
// heuristics mean to choose.  That and the HBM traffic overlap; a launch comes on top:
//
//   t = launch + cbrt(compute^3 + memory^3), then times the residual of the shape (log grid)
//
// and never less than the FLOPs at the datasheet's peak.  Products in fp8_block are DeepGEMM's on
// Hopper, which does not split k and whose tiles are known (deepgemm_tiles): one wave of the
// largest takes `slow_wave` times as long, tiles of at most 64 rows `one_warpgroup` times, those
// that are an odd multiple of 16 wide `odd_width` times, and rows that do not fill their last tile
// cost `ragged` of a tile on top.  Rows in dynamic FP8 or FP4 hold the quantisation of A too, a
// kernel of its own.  Left out: layouts (the weight gradient's is 4-5%
// slower, SimuMax B200), clocks that fall under sustained load (`derate` of the caller).
#pragma once

#include <array>
#include <string>

#include "core/gpu.h"
#include "core/units.h"
#include "cost_models/fitted.h"

namespace millwright {

struct GemmCurve {
  std::string dtype;       // bfloat16 (float16 too), fp8, fp8_block, nvfp4; float32, float64
  std::string clocks;      // burst: a few launches at boost clocks; warm; sustained: as training
  std::string stage;       // fwd, bwd_grad_act, bwd_grad_w of a grouped one; empty: one GEMM
  Fitted efficiency;       // of the peak, of endless tiles
  Fitted hbm_efficiency;   // of the HBM bandwidth
  Fitted launch;           // seconds
  Fitted k_overhead;       // k0
  Fitted tile_overhead;    // c
  Fitted quantisation;     // 0 to 1
  Fitted split_cost;       // HBM passes over the partial sums of a split, each way
  Fitted slow_wave;        // of DeepGEMM: time of one wave of its largest tiles; 0 for others
  Fitted one_warpgroup;    // of its tiles of at most 64 rows, over the time of others; 0: as others
  Fitted odd_width;        // of its tiles that no 32 columns divide; 0: as others
  Fitted ragged;           // of a strip of its tiles that is not full of rows, beside a full one's
  Fitted cast_launch;      // seconds; of the kernel that quantises A
  Fitted cast_efficiency;  // of the HBM bandwidth; 0: rows have no such kernel
  ResidualGrid residual;   // over log2 m (of all groups), log2 n, log2 k
  FitRecord fit;
  CoveredRange range;  // of the same
  bool operator==(const GemmCurve&) const = default;
};
void Fields(ConfigIo& io, GemmCurve& curve);

struct GemmShape {
  double m = 0, n = 0, k = 0, groups = 1;
};

std::array<double, 3> Coordinates(const GemmShape& shape);  // of residual and range

// Without the residual.  `derate`: sustained over measured clocks.
Seconds GemmFormula(const GemmCurve& curve, const GemmShape& shape, const GpuSpec& gpu,
                    double derate = 1);
Seconds TimeOf(const GemmCurve& curve, const GemmShape& shape, const GpuSpec& gpu,
               double derate = 1);
// With the kernel that quantises A, as dynamic FP8 and FP4 rows were measured.
Seconds TimeWithCast(const GemmCurve& curve, const GemmShape& shape, const GpuSpec& gpu);
// That kernel; 0 where the curve has none.
Seconds CastTime(const GemmCurve& curve, const GemmShape& shape, const GpuSpec& gpu);

// Bytes of an element of A and B, and the dense peak, of a curve's dtype.
double ElementBytes(const std::string& dtype);
FlopsPerSecond PeakOf(const std::string& dtype, const GpuSpec& gpu);

}  // namespace millwright
