// SPDX-License-Identifier: Apache-2.0
#include "report/simulation.h"

#include <algorithm>

namespace millwright {

double Simulation::tokens_per_second_per_gpu() const {
  return estimate.tokens_per_second_per_gpu * (estimate.step / step.step());
}

double Simulation::mfu() const { return estimate.mfu * (estimate.step / step.step()); }

Bytes Simulation::peak() const { return step.peak[std::size_t(step.fullest())]; }

double Simulation::bubble_share(int rank) const {
  const RankTime& time = step.ranks[std::size_t(rank)];
  return (time.waiting[std::size_t(Cause::kPipeline)] + time.idle) / step.step();
}

double Simulation::bubble_share() const {
  double sum = 0;
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) sum += bubble_share(int(rank));
  return sum / double(step.ranks.size());
}

std::size_t Comparison::best() const {
  std::size_t best = rows.size();
  const bool fitting = any_fits();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].simulation || (fitting && !rows[i].fits())) continue;
    if (best == rows.size() ||
        rows[i].simulation->step.step() < rows[best].simulation->step.step()) {
      best = i;
    }
  }
  return best;
}

bool Comparison::any_fits() const {
  return std::any_of(rows.begin(), rows.end(), [](const ComparedPlan& row) { return row.fits(); });
}

}  // namespace millwright
