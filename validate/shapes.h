// SPDX-License-Identifier: Apache-2.0
//
// Measured operations as the curves take them: a shape, and which curve it belongs to.
#pragma once

#include <optional>
#include <string>

#include "cost_models/gpu_curves.h"
#include "validate/links.h"
#include "validate/measurement.h"

namespace millwright {

// Of a plain or a grouped GEMM; nullopt of anything else.
std::optional<GemmShape> GemmShapeOf(const MeasuredOperation& operation);
std::string StageOf(const MeasuredOperation& operation);  // of a grouped GEMM, else empty
bool IsGemmDtype(const std::string& dtype);               // as CurveDtype has it

// Of a forward or a backward pass; nullopt of decoding and anything else.
std::optional<AttentionShape> AttentionShapeOf(const MeasuredOperation& operation);
// The stack and kernel, and the pass where it is not the forward one.
std::string KernelOf(const Measurement& row);

// Of a collective of NCCL's kinds.  An integer sum is not the switches' (they add floats).
std::optional<CollectiveShape> CollectiveShapeOf(const Measurement& row, const GpuSpec& gpu);

}  // namespace millwright
