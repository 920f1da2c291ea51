// SPDX-License-Identifier: Apache-2.0
//
// How long has a processor worked for this thread?  Where other programs compete for the processors
// that is less than has gone by, and about what would have gone by without them.
#pragma once

#include "core/units.h"

namespace millwright {

Seconds ProcessorTime();

}  // namespace millwright
