// SPDX-License-Identifier: Apache-2.0
//
// How fast a training step is simulated: items are tasks, items_per_second their rate on one
// thread.  Building the graph is measured apart from running it.
#include <benchmark/benchmark.h>

#include "core/model_presets.h"
#include "planner/step_spec.h"
#include "sim/full_simulation.h"

namespace millwright {
namespace {

// Llama 3.1 405B on 16,384 GPUs or others, TP 8, PP 16, a micro-batch of one sequence and 16 of
// them.
struct Step405b {
  explicit Step405b(int of_nodes = 2048) : nodes(of_nodes) {}
  static ClusterConfig Config(int nodes) {
    ClusterConfig config = FindCluster("dgx-h100");
    config.nodes = nodes;
    return config;
  }
  int nodes;
  ModelConfig model = PresetModel("llama-3.1-405b");
  TrainingConfig training{.global_batch_size = nodes, .seq_length = 8192};
  Cluster cluster{Config(nodes)};
  ParallelConfig plan{
      .tensor = 8, .sequence_parallel = true, .pipeline = 16, .data = nodes / 16, .zero = 1};
  Estimator estimator{model, training, cluster};
  StepSpec spec = StepSpecOf(estimator, plan, ScheduleOf(plan, 16));
};

void BuildFolded(benchmark::State& state) {
  const Step405b step;
  std::size_t tasks = 0;
  for (auto _ : state) tasks += BuildStepGraph(step.spec).size();
  state.SetItemsProcessed(std::int64_t(tasks));
}

void SimulateFolded(benchmark::State& state) {
  const Step405b step;
  const TaskGraph graph = BuildStepGraph(step.spec);
  std::size_t tasks = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(Simulate(graph).makespan);
    tasks += graph.size();
  }
  state.SetItemsProcessed(std::int64_t(tasks));
}

// Every rank; items per second hold where the cost grows as the tasks do.
void SimulateFull(benchmark::State& state, bool share_links) {
  const Step405b step(int(state.range(0)));
  const TaskGraph graph = BuildStepGraph(step.spec);
  std::int64_t tasks = 0;
  for (auto _ : state) {
    const FullSimulation full(graph, step.cluster, step.estimator.calibration().collective,
                              {.plane = step.nodes / 2, .share_links = share_links});
    tasks += full.Run().tasks;
  }
  state.SetItemsProcessed(tasks);
}

BENCHMARK(BuildFolded)->Unit(benchmark::kMillisecond);
BENCHMARK(SimulateFolded)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(SimulateFull, Priced, false)
    ->Arg(256)
    ->Arg(2048)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(SimulateFull, FairShare, true)
    ->Arg(256)
    ->Arg(2048)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace millwright
