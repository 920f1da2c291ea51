// SPDX-License-Identifier: Apache-2.0
#include "runtime/pipeline_messages.h"

#include <cstddef>

namespace millwright {
namespace {

int Tag(const PipelineSchedule& s, bool forward, const Pass& pass, int to_stage) {
  return 1 + ((forward ? 0 : s.stages()) + to_stage) * s.micro_batches + pass.micro_batch;
}

}  // namespace

std::optional<PipelineMessage> AwaitedBy(const PipelineSchedule& schedule, const Pass& pass) {
  const bool forward = pass.kind == PassKind::kForward;
  if (pass.kind == PassKind::kBackwardWeight) return std::nullopt;
  if (forward ? schedule.first_of_direction(pass.stage) : schedule.last_of_direction(pass.stage)) {
    return std::nullopt;
  }
  const int from = forward ? pass.stage - 1 : pass.stage + 1;
  return PipelineMessage{.peer = schedule.rank_of_stage[std::size_t(from)],
                         .tag = Tag(schedule, forward, pass, pass.stage)};
}

std::optional<PipelineMessage> SentBy(const PipelineSchedule& schedule, const Pass& pass) {
  const bool forward = pass.kind == PassKind::kForward;
  if (pass.kind == PassKind::kBackwardWeight) return std::nullopt;
  if (forward ? schedule.last_of_direction(pass.stage) : schedule.first_of_direction(pass.stage)) {
    return std::nullopt;
  }
  const int to = forward ? pass.stage + 1 : pass.stage - 1;
  return PipelineMessage{.peer = schedule.rank_of_stage[std::size_t(to)],
                         .tag = Tag(schedule, forward, pass, to)};
}

std::vector<int> TagsBetween(const PipelineSchedule& schedule, int from, int to) {
  std::vector<int> tags;
  for (const Pass& pass : schedule.orders[std::size_t(from)]) {
    const std::optional<PipelineMessage> message = SentBy(schedule, pass);
    if (message && message->peer == to) tags.push_back(message->tag);
  }
  return tags;
}

int TwinOf(const PipelineSchedule& schedule, int stage) {
  return schedule
      .rank_of_stage[std::size_t((stage + schedule.stages_per_direction()) % schedule.stages())];
}

std::optional<std::pair<int, int>> TiedEnds(const PipelineSchedule& schedule) {
  const int first = schedule.rank_of_stage.front(), last = schedule.rank_of_stage.back();
  // Of two directions each begins where the other ends.
  if (schedule.directions == 2 || first == last) return std::nullopt;
  return std::pair(first, last);
}

int GradientsTag(const PipelineSchedule& schedule) {
  return 1 + 2 * schedule.stages() * schedule.micro_batches;
}

std::set<std::pair<int, int>> PipelineEdges(const PipelineSchedule& schedule, bool tied_head) {
  std::set<std::pair<int, int>> edges;
  for (int from = 0; from < schedule.pipeline; ++from) {
    for (const Pass& pass : schedule.orders[std::size_t(from)]) {
      const std::optional<PipelineMessage> message = SentBy(schedule, pass);
      if (message && message->peer != from) edges.emplace(from, message->peer);
    }
  }
  if (schedule.directions == 2) {
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      const int rank = schedule.rank_of_stage[std::size_t(stage)];
      if (rank != TwinOf(schedule, stage)) edges.emplace(rank, TwinOf(schedule, stage));
    }
  }
  if (const auto ends = TiedEnds(schedule); ends && tied_head) {
    edges.emplace(ends->first, ends->second);
    edges.emplace(ends->second, ends->first);
  }
  return edges;
}

}  // namespace millwright
