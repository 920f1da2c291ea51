// SPDX-License-Identifier: Apache-2.0
//
// The pages of `simulate` and `compare`: a step to look at, or several on one scale.
//
// A page keeps at most PictureLimits of bars and tasks, and says what it merged to stay below;
// a comparison draws the timelines of its fastest rows, passes only.
#pragma once

#include <string>
#include <vector>

#include "report/file_writer.h"
#include "report/simulation.h"

namespace millwright {

// How busy a link, or a class of links, was over the step.
struct LinkLoad {
  std::string name;
  double utilisation = 0;  // share of its capacity, on average over the step
  Bytes bytes;             // that it carried
};

// What only some simulations know; what is empty has no place on the page.
struct StepPageSections {
  std::vector<LinkLoad> links;
  std::vector<Seconds> steps;  // of repeated runs, in their order
};

// Neither commits `out`.
void WriteStepPage(const Job& job, const Simulation& simulation, const StepPageSections& sections,
                   FileWriter& out);
// `job`: the one whose schedules are compared; null where jobs are.
void WriteComparisonPage(const Job* job, const Comparison& comparison, FileWriter& out);

// What a row of a comparison keeps of its step to be drawn, one of `rows`.
PictureLimits LimitsOfRow(std::size_t rows);

}  // namespace millwright
