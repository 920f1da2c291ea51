// SPDX-License-Identifier: Apache-2.0
#include "core/machine_memory.h"

#include <unistd.h>

namespace millwright {

Bytes MachineMemory() {
  return Bytes(double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)));
}

}  // namespace millwright
