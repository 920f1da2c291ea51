// SPDX-License-Identifier: Apache-2.0
//
// Which options of the training step are the answer, and what the best plan of each combination
// takes: a sentence and a table.
#pragma once

#include <string>

#include "planner/training_options.h"
#include "report/text.h"

namespace millwright {

std::string OptionsSentence(const OptionsAnswer& answer, Objective objective);
std::string OptionsText(const OptionsAnswer& answer, Objective objective, const Style& style);

}  // namespace millwright
