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

// Llama 3.1 405B on 16,384 GPUs, TP 8, PP 16, DP 128, a micro-batch of one sequence.
struct Step405b {
  static ClusterConfig Config() {
    ClusterConfig config = FindCluster("dgx-h100");
    config.nodes = 2048;
    return config;
  }
  ModelConfig model = PresetModel("llama-3.1-405b");
  TrainingConfig training{.global_batch_size = 2048, .seq_length = 8192};
  Cluster cluster{Config()};
  ParallelConfig plan{
      .tensor = 8, .sequence_parallel = true, .pipeline = 16, .data = 128, .zero = 1};
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

// Every one of the 16,384 ranks.
void SimulateFull(benchmark::State& state, bool share_links) {
  const Step405b step;
  const TaskGraph graph = BuildStepGraph(step.spec);
  std::int64_t tasks = 0;
  for (auto _ : state) {
    const FullSimulation full(graph, step.cluster, step.estimator.calibration().collective,
                              {.plane = 1024, .share_links = share_links});
    tasks += full.Run().tasks;
  }
  state.SetItemsProcessed(tasks);
}

BENCHMARK(BuildFolded)->Unit(benchmark::kMillisecond);
BENCHMARK(SimulateFolded)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(SimulateFull, Priced, false)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(SimulateFull, FairShare, true)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace millwright
