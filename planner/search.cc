// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

#include "planner/layer_split.h"
#include "planner/parallel_work.h"

namespace millwright {
namespace {

auto Degrees(const ParallelConfig& p) {
  return std::tuple(p.schedule != ScheduleKind::k1F1B, p.schedule, p.recompute.granularity,
                    p.recompute.full_layers, p.recompute.modules, p.zero, p.zero_shard, p.tensor,
                    p.sequence_parallel, p.context, p.context_kind, p.pipeline, p.virtual_stages,
                    p.expert, p.expert_tensor, p.micro_batch_size, p.stage_layers);
}

// In ascending order, those up to `most`.
std::vector<int> Divisors(std::int64_t n, std::int64_t most) {
  std::vector<int> divisors;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    for (std::int64_t divisor : {d, n / d}) {
      if (divisor <= most) divisors.push_back(int(divisor));
    }
  }
  std::sort(divisors.begin(), divisors.end());
  divisors.erase(std::unique(divisors.begin(), divisors.end()), divisors.end());
  return divisors;
}

// Models of hundreds of layers do not need every step: vpp is tried up to the first, and a chunk's
// partial recomputation in at most the second many steps.
constexpr int kMostVirtualStages = 128;
constexpr int kMostPartialRecomputes = 128;

// A plan this much too large may fit with its layers divided otherwise.
constexpr double kNearlyFits = 1.25;

const Recompute kFirstLayer{
    .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = 1};

// Pipeline splits that candidates share, and the schedules that lay stages out like that.
struct PipelineLayout {
  int virtual_stages = 1;
  std::vector<ScheduleKind> schedules;
  std::vector<int> rank_of_stage;
  std::vector<StageContent> stages;       // distinct
  std::vector<int> full_layers;           // full recompute of the first so many layers of a chunk,
  std::vector<std::vector<int>> leading;  // and what that is of each stage
};
using PipelineLayouts = std::map<int, std::vector<PipelineLayout>>;  // by pipeline degree

// Whether DualPipe's pairs may hide communication under all compute.
bool Overlaps(ScheduleKind kind) {
  return kind == ScheduleKind::kDualPipe || kind == ScheduleKind::kDualPipeV;
}

PipelineLayout LayoutOf(const ModelConfig& model, const ScheduleChoice& choice,
                        std::vector<int> rank_of_stage) {
  PipelineLayout layout{.virtual_stages = choice.virtual_stages,
                        .schedules = {choice.kind},
                        .rank_of_stage = std::move(rank_of_stage),
                        .leading = {}};
  layout.stages = DistinctStages(
      StagesOf(model, choice.pipeline, layout.rank_of_stage, CopiesOfModel(choice.kind)));
  std::size_t longest = 0;
  for (const StageContent& stage : layout.stages) {
    for (const auto& chunk : stage.chunks) longest = std::max(longest, chunk.size());
  }
  const int step = (int(longest) + kMostPartialRecomputes - 1) / kMostPartialRecomputes;
  for (int n = step; n < int(longest); n += std::max(1, step)) {
    layout.full_layers.push_back(n);
    layout.leading.push_back(LeadingLayers(layout.stages, n));
  }
  return layout;
}

PipelineLayouts LayoutsOf(const ModelConfig& model, std::int64_t gpus, const PlanFilter& filter,
                          std::int64_t& forbidden) {
  // 1F1B and interleaved first: the coarse search takes the first few.
  std::vector<ScheduleKind> kinds = {ScheduleKind::k1F1B, ScheduleKind::kInterleaved};
  for (const auto& name : TrainingScheduleNames()) {
    if (std::count(kinds.begin(), kinds.end(), name.value) == 0) kinds.push_back(name.value);
  }
  const bool asked_for = filter.About(Knob::kSchedule).required;
  PipelineLayouts layouts;
  for (int p : Divisors(gpus, model.num_layers)) {
    if (!filter.Allows(Knob::kPp, p)) {
      ++forbidden;
      continue;
    }
    std::vector<PipelineLayout>& of_degree = layouts[p];
    for (ScheduleKind kind : kinds) {
      // Without a pipeline all schedules are one.
      if (p == 1 && kind != ScheduleKind::k1F1B) continue;
      if (!asked_for && !FollowsFromStages(kind)) continue;
      const bool chooses = ChoosesChunks(kind);
      const int most = chooses ? std::min(kMostVirtualStages, model.num_layers / p) : 1;
      for (int v = chooses ? 2 : 1; v <= most; ++v) {
        const ScheduleChoice choice{.kind = kind, .pipeline = p, .virtual_stages = v};
        if (p * ChunksOfRank(choice) > model.num_layers) continue;
        if (!filter.Allows(Knob::kVpp, v) ||
            !filter.Allows(Knob::kSchedule, static_cast<int>(kind))) {
          ++forbidden;
          continue;
        }
        std::vector<int> rank_of_stage = RankOfStage(choice);
        const auto same =
            std::find_if(of_degree.begin(), of_degree.end(), [&](const PipelineLayout& layout) {
              return layout.rank_of_stage == rank_of_stage &&
                     CopiesOfModel(layout.schedules.front()) == CopiesOfModel(kind);
            });
        if (same != of_degree.end()) {
          same->schedules.push_back(kind);
        } else {
          of_degree.push_back(LayoutOf(model, choice, std::move(rank_of_stage)));
        }
      }
    }
  }
  return layouts;
}

// The front of plans of which none is both faster and smaller, in order of time.
class ParetoFront {
 public:
  // Whether a plan with these costs would stand on the front.
  bool Admits(Seconds step, Bytes peak) const {
    const auto after =
        std::upper_bound(plans_.begin(), plans_.end(), step,
                         [](Seconds s, const RankedPlan& plan) { return s < plan.step; });
    return after == plans_.begin() || peak < std::prev(after)->peak ||
           (std::prev(after)->step == step && std::prev(after)->peak == peak);
  }
  void Add(const RankedPlan& plan) {
    if (!Admits(plan.step, plan.peak)) return;
    const auto at = std::lower_bound(plans_.begin(), plans_.end(), plan, Before);
    if (at != plans_.begin() && std::prev(at)->peak <= plan.peak) return;
    auto end = at;
    while (end != plans_.end() && end->peak >= plan.peak) ++end;
    plans_.insert(plans_.erase(at, end), plan);
  }
  const std::vector<RankedPlan>& plans() const { return plans_; }

