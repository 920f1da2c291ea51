// SPDX-License-Identifier: Apache-2.0
//
// What a fitted curve says about itself: its parameters with their uncertainty, how far it is off
// the rows it was fitted to and off rows it had not seen, and where it was measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/config_io.h"

namespace millwright {

// A parameter and the standard error that the fit gives it; 0: not fitted.
struct Fitted {
  double value = 0;
  double error = 0;
  bool operator==(const Fitted&) const = default;
};

// Lists two keys, which must be literals.
void FittedField(ConfigIo& io, const char* key, const char* error_key, Fitted& fitted,
                 NumberRange range, const char* meaning, Presence presence = Presence::kOptional);

struct FitRecord {
  int rows = 0;
  double median_ape = 0, p90_ape = 0;        // of the rows fitted, as shares
  double cv_median_ape = 0, cv_p90_ape = 0;  // of shapes left out, cross-validated
  std::string source;                        // whose measurements
  bool operator==(const FitRecord&) const = default;
};
void Fields(ConfigIo& io, FitRecord& fit);

// log(measured / formula) on a grid over the shape, linear between knots and constant beyond the
// outermost: what the formula leaves over.
struct ResidualGrid {
  static constexpr std::size_t kMostAxes = 4;

  std::vector<std::vector<double>> axes;  // knots, ascending
  std::vector<double> values;             // the last axis fastest; empty: no residual

  double At(std::span<const double> at) const;  // 0 where there are no values
  bool operator==(const ResidualGrid&) const = default;

  // The knots around a point and their weights, for evaluation and for fitting: at most
  // 2^kMostAxes.
  struct Corner {
    std::size_t index;
    double weight;
  };
  template <class Visit>
  void ForCorners(std::span<const double> at, const Visit& visit) const;
};
// "axes": a text of knots each; "residual": a text each for the values along the last axis, in
// thousandths.
void Fields(ConfigIo& io, ResidualGrid& grid, std::size_t axes);

// Smallest and largest of each coordinate of the rows fitted.
struct CoveredRange {
  std::vector<double> low, high;
  bool empty() const { return low.empty(); }
  void Add(std::span<const double> at);
  // By at most `slack` outside; true where nothing is recorded.
  bool Contains(std::span<const double> at, double slack = 0) const;
  bool operator==(const CoveredRange&) const = default;
};
void Fields(ConfigIo& io, CoveredRange& range, std::size_t coordinates, const char* meaning);

template <class Visit>
void ResidualGrid::ForCorners(std::span<const double> at, const Visit& visit) const {
  std::size_t base[kMostAxes];
  double share[kMostAxes];
  const std::size_t n = axes.size();
  for (std::size_t d = 0; d < n; ++d) {
    const std::vector<double>& knots = axes[d];
    std::size_t i = 0;
    while (i + 2 < knots.size() && at[d] >= knots[i + 1]) ++i;
    base[d] = i;
    share[d] = 0;
    if (knots.size() > 1 && at[d] > knots[i]) {
      const double t = (at[d] - knots[i]) / (knots[i + 1] - knots[i]);
      share[d] = t < 1 ? t : 1;
    }
  }
  for (unsigned corner = 0; corner < (1u << n); ++corner) {
    double weight = 1;
    std::size_t index = 0;
    for (std::size_t d = 0; d < n; ++d) {
      const unsigned up = corner >> d & 1u;
      weight *= up ? share[d] : 1 - share[d];
      if (weight == 0) break;
      index = index * axes[d].size() + base[d] + up;
    }
    if (weight > 0) visit(Corner{index, weight});
  }
}

}  // namespace millwright
