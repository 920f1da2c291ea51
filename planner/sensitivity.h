// SPDX-License-Identifier: Apache-2.0
//
// What would a tenth more of each resource buy, and what another option of the training?
//
// Each of memory, memory bandwidth, FLOP/s, NVLink and NIC bandwidth is made a tenth larger and a
// tenth smaller, and the best plan is searched again, which may be another one: a tornado.  By the
// estimate, not simulated, so that changes of a fraction of a percent are not lost in the
// difference between the two.
//
// Options: every overlap that is off, narrower precisions that the GPU has, smaller state and
// activations, twice the global batch.  What an option does to the loss is not looked at.
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

struct OptionSensitivity {
  std::string flag;                // "--precision fp8"
  std::optional<RankedPlan> best;  // with it; empty: none fits
  double batch = 1;                // global batch over that of the question
};

struct SensitivityAnswer {
  RankedPlan now;
  std::vector<Sensitivity> resources;      // by what more of them saves, then by name
  std::vector<OptionSensitivity> options;  // by what they save of a token's time

  // Of a token, as a share: -0.1 is a tenth less.
  double Change(const OptionSensitivity& option) const {
    return option.best ? option.best->step / now.step / option.batch - 1 : 0;
  }
};

// Empty where nothing fits as it is.  `progress` is called with the name of what is changed.
std::optional<SensitivityAnswer> FindSensitivity(
    const Job& job, const SearchOptions& options,
    const std::function<void(const std::string&)>& progress = {});

}  // namespace millwright
