// SPDX-License-Identifier: Apache-2.0
#include "planner/layer_split.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "planner/feasibility.h"
#include "planner/search_space.h"

namespace millwright {
namespace {

constexpr double kWorthIt = 1e-3;  // of the step: less is within what the estimate leaves out
// Where the plan does not fit as it is, how much slower than it the slowest rank may be: tried in
// turn, since tight bounds leave few states.
constexpr double kSlower[] = {1, 1.2, 1.6, 2.5};
constexpr Seconds kNoLimit{std::numeric_limits<double>::infinity()};

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

bool TreatsSome(const Recompute& r) { return r.full_layers > 0 || r.offload_layers > 0; }

// Compared in order.
using Value = std::array<double, 2>;
constexpr Value kNone{std::numeric_limits<double>::infinity(), 0};

class Splitter {
 public:
  // `choices`: of recomputation, of which each rank has its best of several.
  Splitter(const Estimator& estimator, const ParallelConfig& plan, Bytes limit,
           std::span<const Recompute> choices);

  // From here on all ranks do as `choice` says, one of those given; false where another of them is
  // no worse.
  bool GiveAll(const Recompute& choice);

  // The plan with its layers divided, of the fastest split whose slowest rank takes `bound` at
  // most; where choices let ranks trade work for another's, of several that may be fastest.
  std::vector<ParallelConfig> Best(Seconds bound);
  // With its layers as they are.
  std::optional<ParallelConfig> WithItsLayers() const;

  Seconds SlowestOf(const ParallelConfig& plan) const;

 private:
  struct State {
    Value value = kNone;
    int front = 0, back = 0;  // what the slot before took
  };
  struct Solution {
    Value value;
    std::vector<int> layers;
    std::vector<int> choices;  // of each rank
    Seconds slowest, sum;
  };
  struct Choice {
    Recompute recompute;
    std::vector<TreatedLayer> treated, rest;
  };
  // Of all ranks of a slot with a piece, with the best choice of each.
  struct SlotCost {
    Seconds slowest, sum;
    bool fits = true;
    std::vector<int> choices;
    void Add(Seconds time, int choice, bool fits);
  };
  struct OfChoice {
    Seconds time;
    bool fits = true;
  };
  // A rank with some layers: what choices cost that were asked for.
  struct RankCosts {
    std::vector<StageContent> content;  // one stage
    std::unique_ptr<PipelineTerms> terms;
    int longest = 0;  // of its chunks
    std::vector<std::optional<OfChoice>> choices;
  };
  // Slot by slot over how many layers are taken at the front and at the back: least of the join of
  // all values, among pieces whose ranks fit and take `bound` at most.
  template <class Of, class Join>
  std::optional<Solution> Solve(Seconds bound, const Of& value, const Join& join);
  template <class Act>
  void ForEachPiece(std::size_t slot, int front_taken, int back_taken, Seconds bound,
                    const Act& act) const;
  const SlotCost& CostOf(std::size_t slot, const Piece& piece);
  StageContent ContentOf(int rank, const Slot& slot, const Piece& piece) const;
  std::unique_ptr<RankCosts> CostsOf(StageContent of_rank) const;
  const OfChoice& CostOf(RankCosts& of_rank, std::size_t choice) const;
  void AddBest(RankCosts& of_rank, SlotCost& cost) const;
  ParallelConfig PlanOf(std::vector<int> layers, const std::vector<int>& choices) const;
  std::optional<Solution> LeastWork(Seconds bound);
  void AddFaster(const Solution& of_slowest, std::vector<ParallelConfig>& plans);
  Seconds Work(int first, int layers) const {
    const int end = first + layers;
    return work_before_[std::size_t(end)] - work_before_[std::size_t(first)];
  }
  std::size_t At(int front, int back) const {
    return std::size_t(front) * backs_ + std::size_t(back);
  }
  int WindowId(int first, int layers);

