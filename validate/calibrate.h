// SPDX-License-Identifier: Apache-2.0
//
// From measurements of one GPU to its curves.
//
// Rows are sorted into curves by what decides their time beside the shape: dtype and clocks of a
// GEMM, the kernel of an attention, operator and stack of a memory-bound one, library of a
// collective (validate/source_class).  Each curve is fitted as validate/robust_fit says, and again
// on four fifths of its shapes, five times, to state how far it is off the fifth that it has not
// seen.  What has too few rows, or none, comes from `base`, another GPU's curves, which are also
// what each fit starts from and is drawn to; where the base knows the shapes left out, the error
// that is stated for them is a low one.
// A GPU without a datasheet (local-cpu) has the best of its rows for one.
// Not fitted: decoding, and MoE layers fused for inference.
#pragma once

#include <string>
#include <vector>

#include "cost_models/gpu_curves.h"
#include "validate/measurement.h"
#include "validate/predict_operation.h"

namespace millwright {

// ConfigError where no row is of `gpu` or `gpu` is not known.  Without `leave_out`, the errors of
// shapes left out are not found, which takes five times as long as the rest.  `without_curve` is
// told of rows that are too few for a curve of their own.
GpuCurves Calibrate(const MeasurementSet& set, const std::string& gpu, const GpuCurves* base,
                    bool leave_out = true, std::vector<std::string>* without_curve = nullptr);

// Each row predicted by curves that were fitted to four fifths of the shapes, its own not among
// them on any GPU, and without a base.
std::vector<OperationPrediction> PredictLeftOut(const MeasurementSet& set);

}  // namespace millwright
