// SPDX-License-Identifier: Apache-2.0
//
// `millwright validate --runs` as text and as JSON.
#pragma once

#include <string>

#include "report/text.h"
#include "validate/fit_end_to_end.h"
#include "validate/runs.h"

namespace millwright {

std::string RunsText(const RunsReport& report, const Style& style);
// {"overall": {...}, "groups": {prefix: {"n","median_ape","p90_ape","bias"}}, "rows": [...],
// "unsupported": [...]}; errors are shares, 0.05 for 5%.
std::string RunsJson(const RunsReport& report);

// `--cross-validate`: the parameters that the runs imply, and how well they predict what was held
// out.
std::string CrossValidationText(const CrossValidation& cross, const Style& style);
std::string CrossValidationJson(const RunsReport& report, const CrossValidation& cross);

}  // namespace millwright
