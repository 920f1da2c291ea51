// SPDX-License-Identifier: Apache-2.0
#include "cost_models/bandwidth_curve.h"

#include <array>
#include <cmath>

namespace millwright {

void Fields(ConfigIo& io, BandwidthCurve& c) {
  constexpr NumberRange kTime{.min = 0, .max = 1};  // seconds
  constexpr NumberRange kRate{.min = 1e-6, .max = 1};
  io.Text("op", c.op, "the operator");
  io.Text("stack", c.stack, "whose kernel");
  FittedField(io, "efficiency", "efficiency_error", c.efficiency, kRate, "of the HBM bandwidth",
              Presence::kRequired);
  FittedField(io, "launch_s", "launch_s_error", c.launch, kTime, "of one call, whatever its size");
  Fields(io, c.residual, 1);
  Fields(io, c.range, 1, "log2 of the bytes measured");
  Fields(io, c.fit);
}

Seconds BandwidthFormula(const BandwidthCurve& c, Bytes bytes, const GpuSpec& gpu) {
  return Seconds(c.launch.value) + bytes / (gpu.hbm_bandwidth * c.efficiency.value);
}

Seconds TimeOf(const BandwidthCurve& c, Bytes bytes, const GpuSpec& gpu) {
  const std::array<double, 1> at{std::log2(bytes.value)};
  return std::exp(c.residual.At(at)) * BandwidthFormula(c, bytes, gpu);
}

}  // namespace millwright
