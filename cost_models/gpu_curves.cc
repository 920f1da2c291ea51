// SPDX-License-Identifier: Apache-2.0
#include "cost_models/gpu_curves.h"

#include <algorithm>
#include <mutex>

#include "cost_models/presets/curve_files.h"

namespace millwright {
namespace {

template <class Curve, class Fits>
const Curve* First(const std::vector<Curve>& curves, const Fits& fits) {
  const auto found = std::find_if(curves.begin(), curves.end(), fits);
  return found == curves.end() ? nullptr : &*found;
}

}  // namespace

void Fields(ConfigIo& io, GpuCurves& c) {
  io.Text("gpu", c.gpu, "whose: the GPU preset whose datasheet turns shares into rates",
          Presence::kRequired);
  io.Text("provenance", c.provenance, "whose measurements, and what made this file");
  bool measured = c.rates != MeasuredRates{};
  io.OptionalObject(
      "rates", measured, "most that a row reached, and a tenth, in place of a datasheet", [&] {
        io.Quantity("fp32", c.rates.fp32, kNotNegative, "of products; 0: not measured");
        io.Quantity("fp64", c.rates.fp64, kNotNegative, "of products; 0: not measured");
        io.Quantity("memory", c.rates.memory, kNotNegative,
                    "of kernels bound by memory; 0: not measured");
        io.Quantity("link", c.rates.link, kNotNegative, "of collectives' buses; 0: not measured");
        // Any machine's: what is outside is a slip, and no step would take a time.
        const auto plausible = [&](const char* key, double rate) {
          constexpr double kLeast = 1e6, kMost = 1e16;
          if (rate == 0 || (rate >= kLeast && rate <= kMost)) return;
          io.Problem(key,
                     "a rate is between 1e6 and 1e16 a second, or 0 where it was not measured");
        };
        plausible("fp32", c.rates.fp32.value);
        plausible("fp64", c.rates.fp64.value);
        plausible("memory", c.rates.memory.value);
        plausible("link", c.rates.link.value);
      });
  io.Array<GemmCurve>("gemm", c.gemm, "one for each dtype and kind of clocks",
                      [&](GemmCurve& one) { Fields(io, one); });
  io.Array<AttentionCurve>("attention", c.attention, "one for each kernel",
                           [&](AttentionCurve& one) { Fields(io, one); });
  io.Array<BandwidthCurve>("memory_bound", c.bandwidth, "one for each operator and stack",
                           [&](BandwidthCurve& one) { Fields(io, one); });
  io.Array<CollectiveCurve>("collective", c.collective, "one for each operation and library",
                            [&](CollectiveCurve& one) { Fields(io, one); });
  bool own = c.end_to_end.runs > 0;
  io.OptionalObject("end_to_end", own, "what whole steps of the user's say (calibrate --runs)",
                    [&] { Fields(io, c.end_to_end); });
}

GpuCurves ParseCurves(const std::string& file, std::string_view text) {
  GpuCurves curves;
  ReadConfig(file, text, [&](ConfigIo& io) { Fields(io, curves); });
  return curves;
}

std::string WriteCurves(const GpuCurves& curves) {
  GpuCurves copy = curves;
  return WriteConfig([&](ConfigIo& io) { Fields(io, copy); });
}

GpuSpec WithRates(GpuSpec gpu, const MeasuredRates& rates) {
  const auto take = [](auto& to, auto rate) {
    if (rate.value > 0) to = rate;
  };
  take(gpu.peak_fp32, rates.fp32);
  take(gpu.peak_fp64, rates.fp64);
  // Attention's curves have no dtype: theirs is the fastest.
  take(gpu.peak_bf16, std::max(rates.fp32, rates.fp64));
  take(gpu.peak_tf32, gpu.peak_bf16);
  take(gpu.hbm_bandwidth, rates.memory);
  return gpu;
}

const GemmCurve* FindGemm(const GpuCurves& curves, std::string_view dtype, std::string_view clocks,
                          std::string_view stage) {
  const auto is = [&](const GemmCurve& c) { return c.dtype == dtype && c.stage == stage; };
  const GemmCurve* exact =
      First(curves.gemm, [&](const GemmCurve& c) { return is(c) && c.clocks == clocks; });
  return exact != nullptr ? exact : First(curves.gemm, is);
}

const AttentionCurve* FindAttention(const GpuCurves& curves, std::string_view kernel) {
  const AttentionCurve* exact =
      First(curves.attention, [&](const AttentionCurve& c) { return c.kernel == kernel; });
  if (exact != nullptr || curves.attention.empty()) return exact;
  return &*std::max_element(
      curves.attention.begin(), curves.attention.end(),
      [](const AttentionCurve& a, const AttentionCurve& b) { return a.fit.rows < b.fit.rows; });
}

const BandwidthCurve* FindBandwidth(const GpuCurves& curves, std::string_view op,
                                    std::string_view stack) {
  const BandwidthCurve* exact = First(
      curves.bandwidth, [&](const BandwidthCurve& c) { return c.op == op && c.stack == stack; });
  if (exact != nullptr) return exact;
  return First(curves.bandwidth, [&](const BandwidthCurve& c) { return c.op == op; });
}

const CollectiveCurve* FindCollective(const GpuCurves& curves, std::string_view op,
                                      std::string_view library, std::string_view fabric) {
  const auto find = [&](std::string_view name) {
    return First(curves.collective, [&](const CollectiveCurve& c) {
      return c.op == op && c.library == library && c.fabric == name;
    });
  };
  const CollectiveCurve* exact = find(fabric);
  return exact != nullptr || fabric.empty() ? exact : find(kAnyFabric);
}

const GpuCurves* BuiltInCurves(const GpuSpec& gpu) {
  // Read when first asked for: a program needs one GPU's, and a file is a millisecond or two.
  struct Lazy {
    std::once_flag once;
    GpuCurves curves;
  };
  static std::vector<Lazy> all(CurveFiles().size());
  // A GPU that takes another's efficiencies than its preset's takes its curves too.
  const GpuSpec* preset = GpuNamed(gpu.name);
  const bool own = preset != nullptr && preset->calibration == gpu.calibration;
  for (const std::string& name : {own ? gpu.name : gpu.calibration, gpu.calibration}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const CurveFile& file = CurveFiles()[i];
      if (!SameName(name, file.gpu)) continue;
      std::call_once(all[i].once, [&] {
        all[i].curves = ParseCurves("curves of " + std::string(file.gpu), file.text);
      });
      return &all[i].curves;
    }
  }
  return nullptr;
}

}  // namespace millwright
