// SPDX-License-Identifier: Apache-2.0
//
// How far the cost models are off measured operations, for people and for programs.
#pragma once

#include <string>

#include "report/text.h"
#include "validate/ops.h"

namespace millwright {

std::string OpsText(const OpsValidation& validation, const MeasurementSet& set, const Style& style);

// {"tables": {TABLE: {GROUP: {n, median_ape, p90_ape, bias, floor{}, worst[]}}}, "overall": {...},
//  "unsupported": [...], "flagged": [...]}; shares, seconds.
std::string OpsJson(const OpsValidation& validation, const MeasurementSet& set);

}  // namespace millwright
