// SPDX-License-Identifier: Apache-2.0
#include "planner/search_worker.h"

#include <algorithm>
#include <cmath>

#include "planner/feasibility.h"
#include "planner/fullest_rank.h"

namespace millwright {
namespace {

// A plan this much too large may fit with its layers divided otherwise.
constexpr double kNearlyFits = 1.6;

const Recompute kFirstLayer{
    .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = 1};

// The layers of one micro-batch on the rank that has most of them, with nothing run again; and
// where layers may be divided otherwise, on the one that has most then.
struct LayersWork {
  Seconds work, overlapped;  // the latter where communication may run under all compute
};
LayersWork SlowestRank(const ShapeCosts& costs, const std::vector<StageContent>& stages,
                       bool divides) {
  LayersWork slowest;
  if (divides) {
    RanksToFill<Seconds> ranks;
    std::vector<LayersToDivide<Seconds>> layers(costs.kinds.size()), overlapped = layers;
    for (const StageContent& stage : stages) {
      ranks.count += double(stage.ranks.size());
      for (std::size_t k = 0; k < layers.size(); ++k) {
        layers[k].count += double(stage.ranks.size()) * stage.layers[k];
      }
    }
    for (std::size_t k = 0; k < layers.size(); ++k) {
      const PassTime work = costs.kinds[k].forward + costs.kinds[k].backward;
      layers[k].each = work.total();
      overlapped[k] = {.count = layers[k].count, .each = work.longest()};
    }
    return {.work = LeastOfFullest<Seconds>(layers, {&ranks, 1}),
            .overlapped = LeastOfFullest<Seconds>(overlapped, {&ranks, 1})};
  }
  for (const StageContent& stage : stages) {
    PassTime work;
    for (std::size_t k = 0; k < stage.layers.size(); ++k) {
      work += double(stage.layers[k]) * (costs.kinds[k].forward + costs.kinds[k].backward);
    }
    slowest.work = std::max(slowest.work, work.total());
    slowest.overlapped = std::max(slowest.overlapped, work.longest());
  }
  return slowest;
}

bool SameButForContextKind(LayerShape a, const LayerShape& b) {
  a.context_kind = b.context_kind;
  a.context_ulysses = b.context_ulysses;
  return a == b;
}

void Approach(std::optional<RankedPlan>& nearest, const QuickCost& cost, const ParallelConfig& plan,
              const Recompute& recompute) {
  if (nearest && cost.peak > nearest->peak) return;
  RankedPlan miss{plan, cost.step, cost.peak};
  miss.plan.recompute = recompute;
  if (!nearest || Smaller(miss, *nearest)) nearest = std::move(miss);
}

void Shard(ParallelConfig& plan, const Sharding& sharding) {
  plan.zero = sharding.zero;
  plan.zero_shard = sharding.shard;
  plan.order = sharding.order;
}

}  // namespace

// Every rank busy all the time with this cut's work: no pipeline or sharding is faster.
Seconds SearchWorker::FloorOf(const LayerShape& shape, Seconds work, Seconds overlapped) const {
  return (double(space_.training.global_batch_size) * shape.tensor * shape.context /
          (double(space_.cluster.gpus()) * shape.micro_batch_size)) *
         (space_.overlapping ? overlapped : work);
}

Seconds SearchWorker::Floor(std::size_t unit) const {
  return FloorOf(estimator_.CostShape(space_.ShapeOf(unit)));
}

void SearchWorker::Enter(const LayerShape& shape) {
  smallest_ = shape.micro_batch_size == space_.micro_batches.front();
  LayerShape cut = shape;
  cut.micro_batch_size = space_.micro_batches.front();
  cut.context_kind = ContextParallelKind::kRing;
  cut.context_ulysses = 0;
  if (cut == cut_) return;
  cut_ = cut;
  floors_.clear();
}

StateFloor SearchWorker::LeastState() {
  const auto [known, inserted] = least_states_.try_emplace(
      {cut_.tensor, cut_.sequence_parallel, cut_.context, cut_.expert, cut_.expert_tensor});
  StateFloor& least = known->second;
  if (!inserted) return least;
  least.bytes = Bytes(std::numeric_limits<double>::infinity());
  const ShapeCosts costs = estimator_.CostShape(cut_);
  ParallelConfig plan = space_.PlanOf(cut_);
  ForEachPipeline(plan, [&](const std::vector<PipelineLayout>& layouts) {
    if (CheckPipeline(plan)) return true;
    const std::vector<Sharding> shardings = space_.Shardings(plan);
    for (const PipelineLayout& layout : layouts) {
      plan.virtual_stages = layout.virtual_stages;
      plan.schedule = layout.schedules.front();
      std::vector<std::optional<StateFloor>>& floors = floors_[&layout];
      floors.resize(shardings.size());
      for (std::size_t i = 0; i < shardings.size(); ++i) {
        Shard(plan, shardings[i]);
        floors[i] = PipelineTerms::StateFloorOf(estimator_, costs, layout.stages, plan,
                                                space_.divide && layout.divides);
        if (floors[i]->bytes < least.bytes) least = *floors[i];
        if (least.bytes <= space_.memory_limit) return false;
      }
    }
    return true;
  });
  return least;
}

void SearchWorker::RuleOut(const StateFloor& too_large, std::int64_t candidates) {
  findings_.RejectForMemory(too_large.largest, candidates);
  findings_.RuleOut(Bound::kModelState, candidates);
}

bool SearchWorker::Run(std::size_t unit) {
  const LayerShape shape = space_.ShapeOf(unit);
  Enter(shape);
  const auto too_slow = [&](std::int64_t candidates) {
    ++findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)];
    findings_.RuleOut(Bound::kWork, candidates);
    return true;
  };
  // Where no plan is known that others would be slower than, this is most of what there is.
  if (!space_.exhaustive && !space_.limited() && !smallest_) {
    const StateFloor least = LeastState();
    if (least.bytes > space_.memory_limit && count_.Of(shape) <= count_.Of(cut_)) {
      RuleOut(least, count_.Of(shape));
      return true;
    }
  }
  // What rules out one kind of context parallelism without what is its own rules out the others,
  // of which there are as many candidates.
  Shared& shared = shared_[unit % space_.micro_batches.size()];
  if (SameButForContextKind(shape, shared.shape) &&
      space_.Irrelevant(shared.floor, shared.least_layer)) {
    return too_slow(shared.candidates);
  }
  const LeastWork least = estimator_.LeastWorkOf(shape);
  if (space_.Irrelevant(FloorOf(shape, least.work, least.overlapped), least.least_layer)) {
    shared = {.shape = shape,
              .floor = FloorOf(shape, least.shared_work, least.shared_overlapped),
              .least_layer = least.least_layer,
              .candidates = count_.Of(shape)};
    return too_slow(shared.candidates);
  }
  const ShapeCosts costs = estimator_.CostShape(shape);
  if (space_.Irrelevant(FloorOf(costs), costs.least_layer)) return too_slow(count_.Of(shape));
  // The smallest micro-batch is costed all the same, for the plan that comes nearest.
  if (costs.least_layer > space_.memory_limit && !smallest_ && !space_.exhaustive) {
    findings_.RejectForMemory(MemoryItem::kActivations, 1);
    findings_.RuleOut(Bound::kOneLayer, count_.Of(shape));
    return true;
  }
  treats_ = paired_ = false;
  RunPipelines(costs, space_.PlanOf(shape));
  return !stop_;
}

