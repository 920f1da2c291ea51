// SPDX-License-Identifier: Apache-2.0
//
// A simulated step as a trace for Perfetto or chrome://tracing (the JSON "trace event" format).
//
// A process is a pipeline rank, which stands for all ranks that do the same; its threads are the
// passes of the schedule and the rank's streams.  A counter holds what the rank's memory has in
// use, without the allocator's slack.  Times are in microseconds, to the nanosecond; tasks that
// take no time (a receive, which waits for its send) are left out.
#pragma once

#include <functional>
#include <vector>

#include "report/file_writer.h"
#include "report/simulation.h"

namespace millwright {

struct TraceOptions {
  std::vector<int> ranks;  // ascending; empty: all
  std::function<void(double share_done)> progress;
};

// Does not commit `out`.
void WriteTrace(const Job& job, const Simulation& simulation, const TraceOptions& options,
                FileWriter& out);

}  // namespace millwright
