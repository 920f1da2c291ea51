// SPDX-License-Identifier: Apache-2.0
//
// An executed step beside the simulated one: tables, and a trace of both for Perfetto.
#pragma once

#include <string>

#include "planner/job.h"
#include "planner/step_spec.h"
#include "report/file_writer.h"
#include "report/text.h"
#include "runtime/verification.h"
#include "validate/executed_step.h"

namespace millwright {

// "-12.3%" of predicted over measured less one, or that one of them is missing.
std::string ExecutedError(Seconds predicted, Seconds measured);
std::string ExecutedComparisonText(const ExecutedComparison& comparison, const Style& style);

// Two processes for each executed rank: "simulated rank r" and "executed rank r", with a thread
// for each stream.  Does not commit `out`.
void WriteExecutedTrace(const Job& job, const SimulatedStep& simulated,
                        const RecordedStep& executed, FileWriter& out);

}  // namespace millwright
