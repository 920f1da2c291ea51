// SPDX-License-Identifier: Apache-2.0
//
// How far is the simulated step off the one that was executed?
//
// Both are of the same workload.  On CPUs the simulation is priced by cost_models/executed_curves,
// that is by what `measure` measured on the same machine, one operation after the other; on GPUs as
// any plan is.  Compared by operator and direction, over all ranks; by stream, as a mean of the
// ranks; and as a whole.  What a rank is not seen doing is the rest: waiting for other stages and
// what no operator is charged with.  A collective's measured time holds the wait for its slowest
// member, its predicted time does not: on ranks that do the same that is small.
//
// The simulation lets the reduction of gradients begin while the last backward ends; executed it
// comes after, which the rest then shows, below zero.  A ring's exchanges are executed within the
// attention that they belong to, and simulated on their own.
// Where other programs use the machine too, a step is longer by what they take: beside what was
// measured stands for how much of it a rank had a processor (which ranks that wait for messages
// keep, too).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/estimator.h"
#include "planner/step_spec.h"
#include "runtime/verification.h"

namespace millwright {

// What an executed step took: by operator and direction, and by stream, over all ranks.
struct MeasuredOperator {
  std::string name;
  bool backward = false;
  std::int64_t calls = 0;
  Seconds measured;   // of all calls
  Seconds processor;  // of it, what the ranks had a processor for
  bool operator==(const MeasuredOperator&) const = default;
};
struct MeasuredStream {
  Seconds measured, processor;
  bool operator==(const MeasuredStream&) const = default;
};
struct MeasuredStep {
  Seconds step;  // of the slowest rank
  int ranks = 0;
  std::vector<MeasuredOperator> operators;
  std::array<MeasuredStream, kStreams> streams{};
  bool operator==(const MeasuredStep&) const = default;
};
MeasuredStep Measured(const RecordedStep& executed);

struct ComparedOperator {
  std::string name;
  bool backward = false;
  std::int64_t calls = 0;       // executed
  Seconds predicted, measured;  // of all calls
  Seconds processor;            // of what was measured, what the ranks had a processor for
};

struct ComparedStream {
  std::string name;  // of the stream; "waiting, and the rest"
  Seconds predicted, measured, processor;
};

struct ExecutedComparison {
  std::vector<ComparedOperator> operators;  // the longest first
  std::vector<ComparedStream> streams;      // add up to the step
  Seconds predicted, measured;              // the step
  double error() const { return predicted / measured - 1; }
  Seconds processor;  // of the mean rank, in all that it was seen doing; 0 on GPUs
};

// What a rank of `run` is priced by: a cluster of as many cores as ranks, as `curves` has them.
struct ExecutedModel {
  TrainingConfig training;  // nothing overlapped, gradients as wide as activations
  Cluster cluster;
  Calibration calibration;
};
// ConfigError, naming what was not measured; `file` is where the curves are from, which must
// outlive it.
ExecutedModel ExecutedModelOf(const Workload& workload, const GpuCurves& curves,
                              const ExecutedAs& how, const std::string& file);

ExecutedComparison CompareExecuted(const Estimator& estimator, const Workload& workload,
                                   const SimulatedStep& simulated, const MeasuredStep& executed);

}  // namespace millwright
