// SPDX-License-Identifier: Apache-2.0
//
// `millwright validate --runs FILE --against-best` as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "report/text.h"
#include "validate/chosen_layouts.h"

namespace millwright {

// A sentence, and lines on each of the layouts that are more than kWorthAReason slower than the
// best, each with what makes the difference.
std::string ChosenText(const RunSet& runs, const std::vector<ChosenLayout>& layouts,
                       const Style& style);
// {"questions", "median_slower", "rows": [{"id", "layouts", "chosen", "chosen_step_s", "best",
// "best_step_s", "slower", "why"}]}, all rows.
std::string ChosenJson(const RunSet& runs, const std::vector<ChosenLayout>& layouts);

}  // namespace millwright
