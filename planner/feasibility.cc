// SPDX-License-Identifier: Apache-2.0
#include "planner/feasibility.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "sim/schedule.h"

namespace millwright {
namespace {

template <class... Args>
Verdict Reject(RejectionReason reason, fmt::format_string<Args...> text, Args&&... args) {
  return Rejection{reason, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace

std::string_view Name(RejectionReason reason) {
  switch (reason) {
    case RejectionReason::kGpuCount:
      return "degrees do not multiply to the cluster's GPUs";
    case RejectionReason::kPrecision:
      return "precision not supported by the GPU";
    case RejectionReason::kHeads:
      return "attention heads not divisible by tp";
    case RejectionReason::kQueryGroups:
      return "KV heads and tp do not divide each other";
    case RejectionReason::kFfn:
      return "FFN size not divisible by tp";
    case RejectionReason::kSequenceParallel:
      return "sequence parallelism without tp";
    case RejectionReason::kMoeSequenceParallel:
      return "MoE with tp needs sequence parallelism";
    case RejectionReason::kSequenceLength:
      return "sequence not divisible by tp and cp";
    case RejectionReason::kUlyssesHeads:
      return "heads not divisible by tp x cp (Ulysses)";
    case RejectionReason::kNestedContext:
      return "context ranks cannot be nested like that";
    case RejectionReason::kNotMoe:
      return "expert parallelism of a dense model";
    case RejectionReason::kExperts:
      return "experts not divisible by ep";
    case RejectionReason::kExpertFfn:
      return "expert FFN size not divisible by etp";
    case RejectionReason::kExpertRanks:
      return "ep x etp does not divide the ranks of a stage";
    case RejectionReason::kRankOrder:
      return "tp-cp-ep-pp-dp with ep x etp other than tp x cp";
    case RejectionReason::kLayers:
      return "fewer layers than stages";
    case RejectionReason::kVirtualStages:
      return "virtual stages do not go with the schedule";
    case RejectionReason::kBatch:
      return "global batch not divisible by dp x micro-batch";
    case RejectionReason::kInterleaved:
      return "micro-batches not a multiple of pp (interleaved)";
    case RejectionReason::kSchedule:
      return "the schedule needs other micro-batches or stages";
    case RejectionReason::kZeroShard:
      return "ZeRO sharding without ranks to shard over";
    case RejectionReason::kRecompute:
      return "recompute choice does not fit the model";
    case RejectionReason::kOutOfMemory:
      return "out of memory";
    case RejectionReason::kHostMemory:
      return "offloaded activations over the hosts' memory";
    case RejectionReason::kTooSlow:
      return "too slow by a lower bound";
    case RejectionReason::kForbidden:
      return "ruled out by --require or --forbid";
  }
  return {};
}

std::string_view JsonKey(RejectionReason reason) {
  switch (reason) {
    case RejectionReason::kGpuCount:
      return "gpu_count";
    case RejectionReason::kPrecision:
      return "precision";
    case RejectionReason::kHeads:
      return "heads_not_divisible";
    case RejectionReason::kQueryGroups:
      return "kv_heads_not_divisible";
    case RejectionReason::kFfn:
      return "ffn_not_divisible";
    case RejectionReason::kSequenceParallel:
      return "sequence_parallel_without_tp";
    case RejectionReason::kMoeSequenceParallel:
      return "moe_needs_sequence_parallel";
    case RejectionReason::kSequenceLength:
      return "sequence_not_divisible";
    case RejectionReason::kUlyssesHeads:
      return "ulysses_heads";
    case RejectionReason::kNestedContext:
      return "nested_context";
    case RejectionReason::kNotMoe:
      return "not_moe";
    case RejectionReason::kExperts:
      return "experts_not_divisible";
    case RejectionReason::kExpertFfn:
      return "expert_ffn_not_divisible";
    case RejectionReason::kExpertRanks:
      return "expert_ranks";
    case RejectionReason::kRankOrder:
      return "rank_order";
    case RejectionReason::kLayers:
      return "too_few_layers";
    case RejectionReason::kVirtualStages:
      return "virtual_stages";
    case RejectionReason::kBatch:
      return "batch_not_divisible";
    case RejectionReason::kInterleaved:
      return "interleaved_micro_batches";
    case RejectionReason::kSchedule:
      return "schedule";
    case RejectionReason::kZeroShard:
      return "zero_shard";
    case RejectionReason::kRecompute:
      return "recompute";
    case RejectionReason::kOutOfMemory:
      return "out_of_memory";
    case RejectionReason::kHostMemory:
      return "host_memory";
    case RejectionReason::kTooSlow:
      return "too_slow";
    case RejectionReason::kForbidden:
      return "forbidden";
  }
  return {};
}

Verdict CheckPrecision(const GpuSpec& gpu, const TrainingConfig& training) {
  if (gpu.peak(training.precision).value > 0) return {};
  std::string_view name;
  for (const auto& n : PrecisionNames()) {
    if (n.value == training.precision) name = n.name;
  }
  return Reject(RejectionReason::kPrecision, "{} has no {}", gpu.name, name);
}

Verdict CheckTensor(const ModelConfig& model, int tensor) {
  if (model.num_attention_heads % tensor != 0) {
    return Reject(RejectionReason::kHeads, "{} attention heads are not divisible by tp {}",
                  model.num_attention_heads, tensor);
  }
  const int groups = model.num_query_groups;
  if (!model.latent && groups % tensor != 0 && tensor % groups != 0) {
    return Reject(RejectionReason::kQueryGroups,
                  "{} KV heads cannot be split over or replicated on tp {}", groups, tensor);
  }
  const bool dense = std::any_of(model.layers.begin(), model.layers.end(),
                                 [](const LayerRun& run) { return !run.kind.moe; });
  const std::int64_t shared = model.has_moe() ? model.moe.shared_expert_ffn_hidden_size : 0;
  if ((dense && model.ffn_hidden_size % tensor != 0) || shared % tensor != 0) {
    return Reject(RejectionReason::kFfn, "FFN size {} is not divisible by tp {}",
                  dense && model.ffn_hidden_size % tensor != 0 ? model.ffn_hidden_size : shared,
                  tensor);
  }
  return {};
}

Verdict CheckSequenceParallel(const ModelConfig& model, int tensor, bool sequence_parallel) {
  if (sequence_parallel && tensor == 1) {
    return Reject(RejectionReason::kSequenceParallel,
                  "sequence parallelism shards over tensor ranks, and tp is 1");
  }
  if (!sequence_parallel && tensor > 1 && model.has_moe()) {
    return Reject(RejectionReason::kMoeSequenceParallel,
                  "MoE with tp {} needs sequence parallelism", tensor);
  }
  return {};
}

int KeyValueHeads(const ModelConfig& model, int tensor) {
  return model.latent ? model.num_attention_heads / tensor
                      : std::max(1, model.num_query_groups / tensor);
}

Verdict CheckContext(const ModelConfig& model, const TrainingConfig& training,
                     const ParallelConfig& plan) {
  const int context = plan.context, tensor = plan.tensor, inner = plan.context_ulysses;
  const bool nested = plan.context_kind == ContextParallelKind::kNested;
  if (nested && (inner <= 1 || inner >= context || context % inner != 0)) {
    std::vector<int> accepted;
    for (int ranks = 2; ranks <= context / 2; ++ranks) {
      if (context % ranks == 0) accepted.push_back(ranks);
    }
    return Reject(RejectionReason::kNestedContext,
                  "cp {} cannot be nested with cp_ulysses {}: accepted {}", context, inner,
                  accepted.empty() ? "none" : fmt::format("{}", fmt::join(accepted, ", ")));
  }
  if (!nested && inner != 0) {
    return Reject(RejectionReason::kNestedContext,
                  "cp_ulysses {} goes with nested context parallelism alone", inner);
  }
  const std::int64_t seq = training.seq_length;
  const int ulysses = plan.ulysses_ranks();
  // A causal ring is balanced by giving each rank a front and a back block (zig-zag).
  const bool ring = plan.ring_ranks() > 1;
  const std::int64_t cut = ring ? 2LL * context : context;
  if (seq % cut != 0 || (plan.sequence_parallel && (seq / context) % tensor != 0)) {
    return Reject(RejectionReason::kSequenceLength,
                  "sequence of {} tokens is not divisible by {} (cp {}{}{})", seq,
                  plan.sequence_parallel ? cut * tensor : cut, context,
                  ring ? ", two blocks a rank" : "",
                  plan.sequence_parallel ? fmt::format(", tp {}", tensor) : "");
  }
  const auto of = [&] {
    return nested ? fmt::format("cp_ulysses {} (nested)", ulysses)
                  : fmt::format("cp {} (Ulysses)", ulysses);
  };
  if (ulysses > 1 && model.num_attention_heads % (std::int64_t{1} * tensor * ulysses) != 0) {
    return Reject(RejectionReason::kUlyssesHeads,
                  "{} attention heads are not divisible by tp {} x {}", model.num_attention_heads,
                  tensor, of());
  }
  const int groups = KeyValueHeads(model, tensor);
  if (ulysses > 1 && groups % ulysses != 0 && ulysses % groups != 0) {
    return Reject(RejectionReason::kUlyssesHeads,
                  "{} KV heads of a rank cannot be split over or replicated on {}", groups, of());
  }
  return {};
}

Verdict CheckExpert(const ModelConfig& model, int expert, int expert_tensor) {
  if (!model.has_moe()) {
    if (expert == 1 && expert_tensor == 1) return {};
    return Reject(RejectionReason::kNotMoe, "{} has no experts for ep {} and etp {}", model.name,
                  expert, expert_tensor);
  }
  if (model.moe.num_experts % expert != 0) {
    return Reject(RejectionReason::kExperts, "{} experts are not divisible by ep {}",
                  model.moe.num_experts, expert);
  }
  if (model.moe.ffn_hidden_size % expert_tensor != 0) {
    return Reject(RejectionReason::kExpertFfn, "expert FFN size {} is not divisible by etp {}",
                  model.moe.ffn_hidden_size, expert_tensor);
  }
  return {};
}

Verdict CheckExpertRanks(std::int64_t ranks_of_stage, int expert, int expert_tensor) {
  if (ranks_of_stage % (std::int64_t{1} * expert * expert_tensor) == 0) return {};
  return Reject(RejectionReason::kExpertRanks,
                "ep {} x etp {} does not divide the {} ranks of a stage", expert, expert_tensor,
                ranks_of_stage);
}

Verdict CheckOrder(const ModelConfig& model, const ParallelConfig& plan) {
  const std::int64_t dense = std::int64_t{1} * plan.tensor * plan.context;
  const std::int64_t experts = std::int64_t{1} * plan.expert * plan.expert_tensor;
  if (!model.has_moe() || !plan.placed_otherwise() || dense == experts) return {};
  return Reject(RejectionReason::kRankOrder,
                "order tp-cp-ep-pp-dp needs as many data-parallel ranks of experts as of the rest: "
                "ep {} x etp {} is not tp {} x cp {}",
                plan.expert, plan.expert_tensor, plan.tensor, plan.context);
}

Verdict CheckPipeline(const ModelConfig& model, int pipeline, int virtual_stages,
                      ScheduleKind schedule) {
  // Embedding and head may each have a chunk to themselves (cost_models/pipeline.h).
  const std::int64_t chunks = std::int64_t{1} * pipeline * virtual_stages;
  if (chunks > model.num_layers && !(virtual_stages > 1 && chunks == model.num_layers + 2)) {
    return Reject(RejectionReason::kLayers, "{} layers are fewer than pp {} x vpp {} stages",
                  model.num_layers, pipeline, virtual_stages);
  }
  if (virtual_stages > 1 && pipeline == 1) {
    return Reject(RejectionReason::kVirtualStages, "vpp {} needs a pipeline, and pp is 1",
                  virtual_stages);
  }
  const bool interleaved = schedule == ScheduleKind::kInterleaved;
  if (virtual_stages > 1 ? !ChoosesChunks(schedule) : interleaved) {
    return Reject(RejectionReason::kVirtualStages, "the {} schedule does not go with vpp {}",
                  NameOf(schedule), virtual_stages);
  }
  return {};
}

Verdict CheckBatch(const TrainingConfig& training, int data, int micro_batch_size, int pipeline,
                   int virtual_stages) {
  const std::int64_t per_pass = std::int64_t{1} * data * micro_batch_size;
  if (training.global_batch_size % per_pass != 0) {
    return Reject(RejectionReason::kBatch,
                  "global batch {} is not divisible by dp {} x micro-batch {}",
                  training.global_batch_size, data, micro_batch_size);
  }
  const std::int64_t micro_batches = training.global_batch_size / per_pass;
  if (virtual_stages > 1 && micro_batches % pipeline != 0) {
    return Reject(RejectionReason::kInterleaved,
                  "{} micro-batches are not a multiple of pp {} (interleaved)", micro_batches,
                  pipeline);
  }
  return {};
}

Verdict CheckSchedule(const ModelConfig& model, const TrainingConfig& training,
                      const ParallelConfig& plan) {
  if (FollowsFromStages(plan.schedule)) return {};
  const std::int64_t micro_batches =
      training.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
  const ScheduleChoice choice = ScheduleOf(plan, micro_batches);
  const std::vector<std::string> unmet = Unmet(choice);
  if (!unmet.empty()) {
    return Reject(RejectionReason::kSchedule, "schedule {} {}", NameOf(plan.schedule),
                  unmet.front());
  }
  const std::int64_t stages = std::int64_t{1} * plan.pipeline * ChunksOfRank(choice);
  if (stages <= model.num_layers) return {};
  return Reject(RejectionReason::kLayers, "{} layers are fewer than the {} stages of schedule {}",
                model.num_layers, stages, NameOf(plan.schedule));
}

bool RunsIn(Framework framework, ScheduleKind schedule) {
  if (FollowsFromStages(schedule)) return true;
  if (framework != Framework::kFsdpCompiled) return false;
  // ScheduleGPipe, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble (ZB-H1 with one stage a rank),
  // ScheduleZBVZeroBubble and ScheduleDualPipeV.
  constexpr ScheduleKind kPyTorch[] = {ScheduleKind::kGpipe, ScheduleKind::kBreadthFirst,
                                       ScheduleKind::kZbH1, ScheduleKind::kZbV,
                                       ScheduleKind::kDualPipeV};
  return std::count(std::begin(kPyTorch), std::end(kPyTorch), schedule) > 0;
}

bool ShardsIn(Framework framework, int pipeline, int zero) {
  if (zero < 2 || pipeline == 1) return true;
  switch (framework) {
    case Framework::kMegatron:
    case Framework::kMegatron2021:
    case Framework::kMegatronDeepSpeed:
      return false;
    case Framework::kFsdp:
    case Framework::kFsdpCompiled:
    case Framework::kInternEvo:
      return true;
  }
  return true;
}

bool OffloadsIn(Framework framework, int pipeline, const Recompute& recompute) {
  return recompute.offload_layers == 0 || framework != Framework::kMegatron ||
         (pipeline == 1 && recompute.granularity == RecomputeGranularity::kNone);
}

bool RunsIn(Framework framework, const ParallelConfig& plan) {
  return RunsIn(framework, plan.schedule) && plan.rank_recompute.empty() &&
         ShardsIn(framework, plan.pipeline, plan.zero) &&
         OffloadsIn(framework, plan.pipeline, plan.recompute);
}

Verdict CheckZero(std::int64_t data_ranks, int zero, int zero_shard) {
  if (zero_shard == 0) return {};
  if (zero == 0) {
    return Reject(RejectionReason::kZeroShard, "zero_shard {} has nothing to shard at ZeRO 0",
                  zero_shard);
  }
  if (data_ranks % zero_shard != 0) {
    return Reject(RejectionReason::kZeroShard,
                  "zero_shard {} does not divide the {} data-parallel ranks (dp x cp)", zero_shard,
                  data_ranks);
  }
  return {};
}

Verdict CheckRecompute(const ModelConfig& model, const Recompute& recompute) {
  const bool selective = recompute.granularity == RecomputeGranularity::kSelective;
  if (selective == recompute.modules.empty()) {
    return Rejection{RejectionReason::kRecompute,
                     selective ? "selective recompute names no module"
                               : "modules are named, but recompute is not selective"};
  }
  if (recompute.full_layers > 0 && recompute.granularity != RecomputeGranularity::kFull) {
    return Reject(RejectionReason::kRecompute, "full_layers {} is given, but recompute is not full",
                  recompute.full_layers);
  }
  if (recompute.offload_layers > 0 && recompute.granularity == RecomputeGranularity::kFull) {
    return Reject(RejectionReason::kRecompute,
                  "offload_layers {} is given, but full recompute leaves nothing to offload",
                  recompute.offload_layers);
  }
  for (RecomputeModule m : recompute.modules) {
    if (m == RecomputeModule::kMlaUpProj && !model.latent) {
      return Reject(RejectionReason::kRecompute, "{} has no latent attention for mla_up_proj",
                    model.name);
    }
    if ((m == RecomputeModule::kMoe || m == RecomputeModule::kMoeAct) && !model.has_moe()) {
      return Reject(RejectionReason::kRecompute, "{} has no experts for {}", model.name,
                    m == RecomputeModule::kMoe ? "moe" : "moe_act");
    }
  }
  return {};
}

bool CanOffload(ScheduleKind schedule) { return !SplitsBackward(schedule); }

Verdict CheckOffload(const ParallelConfig& plan) {
  if (!plan.Offloads() || CanOffload(plan.schedule)) return {};
  return Reject(RejectionReason::kRecompute,
                "offloaded layers do not go with schedule {}, whose backward is split",
                NameOf(plan.schedule));
}

Verdict CheckRecompute(const ModelConfig& model, const ParallelConfig& plan) {
  if (plan.rank_recompute.empty()) return CheckRecompute(model, plan.recompute);
  if (plan.rank_recompute.size() != std::size_t(plan.pipeline)) {
    return Reject(RejectionReason::kRecompute,
                  "recompute of {} pipeline ranks is given, and the plan has {}",
                  plan.rank_recompute.size(), plan.pipeline);
  }
  if (plan.recompute != Recompute{}) {
    return Reject(RejectionReason::kRecompute, "{} of all ranks is given beside {} of each",
                  ShortName(plan.recompute), RecomputeName(plan));
  }
  for (std::size_t rank = 0; rank < plan.rank_recompute.size(); ++rank) {
    if (const Verdict verdict = CheckRecompute(model, plan.rank_recompute[rank])) {
      return Reject(RejectionReason::kRecompute, "rank {}: {}", rank, verdict->detail);
    }
  }
  return {};
}

Verdict CheckStageLayers(const ModelConfig& model, const ParallelConfig& plan) {
  const std::vector<int>& layers = plan.stage_layers;
  if (layers.empty()) return {};
  const int stages = StagesPerCopy(plan);
  if (int(layers.size()) != stages) {
    return Reject(RejectionReason::kLayers, "layers of {} stages are given, and the plan has {}",
                  layers.size(), stages);
  }
  const std::int64_t sum = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  if (sum != model.num_layers) {
    return Reject(RejectionReason::kLayers,
                  "the stages hold {} layers in all, and the model has {}", sum, model.num_layers);
  }
  // Embedding and head are work enough for a stage, but the embedding's backward is all of weights:
  // where the two halves of a backward are apart, one would be empty.
  for (int s = 0; s < stages; ++s) {
    if (layers[std::size_t(s)] > 0 || (s + 1 == stages && stages > 1)) continue;
    if (s == 0 && !SplitsBackward(plan.schedule)) continue;
    return Reject(RejectionReason::kLayers, "stage {} has no layers; {}", s,
                  s == 0 ? fmt::format("under {} the first needs some", NameOf(plan.schedule))
                         : std::string("only the first and the last can be without"));
  }
  return {};
}

Verdict CheckPlan(const ModelConfig& model, const TrainingConfig& training, const GpuSpec& gpu,
                  std::int64_t cluster_gpus, const ParallelConfig& plan) {
  if (plan.gpus() != double(cluster_gpus)) {
    return Reject(RejectionReason::kGpuCount, "tp {} x cp {} x pp {} x dp {} is {} GPUs, not {}",
                  plan.tensor, plan.context, plan.pipeline, plan.data, plan.gpus(), cluster_gpus);
  }
  const std::int64_t ranks_of_stage = cluster_gpus / plan.pipeline;
  for (const Verdict& verdict :
       {CheckPrecision(gpu, training), CheckTensor(model, plan.tensor),
        CheckSequenceParallel(model, plan.tensor, plan.sequence_parallel),
        CheckContext(model, training, plan), CheckExpert(model, plan.expert, plan.expert_tensor),
        CheckExpertRanks(ranks_of_stage, plan.expert, plan.expert_tensor),
        CheckPipeline(model, plan.pipeline, plan.virtual_stages, plan.schedule),
        CheckStageLayers(model, plan), CheckOrder(model, plan),
        CheckBatch(training, plan.data, plan.micro_batch_size, plan.pipeline,
                   plan.schedule == ScheduleKind::kInterleaved ? plan.virtual_stages : 1),
        CheckSchedule(model, training, plan),
        CheckZero(std::int64_t{1} * plan.data * plan.context, plan.zero, plan.zero_shard),
        CheckRecompute(model, plan), CheckOffload(plan)}) {
    if (verdict) return verdict;
  }
  return {};
}

}  // namespace millwright
