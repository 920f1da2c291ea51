// SPDX-License-Identifier: Apache-2.0
//
// Which of the best plans is still good when GPUs are not alike?
//
// Each draw gives every GPU of the cluster a pace for a whole step, log-normal with mean 1, times
// that of the parts named slow.  Where GPUs work in step (tensor and context ranks of one pipeline
// rank) the slowest sets the pace; a copy of the model is simulated with its pipeline ranks at
// these paces, and the step ends with the slowest copy.  Of all copies two are simulated, the one
// with the slowest pipeline rank and the one whose ranks are slowest together, which is a little
// less than the slowest of all.  Collectives keep their prices.  The 95% quantile of the draws
// times the upper end of the 90% interval of published runs is what plans are ranked by.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/contenders.h"
#include "sim/disturbance.h"

namespace millwright {

struct RobustOptions {
  // Sigma of a GPU's pace.  GPUs of one kind in one cluster differ by 8% in a long matrix product
  // (Sinha et al., "Not All GPUs Are Created Equal", SC 2022): taken as four sigma.
  double gpu_jitter = 0.02;
  Disturbance slow;                     // of GPUs alone
  std::vector<std::string> slow_names;  // as they were given
  std::uint64_t seed = 0;
  int draws = 20;
  std::size_t plans = 8;    // so many of the best are drawn
  double most_tasks = 3e6;  // of a simulated copy; a plan with more is not drawn
  int threads = 1;
  std::function<void(double share_done)> progress;
};

struct RobustCost {
  Seconds median, p95;  // of the draws
  Seconds high;         // p95, and the interval's upper end on top
};

struct RobustAnswer {
  RobustOptions options;
  double interval_high = 1;
  std::size_t drawn = 0;  // plans; fewer may be listed
  // Of the first of the contenders, in their new order; empty for a plan that was not drawn.
  std::vector<std::optional<RobustCost>> costs;
};

// Draws for the best plans and puts them in order of `high`; the others follow as they were.  The
// same answer on any number of threads.
RobustAnswer RankRobustly(const ModelConfig& model, const TrainingConfig& training,
                          const Cluster& cluster, std::vector<Contender>& plans,
                          const RobustOptions& options);

}  // namespace millwright
