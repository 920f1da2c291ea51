// SPDX-License-Identifier: Apache-2.0
//
// An executed run as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"
#include "report/text.h"
#include "runtime/verification.h"
#include "validate/executed_step.h"

namespace millwright {

struct RunAnswer {
  Job job;
  RunOptions options;
  RunBackend backend = RunBackend::kMpi;
  RunOutcome outcome;
  std::vector<std::string> warnings;
  std::optional<ExecutedComparison> compared{};  // with the simulated step
};

std::string RunText(const RunAnswer& answer, const Style& style);

}  // namespace millwright
