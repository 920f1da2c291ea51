// SPDX-License-Identifier: Apache-2.0
//
// Shipped efficiency curves.  Sources, by name in the comments:
//   [ops]  single-operation measurements collected from aiconfigurator, vidur, SimuMax and
//          nccl-tests tables (2026-11): fits on relative error, held-out shapes.
//   [e2e]  a fit of 40 global parameters to 716 published training steps; +- is the standard
//          deviation of the log over group bootstraps.
//   [match] so that a curve at sustained clocks takes what the [e2e] efficiency with the roll-offs
//          takes: sustained_* at 4096 to 8192 in m, n and k, grouped factors at 1024 to 4096 rows a
//          group.  Against rows of steady load: vidur's are 0.96 (A100) and 0.91 (H100) of the
//          burst rate, SimuMax's B200 0.74.
//   [nccl] NCCL's own tuning constants (src/graph/tuning.cc, 2026-06).
// Steps are costed by these laws: fitted to whole steps they predict runs held out slightly better
// than the measured curves do (median / p90 4.3 / 14.8% against 4.8 / 15.4%), and in a tenth of the
// time.  The curves judge single operations (validate --ops), and a user's take the laws' place.
// Error to expect: GEMM with this one-parameter law median 4-6%, p90 12-23% at m, n, k >= 512
// [ops]; collectives of 16 MB and more inside a domain 1-3%, smaller ones 4% median, 16% p90;
// whole steps about 6% median, 18% p90 for the 40-parameter study and more here.
#include <map>
#include <mutex>
#include <utility>

#include "cost_models/calibration.h"
#include "cost_models/end_to_end.h"

