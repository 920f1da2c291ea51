// SPDX-License-Identifier: Apache-2.0
//
// `millwright validate --executed` as text and as JSON.
#pragma once

#include <string>

#include "report/text.h"
#include "validate/executed_runs.h"

namespace millwright {

std::string ExecutedRunsText(const ExecutedRunsReport& report, const Style& style);
// {"overall": {"n","median_ape","p90_ape","bias"}, "of_processor": {...}, "operators": [...],
// "rows": [...]}; errors are shares, 0.05 for 5%.
std::string ExecutedRunsJson(const ExecutedRunsReport& report);

}  // namespace millwright
