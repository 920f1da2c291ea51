// SPDX-License-Identifier: Apache-2.0
//
// When each task of a graph ran, and what was held: simulated, or executed.
#pragma once

#include <string>
#include <vector>

#include "core/units.h"
#include "sim/task_graph.h"

namespace millwright {

struct Timeline {
  std::vector<Seconds> start, end;  // of each task
  Seconds makespan;
  std::vector<Bytes> peak;        // of each rank: most that its tasks hold at once
  std::vector<TaskId> peak_task;  // of each rank: the task that reached it
  std::string deadlock;           // who waits for whom, where not all tasks could run
};

}  // namespace millwright
