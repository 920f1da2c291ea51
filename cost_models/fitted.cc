// SPDX-License-Identifier: Apache-2.0
#include "cost_models/fitted.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"

namespace millwright {
namespace {

constexpr std::size_t kMostKnots = 64;
constexpr std::size_t kMostValues = 1 << 20;
constexpr double kThousandths = 1000;
constexpr double kMostResidual = 10;  // a factor of 22,000

std::string ListText(std::span<const double> values) {
  std::string text;
  for (double v : values) text += fmt::format("{}{:g}", text.empty() ? "" : " ", v);
  return text;
}

// Numbers apart at single blanks; false where that is not what the text holds.
bool ReadList(std::string_view text, std::vector<double>& values) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) {
      return false;
    }
    values.push_back(value);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return true;
}

}  // namespace

void FittedField(ConfigIo& io, const char* key, const char* error_key, Fitted& fitted,
                 NumberRange range, const char* meaning, Presence presence) {
  io.Number(key, fitted.value, range, meaning, presence);
  io.Number(error_key, fitted.error, kNotNegative, "its standard error");
}

void Fields(ConfigIo& io, FitRecord& fit) {
  io.Int("rows", fit.rows, {.min = 0, .max = 1 << 24}, "measurements it was fitted to");
  io.Number("median_ape", fit.median_ape, kNotNegative, "median error of those, a share");
  io.Number("p90_ape", fit.p90_ape, kNotNegative, "90th percentile of it");
  io.Number("cv_median_ape", fit.cv_median_ape, kNotNegative,
            "median error of shapes left out of the fit");
  io.Number("cv_p90_ape", fit.cv_p90_ape, kNotNegative, "90th percentile of it");
  io.Text("source", fit.source, "whose measurements");
}

double ResidualGrid::At(std::span<const double> at) const {
  if (values.empty()) return 0;
  double sum = 0;
  ForCorners(at, [&](const Corner& c) { sum += c.weight * values[c.index]; });
  return sum;
}

void Fields(ConfigIo& io, ResidualGrid& grid, std::size_t axes_wanted) {
  std::vector<std::string> axes, rows;
  if (!io.reading() && !grid.values.empty()) {
    for (const std::vector<double>& knots : grid.axes) axes.push_back(ListText(knots));
    const std::size_t row = grid.axes.back().size();
    for (std::size_t i = 0; i < grid.values.size(); i += row) {
      std::vector<double> thousandths;
      for (std::size_t j = 0; j < row; ++j) {
        thousandths.push_back(std::round(kThousandths * grid.values[i + j]) + 0.0);
      }
      rows.push_back(ListText(thousandths));
    }
  }
  io.Texts("axes", axes, "knots of each axis of the residual, ascending, base-2 logarithms");
  io.Texts("residual", rows,
           "log(measured / formula) in thousandths, a text for each run along the last axis");
  if (!io.reading()) return;
  grid = {};
  std::size_t size = axes.empty() ? 0 : 1;
  for (const std::string& text : axes) {
    std::vector<double> knots;
    if (!ReadList(text, knots) || knots.empty() || knots.size() > kMostKnots ||
        !std::is_sorted(knots.begin(), knots.end(), std::less_equal<>())) {
      io.Mistake("axes", "expected ascending numbers with a blank between, at most 64 of them");
      return;
    }
    size *= knots.size();
    grid.axes.push_back(std::move(knots));
  }
  if ((!axes.empty() && axes.size() != axes_wanted) || size > kMostValues) {
    io.Mistake("axes", fmt::format("expected {} axes, or none, of at most 2^20 values together",
                                   axes_wanted));
    grid = {};
    return;
  }
  for (const std::string& text : rows) {
    if (!ReadList(text, grid.values)) {
      io.Mistake("residual", "expected numbers with a blank between");
      grid = {};
      return;
    }
  }
  if (grid.values.size() != size) {
    io.Mistake("residual", fmt::format("expected {} numbers, as the axes say, got {}", size,
                                       grid.values.size()));
    grid = {};
    return;
  }
  for (double& v : grid.values) {
    v /= kThousandths;
    if (std::abs(v) > kMostResidual) {
      io.Mistake("residual", "expected thousandths from -10000 to 10000");
      grid = {};
      return;
    }
  }
}

void CoveredRange::Add(std::span<const double> at) {
  if (empty()) {
    low.assign(at.begin(), at.end());
    high = low;
    return;
  }
  for (std::size_t d = 0; d < at.size(); ++d) {
    low[d] = std::min(low[d], at[d]);
    high[d] = std::max(high[d], at[d]);
  }
}

bool CoveredRange::Contains(std::span<const double> at, double slack) const {
  constexpr double kRounding = 2e-3;  // bounds are kept in thousandths
  for (std::size_t d = 0; d < low.size() && d < at.size(); ++d) {
    if (at[d] < low[d] - slack - kRounding || at[d] > high[d] + slack + kRounding) return false;
  }
  return true;
}

void Fields(ConfigIo& io, CoveredRange& range, std::size_t coordinates, const char* meaning) {
  std::string low = ListText(range.low), high = ListText(range.high);
  io.Text("range_low", low, meaning);
  io.Text("range_high", high, meaning);
  if (!io.reading()) return;
  range = {};
  if (!ReadList(low, range.low) || !ReadList(high, range.high) ||
      range.low.size() != range.high.size() ||
      (!range.low.empty() && range.low.size() != coordinates)) {
    io.Mistake(
        "range_low",
        fmt::format("expected {} numbers with a blank between, and so in range_high", coordinates));
    range = {};
  }
}

}  // namespace millwright
