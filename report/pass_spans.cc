// SPDX-License-Identifier: Apache-2.0
#include "report/pass_spans.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace millwright {
namespace {

const std::vector<Piece>& PiecesOf(const LayerPasses& layer, PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return layer.forward;
    case PassKind::kBackward:
      return layer.backward;
    case PassKind::kBackwardInput:
      return layer.backward_input;
    case PassKind::kBackwardWeight:
      return layer.backward_weight;
  }
  MILLWRIGHT_CHECK(false);
}

// The streams on which the pieces of passes run.
constexpr std::array kPieceStreams = {Stream::kCompute, Stream::kTensor, Stream::kContext,
                                      Stream::kExpert};

int TasksOn(const StepSpec& spec, int stage, PassKind kind, Stream stream) {
  std::int64_t count = 0;
  const auto add = [&](const LayerPasses& layer) {
    const std::vector<Piece>& pieces = PiecesOf(layer, kind);
    count += std::count_if(pieces.begin(), pieces.end(),
                           [&](const Piece& piece) { return piece.stream == stream; });
  };
  for (int layer : spec.layers_of_stage[std::size_t(stage)]) add(spec.kinds[std::size_t(layer)]);
  if (spec.schedule.first_of_direction(stage)) add(spec.embedding);
  if (spec.schedule.last_of_direction(stage)) add(spec.head);
  return int(count);
}

// The passes of one micro-batch on one stage, and how far its tasks have come.
struct Visit {
  std::array<std::size_t, 3> passes{};
  std::array<int, 3> left{};
  std::size_t count = 0, at = 0;
};

}  // namespace

std::vector<std::uint32_t> PassOfEachTask(const SimulatedStep& step) {
  const PipelineSchedule& schedule = step.spec.schedule;
  const auto m = std::size_t(schedule.micro_batches_per_direction());
  constexpr std::size_t kKinds = 4;
  std::vector<std::uint32_t> pass_of(step.graph.size(), kNoPass);
  std::vector<std::array<int, kKinds>> tasks(std::size_t(schedule.stages()));
  std::vector<std::size_t> place(std::size_t(schedule.stages()));  // of a stage on its rank
  std::vector<Visit> visits;
  for (const Stream stream : kPieceStreams) {
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      for (std::size_t kind = 0; kind < kKinds; ++kind) {
        tasks[std::size_t(stage)][kind] =
            TasksOn(step.spec, stage, static_cast<PassKind>(kind), stream);
      }
    }
    for (int rank = 0; rank < schedule.pipeline; ++rank) {
      const std::span<const TaskId> program = step.graph.program(rank, stream);
      if (program.empty()) continue;
      const std::vector<Pass>& order = schedule.orders[std::size_t(rank)];
      std::size_t held = 0;
      for (std::size_t stage = 0; stage < place.size(); ++stage) {
        if (schedule.rank_of_stage[stage] == rank) place[stage] = held++;
      }
      visits.assign(held * m, {});
      const auto visit = [&](std::size_t stage, std::int32_t micro_batch) -> Visit& {
        return visits[place[stage] * m + std::size_t(micro_batch)];
      };
      for (std::size_t i = 0; i < order.size(); ++i) {
        Visit& v = visit(order[i].stage, order[i].micro_batch);
        MILLWRIGHT_CHECK(v.count < v.passes.size());
        v.passes[v.count] = i;
        v.left[v.count++] = tasks[order[i].stage][std::size_t(order[i].kind)];
      }
      for (TaskId id : program) {
        const Task& task = step.graph.task(id);
        if (task.micro_batch < 0 || task.cause == Cause::kData) continue;
        Visit& v = visit(task.stage, task.micro_batch);
        while (v.at < v.count && v.left[v.at] == 0) ++v.at;
        MILLWRIGHT_CHECK(v.at < v.count);
        --v.left[v.at];
        pass_of[id] = std::uint32_t(v.passes[v.at]);
      }
    }
  }
  return pass_of;
}

std::vector<std::vector<PassSpan>> PassSpansOf(const SimulatedStep& step) {
  const PipelineSchedule& schedule = step.spec.schedule;
  const std::vector<std::uint32_t> pass_of = PassOfEachTask(step);
  std::vector<std::vector<PassSpan>> spans;
  for (int rank = 0; rank < schedule.pipeline; ++rank) {
    const std::vector<Pass>& order = schedule.orders[std::size_t(rank)];
    constexpr Seconds kNotYet(-1);
    std::vector<PassSpan>& of_rank = spans.emplace_back(order.size(), PassSpan{kNotYet, kNotYet});
    for (TaskId id : step.graph.program(rank, Stream::kCompute)) {
      if (pass_of[id] == kNoPass) continue;
      PassSpan& span = of_rank[pass_of[id]];
      if (span.start == kNotYet) span.start = step.timeline.start[id];
      span.end = step.timeline.end[id];
    }
    Seconds before;
    for (std::size_t i = 0; i < order.size(); ++i) {
      // A pass that only waits on communication takes no time of the compute stream.
      if (of_rank[i].start == kNotYet) of_rank[i] = {before, before};
      if (i > 0 && order[i - 1].overlaps_next) {
        PassSpan& pair = of_rank[i - 1];
        pair = {std::min(pair.start, of_rank[i].start), std::max(pair.end, of_rank[i].end)};
        of_rank[i] = pair;
      }
      before = of_rank[i].end;
    }
  }
  return spans;
}

}  // namespace millwright