  const Estimator& estimator_;
  const ParallelConfig& plan_;
  Bytes limit_, host_limit_;  // of a GPU
  std::vector<Slot> slots_;
  std::vector<int> rank_of_stage_;
  int stages_, copies_;
  ShapeCosts shape_;
  std::vector<Choice> choices_;
  bool has_full_ = false;             // among them, of all layers
  std::vector<int> kinds_;            // of every layer
  std::size_t backs_ = 1;             // how many layers there may be at the back, none among them
  std::vector<Seconds> work_before_;  // of the layers before each, with nothing run again
  std::map<std::vector<int>, int> windows_;  // rows of layer kinds, numbered
  std::vector<int> window_at_;               // by first layer and their number; -1: not known yet
  // By slot and windows: of each of the slot's ranks, and of all with what they do.
  std::unordered_map<std::int64_t, std::vector<std::unique_ptr<RankCosts>>> of_ranks_;
  std::unordered_map<std::int64_t, SlotCost> costs_;
  int given_ = -1;  // the choice of all ranks; -1: each has its best
};

Splitter::Splitter(const Estimator& estimator, const ParallelConfig& plan, Bytes limit,
                   std::span<const Recompute> choices)
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
      work_before_{Seconds(0)} {
  std::vector<TreatedChoice> of_all;
  for (const Recompute& choice : choices) {
    if (!TreatsSome(choice)) of_all.push_back({&choice, shape_.Treat(choice)});
  }
  for (const TreatedChoice& choice : Undominated(of_all)) {
    choices_.push_back({*choice.recompute, choice.treated, choice.treated});
    has_full_ = has_full_ || choice.recompute->granularity == RecomputeGranularity::kFull;
  }
  for (const Recompute& choice : choices) {
    if (!TreatsSome(choice)) continue;
    choices_.push_back({choice, shape_.Treat(choice), shape_.Treat(OfOthers(choice))});
  }
  const std::vector<LayerKind>& kinds = estimator.kinds();
  for (const LayerRun& run : estimator.model().layers) {
    const auto kind = std::find(kinds.begin(), kinds.end(), run.kind) - kinds.begin();
    const TreatedLayer& layer = choices_.front().treated[std::size_t(kind)];
    for (int i = 0; i < run.count; ++i) {
      kinds_.push_back(int(kind));
      work_before_.push_back(work_before_.back() + layer.forward + layer.plain_backward);
    }
  }
  if (!slots_.empty() && slots_.front().back) backs_ = kinds_.size() + 1;
  window_at_.assign((kinds_.size() + 1) * (kinds_.size() + 1), -1);
}

StageContent Splitter::ContentOf(int rank, const Slot& slot, const Piece& piece) const {
  const auto at = [&](int layer) { return kinds_.begin() + layer; };
  StageContent content;
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
  return content;
}

bool Splitter::GiveAll(const Recompute& choice) {
  const auto at = std::find_if(choices_.begin(), choices_.end(),
                               [&](const Choice& c) { return c.recompute == choice; });
  given_ = int(at - choices_.begin());
  costs_.clear();
  return at != choices_.end();
}

void Splitter::SlotCost::Add(Seconds time, int choice, bool has_room) {
  slowest = std::max(slowest, time);
  sum += time;
  fits = fits && has_room;
  choices.push_back(choice);
}

std::unique_ptr<Splitter::RankCosts> Splitter::CostsOf(StageContent of_rank) const {
  auto costs = std::make_unique<RankCosts>();
  for (const auto& chunk : of_rank.chunks) {
    costs->longest = std::max(costs->longest, int(chunk.size()));
  }
  costs->content.push_back(std::move(of_rank));
  costs->terms = std::make_unique<PipelineTerms>(estimator_, shape_, costs->content, plan_);
  costs->terms->SetInFlight();
  costs->choices.resize(choices_.size());
  return costs;
}

const Splitter::OfChoice& Splitter::CostOf(RankCosts& of_rank, std::size_t c) const {
  std::optional<OfChoice>& cost = of_rank.choices[c];
  if (cost) return *cost;
  const Choice& choice = choices_[c];
  const std::vector<int> some = SomeLayers(of_rank.content, choice.recompute);
  const RankCost one =
      of_rank.terms->CostOfRanks({.treated = choice.treated, .rest = choice.rest, .some = some})
          .front();
  return cost.emplace(
      OfChoice{.time = one.time, .fits = one.peak <= limit_ && HostHolds(one.host, host_limit_)});
}

// The choice of all ranks, or the fastest that fits; where none does, any.
void Splitter::AddBest(RankCosts& of_rank, SlotCost& cost) const {
  if (given_ >= 0) {
    const OfChoice& one = CostOf(of_rank, std::size_t(given_));
    cost.Add(one.time, given_, one.fits);
    return;
  }
  int best = -1;
  Seconds time;
  for (std::size_t c = 0; c < choices_.size(); ++c) {
    const Recompute& recompute = choices_[c].recompute;
    // No more than there are: that is all of them.
    if (has_full_ && recompute.full_layers > 0 && recompute.full_layers >= of_rank.longest) {
      continue;
    }
    if (recompute.offload_layers > std::max(1, of_rank.longest) && choices_.size() > 1) continue;
    const OfChoice& one = CostOf(of_rank, c);
    if (!one.fits || (best >= 0 && one.time >= time)) continue;
    best = int(c);
    time = one.time;
  }
  cost.Add(time, best, best >= 0);
}

int Splitter::WindowId(int first, int layers) {
  int& id = window_at_[std::size_t(first) * (kinds_.size() + 1) + std::size_t(layers)];
  if (id < 0) {
    const auto begin = kinds_.begin() + first;
    id = windows_.emplace(std::vector<int>(begin, begin + layers), int(windows_.size()))
             .first->second;
  }
  return id;
}

const Splitter::SlotCost& Splitter::CostOf(std::size_t slot, const Piece& piece) {
  const int front = WindowId(piece.first, piece.front);
  const int back = WindowId(piece.end - piece.back, piece.back);
  const std::int64_t most = std::ssize(window_at_);
  const std::int64_t key = (std::int64_t(slot) * most + front) * most + back;
  const auto [at, inserted] = costs_.try_emplace(key);
  if (!inserted) return at->second;
  const auto [of_ranks, are_new] = of_ranks_.try_emplace(key);
  if (are_new) {
    for (const int rank : slots_[slot].ranks) {
      of_ranks->second.push_back(CostsOf(ContentOf(rank, slots_[slot], piece)));
    }
  }
  for (const auto& of_rank : of_ranks->second) AddBest(*of_rank, at->second);
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

template <class Of, class Join>
std::optional<Splitter::Solution> Splitter::Solve(Seconds bound, const Of& value,
                                                  const Join& join) {
  const int layers = int(kinds_.size());
  const bool mirrored = slots_.front().back.has_value();
  std::vector<std::vector<State>> best(slots_.size() + 1,
                                       std::vector<State>((kinds_.size() + 1) * backs_));
  best[0][0].value = {0, 0};
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    for (int front = 0; front <= layers; ++front) {
      for (int back = 0; back <= (mirrored ? layers - front : 0); ++back) {
        const State& from = best[slot][At(front, back)];
        if (from.value >= kNone) continue;
        ForEachPiece(slot, front, back, bound, [&](const Piece& piece) {
          const SlotCost& cost = CostOf(slot, piece);
          if (cost.slowest > bound || !cost.fits) return;
          State& to = best[slot + 1][At(front + piece.front, back + piece.back)];
          const Value joined = join(from.value, value(cost, piece));
          if (joined < to.value) to = {joined, piece.front, piece.back};
        });
      }
    }
  }
  int front = mirrored ? 0 : layers;
  for (int i = 1; mirrored && i <= layers; ++i) {
    if (best.back()[At(i, layers - i)].value < best.back()[At(front, layers - front)].value) {
      front = i;
    }
  }
  int back = layers - front;
  Solution solution{.value = best.back()[At(front, back)].value,
                    .layers = std::vector<int>(std::size_t(stages_)),
                    .choices = std::vector<int>(std::size_t(plan_.pipeline)),
                    .slowest{},
                    .sum{}};
  if (solution.value >= kNone) return {};
  for (std::size_t slot = slots_.size(); slot-- > 0;) {
    const State& state = best[slot + 1][At(front, back)];
    solution.layers[std::size_t(slots_[slot].front)] = state.front;
    if (mirrored) solution.layers[std::size_t(*slots_[slot].back)] = state.back;
    front -= state.front;
    back -= state.back;
    const SlotCost& cost = CostOf(
        slot, {.first = front, .front = state.front, .end = layers - back, .back = state.back});
    solution.slowest = std::max(solution.slowest, cost.slowest);
    solution.sum += cost.sum;
    for (std::size_t i = 0; i < slots_[slot].ranks.size(); ++i) {
      solution.choices[std::size_t(slots_[slot].ranks[i])] = cost.choices[i];
    }
  }
  return solution;
}

ParallelConfig Splitter::PlanOf(std::vector<int> layers, const std::vector<int>& choices) const {
  ParallelConfig plan = plan_;
  plan.stage_layers = std::move(layers);
  plan.recompute = choices_[std::size_t(choices.front())].recompute;
  plan.rank_recompute.clear();
  if (std::count(choices.begin(), choices.end(), choices.front()) == std::ssize(choices)) {
    return plan;
  }
  plan.recompute = {};
  for (const int choice : choices) {
    plan.rank_recompute.push_back(choices_[std::size_t(choice)].recompute);
  }
  return plan;
}

Value Sum(const Value& a, const Value& b) { return {a[0] + b[0], a[1] + b[1]}; }

// Layers at the two ends of a slot may be told apart by what they do to the schedule's waits, which
// this does not see: even ones wait least.
double Uneven(const Piece& p) { return double(p.front) * p.front + double(p.back) * p.back; }

std::vector<ParallelConfig> Splitter::Best(Seconds bound) {
  const auto slowest = Solve(
      bound,
      [](const SlotCost& cost, const Piece&) {
        return Value{cost.slowest.value, 0};
      },
      [](const Value& a, const Value& b) { return std::max(a, b); });
  if (!slowest) return {};
  bound = Seconds(slowest->value[0]);
  const bool one_choice = choices_.size() == 1 || given_ >= 0;
  const auto solution = one_choice ? Solve(
                                         bound,
                                         [](const SlotCost&, const Piece& p) {
                                           return Value{Uneven(p), 0};
                                         },
                                         Sum)
                                   : LeastWork(bound);
  MILLWRIGHT_CHECK(solution.has_value());
  std::vector<ParallelConfig> plans = {PlanOf(solution->layers, solution->choices)};
  if (!one_choice && plan_.schedule == ScheduleKind::k1F1B) AddFaster(*solution, plans);
  return plans;
}

std::optional<Splitter::Solution> Splitter::LeastWork(Seconds bound) {
  // Whole picoseconds, so that sums of any order are the same.
  return Solve(
      bound,
      [](const SlotCost& cost, const Piece& piece) {
        return Value{std::round(1e12 * cost.sum.value), Uneven(piece)};
      },
      Sum);
}

// With ever less time for the slowest rank the least work grows: from the most time that may be
// worth its while down to that of the fastest slowest rank.
void Splitter::AddFaster(const Solution& of_slowest, std::vector<ParallelConfig>& plans) {
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(estimator_.model(), plan_));
  const PipelineTerms terms(estimator_, shape_, stages, plan_);
  const double micro_batches = double(estimator_.training().global_batch_size) /
                               (double(plan_.data) * double(plan_.micro_batch_size));
  Seconds best = terms.MakespanOf(of_slowest.sum, of_slowest.slowest);
  // Every micro-batch but one meets the slowest rank at its pace.
  const auto most = [&](Seconds sum) {
    return micro_batches > 1 ? (1 / (micro_batches - 1)) * (best - sum)
                             : Seconds(std::numeric_limits<double>::infinity());
  };
  Seconds bound = most(work_before_.back());
  while (bound > of_slowest.slowest) {
    const auto other = LeastWork(bound);
    MILLWRIGHT_CHECK(other.has_value());
    const Seconds makespan = terms.MakespanOf(other->sum, other->slowest);
    if (makespan < best) {
      best = makespan;
      plans.push_back(PlanOf(other->layers, other->choices));
    }
    if (terms.MakespanOf(other->sum, of_slowest.slowest) >= best) return;
    bound = std::min(Seconds(std::nextafter(other->slowest.value, 0)), most(other->sum));
  }
}

std::optional<ParallelConfig> Splitter::WithItsLayers() const {
  ParallelConfig plain = plan_;
  plain.rank_recompute.clear();
  SlotCost all;
  for (const StageContent& of_rank : StagesOfPlan(estimator_.model(), plain)) {
    AddBest(*CostsOf(of_rank), all);
  }
  if (!all.fits) return {};
  return PlanOf(plan_.stage_layers, all.choices);
}

Seconds Splitter::SlowestOf(const ParallelConfig& plan) const {
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(estimator_.model(), plan));
  PipelineTerms terms(estimator_, shape_, stages, plan);
  terms.SetInFlight();
  const TreatedStages treated = TreatStages(shape_, stages, plan.Recomputes());
  Seconds slowest;
  for (const RankCost& cost : terms.CostOfRanks(treated.terms())) {
    slowest = std::max(slowest, cost.time);
  }
  return slowest;
}

