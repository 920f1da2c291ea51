// SPDX-License-Identifier: Apache-2.0
//
// Everything measured about one GPU: the curves of its operations.  A calibration file holds one.
//
// `millwright calibrate` makes them; those of presets/curves/ are built into the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cost_models/attention_curve.h"
#include "cost_models/bandwidth_curve.h"
#include "cost_models/collective_curve.h"
#include "cost_models/gemm_curve.h"
#include "cost_models/own_end_to_end.h"

namespace millwright {

// The most that any row reached, and a tenth: what takes a datasheet's place where there is none.
// 0: not measured.
struct MeasuredRates {
  FlopsPerSecond fp32, fp64;
  BytesPerSecond memory;  // caches included
  BytesPerSecond link;    // bus bandwidth of a collective, or of a message
  bool operator==(const MeasuredRates&) const = default;
};

struct GpuCurves {
  std::string gpu;         // whose; its datasheet turns shares into rates
  std::string provenance;  // of the measurements, and what made the file
  MeasuredRates rates;     // of a GPU that has placeholders for a datasheet
  std::vector<GemmCurve> gemm;
  std::vector<AttentionCurve> attention;
  std::vector<BandwidthCurve> bandwidth;
  std::vector<CollectiveCurve> collective;
  OwnEndToEnd end_to_end;  // of steps on these GPUs; no runs: the shipped ones
  bool operator==(const GpuCurves&) const = default;
};
void Fields(ConfigIo& io, GpuCurves& curves);

GpuCurves ParseCurves(const std::string& file, std::string_view text);
std::string WriteCurves(const GpuCurves& curves);

// With those of `rates` that were measured.
GpuSpec WithRates(GpuSpec gpu, const MeasuredRates& rates);

// nullptr where there is none that fits; the nearest in kind where there is a choice.
const GemmCurve* FindGemm(const GpuCurves& curves, std::string_view dtype, std::string_view clocks,
                          std::string_view stage = "");
// The kernel, or else that with the most rows.
const AttentionCurve* FindAttention(const GpuCurves& curves, std::string_view kernel);
const BandwidthCurve* FindBandwidth(const GpuCurves& curves, std::string_view op,
                                    std::string_view stack);
// On this fabric, or else on all together.
const CollectiveCurve* FindCollective(const GpuCurves& curves, std::string_view op,
                                      std::string_view library, std::string_view fabric = "");

// Those built in for a GPU, by its preset's name or, failing that, its calibration family;
// nullptr for a GPU that nobody measured.
const GpuCurves* BuiltInCurves(const GpuSpec& gpu);

}  // namespace millwright
