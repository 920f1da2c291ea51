// SPDX-License-Identifier: Apache-2.0
//
// A step of work: for each rank an ordered program of operators, collectives and transfers, with
// what each waits for.
//
// A rank has streams, as a framework gives NCCL and the GPU: one for compute and one for each kind
// of communication.  Tasks of a stream run in the order in which they were added; a task starts
// when its stream is free and all tasks it waits for have ended.  Memory is taken and given back by
// tasks, so that what a rank holds over time comes from the same graph.
//
// Flat arrays and indices: a task is 40 bytes, and what it waits for a slice of one array.  In a
// folded graph a rank stands for all ranks that do the same (one a pipeline stage), and a
// collective's duration is its price at full scale.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace millwright {

enum class Stream : std::uint8_t { kCompute, kTensor, kContext, kExpert, kSend, kReceive, kData };
inline constexpr int kStreams = 7;
std::string_view Name(Stream stream);

// What a task's time is reported under.
enum class Cause : std::uint8_t {
  kCompute,
  kRecompute,
  kTensor,
  kContext,
  kExpert,
  kPipeline,  // a transfer between stages, and waiting for the stage before or after
  kData,
  kOptimizer,
};
inline constexpr int kCauses = 8;
std::string_view Name(Cause cause);

using TaskId = std::uint32_t;
inline constexpr TaskId kNoTask = ~TaskId{0};

struct Task {
  Seconds duration;
  Bytes taken;       // when it starts
  Bytes given_back;  // when it ends
  std::uint32_t label = 0;
  std::int32_t micro_batch = -1;
  std::uint16_t rank = 0;
  std::uint16_t stage = 0;
  Stream stream = Stream::kCompute;
  Cause cause = Cause::kCompute;
};

class TaskGraph {
 public:
  explicit TaskGraph(int ranks) : ranks_(ranks) {}

  // Waits may name tasks that are added later (a receive names its send).
  TaskId Add(const Task& task, std::span<const TaskId> waits_for = {});
  void Wait(TaskId task, TaskId for_task);  // one more, any time before Seal
  std::uint32_t Label(std::string_view text);

  // No more tasks.  Sorts what was added into the arrays that are read.
  void Seal();

  int ranks() const { return ranks_; }
  std::size_t size() const { return tasks_.size(); }
  const Task& task(TaskId id) const { return tasks_[id]; }
  std::span<const Task> tasks() const { return tasks_; }
  std::string_view label(TaskId id) const { return labels_[tasks_[id].label]; }
  std::span<const TaskId> waits(TaskId id) const {
    return {waits_.data() + first_wait_[id], waits_.data() + first_wait_[id + 1]};
  }
  // The tasks of a stream of a rank, in order.
  std::span<const TaskId> program(int rank, Stream stream) const;

 private:
  int ranks_;
  std::vector<Task> tasks_;
  std::vector<std::string> labels_;
  std::vector<std::pair<TaskId, TaskId>> edges_;  // waiting, awaited; until sealed
  std::vector<std::uint32_t> first_wait_;
  std::vector<TaskId> waits_;
  std::vector<std::uint32_t> first_of_stream_;
  std::vector<TaskId> programs_;
};

}  // namespace millwright