 private:
  std::vector<RankedPlan> plans_;
};

// The degrees that tell layouts apart: tp, cp and its kind, pp, ep, etp; and whether the framework
// runs the schedule.
using LayoutKey = std::array<int, 7>;

// What one worker has found.
struct Findings {
  std::map<LayoutKey, std::optional<RankedPlan>> best;  // of each layout, where one fits
  std::map<LayoutKey, std::optional<RankedPlan>> near;  //   and the fastest that nearly does
  ParetoFront pareto;
  std::int64_t searched = 0;
  std::array<std::int64_t, kRejectionReasons> rejected{};
  std::array<OutOfMemory, kMemoryItems> out_of_memory{};

  void Reject(const Rejection& r) { ++rejected[static_cast<int>(r.reason)]; }
  OutOfMemory& RejectForMemory(MemoryItem largest, std::int64_t plans) {
    rejected[static_cast<int>(RejectionReason::kOutOfMemory)] += plans;
    OutOfMemory& of_item = out_of_memory[static_cast<int>(largest)];
    of_item.count += plans;
    return of_item;
  }
};

bool Smaller(const RankedPlan& a, const RankedPlan& b) {
  return a.peak != b.peak ? a.peak < b.peak : Before(a, b);
}

void Approach(std::optional<RankedPlan>& nearest, const QuickCost& cost, const ParallelConfig& plan,
              const Recompute& recompute) {
  if (nearest && cost.peak > nearest->peak) return;
  RankedPlan miss{plan, cost.step, cost.peak};
  miss.plan.recompute = recompute;
  if (!nearest || Smaller(miss, *nearest)) nearest = std::move(miss);
}

// What a search goes through; the coarse one through a part of it.
struct Space {
  const ModelConfig& model;
  const TrainingConfig& training;
  const Cluster& cluster;
  const PlanFilter& filter;
  Bytes memory_limit;
  std::vector<LayerShape> shapes;  // without micro-batches
  std::vector<int> micro_batches;
  PipelineLayouts layouts;
  std::vector<Recompute> choices;
  std::vector<int> zeros;
  bool overlapping = false;  // some schedule Overlaps
  bool partial_recompute = true;
  Seconds time_limit{std::numeric_limits<double>::infinity()};  // slower is of no interest
};

LayoutKey KeyOf(const ParallelConfig& plan, const TrainingConfig& training) {
  return {plan.tensor,
          plan.context,
          static_cast<int>(plan.context_kind),
          plan.pipeline,
          plan.expert,
          plan.expert_tensor,
          RunsIn(training.framework, plan.schedule) ? 1 : 0};
}

// The layers of one micro-batch on the rank that has most of them, with nothing run again.
struct LayersWork {
  Seconds work, overlapped;  // the latter where communication may run under all compute
};
LayersWork SlowestRank(const ShapeCosts& costs, const std::vector<StageContent>& stages) {
  LayersWork slowest;
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

class Worker {
 public:
  explicit Worker(const Space& space)
      : space_(space), estimator_(space.model, space.training, space.cluster) {}

  void Run(const LayerShape& shape);
  Findings& findings() { return findings_; }

 private:
  struct Choice {
    const Recompute* recompute;
    std::vector<TreatedLayer> treated;
  };
  void RunMicroBatch(const ShapeCosts& costs, ParallelConfig plan);
  void Pair(const ShapeCosts& costs);
  void RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout, ParallelConfig plan);
  void CostChoices(PipelineTerms& terms, const PipelineLayout& layout, const ParallelConfig& plan);
  void Cost(const PipelineTerms& terms, const RecomputeTerms& recompute_terms,
            const ParallelConfig& plan, const Recompute& recompute);

  const Space& space_;
  Estimator estimator_;
  Findings findings_;
  std::vector<Choice> treated_;  // of the shape at hand
  std::vector<TreatedLayer> untreated_, fully_;
  bool paired_ = false;                        // these have their pairs
  std::vector<ScheduleKind> feasible_;         // of the pipeline at hand
  std::optional<RankedPlan>* best_ = nullptr;  // of the layout at hand
  std::optional<RankedPlan>* near_ = nullptr;
};

void Worker::Run(const LayerShape& base) {
  const double gpus = space_.cluster.gpus();
  ParallelConfig plan;
  plan.tensor = base.tensor;
  plan.sequence_parallel = base.sequence_parallel;
  plan.context = base.context;
  plan.context_kind = base.context_kind;
  plan.expert = base.expert;
  plan.expert_tensor = base.expert_tensor;
  bool first = true;
  for (std::size_t i = 0; i < space_.micro_batches.size(); ++i) {
    LayerShape shape = base;
    shape.micro_batch_size = plan.micro_batch_size = space_.micro_batches[i];
    const ShapeCosts costs = estimator_.CostShape(shape);
    // Every rank busy all the time with this cut's work: no pipeline or sharding is faster.
    const Seconds floor = (double(space_.training.global_batch_size) * shape.tensor *
                           shape.context / (gpus * shape.micro_batch_size)) *
                          (space_.overlapping ? costs.overlapped_work : costs.work);
    if (floor > space_.time_limit) {
      ++findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)];
      continue;
    }
    const bool too_large = costs.least_layer > space_.memory_limit;
    if (too_large && !first) {
      // One layer in backward is over the memory, and grows with the micro-batch.
      const auto left = std::int64_t(space_.micro_batches.size() - i);
      findings_.RejectForMemory(MemoryItem::kActivations, left);
      break;
    }
    RunMicroBatch(costs, plan);
    first = false;
  }
}

