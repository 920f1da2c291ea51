// SPDX-License-Identifier: Apache-2.0
//
// What do the cost models say that a measured operation takes?
//
// The same functions that price a layer, given the shape of one row.
#pragma once

#include <string>

#include "cost_models/calibration.h"
#include "validate/measurement.h"

namespace millwright {

struct OperationPrediction {
  Seconds time;
  std::string unsupported;  // why there is no prediction; empty: there is one
};

OperationPrediction PredictOperation(const Measurement& row);

}  // namespace millwright