void SearchWorker::Treat(const ShapeCosts& costs) {
  treated_.clear();
  for (const Recompute& choice : space_.choices) treated_.push_back({&choice, costs.Treat(choice)});
  untreated_ = costs.Treat({});
  fully_ = costs.Treat(kFirstLayer);
  offloads_.clear();
  for (const Recompute& choice : space_.offloads) {
    Recompute offloaded = choice;
    offloaded.offload_layers = 1;
    offloads_.push_back({&choice, costs.Treat(offloaded), costs.Treat(choice)});
  }
  SetLeast(treated_);
  if (!space_.exhaustive) treated_ = Undominated(treated_);
  treats_ = true;
}

void SearchWorker::SetLeast(const std::vector<TreatedChoice>& choices) {
  least_.clear();
  const auto take = [&](const std::vector<TreatedLayer>& layers) {
    if (least_.empty()) least_ = layers;
    for (std::size_t k = 0; k < layers.size(); ++k) {
      TreatedLayer& least = least_[k];
      const TreatedLayer& layer = layers[k];
      least.backward = std::min(least.backward, layer.backward);
      least.pair = std::min(least.pair, layer.pair);
      least.pair_ends = std::min(least.pair_ends, layer.pair_ends);
      least.saved = std::min(least.saved, layer.saved);
      least.working_set = std::min(least.working_set, layer.working_set);
    }
  };
  for (const TreatedChoice& choice : choices) take(choice.treated);
  if (space_.partial_recompute || choices.empty()) {
    take(untreated_);
    take(fully_);
  }
  // Of offloading the least is that nothing waits for a copy and no buffer is needed.
  for (const Offload& offload : offloads_) {
    take(offload.offloaded);
    take(offload.others);
  }
  for (TreatedLayer& least : least_) {
    least.copy = Seconds(0);
    least.offloaded = Bytes(0);
  }
}

