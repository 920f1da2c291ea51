// SPDX-License-Identifier: Apache-2.0
//
// A pipeline schedule and when its passes run: drawn for a terminal, and as JSON.
#pragma once

#include <string>
#include <string_view>

#include "sim/schedule.h"
#include "sim/schedule_timing.h"

namespace millwright {

// What all of a rank's layers cost, in any unit of time, and a transfer between ranks.
struct RankCosts {
  PassCosts passes{Seconds(1), Seconds(1), Seconds(1)};
  Seconds transfer{};
};

// "F=1,B=1,W=1,p2p=0": B is the gradient of the input, W that of the weights; what is left out
// costs 1, p2p 0.  "pair=2.5" is an overlapped forward and backward, by default the sum.
// ConfigError with every mistake, one a line.
RankCosts ParseScheduleCosts(std::string_view text);
std::string RankCostsText(const RankCosts& costs);  // "F=1,B=1,W=1,p2p=0"

// One line a rank, `width` columns at most:
//
//     rank 0 |F0-F1-         B0-B1-|
//
// A pass shows its letter (F, B for BW or B, W), its micro-batch where that fits, and '-' up to its
// end; small letters are the second chunk of a rank (every other one of more), or the reverse
// direction of DualPipe; '&' joins an overlapped pair.  Shorter passes than a column are drawn
// where one falls on it.
std::string ScheduleGantt(const PipelineSchedule& schedule, const ScheduleTiming& timing,
                          int width);
// What its letters mean, in a line.
std::string ScheduleLegend(const PipelineSchedule& schedule);

// Gantt, legend, makespan and a table of what each rank has idle and in flight.
std::string ScheduleText(const PipelineSchedule& schedule, const RankCosts& costs,
                         const ScheduleTiming& timing, int width);

// orders (sim/schedule_file.h), makespan, and for each rank idle, span and peak_in_flight; also
// what makes it a schedule file.
std::string ScheduleJson(const PipelineSchedule& schedule, const RankCosts& costs,
                         const ScheduleTiming& timing);

// All that `describe schedule` does: `schedule` is a name, as in "interleaved:4", or a file.
struct ScheduleQuestion {
  std::string schedule;
  ScheduleChoice sizes;  // kind is taken from `schedule`; 0 ranks or micro-batches: the file's
  std::string costs = "F=1,B=1,W=1,p2p=0";
  bool json = false;
  int width = 100;
};
std::string DescribeSchedule(const ScheduleQuestion& question);

}  // namespace millwright
