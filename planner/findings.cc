// SPDX-License-Identifier: Apache-2.0
#include "planner/findings.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace millwright {
namespace {

auto Degrees(const ParallelConfig& p) {
  return std::tuple(p.schedule != ScheduleKind::k1F1B, p.schedule, p.recompute.granularity,
                    p.recompute.full_layers, p.recompute.offload_layers, p.recompute.modules.size(),
                    p.recompute.modules, p.zero, p.zero_shard, p.tensor, p.sequence_parallel,
                    p.context, p.context_kind, p.pipeline, p.virtual_stages, p.expert,
                    p.expert_tensor, p.micro_batch_size, p.stage_layers, p.order, p.context_ulysses,
                    p.rank_recompute);
}

}  // namespace

bool Before(const RankedPlan& a, const RankedPlan& b) {
  if (a.step != b.step) return a.step < b.step;
  if (a.peak != b.peak) return a.peak < b.peak;
  return Degrees(a.plan) < Degrees(b.plan);
}

bool Smaller(const RankedPlan& a, const RankedPlan& b) {
  return a.peak != b.peak ? a.peak < b.peak : Before(a, b);
}

bool Holds(std::span<const RankedPlan> plans, const RankedPlan& plan) {
  return std::any_of(plans.begin(), plans.end(),
                     [&](const RankedPlan& other) { return other.plan == plan.plan; });
}

std::span<const EnumName<Objective>> ObjectiveNames() {
  static constexpr EnumName<Objective> kNames[] = {{Objective::kThroughput, "throughput"},
                                                   {Objective::kCost, "cost"},
                                                   {Objective::kMemory, "memory"}};
  return kNames;
}

bool Better(Objective objective, const RankedPlan& a, const RankedPlan& b) {
  if (objective == Objective::kMemory) return Smaller(a, b);
  // What offloads for nothing may wait for it where the estimate does not see it.
  const bool offloads = a.plan.Offloads();
  if (a.step == b.step && offloads != b.plan.Offloads()) return !offloads;
  return Before(a, b);
}

std::string_view Name(Bound bound) {
  switch (bound) {
    case Bound::kModelState:
      return "model state over the memory";
    case Bound::kOneLayer:
      return "one layer over the memory";
    case Bound::kWork:
      return "too slow with all GPUs busy";
    case Bound::kSlowestRank:
      return "too slow with the fullest rank busy";
    case Bound::kRecompute:
      return "too slow with the least that recomputation costs";
    case Bound::kChoice:
      return "no better than another choice of recomputation";
  }
  return {};
}

std::string_view JsonKey(Bound bound) {
  switch (bound) {
    case Bound::kModelState:
      return "model_state";
    case Bound::kOneLayer:
      return "one_layer";
    case Bound::kWork:
      return "work";
    case Bound::kSlowestRank:
      return "slowest_rank";
    case Bound::kRecompute:
      return "recompute";
    case Bound::kChoice:
      return "choice";
  }
  return {};
}

bool ParetoFront::Admits(Seconds step, Bytes peak) const {
  const auto after =
      std::upper_bound(plans_.begin(), plans_.end(), step,
                       [](Seconds s, const RankedPlan& plan) { return s < plan.step; });
  return after == plans_.begin() || peak < std::prev(after)->peak ||
         (std::prev(after)->step == step && std::prev(after)->peak == peak);
}

void ParetoFront::Add(const RankedPlan& plan) {
  if (!Admits(plan.step, plan.peak)) return;
  const auto at = std::lower_bound(plans_.begin(), plans_.end(), plan, Before);
  if (at != plans_.begin() && std::prev(at)->peak <= plan.peak) return;
  auto end = at;
  while (end != plans_.end() && end->peak >= plan.peak) ++end;
  plans_.insert(plans_.erase(at, end), plan);
}

bool ParetoFront::Beats(Seconds step, Bytes peak) const {
  const auto at = std::lower_bound(plans_.begin(), plans_.end(), step,
                                   [](const RankedPlan& plan, Seconds s) { return plan.step < s; });
  return at != plans_.begin() && std::prev(at)->peak <= peak;
}

LayoutKey KeyOf(const ParallelConfig& plan, const TrainingConfig& training) {
  return {plan.tensor, plan.context,       static_cast<int>(plan.context_kind),     plan.pipeline,
          plan.expert, plan.expert_tensor, RunsIn(training.framework, plan) ? 1 : 0};
}