// The fastest of what is tried in the place of a plan, where it is worth it.
class Improved {
 public:
  Improved(const Estimator& estimator, const ParallelConfig& plan, Bytes memory_limit)
      : estimator_(estimator), limit_(memory_limit), as_it_is_(estimator.Itemise(plan)) {}

  bool fits() const { return as_it_is_.FitsIn(limit_); }
  Seconds as_it_is() const { return as_it_is_.step; }
  void Try(const ParallelConfig& plan) {
    Estimate estimate = estimator_.Itemise(plan);
    if (!estimate.FitsIn(limit_)) return;
    const bool worth_it = !fits() || estimate.step <= (1 - kWorthIt) * as_it_is_.step;
    if (worth_it && (!best_ || estimate.step < best_->step)) best_ = std::move(estimate);
  }
  std::optional<Estimate>& best() { return best_; }

 private:
  const Estimator& estimator_;
  const Bytes limit_;
  const Estimate as_it_is_;
  std::optional<Estimate> best_;
};

// Where the plan fits no slowest rank may be slower than `slowest`; where it does not and is no
// faster than `limit`, neither: with a slower rank it would not be.
void TrySplits(Splitter& splitter, Seconds slowest, Seconds limit, Improved& improved) {
  for (const double slower : kSlower) {
    if (slower > 1 && (improved.fits() || improved.as_it_is() >= limit)) return;
    const std::vector<ParallelConfig> splits = splitter.Best(slower * slowest);
    for (const ParallelConfig& split : splits) improved.Try(split);
    if (!splits.empty()) return;
  }
}

}  // namespace

