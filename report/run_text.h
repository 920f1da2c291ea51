// SPDX-License-Identifier: Apache-2.0
//
// An executed run as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"
#include "report/text.h"
#include "runtime/verification.h"
#include "validate/executed_step.h"

namespace millwright {

// Ranks are processes that MPI joins, threads, or processes with a GPU each.
enum class RunBackend { kMpi, kThreads, kCuda };
std::string_view Name(RunBackend backend);  // "mpi"

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
