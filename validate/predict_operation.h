// SPDX-License-Identifier: Apache-2.0
//
// What do the cost models say that a measured operation takes?
//
// The curve that belongs to its source, or where there is none the functions that price a layer.
#pragma once

#include <string>
#include <vector>

#include "cost_models/gpu_curves.h"
#include "validate/measurement.h"

namespace millwright {

struct OperationPrediction {
  Seconds time;
  std::string unsupported;  // why there is no prediction; empty: there is one
};

// By `curves` where they are of the row's GPU, else by those built in.
OperationPrediction PredictOperation(const Measurement& row, const GpuCurves* curves = nullptr);

std::vector<OperationPrediction> PredictOperations(const MeasurementSet& set,
                                                   const GpuCurves* curves = nullptr);

}  // namespace millwright
