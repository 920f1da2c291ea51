// SPDX-License-Identifier: Apache-2.0
//
// What a calibration holds, for people: each curve, its rows and how far it is off.
#pragma once

#include <string>
#include <vector>

#include "cost_models/gpu_curves.h"
#include "report/text.h"
#include "validate/measurement.h"

namespace millwright {

// What the user's own steps moved; `left_out` says of how many runs of the file why.
std::string OwnEndToEndText(const GpuCurves& curves, const std::vector<std::string>& left_out,
                            const std::string& file, const Style& style);

std::string CalibrationText(const GpuCurves& curves, const MeasurementSet& set,
                            const std::string& file, const Style& style);

}  // namespace millwright
