// SPDX-License-Identifier: Apache-2.0
//
// When does each pass of a pipeline schedule run, if each takes as long as its stage's cost says?
//
// Each rank works its order off strictly; a pass starts when the rank is free and its inputs are
// there: F(s, i) after F(s-1, i), a backward pass after that of stage s+1 and F(s, i), W(s, i)
// after B(s, i); an input from another rank arrives `transfer` after it is made.  Start times are
// then the longest paths of a graph without choices, found by one walk over the orders: no event
// queue, and exact up to rounding.
//
// Limits: transfers take no time from either rank and do not queue behind each other; costs do not
// depend on the micro-batch.  The simulation of a task graph has neither limit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "sim/schedule.h"

namespace millwright {

// Of one stage.  BW takes backward_input + backward_weight.
struct PassCosts {
  Seconds forward{};
  Seconds backward_input{};
  Seconds backward_weight{};
  // F of this stage overlapped with the BW of another stage of its rank; by default the sum.
  std::optional<Seconds> overlapped{};
  // Of that sum what such a pair takes, where no time of its own is given.
  double pair_share = 1;
};

struct ScheduleCosts {
  // Of each stage, of each stage of one direction, or one entry for all of them.
  std::vector<PassCosts> stages;
  Seconds transfer{};
  // Added to the first stage of a direction (embedding) and to the last (head and loss), also where
  // a pair's own time is given: this work does not overlap.
  PassCosts first{};
  PassCosts last{};
};

// Equal stages: `rank` is what all the layers of a rank cost, divided among its chunks.
ScheduleCosts EvenCosts(const PipelineSchedule& schedule, const PassCosts& rank, Seconds transfer);

struct PassSpan {
  Seconds start, end;  // of an overlapped pass: of the pair
};

struct ScheduleTiming {
  Seconds makespan;
  std::vector<Seconds> idle;  // of each rank: makespan less its work
  std::vector<Seconds> span;  // of each rank: from its first start to its last end
  // Micro-batch chunks in flight at most on each rank, from the start of F to the end of W or BW,
  // and to the end of B or BW.  Forward only: to the end of F.
  std::vector<int> in_flight_until_w;
  std::vector<int> in_flight_until_b;
  std::vector<std::vector<PassSpan>> passes;  // as the orders; empty if not asked for
};

enum class PassTimes { kLeaveOut, kKeep };

// Needs a schedule without MistakesIn, as the built-in ones are.  Orders in which ranks wait for
// each other without end are reported with the chain of who waits for whom: as ConfigError if the
// schedule is from a file, else as InternalError.
ScheduleTiming TimeSchedule(const PipelineSchedule& schedule, const ScheduleCosts& costs,
                            PassTimes pass_times = PassTimes::kKeep);

}  // namespace millwright
