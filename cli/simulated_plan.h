// SPDX-License-Identifier: Apache-2.0
//
// A plan under a schedule, simulated: what `simulate` does once and `compare` often.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "planner/feasibility.h"
#include "planner/job.h"
#include "report/simulation.h"
#include "sim/schedule.h"

namespace millwright {

// A schedule by name, as in "interleaved:4", or by its file.  ConfigError for one that does not
// exist, or has no backward pass, or a file in which ranks wait for each other without end.
struct ScheduleAsked {
  std::string text;
  ScheduleKind kind = ScheduleKind::k1F1B;
  std::optional<int> chunks;  // of a rank; left open: those of the plan
  std::optional<PipelineSchedule> file{};
};
ScheduleAsked ParseScheduleAsked(std::string_view text);

// Whether the plan can run at all, whatever its schedule.
Verdict CheckWithoutSchedule(const Job& job);

// Simulates `job.parallel` on `estimator`, which is of that job: under its own schedule, or under
// the one asked for, with its chunks or else those of the plan.  A plan that cannot run is a
// Rejection; ConfigError where the schedule needs what the plan does not give, or the graph would
// not go into memory.
std::variant<Simulation, Rejection> SimulatePlan(const Job& job, const Estimator& estimator,
                                                 const std::optional<ScheduleAsked>& asked);

}  // namespace millwright
