// SPDX-License-Identifier: Apache-2.0
//
// /proc/cpuinfo: whatever it holds, what is made of it fits into a cell of a table.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "runtime/host_machine.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const millwright::HostMachine machine =
      millwright::ParseCpuInfo({reinterpret_cast<const char*>(data), size});
  for (char c : machine.Text()) MILLWRIGHT_CHECK(c >= ' ' && c <= '~' && c != '"');
  return 0;
}
