// SPDX-License-Identifier: Apache-2.0
//
// `--require` and `--forbid`: any text is taken or refused with a message, and what is taken can be
// asked.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "planner/plan_filter.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  millwright::PlanFilter filter;
  try {
    filter.Require(text);
    filter.Forbid(text);
  } catch (const millwright::ConfigError&) {
  }
  (void)filter.Allows(millwright::ParallelConfig{});
  return 0;
}
