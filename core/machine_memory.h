// SPDX-License-Identifier: Apache-2.0
//
// How much memory does the machine have that this program runs on?
#pragma once

#include "core/units.h"

namespace millwright {

Bytes MachineMemory();

}  // namespace millwright