bool SearchWorker::PairFor(ScheduleKind schedule, const ShapeCosts& costs) {
  if (paired_ || !Overlaps(schedule)) return false;
  pair_treated_.clear();
  for (const Recompute& choice : space_.choices) {
    pair_treated_.push_back({&choice, costs.Treat(choice)});
    costs.Pair(choice, pair_treated_.back().treated);
  }
  costs.Pair({}, untreated_);
  costs.Pair(kFirstLayer, fully_);
  for (Offload& offload : offloads_) {
    costs.Pair(*offload.recompute, offload.offloaded);
    costs.Pair(*offload.recompute, offload.others);
  }
  paired_ = true;
  SetLeast(pair_treated_);
  if (!space_.exhaustive) pair_treated_ = Undominated(pair_treated_, true);
  return true;
}

template <class Act>
void SearchWorker::ForEachPipeline(ParallelConfig& plan, const Act& act) const {
  const std::int64_t cut = std::int64_t{1} * plan.tensor * plan.context;
  const std::int64_t gpus = space_.cluster.gpus();
  for (const auto& [pipeline, layouts] : space_.layouts) {
    if (gpus % (cut * pipeline) != 0) continue;
    plan.pipeline = pipeline;
    plan.data = int(gpus / (cut * pipeline));
    if (!act(layouts)) return;
  }
}

Verdict SearchWorker::CheckPipeline(const ParallelConfig& plan) const {
  if (!space_.filter.Allows(Knob::kDp, plan.data)) {
    return Rejection{RejectionReason::kForbidden, {}};
  }
  return CheckExpertRanks(space_.cluster.gpus() / plan.pipeline, plan.expert, plan.expert_tensor);
}

void SearchWorker::RunPipelines(const ShapeCosts& costs, ParallelConfig plan) {
  ForEachPipeline(plan, [&](const std::vector<PipelineLayout>& layouts) {
    if (const Verdict v = CheckPipeline(plan)) {
      findings_.Reject(*v);
      return true;
    }
    const std::vector<Sharding> shardings = space_.Shardings(plan);
    for (const PipelineLayout& layout : layouts) {
      if (stop_) return false;
      plan.virtual_stages = layout.virtual_stages;
      feasible_.clear();
      for (ScheduleKind schedule : layout.schedules) {
        if (const Verdict v = space_.Check(plan, schedule)) {
          findings_.Reject(*v);
        } else {
          feasible_.push_back(schedule);
        }
      }
      if (!feasible_.empty()) RunPipeline(costs, layout, shardings, plan);
    }
    return true;
  });
}