void Worker::RunMicroBatch(const ShapeCosts& costs, ParallelConfig plan) {
  // Choices that are no worse than another in time and memory, of every kind of layer.
  treated_.clear();
  for (const Recompute& choice : space_.choices) treated_.push_back({&choice, costs.Treat(choice)});
  const auto no_better = [](const Choice& a, const Choice& b) {
    bool equal = true;
    for (std::size_t k = 0; k < a.treated.size(); ++k) {
      const TreatedLayer &x = a.treated[k], &y = b.treated[k];
      if (x.backward < y.backward || x.saved < y.saved || x.working_set < y.working_set) {
        return false;
      }
      equal =
          equal && x.backward == y.backward && x.saved == y.saved && x.working_set == y.working_set;
    }
    return !equal || &a > &b;  // of equals the first stays
  };
  std::vector<Choice> kept;
  for (const Choice& a : treated_) {
    if (std::none_of(treated_.begin(), treated_.end(),
                     [&](const Choice& b) { return &a != &b && no_better(a, b); })) {
      kept.push_back(a);
    }
  }
  treated_ = std::move(kept);
  untreated_ = costs.Treat({});
  fully_ = costs.Treat(kFirstLayer);
  paired_ = false;

  const std::int64_t cut = std::int64_t{1} * plan.tensor * plan.context;
  const std::int64_t gpus = space_.cluster.gpus();
  for (const auto& [pipeline, layouts] : space_.layouts) {
    if (gpus % (cut * pipeline) != 0) continue;
    plan.pipeline = pipeline;
    plan.data = int(gpus / (cut * pipeline));
    if (!space_.filter.Allows(Knob::kDp, plan.data)) {
      ++findings_.rejected[static_cast<int>(RejectionReason::kForbidden)];
      continue;
    }
    if (const Verdict v = CheckExpertRanks(gpus / pipeline, plan.expert, plan.expert_tensor)) {
      findings_.Reject(*v);
      continue;
    }
    for (const PipelineLayout& layout : layouts) {
      plan.virtual_stages = layout.virtual_stages;
      feasible_.clear();
      for (ScheduleKind schedule : layout.schedules) {
        plan.schedule = schedule;
        const int in_groups = schedule == ScheduleKind::kInterleaved ? plan.virtual_stages : 1;
        Verdict v =
            CheckBatch(space_.training, plan.data, plan.micro_batch_size, plan.pipeline, in_groups);
        if (!v) v = CheckSchedule(space_.model, space_.training, plan);
        if (v) {
          findings_.Reject(*v);
        } else {
          feasible_.push_back(schedule);
        }
      }
      if (!feasible_.empty()) RunPipeline(costs, layout, plan);
    }
  }
}

