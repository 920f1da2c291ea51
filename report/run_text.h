// SPDX-License-Identifier: Apache-2.0
//
// An executed run as text.
#pragma once

#include <string>
#include <vector>

#include "planner/job.h"
#include "report/text.h"
#include "runtime/verification.h"

namespace millwright {

enum class RunBackend { kMpi, kThreads };

struct RunAnswer {
  Job job;
  RunOptions options;
  RunBackend backend = RunBackend::kMpi;
  RunOutcome outcome;
  std::vector<std::string> warnings;
};

std::string RunText(const RunAnswer& answer, const Style& style);

}  // namespace millwright
