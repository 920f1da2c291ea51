// SPDX-License-Identifier: Apache-2.0
#include "planner/robust.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "cost_models/interval.h"
#include "planner/full_step.h"
#include "planner/parallel_work.h"
#include "sim/simulate.h"
#include "sim/step_graph.h"

namespace millwright {
namespace {

// How many times its time each GPU takes, by rank; the standard's engine, and a sum of twelve of
// its draws for the bell, so that all libraries draw the same.
std::vector<double> Paces(const RobustOptions& options, std::int64_t gpus, int draw) {
  std::mt19937_64 engine(options.seed * 1'000'003 + std::uint64_t(draw));
  const double sigma = options.gpu_jitter;
  std::vector<double> paces(static_cast<std::size_t>(gpus));
  for (std::size_t gpu = 0; gpu < paces.size(); ++gpu) {
    double normal = -6;
    for (int i = 0; i < 12; ++i) normal += double(engine() >> 11) * 0x1p-53;
    paces[gpu] = std::exp(sigma * normal - sigma * sigma / 2);
    if (!options.slow.gpu_speed.empty()) paces[gpu] /= options.slow.gpu_speed[gpu];
  }
  return paces;
}

// Of each copy of the model the pace of its pipeline ranks, and of the copies those two that may be
// slowest.
std::vector<std::vector<double>> SlowestCopies(const ParallelConfig& plan,
                                               const std::vector<double>& paces) {
  const std::size_t in_step = std::size_t(plan.tensor) * std::size_t(plan.context);
  const auto copies = std::size_t(plan.data), ranks = std::size_t(plan.pipeline);
  std::vector<std::vector<double>> of_copy(copies, std::vector<double>(ranks));
  for (std::size_t copy = 0; copy < copies; ++copy) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto first =
          paces.begin() + GpuOf(plan, std::int64_t((rank * copies + copy) * in_step));
      of_copy[copy][rank] = *std::max_element(first, first + std::ptrdiff_t(in_step));
    }
  }
  const auto slowest = [&](const auto& value) {
    return std::size_t(
        std::max_element(of_copy.begin(), of_copy.end(),
                         [&](const auto& a, const auto& b) { return value(a) < value(b); }) -
        of_copy.begin());
  };
  const std::size_t by_one =
      slowest([](const std::vector<double>& c) { return *std::max_element(c.begin(), c.end()); });
  const std::size_t by_all = slowest(
      [](const std::vector<double>& c) { return std::accumulate(c.begin(), c.end(), 0.0); });
  std::vector<std::vector<double>> result = {of_copy[by_one]};
  if (by_all != by_one) result.push_back(of_copy[by_all]);
  return result;
}

// The same tasks, with the compute of each pipeline rank at its pace.
TaskGraph AtPaces(const TaskGraph& graph, const std::vector<double>& paces) {
  TaskGraph paced(graph.ranks());
  paced.Reserve(graph.size());
  for (const Communication& communication : graph.communications())
    paced.Communicate(communication);
  const std::uint16_t unnamed = paced.Label("");
  for (TaskId id = 0; id < graph.size(); ++id) {
    Task task = graph.task(id);
    if (task.stream == Stream::kCompute) task.duration = paces[task.rank] * task.duration;
    task.label = unnamed;
    paced.Add(task, graph.waits(id));
  }
  paced.Seal();
  return paced;
}

std::optional<RobustCost> CostOf(const Estimator& estimator, const Estimate& estimate,
                                 const RobustOptions& options, double interval_high) {
  const ParallelConfig& plan = estimate.plan;
  const StepSpec spec = StepSpecOf(estimator, plan, ScheduleOf(plan, estimate.micro_batches));
  if (TaskCount(spec) > options.most_tasks) return {};
  const TaskGraph graph = BuildStepGraph(spec);
  std::vector<Seconds> steps;
  for (int draw = 0; draw < options.draws; ++draw) {
    Seconds longest;
    for (const std::vector<double>& paces :
         SlowestCopies(plan, Paces(options, estimator.cluster().gpus(), draw))) {
      longest = std::max(longest, Simulate(AtPaces(graph, paces)).makespan);
    }
    steps.push_back(longest);
  }
  const Seconds p95 = Percentile(steps, 0.95);
  return RobustCost{.median = Percentile(steps, 0.5), .p95 = p95, .high = interval_high * p95};
}

}  // namespace

RobustAnswer RankRobustly(const ModelConfig& model, const TrainingConfig& training,
                          const Cluster& cluster, std::vector<Contender>& plans,
                          const RobustOptions& options) {
  RobustAnswer answer{.options = options,
                      .interval_high = StepInterval(ClassOf(model, training, cluster.gpu())).high,
                      .costs = {}};
  const std::size_t drawn = std::min(options.plans, plans.size());
  const std::vector<Estimator> estimators =
      EstimatorsFor(model, training, cluster, options.threads);
  std::vector<std::optional<RobustCost>> costs(drawn);
  ForEachInParallel(
      drawn, options.threads,
      [&](int thread, std::size_t i) {
        costs[i] = CostOf(estimators[std::size_t(thread)], plans[i].estimate, options,
                          answer.interval_high);
      },
      options.progress);
  std::vector<std::size_t> order(drawn);
  std::iota(order.begin(), order.end(), 0);
  // What was not drawn stands behind what was.
  const auto key = [&](std::size_t i) {
    return costs[i] ? costs[i]->high.value : std::numeric_limits<double>::infinity();
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  std::vector<Contender> ranked;
  for (const std::size_t i : order) {
    ranked.push_back(plans[i]);
    answer.costs.push_back(costs[i]);
  }
  std::move(ranked.begin(), ranked.end(), plans.begin());
  return answer;
}

}  // namespace millwright
