// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

#include "planner/parallel_work.h"

namespace millwright {
namespace {

auto Degrees(const ParallelConfig& p) {
  return std::tuple(p.recompute.granularity, p.recompute.full_layers, p.recompute.modules, p.zero,
                    p.zero_shard, p.tensor, p.sequence_parallel, p.context, p.context_kind,
                    p.pipeline, p.virtual_stages, p.expert, p.expert_tensor, p.micro_batch_size);
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

// Pipeline splits that candidates share.
struct PipelineLayout {
  int virtual_stages = 1;
  std::vector<StageContent> stages;       // distinct
  std::vector<int> full_layers;           // full recompute of the first so many layers of a chunk,
  std::vector<std::vector<int>> leading;  // and what that is of each stage
};
using PipelineLayouts = std::map<int, std::vector<PipelineLayout>>;  // by pipeline degree

PipelineLayouts LayoutsOf(const ModelConfig& model, std::int64_t gpus, const PlanFilter& filter,
                          std::int64_t& forbidden) {
  PipelineLayouts layouts;
  for (int p : Divisors(gpus, model.num_layers)) {
    if (!filter.Allows(Knob::kPp, p)) {
      ++forbidden;
      continue;
    }
    std::vector<PipelineLayout>& of_degree = layouts[p];
    const int most = p == 1 ? 1 : std::min(kMostVirtualStages, model.num_layers / p);
    for (int v = 1; v <= most; ++v) {
      const ScheduleKind schedule = v > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
      if (!filter.Allows(Knob::kVpp, v) ||
          !filter.Allows(Knob::kSchedule, static_cast<int>(schedule))) {
        ++forbidden;
        continue;
      }
      PipelineLayout layout{
          .virtual_stages = v, .stages = DistinctStages(StagesOf(model, p, v)), .leading = {}};
      std::size_t longest = 0;
      for (const StageContent& stage : layout.stages) {
        for (const auto& chunk : stage.chunks) longest = std::max(longest, chunk.size());
      }
      const int step = (int(longest) + kMostPartialRecomputes - 1) / kMostPartialRecomputes;
      for (int n = step; n < int(longest); n += std::max(1, step)) {
        layout.full_layers.push_back(n);
        layout.leading.push_back(LeadingLayers(layout.stages, n));
      }
      of_degree.push_back(std::move(layout));
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

// The degrees that tell layouts apart: tp, cp and its kind, pp, ep, etp.
using LayoutKey = std::array<int, 6>;

// What one worker has found.
struct Findings {
  std::map<LayoutKey, RankedPlan> best;  // of each layout
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
  bool partial_recompute = true;
  Seconds time_limit{std::numeric_limits<double>::infinity()};  // slower is of no interest
};

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
  void RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout, ParallelConfig plan);
  void CostChoices(const PipelineTerms& terms, const PipelineLayout& layout,
                   const ParallelConfig& plan);
  void Cost(const PipelineTerms& terms, const RecomputeTerms& recompute_terms,
            const ParallelConfig& plan, const Recompute& recompute);

  const Space& space_;
  Estimator estimator_;
  Findings findings_;
  std::vector<Choice> treated_;  // of the shape at hand
  std::vector<TreatedLayer> untreated_, fully_;
  RankedPlan* best_ = nullptr;  // of the layout at hand
  bool best_found_ = false;
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
                          costs.work;
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
  const Recompute first_layer{
      .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = 1};
  fully_ = costs.Treat(first_layer);

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
    const LayoutKey key = {plan.tensor,   plan.context, static_cast<int>(plan.context_kind),
                           plan.pipeline, plan.expert,  plan.expert_tensor};
    const auto [slot, inserted] = findings_.best.try_emplace(key);
    best_ = &slot->second;
    best_found_ = !inserted && best_->step.value > 0;
    for (const PipelineLayout& layout : layouts) {
      plan.virtual_stages = layout.virtual_stages;
      plan.schedule = layout.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
      if (const Verdict v = CheckBatch(space_.training, plan.data, plan.micro_batch_size,
                                       plan.pipeline, plan.virtual_stages)) {
        findings_.Reject(*v);
        continue;
      }
      RunPipeline(costs, layout, plan);
    }
    if (!best_found_) findings_.best.erase(slot);
  }
}

void Worker::RunPipeline(const ShapeCosts& costs, const PipelineLayout& layout,
                         ParallelConfig plan) {
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
      CostChoices(PipelineTerms(estimator_, costs, layout.stages, plan), layout, plan);
    }
  }
}

void Worker::CostChoices(const PipelineTerms& terms, const PipelineLayout& layout,
                         const ParallelConfig& plan) {
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
  const bool too_slow =
      terms.Cost(nothing).step > space_.time_limit;  // even with nothing run again
  if (!hopeless && !too_slow) {
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
    return;
  }
  if (!best_found_ || cost.step < best_->step ||
      (cost.step == best_->step && Before(ranked(), *best_))) {
    *best_ = ranked();
    best_found_ = true;
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
  for (const auto& [key, plan] : from.best) {
    const auto [slot, inserted] = into.best.try_emplace(key, plan);
    if (!inserted && Before(plan, slot->second)) slot->second = plan;
  }
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

std::vector<RankedPlan> Fastest(const Findings& findings, int top) {
  std::vector<RankedPlan> plans;
  for (const auto& [key, plan] : findings.best) plans.push_back(plan);
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
  const std::vector<RankedPlan> coarse =
      Fastest(SearchSpace(CoarsePart(space), threads, {}), options.top);
  if (int(coarse.size()) == options.top) {
    space.time_limit = std::max(coarse.back().step, kParetoSpan * coarse.front().step);
  }
  Merge(all, SearchSpace(space, threads, options.progress));

  SearchResult result;
  result.searched = all.searched;
  result.rejected = all.rejected;
  result.out_of_memory = all.out_of_memory;
  const Estimator estimator(model, training, cluster);
  for (OutOfMemory& item : result.out_of_memory) {
    if (item.nearest) item.stage = estimator.Itemise(item.nearest->plan).peak_stage;
  }
  result.memory_limit = space.memory_limit;
  result.plans = Fastest(all, options.top);
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
