// SPDX-License-Identifier: Apache-2.0
//
// A calibration file of any bytes either reads into curves that give a finite time for any shape,
// and survives being written, or is refused with ConfigError.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cost_models/gpu_curves.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    const GpuCurves curves = ParseCurves("fuzz/curves.json", text);
    const GpuSpec& gpu = FindGpu("B200");
    const auto check = [](Seconds time) {
      if (!std::isfinite(time.value) || time < Seconds(0)) std::abort();
    };
    for (const GemmCurve& c : curves.gemm) {
      check(TimeOf(c, {.m = 100, .n = 3000, .k = 70000, .groups = 3}, gpu));
    }
    for (const AttentionCurve& c : curves.attention) {
      check(TimeOf(c, {2, 4096, 4096, 32, 8, 96, true}, gpu));
    }
    for (const BandwidthCurve& c : curves.bandwidth) check(TimeOf(c, 1_MB, gpu));
    for (const CollectiveCurve& c : curves.collective) {
      check(TimeOf(c, {.ranks = 5, .bytes = 3_MB}, 900_GBps));
    }
    const std::string written = WriteCurves(curves);
    if (WriteCurves(ParseCurves("fuzz/written.json", written)) != written) std::abort();
  } catch (const ConfigError& e) {
    // A message is lines of printable text of a bearable length.
    if (std::string_view(e.what()).size() > 200'000) std::abort();
  }
  return 0;
}
