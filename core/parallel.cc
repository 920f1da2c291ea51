// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace millwright {
namespace {

constexpr EnumName<ContextParallelKind> kContextParallelKindNames[] = {
    {ContextParallelKind::kRing, "ring"},
    {ContextParallelKind::kUlysses, "ulysses"},
    {ContextParallelKind::kNested, "nested"},
};
constexpr EnumName<ScheduleKind> kScheduleKindNames[] = {
    {ScheduleKind::kGpipe, "gpipe"},
    {ScheduleKind::k1F1B, "1f1b"},
    {ScheduleKind::kInterleaved, "interleaved"},
    {ScheduleKind::kZbH1, "zb-h1"},
    {ScheduleKind::kZbH2, "zb-h2"},
    {ScheduleKind::kZbV, "zb-v"},
    {ScheduleKind::kVHalf, "v-half"},
    {ScheduleKind::kVMin, "v-min"},
    {ScheduleKind::kVZb, "v-zb"},
    {ScheduleKind::kDualPipe, "dualpipe"},
    {ScheduleKind::kDualPipeV, "dualpipe-v"},
    {ScheduleKind::kBreadthFirst, "bfs"},
    {ScheduleKind::kForwardOnly, "forward-only"},
};
static_assert(std::rbegin(kScheduleKindNames)->value == ScheduleKind::kForwardOnly);
constexpr EnumName<RankOrder> kRankOrderNames[] = {
    {RankOrder::kDataInside, "tp-cp-ep-dp-pp"},
    {RankOrder::kPipelineInside, "tp-cp-ep-pp-dp"},
};
constexpr EnumName<RecomputeGranularity> kRecomputeGranularityNames[] = {
    {RecomputeGranularity::kNone, "none"},
    {RecomputeGranularity::kSelective, "selective"},
    {RecomputeGranularity::kFull, "full"},
};
// As --recompute-modules spells them (Megatron-LM, arguments.py).
constexpr EnumName<RecomputeModule> kRecomputeModuleNames[] = {
    {RecomputeModule::kCoreAttn, "core_attn"},
    {RecomputeModule::kMlp, "mlp"},
    {RecomputeModule::kMoe, "moe"},
    {RecomputeModule::kMoeAct, "moe_act"},
    {RecomputeModule::kLayerNorm, "layernorm"},
    {RecomputeModule::kMlaUpProj, "mla_up_proj"},
};
static_assert(std::size(kRecomputeModuleNames) == kRecomputeModules);

void RecomputeFields(ConfigIo& io, Recompute& r) {
  io.Enum("granularity", r.granularity, RecomputeGranularityNames(),
          "what of a layer the backward pass computes again: nothing, the modules listed, or all "
          "of it from its input");
  io.Enums("modules", r.modules, RecomputeModuleNames(), "with selective: which parts of a layer");
  io.Int("full_layers", r.full_layers, {0, 10'000},
         "with full: the first so many layers of each virtual stage; 0: all of them");
  io.Int(
      "offload_layers", r.offload_layers, {0, 10'000},
      "with none and selective: so many layers of each virtual stage, spread evenly over it, keep "
      "their activations in host memory; 0: none");
  if (r.granularity == RecomputeGranularity::kSelective && r.modules.empty())
    io.Problem("modules", "selective recompute needs at least one module");
  if (r.granularity != RecomputeGranularity::kSelective && !r.modules.empty())
    io.Problem("modules", "only selective recompute takes modules");
  if (r.granularity != RecomputeGranularity::kFull && r.full_layers != 0)
    io.Problem("full_layers", "only full recompute takes a number of layers");
  if (r.granularity == RecomputeGranularity::kFull && r.offload_layers != 0)
    io.Problem("offload_layers", "full recompute leaves nothing to offload");
}

// Equal ones in a row as "3xWHAT".
template <class T, class Text>
std::string Runs(std::span<T> items, char separator, const Text& text) {
  std::string runs;
  for (std::size_t i = 0, end = 0; i < items.size(); i = end) {
    while (end < items.size() && items[end] == items[i]) ++end;
    if (!runs.empty()) runs += separator;
    if (end - i > 1) runs += fmt::format("{}x", end - i);
    runs += text(items[i]);
  }
  return runs;
}

}  // namespace

std::span<const EnumName<ContextParallelKind>> ContextParallelKindNames() {
  return kContextParallelKindNames;
}
std::span<const EnumName<ScheduleKind>> ScheduleKindNames() { return kScheduleKindNames; }
std::span<const EnumName<ScheduleKind>> TrainingScheduleNames() {
  return std::span(kScheduleKindNames).first(std::size(kScheduleKindNames) - 1);
}
std::string_view NameOf(ScheduleKind kind) {
  const auto* found = std::find_if(std::begin(kScheduleKindNames), std::end(kScheduleKindNames),
                                   [&](const auto& name) { return name.value == kind; });
  MILLWRIGHT_CHECK(found != std::end(kScheduleKindNames));
  return found->name;
}
std::span<const EnumName<RankOrder>> RankOrderNames() { return kRankOrderNames; }
std::span<const EnumName<RecomputeGranularity>> RecomputeGranularityNames() {
  return kRecomputeGranularityNames;
}
std::span<const EnumName<RecomputeModule>> RecomputeModuleNames() { return kRecomputeModuleNames; }

void Fields(ConfigIo& io, ParallelConfig& p) {
  constexpr IntRange kDegree{.min = 1, .max = 1 << 20};
  io.Int("tensor_parallel", p.tensor, kDegree, "ranks that split each layer's matrices (TP)");
  io.Bool("sequence_parallel", p.sequence_parallel,
          "norms, dropout and residuals are split by tokens over the tensor ranks too");
  io.Int("context_parallel", p.context, kDegree, "ranks that split each sequence (CP)");
  io.Enum("context_parallel_kind", p.context_kind, ContextParallelKindNames(),
          "ring passes keys and values around; ulysses exchanges heads for tokens; nested does "
          "both, ulysses among neighbours and a ring of these groups");
  io.Int("pipeline_parallel", p.pipeline, kDegree, "stages that split the layers (PP)");
  io.Int("virtual_stages", p.virtual_stages, kDegree,
         "chunks of layers that a pipeline rank holds (VPP)");
  io.Int("data_parallel", p.data, kDegree, "replicas of the dense layers: GPUs / (TP CP PP) (DP)");
  io.Int("expert_parallel", p.expert, kDegree, "ranks that split the experts of a layer (EP)");
  io.Int("expert_tensor_parallel", p.expert_tensor, kDegree,
         "ranks that split each expert's matrices (ETP)");
  io.Int("micro_batch_size", p.micro_batch_size, {1, 1 << 20},
         "sequences that a replica computes at a time");
  io.Int("zero", p.zero, {0, 3},
         "what the data-parallel ranks share out: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
         "parameters too (FSDP)");
  io.Int("zero_shard", p.zero_shard, {0, 1 << 20},
         "ranks that one copy of the shared-out state spans (HSDP); 0: all of DP x CP");
  io.Object("recompute", "activations computed again instead of kept",
            [&] { RecomputeFields(io, p.recompute); });
  io.Enum("schedule", p.schedule, TrainingScheduleNames(),
          "order of the passes on a pipeline rank; interleaved takes virtual_stages above 1, bfs "
          "any, and the others have chunks of their own");
  io.Ints("stage_layers", p.stage_layers, {0, 10'000},
          "layers of each pipeline stage in the order in which a micro-batch passes them, virtual "
          "stages too, without multi-token-prediction modules; [] splits them evenly");
  io.Enum("order", p.order, RankOrderNames(),
          "which ranks have neighbouring GPUs, innermost first; the second has the stages of a "
          "pipeline next to each other (Megatron's --use-tp-pp-dp-mapping)");
  io.Int("context_parallel_ulysses", p.context_ulysses, {0, 1 << 20},
         "with nested: neighbouring context ranks that exchange heads for tokens, more than 1, "
         "fewer than CP and a divisor of it; else 0");
  io.OptionalArray<Recompute>(
      "rank_recompute", p.rank_recompute,
      "recompute of each pipeline rank, in place of recompute; left out: it is the same on all",
      [&](Recompute& r) { RecomputeFields(io, r); });
  if (p.rank_recompute.empty()) return;
  if (p.rank_recompute.size() != std::size_t(p.pipeline)) {
    io.Problem("rank_recompute",
               fmt::format("expected one for each of the {} pipeline ranks, got {}", p.pipeline,
                           p.rank_recompute.size()));
  }
  if (p.recompute != Recompute{}) {
    io.Problem("recompute",
               fmt::format("expected none beside rank_recompute, got {}", ShortName(p.recompute)));
  }
}

std::int64_t GpuOf(const ParallelConfig& p, std::int64_t rank) {
  if (!p.placed_otherwise()) return rank;
  const std::int64_t block = std::int64_t{1} * p.tensor * p.context, plane = block * p.data;
  const std::int64_t stage = rank / plane, member = rank % plane;
  return member % block + block * (stage + p.pipeline * (member / block));
}

std::vector<Recompute> ParallelConfig::Recomputes() const {
  if (rank_recompute.empty()) return {recompute};
  std::vector<Recompute> all;
  for (const Recompute& one : rank_recompute) {
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
  }
  return all;
}

bool ParallelConfig::Offloads() const {
  const std::vector<Recompute> all = Recomputes();
  return std::any_of(all.begin(), all.end(),
                     [](const Recompute& r) { return r.offload_layers > 0; });
}

bool FollowsFromStages(ScheduleKind kind) {
  return kind == ScheduleKind::k1F1B || kind == ScheduleKind::kInterleaved;
}

std::string ContextSuffix(const ParallelConfig& p) {
  switch (p.context_kind) {
    case ContextParallelKind::kRing:
      return "";
    case ContextParallelKind::kUlysses:
      return " ulysses";
    case ContextParallelKind::kNested:
      return fmt::format(" nested({})", p.context_ulysses);
  }
  return {};
}

std::string ContextCell(const ParallelConfig& p) {
  switch (p.context > 1 ? p.context_kind : ContextParallelKind::kRing) {
    case ContextParallelKind::kRing:
      return std::to_string(p.context);
    case ContextParallelKind::kUlysses:
      return fmt::format("{}u", p.context);
    case ContextParallelKind::kNested:
      return fmt::format("{}u{}", p.context, p.context_ulysses);
  }
  return {};
}

std::string ShortName(const ParallelConfig& p) {
  std::string name = fmt::format("tp{}", p.tensor);
  if (p.sequence_parallel) name += " sp";
  name += fmt::format(" cp{}", p.context);
  if (p.context > 1) name += ContextSuffix(p);
  name += fmt::format(" pp{} vpp{}", p.pipeline, p.virtual_stages);
  if (!p.stage_layers.empty()) name += fmt::format(" layers({})", RunsOf(p.stage_layers));
  if (!FollowsFromStages(p.schedule)) name += fmt::format(" {}", NameOf(p.schedule));
  name += fmt::format(" dp{}", p.data);
  if (p.expert > 1 || p.expert_tensor > 1)
    name += fmt::format(" ep{} etp{}", p.expert, p.expert_tensor);
  name += fmt::format(" mbs{} zero{}", p.micro_batch_size, p.zero);
  if (p.zero_shard > 0) name += fmt::format("/{}", p.zero_shard);
  if (p.Recomputes() != std::vector{Recompute{}}) name += fmt::format(" {}", RecomputeName(p));
  if (p.placed_otherwise()) name += " pp-dp";
  return name;
}

std::string RunsOf(std::span<const int> counts) {
  return Runs(counts, ',', [](int count) { return std::to_string(count); });
}

std::string RecomputeName(const ParallelConfig& p) {
  if (p.rank_recompute.empty()) return ShortName(p.recompute);
  return Runs(std::span(p.rank_recompute), '|', [](const Recompute& r) { return ShortName(r); });
}

std::string ShortName(const Recompute& r) {
  if (r.offload_layers > 0) {
    Recompute kept = r;
    kept.offload_layers = 0;
    const std::string offloaded = fmt::format("offload({})", r.offload_layers);
    return kept == Recompute{} ? offloaded : fmt::format("{} {}", ShortName(kept), offloaded);
  }
  switch (r.granularity) {
    case RecomputeGranularity::kNone:
      return "none";
    case RecomputeGranularity::kFull:
      return r.full_layers > 0 ? fmt::format("full({})", r.full_layers) : "full";
    case RecomputeGranularity::kSelective: {
      std::string list;
      for (RecomputeModule module : r.modules) {
        const auto names = RecomputeModuleNames();
        const auto it = std::find_if(names.begin(), names.end(),
                                     [&](const auto& n) { return n.value == module; });
        MILLWRIGHT_CHECK(it != names.end());
        if (!list.empty()) list += ',';
        list += it->name;
      }
      return fmt::format("selective({})", list);
    }
  }
  return {};
}

}  // namespace millwright
