// SPDX-License-Identifier: Apache-2.0
//
// Fits that a few wild rows do not decide, on relative error.
//
// Parameters: Levenberg-Marquardt on log(predicted / measured) under Huber's loss, in coordinates
// in which any value is allowed (logarithm of what is positive, log-odds of a share).  Each
// parameter is drawn to its typical value as if that had been observed once with the rows' own
// noise, so that one that the rows say nothing about stays there, and noise-free rows are matched.
// Residuals: values at the knots of a grid, least squares under the same loss, with neighbouring
// knots held together and all of them to zero, more weakly than one row holds them; so may be,
// along the first axis, the slope of a line to itself and to that of the next line.  Or, where it
// is known how alike the residuals of two shapes are, those of the knots that are then likeliest
// (Gaussian process regression).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cost_models/fitted.h"

namespace millwright {

enum class ParameterKind { kAboveZero, kShare };

struct FitParameter {
  ParameterKind kind = ParameterKind::kAboveZero;
  double typical = 1;
};

// `logs` of each row for parameter `values`.
using LogErrors = std::function<void(std::span<const double> values, std::span<double> logs)>;

// A value and its standard error for each parameter.
std::vector<Fitted> FitParameters(std::span<const FitParameter> parameters, std::size_t rows,
                                  const LogErrors& model);

struct ResidualRow {
  std::vector<double> at;
  double log = 0;  // measured / formula
};

struct GridTension {
  double neighbours = 0.1;  // between knots one apart, in rows
  double zero = 0.02;
  double curvature = 0;            // along the first axis
  std::vector<double> along{};     // of `neighbours`, by axis; empty: 1
  std::vector<double> parallel{};  // lines along the first axis to each other, by axis; empty: 0
};

// Fills in grid.values for the axes that are there.
void FitResiduals(ResidualGrid& grid, std::span<const ResidualRow> rows,
                  const GridTension& tension);

// Of the residuals at two points.
using Covariance = double (*)(std::span<const double> a, std::span<const double> b);

// `noise`: variance of a row.
void FitResiduals(ResidualGrid& grid, std::span<const ResidualRow> rows, Covariance covariance,
                  double noise);

}  // namespace millwright
