// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "cost_models/operators.h"
#include "planner/findings_bytes.h"
#include "planner/layer_split.h"
#include "planner/parallel_work.h"
#include "planner/search_worker.h"

namespace millwright {
namespace {

using Clock = std::chrono::steady_clock;
using Progress = std::function<void(double)>;

// In which order units of work are visited: those of known floors by these, then the others.
struct VisitOrder {
  std::vector<std::pair<Seconds, std::size_t>> floors;  // and their units, ascending
  std::size_t units = 0;
  std::size_t stride = 1;  // floors are those of the first positions of a walk in steps of this
  std::size_t UnitAt(std::size_t position) const {
    return position < floors.size() ? floors[position].second : position * stride % units;
  }
};

// Until the limit is reached, or `progress` throws.
class Watch {
 public:
  Watch(const Limit& limit, const Progress& progress)
      : limit_(limit), progress_(progress), stop_(limit.Reached()) {}
  const std::atomic<bool>& stop() const { return stop_; }
  void operator()(double share) {
    if (limit_.Reached()) stop_ = true;
    if (!progress_) return;
    try {
      progress_(share);
    } catch (...) {
      stop_ = true;
      throw;
    }
  }
  // Whether somebody has to look after the workers.
  bool needed() const { return limit_.deadline || limit_.stop != nullptr || progress_; }

