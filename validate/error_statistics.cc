// SPDX-License-Identifier: Apache-2.0
#include "validate/error_statistics.h"

#include <algorithm>
#include <cmath>

namespace millwright {

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * double(values.size()));
  const std::size_t index = std::min(values.size(), std::size_t(std::max(1.0, rank))) - 1;
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(index), values.end());
  return values[index];
}

ErrorStatistics StatisticsOf(std::vector<double> errors) {
  ErrorStatistics s{.n = static_cast<int>(errors.size())};
  s.bias = Quantile(errors, 0.5);
  for (double& e : errors) e = std::abs(e);
  s.median_ape = Quantile(errors, 0.5);
  s.p90_ape = Quantile(std::move(errors), 0.9);
  return s;
}

}  // namespace millwright
