// SPDX-License-Identifier: Apache-2.0
//
// Which tasks are which pass's, and when did each pass of the schedule run in a simulated step?
//
// A pass is many tasks of the graph, which do not name it.  Those of a micro-batch on a stage come
// in the order of its passes on each stream, and the step's spec says how many each has there; a
// pass runs from the start of its first on the compute stream to the end of its last.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/step_spec.h"
#include "sim/schedule_timing.h"

namespace millwright {

// Of each task, its pass's index in the order of its rank.  Transfers between stages, the
// collectives of data parallelism and the optimizer are of no pass.
inline constexpr std::uint32_t kNoPass = ~std::uint32_t{0};
std::vector<std::uint32_t> PassOfEachTask(const SimulatedStep& step);

// As the orders of `step.spec.schedule`; a pair that runs together has one span.
std::vector<std::vector<PassSpan>> PassSpansOf(const SimulatedStep& step);

}  // namespace millwright