void Worker::Pair(const ShapeCosts& costs) {
  for (Choice& choice : treated_) costs.Pair(*choice.recompute, choice.treated);
  costs.Pair({}, untreated_);
  costs.Pair(kFirstLayer, fully_);
  paired_ = true;
}

void Worker::RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout,
                         ParallelConfig plan) {
  // Whatever the schedule and the sharding, the slowest rank has its work to do.
  const double micro_batches =
      double(space_.training.global_batch_size) / (double(plan.data) * plan.micro_batch_size);
  std::erase_if(feasible_, [&, floor = SlowestRank(costs, layout.stages)](ScheduleKind schedule) {
    const Seconds of_copy =
        (Overlaps(schedule) ? floor.overlapped : floor.work) / CopiesOfModel(schedule);
    if (micro_batches * of_copy <= space_.time_limit) return false;
    ++findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)];
    return true;
  });
  if (!paired_ && std::any_of(feasible_.begin(), feasible_.end(), Overlaps)) Pair(costs);
  const int data_ranks = plan.data * plan.context;
  // Experts have data-parallel ranks of their own.
  const std::int64_t expert_ranks =
      space_.model.has_moe()
          ? std::int64_t{1} * data_ranks * plan.tensor / plan.expert / plan.expert_tensor
          : 1;
  // All data-parallel ranks, or HSDP's usual shard: those inside a domain; or what was asked for.
  std::vector<int> shards = {0};
  if (space_.filter.Allows(Knob::kZeroShard, 0)) {
    shards.push_back(
        std::gcd(data_ranks, std::max(1, space_.cluster.gpus_per_domain() / plan.tensor)));
  } else {
    shards = Divisors(data_ranks, data_ranks);
  }
  for (int zero : space_.zeros) {
    // With nothing to shard over all stages are one.
    if (data_ranks == 1 && expert_ranks == 1 && zero != space_.zeros.front()) continue;
    for (int shard : shards) {
      if (shard > 0 && (zero == 0 || shard == 1 || shard == data_ranks)) continue;
      if (!space_.filter.Allows(Knob::kZeroShard, shard)) continue;
      plan.zero = zero;
      plan.zero_shard = shard;
      std::optional<PipelineTerms> terms;
      for (ScheduleKind schedule : feasible_) {
        if (zero >= 2 && !FollowsFromStages(schedule)) continue;
        plan.schedule = schedule;
        if (terms) {
          terms->Reschedule(plan);
        } else {
          terms.emplace(estimator_, costs, layout.stages, plan);
        }
        CostChoices(*terms, layout, plan);
      }
    }
  }
}

