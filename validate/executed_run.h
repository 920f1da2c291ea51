// SPDX-License-Identifier: Apache-2.0
//
// A step that `run --compare` executed, as `--record` keeps it: what was run, how and on what
// machine, and what it took by operator and by stream.  And how far is it off what it is predicted
// to take, by curves that may have been measured since?
//
// The file is one JSON object: "executed" with the times, and the whole "job".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost_models/gpu_curves.h"
#include "planner/feasibility.h"
#include "planner/job.h"
#include "runtime/backend.h"
#include "runtime/verification.h"
#include "validate/executed_step.h"

namespace millwright {

struct ExecutedRun {
  Job job;  // whole; its GPU's calibration file is that of the curves of the comparison
  RunBackend backend = RunBackend::kMpi;
  ElementType type = ElementType::kFp64;
  std::string machine;      // "AMD EPYC, 2 processors at 2596 MHz"
  std::string calibration;  // provenance of these curves; empty on GPUs, which need none
  std::int64_t seed = 1;    // of weights and tokens
  int steps = 1, step = 1;  // executed, and which of them this is
  MeasuredStep measured;

  bool on_gpus() const { return backend == RunBackend::kCuda; }
};

// ConfigError with every mistake; a job that the runtime does not execute is one.  `file` is for
// messages.
ExecutedRun ParseExecutedRun(const std::string& file, std::string_view text);
std::string WriteExecutedRun(const ExecutedRun& run);

// Whether the job's plan can run at all, and as what it is executed; ConfigError for what the
// runtime does not do.
Verdict CheckPlanOf(const Job& job);
Workload ExecutableWorkload(const Job& job, std::uint64_t seed);  // but for its graph
// The tasks that an execution takes.  What they cost does not matter: curves are not read.
TaskGraph GraphOf(const Job& job, const PipelineSchedule& schedule);
// The job's, but that CPU cores, which have none of the narrow formats and compute with operands
// rounded to them, are taken to compute in BF16.
TrainingConfig TrainingWithPrice(const Job& job);

// A run beside its prediction.
struct PredictedRun {
  SimulatedStep simulated;
  ExecutedComparison comparison;
};
// On CPUs by `curves`, which `file` has; on GPUs as any plan is.  ConfigError where something was
// not measured.
PredictedRun PredictRun(const ExecutedRun& run, const Workload& workload,
                        const std::optional<GpuCurves>& curves, const std::string& file);

}  // namespace millwright
