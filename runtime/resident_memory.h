// SPDX-License-Identifier: Apache-2.0
//
// How much memory has this process had at once?
#pragma once

#include <cstdint>

namespace millwright {

// Bytes of its pages that were in memory at once, at most so far (getrusage(2), ru_maxrss); 0 where
// the system does not say.
std::int64_t PeakResidentBytes();

}  // namespace millwright
