// SPDX-License-Identifier: Apache-2.0
//
// A step with every rank in it, as text: against the folded one, what contention cost, links, and
// the distribution over many steps.
#pragma once

#include <string>
#include <vector>

#include "planner/full_step.h"
#include "report/text.h"

namespace millwright {

// "Every rank: 1,024 tasks on 16 GPUs. The step is 0.3% longer than the folded simulation's 2.1 s."
std::string FullSentence(const FullReport& report);
// Of each cause whose collectives meet others on links: cause, how many, held up, worst, in all.
std::vector<std::vector<std::string>> ContentionRows(const FullReport& report);
std::string FullReportText(const FullReport& report, const Style& style);

}  // namespace millwright
