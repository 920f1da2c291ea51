// SPDX-License-Identifier: Apache-2.0
//
// How far off are the predictions, against steps that `run --compare --record` executed here?
//
// Each is predicted again: on CPUs by curves that are given, or by those that its job names; on
// GPUs as any plan is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "validate/executed_run.h"
#include "validate/runs.h"

namespace millwright {

struct ExecutedRunResult {
  std::string file;
  ExecutedRun run;
  ExecutedComparison comparison;
  double error() const { return comparison.error(); }  // predicted / measured - 1
  // The same of the time for which a rank had a processor; not on GPUs.
  bool has_processor() const { return comparison.processor.value > 0; }
  double error_of_processor() const { return comparison.predicted / comparison.processor - 1; }
};

// One operator and pass over all runs, all their ranks.
struct OperatorOverRuns {
  std::string name;
  bool backward = false;
  std::int64_t runs = 0, calls = 0;
  Seconds predicted, measured, processor;
};

struct ExecutedRunsReport {
  std::vector<ExecutedRunResult> results;  // as the files were given
  ErrorSummary steps, of_processor;
  std::vector<OperatorOverRuns> operators;  // the furthest off first, by seconds
  std::vector<std::string> warnings;
};

// ConfigError with the mistakes of all files.
ExecutedRunsReport CompareWithExecuted(std::span<const std::string> files,
                                       const std::optional<std::string>& calibration);
// The statistics of results that are there.
void Summarise(ExecutedRunsReport& report);

}  // namespace millwright
