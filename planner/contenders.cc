// SPDX-License-Identifier: Apache-2.0
#include "planner/contenders.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>

#include "planner/parallel_work.h"

namespace millwright {
namespace {

std::optional<SimulatedCost> SimulatedCostOf(const Estimator& estimator, const Estimate& estimate,
                                             double most_tasks) {
  const ScheduleChoice choice = ScheduleOf(estimate.plan, estimate.micro_batches);
  if (!Unmet(choice).empty()) return {};  // more passes than an order may have
  const StepSpec spec = StepSpecOf(estimator, estimate.plan, choice);
  if (TaskCount(spec, StepDetail::kMerged) > most_tasks) return {};
  return CostOfStep(estimator, estimate, spec);
}

bool Better(Objective objective, const Contender& a, const Contender& b) {
  return Better(objective, {a.estimate.plan, a.step(), a.peak()},
                {b.estimate.plan, b.step(), b.peak()});
}

}  // namespace

Contenders RankContenders(const ModelConfig& model, const TrainingConfig& training,
                          const Cluster& cluster, const std::vector<RankedPlan>& plans,
                          const ContenderOptions& options) {
  std::vector<Contender> all(plans.size());
  const std::vector<Estimator> estimators =
      EstimatorsFor(model, training, cluster, options.threads);
  const Limit limit{options.deadline, options.stop};
  std::atomic<int> too_late = 0;
  const auto work = [&](int thread, std::size_t i) {
    const Estimator& estimator = estimators[std::size_t(thread)];
    all[i].estimate = estimator.Itemise(plans[i].plan);
    if (!options.simulate) return;
    if (limit.Reached()) {
      ++too_late;
    } else {
      all[i].simulated = SimulatedCostOf(estimator, all[i].estimate, options.most_tasks);
    }
  };
  ForEachInParallel(all.size(), options.threads, work, options.progress);

  Contenders result;
  result.too_late = too_late;
  std::vector<double> differences;
  for (const Contender& contender : all) {
    if (contender.simulated) {
      differences.push_back(std::abs(contender.difference()));
    } else if (options.simulate) {
      ++result.too_large;
    }
  }
  result.too_large -= result.too_late;
  std::sort(differences.begin(), differences.end());
  if (!differences.empty()) {
    result.simulated = int(differences.size());
    result.median_difference = differences[differences.size() / 2];
    result.largest_difference = differences.back();
  }
  std::sort(all.begin(), all.end(), [&](const Contender& a, const Contender& b) {
    return Better(options.objective, a, b);
  });
  for (Contender& contender : all) {
    const bool fits = contender.peak() <= options.memory_limit;
    (fits ? result.plans : result.left_out).push_back(std::move(contender));
  }
  if (result.plans.empty() && !result.left_out.empty()) {
    std::swap(result.plans, result.left_out);
    result.none_fits_simulated = true;
  }
  return result;
}

std::vector<RankedPlan> ToSimulate(const SearchResult& result) {
  std::vector<RankedPlan> plans = result.plans;
  for (const auto* more : {&result.without_by_rank, &result.others}) {
    for (const RankedPlan& plan : *more) {
      if (!Holds(plans, plan)) plans.push_back(plan);
    }
  }
  return plans;
}

void KeepBestOfLayouts(Contenders& contenders, const TrainingConfig& training) {
  std::set<LayoutKey> seen;
  std::erase_if(contenders.plans, [&](const Contender& contender) {
    LayoutKey layout = KeyOf(contender.estimate.plan, training);
    layout.back() = 0;
    return !seen.insert(layout).second;
  });
}

}  // namespace millwright
