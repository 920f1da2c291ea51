// SPDX-License-Identifier: Apache-2.0
//
// A schedule file of any bytes either reads into a whole step that runs or is found to deadlock,
// and survives its own notation, or is refused with ConfigError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/config_io.h"
#include "sim/schedule_file.h"
#include "sim/schedule_timing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    const PipelineSchedule schedule = ReadSchedule("fuzz/schedule.json", text);
    if (!MistakesIn(schedule).empty()) std::abort();
    const ScheduleTiming timing = TimeSchedule(
        schedule, EvenCosts(schedule, {Seconds(1), Seconds(1), Seconds(1)}, Seconds(1)));
    for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
      if (timing.idle[r] < Seconds(0) || timing.span[r] > timing.makespan) std::abort();
    }
  } catch (const ConfigError& e) {
    // A message is lines of printable text of a bearable length.
    if (std::string_view(e.what()).size() > 200'000) std::abort();
  }
  return 0;
}
