// SPDX-License-Identifier: Apache-2.0
//
// What `simulate` and `compare` have found out about plans, before it is text or JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/estimator.h"
#include "planner/full_step.h"
#include "planner/job.h"
#include "planner/step_spec.h"
#include "report/step_picture.h"

namespace millwright {

// One plan under one pipeline schedule, simulated.
struct Simulation {
  std::string schedule;  // "zb-h1", "interleaved:4"
  // In closed form, of the plan under `estimated_schedule`: the same one where it has a closed
  // form, else 1f1b (or interleaved, for one in which a rank's chunks are as far apart).
  Estimate estimate;
  std::string estimated_schedule;
  SimulatedStep step;
  std::optional<FullReport> full;  // with every rank; `step` shows those of `full->shown`
  double seconds = 0;              // wall time, the only part that differs between runs

  const ParallelConfig& plan() const { return estimate.plan; }
  bool estimate_is_of_it() const { return estimated_schedule == schedule; }
  // By how much the estimate differs from the simulation, as a share of the latter.
  double difference() const { return estimate.step / step.step() - 1; }
  double tokens_per_second_per_gpu() const;
  double mfu() const;
  Bytes peak() const;  // of the fullest rank
  bool fits() const {
    return peak() <= estimate.capacity && HostHolds(estimate.host, estimate.host_capacity);
  }
  // Of a rank, and over all of them: what it waits for other stages and is idle, as a share of
  // the step.  Transfers that are not hidden are part of it.
  double bubble_share(int rank) const;
  double bubble_share() const;
};

// One row of `compare`: a schedule of one job, or a job.
struct ComparedPlan {
  std::string name;  // the schedule as asked, or the job file
  ParallelConfig plan;
  std::int64_t gpus = 0;
  std::string work;  // model, batch, GPUs: steps of the same work can be compared by their length
  std::optional<Simulation> simulation;
  std::string why_not;  // where there is none
  StepPicture picture;  // where it is to be drawn
  bool fits() const { return simulation && simulation->fits(); }
};

struct Comparison {
  std::vector<ComparedPlan> rows;
  // The shortest step of what fits, or of all where nothing does, and among equals the least
  // memory; where rows differ in their work, most tokens/s/GPU.  rows.size(): there is none.
  std::size_t best() const;
  bool same_work() const;
  // By how much a simulated row is slower than the best, as a share.
  double Slower(const ComparedPlan& row) const;
  bool any_fits() const;
  double seconds = 0;  // wall time
};

}  // namespace millwright
