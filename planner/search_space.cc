// SPDX-License-Identifier: Apache-2.0
#include "planner/search_space.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "planner/layer_split.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

// Models of hundreds of layers do not need every step: vpp is tried up to the first, and a chunk's
// partial recomputation in at most the second many steps.
constexpr int kMostVirtualStages = 128;
constexpr int kMostPartialRecomputes = 128;  // and of offloading

PipelineLayout LayoutOf(const ModelConfig& model, const ScheduleChoice& choice,
                        const PlanFilter& filter, bool offload, std::vector<int> rank_of_stage) {
  ParallelConfig plan;
  plan.pipeline = choice.pipeline;
  plan.virtual_stages = choice.virtual_stages;
  plan.schedule = choice.kind;
  PipelineLayout layout{.virtual_stages = choice.virtual_stages,
                        .divides = CanSplit(plan),
                        .schedules = {choice.kind},
                        .rank_of_stage = std::move(rank_of_stage)};
  layout.stages = DistinctStages(
      StagesOf(model, choice.pipeline, layout.rank_of_stage, CopiesOfModel(choice.kind)));
  std::size_t longest = 0;
  for (const StageContent& stage : layout.stages) {
    for (const auto& chunk : stage.chunks) longest = std::max(longest, chunk.size());
  }
  const int step =
      std::max(1, (int(longest) + kMostPartialRecomputes - 1) / kMostPartialRecomputes);
  for (int n = step; n < int(longest); n += step) {
    const Recompute first{
        .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = n};
    if (filter.Allows(first)) layout.full.push_back({n, SomeLayers(layout.stages, first)});
  }
  if (!offload) return layout;
  for (int n = step; n < int(longest) + step; n += step) {
    const Recompute spread{.offload_layers = std::min(n, int(longest))};
    if (filter.Allows(Knob::kOffload, spread.offload_layers)) {
      layout.offload.push_back({spread.offload_layers, SomeLayers(layout.stages, spread)});
    }
  }
  return layout;
}

PipelineLayouts LayoutsOf(const ModelConfig& model, std::int64_t gpus, const PlanFilter& filter,
                          bool offload, std::int64_t& forbidden) {
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
          of_degree.push_back(LayoutOf(model, choice, filter, offload, std::move(rank_of_stage)));
        }
      }
    }
  }
  return layouts;
}

// How `context` ranks can be used, with the ranks of a nested all-to-all.
std::vector<std::pair<ContextParallelKind, int>> ContextCuts(int context) {
  std::vector<std::pair<ContextParallelKind, int>> cuts = {{ContextParallelKind::kRing, 0}};
  if (context == 1) return cuts;
  cuts.emplace_back(ContextParallelKind::kUlysses, 0);
  for (int ulysses : Divisors(context, context / 2)) {
    if (ulysses > 1) cuts.emplace_back(ContextParallelKind::kNested, ulysses);
  }
  return cuts;
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
        std::vector<std::pair<ContextParallelKind, int>> cuts = ContextCuts(c);
        std::erase_if(cuts, [&](const auto& cut) {
          const auto& [kind, ulysses] = cut;
          return !allowed(Knob::kCpKind, static_cast<int>(kind)) ||
                 !allowed(Knob::kCpUlysses, ulysses) ||
                 !passes(CheckContext(model, training,
                                      {.tensor = t,
                                       .sequence_parallel = sp,
                                       .context = c,
                                       .context_kind = kind,
                                       .context_ulysses = ulysses}));
        });
        if (cuts.empty()) continue;
        const std::vector<int> experts =
            model.has_moe() ? Divisors(gpus, gpus) : std::vector<int>{1};
        for (int e : experts) {
          if (!allowed(Knob::kEp, e)) continue;
          if (!passes(CheckExpert(model, e, 1))) continue;
          for (int x : model.has_moe() ? Divisors(gpus / e, gpus / e) : std::vector<int>{1}) {
            if (!allowed(Knob::kEtp, x) || !passes(CheckExpert(model, e, x))) continue;
            // One after the other, so that a worker can rule out all that they share at once.
            for (const auto& [kind, ulysses] : cuts) {
              shapes.push_back({.tensor = t,
                                .sequence_parallel = sp,
                                .context = c,
                                .context_kind = kind,
                                .expert = e,
                                .expert_tensor = x,
                                .seq_length = training.seq_length,
                                .context_ulysses = ulysses});
            }
          }
        }
      }
    }
  }
  return shapes;
}

}  // namespace

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