namespace millwright {
namespace {

// Traits of the software stack rather than of the chip.
constexpr OverlapCalibration kOverlap{
    .tp_contention = 0.40,    // [e2e] +-26%
    .expert_exposed = 0.47,   // [e2e] +-19%
    .p2p_exposed = 0.10,      // [e2e] set by hand there
    .dp_exposed = 0.26,       // [e2e] +-43%
    .dp_window = 0.8,         // [e2e] set by hand there
    .fsdp_contention = 0.30,  // [e2e] +-33%
};
constexpr double kCastBytes = 7.7;       // [e2e] +-10%, bytes per element of each GEMM input
constexpr double kOptimizerBytes = 66;   // [e2e] +-18%; the clean count is 28-32
constexpr double kHbmEfficiency = 0.85;  // [e2e] +-3%
constexpr double kBackwardBytes = 1.6;   // [e2e] set by hand there
constexpr double kGemmBackward = 1.02;   // [e2e] backward 2.04 x forward
constexpr double kFlashBackward = 2.9;   // [ops] 2.90 (A100), 2.69 (B200), 2.90 (FA3)
constexpr double kScoreBytes = 9.0;      // [e2e] 9.1 +-12% bytes per score element
constexpr double kScoreBackward = 1.2;   // [e2e] set by hand there

const Calibration kCalibrations[] = {
    {
        .name = "A100",
        .source = "[ops] and [e2e], see cost_models/presets/calibrations.cc",
        .gemm = {.efficiency = 0.816,     // [e2e] +-2% of 312 TFLOP/s
                 .roll_off = 100,         // [ops]
                 .sustained_bf16 = 0.95,  // [match]
                 .grouped_factor = 0.85,
                 .grouped_factor_low = 0.85,  // [e2e] set by hand there
                 .curve_grouped = 0.93,       // [match]
                 .curve_grouped_low = 0.93,   // [match]
                 .backward_factor = kGemmBackward,
                 .cast_bytes_per_element = kCastBytes,
                 .launch = 5.2_us},               // [ops] fitted roofline t0
        .attention = {.efficiency = 166.0 / 312,  // [e2e] FlashAttention-2, +-6%
                      .roll_off = 500,            // [ops]
                      .head_64_factor = 1.0,
                      .backward_factor = kFlashBackward,
                      .unfused_score_bytes = kScoreBytes,
                      .unfused_backward_factor = kScoreBackward,
                      .launch = 5.0_us},
        .memory = {kHbmEfficiency, kBackwardBytes, 3_us},
        .collective = {.base = 8.1_us,                 // [ops] 8.1 + 0.98 x steps
                       .domain_step = 0.98_us,         // [ops]
                       .fabric_step = 13_us,           // [e2e] 26 us x nodes for RS + AG; [nccl] 14
                       .tree_level = 10_us,            // [ops] 14/25/35 us at 1/2/4 nodes
                       .domain_efficiency = 0.80,      // [ops] 239 of 300 GB/s
                       .nvls_efficiency = 0,           // no NVLS before Hopper
                       .fabric_efficiency = 0.96,      // [e2e] +-7%
                       .tree_efficiency = 0.92,        // [nccl]
                       .all_to_all_efficiency = 0.68,  // [ops] 203 of 300 GB/s at 512 MB
                       .all_to_all_base = 12_us,       // [ops] 11-14
                       .p2p_base = 8_us,
                       .p2p_fabric_base = 17_us,          // [ops] vidur, H100
                       .sqrt_coefficient = 6.0e-9,        // [ops] half of all-reduce's 0.0121 us
                       .fabric_sqrt_coefficient = 11e-9,  // [ops]
                       .nvls_threshold = 2_MiB,
                       .nvls_min_ranks = 5},
        .overlap = kOverlap,
        .optimizer_bytes_per_parameter = kOptimizerBytes,
    },
    {
        .name = "H100",
        .source = "[ops] and [e2e], see cost_models/presets/calibrations.cc",
        .gemm = {.efficiency = 0.696,     // [e2e] +-3% of 989 TFLOP/s
                 .roll_off = 150,         // [ops]
                 .fp8_efficiency = 1.58,  // [e2e] +-7%
                 .sustained_bf16 = 0.83,  // [match]
                 .sustained_fp8 = 0.97,   // [match]
                 .grouped_factor = 0.85,
                 .grouped_factor_low = 0.85,  // [e2e] set by hand there
                 .curve_grouped = 0.87,       // [match]
                 .curve_grouped_low = 0.87,   // [match]
                 .backward_factor = kGemmBackward,
                 .cast_bytes_per_element = kCastBytes,
                 .launch = 3.0_us},               // [ops]
        .attention = {.efficiency = 570.0 / 989,  // [e2e] FlashAttention-3 or cuDNN, +-12%
                      .roll_off = 580,            // [ops]
                      .head_64_factor = 0.78,     // [ops]
                      .backward_factor = kFlashBackward,
                      .unfused_score_bytes = kScoreBytes,
                      .unfused_backward_factor = kScoreBackward,
                      .launch = 5.0_us},
        .memory = {kHbmEfficiency, kBackwardBytes, 2_us},
        .collective = {.base = 4.7_us,                 // [ops] 4.7 + 0.80 x steps
                       .domain_step = 0.80_us,         // [ops]
                       .fabric_step = 13_us,           // [e2e] 26 us x nodes for RS + AG; [nccl] 14
                       .tree_level = 10_us,            // [ops]
                       .domain_efficiency = 0.79,      // [ops] 356 of 450 GB/s
                       .nvls_efficiency = 1.14,        // [ops] bus bandwidth 516 over 450 GB/s
                       .fabric_efficiency = 0.96,      // [e2e]
                       .tree_efficiency = 0.92,        // [nccl]
                       .all_to_all_efficiency = 0.70,  // [ops] 315 of 450 GB/s at 512 MB
                       .all_to_all_base = 7.8_us,      // [ops]
                       .p2p_base = 7.4_us,             // [ops] vidur
                       .p2p_fabric_base = 17_us,       // [ops] vidur
                       .sqrt_coefficient = 3.2e-9,     // [ops] reduce-scatter 0.0032 us
                       .fabric_sqrt_coefficient = 11e-9,  // [ops]
                       .nvls_threshold = 2_MiB,           // [ops]
                       .nvls_min_ranks = 5},              // [ops] more than 4
        .overlap = kOverlap,
        .optimizer_bytes_per_parameter = kOptimizerBytes,
    },
    {
        .name = "B200",
        .source = "[ops] and [e2e], see cost_models/presets/calibrations.cc",
        .gemm = {.efficiency = 0.52,          // [e2e] +-6% of 2250 TFLOP/s
                 .roll_off = 160,             // [ops]
                 .fp8_efficiency = 1.22,      // [e2e] +-7%
                 .mxfp8_efficiency = 1.29,    // [e2e] +-8%
                 .nvfp4_efficiency = 2.1,     // [e2e] +-23%
                 .sustained_bf16 = 0.72,      // [match]
                 .sustained_fp8 = 0.83,       // [match]
                 .sustained_mxfp8 = 0.87,     // [match]
                 .sustained_nvfp4 = 0.98,     // [match]
                 .grouped_factor = 0.50,      // [e2e] +-11%
                 .grouped_factor_low = 0.79,  // [e2e] +-11%
                 .curve_grouped = 0.86,       // [match]
                 .curve_grouped_low = 0.78,   // [match]
                 .backward_factor = kGemmBackward,
                 .cast_bytes_per_element = kCastBytes,
                 .launch = 2.5_us},                 // [ops]
        .attention = {.efficiency = 1140.0 / 2250,  // [e2e] +-9%
                      .roll_off = 900,              // [ops]
                      .head_64_factor = 0.65,       // [ops] bound by the exponential
                      .backward_factor = kFlashBackward,
                      .unfused_score_bytes = kScoreBytes,
                      .unfused_backward_factor = kScoreBackward,
                      .launch = 5.0_us},
        .memory = {kHbmEfficiency, kBackwardBytes, 2_us},
        .collective = {.base = 7.7_us,                 // [ops] 7.7 + 1.27 x steps
                       .domain_step = 1.27_us,         // [ops]
                       .fabric_step = 13_us,           // [e2e]; [nccl] 14
                       .tree_level = 10_us,            // [ops]
                       .domain_efficiency = 0.76,      // [ops] ring 682 of 900 GB/s
                       .nvls_efficiency = 0.96,        // [ops] 866 over 900 GB/s
                       .fabric_efficiency = 0.96,      // [e2e]
                       .tree_efficiency = 0.92,        // [nccl]
                       .all_to_all_efficiency = 0.63,  // [ops] 563 of 900 GB/s at 512 MB
                       .all_to_all_base = 11.3_us,     // [ops]
                       .p2p_base = 8_us,
                       .p2p_fabric_base = 17_us,          // [ops] vidur, H100
                       .sqrt_coefficient = 4.9e-9,        // [ops] half of all-reduce's 0.0097 us
                       .fabric_sqrt_coefficient = 11e-9,  // [ops]
                       .nvls_threshold = 2_MiB,           // [ops]
                       .nvls_min_ranks = 6},              // [ops] more than 5
        .overlap = kOverlap,
        .optimizer_bytes_per_parameter = kOptimizerBytes,
    },
};

// B300 runs a step's compute 1.23 x as fast as B200 at the same datasheet BF16 peak (clock and
// power), +-4% [e2e].
Calibration B300() {
  Calibration c = kCalibrations[2];
  c.name = "B300";
  c.gemm.efficiency *= 1.23;
  c.gemm.fp8_efficiency *= 1.23;
  c.gemm.mxfp8_efficiency *= 1.23;
  c.gemm.nvfp4_efficiency *= 1.23 * 1.5;  // [e2e] 1.5 by its FP4 peak
  c.gemm.sustained_bf16 = 0.90;           // [match] its own curve
  c.gemm.sustained_fp8 *= 1.23;           // B200's curves
  c.gemm.sustained_mxfp8 *= 1.23;
  c.gemm.sustained_nvfp4 *= 1.23;
  c.attention.efficiency *= 1.23;
  return c;
}
const Calibration kB300 = B300();

// A GPU known only by its datasheet takes H100's fractions; how far off is not measured.
Calibration Generic() {
  Calibration c = kCalibrations[1];
  c.name = "generic";
  c.source = "no measurements: H100's fractions of the datasheet";
  c.collective.nvls_efficiency = 0;
  return c;
}
const Calibration kGeneric = Generic();

// Kept: a calibration is asked for by reference, and often.
struct Loaded {
  GpuCurves curves;
  Calibration calibration;
};
const Loaded& FromFile(const std::string& file, const Calibration& family) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string_view>, Loaded> files;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(file, family.name);
  const auto found = files.find(key);
  if (found != files.end()) return found->second;
  GpuCurves curves = ParseCurves(file, ReadTextFile(file));
  Loaded& loaded = files[key];
  loaded.curves = std::move(curves);
  loaded.calibration = WithCurves(family, loaded.curves);
  return loaded;
}

const Calibration& OfFamily(std::string_view name) {
  for (const Calibration& c : kCalibrations) {
    if (c.name == name) return c;
  }
  return name == kB300.name ? kB300 : kGeneric;
}

}  // namespace

