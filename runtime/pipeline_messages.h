// SPDX-License-Identifier: Apache-2.0
//
// Which messages the passes of a pipeline schedule send each other, and in which order: the same
// answer on the rank that sends and on the one that receives.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sim/schedule.h"

namespace millwright {

// From or to a pipeline rank, which may be the pass's own.
struct PipelineMessage {
  int peer = 0;
  int tag = 0;  // positive, of this message alone
};
// What a pass waits for, and what it sends at its end.
std::optional<PipelineMessage> AwaitedBy(const PipelineSchedule& schedule, const Pass& pass);
std::optional<PipelineMessage> SentBy(const PipelineSchedule& schedule, const Pass& pass);

// What the passes of a pipeline rank send to another, in its order.
std::vector<int> TagsBetween(const PipelineSchedule& schedule, int from, int to);

// DualPipe: the pipeline rank that has the same layers for the other direction.
int TwinOf(const PipelineSchedule& schedule, int stage);
// A tied head: the pipeline ranks of the first and the last stage, where one has not both.
std::optional<std::pair<int, int>> TiedEnds(const PipelineSchedule& schedule);
// Of gradients between such ranks: above the tags of all passes.
int GradientsTag(const PipelineSchedule& schedule);

// Pairs of pipeline ranks of which the first ever sends to the second.
std::set<std::pair<int, int>> PipelineEdges(const PipelineSchedule& schedule, bool tied_head);

}  // namespace millwright
