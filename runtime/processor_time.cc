// SPDX-License-Identifier: Apache-2.0
#include "runtime/processor_time.h"

#include <ctime>

#include "core/check.h"

namespace millwright {

Seconds ProcessorTime() {
  timespec time{};
  MILLWRIGHT_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return Seconds(double(time.tv_sec) + 1e-9 * double(time.tv_nsec));
}

}  // namespace millwright
