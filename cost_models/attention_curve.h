// SPDX-License-Identifier: Apache-2.0
//
// How long fused attention takes, for one kernel of one software stack.
//
// Model: a block of 128 queries of one head of one sequence is an item; an item's time goes with
// the keys it sees (causal: half of the sequence and half a block, on average) plus `overhead`
// keys' worth of prologue.  Items come in waves of one for each multiprocessor, `quantisation` of
// the last one is paid, and no item ends before the longest.  The arithmetic rate is that of the
// head size, given at 64, 128 and 256 and interpolated between; Q, K, V and the output cross the
// HBM beside it:
//
//   t = launch + cbrt(compute^3 + memory^3), then times the residual of the shape
//
// and never less than the FLOPs at the datasheet's peak.  The residual's axis of head sizes has
// the sizes that were measured, since kernels pad (72 to 96 or more) and differ by size.
#pragma once

#include <array>
#include <string>

#include "core/gpu.h"
#include "core/units.h"
#include "cost_models/fitted.h"

namespace millwright {

struct AttentionCurve {
  std::string kernel;                  // stack and kernel, as the source names them
  Fitted rate_64, rate_128, rate_256;  // of the BF16 peak, of endless sequences
  Fitted hbm_efficiency;
  Fitted launch;          // seconds
  Fitted overhead;        // keys
  Fitted quantisation;    // 0 to 1
  ResidualGrid residual;  // over log2 queries, log2 batch x heads, log2 head size, log2 group size
  FitRecord fit;
  CoveredRange range;
  bool operator==(const AttentionCurve&) const = default;
};
void Fields(ConfigIo& io, AttentionCurve& curve);

struct AttentionShape {
  double batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, head_size = 0;
  bool causal = false;
};

std::array<double, 4> Coordinates(const AttentionShape& shape);

// Forward; without the residual, and with it.
Seconds AttentionFormula(const AttentionCurve& curve, const AttentionShape& shape,
                         const GpuSpec& gpu, double derate = 1);
Seconds TimeOf(const AttentionCurve& curve, const AttentionShape& shape, const GpuSpec& gpu,
               double derate = 1);

}  // namespace millwright
