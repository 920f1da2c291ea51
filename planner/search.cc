// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>

#include "planner/parallel_work.h"
#include "planner/search_worker.h"

namespace millwright {
namespace {

Findings SearchSpace(const Space& space, int threads, const std::function<void(double)>& progress) {
  std::vector<SearchWorker> workers;
  workers.reserve(std::size_t(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(space);
  ForEachInParallel(
      space.units(), threads,
      [&](int thread, std::size_t unit) { workers[std::size_t(thread)].Run(unit); }, progress);
  Findings all;
  for (const SearchWorker& worker : workers) Merge(all, worker.findings());
  return all;
}

// What of the space can matter, after a coarse search of it.  The table of the framework's own
// plans is promised as well as that of all.
void SetLimits(Space& space, const Findings& coarse, int top) {
  const std::vector<RankedPlan> fastest = Fastest(coarse, top, false);
  if (int(fastest.size()) < top) return;
  Seconds limit = fastest.back().step;
  const bool in_framework =
      std::any_of(space.layouts.begin(), space.layouts.end(), [&](const auto& of_degree) {
        return std::any_of(of_degree.second.begin(), of_degree.second.end(),
                           [&](const PipelineLayout& layout) {
                             return std::any_of(layout.schedules.begin(), layout.schedules.end(),
                                                [&](ScheduleKind schedule) {
                                                  return RunsIn(space.training.framework, schedule);
                                                });
                           });
      });
  if (in_framework) {
    const std::vector<RankedPlan> own = Fastest(coarse, top, true);
    if (int(own.size()) < top) return;
    limit = std::max(limit, own.back().step);
  }
  space.table_limit = limit;
  space.front_limit = kParetoSpan * fastest.front().step;
  space.known = coarse.pareto;
}

}  // namespace

SearchResult Search(const ModelConfig& model, const TrainingConfig& training,
                    const Cluster& cluster, const SearchOptions& options) {
  SearchResult result;
  Findings all;
  if (const Verdict verdict = CheckPrecision(cluster.gpu(), training)) {
    ++result.rejected[static_cast<int>(verdict->reason)];
    return result;
  }
  result.memory_limit = (1 - options.memory_margin) * cluster.gpu().hbm_capacity;
  Space space = SpaceOf(model, training, cluster, options.filter, result.memory_limit, all);
  space.exhaustive = options.exhaustive;
  const int cores = std::max(1, int(std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  if (!space.exhaustive) SetLimits(space, SearchSpace(CoarsePart(space), threads, {}), options.top);
  Merge(all, SearchSpace(space, threads, options.progress));

  result.searched = all.searched;
  result.rejected = all.rejected;
  result.out_of_memory = all.out_of_memory;
  const Estimator estimator(model, training, cluster);
  for (OutOfMemory& item : result.out_of_memory) {
    if (item.nearest) item.stage = estimator.Itemise(item.nearest->plan).peak_stage;
  }
  result.plans = Fastest(all, options.top, false);
  result.in_framework = Fastest(all, options.top, true);
  Certificate& certificate = result.certificate;
  certificate.costed = all.searched;
  certificate.ruled_out = all.ruled_out;
  certificate.space = std::accumulate(all.ruled_out.begin(), all.ruled_out.end(), all.searched);
  certificate.best_bound = Seconds(std::numeric_limits<double>::infinity());
  if (result.plans.empty()) {
    result.nearest_miss = all.NearestMiss();
    return result;
  }
  certificate.best_bound = result.plans.front().step;
  const Bytes apart = 0.01 * cluster.gpu().hbm_capacity;
  for (const RankedPlan& plan : all.pareto.plans()) {
    if (plan.step > kParetoSpan * result.plans.front().step) break;
    if (result.pareto.empty() || plan.peak + apart <= result.pareto.back().peak) {
      result.pareto.push_back(plan);
    }
  }
  return result;
}

}  // namespace millwright
