// SPDX-License-Identifier: Apache-2.0
#include "planner/measured_range.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace millwright {
std::optional<std::string> OutsideMeasured(const Estimator& estimator, const ParallelConfig& plan) {
  const TrainingConfig& training = estimator.training();
  // Where the laws cost a step, the measurements that they stand for are the built-in curves'.
  const GpuSpec& gpu = estimator.cluster().gpu();
  const GemmCalibration& used = estimator.calibration().gemm;
  const bool own =
      used.bf16_curve != nullptr || used.fp8_curve != nullptr || used.nvfp4_curve != nullptr;
  const GpuCurves* built_in = own ? nullptr : BuiltInCurves(gpu);
  const GemmCalibration g =
      (built_in != nullptr && gpu.measured() ? WithCurves(estimator.calibration(), *built_in)
                                             : estimator.calibration())
          .gemm;
  const LayerShape shape = ShapeOf(plan, training);
  std::vector<Operator> operators = HeadOperators(estimator.model(), shape, training);
  for (LayerKind kind : estimator.kinds()) {
    const std::vector<Operator> layer = LayerOperators(estimator.model(), kind, shape, training);
    operators.insert(operators.end(), layer.begin(), layer.end());
  }
  std::vector<std::string_view> names;
  GemmShape first;
  for (const Operator& op : operators) {
    if (op.kind != OperatorKind::kGemm && op.kind != OperatorKind::kGroupedGemm) continue;
    const GemmCurve* curve =
        CurveOf(op.low_precision ? training.precision : Precision::kBf16, g).curve;
    if (curve == nullptr || op.m <= 0 || op.n <= 0 || op.k <= 0) continue;
    const std::array<GemmShape, 3> passes{{{op.m, op.n, op.k, op.groups},
                                           {op.m, op.k, op.n, op.groups},
                                           {op.n, op.k, op.m, op.groups}}};
    constexpr double kOctave = 1;
    // A product and its transpose are one work.
    const auto outside = std::find_if(passes.begin(), passes.end(), [&](const GemmShape& s) {
      return !curve->range.Contains(Coordinates(s), kOctave) &&
             !curve->range.Contains(Coordinates(GemmShape{s.n, s.m, s.k, s.groups}), kOctave);
    });
    if (outside == passes.end()) continue;
    if (names.empty()) first = *outside;
    if (std::find(names.begin(), names.end(), op.name) == names.end()) names.push_back(op.name);
  }
  if (names.empty()) return std::nullopt;
  return fmt::format(
      "{}: GEMMs far outside the shapes measured on {} (such as {:.0f} x {:.0f} x {:.0f}); their "
      "time is extrapolated",
      fmt::join(names, ", "), estimator.cluster().gpu().name, first.m, first.n, first.k);
}

}  // namespace millwright