void Worker::CostChoices(PipelineTerms& terms, const PipelineLayout& layout,
                         const ParallelConfig& plan) {
  const LayoutKey key = KeyOf(plan, space_.training);
  best_ = &findings_.best[key];
  near_ = &findings_.near[key];
  std::int64_t open = 0;
  const auto for_each = [&](const auto& act) {
    for (const Choice& choice : treated_) {
      act(RecomputeTerms{.treated = choice.treated, .rest = {}, .leading = {}}, *choice.recompute);
    }
    if (!space_.partial_recompute) return;
    Recompute some_layers{.granularity = RecomputeGranularity::kFull, .modules = {}};
    for (std::size_t n = 0; n < layout.leading.size(); ++n) {
      some_layers.full_layers = layout.full_layers[n];
      if (!space_.filter.Allows(some_layers)) continue;
      act(RecomputeTerms{.treated = fully_, .rest = untreated_, .leading = layout.leading[n]},
          some_layers);
    }
  };
  const RecomputeTerms nothing{.treated = untreated_, .rest = {}, .leading = {}};
  const bool hopeless = terms.FloorPeak() > space_.memory_limit;  // the state alone is too large
  const bool too_slow = terms.Step(nothing) > space_.time_limit;  // even with nothing run again
  if (!hopeless && !too_slow) {
    terms.SetInFlight();
    for_each([&](const RecomputeTerms& recompute_terms, const Recompute& recompute) {
      Cost(terms, recompute_terms, plan, recompute);
    });
    return;
  }
  for_each([&](const RecomputeTerms&, const Recompute&) { ++open; });
  if (hopeless) {
    std::optional<RankedPlan>& nearest =
        findings_.RejectForMemory(terms.LargestFloorItem(), open).nearest;
    // It may still be the nearest miss.
    if (!nearest || terms.FloorPeak() <= nearest->peak) {
      terms.SetInFlight();
      for_each([&](const RecomputeTerms& recompute_terms, const Recompute& recompute) {
        Approach(nearest, terms.Cost(recompute_terms), plan, recompute);
      });
    }
  } else {
    findings_.rejected[static_cast<int>(RejectionReason::kTooSlow)] += open;
  }
}

void Worker::Cost(const PipelineTerms& terms, const RecomputeTerms& recompute_terms,
                  const ParallelConfig& plan, const Recompute& recompute) {
  const QuickCost cost = terms.Cost(recompute_terms);
  ++findings_.searched;
  const auto ranked = [&] {  // copied only for the few that are kept
    RankedPlan r{plan, cost.step, cost.peak};
    r.plan.recompute = recompute;
    return r;
  };
  if (cost.peak > space_.memory_limit) {
    const MemoryItem largest = terms.LargestItem(recompute_terms);
    Approach(findings_.RejectForMemory(largest, 1).nearest, cost, plan, recompute);
    if (plan.pipeline > 1 && cost.peak <= kNearlyFits * space_.memory_limit &&
        (!*near_ || cost.step < (*near_)->step ||
         (cost.step == (*near_)->step && Before(ranked(), **near_)))) {
      *near_ = ranked();
    }
    return;
  }
  if (!*best_ || cost.step < (*best_)->step ||
      (cost.step == (*best_)->step && Before(ranked(), **best_))) {
    *best_ = ranked();
  }
  if (findings_.pareto.Admits(cost.step, cost.peak)) findings_.pareto.Add(ranked());
}

