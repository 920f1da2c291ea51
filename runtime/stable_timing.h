// SPDX-License-Identifier: Apache-2.0
//
// How long does an operation take, and how often must it be repeated to know?
//
// After some calls that are not counted, it is repeated until the median of the later half is known
// well enough, or a cap is reached.  How well is the half-width of the 95% interval of a median,
// 1.57 x interquartile range / sqrt(n) (McGill, Tukey and Larsen, 1978: the notches of a box plot),
// which needs no distribution, and which a few preempted repeats do not move.  The first repeats
// are a time of their own: what a machine does before clocks and caches have settled.
#pragma once

#include <functional>
#include <vector>

#include "core/units.h"

namespace millwright {

struct TimingLimits {
  int warm_up = 1;
  int burst = 5;               // repeats that count as the first
  int least = 10, most = 200;  // repeats, while there is time
  Seconds longest{0.3};        // by the clock, once there are three repeats
  double precision = 0.02;     // of the median
};

struct Timing {
  Seconds burst;      // median of the first repeats
  Seconds sustained;  // median of the later half
  double spread = 0;  // interquartile range of the later half over its median
  int repeats = 0;
  bool settled = false;  // as precise as was asked for, before a cap
  bool operator==(const Timing&) const = default;
};

// Of values in any order, at a share of them: linear between the two nearest.
Seconds Quantile(std::vector<Seconds> values, double share);

// `repeat` does it once and says how long it took, `now` is a clock, `stop`, asked before each
// repeat, ends it early: no time at all where there was no repeat yet.
Timing TimeUntilStable(const TimingLimits& limits, const std::function<Seconds()>& repeat,
                       const std::function<Seconds()>& now, const std::function<bool()>& stop);

}  // namespace millwright