bool SearchWorker::SmallerIsNearer(ParallelConfig plan) const {
  plan.micro_batch_size = space_.micro_batches.front();
  return !smallest_ && !space_.Check(plan, plan.schedule);
}

void SearchWorker::RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout,
                               const std::vector<Sharding>& shardings, ParallelConfig plan) {
  divides_ = space_.divide && layout.divides;
  // Whatever the schedule and the sharding, the slowest rank has its work to do.
  const double micro_batches =
      double(space_.training.global_batch_size) / (double(plan.data) * plan.micro_batch_size);
  std::erase_if(
      feasible_, [&, floor = SlowestRank(costs, layout.stages, divides_)](ScheduleKind schedule) {
        const Seconds of_copy =
            (Overlaps(schedule) ? floor.overlapped : floor.work) / CopiesOfModel(schedule);
        const bool others = !RunsIn(space_.training.framework, schedule);
        if (!space_.Irrelevant(micro_batches * of_copy, costs.least_layer, others)) return false;
        ++findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)];
        findings_.RuleOut(Bound::kSlowestRank, count_.Of(layout, schedule, shardings));
        return true;
      });
  if (feasible_.empty()) return;
  std::vector<std::optional<StateFloor>>& floors = floors_[&layout];
  floors.resize(shardings.size());
  std::vector<std::optional<PipelineTerms>> terms(shardings.size());
  for (ScheduleKind schedule : feasible_) {
    plan.schedule = schedule;
    in_flight_ = nullptr;
    std::optional<bool> counted;  // what cannot hold its state, since a smaller one is looked at
    const auto hopeless = [&](const std::optional<StateFloor>& floor) {
      if (!floor || floor->bytes <= space_.memory_limit || space_.exhaustive) return false;
      if (!counted) counted = SmallerIsNearer(plan);
      return *counted;
    };
    for (std::size_t i = 0; i < shardings.size(); ++i) {
      Shard(plan, shardings[i]);
      if (!ShardsUnder(space_.training.framework, schedule, plan.zero)) continue;
      std::optional<StateFloor>& floor = floors[i];
      if (!hopeless(floor)) {
        if (terms[i]) {
          terms[i]->Reschedule(plan);
        } else {
          terms[i].emplace(estimator_, costs, layout.stages, plan);
        }
        if (!floor) floor = terms[i]->FloorOfState(divides_);
      }
      if (hopeless(floor)) {
        RuleOut(*floor, space_.Choices(layout, schedule));
      } else {
        CostChoices(costs, *terms[i], layout, plan);
      }
    }
  }
}

// Which does not depend on how the state is sharded.
void SearchWorker::SetInFlight(PipelineTerms& terms) {
  if (in_flight_ != nullptr) {
    terms.SetInFlight(*in_flight_);
  } else {
    terms.SetInFlight();
    in_flight_ = &terms;
  }
}

template <class Act>
void SearchWorker::ForEachChoice(const PipelineLayout& layout, ScheduleKind schedule,
                                 const Act& act) const {
  for (const TreatedChoice& choice : TreatedFor(schedule)) {
    act(RecomputeTerms{.treated = choice.treated, .rest = {}, .some = {}}, *choice.recompute);
  }
  if (space_.partial_recompute) {
    Recompute first{.granularity = RecomputeGranularity::kFull, .modules = {}};
    for (const PipelineLayout::OfChunk& full : layout.full) {
      first.full_layers = full.layers;
      act(RecomputeTerms{.treated = fully_, .rest = untreated_, .some = full.some}, first);
    }
  }
  if (!CanOffload(schedule)) return;
  for (const Offload& offload : offloads_) {
    Recompute spread = *offload.recompute;
    for (const PipelineLayout::OfChunk& of_chunk : layout.offload) {
      spread.offload_layers = of_chunk.layers;
      act(
          RecomputeTerms{
              .treated = offload.offloaded, .rest = offload.others, .some = of_chunk.some},
          spread);
    }
  }
}