// Tensor, context and expert cuts, each checked as soon as it is known.
std::vector<LayerShape> ShapesOf(const ModelConfig& model, const TrainingConfig& training,
                                 std::int64_t gpus, const PlanFilter& filter, Findings& findings) {
  std::vector<LayerShape> shapes;
  const auto allowed = [&](Knob knob, int value) {
    if (filter.Allows(knob, value)) return true;
    ++findings.rejected[static_cast<int>(RejectionReason::kForbidden)];
    return false;
  };
  const auto passes = [&](const Verdict& verdict) {
    if (!verdict) return true;
    findings.Reject(*verdict);
    return false;
  };
  for (int t : Divisors(gpus, gpus)) {
    if (!allowed(Knob::kTp, t) || !passes(CheckTensor(model, t))) continue;
    for (bool sp : {true, false}) {
      if (sp && t == 1) continue;
      if (!allowed(Knob::kSp, sp ? 1 : 0) || !passes(CheckSequenceParallel(model, t, sp))) continue;
      for (int c : Divisors(gpus / t, gpus / t)) {
        if (!allowed(Knob::kCp, c)) continue;
        for (ContextParallelKind kind :
             {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
          if (c == 1 && kind == ContextParallelKind::kUlysses) continue;
          if (!allowed(Knob::kCpKind, static_cast<int>(kind)) ||
              !passes(CheckContext(model, training, t, sp, c, kind))) {
            continue;
          }
          const std::vector<int> experts =
              model.has_moe() ? Divisors(gpus, gpus) : std::vector<int>{1};
          for (int e : experts) {
            if (!allowed(Knob::kEp, e)) continue;
            if (!passes(CheckExpert(model, e, 1))) continue;
            for (int x : model.has_moe() ? Divisors(gpus / e, gpus / e) : std::vector<int>{1}) {
              if (!allowed(Knob::kEtp, x) || !passes(CheckExpert(model, e, x))) continue;
              shapes.push_back({.tensor = t,
                                .sequence_parallel = sp,
                                .context = c,
                                .context_kind = kind,
                                .expert = e,
                                .expert_tensor = x,
                                .seq_length = training.seq_length});
            }
          }
        }
      }
    }
  }
  return shapes;
}

void Merge(Findings& into, const Findings& from) {
  const auto fastest = [](auto& all, const auto& more) {
    for (const auto& [key, plan] : more) {
      std::optional<RankedPlan>& slot = all[key];
      if (plan && (!slot || Before(*plan, *slot))) slot = plan;
    }
  };
  fastest(into.best, from.best);
  fastest(into.near, from.near);
  for (const RankedPlan& plan : from.pareto.plans()) into.pareto.Add(plan);
  into.searched += from.searched;
  for (int i = 0; i < kRejectionReasons; ++i) into.rejected[i] += from.rejected[i];
  for (int i = 0; i < kMemoryItems; ++i) {
    OutOfMemory& item = into.out_of_memory[i];
    item.count += from.out_of_memory[i].count;
    const std::optional<RankedPlan>& nearest = from.out_of_memory[i].nearest;
    if (nearest && (!item.nearest || Smaller(*nearest, *item.nearest))) item.nearest = nearest;
  }
}

}  // namespace

bool Before(const RankedPlan& a, const RankedPlan& b) {
  if (a.step != b.step) return a.step < b.step;
  if (a.peak != b.peak) return a.peak < b.peak;
  return Degrees(a.plan) < Degrees(b.plan);
}

