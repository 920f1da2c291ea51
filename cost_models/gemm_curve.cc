// SPDX-License-Identifier: Apache-2.0
#include "cost_models/gemm_curve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cost_models/deepgemm_tiles.h"

namespace millwright {
namespace {

struct Tile {
  double m, n;
};
// cuBLAS' and CUTLASS' usual ones; wider ones differ by little in this model.
constexpr std::array<Tile, 8> kTiles{
    {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {64, 32}, {32, 64}}};
constexpr double kLeastSplit = 256;  // of k: shorter ones are not worth a reduction

// std::ceil is a call without SSE 4.1, and there are dozens here.
double Ceil(double x) {
  const double whole = double(static_cast<long long>(x));
  return whole < x ? whole + 1 : whole;
}

// Of what the waves take: a whole last one by `quantisation`, at least one.
double Paid(const GemmCurve& c, double waves) {
  const double whole = c.quantisation.value;
  return whole * Ceil(waves - 1e-9) + (1 - whole) * std::max(1.0, waves);
}

// A wave's FLOPs of a multiprocessor, with what loading and filling cost.
double WaveFlops(const GemmCurve& c, double tile_m, double tile_n, double k) {
  return 2 * tile_m * tile_n * (1 + c.tile_overhead.value * (1 / tile_m + 1 / tile_n)) *
         (k + c.k_overhead.value);
}

bool IsDeepGemm(const GemmCurve& c, const GemmShape& s) {
  return c.dtype == "fp8_block" && s.groups == 1;
}

double DeepGemmTime(const GemmCurve& c, const GemmShape& s, double rate_per_sm, int sms) {
  constexpr double kLeastRows = 64;  // a tile of fewer takes the tensor cores as long
  const DeepGemmTiles t = TilesOfDeepGemm(s.m, s.n, s.k, sms);
  const double rows = std::max(kLeastRows, t.m);
  double slower = 1;
  const auto times = [&](bool holds, const Fitted& factor) {
    if (holds && factor.value > 0) slower *= factor.value;
  };
  times(t.SlowWave(), c.slow_wave);
  times(t.OneWarpgroup(), c.one_warpgroup);
  times(t.OddWidth(), c.odd_width);
  if (std::fmod(s.m, t.m) != 0) slower *= 1 + c.ragged.value * rows / std::max(kLeastRows, s.m);
  return slower * Paid(c, t.tiles / sms) * WaveFlops(c, rows, t.n, s.k) / rate_per_sm;
}

double ComputeTime(const GemmCurve& c, const GemmShape& s, double rate_per_sm, int sms,
                   double bytes_per_second) {
  if (IsDeepGemm(c, s)) return DeepGemmTime(c, s, rate_per_sm, sms);
  const double most_split = c.dtype == "fp8_block" ? 1 : 8;  // DeepGEMM does not split
  double best = INFINITY;
  for (const Tile& tile : kTiles) {
    const double tiles = s.groups * Ceil(s.m / tile.m) * Ceil(s.n / tile.n) / sms;
    for (double split = 1; split <= most_split; split *= 2) {
      const double waves = tiles * split;
      if (split > 1 && (s.k < split * kLeastSplit || waves > 2)) break;
      double time = Paid(c, waves) * WaveFlops(c, tile.m, tile.n, s.k / split) / rate_per_sm;
      if (split > 1) {
        // Partial sums in fp32, written and read.
        time += c.split_cost.value * split * s.groups * s.m * s.n * 8 / bytes_per_second;
      }
      best = std::min(best, time);
    }
  }
  return best;
}

double Leftover(const GemmCurve& c, const GemmShape& s) {
  if (c.residual.values.empty()) return 1;
  return std::exp(c.residual.At(Coordinates(s)));
}

Seconds AtPeak(const GemmCurve& c, const GemmShape& s, const GpuSpec& gpu) {
  return Flops(2 * s.groups * s.m * s.n * s.k) / PeakOf(c.dtype, gpu);
}

}  // namespace

std::array<double, 3> Coordinates(const GemmShape& s) {
  return {std::log2(s.groups * s.m), std::log2(s.n), std::log2(s.k)};
}

void Fields(ConfigIo& io, GemmCurve& c) {
  constexpr NumberRange kTime{.min = 0, .max = 1};  // seconds
  constexpr NumberRange kSize{.min = 0, .max = 1e6};
  constexpr NumberRange kShare{.min = 0, .max = 1};
  constexpr NumberRange kRate{.min = 1e-6, .max = 1};
  static constexpr std::array<std::string_view, 6> kDtypes{"bfloat16", "fp8",     "fp8_block",
                                                           "nvfp4",    "float32", "float64"};
  static constexpr std::array<std::string_view, 3> kClocks{"burst", "warm", "sustained"};
  io.Name("dtype", c.dtype, kDtypes,
          "of the inputs; bfloat16 serves float16, float32 and float64 are of CPU cores");
  io.Name("clocks", c.clocks, kClocks,
          "a few launches at boost clocks, after others, or under steady load");
  static constexpr std::array<std::string_view, 4> kStages{"", "fwd", "bwd_grad_act", "bwd_grad_w"};
  io.Name("stage", c.stage, kStages, "of a grouped GEMM: which pass; empty: one GEMM");
  FittedField(io, "efficiency", "efficiency_error", c.efficiency, kRate,
              "of the peak, of endless tiles", Presence::kRequired);
  FittedField(io, "hbm_efficiency", "hbm_efficiency_error", c.hbm_efficiency, kRate,
              "of the HBM bandwidth", Presence::kRequired);
  FittedField(io, "launch_s", "launch_s_error", c.launch, kTime, "of one GEMM, whatever its size");
  FittedField(io, "k_overhead", "k_overhead_error", c.k_overhead, kSize,
              "k at which half of a tile is lost");
  FittedField(io, "tile_overhead", "tile_overhead_error", c.tile_overhead, kSize,
              "edge of a tile at which half of it is lost to fetching operands");
  FittedField(io, "quantisation", "quantisation_error", c.quantisation, kShare,
              "share of the last wave that is paid");
  FittedField(io, "split_cost", "split_cost_error", c.split_cost, kSize,
              "HBM passes over the partial sums of a split of k");
  FittedField(io, "slow_wave", "slow_wave_error", c.slow_wave, kSize,
              "time of one wave of DeepGEMM's largest tiles, over that of a later one; 0: not its");
  FittedField(io, "one_warpgroup", "one_warpgroup_error", c.one_warpgroup, kSize,
              "time of DeepGEMM's tiles of at most 64 rows, over that of others; 0: not its");
  FittedField(
      io, "odd_width", "odd_width_error", c.odd_width, kSize,
      "time of DeepGEMM's tiles that no 32 columns divide, over that of others; 0: not its");
  FittedField(io, "ragged", "ragged_error", c.ragged, kSize,
              "of DeepGEMM: a strip of tiles that is not full of rows, beside a full one");
  FittedField(io, "cast_launch_s", "cast_launch_s_error", c.cast_launch, kTime,
              "of the kernel that quantises the activations");
  FittedField(io, "cast_efficiency", "cast_efficiency_error", c.cast_efficiency, kShare,
              "of that kernel, of the HBM bandwidth; 0: the rows have none");
  Fields(io, c.residual, 3);
  Fields(io, c.range, 3, "log2 of m, n, k measured");
  Fields(io, c.fit);
}

double ElementBytes(const std::string& dtype) {
  if (dtype == "nvfp4") return 0.5625;  // 4 bits and an 8-bit scale for each 16
  if (dtype == "float32") return 4;
  if (dtype == "float64") return 8;
  return dtype.starts_with("fp8") ? 1 : 2;
}

FlopsPerSecond PeakOf(const std::string& dtype, const GpuSpec& gpu) {
  if (dtype == "nvfp4") return gpu.peak_fp4;
  if (dtype == "float32") return gpu.peak_fp32;
  if (dtype == "float64") return gpu.peak_fp64;
  return dtype.starts_with("fp8") ? gpu.peak_fp8 : gpu.peak_bf16;
}

Seconds GemmFormula(const GemmCurve& c, const GemmShape& s, const GpuSpec& gpu, double derate) {
  const double peak = PeakOf(c.dtype, gpu).value, hbm = gpu.hbm_bandwidth.value;
  const double compute =
      ComputeTime(c, s, peak * c.efficiency.value * derate / gpu.sm_count, gpu.sm_count, hbm);
  const double width = ElementBytes(c.dtype);
  const double bytes =
      s.groups * (width * (s.m * s.k + s.n * s.k) + std::max(2.0, width) * s.m * s.n);
  const double memory = bytes / (hbm * c.hbm_efficiency.value);
  return Seconds(c.launch.value +
                 std::cbrt(compute * compute * compute + memory * memory * memory));
}

Seconds CastTime(const GemmCurve& c, const GemmShape& s, const GpuSpec& gpu) {
  if (c.cast_efficiency.value <= 0) return Seconds(0);
  // BF16 read, quantised written.
  const Bytes bytes((2 + ElementBytes(c.dtype)) * s.groups * s.m * s.k);
  return Seconds(c.cast_launch.value) + bytes / (gpu.hbm_bandwidth * c.cast_efficiency.value);
}

Seconds TimeOf(const GemmCurve& c, const GemmShape& s, const GpuSpec& gpu, double derate) {
  return std::max(Leftover(c, s) * GemmFormula(c, s, gpu, derate), AtPeak(c, s, gpu));
}

Seconds TimeWithCast(const GemmCurve& c, const GemmShape& s, const GpuSpec& gpu) {
  return std::max(Leftover(c, s) * (GemmFormula(c, s, gpu) + CastTime(c, s, gpu)),
                  AtPeak(c, s, gpu));
}

}  // namespace millwright
