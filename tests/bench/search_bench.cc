// SPDX-License-Identifier: Apache-2.0
//
// How fast plans are costed: the search itself, and costing each plan from nothing as the baseline
// in the same run.  `candidates` counts plans costed, items_per_second their rate on one thread.
#include <benchmark/benchmark.h>

#include "core/model_presets.h"
#include "planner/search.h"

namespace millwright {
namespace {

struct Question {
  const char* model;
  const char* cluster;
  int nodes;
  TrainingConfig training;
};

const Question& Llama70B() {
  static const Question question{
      "llama-3.1-70b", "dgx-h100", 16, {.global_batch_size = 1024, .seq_length = 8192}};
  return question;
}

const Question& DeepSeekV3() {
  static const Question question{
      "deepseek-v3",
      "dgx-h800",
      256,
      {.global_batch_size = 15360, .seq_length = 4096, .precision = Precision::kFp8}};
  return question;
}

Cluster ClusterOf(const Question& question) {
  ClusterConfig config = FindCluster(question.cluster);
  config.nodes = question.nodes;
  return Cluster(config);
}

void SearchPlans(benchmark::State& state, const Question& question) {
  const ModelConfig model = PresetModel(question.model);
  const Cluster cluster = ClusterOf(question);
  std::int64_t candidates = 0;
  for (auto _ : state) {
    SearchOptions options;
    options.threads = 1;
    candidates += Search(model, question.training, cluster, options).searched;
  }
  state.SetItemsProcessed(candidates);
  state.counters["candidates"] = double(candidates) / double(state.iterations());
}

// Baseline: nothing shared between plans.
void ItemisePlan(benchmark::State& state, const Question& question) {
  const ModelConfig model = PresetModel(question.model);
  const Cluster cluster = ClusterOf(question);
  const Estimator estimator(model, question.training, cluster);
  ParallelConfig plan;
  plan.tensor = 4;
  plan.sequence_parallel = true;
  plan.pipeline = 8;
  plan.data = int(cluster.gpus()) / 32;
  for (auto _ : state) benchmark::DoNotOptimize(estimator.Itemise(plan).step);
  state.SetItemsProcessed(state.iterations());
}

void BuildCluster(benchmark::State& state) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = int(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Cluster(config).gpus());
}

BENCHMARK_CAPTURE(SearchPlans, Llama70BOn128H100, Llama70B())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(SearchPlans, DeepSeekV3On2048H800, DeepSeekV3())
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(ItemisePlan, Llama70BOn128H100, Llama70B())->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(ItemisePlan, DeepSeekV3On2048H800, DeepSeekV3())->Unit(benchmark::kMicrosecond);
BENCHMARK(BuildCluster)->Arg(16)->Arg(2048)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millwright
