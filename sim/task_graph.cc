// SPDX-License-Identifier: Apache-2.0
#include "sim/task_graph.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace millwright {

std::string_view Name(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kTensor:
      return "tensor";
    case Stream::kContext:
      return "context";
    case Stream::kExpert:
      return "expert";
    case Stream::kSend:
      return "send";
    case Stream::kReceive:
      return "receive";
    case Stream::kData:
      return "data";
    case Stream::kToHost:
      return "to host";
    case Stream::kFromHost:
      return "from host";
  }
  return {};
}

Stream StreamOf(GroupKind group) {
  switch (group) {
    case GroupKind::kTensor:
      return Stream::kTensor;
    case GroupKind::kRing:
    case GroupKind::kUlysses:
      return Stream::kContext;
    case GroupKind::kExpert:
    case GroupKind::kExpertTensor:
      return Stream::kExpert;
  }
  return Stream::kTensor;
}

std::string_view Name(Cause cause) {
  switch (cause) {
    case Cause::kCompute:
      return "compute";
    case Cause::kRecompute:
      return "recompute";
    case Cause::kTensor:
      return "tensor-parallel communication";
    case Cause::kContext:
      return "context-parallel communication";
    case Cause::kExpert:
      return "expert-parallel communication";
    case Cause::kHost:
      return "copies to and from the host";
    case Cause::kPipeline:
      return "pipeline";
    case Cause::kData:
      return "data-parallel communication";
    case Cause::kOptimizer:
      return "optimizer";
  }
  return {};
}

void TaskGraph::Reserve(std::size_t tasks) {
  constexpr std::size_t kWaits = 2;  // of a task, at most on average
  tasks_.reserve(tasks);
  edges_.reserve(kWaits * tasks);
}

TaskId TaskGraph::Add(const Task& task, std::span<const TaskId> waits_for) {
  MILLWRIGHT_CHECK(task.rank < ranks_);
  const TaskId id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back(task);
  for (TaskId awaited : waits_for) Wait(id, awaited);
  return id;
}

void TaskGraph::Wait(TaskId task, TaskId for_task) {
  if (for_task != kNoTask) edges_.emplace_back(task, for_task);
}

std::uint16_t TaskGraph::Label(std::string_view text) {
  const auto found = std::find(labels_.begin(), labels_.end(), text);
  const auto at = found - labels_.begin();
  if (found == labels_.end()) labels_.emplace_back(text);
  MILLWRIGHT_CHECK(at <= std::numeric_limits<std::uint16_t>::max());
  return std::uint16_t(at);
}

std::uint16_t TaskGraph::Communicate(const Communication& communication) {
  if (!communication.any()) return kNoCommunication;
  const auto found = std::find(communications_.begin(), communications_.end(), communication);
  const auto at = found - communications_.begin();
  if (found == communications_.end()) communications_.push_back(communication);
  MILLWRIGHT_CHECK(at < kNoCommunication);
  return std::uint16_t(at);
}

void TaskGraph::Seal() {
  const std::size_t n = tasks_.size();
  first_wait_.assign(n + 1, 0);
  for (const auto& [waiting, awaited] : edges_) {
    MILLWRIGHT_CHECK(waiting < n && awaited < n);
    ++first_wait_[waiting + 1];
  }
  for (std::size_t i = 0; i < n; ++i) first_wait_[i + 1] += first_wait_[i];
  waits_.resize(edges_.size());
  std::vector<std::uint32_t> at(first_wait_.begin(), first_wait_.end() - 1);
  for (const auto& [waiting, awaited] : edges_) waits_[at[waiting]++] = awaited;
  edges_ = {};

  const std::size_t streams = static_cast<std::size_t>(ranks_) * kStreams;
  const auto stream_of = [](const Task& t) {
    return static_cast<std::size_t>(t.rank) * kStreams + static_cast<std::size_t>(t.stream);
  };
  first_of_stream_.assign(streams + 1, 0);
  for (const Task& t : tasks_) ++first_of_stream_[stream_of(t) + 1];
  for (std::size_t i = 0; i < streams; ++i) first_of_stream_[i + 1] += first_of_stream_[i];
  programs_.resize(n);
  std::vector<std::uint32_t> next(first_of_stream_.begin(), first_of_stream_.end() - 1);
  for (TaskId id = 0; id < n; ++id) programs_[next[stream_of(tasks_[id])]++] = id;
}

std::span<const TaskId> TaskGraph::program(int rank, Stream stream) const {
  const std::size_t s =
      static_cast<std::size_t>(rank) * kStreams + static_cast<std::size_t>(stream);
  return {programs_.data() + first_of_stream_[s], programs_.data() + first_of_stream_[s + 1]};
}

}  // namespace millwright
