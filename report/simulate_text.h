// SPDX-License-Identifier: Apache-2.0
//
// Simulated steps as text: one, rank by rank, or several beside each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/feasibility.h"
#include "planner/job.h"
#include "report/simulation.h"
#include "report/text.h"

namespace millwright {

// "Simulated step 59.6 s under interleaved:10, ...", or what does not fit.
std::string SimulationSentence(const Simulation& simulation, const GpuSpec& gpu);
// Where each pipeline rank's time goes; ranks that agree are one row, and of many rows those that
// say most are shown.
std::string RankTable(const Simulation& simulation, const Style& style);
// The passes of every rank over time, or a note where there are too many to be told apart; empty
// without a pipeline.
std::string SimulatedGantt(const Simulation& simulation, const Style& style);

// `millwright simulate`.
std::string SimulationText(const Job& job, const Simulation& simulation, const Style& style);

// A plan that is rejected before it is simulated.
std::string CannotRunText(const Job& job, const Rejection& rejection, const Style& style);

// A comparison's rows as they are shown; what cannot be simulated has its reason elsewhere.
struct ComparisonTable {
  std::vector<std::string> titles;  // the first column is left-aligned
  std::vector<std::vector<std::string>> rows;
};
ComparisonTable ScheduleTable(const Comparison& comparison);
ComparisonTable JobTable(const Comparison& comparison);
// "Fastest schedule that fits is zb-h1: ..."; `noun` is what is compared.
std::string BestSentence(const Comparison& comparison, std::string_view noun);

// `millwright compare`: schedules of one job, and jobs.
std::string ScheduleComparisonText(const Job& job, const Comparison& comparison,
                                   const Style& style);
std::string JobComparisonText(const Comparison& comparison, const Style& style);

}  // namespace millwright
