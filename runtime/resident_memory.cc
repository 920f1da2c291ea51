// SPDX-License-Identifier: Apache-2.0
#include "runtime/resident_memory.h"

#include <sys/resource.h>

namespace millwright {

std::int64_t PeakResidentBytes() {
  constexpr std::int64_t kKibibyte = 1024;  // Linux counts in these
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return kKibibyte * usage.ru_maxrss;
}

}  // namespace millwright
