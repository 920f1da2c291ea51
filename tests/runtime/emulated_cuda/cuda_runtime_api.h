// SPDX-License-Identifier: Apache-2.0
//
// See cuda_runtime.h beside it.
#pragma once

#include "tests/runtime/emulated_cuda/cuda_runtime.h"