void Leaders::Add(const RankedPlan& plan, const TrainingConfig& training) {
  if (!Admits(plan.step)) return;
  Key key{};
  const LayoutKey layout = KeyOf(plan.plan, training);
  std::copy(layout.begin(), layout.end(), key.begin());
  key[layout.size()] = static_cast<int>(plan.plan.schedule);
  key[layout.size() + 1] = plan.plan.micro_batch_size;
  if (apart_ == Apart::kShardings) {
    key[layout.size() + 2] = plan.plan.zero;
    key[layout.size() + 3] = plan.plan.Offloads() ? 1 : 0;
  }
  Add(key, plan);
}

void Leaders::Add(const Key& key, const RankedPlan& plan) {
  const auto [slot, inserted] = plans_.try_emplace(key, plan);
  if (!inserted && Before(plan, slot->second)) slot->second = plan;
  if (plans_.size() < 2 * kMost) return;
  // One that is dropped comes back if a faster plan of its key is found, so that none is missed.
  const RankedPlan last = Sorted().back();
  std::erase_if(plans_, [&](const auto& other) { return Before(last, other.second); });
  limit_ = last.step;
}

void Leaders::Merge(const Leaders& other) {
  for (const auto& [key, plan] : other.plans_) Add(key, plan);
}

std::vector<RankedPlan> Leaders::Sorted() const {
  std::vector<RankedPlan> sorted;
  for (const auto& [key, plan] : plans_) sorted.push_back(plan);
  std::sort(sorted.begin(), sorted.end(), Before);
  if (sorted.size() > kMost) sorted.resize(kMost);
  return sorted;
}

OutOfMemory& Findings::RejectForMemory(MemoryItem largest, std::int64_t plans) {
  rejected[static_cast<int>(RejectionReason::kOutOfMemory)] += plans;
  OutOfMemory& of_item = out_of_memory[static_cast<int>(largest)];
  of_item.count += plans;
  return of_item;
}

std::optional<RankedPlan> Findings::NearestMiss() const {
  std::optional<RankedPlan> nearest;
  for (const OutOfMemory& item : out_of_memory) {
    if (!item.nearest) continue;
    if (!nearest || Smaller(*item.nearest, *nearest)) nearest = item.nearest;
  }
  return nearest;
}

void Merge(Findings& into, const Findings& from) {
  const auto keep = [&](Objective objective, auto& all, const auto& more) {
    for (const auto& [key, plan] : more) {
      std::optional<RankedPlan>& slot = all[key];
      if (plan && (!slot || Better(objective, *plan, *slot))) slot = plan;
    }
  };
  keep(into.objective, into.best, from.best);
  into.leaders.Merge(from.leaders);
  into.divisible.Merge(from.divisible);
  into.near.Merge(from.near);
  keep(into.objective, into.by_rank, from.by_rank);
  keep(Objective::kMemory, into.least, from.least);
  for (const RankedPlan& plan : from.pareto.plans()) into.pareto.Add(plan);
  into.fastest = std::min(into.fastest, from.fastest);
  into.searched += from.searched;
  for (std::size_t i = 0; i < kBounds; ++i) into.ruled_out[i] += from.ruled_out[i];
  for (std::size_t i = 0; i < kRejectionReasons; ++i) into.rejected[i] += from.rejected[i];
  for (std::size_t i = 0; i < kMemoryItems; ++i) {
    OutOfMemory& item = into.out_of_memory[i];
    item.count += from.out_of_memory[i].count;
    const std::optional<RankedPlan>& nearest = from.out_of_memory[i].nearest;
    if (nearest && (!item.nearest || Smaller(*nearest, *item.nearest))) item.nearest = nearest;
  }
}

std::vector<RankedPlan> BestOfLayouts(const Findings& findings, int top, bool in_framework) {
  std::vector<RankedPlan> plans;
  // Of one layout's two the one that is no framework's comes first.
  const LayoutKey* last = nullptr;
  for (const auto& [key, plan] : findings.best) {
    if (!plan || (in_framework && key.back() == 0)) continue;
    const bool same = last != nullptr && std::equal(key.begin(), key.end() - 1, last->begin());
    if (!same) {
      plans.push_back(*plan);
    } else if (Better(findings.objective, *plan, plans.back())) {
      plans.back() = *plan;
    }
    last = &key;
  }
  std::sort(plans.begin(), plans.end(), [&](const RankedPlan& a, const RankedPlan& b) {
    return Better(findings.objective, a, b);
  });
  if (int(plans.size()) > top) plans.resize(std::size_t(top));
  return plans;
}

}  // namespace millwright
