// SPDX-License-Identifier: Apache-2.0
//
// The pages of `simulate` and `compare`: a step to look at, or several on one scale.
//
// A page keeps at most PictureLimits of bars and tasks, and says what it merged to stay below;
// a comparison draws the timelines of its fastest rows, passes only.
#pragma once

#include <cstddef>
#include <string>

#include "report/file_writer.h"
#include "report/simulation.h"

namespace millwright {

// Neither commits `out`.  With every rank simulated, links and step times have their places.
void WriteStepPage(const Job& job, const Simulation& simulation, FileWriter& out);
// `job`: the one whose schedules are compared; null where jobs are.
void WriteComparisonPage(const Job* job, const Comparison& comparison, FileWriter& out);

// A step's timeline as the scripts read it: {"paints", "streams", "step"}, as JSON.
std::string TimelineJson(const SimulatedStep& step);

// What a row of a comparison keeps of its step to be drawn, one of `rows`.
PictureLimits LimitsOfRow(std::size_t rows);

}  // namespace millwright
