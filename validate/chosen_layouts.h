// SPDX-License-Identifier: Apache-2.0
//
// Would the planner have chosen what those who published a run chose?
//
// Runs with the same model, training settings, cluster and batch are layouts of one question.  Of
// each question the layout that is predicted fastest is set beside the fastest of the search, in
// the same settings (framework, overlap, precision), with the schedules 1F1B, interleaved and the
// layout's own, and in the memory that the GPU has, or that the layout is predicted to take where
// that is more: it ran.
//
// A published layout outside the search's space (a micro-batch that does not divide, HSDP over
// other ranks) may be faster than all that is in it; then it is its own best.
#pragma once

#include <functional>
#include <vector>

#include "validate/runs.h"

namespace millwright {

struct ChosenLayout {
  std::size_t run = 0;      // of the set: the one predicted fastest
  std::size_t layouts = 1;  // that were published for this question
  Estimate chosen, best;
  double slower() const { return chosen.step / best.step - 1; }
};

// In the order of the runs.
std::vector<ChosenLayout> AgainstBest(const RunSet& runs, int threads,
                                      const std::function<void(double share_done)>& progress);

// More than this slower than the best is worth a reason.
inline constexpr double kWorthAReason = 0.1;

}  // namespace millwright
