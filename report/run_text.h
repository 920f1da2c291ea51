// SPDX-License-Identifier: Apache-2.0
//
// An executed run as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"
#include "report/text.h"
#include "runtime/verification.h"

namespace millwright {

// Ranks are processes that MPI joins, threads, or processes with a GPU each.
enum class RunBackend { kMpi, kThreads, kCuda };
std::string_view Name(RunBackend backend);  // "mpi"

// What the cost model says of one run of an operator, without what is hidden.
struct PredictedOperator {
  std::string name;
  Seconds forward, backward;
};

struct RunAnswer {
  Job job;
  RunOptions options;
  RunBackend backend = RunBackend::kMpi;
  RunOutcome outcome;
  std::vector<PredictedOperator> predicted;  // empty where it says nothing of this machine
  std::vector<std::string> warnings;
};

std::string RunText(const RunAnswer& answer, const Style& style);

}  // namespace millwright
