// SPDX-License-Identifier: Apache-2.0
//
// What executing an operator costs beside the operator: a step of a small model on a backend whose
// operations do nothing, a task being an operator of a pass or what is done once a step.  Beside it
// the same on the CPU backend.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <span>
#include <vector>

#include "planner/step_spec.h"
#include "runtime/communicator.h"
#include "runtime/cpu_backend.h"
#include "runtime/execution.h"

namespace {

using namespace millwright;

// One rank; memory is real, so that its cost is in it.
class EmptyBackend final : public Backend {
 public:
  EmptyBackend() : Backend(0, 1) {}
  int WidthOf(Element) const override { return 4; }
  void Run(const Operation&) override {}
  void Upload(std::span<const double>, View) override {}
  void Upload(std::span<const std::int32_t>, View) override {}
  std::vector<double> Download(ConstView from) override {
    return std::vector<double>(std::size_t(from.size()));
  }
  void Receive(int, int, View) override {}
  void Expect(int, std::vector<int>) override {}
  void Synchronize() override {}
  Mark MarkTime() override {
    marks_.push_back(std::chrono::steady_clock::now());
    return marks_.size() - 1;
  }
  Seconds Between(Mark start, Mark end) const override {
    return Seconds(std::chrono::duration<double>(marks_[end] - marks_[start]).count());
  }
  void ForgetMarks() override { marks_.clear(); }

 protected:
  std::int64_t Carry(CollectiveKind, const RankGroup&, View, Reduction) override { return 0; }
  std::int64_t CarryAllToAll(const RankGroup&, ConstView, View) override { return 0; }
  void CarryBlocks(const RankGroup&, std::span<const ConstView>, std::span<const View>) override {}
  void CarryShift(const RankGroup&, ConstView, View) override {}
  void CarrySend(int, int, Tensor) override {}
  std::byte* Allocate(std::int64_t bytes) override {
    return static_cast<std::byte*>(std::malloc(std::size_t(bytes)));
  }
  void Free(std::byte* data, std::int64_t) noexcept override { std::free(data); }

 private:
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

Workload Small() {
  ModelConfig model{.name = "small",
                    .num_layers = 8,
                    .hidden_size = 16,
                    .num_attention_heads = 4,
                    .num_query_groups = 2,
                    .kv_channels = 4,
                    .ffn_hidden_size = 24,
                    .vocab_size = 128,
                    .max_position_embeddings = 64};
  FillDefaults(model);
  const TrainingConfig training{.global_batch_size = 16, .seq_length = 4};
  const ParallelConfig parallel{.zero = 0};
  Workload workload{.model = model,
                    .training = training,
                    .parallel = parallel,
                    .schedule = BuildSchedule(ScheduleOf(parallel, 16))};
  ClusterConfig config = FindCluster("local-cpu");
  config.gpus_per_node = config.gpus_per_pcie_switch = 1;
  const Cluster cluster(config);
  workload.graph =
      BuildStepGraph(StepSpecOf(Estimator(model, training, cluster), parallel, workload.schedule));
  return workload;
}

void Step(benchmark::State& state, const Workload& workload, Backend& backend) {
  Execution execution(workload, backend);
  std::size_t tasks = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(execution.ComputeGradients(0));
    execution.Update({});
    tasks += execution.operators().size();
  }
  state.SetItemsProcessed(std::int64_t(tasks));
  state.counters["s/task"] =
      benchmark::Counter(double(tasks), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void EmptyOperators(benchmark::State& state) {
  const Workload workload = Small();
  EmptyBackend backend;
  Step(state, workload, backend);
}
BENCHMARK(EmptyOperators);

void CpuOperators(benchmark::State& state) {
  const Workload workload = Small();
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Step(state, workload, backend);
  });
}
BENCHMARK(CpuOperators);

}  // namespace
