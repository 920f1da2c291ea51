// SPDX-License-Identifier: Apache-2.0
//
// Our own kernels: every Operation but matrix products.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/operation.h"

namespace millwright {

// Enqueues it; the error of the launch.
cudaError_t LaunchKernel(const Operation& operation, ElementType type, cudaStream_t stream);

}  // namespace millwright
