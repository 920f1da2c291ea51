// SPDX-License-Identifier: Apache-2.0
//
// A plan as the simulator takes it: every layer's passes priced, every stage filled.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "planner/estimator.h"
#include "sim/schedule.h"
#include "sim/simulate.h"
#include "sim/step_graph.h"

namespace millwright {

// `plan` must have passed CheckPlan.  ConfigError where `schedule` needs what the plan does not
// give (micro-batches, stages, layers for its chunks), or has more stages on one rank than on
// another.  Which layers a rank holds is the schedule's to say.
StepSpec StepSpecOf(const Estimator& estimator, const ParallelConfig& plan,
                    PipelineSchedule schedule);
StepSpec StepSpecOf(const Estimator& estimator, const ParallelConfig& plan,
                    const ScheduleChoice& schedule);
// ConfigError where the step's graph would need more than this machine's memory.
void CheckSize(const StepSpec& spec);
// What each rank holds before activations: state and buffers of the layers, the embedding and the
// head that `schedule` puts there.  A V has first and last stage on rank 0; DualPipe holds every
// stage twice, and two ranks of the same stages share their optimizer state.
std::vector<StageMemory> HeldByRanks(const Estimator& estimator, const ParallelConfig& plan,
                                     const PipelineSchedule& schedule);

// A simulated step.
struct SimulatedStep {
  StepSpec spec;
  TaskGraph graph{0};
  Timeline timeline;
  std::vector<RankTime> ranks;
  // Of each rank: state, buffers and overheads that do not change over the step, and with the
  // simulated peak of what does.
  std::vector<StageMemory> fixed;
  std::vector<Bytes> peak;
  double slack = 0;  // share that the framework's allocator keeps more than is in use
  void SetPeaks();   // from the timeline
  Seconds step() const { return timeline.makespan; }
  int fullest() const;
  int slowest() const;  // the rank that computes longest
};
SimulatedStep SimulateStep(const Estimator& estimator, const ParallelConfig& plan,
                           const ScheduleChoice& schedule);
// `spec` is that of `plan`.
SimulatedStep SimulateStep(const Estimator& estimator, const ParallelConfig& plan, StepSpec spec);

// A simulated step's time and the peak of its fullest rank, and nothing else: from a merged graph
// (sim/step_graph), for a fraction of the price.
struct SimulatedCost {
  Seconds step;
  Bytes peak;
};
// `spec` is that of the plan that `estimate` is of.
SimulatedCost CostOfStep(const Estimator& estimator, const Estimate& estimate,
                         const StepSpec& spec);

}  // namespace millwright
