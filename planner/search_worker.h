// SPDX-License-Identifier: Apache-2.0
//
// One worker of a search: costs the candidates of a unit of work, or rules them out by a bound.
//
// Every candidate of a unit is either costed or counted under the bound that rules it out.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "planner/estimator.h"
#include "planner/findings.h"
#include "planner/search_space.h"

namespace millwright {

class SearchWorker {
 public:
  // An `estimator` for each thread; what it remembers of one pass over the space serves the next.
  SearchWorker(const Space& space, const Estimator& estimator, const std::atomic<bool>& stop)
      : space_(space), estimator_(estimator), count_(space), stop_(stop) {
    findings_.objective = space.objective;
    shared_.resize(space.micro_batches.size());
  }

  // False where it was stopped before the unit was done.
  bool Run(std::size_t unit);
  // No candidate of the unit is faster.
  Seconds Floor(std::size_t unit) const;
  const Findings& findings() const { return findings_; }

 private:
  // Of a cut that was too slow what all kinds of context parallelism share: no waiting for
  // launches, no attention and nothing that attention communicates.
  struct Shared {
    LayerShape shape;
    Seconds floor;
    Bytes least_layer;
    std::int64_t candidates = 0;  // of each kind
  };
  // Forgets the floors of another cut.
  void Enter(const LayerShape& shape);
  // What the cut's state needs if it is laid out and sharded so that it fits, or else at least.
  StateFloor LeastState();
  void RuleOut(const StateFloor& too_large, std::int64_t candidates);
  Seconds FloorOf(const LayerShape& shape, Seconds work, Seconds overlapped) const;
  Seconds FloorOf(const ShapeCosts& costs) const {
    return FloorOf(costs.shape, costs.work, costs.overlapped_work);
  }
  void Treat(const ShapeCosts& costs);
  void SetLeast(const std::vector<TreatedChoice>& choices);
  // act(layouts) for each pipeline degree that the plan's cut goes with, which it then has, until
  // it says false.
  template <class Act>
  void ForEachPipeline(ParallelConfig& plan, const Act& act) const;
  Verdict CheckPipeline(const ParallelConfig& plan) const;
  void RunPipelines(const ShapeCosts& costs, ParallelConfig plan);
  // Choices for `schedule`, of which a DualPipe needs the pairs: whether they were not there.
  bool PairFor(ScheduleKind schedule, const ShapeCosts& costs);
  void RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout,
                   const std::vector<Sharding>& shardings, ParallelConfig plan);
  // Whether the smallest micro-batch comes nearer to fitting.
  bool SmallerIsNearer(ParallelConfig plan) const;
  void SetInFlight(PipelineTerms& terms);
  void CostChoices(const ShapeCosts& costs, PipelineTerms& terms, const PipelineLayout& layout,
                   const ParallelConfig& plan);
  void CostHopeless(const ShapeCosts& costs, PipelineTerms& terms, const PipelineLayout& layout,
                    const ParallelConfig& plan);
  void CostByRank(const PipelineTerms& terms, const PipelineLayout& layout,
                  const ParallelConfig& plan);
  void Cost(const PipelineTerms& terms, const RecomputeTerms& recompute_terms,
            const ParallelConfig& plan, const Recompute& recompute);
  template <class Act>  // act(its RecomputeTerms, the Recompute)
  void ForEachChoice(const PipelineLayout& layout, ScheduleKind schedule, const Act& act) const;

  const Space& space_;
  const Estimator& estimator_;
  CandidateCount count_;
  const std::atomic<bool>& stop_;
  Findings findings_;
  std::vector<Shared> shared_;  // of each micro-batch, the last
  // Of the last cut, what is known of how each layout's shardings hold its state.
  LayerShape cut_;
  std::unordered_map<const PipelineLayout*, std::vector<std::optional<StateFloor>>> floors_;
  std::map<std::array<int, 5>, StateFloor> least_states_;  // of cuts
  bool smallest_ = true;                                   // is the micro-batch at hand
  // Choices for all layers, without those that are no better than another; and, with all pairs
  // known, the same for schedules of pairs, where what hides does not count.
  std::vector<TreatedChoice> treated_, pair_treated_;
  const std::vector<TreatedChoice>& TreatedFor(ScheduleKind schedule) const {
    return Overlaps(schedule) ? pair_treated_ : treated_;
  }
  std::vector<TreatedLayer> untreated_, fully_;
  struct Offload {
    const Recompute* recompute;                   // beside offloading
    std::vector<TreatedLayer> offloaded, others;  // layers, under it
  };
  std::vector<Offload> offloads_;
  std::vector<TreatedLayer> least_;           // the least of all of these
  bool divides_ = false;                      // layers of the layout at hand, at the end
  bool treats_ = false;                       // these are of the shape at hand,
  bool paired_ = false;                       //   with their pairs
  std::vector<ScheduleKind> feasible_;        // of the pipeline at hand
  const PipelineTerms* in_flight_ = nullptr;  // that know it, of the schedule at hand
  // Of the layout at hand, and of it with layers offloaded as the framework does not.
  std::optional<RankedPlan>*best_ = nullptr, *best_offloaded_ = nullptr;
  std::optional<RankedPlan>* by_rank_ = nullptr;
  std::optional<RankedPlan>* least_miss_ = nullptr;
};

}  // namespace millwright
