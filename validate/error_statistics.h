// SPDX-License-Identifier: Apache-2.0
//
// How far predictions are off, in one line.
//
// The error of a row is predicted / measured - 1.  APE is its absolute value; `bias` the median
// error with its sign, so that a few wild rows do not decide it.
#pragma once

#include <vector>

namespace millwright {

struct ErrorStatistics {
  int n = 0;
  double median_ape = 0, p90_ape = 0, bias = 0;  // shares: 0.05 is 5%
};

// Of `errors`, each predicted / measured - 1.
ErrorStatistics StatisticsOf(std::vector<double> errors);

// The smallest value that at least `share` of the values do not exceed; 0 where there are none.
double Quantile(std::vector<double> values, double share);

}  // namespace millwright
