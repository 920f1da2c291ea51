// SPDX-License-Identifier: Apache-2.0
//
// The answers as JSON, for programs: bytes, seconds, FLOPs and shares, unrounded.
//
// The same question gives the same bytes, but for `timing`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/answers.h"
#include "report/run_text.h"
#include "report/simulation.h"
#include "report/sweep_text.h"

namespace millwright {

std::string PlanAnswerJson(const PlanAnswer& answer);
std::string EstimateJson(const Job& job, const Estimate& estimate,
                         const std::vector<std::string>& warnings,
                         const std::optional<Exported>& exported = {});
// A plan that is rejected before it is costed.
std::string RejectedEstimateJson(const Job& job, const Rejection& rejection,
                                 const std::vector<std::string>& warnings);

std::string SweepJson(const SweepAnswer& answer);
std::string RunJson(const RunAnswer& answer);
std::string SimulationJson(const Job& job, const Simulation& simulation);
// `compare`: schedules of one job, and jobs.
std::string ScheduleComparisonJson(const Job& job, const Comparison& comparison);
std::string JobComparisonJson(const Comparison& comparison);

}  // namespace millwright