 private:
  const Limit limit_;
  const Progress& progress_;
  std::atomic<bool> stop_;
};

void ForEachUnit(std::size_t count, int threads, Watch& watch,
                 const std::function<void(int, std::size_t)>& work) {
  ForEachInParallel(count, threads, work,
                    watch.needed() ? Progress([&](double share) { watch(share); }) : Progress());
}

using Estimators = std::vector<Estimator>;  // one a thread

std::vector<SearchWorker> Workers(const Space& space, const Estimators& estimators,
                                  const Watch& watch) {
  std::vector<SearchWorker> workers;
  workers.reserve(estimators.size());
  for (const Estimator& estimator : estimators) {
    workers.emplace_back(space, estimator, watch.stop());
  }
  return workers;
}

struct Visited {
  Findings findings;
  // Of what was not visited to its end: the least floor.  Infinite: all was.
  Seconds least_open{std::numeric_limits<double>::infinity()};
};

// The findings of all parts, on each of them.
Visited Together(Visited own, const SearchPart& part, const TrainingConfig& training) {
  if (part.count == 1) return own;
  constexpr std::size_t kWidth = sizeof own.least_open;
  std::string text(kWidth, '\0');
  std::memcpy(text.data(), &own.least_open, kWidth);
  text += BytesOf(own.findings);
  Visited all;
  all.findings.objective = own.findings.objective;
  for (const std::string& other : part.gather(text)) {
    Seconds open;
    std::memcpy(&open, other.data(), kWidth);
    all.least_open = std::min(all.least_open, open);
    Merge(all.findings, FindingsOf(std::string_view(other).substr(kWidth), training));
  }
  return all;
}

// This part's share of the space.  `ideal` is the floor of units of which none is known.
Visited Visit(const Space& space, const VisitOrder& order, Seconds ideal,
              const Estimators& estimators, const SearchPart& part, Watch&& watch) {
  std::vector<SearchWorker> workers = Workers(space, estimators, watch);
  std::vector<Seconds> open(estimators.size(), Visited{}.least_open);
  ForEachUnit(order.units, int(estimators.size()), watch, [&](int thread, std::size_t position) {
    const std::size_t unit = order.UnitAt(position);
    if (space.PartOf(unit, std::size_t(part.count)) != std::size_t(part.index)) return;
    if (!watch.stop() && workers[std::size_t(thread)].Run(unit)) return;
    Seconds& least = open[std::size_t(thread)];
    least = std::min(least, position < order.floors.size() ? order.floors[position].first : ideal);
  });
  Visited visited;
  visited.findings.objective = space.objective;
  for (const SearchWorker& worker : workers) Merge(visited.findings, worker.findings());
  visited.least_open = *std::min_element(open.begin(), open.end());
  return visited;
}

// As many floors as there is time for, and spread over the space where that is not for all.
VisitOrder OrderByFloors(const Space& space, const Estimators& estimators, Watch&& watch) {
  constexpr std::size_t kMost = 1 << 20;
  constexpr double kGolden = 0.618;
  VisitOrder order{.floors = {}, .units = space.units()};
  order.stride = std::max<std::size_t>(1, std::size_t(kGolden * double(order.units)));
  while (std::gcd(order.stride, order.units) > 1) ++order.stride;
  std::vector<Seconds> floors(std::min(kMost, order.units), Seconds(-1));
  const std::vector<SearchWorker> workers = Workers(space, estimators, watch);
  ForEachUnit(floors.size(), int(estimators.size()), watch, [&](int thread, std::size_t position) {
    if (watch.stop()) return;
    floors[position] = workers[std::size_t(thread)].Floor(order.UnitAt(position));
  });
  floors.erase(std::find(floors.begin(), floors.end(), Seconds(-1)), floors.end());
  std::vector<std::pair<Seconds, std::size_t>> known;
  known.reserve(floors.size());
  for (std::size_t i = 0; i < floors.size(); ++i) known.emplace_back(floors[i], order.UnitAt(i));
  std::sort(known.begin(), known.end());
  order.floors = std::move(known);
  return order;
}

// The units that the coarse part has, of every tensor and context cut in turn: those whose work
// takes least may be too large for the memory, one and all.
VisitOrder CoarseOrder(const VisitOrder& order, const Space& space, const Space& coarse) {
  const std::size_t all = space.micro_batches.size(), few = coarse.micro_batches.size();
  std::map<std::pair<int, int>, int> of_cut;
  std::vector<std::pair<int, std::pair<Seconds, std::size_t>>> turns;
  for (const auto& [floor, unit] : order.floors) {
    if (unit % all >= few) continue;
    const LayerShape shape = space.ShapeOf(unit);
    const int turn = of_cut[{shape.tensor, shape.context}]++;
    turns.push_back({turn, {floor, unit / all * few + unit % all}});
  }
  std::sort(turns.begin(), turns.end());
  VisitOrder result{.floors = {}, .units = turns.size()};
  for (const auto& [turn, unit] : turns) result.floors.push_back(unit);
  return result;
}

// What the model's FLOPs take where every GPU runs at its peak.
Seconds IdealStep(const Space& space) {
  TrainingConfig causal = space.training;
  causal.mfu_convention = MfuConvention::kCausal;
  return FlopsOfStep(space.model, causal, {}).model / space.cluster.gpu().peak(causal.precision) /
         double(space.cluster.gpus());
}

// The plans alone: what was counted is counted where it is visited again.
Findings PlansOf(Findings findings) {
  findings.searched = 0;
  findings.ruled_out = {};
  findings.rejected = {};
  for (OutOfMemory& item : findings.out_of_memory) item.count = 0;
  return findings;
}

// What a pipeline rank may do by itself; of what is equally fast the first is taken.
std::vector<Recompute> ChoicesOfRank(const Space& space, ScheduleKind schedule) {
  std::vector<Recompute> choices = space.choices;
  std::stable_partition(choices.begin(), choices.end(),
                        [](const Recompute& choice) { return choice == Recompute{}; });
  for (int n = 1; n < space.model.num_layers && space.partial_recompute; ++n) {
    const Recompute first{
        .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = n};
    if (space.filter.Allows(first)) choices.push_back(first);
  }
  if (!CanOffload(schedule)) return choices;
  for (const Recompute& choice : space.offloads) {
    for (int n = 1; n <= space.model.num_layers; ++n) {
      choices.push_back(choice);
      choices.back().offload_layers = n;
      if (!space.filter.Allows(Knob::kOffload, n)) choices.pop_back();
    }
  }
  return choices;
}

void Take(const std::vector<std::optional<Estimate>>& estimates, const Space& space,
          Findings& all) {
  for (const std::optional<Estimate>& estimate : estimates) {
    if (!estimate) continue;
    const RankedPlan plan{estimate->plan, estimate->step, estimate->peak};
    std::optional<RankedPlan>& best = all.best[KeyOf(plan.plan, space.training)];
    if (!best || Before(plan, *best)) best = plan;
    all.leaders.Add(plan, space.training);
    all.pareto.Add(plan);
  }
}

// Does `work` for the first items while there is time, and says how many are left.
std::int64_t InTime(std::size_t items, const Estimators& estimators, const Limit& limit,
                    const std::function<void(int, std::size_t)>& work) {
  std::atomic<std::int64_t> left = 0;
  ForEachInParallel(items, int(estimators.size()),
                    [&](int thread, std::size_t i) {
                      if (limit.Reached()) {
                        ++left;
                      } else {
                        work(thread, i);
                      }
                    },
                    {});
  return left;
}

// Chooses recomputation for each rank of the candidates, and of the `top` plans that were fastest
// with it where ranks with the same layers had to do the same.
void ChooseByRank(const Space& space, const Estimators& estimators, const SearchOptions& options,
                  std::vector<RankedPlan> candidates, Findings& all, Certificate& certificate) {
  std::vector<RankedPlan> found;
  for (const auto& [key, plan] : all.by_rank) {
    if (plan) found.push_back(*plan);
  }
  std::sort(found.begin(), found.end(), Before);
  if (int(found.size()) > options.top) found.resize(std::size_t(options.top));
  candidates.insert(candidates.end(), found.begin(), found.end());
  std::vector<ParallelConfig> plans;
  std::set<std::string> seen;  // without their recomputation, which is chosen anew
  for (const RankedPlan& candidate : candidates) {
    ParallelConfig plain = candidate.plan;
    plain.recompute = {};
    if (plain.pipeline > 1 && seen.insert(ShortName(plain)).second) plans.push_back(candidate.plan);
  }
  std::vector<std::optional<Estimate>> by_rank(plans.size());
  certificate.not_by_rank = InTime(
      plans.size(), estimators, {options.deadline, options.stop}, [&](int thread, std::size_t i) {
        by_rank[i] = BestByRank(estimators[std::size_t(thread)], plans[i], space.memory_limit,
                                ChoicesOfRank(space, plans[i].schedule));
      });
  certificate.by_rank = std::ssize(plans) - certificate.not_by_rank;
  for (const std::optional<Estimate>& estimate : by_rank) {
    if (!estimate) continue;
    // Of its layout without, whether the framework runs it or not.
    LayoutKey key = KeyOf(estimate->plan, space.training);
    bool faster = true;
    for (const int runs : {0, 1}) {
      key.back() = runs;
      const auto without = all.best.find(key);
      faster = faster && (without == all.best.end() || !without->second ||
                          estimate->step < without->second->step);
    }
    certificate.faster_by_rank += faster;
  }
  Take(by_rank, space, all);
}

// What may be divided next: of each layout what could be its fastest plan, if it were divided as
// well as whole layers allow and if memory let it, and of these the first `top`.
std::vector<RankedPlan> NextToDivide(const Space& space, const Findings& all, int top,
                                     Seconds limit, std::span<const RankedPlan> divided) {
  std::vector<RankedPlan> candidates = all.divisible.Sorted();
  const std::vector<RankedPlan> near = all.near.Sorted();
  candidates.insert(candidates.end(), near.begin(), near.end());
  std::sort(candidates.begin(), candidates.end(), Before);
  std::set<LayoutKey> seen;
  std::vector<RankedPlan> next;
  for (const RankedPlan& candidate : candidates) {
    if (candidate.step > limit || int(next.size()) == top) break;
    const LayoutKey key = KeyOf(candidate.plan, space.training);
    const auto best = all.best.find(key);
    const bool has_best = best != all.best.end() && best->second;
    if (has_best && candidate.step >= best->second->step) continue;
    if (Holds(divided, candidate) || !seen.insert(key).second) continue;
    next.push_back(candidate);
  }
  return next;
}

// What all ranks of a pipeline may do when its layers are divided anew: of the layers of a chunk
// that are recomputed in full a few numbers.
std::vector<Recompute> ChoicesOfAll(const Space& space, const ParallelConfig& plan) {
  constexpr int kNumbers = 8;
  std::vector<Recompute> choices = space.choices;
  if (!space.partial_recompute) return choices;
  const int longest = (space.model.num_layers - 1) / StagesPerCopy(plan) + 2;  // or next to it
  const int step = (longest + kNumbers - 1) / kNumbers;
  for (int n = step; n < longest; n += step) {
    const Recompute first{
        .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = n};
    if (space.filter.Allows(first)) choices.push_back(first);
  }
  return choices;
}

// Divides the layers anew of all that may be among the `top` plans with it, fit or nearly fit, but
// for those that it was done for before, which it adds to.  For how many there was no time.
// `progress` is called with `share` now and then.
std::int64_t DivideBest(const Space& space, const Estimators& estimators, const Limit& until,
                        int top, const Progress& progress, double share, Findings& all,
                        std::vector<RankedPlan>& divided) {
  while (true) {
    if (progress) progress(share);
    const std::vector<RankedPlan> table = BestOfLayouts(all, top, false);
    const Seconds limit = int(table.size()) == top
                              ? table.back().step
                              : std::max(space.table_limit.step, space.front_limit);
    const std::vector<RankedPlan> next = NextToDivide(space, all, top, limit, divided);
    if (next.empty()) return 0;
    std::vector<std::optional<Estimate>> split(next.size());
    const std::int64_t left =
        InTime(next.size(), estimators, until, [&](int thread, std::size_t i) {
          split[i] = BestSplitOfAny(estimators[std::size_t(thread)], next[i].plan,
                                    space.memory_limit, ChoicesOfAll(space, next[i].plan), limit);
        });
    Take(split, space, all);
    if (left > 0) return left;
    divided.insert(divided.end(), next.begin(), next.end());
  }
}

// Of those whose layers were divided anew so many get their recomputation chosen by rank as well.
constexpr std::size_t kMostByRank = 64;

// Divides the layers anew of what may be among the best with it; of as many that are next to as
// fast, which simulation may prefer; and, where fewer layouts fit than are asked for, of what comes
// nearest in the others.  Chooses recomputation for each of their ranks, where that is asked for.
void SplitLayers(const Space& space, const Estimators& estimators, const SearchOptions& options,
                 std::vector<RankedPlan> divided, Findings& all, SearchResult& result) {
  const int top = options.top;
  std::optional<Clock::time_point> until = options.deadline;
  if (until && options.recompute_by_rank) {  // half of what is left is for that
    const Clock::time_point now = Clock::now();
    until = now + (*until - now) / 2;
  }
  const Limit limit{until, options.stop};
  std::int64_t& undivided = result.certificate.undivided;
  undivided = DivideBest(space, estimators, limit, top, options.progress, 1, all, divided);

  const std::vector<RankedPlan> table = BestOfLayouts(all, top, false);
  const bool enough = int(table.size()) == top;
  std::vector<RankedPlan> more;
  for (const RankedPlan& plan : all.divisible.Sorted()) {
    if (int(more.size()) == top || (enough && plan.step > table.back().step)) break;
    if (!Holds(divided, plan)) more.push_back(plan);
  }
  const std::size_t others = more.size();
  std::vector<RankedPlan> least;
  for (const auto& [key, plan] : all.least) {
    if (!enough && plan && !all.best[key]) least.push_back(*plan);
  }
  std::sort(least.begin(), least.end(), Smaller);
  if (int(least.size()) > top) least.resize(std::size_t(top));
  more.insert(more.end(), least.begin(), least.end());
  std::vector<std::optional<Estimate>> split(more.size());
  undivided += InTime(more.size(), estimators, limit, [&](int thread, std::size_t i) {
    const Estimator& estimator = estimators[std::size_t(thread)];
    split[i] = i < others ? BestSplit(estimator, more[i].plan, space.memory_limit)
                          : BestSplitOfAny(estimator, more[i].plan, space.memory_limit,
                                           ChoicesOfAll(space, more[i].plan),
                                           Seconds(std::numeric_limits<double>::infinity()));
  });
  Take(split, space, all);
  if (!options.recompute_by_rank) return;
  result.without_by_rank = BestOfLayouts(all, top, false);
  std::sort(divided.begin(), divided.end(), Before);
  if (divided.size() > kMostByRank) divided.resize(kMostByRank);
  divided.insert(divided.end(), more.begin(), more.end());
  divided.insert(divided.end(), table.begin(), table.end());
  ChooseByRank(space, estimators, options, divided, all, result.certificate);
}

// What of the space can matter, after a coarse search of it.  The table of the framework's own
// plans is promised as well as that of all.
void SetLimits(Space& space, const Findings& coarse, int top) {
  const std::vector<RankedPlan> best = BestOfLayouts(coarse, top, false);
  if (int(best.size()) < top) return;
  Seconds limit = best.back().step;
  Bytes peak = best.back().peak;
  const bool in_framework = AnySchedule(space.layouts, [&](ScheduleKind schedule) {
    return RunsIn(space.training.framework, schedule);
  });
  if (in_framework) {
    const std::vector<RankedPlan> own = BestOfLayouts(coarse, top, true);
    if (int(own.size()) < top) return;
    limit = std::max(limit, own.back().step);
    peak = std::max(peak, own.back().peak);
  }
  // The fastest candidate with its layers as they are is found too.
  const Seconds least = std::isfinite(coarse.fastest.value) ? coarse.fastest : Seconds(0);
  space.table_limit = {.step = std::max(limit, least), .peak = peak};
  space.others_limit = {.step = std::max(best.back().step, least), .peak = best.back().peak};
  space.front_limit = kParetoSpan * coarse.pareto.plans().front().step;
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
  const bool offload = options.offload || options.filter.About(Knob::kOffload).required;
  Space space =
      SpaceOf(model, training, cluster, options.filter, result.memory_limit, offload, all);
  space.exhaustive = options.exhaustive;
  space.divide = options.split_layers && options.objective != Objective::kMemory;
  space.by_rank = options.recompute_by_rank;
  space.objective = all.objective = options.objective;
  const int threads = options.threads > 0 ? options.threads : Cores();
  const Estimators estimators = EstimatorsFor(model, training, cluster, threads);

  // Shares of the time there is, where there is a deadline.
  constexpr double kForFloors = 0.15, kForCoarse = 0.35, kForOthers = 0.5;
  const double for_visits = !space.divide ? 1 : options.recompute_by_rank ? 0.8 : 0.95;
  const auto start = Clock::now();
  const auto until = [&](double share) -> Limit {
    if (!options.deadline) return {.deadline = {}, .stop = options.stop};
    return {
        start + std::chrono::duration_cast<Clock::duration>(share * (*options.deadline - start)),
        options.stop};
  };
  const Progress first = options.progress ? [&](double) { options.progress(0); } : Progress();
  VisitOrder order{.floors = {}, .units = space.units()};
  const Seconds ideal = IdealStep(space);
  if (options.deadline) order = OrderByFloors(space, estimators, {until(kForFloors), first});
  Findings coarse;
  coarse.objective = space.objective;
  std::vector<RankedPlan> divided;  // whose layers were divided anew
  for (const CoarseStage stage : {CoarseStage::kFirst, CoarseStage::kOwn, CoarseStage::kOthers}) {
    const Space part = CoarsePart(space, stage);
    if (part.layouts.empty()) continue;
    const VisitOrder part_order = options.deadline
                                      ? CoarseOrder(order, space, part)
                                      : VisitOrder{.floors = {}, .units = part.units()};
    const double share = stage == CoarseStage::kOthers ? kForOthers : kForCoarse;
    Merge(coarse, Visit(part, part_order, ideal, estimators, {}, {until(share), first}).findings);
    if (space.divide) {
      DivideBest(space, estimators, until(share), options.top, options.progress, 0, coarse,
                 divided);
    }
    if (!space.exhaustive) SetLimits(space, coarse, options.top);
  }
  Visited own =
      Visit(space, order, ideal, estimators, options.part, {until(for_visits), options.progress});
  // Of what is visited again there may be no time for some; and with layers divided anew others are
  // ruled out by it.
  Merge(own.findings, PlansOf(coarse));
  const Visited visited = Together(std::move(own), options.part, training);
  Merge(all, visited.findings);

  // Of the candidates, whose layers are as even as can be.
  Certificate& certificate = result.certificate;
  certificate.costed = all.searched;
  certificate.ruled_out = all.ruled_out;
  certificate.space = std::accumulate(all.ruled_out.begin(), all.ruled_out.end(), all.searched);
  if (std::isfinite(visited.least_open.value)) {
    const std::int64_t seen = certificate.space;
    certificate.space = CandidateCount(space).OfAll();
    certificate.unvisited = certificate.space - seen;
  }
  certificate.best_bound = std::min(visited.least_open, all.fastest);
  if (std::isfinite(all.fastest.value)) {
    certificate.gap = all.fastest / certificate.best_bound - 1;
  }
  if (space.divide) SplitLayers(space, estimators, options, std::move(divided), all, result);

  result.searched = all.searched;
  result.rejected = all.rejected;
  result.out_of_memory = all.out_of_memory;
  for (OutOfMemory& item : result.out_of_memory) {
    if (item.nearest) item.stage = estimators.front().Itemise(item.nearest->plan).peak_stage;
  }
  result.plans = BestOfLayouts(all, options.top, false);
  result.in_framework = BestOfLayouts(all, options.top, true);
  if (options.objective != Objective::kMemory) {
    for (const RankedPlan& plan : all.leaders.Sorted()) {
      if (int(result.others.size()) < options.top && !Holds(result.plans, plan)) {
        result.others.push_back(plan);
      }
    }
  }
  if (result.plans.empty()) {
    result.nearest_miss = all.NearestMiss();
    return result;
  }
  const Seconds fastest = all.pareto.plans().front().step;
  const Bytes apart = 0.01 * cluster.gpu().hbm_capacity;
  for (const RankedPlan& plan : all.pareto.plans()) {
    if (plan.step > kParetoSpan * fastest) break;
    if (result.pareto.empty() || plan.peak + apart <= result.pareto.back().peak) {
      result.pareto.push_back(plan);
    }
  }
  return result;
}

}  // namespace millwright