void SearchWorker::CostChoices(const ShapeCosts& costs, PipelineTerms& terms,
                               const PipelineLayout& layout, const ParallelConfig& plan) {
  if (!treats_) Treat(costs);
  const LayoutKey key = KeyOf(plan, space_.training);
  best_ = &findings_.best[key];
  LayoutKey other = key;
  other.back() = 0;
  best_offloaded_ = offloads_.empty() ? best_ : &findings_.best[other];
  by_rank_ = space_.by_rank && plan.pipeline > 1 && FollowsFromStages(plan.schedule)
                 ? &findings_.by_rank[key]
                 : nullptr;
  least_miss_ = plan.pipeline > 1 && std::isinf(space_.table_limit.step.value)
                    ? &findings_.least[key]
                    : nullptr;
  const Bytes floor_peak = terms.FloorPeak(divides_);
  if (floor_peak > space_.memory_limit) {  // the state alone is too large
    CostHopeless(costs, terms, layout, plan);
    return;
  }
  bool in_flight = false;
  const auto set_in_flight = [&] {
    if (!in_flight) SetInFlight(terms);
    in_flight = true;
  };
  Seconds floor;
  const auto irrelevant = [&, others = key.back() == 0] {
    const RecomputeTerms least{.treated = least_, .rest = {}, .some = {}};
    floor = divides_ ? terms.StepIfDivided(least) : terms.Step(least);
    if (!space_.Irrelevant(floor, space_.memory_limit, others)) return false;
    if (space_.Irrelevant(floor, floor_peak, others)) return true;
    set_in_flight();
    return space_.Irrelevant(floor, terms.Cost(least).peak, others);
  };
  // First by the least that pairs can take.
  bool ruled_out = !space_.exhaustive && irrelevant();
  if (!ruled_out && PairFor(plan.schedule, costs)) {
    ruled_out = !space_.exhaustive && irrelevant();
  }
  if (ruled_out) {
    const std::int64_t candidates = space_.Choices(layout, plan.schedule);
    findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)] += candidates;
    findings_.RuleOut(Bound::kRecompute, candidates);
    return;
  }
  set_in_flight();
  findings_.RuleOut(Bound::kChoice,
                    std::ssize(space_.choices) - std::ssize(TreatedFor(plan.schedule)));
  ForEachChoice(layout, plan.schedule,
                [&](const RecomputeTerms& recompute_terms, const Recompute& recompute) {
                  Cost(terms, recompute_terms, plan, recompute);
                });
  const bool may_be_faster =
      by_rank_ != nullptr && (!*by_rank_ || space_.exhaustive || floor <= (*by_rank_)->step);
  if (may_be_faster) CostByRank(terms, layout, plan);
}

// Ranks with the same layers are one stage here, of which the first holds most: what each of them
// may do by itself, and other layers, are for those that are best so (planner/layer_split).
void SearchWorker::CostByRank(const PipelineTerms& terms, const PipelineLayout& layout,
                              const ParallelConfig& plan) {
  const Bytes host = space_.cluster.config().host_memory / double(space_.cluster.gpus_per_domain());
  std::vector<std::optional<RankCost>> best(layout.stages.size());
  ForEachChoice(layout, plan.schedule, [&](const RecomputeTerms& choice, const Recompute&) {
    const std::vector<RankCost> costs = terms.CostOfRanks(choice);
    for (std::size_t s = 0; s < costs.size(); ++s) {
      if (costs[s].peak > space_.memory_limit || !HostHolds(costs[s].host, host)) continue;
      if (!best[s] || costs[s].time < best[s]->time) best[s] = costs[s];
    }
  });
  RankedPlan found{plan, {}, {}};
  std::vector<RankCost> of_stages;
  for (const std::optional<RankCost>& stage : best) {
    if (!stage) return;
    of_stages.push_back(*stage);
    found.peak = std::max(found.peak, stage->peak);
  }
  found.step = terms.StepOf(of_stages);
  if (!*by_rank_ || Before(found, **by_rank_)) *by_rank_ = std::move(found);
}