bool CanSplit(const ParallelConfig& plan) { return plan.pipeline > 1 && !SlotsOf(plan).empty(); }

std::optional<Estimate> BestSplit(const Estimator& estimator, const ParallelConfig& plan,
                                  Bytes memory_limit) {
  return BestSplitOfAny(estimator, plan, memory_limit, {}, kNoLimit);
}

std::optional<Estimate> BestSplitOfAny(const Estimator& estimator, const ParallelConfig& plan,
                                       Bytes memory_limit, std::span<const Recompute> choices,
                                       Seconds limit) {
  MILLWRIGHT_CHECK(plan.rank_recompute.empty());
  if (!CanSplit(plan)) return {};
  const ShapeCosts shape = estimator.CostShape(ShapeOf(plan, estimator.training()));
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(estimator.model(), plan));
  const PipelineTerms terms(estimator, shape, stages, plan);
  std::vector<TreatedChoice> treated, of_some;
  for (const Recompute& choice : choices) {
    (TreatsSome(choice) ? of_some : treated).push_back({&choice, shape.Treat(choice)});
  }
  struct Candidate {
    Recompute recompute;
    Seconds step;  // if it were divided well
    Bytes kept;    // of a micro-batch by all layers
    bool tried = false;
  };
  std::vector<Candidate> candidates;
  treated = Undominated(treated);
  treated.insert(treated.end(), of_some.begin(), of_some.end());
  treated.push_back({&plan.recompute, shape.Treat(plan.recompute)});
  for (TreatedChoice& choice : treated) {
    const bool own = &choice == &treated.back();
    if (!own && *choice.recompute == plan.recompute) continue;
    std::vector<TreatedLayer> rest = shape.Treat(OfOthers(*choice.recompute));
    if (Overlaps(plan.schedule)) {
      shape.Pair(*choice.recompute, choice.treated);
      shape.Pair(OfOthers(*choice.recompute), rest);
    }
    const std::vector<int> some = SomeLayers(stages, *choice.recompute);
    const RecomputeTerms recompute{.treated = choice.treated, .rest = rest, .some = some};
    Candidate candidate{
        .recompute = *choice.recompute, .step = terms.StepIfDivided(recompute), .kept{}};
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (std::size_t k = 0; k < rest.size(); ++k) {
        const int layers = stages[s].layers[k], some_of = recompute.Treated(stages[s], s, k);
        candidate.kept +=
            double(stages[s].ranks.size()) *
            (double(some_of) * choice.treated[k].saved + double(layers - some_of) * rest[k].saved);
      }
    }
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.kept < b.kept; });
  std::vector<Recompute> all;
  for (const Candidate& candidate : candidates) all.push_back(candidate.recompute);

  Splitter splitter(estimator, plan, memory_limit, all);
  std::optional<Estimate> best;
  // Whether anything fits, as it is or divided, of what takes no longer than `within`.
  const auto divide = [&](Candidate& candidate, Seconds within) {
    candidate.tried = true;
    ParallelConfig treated_so = plan;
    treated_so.recompute = candidate.recompute;
    Improved improved(estimator, treated_so, memory_limit);
    if (!splitter.GiveAll(candidate.recompute)) return improved.fits();
    TrySplits(splitter, splitter.SlowestOf(treated_so), within, improved);
    std::optional<Estimate>& split = improved.best();
    const bool any = split || improved.fits();
    if (split && split->step < limit) {
      limit = split->step;
      best = std::move(split);
    }
    return any;
  };
  // What keeps more than one that fits may fit too; how much is found by halving.
  const Estimate own = estimator.Itemise(plan);
  std::size_t fits = 0, too_much = candidates.size();
  if (own.FitsIn(memory_limit)) {
    limit = std::min(limit, own.step);
    while (candidates[fits].recompute != plan.recompute) ++fits;
    divide(candidates[fits], limit);
  } else if (candidates.size() > 1 && !divide(candidates.front(), kNoLimit)) {
    return {};
  }
  while (too_much - fits > 1) {
    const std::size_t middle = fits + (too_much - fits) / 2;
    (divide(candidates[middle], limit) ? fits : too_much) = middle;
  }
  candidates.resize(too_much);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step < b.step; });
  for (Candidate& candidate : candidates) {
    if (candidate.step >= limit) break;
    if (!candidate.tried) divide(candidate, limit);
  }
  return best;
}

std::optional<Estimate> BestByRank(const Estimator& estimator, const ParallelConfig& plan,
                                   Bytes memory_limit, std::span<const Recompute> choices) {
  if (plan.pipeline == 1 || choices.empty()) return {};
  Improved improved(estimator, plan, memory_limit);
  Splitter splitter(estimator, plan, memory_limit, choices);
  Seconds slowest = splitter.SlowestOf(plan);
  if (const std::optional<ParallelConfig> as_they_are = splitter.WithItsLayers()) {
    improved.Try(*as_they_are);
    const Seconds own = splitter.SlowestOf(*as_they_are);
    slowest = improved.fits() ? std::min(slowest, own) : own;
  }
  if (CanSplit(plan)) TrySplits(splitter, slowest, kNoLimit, improved);
  return std::move(improved.best());
}

}  // namespace millwright
