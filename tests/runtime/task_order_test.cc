// SPDX-License-Identifier: Apache-2.0
//
// What a rank executes against the task graph that is simulated: stream by stream the same tasks,
// in the same order.
//
// Otherwise than there: one task of compute is several operators, so that of compute the passes are
// compared; a ring's exchanges are made within the attention; reductions and gatherings of data
// parallelism are one for each layer and not for each bucket; of two passes that overlap, tasks
// take turns there and operators here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

// Passes one after the other, each named once.
void AddPass(Program& program, int stage, int micro_batch) {
  std::string pass = fmt::format("stage {} micro-batch {}", stage, micro_batch);
  if (micro_batch >= 0 && (program.empty() || program.back() != pass)) program.push_back(pass);
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

void ExpectSameOrder(const ModelConfig& model, const ParallelConfig& parallel) {
  SCOPED_TRACE(fmt::format("{} {}", ShortName(parallel), NameOf(parallel.schedule)));
  const Workload workload = TinyWorkload(model, parallel, 16);
  const bool overlaps =
      std::any_of(workload.schedule.orders.front().begin(), workload.schedule.orders.front().end(),
                  [](const Pass& pass) { return pass.overlaps_next; });
  const TaskGraph graph = BuildStepGraph(SpecOf(workload));
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
      Program simulated = OfGraph(graph, pipeline, stream);
      Program executed = OfExecution(execution.operators(), stream);
      if (overlaps) {
        std::sort(simulated.begin(), simulated.end());
        std::sort(executed.begin(), executed.end());
      }
      EXPECT_EQ(executed, simulated) << Name(stream);
    }
    if (!overlaps) {
      EXPECT_EQ(OfExecution(execution.operators(), Stream::kCompute),
                OfGraph(graph, pipeline, Stream::kCompute));
    }
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
}

}  // namespace
}  // namespace millwright
