// SPDX-License-Identifier: Apache-2.0
//
// The pipeline schedules that there are, a line each.
#pragma once

#include <string>

#include "report/text.h"

namespace millwright {

std::string SchedulesText(const Style& style);
std::string SchedulesJson();

}  // namespace millwright