bool Overlaps(ScheduleKind kind) {
  return kind == ScheduleKind::kDualPipe || kind == ScheduleKind::kDualPipeV;
}

bool ShardsUnder(Framework framework, ScheduleKind kind, int zero) {
  return zero < 2 || RunsIn(framework, kind);
}

std::vector<Recompute> RecomputeChoices(const ModelConfig& model) {
  std::vector<RecomputeModule> modules = {RecomputeModule::kCoreAttn, RecomputeModule::kLayerNorm};
  // Where every layer has experts there is nothing by that name.
  if (std::any_of(model.layers.begin(), model.layers.end(),
                  [](const LayerRun& run) { return !run.kind.moe; })) {
    modules.push_back(RecomputeModule::kMlp);
  }
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

std::vector<Recompute> OffloadChoices(const ModelConfig& model) {
  std::vector<Recompute> choices = RecomputeChoices(model);
  std::erase_if(choices, [](const Recompute& choice) {
    return choice.granularity == RecomputeGranularity::kFull || choice.modules.size() > 1;
  });
  return choices;
}

bool Space::Irrelevant(Seconds step, Bytes peak, bool others) const {
  // Bounds and costs are sums in different orders.
  constexpr double kRounding = 1e-9;
  if (exhaustive) return false;
  const Seconds least = (1 - kRounding) * step;
  const TableLimit& limit = others ? others_limit : table_limit;
  const bool in_table =
      objective == Objective::kMemory ? (1 - kRounding) * peak <= limit.peak : least <= limit.step;
  return !in_table && (least > front_limit || known.Beats(least, (1 - kRounding) * peak));
}

LayerShape Space::ShapeOf(std::size_t unit) const {
  LayerShape shape = shapes[unit / micro_batches.size()];
  shape.micro_batch_size = micro_batches[unit % micro_batches.size()];
  return shape;
}

ParallelConfig Space::PlanOf(const LayerShape& shape) const {
  ParallelConfig plan;
  plan.tensor = shape.tensor;
  plan.sequence_parallel = shape.sequence_parallel;
  plan.context = shape.context;
  plan.context_kind = shape.context_kind;
  plan.context_ulysses = shape.context_ulysses;
  plan.expert = shape.expert;
  plan.expert_tensor = shape.expert_tensor;
  plan.micro_batch_size = shape.micro_batch_size;
  return plan;
}

std::vector<Sharding> Space::Shardings(const ParallelConfig& plan) const {
  const int data_ranks = plan.data * plan.context;
  // Experts have data-parallel ranks of their own.
  const std::int64_t expert_ranks = model.has_moe() ? std::int64_t{1} * data_ranks * plan.tensor /
                                                          plan.expert / plan.expert_tensor
                                                    : 1;
  std::vector<int> shards = {0};
  if (filter.Allows(Knob::kZeroShard, 0)) {
    shards.push_back(std::gcd(data_ranks, std::max(1, cluster.gpus_per_domain() / plan.tensor)));
  } else {
    shards = Divisors(data_ranks, data_ranks);
  }
  std::vector<Sharding> shardings;
  for (int zero : zeros) {
    // With nothing to shard over all stages are one.
    if (data_ranks == 1 && expert_ranks == 1 && zero != zeros.front()) continue;
    for (int shard : shards) {
      if (shard > 0 && (zero == 0 || shard == 1 || shard == data_ranks)) continue;
      if (!filter.Allows(Knob::kZeroShard, shard)) continue;
      for (RankOrder order : orders) {
        ParallelConfig ordered = plan;
        ordered.order = order;
        // Where nothing is placed otherwise by it, one order is as good as the other.
        if (order != orders.front() && !ordered.placed_otherwise()) continue;
        if (!CheckOrder(model, ordered)) shardings.push_back({zero, shard, order});
      }
    }
  }
  return shardings;
}

std::int64_t Space::Choices(const PipelineLayout& layout, ScheduleKind schedule) const {
  return std::ssize(choices) + (partial_recompute ? std::ssize(layout.full) : 0) +
         (CanOffload(schedule) ? std::ssize(offloads) * std::ssize(layout.offload) : 0);
}

Verdict Space::Check(ParallelConfig plan, ScheduleKind schedule) const {
  plan.schedule = schedule;
  const int in_groups = schedule == ScheduleKind::kInterleaved ? plan.virtual_stages : 1;
  Verdict verdict =
      CheckBatch(training, plan.data, plan.micro_batch_size, plan.pipeline, in_groups);
  if (!verdict) verdict = CheckSchedule(model, training, plan);
  return verdict;
}

Space SpaceOf(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster,
              const PlanFilter& filter, Bytes memory_limit, bool offload, Findings& findings) {
  std::int64_t& forbidden = findings.rejected[static_cast<int>(RejectionReason::kForbidden)];
  Space space{.model = model,
              .training = training,
              .cluster = cluster,
              .filter = filter,
              .memory_limit = memory_limit,
              .shapes = ShapesOf(model, training, cluster.gpus(), filter, findings),
              .micro_batches = {},
              .layouts = LayoutsOf(model, cluster.gpus(), filter, offload, forbidden),
              .choices = {},
              .zeros = {},
              .orders = {},
              .offloads = {}};
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
  if (filter.Allows(Knob::kOffload, 0)) {
    for (const Recompute& choice : RecomputeChoices(model)) {
      keep(filter.Allows(choice), space.choices, choice);
    }
  } else {
    ++forbidden;
    space.partial_recompute = false;
  }
  if (offload) {
    for (const Recompute& choice : OffloadChoices(model)) {
      keep(filter.Allows(choice), space.offloads, choice);
    }
  }
  for (int zero : {0, 1, 2, 3}) keep(filter.Allows(Knob::kZero, zero), space.zeros, zero);
  const bool any_order = filter.About(Knob::kOrder).terms > 0;
  for (const auto& name : RankOrderNames()) {
    if (!any_order && name.value != RankOrder::kDataInside) continue;
    keep(filter.Allows(Knob::kOrder, static_cast<int>(name.value)), space.orders, name.value);
  }
  space.overlapping = AnySchedule(space.layouts, Overlaps);
  return space;
}

Space CoarsePart(const Space& space, CoarseStage stage) {
  Space coarse = space;
  constexpr std::size_t kFew = 3;
  const auto keep = [](auto& list, std::size_t most) {
    if (list.size() > most) list.erase(list.begin() + std::ptrdiff_t(most), list.end());
  };
  const bool first = stage == CoarseStage::kFirst, others = stage == CoarseStage::kOthers;
  keep(coarse.micro_batches, first ? 1 : kFew);
  keep(coarse.orders, 1);
  if (first) keep(coarse.choices, 2);  // in full, and none
  for (auto& [pipeline, layouts] : coarse.layouts) {
    std::set<ScheduleKind> seen;
    if (!first) {
      std::erase_if(layouts, [&](PipelineLayout& layout) {
        std::erase_if(layout.schedules, [&](ScheduleKind schedule) {
          if (FollowsFromStages(schedule)) return others;
          return !others || !seen.insert(schedule).second;
        });
        return layout.schedules.empty();
      });
    }
    if (!others) keep(layouts, first ? 1 : kFew);
  }
  std::erase_if(coarse.layouts, [](const auto& of_degree) { return of_degree.second.empty(); });
  if (std::count(space.zeros.begin(), space.zeros.end(), 1)) coarse.zeros = {1};
  coarse.partial_recompute = false;
  // Of offloading one choice, and half of the layers or all.
  keep(coarse.offloads, 1);
  for (auto& [pipeline, layouts] : coarse.layouts) {
    for (PipelineLayout& layout : layouts) {
      std::vector<PipelineLayout::OfChunk>& counts = layout.offload;
      if (counts.size() > 2) counts = {counts[(counts.size() - 1) / 2], counts.back()};
    }
  }
  return coarse;
}

std::int64_t CandidateCount::Of(const PipelineLayout& layout, ScheduleKind schedule,
                                const std::vector<Sharding>& shardings) const {
  return space_.Choices(layout, schedule) *
         std::count_if(shardings.begin(), shardings.end(), [&](const Sharding& sharding) {
           return ShardsUnder(space_.training.framework, schedule, sharding.zero);
         });
}

std::int64_t CandidateCount::Of(const LayerShape& shape) {
  return Of(shape, OfCut(std::int64_t{1} * shape.tensor * shape.context, shape.micro_batch_size));
}

std::int64_t CandidateCount::OfAll() {
  // Micro-batches add up by cut, so that shapes do not multiply with them.
  std::map<std::int64_t, std::vector<OfPipeline>> sums;
  std::int64_t count = 0;
  for (const LayerShape& shape : space_.shapes) {
    const std::int64_t cut = std::int64_t{1} * shape.tensor * shape.context;
    const auto [entry, inserted] = sums.try_emplace(cut);
    if (inserted) {
      for (int micro_batch : space_.micro_batches) {
        const std::vector<OfPipeline>& pipelines = OfCut(cut, micro_batch);
        entry->second.resize(pipelines.size());  // the same for each
        for (std::size_t i = 0; i < pipelines.size(); ++i) {
          OfPipeline& sum = entry->second[i];
          sum.pipeline = pipelines[i].pipeline;
          sum.data = pipelines[i].data;
          sum.any_zero += pipelines[i].any_zero;
          sum.low_zero += pipelines[i].low_zero;
        }
      }
    }
    count += Of(shape, entry->second);
  }
  return count;
}

std::int64_t CandidateCount::Of(const LayerShape& shape,
                                const std::vector<OfPipeline>& pipelines) const {
  ParallelConfig plan = space_.PlanOf(shape);
  std::int64_t count = 0;
  for (const OfPipeline& of : pipelines) {
    if (CheckExpertRanks(space_.cluster.gpus() / of.pipeline, plan.expert, plan.expert_tensor)) {
      continue;
    }
    plan.pipeline = of.pipeline;
    plan.data = of.data;
    std::int64_t low = 0, all = 0;
    for (const Sharding& sharding : space_.Shardings(plan)) {
      ++all;
      if (sharding.zero < 2) ++low;
    }
    count += of.any_zero * all + of.low_zero * low;
  }
  return count;
}

const std::vector<CandidateCount::OfPipeline>& CandidateCount::OfCut(std::int64_t cut,
                                                                     int micro_batch) {
  const auto [entry, inserted] = cuts_.try_emplace({cut, micro_batch});
  std::vector<OfPipeline>& pipelines = entry->second;
  if (!inserted) return pipelines;
  const std::int64_t gpus = space_.cluster.gpus();
  for (const auto& [pipeline, layouts] : space_.layouts) {
    if (gpus % (cut * pipeline) != 0) continue;
    OfPipeline of{.pipeline = pipeline, .data = int(gpus / (cut * pipeline))};
    if (!space_.filter.Allows(Knob::kDp, of.data)) continue;
    ParallelConfig plan;
    plan.pipeline = pipeline;
    plan.data = of.data;
    plan.micro_batch_size = micro_batch;
    for (const PipelineLayout& layout : layouts) {
      plan.virtual_stages = layout.virtual_stages;
      for (ScheduleKind schedule : layout.schedules) {
        if (space_.Check(plan, schedule)) continue;
        (ShardsUnder(space_.training.framework, schedule, 3) ? of.any_zero : of.low_zero) +=
            space_.Choices(layout, schedule);
      }
    }
    pipelines.push_back(of);
  }
  return pipelines;
}

}  // namespace millwright
