// SPDX-License-Identifier: Apache-2.0
//
// How fast schedules are built and timed: items_per_second counts passes, on one thread.
#include <benchmark/benchmark.h>

#include "sim/schedule.h"
#include "sim/schedule_timing.h"

namespace millwright {
namespace {

ScheduleChoice Choice(ScheduleKind kind, benchmark::State& state) {
  ScheduleChoice choice{kind, int(state.range(0)), int(state.range(1))};
  if (kind == ScheduleKind::kInterleaved) choice.virtual_stages = 2;
  return choice;
}

void BuildPasses(benchmark::State& state, ScheduleKind kind) {
  const ScheduleChoice choice = Choice(kind, state);
  std::size_t passes = 0;
  for (auto _ : state) passes += BuildSchedule(choice).passes();
  state.SetItemsProcessed(std::int64_t(passes));
}

void TimePasses(benchmark::State& state, ScheduleKind kind, PassTimes pass_times) {
  const PipelineSchedule schedule = BuildSchedule(Choice(kind, state));
  const ScheduleCosts costs =
      EvenCosts(schedule, {Seconds(1), Seconds(1), Seconds(1)}, Seconds(0.01));
  std::size_t passes = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(TimeSchedule(schedule, costs, pass_times).makespan);
    passes += schedule.passes();
  }
  state.SetItemsProcessed(std::int64_t(passes));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({8, 64})->Args({128, 4096})->Unit(benchmark::kMillisecond);
}

constexpr auto kAlone = PassTimes::kLeaveOut;
BENCHMARK_CAPTURE(BuildPasses, OneForwardOneBackward, ScheduleKind::k1F1B)->Apply(Sizes);
BENCHMARK_CAPTURE(BuildPasses, Interleaved, ScheduleKind::kInterleaved)->Apply(Sizes);
BENCHMARK_CAPTURE(BuildPasses, DualPipeV, ScheduleKind::kDualPipeV)->Apply(Sizes);
BENCHMARK_CAPTURE(BuildPasses, VHalf, ScheduleKind::kVHalf)->Apply(Sizes);
BENCHMARK_CAPTURE(TimePasses, OneForwardOneBackward, ScheduleKind::k1F1B, kAlone)->Apply(Sizes);
BENCHMARK_CAPTURE(TimePasses, Interleaved, ScheduleKind::kInterleaved, kAlone)->Apply(Sizes);
BENCHMARK_CAPTURE(TimePasses, DualPipeV, ScheduleKind::kDualPipeV, kAlone)->Apply(Sizes);
BENCHMARK_CAPTURE(TimePasses, ZbH1, ScheduleKind::kZbH1, kAlone)->Apply(Sizes);
BENCHMARK_CAPTURE(TimePasses, ZbH1WithPassTimes, ScheduleKind::kZbH1, PassTimes::kKeep)
    ->Apply(Sizes);

}  // namespace
}  // namespace millwright