void SearchWorker::CostHopeless(const ShapeCosts& costs, PipelineTerms& terms,
                                const PipelineLayout& layout, const ParallelConfig& plan) {
  const std::int64_t open =
      space_.Choices(layout, plan.schedule) - std::ssize(space_.choices) + std::ssize(treated_);
  std::optional<RankedPlan>& nearest =
      findings_.RejectForMemory(terms.LargestFloorItem(), open).nearest;
  // It may still be the nearest miss; or fit where stages with embedding or head have fewer layers.
  const bool may_divide =
      least_miss_ != nullptr && terms.FloorPeak(false) <= kNearlyFits * space_.memory_limit;
  if (!nearest || terms.FloorPeak(false) <= nearest->peak || may_divide || space_.exhaustive) {
    SetInFlight(terms);
    PairFor(plan.schedule, costs);
    ForEachChoice(layout, plan.schedule,
                  [&](const RecomputeTerms& recompute_terms, const Recompute& recompute) {
                    const QuickCost cost = terms.Cost(recompute_terms);
                    Approach(nearest, cost, plan, recompute);
                    if (may_divide) Approach(*least_miss_, cost, plan, recompute);
                  });
  }
  if (space_.exhaustive) {
    findings_.searched += open;
  } else {
    findings_.RuleOut(Bound::kModelState, space_.Choices(layout, plan.schedule));
  }
}

void SearchWorker::Cost(const PipelineTerms& terms, const RecomputeTerms& recompute_terms,
                        const ParallelConfig& plan, const Recompute& recompute) {
  const QuickCost cost = terms.Cost(recompute_terms);
  ++findings_.searched;
  const auto ranked = [&] {  // copied only for the few that are kept
    RankedPlan r{plan, cost.step, cost.peak};
    r.plan.recompute = recompute;
    return r;
  };
  const auto may_divide = [&](Leaders& leaders) {
    if (!divides_ || !leaders.Admits(cost.even_pace)) return;
    RankedPlan divided{plan, terms.StepIfDivided(recompute_terms), cost.peak};
    if (!leaders.Admits(divided.step)) return;
    divided.plan.recompute = recompute;
    leaders.Add(divided, space_.training);
  };
  const auto keep_better = [&](std::optional<RankedPlan>& slot) {
    const bool smaller = space_.objective == Objective::kMemory;
    if (!slot || (smaller ? cost.peak < slot->peak : cost.step < slot->step) ||
        ((smaller ? cost.peak == slot->peak : cost.step == slot->step) &&
         Better(space_.objective, ranked(), *slot))) {
      slot = ranked();
    }
  };
  if (cost.peak > space_.memory_limit) {
    const MemoryItem largest = terms.LargestItem(recompute_terms);
    Approach(findings_.RejectForMemory(largest, 1).nearest, cost, plan, recompute);
    if (cost.peak <= kNearlyFits * space_.memory_limit) may_divide(findings_.near);
    if (least_miss_ != nullptr) Approach(*least_miss_, cost, plan, recompute);
    return;
  }
  if (!HostHolds(cost.host, space_.cluster.config().host_memory)) {
    ++findings_.rejected[static_cast<int>(RejectionReason::kHostMemory)];
    return;
  }
  findings_.fastest = std::min(findings_.fastest, cost.step);
  const bool offloads = OffloadsIn(space_.training.framework, plan.pipeline, recompute);
  keep_better(offloads ? *best_ : *best_offloaded_);
  if (findings_.leaders.Admits(cost.step)) findings_.leaders.Add(ranked(), space_.training);
  may_divide(findings_.divisible);
  if (findings_.pareto.Admits(cost.step, cost.peak)) findings_.pareto.Add(ranked());
}

}  // namespace millwright
