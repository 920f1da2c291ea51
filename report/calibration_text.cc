// SPDX-License-Identifier: Apache-2.0
#include "report/calibration_text.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/mistakes.h"
#include "cost_models/end_to_end.h"

namespace millwright {
namespace {

constexpr std::size_t kFlagsShown = 20;

std::string Main(const Fitted& value, double scale, std::string_view unit) {
  return fmt::format("{:.3g} +- {:.1g} {}", scale * value.value, scale * value.error, unit);
}

}  // namespace

std::string OwnEndToEndText(const GpuCurves& curves, const std::vector<std::string>& left_out,
                            const std::string& file, const Style& style) {
  const OwnEndToEnd& own = curves.end_to_end;
  std::string text =
      Bold(fmt::format("{}, written to {}", curves.gpu, Printable(file, kMostNameShown)), style) +
      "\n" +
      Wrapped(
          fmt::format(
              "{}: median error {} by the shipped parameters, {} by these{}.",
              Counted(own.runs, "run"), Percent(own.shipped_median_ape), Percent(own.median_ape),
              own.cv_median_ape > 0
                  ? fmt::format(", {} of runs left out of a fit", Percent(own.cv_median_ape))
                  : std::string("; too few to leave any out of a fit")),
          style.width, 0) +
      "\n";
  if (own.parameters.empty()) {
    text += "No parameter is better otherwise.\n";
  } else {
    TextTable table;
    table.Column("parameter", Align::kLeft);
    for (const char* title : {"shipped", "here", "+-"}) table.Column(title);
    for (const OwnEndToEnd::Parameter& p : own.parameters) {
      table.Row({p.name, fmt::format("{:.4g}", FieldNamed(p.name)->shipped),
                 fmt::format("{:.4g}", p.value.value), Percent(p.value.error / p.value.value)});
    }
    text += table.Text(style);
  }
  if (!left_out.empty()) text += "\nLeft out\n";
  for (const std::string& line : left_out) text += Wrapped("  " + line, style.width, 4) + "\n";
  return text;
}

std::string CalibrationText(const GpuCurves& curves, const MeasurementSet& set,
                            const std::string& file, const Style& style) {
  std::string text =
      Bold(fmt::format("{}, written to {}", curves.gpu, Printable(file, kMostNameShown)), style) +
      "\n" + Wrapped(curves.provenance, style.width, 0) +
      "\n\nErrors, median / 90th percentile: of the rows fitted, and of shapes left "
      "out of a fit.\n";
  TextTable table;
  table.Column("curve", Align::kLeft);
  for (const char* title : {"rows", "fitted", "left out"}) table.Column(title);
  table.Column("rate", Align::kLeft);
  table.Column("launch", Align::kLeft);
  const auto row = [&](const std::string& name, const FitRecord& fit, std::string rate,
                       std::string launch) {
    table.Row({Printable(name, kMostNameShown), std::to_string(fit.rows),
               fmt::format("{} / {}", Percent(fit.median_ape), Percent(fit.p90_ape)),
               fit.cv_p90_ape > 0
                   ? fmt::format("{} / {}", Percent(fit.cv_median_ape), Percent(fit.cv_p90_ape))
                   : "",
               std::move(rate), std::move(launch)});
  };
  constexpr double kMicro = 1e6, kPercent = 100;
  for (const GemmCurve& c : curves.gemm) {
    row(fmt::format("gemm {} {} {}", c.dtype, c.clocks, c.stage), c.fit,
        Main(c.efficiency, kPercent, "%"), Main(c.launch, kMicro, "us"));
  }
  for (const AttentionCurve& c : curves.attention) {
    row("attention " + c.kernel, c.fit, Main(c.rate_128, kPercent, "%"),
        Main(c.launch, kMicro, "us"));
  }
  for (const BandwidthCurve& c : curves.bandwidth) {
    row(fmt::format("{} ({})", c.op, c.stack), c.fit, Main(c.efficiency, kPercent, "%"),
        Main(c.launch, kMicro, "us"));
  }
  for (const CollectiveCurve& c : curves.collective) {
    row(fmt::format("{} ({}{}{})", c.op, c.library, c.fabric.empty() ? "" : ", ", c.fabric), c.fit,
        Main(c.efficiency, kPercent, "%"), Main(c.base, kMicro, "us"));
  }
  text += table.Text(style);
  if (!set.flagged.empty()) {
    text += fmt::format("\n{} left out as doubtful\n",
                        Counted(std::int64_t(set.flagged.size()), "row"));
    for (std::size_t i = 0; i < std::min(set.flagged.size(), kFlagsShown); ++i) {
      const FlaggedRow& flag = set.flagged[i];
      const std::string name =
          std::filesystem::path(set.files[std::size_t(flag.file)]).filename().string();
      text += fmt::format("  {}:{}: {}\n", Printable(name, kMostNameShown), flag.line, flag.what);
    }
  }
  return text;
}

}  // namespace millwright
