// SPDX-License-Identifier: Apache-2.0
//
// How long a memory-bound operator takes: launch + bytes / (HBM bandwidth x efficiency), times a
// residual over the bytes.  The efficiency is the kernel's own and the whole model: 44% for one
// RMSNorm, 91% for a residual addition (vidur, A100 and H100).  Below some 50 MB the level-two
// cache serves a part, which the residual shows; such rows also differ most between collections.
#pragma once

#include <string>

#include "core/gpu.h"
#include "core/units.h"
#include "cost_models/fitted.h"

namespace millwright {

struct BandwidthCurve {
  std::string op, stack;  // as the source of the rows names them
  Fitted efficiency;      // of the HBM bandwidth
  Fitted launch;          // seconds
  ResidualGrid residual;  // over log2 bytes
  FitRecord fit;
  CoveredRange range;
  bool operator==(const BandwidthCurve&) const = default;
};
void Fields(ConfigIo& io, BandwidthCurve& curve);

Seconds BandwidthFormula(const BandwidthCurve& curve, Bytes bytes, const GpuSpec& gpu);
Seconds TimeOf(const BandwidthCurve& curve, Bytes bytes, const GpuSpec& gpu);

}  // namespace millwright
