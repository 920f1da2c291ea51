// SPDX-License-Identifier: Apache-2.0
//
// Every Operation in host memory, in T, which all but indices are: double or float, also for sums.
#pragma once

#include "runtime/operation.h"

namespace millwright {

template <class T>
void ComputeOnCpu(const Operation& operation);

}  // namespace millwright
