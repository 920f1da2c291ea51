// SPDX-License-Identifier: Apache-2.0
//
// Which of the best plans is best when its step is simulated?
//
// The search ranks by the estimate.  Its best few are simulated here, folded to one rank a stage
// (planner/step_spec), and ranked by that; both numbers are kept, so that a reader sees how far
// apart they are.  A plan that fits by the estimate and not by the simulated peak is left out.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "planner/estimator.h"
#include "planner/search.h"
#include "planner/step_spec.h"

namespace millwright {

struct Contender {
  Estimate estimate;
  std::optional<SimulatedCost> simulated;  // empty: not asked for, or too many tasks for it

  Seconds step() const { return simulated ? simulated->step : estimate.step; }
  Bytes peak() const { return simulated ? simulated->peak : estimate.peak; }
  // By how much the estimate differs from the simulation, as a share of the latter.
  double difference() const { return estimate.step / step() - 1; }
};

// Best first: by step, then peak, then the search's order of plans.
struct Contenders {
  std::vector<Contender> plans;
  // Fit by the estimate and not by the simulation.  Where that is so of all, they stay plans.
  std::vector<Contender> left_out;
  bool none_fits_simulated = false;
  // Of all that were simulated, |difference()|.
  int simulated = 0;
  int too_large = 0;  // not simulated for their number of tasks: by the estimate
  int too_late = 0;   // not simulated for the deadline: by the estimate
  double median_difference = 0, largest_difference = 0;
};

struct ContenderOptions {
  bool simulate = true;
  Objective objective = Objective::kThroughput;
  Bytes memory_limit;
  int threads = 1;
  // Plans that are not begun by then keep their estimate.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const std::atomic<bool>* stop = nullptr;  // set: as if it had come
  double most_tasks = 4e6;  // of a merged step; more keep their estimate: half a second, 0.4 GB
  std::function<void(double share_done)> progress;  // from the calling thread
};

// `plans` are those of a search over the same model, training and cluster.  The same answer on any
// number of threads.
Contenders RankContenders(const ModelConfig& model, const TrainingConfig& training,
                          const Cluster& cluster, const std::vector<RankedPlan>& plans,
                          const ContenderOptions& options);

// All that a search found worth simulating: the best of each layout, and what may turn out faster
// than these.
std::vector<RankedPlan> ToSimulate(const SearchResult& result);
// Of each layout the best.
void KeepBestOfLayouts(Contenders& contenders, const TrainingConfig& training);

// So many layouts are simulated, or as many as are to be listed, and as many plans besides.
inline constexpr int kLeastContenders = 32;

}  // namespace millwright