std::vector<Recompute> RecomputeChoices(const ModelConfig& model) {
  std::vector<RecomputeModule> modules = {RecomputeModule::kCoreAttn, RecomputeModule::kMlp,
                                          RecomputeModule::kLayerNorm};
  if (model.has_moe()) {
    modules.push_back(RecomputeModule::kMoe);
    modules.push_back(RecomputeModule::kMoeAct);
  }
  if (model.latent) modules.push_back(RecomputeModule::kMlaUpProj);
  std::sort(modules.begin(), modules.end());

  std::vector<Recompute> choices = {{.granularity = RecomputeGranularity::kFull, .modules = {}},
                                    {}};
  const ModuleMask both = Mask(RecomputeModule::kMoe) | Mask(RecomputeModule::kMoeAct);
  for (unsigned set = 1; set < 1u << modules.size(); ++set) {
    Recompute choice{.granularity = RecomputeGranularity::kSelective, .modules = {}};
    for (std::size_t i = 0; i < modules.size(); ++i) {
      if (set >> i & 1) choice.modules.push_back(modules[i]);
    }
    // Recomputing the whole expert layer includes its activation.
    if ((MaskOf(choice.modules) & both) == both) continue;
    choices.push_back(choice);
  }
  return choices;
}

namespace {

Findings SearchSpace(const Space& space, int threads, const std::function<void(double)>& progress) {
  std::vector<Worker> workers;
  workers.reserve(threads);
  for (int i = 0; i < threads; ++i) workers.emplace_back(space);
  ForEachInParallel(
      space.shapes.size(), threads,
      [&](int thread, std::size_t i) { workers[std::size_t(thread)].Run(space.shapes[i]); },
      progress);
  Findings all;
  for (Worker& worker : workers) Merge(all, worker.findings());
  return all;
}

// The fastest of each layout; of `in_framework` alone those whose schedule the framework runs.
std::vector<RankedPlan> Fastest(const Findings& findings, int top, bool in_framework) {
  std::vector<RankedPlan> plans;
  // Of one layout's two the one that is no framework's comes first.
  const LayoutKey* last = nullptr;
  for (const auto& [key, plan] : findings.best) {
    if (!plan || (in_framework && key.back() == 0)) continue;
    const bool same = last != nullptr && std::equal(key.begin(), key.end() - 1, last->begin());
    if (!same) {
      plans.push_back(*plan);
    } else if (Before(*plan, plans.back())) {
      plans.back() = *plan;
    }
    last = &key;
  }
  std::sort(plans.begin(), plans.end(), Before);
  if (int(plans.size()) > top) plans.resize(top);
  return plans;
}

// What the coarse search leaves out: large micro-batches, many virtual stages, and all but a few
// ways to shard and recompute.
Space CoarsePart(const Space& space) {
  Space coarse = space;
  constexpr std::size_t kFew = 3;
  coarse.micro_batches.resize(std::min(kFew, coarse.micro_batches.size()));
  for (auto& [pipeline, layouts] : coarse.layouts) {
    layouts.erase(layouts.begin() + std::ptrdiff_t(std::min(kFew, layouts.size())), layouts.end());
  }
  if (std::count(space.zeros.begin(), space.zeros.end(), 1)) coarse.zeros = {1};
  coarse.partial_recompute = false;
  return coarse;
}

// Divides the layers anew of the `top` fastest plans, and of those faster than the last of them
// that nearly fit.
void SplitLayers(const Space& space, int threads, int top, Findings& all) {
  std::vector<RankedPlan> candidates = Fastest(all, top, false);
  const bool enough = int(candidates.size()) == top;
  const Seconds limit = enough ? candidates.back().step : space.time_limit;
  std::vector<RankedPlan> near;
  for (const auto& [key, plan] : all.near) {
    const std::optional<RankedPlan>& fits = all.best[key];
    if (plan && plan->step <= limit && (!fits || plan->step < fits->step)) near.push_back(*plan);
  }
  std::sort(near.begin(), near.end(), Before);
  if (int(near.size()) > top) near.resize(std::size_t(top));
  candidates.insert(candidates.end(), near.begin(), near.end());

  std::vector<Estimator> estimators;  // one a thread
  for (int i = 0; i < threads; ++i) {
    estimators.emplace_back(space.model, space.training, space.cluster);
  }
  std::vector<std::optional<Estimate>> split(candidates.size());
  ForEachInParallel(candidates.size(), threads,
                    [&](int thread, std::size_t i) {
                      split[i] = BestSplit(estimators[std::size_t(thread)], candidates[i].plan,
                                           space.memory_limit);
                    },
                    {});
  for (const std::optional<Estimate>& estimate : split) {
    if (!estimate) continue;
    const RankedPlan plan{estimate->plan, estimate->step, estimate->peak};
    std::optional<RankedPlan>& best = all.best[KeyOf(plan.plan, space.training)];
    if (!best || Before(plan, *best)) best = plan;
    all.pareto.Add(plan);
  }
}

}  // namespace

