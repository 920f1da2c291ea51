// SPDX-License-Identifier: Apache-2.0
//
// No plan is left: what stands in the way?
//
// Filters are looked at knob by knob, then the plainest plan that they allow is checked as a whole
// (CheckPlan): its verdict is an example, and speaks of other plans only where they are like it.
#pragma once

#include <string>

#include "planner/job.h"
#include "planner/plan_filter.h"

namespace millwright {

// The first knob of which the filter and the question leave no value, in words: "tp 81 is more
// than the 8 GPUs", "--require tp=2 and --forbid tp=2 conflict: no tp is left".  Empty where each
// knob has one.
std::string ImpossibleKnob(const Job& job, const PlanFilter& filter);

// The plan with the least cutting that the filter allows knob by knob; it may not pass CheckPlan.
// Meaningful where ImpossibleKnob finds nothing.
ParallelConfig Plainest(const Job& job, const PlanFilter& filter);

// What stands in the way of every plan, or, for example, of the plainest.  Empty where that one
// can run.
std::string Obstacle(const Job& job, const PlanFilter& filter);

}  // namespace millwright
