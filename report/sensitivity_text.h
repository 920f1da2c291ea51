// SPDX-License-Identifier: Apache-2.0
//
// What a tenth more or less of each resource does to the best plan's step: a tornado table.
#pragma once

#include <string>

#include "planner/sensitivity.h"
#include "report/text.h"

namespace millwright {

std::string SensitivityText(const SensitivityAnswer& answer, const Style& style);

}  // namespace millwright
