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

bool Comparison::same_work() const {
  return std::all_of(rows.begin(), rows.end(),
                     [&](const ComparedPlan& row) { return row.work == rows.front().work; });
}

std::size_t Comparison::best() const {
  constexpr double kRounding = 1e-9;
  std::size_t best = rows.size();
  const bool fitting = any_fits(), by_step = same_work();
  const auto cost = [&](const ComparedPlan& row) {  // of a step, or of a token on a GPU
    const Simulation& s = *row.simulation;
    return by_step ? s.step.step().value : 1 / s.tokens_per_second_per_gpu();
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].simulation || (fitting && !rows[i].fits())) continue;
    if (best == rows.size()) {
      best = i;
      continue;
    }
    const double share = cost(rows[i]) / cost(rows[best]) - 1;
    const bool leaner = rows[i].simulation->peak() < rows[best].simulation->peak();
    if (share < -kRounding || (share < kRounding && leaner)) best = i;
  }
  return best;
}

double Comparison::Slower(const ComparedPlan& row) const {
  const Simulation &own = *row.simulation, &other = *rows[best()].simulation;
  return same_work() ? own.step.step() / other.step.step() - 1
                     : other.tokens_per_second_per_gpu() / own.tokens_per_second_per_gpu() - 1;
}

bool Comparison::any_fits() const {
  return std::any_of(rows.begin(), rows.end(), [](const ComparedPlan& row) { return row.fits(); });
}

}  // namespace millwright
