// SPDX-License-Identifier: Apache-2.0
//
// What a rank executes against the task graph that is simulated: stream by stream the same tasks,
// in the same order.
//
// Otherwise than there: one task of compute is several operators, so that of compute the passes are
// compared; a ring's exchanges are made within the attention; reductions and gatherings of data
// parallelism are one for each layer, where their bucket's is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <mutex>

#include "planner/estimator.h"
#include "planner/step_spec.h"
#include "runtime/communicator.h"
#include "runtime/cpu_backend.h"
#include "runtime/execution.h"
#include "tests/runtime/tiny_workload.h"
#include "topologies/cluster.h"
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

using Program = std::vector<std::string>;

constexpr Stream kCommunication[] = {Stream::kTensor, Stream::kContext, Stream::kExpert,
                                     Stream::kSend, Stream::kReceive};

// Passes in the order in which they begin; of two that run together some pieces have no operator.
void AddPass(Program& program, int stage, int micro_batch) {
  const std::string pass = fmt::format("stage {} micro-batch {}", stage, micro_batch);
  const auto last_two = program.end() - std::min<std::ptrdiff_t>(2, std::ssize(program));
  if (micro_batch >= 0 && std::find(last_two, program.end(), pass) == program.end()) {
    program.push_back(pass);
  }
}

Program OfGraph(const TaskGraph& graph, int rank, Stream stream) {
  Program program;
  for (TaskId id : graph.program(rank, stream)) {
    const Task& task = graph.task(id);
    if (graph.label(id) == "ring kv exchange") continue;
    if (stream == Stream::kCompute) {
      AddPass(program, task.stage, task.micro_batch);
    } else {
      program.push_back(fmt::format("{} of stage {} micro-batch {}", graph.label(id),
                                    task.micro_batch < 0 ? 0 : int(task.stage), task.micro_batch));
    }
  }
  return program;
}

Program OfExecution(const std::vector<ExecutedOperator>& executed, Stream stream) {
  Program program;
  for (const ExecutedOperator& op : executed) {
    if (op.stream != stream) continue;
    if (stream == Stream::kCompute) {
      AddPass(program, op.stage, op.micro_batch);
    } else if (op.calls > 0 || stream == Stream::kReceive) {
      program.push_back(
          fmt::format("{} of stage {} micro-batch {}", op.name, op.stage, op.micro_batch));
    }
  }
  return program;
}

void ExpectSame(const Program& executed, const Program& simulated, Stream stream) {
  const auto [a, b] = std::ranges::mismatch(executed, simulated);
  EXPECT_EQ(a - executed.begin(), std::ptrdiff_t(executed.size())) << Name(stream) << ": " << *a;
  EXPECT_EQ(b - simulated.begin(), std::ptrdiff_t(simulated.size())) << Name(stream) << ": " << *b;
}

// No task before those of its rank that it waits for.
void ExpectTimeline(const TaskGraph& graph, Execution& execution, int pipeline) {
  const Timeline timeline = execution.timeline();
  Seconds last;
  for (TaskId id = 0; id < graph.size(); ++id) {
    if (graph.task(id).rank != pipeline) continue;
    for (const TaskId awaited : graph.waits(id)) {
      if (graph.task(awaited).rank != pipeline) continue;
      EXPECT_LE(timeline.end[awaited], timeline.start[id]) << graph.label(id);
    }
    EXPECT_LE(last, timeline.start[id]) << graph.label(id);
    last = timeline.end[id];
    EXPECT_LE(timeline.start[id], timeline.end[id]) << graph.label(id);
  }
  EXPECT_EQ(last, timeline.makespan);
  EXPECT_GT(last.value, 0);
}

void ExpectSameOrder(const ModelConfig& model, const ParallelConfig& parallel) {
  SCOPED_TRACE(fmt::format("{} {}", ShortName(parallel), NameOf(parallel.schedule)));
  const Workload workload = TinyWorkload(model, parallel, 16);
  const TaskGraph& graph = workload.graph;
  std::mutex mutex;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Execution execution(workload, backend);
    execution.ComputeGradients(0);
    execution.Update({});
    const int pipeline = PlaceOf(parallel, communicator.rank()).pipeline;
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(communicator.rank());
    for (const Stream stream : kCommunication) {
      ExpectSame(OfExecution(execution.operators(), stream), OfGraph(graph, pipeline, stream),
                 stream);
    }
    ExpectSame(OfExecution(execution.operators(), Stream::kCompute),
               OfGraph(graph, pipeline, Stream::kCompute), Stream::kCompute);
    ExpectTimeline(graph, execution, pipeline);
    EXPECT_EQ(execution.timeline().peak[std::size_t(pipeline)].value, double(backend.peak_bytes()));
  });
}

TEST(TaskOrder, OfEverySchedule) {
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    ExpectSameOrder(WithLayers(TinyModel(), 8),
                    {.tensor = 2,
                     .sequence_parallel = true,
                     .pipeline = 4,
                     .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                     .schedule = name.value});
  }
}

TEST(TaskOrder, OfExpertsHeadsExchangedAndTiedHeads) {
  ExpectSameOrder(TinyMoe(24), {.tensor = 2,
                                .sequence_parallel = true,
                                .pipeline = 2,
                                .data = 2,
                                .expert = 2,
                                .expert_tensor = 2,
                                .zero = 1});
  ExpectSameOrder(TinyModel(), {.context = 2,
                                .context_kind = ContextParallelKind::kUlysses,
                                .pipeline = 2,
                                .schedule = ScheduleKind::kZbH1});
  ExpectSameOrder(TinyModel(), {.context = 4,
                                .context_kind = ContextParallelKind::kNested,
                                .pipeline = 2,
                                .schedule = ScheduleKind::kZbH1,
                                .context_ulysses = 2});
  ExpectSameOrder(TinyGpt(), {.tensor = 2, .pipeline = 2, .zero = 0});
  ExpectSameOrder(TinyModel(), {.tensor = 2,
                                .sequence_parallel = true,
                                .pipeline = 2,
                                .recompute = {.granularity = RecomputeGranularity::kFull}});
  ParallelConfig by_rank{.tensor = 2, .sequence_parallel = true, .pipeline = 2};
  by_rank.rank_recompute.resize(2);
  by_rank.rank_recompute[0] = {.granularity = RecomputeGranularity::kFull, .full_layers = 1};
  by_rank.rank_recompute[1].granularity = RecomputeGranularity::kSelective;
  by_rank.rank_recompute[1].modules = {RecomputeModule::kMlp};
  ExpectSameOrder(TinyModel(), by_rank);
  for (const int zero : {2, 3}) {
    ExpectSameOrder(TinyMoe(), {.pipeline = 2, .data = 4, .expert = 2, .zero = zero});
  }
}

}  // namespace
}  // namespace millwright
