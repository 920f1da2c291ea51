// SPDX-License-Identifier: Apache-2.0
#include "planner/layer_split.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "planner/feasibility.h"

namespace millwright {
namespace {

constexpr double kWorthIt = 1e-3;  // of the step: less is within what the estimate leaves out
// Where the plan does not fit as it is, how much slower than it the slowest rank may be: tried in
// turn, since tight bounds leave few states.
constexpr double kSlower[] = {1, 1.2, 1.6, 2.5};

// Ranks that hold stage `front` of a copy of the model and, where stages are mirrored, `back`.
struct Slot {
  int front = 0;
  std::optional<int> back;
  std::vector<int> ranks;
};

// From the first stage to the last, or from both inwards; empty where stages lie otherwise.
std::vector<Slot> SlotsOf(const ParallelConfig& plan) {
  const int stages = StagesPerCopy(plan), copies = CopiesOfModel(plan.schedule);
  const std::vector<int> rank_of_stage = RankOfStage(ScheduleOf(plan, 1));
  const auto holders = [&](int stage) {
    std::vector<int> ranks;
    for (int copy = 0; copy < copies; ++copy) {
      ranks.push_back(rank_of_stage[std::size_t(copy) * std::size_t(stages) + std::size_t(stage)]);
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  };
  const bool one_a_rank = stages == plan.pipeline && copies == 1;
  if (!one_a_rank && stages % 2 != 0) return {};
  std::vector<Slot> slots;
  for (int s = 0; s < (one_a_rank ? stages : stages / 2); ++s) {
    Slot slot{.front = s, .back = {}, .ranks = holders(s)};
    if (!one_a_rank) {
      slot.back = stages - 1 - s;
      if (holders(*slot.back) != slot.ranks) return {};
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

// What a slot takes: layers [first, first + front) and, mirrored, [end - back, end).
struct Piece {
  int first = 0, front = 0, end = 0, back = 0;
};

class Splitter {
 public:
  Splitter(const Estimator& estimator, const ParallelConfig& plan, Bytes limit);

  // The layers of each stage, of the fastest split whose slowest rank takes `bound` at most.
  std::optional<std::vector<int>> Best(Seconds bound);

  Seconds SlowestAsItIs() const;

 private:
  struct State {
    double value = std::numeric_limits<double>::infinity();
    int front = 0, back = 0;  // what the slot before took
  };
  struct Solution {
    double value = 0;
    std::vector<int> layers;
  };
  // Slot by slot over how many layers are taken at the front and at the back: least of the join of
  // all values, among pieces whose ranks fit and take `bound` at most.
  template <class Value, class Join>
  std::optional<Solution> Solve(Seconds bound, const Value& value, const Join& join);
  template <class Act>
  void ForEachPiece(std::size_t slot, int front_taken, int back_taken, Seconds bound,
                    const Act& act) const;
  const RankCost& CostOf(std::size_t slot, const Piece& piece);
  RankCost CostOfRank(int rank, const Slot& slot, const Piece& piece) const;
  std::vector<RankCost> CostsOf(const std::vector<StageContent>& stages) const;
  Seconds Work(int first, int layers) const {
    const int end = first + layers;
    return work_before_[std::size_t(end)] - work_before_[std::size_t(first)];
  }
  std::size_t At(int front, int back) const {
    return std::size_t(front) * (kinds_.size() + 1) + std::size_t(back);
  }
  std::size_t WindowId(int first, int layers);

  const Estimator& estimator_;
  const ParallelConfig& plan_;
  Bytes limit_, host_limit_;  // of a GPU
  std::vector<Slot> slots_;
  std::vector<int> rank_of_stage_;
  int stages_, copies_;
  ShapeCosts shape_;
  std::vector<TreatedLayer> treated_, rest_;
  std::vector<int> kinds_;            // of every layer
  std::vector<Seconds> work_before_;  // of the layers before each, with nothing run again
  std::map<std::vector<int>, std::size_t> windows_;  // rows of layer kinds, numbered
  std::unordered_map<std::int64_t, std::size_t> window_at_;
  std::map<std::array<std::size_t, 3>, RankCost> costs_;
};

Splitter::Splitter(const Estimator& estimator, const ParallelConfig& plan, Bytes limit)
    : estimator_(estimator),
      plan_(plan),
      limit_(limit),
      host_limit_(estimator.cluster().config().host_memory /
                  double(estimator.cluster().gpus_per_domain())),
      slots_(SlotsOf(plan)),
      rank_of_stage_(RankOfStage(ScheduleOf(plan, 1))),
      stages_(StagesPerCopy(plan)),
      copies_(CopiesOfModel(plan.schedule)),
      shape_(estimator.CostShape(ShapeOf(plan, estimator.training()))),
      treated_(shape_.Treat(plan.recompute)),
      rest_(shape_.Treat(OfOthers(plan.recompute))),
      work_before_{Seconds(0)} {
  shape_.Pair(plan.recompute, treated_);
  shape_.Pair(OfOthers(plan.recompute), rest_);
  const std::vector<LayerKind>& kinds = estimator.kinds();
  for (const LayerRun& run : estimator.model().layers) {
    const auto kind = std::find(kinds.begin(), kinds.end(), run.kind) - kinds.begin();
    const TreatedLayer& layer = rest_[std::size_t(kind)];
    for (int i = 0; i < run.count; ++i) {
      kinds_.push_back(int(kind));
      work_before_.push_back(work_before_.back() + layer.forward + layer.plain_backward);
    }
  }
}

RankCost Splitter::CostOfRank(int rank, const Slot& slot, const Piece& piece) const {
  const auto at = [&](int layer) { return kinds_.begin() + layer; };
  std::vector<StageContent> contents(1);
  StageContent& content = contents.front();
  content.ranks = {rank};
  content.layers.assign(estimator_.kinds().size(), 0);
  for (std::size_t s = 0; s < rank_of_stage_.size(); ++s) {
    const int stage = int(s) % stages_;
    if (rank_of_stage_[s] != rank || (stage != slot.front && stage != slot.back)) continue;
    const bool front = stage == slot.front;
    std::vector<int> chunk(front ? at(piece.first) : at(piece.end - piece.back),
                           front ? at(piece.first + piece.front) : at(piece.end));
    content.embedding = content.embedding || stage == 0;
    if (stage == stages_ - 1) {
      content.head = true;
      chunk.insert(chunk.end(), std::size_t(estimator_.model().mtp_num_layers), kinds_.back());
    }
    for (int kind : chunk) ++content.layers[std::size_t(kind)];
    content.total_layers += int(chunk.size());
    content.chunks.push_back(std::move(chunk));
  }
  return CostsOf(contents).front();
}

std::vector<RankCost> Splitter::CostsOf(const std::vector<StageContent>& stages) const {
  PipelineTerms terms(estimator_, shape_, stages, plan_);
  terms.SetInFlight();
  const std::vector<int> some = SomeLayers(stages, plan_.recompute);
  return terms.CostOfRanks({.treated = treated_, .rest = rest_, .some = some});
}

std::size_t Splitter::WindowId(int first, int layers) {
  const auto [at, inserted] =
      window_at_.try_emplace(std::int64_t{first} << 32 | std::int64_t{layers});
  if (inserted) {
    at->second =
        windows_
            .emplace(std::vector<int>(kinds_.begin() + first, kinds_.begin() + first + layers),
                     windows_.size())
            .first->second;
  }
  return at->second;
}

const RankCost& Splitter::CostOf(std::size_t slot, const Piece& piece) {
  const auto [at, inserted] = costs_.try_emplace(
      {slot, WindowId(piece.first, piece.front), WindowId(piece.end - piece.back, piece.back)});
  if (inserted) {
    for (const int rank : slots_[slot].ranks) {
      const RankCost cost = CostOfRank(rank, slots_[slot], piece);
      at->second.time = std::max(at->second.time, cost.time);
      at->second.peak = std::max(at->second.peak, cost.peak);
      at->second.host = std::max(at->second.host, cost.host);
    }
  }
  return at->second;
}

template <class Act>
void Splitter::ForEachPiece(std::size_t slot, int front_taken, int back_taken, Seconds bound,
                            const Act& act) const {
  const int end = int(kinds_.size()) - back_taken, left = end - front_taken;
  const std::size_t slots_after = slots_.size() - 1 - slot;
  const Slot& at = slots_[slot];
  // As CheckStageLayers has it.
  const int of_first = SplitsBackward(plan_.schedule) ? 1 : 0;
  const auto least = [&](int stage) {
    return stage == 0 ? of_first : stage == stages_ - 1 ? 0 : 1;
  };
  // Each copy sees its share of the micro-batches; sums in another order round differently.
  const Seconds most = (1 + 1e-9) * double(copies_) * bound;
  const bool mirrored = at.back.has_value();
  for (int front = least(at.front); front <= left; ++front) {
    const Seconds work = Work(front_taken, front);
    if (work > most) return;
    for (int back = mirrored ? least(*at.back) : 0; back <= left - front; ++back) {
      if (!mirrored && back > 0) break;
      if (work + Work(end - back, back) > most) break;
      const int rest = left - front - back;
      if (slots_after == 0 ? rest != 0
                           : Work(front_taken + front, rest) > double(slots_after) * most) {
        continue;
      }
      act(Piece{.first = front_taken, .front = front, .end = end, .back = back});
    }
  }
}

template <class Value, class Join>
std::optional<Splitter::Solution> Splitter::Solve(Seconds bound, const Value& value,
                                                  const Join& join) {
  const int layers = int(kinds_.size());
  const bool mirrored = slots_.front().back.has_value();
  std::vector<std::vector<State>> best(slots_.size() + 1,
                                       std::vector<State>(At(layers, layers) + 1));
  best[0][0].value = 0;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    for (int front = 0; front <= layers; ++front) {
      for (int back = 0; back <= (mirrored ? layers - front : 0); ++back) {
        const State& from = best[slot][At(front, back)];
        if (std::isinf(from.value)) continue;
        ForEachPiece(slot, front, back, bound, [&](const Piece& piece) {
          const RankCost& cost = CostOf(slot, piece);
          if (cost.time > bound || cost.peak > limit_ || !HostHolds(cost.host, host_limit_)) return;
          State& to = best[slot + 1][At(front + piece.front, back + piece.back)];
          const double joined = join(from.value, value(cost.time, piece));
          if (joined < to.value) to = {joined, piece.front, piece.back};
        });
      }
    }
  }
  int front = 0;
  for (int i = 1; i <= layers; ++i) {
    if (best.back()[At(i, layers - i)].value < best.back()[At(front, layers - front)].value) {
      front = i;
    }
  }
  int back = layers - front;
  Solution solution{.value = best.back()[At(front, back)].value, .layers = {}};
  if (std::isinf(solution.value)) return {};
  solution.layers.resize(std::size_t(stages_));
  for (std::size_t slot = slots_.size(); slot-- > 0;) {
    const State& state = best[slot + 1][At(front, back)];
    solution.layers[std::size_t(slots_[slot].front)] = state.front;
    if (mirrored) solution.layers[std::size_t(*slots_[slot].back)] = state.back;
    front -= state.front;
    back -= state.back;
  }
  return solution;
}

std::optional<std::vector<int>> Splitter::Best(Seconds bound) {
  const auto slowest = Solve(
      bound, [](Seconds time, const Piece&) { return time.value; },
      [](double a, double b) { return std::max(a, b); });
  if (!slowest) return {};
  // Layers at the two ends of a slot may be told apart by what they do to the schedule's waits,
  // which this does not see: even ones wait least.
  auto even = Solve(
      Seconds(slowest->value),
      [](Seconds, const Piece& p) { return double(p.front) * p.front + double(p.back) * p.back; },
      [](double a, double b) { return a + b; });
  MILLWRIGHT_CHECK(even.has_value());
  return std::move(even->layers);
}

Seconds Splitter::SlowestAsItIs() const {
  Seconds slowest;
  for (const RankCost& cost : CostsOf(DistinctStages(StagesOfPlan(estimator_.model(), plan_)))) {
    slowest = std::max(slowest, cost.time);
  }
  return slowest;
}

}  // namespace

bool CanSplit(const ParallelConfig& plan) { return plan.pipeline > 1 && !SlotsOf(plan).empty(); }

std::optional<Estimate> BestSplit(const Estimator& estimator, const ParallelConfig& plan,
                                  Bytes memory_limit) {
  if (!CanSplit(plan)) return {};
  const Estimate as_it_is = estimator.Itemise(plan);
  const auto fits_in = [&](const Estimate& estimate) {
    return estimate.peak <= memory_limit && HostHolds(estimate.host, estimate.host_capacity);
  };
  const bool fits = fits_in(as_it_is);
  Splitter splitter(estimator, plan, memory_limit);
  const Seconds slowest = splitter.SlowestAsItIs();
  for (const double slower : kSlower) {
    if (fits && slower > 1) break;
    const std::optional<std::vector<int>> layers = splitter.Best(slower * slowest);
    if (!layers) continue;
    ParallelConfig split = plan;
    split.stage_layers = *layers;
    Estimate estimate = estimator.Itemise(split);
    if (!fits_in(estimate)) return {};
    if (fits && estimate.step > (1 - kWorthIt) * as_it_is.step) return {};
    return estimate;
  }
  return {};
}

}  // namespace millwright
