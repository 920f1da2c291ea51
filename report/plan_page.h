// SPDX-License-Identifier: Apache-2.0
//
// `plan --html`: the answer as a page to look at: plans to sort and filter, time against memory,
// where each plan loses time to a perfect machine, what its stages hold, and the best plan's step.
#pragma once

#include <optional>
#include <string>

#include "planner/step_spec.h"
#include "report/answers.h"
#include "report/file_writer.h"

namespace millwright {

// `best`: the first plan's step, where it is to be drawn.  `command` gives the same answer again.
// Does not commit `out`.
void WritePlanPage(const PlanAnswer& answer, const std::optional<SimulatedStep>& best,
                   const std::string& command, FileWriter& out);

}  // namespace millwright
