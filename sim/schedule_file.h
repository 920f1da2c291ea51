// SPDX-License-Identifier: Apache-2.0
//
// Schedules as text: the notation of an order, and a file with one's own schedule.
//
//     F3.4           forward of micro-batch 3 on stage 4 (counted from 0)
//     B3.4, W3.4     its backward pass for the input's gradient, and for the weights'
//     BW3.4          both in one
//     [F7.0&BW3.7]   a forward and a backward pass that run together
//
// A file is a JSON object with the keys
//
//     orders              for each rank its passes, divided by blanks (required)
//     schedule            its name
//     p, m                ranks, micro-batches (of all directions)
//     virtual_stages      stages in all
//     rank_of_stage       the rank that each stage lies on
//     chunk_cost_divisor  chunks that a rank's layers are divided into
//     directions          2 where the second half of the stages is a second copy of the model
//
// What is left out follows from the orders.  The results that `describe schedule --json` adds
// (and `cases`, timings for several costs) may be there and are not read, so that its answer is a
// schedule file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/schedule.h"

namespace millwright {

std::string PassText(const Pass& pass);
std::string OrderText(std::span<const Pass> order);

// Why `schedule` is not a whole step: a pass that is missing, stands twice, on a rank that does not
// hold its stage or outside the stages and micro-batches.  At most `most` of them; empty: each
// micro-batch has F and either BW or B and W (or F alone, if forward_only) on each stage once.
struct ScheduleMistake {
  int rank = 0;
  std::string what;
};
std::vector<ScheduleMistake> MistakesIn(const PipelineSchedule& schedule, std::size_t most = 100);

// `text` is the contents of `file`.  ConfigError with every mistake.  A schedule that deadlocks is
// read; TimeSchedule finds it.
PipelineSchedule ReadSchedule(const std::string& file, std::string_view text);

// Whether `name` is a file's: it has a '/' or ends in ".json".
bool NamesScheduleFile(std::string_view name);

// ConfigError where a schedule from a file has other numbers of ranks or micro-batches; 0: any.
void CheckSizes(const PipelineSchedule& schedule, int pipeline, int micro_batches);

// A built-in schedule, or the file that `name` names.  Of `sizes` a file takes
// none, but pipeline and micro_batches must agree with it unless they are 0.
PipelineSchedule LoadSchedule(const std::string& name, const ScheduleChoice& sizes);

}  // namespace millwright
