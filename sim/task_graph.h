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
// Flat arrays and indices: a task is 40 bytes, and what it waits for a slice of one array.  A rank
// of the graph stands for all ranks that do the same, a pipeline rank's `plane` of tensor, context
// and data ranks; a collective's duration is its price at full scale.  sim/simulate runs one of
// each (folded); sim/full_simulation runs them all, and joins the members of a collective by what
// its Communication says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "cost_models/collectives.h"
#include "cost_models/operators.h"

namespace millwright {

enum class Stream : std::uint8_t {
  kCompute,
  kTensor,
  kContext,
  kExpert,
  kSend,
  kReceive,
  kData,
  kToHost,  // copies of offloaded activations
  kFromHost,
};
inline constexpr int kStreams = 9;
std::string_view Name(Stream stream);
Stream StreamOf(GroupKind group);  // of its collectives

// What a task's time is reported under.
enum class Cause : std::uint8_t {
  kCompute,
  kRecompute,
  kTensor,
  kContext,
  kExpert,
  kHost,      // copies of activations to and from the host
  kPipeline,  // a transfer between stages, and waiting for the stage before or after
  kData,
  kOptimizer,
};
inline constexpr int kCauses = 9;
std::string_view Name(Cause cause);

using TaskId = std::uint32_t;
inline constexpr TaskId kNoTask = ~TaskId{0};

// What a task sends, and among whom.  A plane's ranks are numbered from 0; its groups are those of
// `ranks` members, `stride` apart, into which they fall (as StridedGroup of topologies/cluster).
struct Communication {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes payload;  // nccl-tests' size; of several calls, together
  int stride = 1;
  int ranks = 1;  // 1: the task communicates with nobody
  int to = -1;    // kSendRecv: the pipeline rank that receives; `stride` and `ranks` are not used
  // `ranks` are those of all planes: every pipeline rank has a task of it, and the tasks wait for
  // the same.
  bool everyone = false;
  bool any() const { return ranks > 1 || to >= 0; }
  bool operator==(const Communication&) const = default;
};
inline constexpr std::uint16_t kNoCommunication = 0xffff;

// Of a task of a pass: how far through its layer it brings the pass.  A number is that of an
// operator of the layer's list (cost_models/operators), which is done then with all before it in
// the pass's direction; where some are recomputed first, of these.
inline constexpr std::uint8_t kThroughLayer = 0xfd;  // all that the pass does of the layer
inline constexpr std::uint8_t kThroughPass = 0xfe;   //   and it was the last one
inline constexpr std::uint8_t kOfNoPass = 0xff;      // messages, data parallelism, copies

struct Task {
  Seconds duration;
  Bytes taken;       // when it starts
  Bytes given_back;  // when it ends
  std::uint16_t label = 0;
  bool routed = false;  // work on what the router sends, more on some expert ranks than on others
  std::uint8_t through = kOfNoPass;
  std::int32_t micro_batch = -1;
  std::uint16_t rank = 0;
  std::uint16_t stage = 0;
  Stream stream = Stream::kCompute;
  Cause cause = Cause::kCompute;
  std::uint16_t communication = kNoCommunication;  // from TaskGraph::Communicate
};
static_assert(sizeof(Task) == 40);

class TaskGraph {
 public:
  explicit TaskGraph(int ranks) : ranks_(ranks) {}

  void Reserve(std::size_t tasks);  // about so many, so that nothing is moved while they are added
  // Waits may name tasks that are added later (a receive names its send).
  TaskId Add(const Task& task, std::span<const TaskId> waits_for = {});
  void Wait(TaskId task, TaskId for_task);  // one more, any time before Seal
  std::uint16_t Label(std::string_view text);
  std::uint16_t Communicate(const Communication& communication);  // kNoCommunication: with nobody

  // No more tasks.  Sorts what was added into the arrays that are read.
  void Seal();

  int ranks() const { return ranks_; }
  std::size_t size() const { return tasks_.size(); }
  const Task& task(TaskId id) const { return tasks_[id]; }
  std::span<const Task> tasks() const { return tasks_; }
  std::string_view label(TaskId id) const { return labels_[tasks_[id].label]; }
  std::span<const Communication> communications() const { return communications_; }
  std::span<const TaskId> waits(TaskId id) const {
    return {waits_.data() + first_wait_[id], waits_.data() + first_wait_[id + 1]};
  }
  // The tasks of a stream of a rank, in order.
  std::span<const TaskId> program(int rank, Stream stream) const;

 private:
  int ranks_;
  std::vector<Task> tasks_;
  std::vector<std::string> labels_;
  std::vector<Communication> communications_;
  std::vector<std::pair<TaskId, TaskId>> edges_;  // waiting, awaited; until sealed
  std::vector<std::uint32_t> first_wait_;
  std::vector<TaskId> waits_;
  std::vector<std::uint32_t> first_of_stream_;
  std::vector<TaskId> programs_;
};

}  // namespace millwright