Calibration WithCurves(const Calibration& calibration, const GpuCurves& curves) {
  Calibration c = calibration;
  if (!curves.gemm.empty()) {
    c.gemm.grouped_factor *= c.gemm.curve_grouped;
    c.gemm.grouped_factor_low *= c.gemm.curve_grouped_low;
  }
  c.gemm.bf16_curve = FindGemm(curves, "bfloat16", "burst");
  c.gemm.fp8_curve = FindGemm(curves, "fp8", "burst");
  c.gemm.nvfp4_curve = FindGemm(curves, "nvfp4", "burst");
  std::string_view library = "nccl-tests";
  // CPU cores have no bfloat16 and no NCCL: what they computed in, and what joined them.
  for (const char* dtype : {"float32", "float64"}) {
    if (c.gemm.bf16_curve == nullptr) c.gemm.bf16_curve = FindGemm(curves, dtype, "sustained");
  }
  for (const CollectiveCurve& curve : curves.collective) {
    if (library == "nccl-tests" && curve.library.starts_with("millwright-")) {
      library = curve.library;
    }
  }
  c.collective.ring_curve = FindCollective(curves, "ring", library);
  c.collective.all_to_all_curve = FindCollective(curves, "alltoall", library);
  return c;
}

Calibration AsExecuted(const ExecutedCurves& curves) {
  Calibration c = kGeneric;
  c.name = "executed";
  c.source = "measured by `millwright measure`";
  c.host = {};
  c.overlap = {.expert_exposed = 1, .p2p_exposed = 1, .dp_exposed = 0};
  constexpr double kCountedWidth = 2;  // bytes of an element in cost_models/operators' lists
  c.collective.bytes_factor = curves.width / kCountedWidth;
  c.collective.ring_curve = curves.ring;
  c.collective.all_to_all_curve = curves.all_to_all;
  c.collective.send_recv_curve = curves.send_recv;
  c.executed = curves;
  return c;
}

const Calibration& CalibrationFor(const GpuSpec& gpu) {
  const Calibration& family = OfFamily(gpu.calibration);
  return gpu.calibration_file.empty() ? family : FromFile(gpu.calibration_file, family).calibration;
}

EndToEnd EndToEndFor(const GpuSpec& gpu) {
  if (gpu.calibration_file.empty()) return ShippedEndToEnd();
  return With(FromFile(gpu.calibration_file, OfFamily(gpu.calibration)).curves.end_to_end);
}

}  // namespace millwright
