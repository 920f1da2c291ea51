// SPDX-License-Identifier: Apache-2.0
//
// When did each pass of the schedule run in a simulated step?
//
// A pass is many tasks of the graph, which do not name it.  Those of a micro-batch on a stage come
// in the order of its passes, and the step's spec says how many each has on the compute stream; a
// pass runs from the start of its first to the end of its last.
#pragma once

#include <vector>

#include "planner/step_spec.h"
#include "sim/schedule_timing.h"

namespace millwright {

// As the orders of `step.spec.schedule`; a pair that runs together has one span.
std::vector<std::vector<PassSpan>> PassSpansOf(const SimulatedStep& step);

}  // namespace millwright
