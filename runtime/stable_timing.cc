// SPDX-License-Identifier: Apache-2.0
#include "runtime/stable_timing.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace millwright {
namespace {

constexpr double kNotch = 1.57;  // McGill, Tukey and Larsen (1978), section 7
constexpr int kFewest = 3;       // repeats that a median and a range need

Timing Summary(const std::vector<Seconds>& times, const TimingLimits& limits) {
  const auto burst = std::min<std::ptrdiff_t>(limits.burst, std::ptrdiff_t(times.size()));
  const std::vector<Seconds> first(times.begin(), times.begin() + burst);
  const std::vector<Seconds> later(times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  Timing timing{.burst = Quantile(first, 0.5),
                .sustained = Quantile(later, 0.5),
                .repeats = int(times.size())};
  const Seconds range = Quantile(later, 0.75) - Quantile(later, 0.25);
  if (timing.sustained.value > 0) timing.spread = range / timing.sustained;
  timing.settled = timing.repeats >= limits.least &&
                   kNotch * timing.spread / std::sqrt(double(later.size())) <= limits.precision;
  return timing;
}

}  // namespace

Seconds Quantile(std::vector<Seconds> values, double share) {
  MILLWRIGHT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double at = share * double(values.size() - 1);
  const auto below = std::size_t(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - double(below)) * (values[above] - values[below]);
}

Timing TimeUntilStable(const TimingLimits& limits, const std::function<Seconds()>& repeat,
                       const std::function<Seconds()>& now, const std::function<bool()>& stop) {
  const Seconds start = now();
  for (int i = 0; i < limits.warm_up && !stop(); ++i) repeat();
  std::vector<Seconds> times;
  Timing timing;
  while (int(times.size()) < limits.most && !stop()) {
    times.push_back(repeat());
    timing = Summary(times, limits);
    if (timing.settled || (timing.repeats >= kFewest && now() - start >= limits.longest)) break;
  }
  return timing;
}

}  // namespace millwright
