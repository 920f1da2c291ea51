// SPDX-License-Identifier: Apache-2.0
//
// A task graph in, a timeline out.
//
// Where no link is shared by two collectives, nothing that happens later changes when a task ends:
// a task's end is the latest of its stream's last end and of all it waits for, plus its duration.
// So no event queue is needed; streams are worked off in turn, each until it meets a task that
// waits for something that has not been worked out yet.  Linear in tasks and waits.
//
// A graph in which streams wait for each other in a circle is an InternalError, or, for a graph
// made of what a user gave, a ConfigError by the caller's choice: FindDeadlock says who waits for
// whom.
#pragma once

#include <array>

#include "core/units.h"
#include "sim/task_graph.h"
#include "sim/timeline.h"

namespace millwright {

Timeline Simulate(const TaskGraph& graph);

// Sets the peaks of a timeline that has starts and ends.
void FindPeaks(const TaskGraph& graph, Timeline& timeline);

// Where a rank's time went: what its compute stream ran, and what it waited for, by the cause of
// the task that it waited for last.  Adds up to the makespan.
struct RankTime {
  std::array<Seconds, kCauses> busy{};
  std::array<Seconds, kCauses> waiting{};
  Seconds idle;  // after its last task, and before its first where that waits for nothing
  Seconds total() const;
  Seconds total_busy() const;
};
RankTime TimeOfRank(const TaskGraph& graph, const Timeline& timeline, int rank);

}  // namespace millwright