SearchResult Search(const ModelConfig& model, const TrainingConfig& training,
                    const Cluster& cluster, const SearchOptions& options) {
  const PlanFilter& filter = options.filter;
  Findings all;
  if (const Verdict verdict = CheckPrecision(cluster.gpu(), training)) {
    SearchResult result;
    ++result.rejected[static_cast<int>(verdict->reason)];
    return result;
  }
  std::int64_t& forbidden = all.rejected[static_cast<int>(RejectionReason::kForbidden)];
  Space space{.model = model,
              .training = training,
              .cluster = cluster,
              .filter = filter,
              .memory_limit = (1 - options.memory_margin) * cluster.gpu().hbm_capacity,
              .shapes = ShapesOf(model, training, cluster.gpus(), filter, all),
              .micro_batches = {},
              .layouts = LayoutsOf(model, cluster.gpus(), filter, forbidden),
              .choices = {},
              .zeros = {}};
  const auto keep = [&](bool allowed, auto& list, const auto& value) {
    if (allowed) {
      list.push_back(value);
    } else {
      ++forbidden;
    }
  };
  for (int b : Divisors(training.global_batch_size, training.global_batch_size)) {
    keep(filter.Allows(Knob::kMicroBatch, b), space.micro_batches, b);
  }
  for (const Recompute& choice : RecomputeChoices(model)) {
    keep(filter.Allows(choice), space.choices, choice);
  }
  for (int zero : {0, 1, 2, 3}) keep(filter.Allows(Knob::kZero, zero), space.zeros, zero);

  const int cores = std::max(1, int(std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  for (const auto& [pipeline, layouts] : space.layouts) {
    for (const PipelineLayout& layout : layouts) {
      space.overlapping = space.overlapping ||
                          std::any_of(layout.schedules.begin(), layout.schedules.end(), Overlaps);
    }
  }
  const std::vector<RankedPlan> coarse =
      Fastest(SearchSpace(CoarsePart(space), threads, {}), options.top, false);
  if (int(coarse.size()) == options.top) {
    space.time_limit = std::max(coarse.back().step, kParetoSpan * coarse.front().step);
  }
  Merge(all, SearchSpace(space, threads, options.progress));
  if (options.split_layers) SplitLayers(space, threads, options.top, all);

  SearchResult result;
  result.searched = all.searched;
  result.rejected = all.rejected;
  result.out_of_memory = all.out_of_memory;
  const Estimator estimator(model, training, cluster);
  for (OutOfMemory& item : result.out_of_memory) {
    if (item.nearest) item.stage = estimator.Itemise(item.nearest->plan).peak_stage;
  }
  result.memory_limit = space.memory_limit;
  result.plans = Fastest(all, options.top, false);
  result.in_framework = Fastest(all, options.top, true);
  if (result.plans.empty()) {
    for (const OutOfMemory& item : result.out_of_memory) {
      if (!item.nearest) continue;
      if (!result.nearest_miss || Smaller(*item.nearest, *result.nearest_miss)) {
        result.nearest_miss = item.nearest;
      }
    }
    return result;
  }
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
