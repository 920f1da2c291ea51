// SPDX-License-Identifier: Apache-2.0
#include "cost_models/attention_curve.h"

#include <algorithm>
#include <cmath>

namespace millwright {
namespace {

constexpr double kBlock = 128;  // queries of an item; kernels take 64 to 256

// Of the BF16 peak; geometric between the sizes given, constant beyond them.
double RateAt(const AttentionCurve& c, double head_size) {
  const double log = std::log2(std::clamp(head_size, 64.0, 256.0));
  const double low = log < 7 ? c.rate_64.value : c.rate_128.value;
  const double high = log < 7 ? c.rate_128.value : c.rate_256.value;
  return low * std::pow(high / low, log < 7 ? log - 6 : log - 7);
}

double ScoresOf(const AttentionShape& s) {
  // The last query sees all keys, the first keys - queries + 1 of them.
  const double seen = s.causal ? s.keys - (s.queries - 1) / 2 : s.keys;
  return s.batch * s.heads * s.queries * std::max(seen, 1.0);
}

}  // namespace

void Fields(ConfigIo& io, AttentionCurve& c) {
  constexpr NumberRange kTime{.min = 0, .max = 1};  // seconds
  constexpr NumberRange kSize{.min = 0, .max = 1e6};
  constexpr NumberRange kShare{.min = 0, .max = 1};
  constexpr NumberRange kRate{.min = 1e-6, .max = 1};
  io.Text("kernel", c.kernel, "stack and kernel, as the source of the rows names them");
  FittedField(io, "rate_64", "rate_64_error", c.rate_64, kRate, "of the BF16 peak, head size 64",
              Presence::kRequired);
  FittedField(io, "rate_128", "rate_128_error", c.rate_128, kRate,
              "of the BF16 peak, head size 128", Presence::kRequired);
  FittedField(io, "rate_256", "rate_256_error", c.rate_256, kRate,
              "of the BF16 peak, head size 256", Presence::kRequired);
  FittedField(io, "hbm_efficiency", "hbm_efficiency_error", c.hbm_efficiency, kRate,
              "of the HBM bandwidth", Presence::kRequired);
  FittedField(io, "launch_s", "launch_s_error", c.launch, kTime, "of one call, whatever its size");
  FittedField(io, "overhead_keys", "overhead_keys_error", c.overhead, kSize,
              "keys' worth of a block's prologue");
  FittedField(io, "quantisation", "quantisation_error", c.quantisation, kShare,
              "share of the last wave that is paid");
  Fields(io, c.residual, 4);
  Fields(io, c.range, 4, "log2 of queries, batch x heads, head size, group size measured");
  Fields(io, c.fit);
}

std::array<double, 4> Coordinates(const AttentionShape& s) {
  return {std::log2(s.queries), std::log2(s.batch * s.heads), std::log2(s.head_size),
          std::log2(s.heads / s.kv_heads)};
}

Seconds AttentionFormula(const AttentionCurve& c, const AttentionShape& s, const GpuSpec& gpu,
                         double derate) {
  const double rate = gpu.peak_bf16.value * RateAt(c, s.head_size) * derate / gpu.sm_count;
  const double items = s.batch * s.heads * std::ceil(s.queries / kBlock) / gpu.sm_count;
  const double seen =
      s.causal ? s.keys - s.queries + (s.queries + std::min(kBlock, s.queries)) / 2 : s.keys;
  const double key_time = 4 * kBlock * s.head_size / rate;
  const double whole = c.quantisation.value;
  const double waves = whole * std::ceil(items - 1e-9) + (1 - whole) * std::max(1.0, items);
  const double compute = key_time * std::max(waves * (std::max(seen, 1.0) + c.overhead.value),
                                             s.keys + c.overhead.value);
  const double bytes = 4 * s.batch * s.head_size * (s.heads * s.queries + s.kv_heads * s.keys);
  const double memory = bytes / (gpu.hbm_bandwidth.value * c.hbm_efficiency.value);
  return Seconds(c.launch.value +
                 std::cbrt(compute * compute * compute + memory * memory * memory));
}

Seconds TimeOf(const AttentionCurve& c, const AttentionShape& s, const GpuSpec& gpu,
               double derate) {
  Seconds time = AttentionFormula(c, s, gpu, derate);
  if (!c.residual.values.empty()) time = std::exp(c.residual.At(Coordinates(s))) * time;
  return std::max(time, Flops(4 * ScoresOf(s) * s.head_size) / gpu.peak_bf16);
}

}  // namespace millwright
