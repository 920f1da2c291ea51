// SPDX-License-Identifier: Apache-2.0
//
// What would a tenth more of each resource buy?
//
// Each of memory, memory bandwidth, FLOP/s, NVLink and NIC bandwidth is made a tenth larger and a
// tenth smaller, and the best plan is searched again, which may be another one: a tornado.  By the
// estimate, not simulated, so that changes of a fraction of a percent are not lost in the
// difference between the two.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"
#include "planner/search.h"

namespace millwright {

inline constexpr double kSensitivityStep = 0.1;

struct Sensitivity {
  std::string name;   // as --what-if has it: "hbm"
  std::string value;  // now, "81559 MiB"
  std::optional<RankedPlan> more,
      less;  // the best plans with more and less of it; empty: none fits
};

struct SensitivityAnswer {
  RankedPlan now;
  std::vector<Sensitivity> resources;  // by what more of them saves, then by name
};

// Empty where nothing fits as it is.  `progress` is called with each resource's name.
std::optional<SensitivityAnswer> FindSensitivity(
    const Job& job, const SearchOptions& options,
    const std::function<void(const std::string&)>& progress = {});

}  // namespace millwright
