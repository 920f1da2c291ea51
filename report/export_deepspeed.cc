// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeed's JSON, and accelerate's YAML for PyTorch FSDP2: data parallelism of a model that is
// the user's own program.
//
// Keys: deepspeedai/DeepSpeed, deepspeed/runtime/config.py at commit 029f12b3c6b9 and
// runtime/zero/config.py at 1b88ac366fc9 (2026), and `data_types` of runtime/constants.py; which
// types of gradients go with which optimizer is in runtime/engine.py, _do_optimizer_sanity_check.
// huggingface/trl's and accelerate's example context_parallel_2gpu.yaml of 2025 for FSDP2, and what
// accelerate 1.14 checks (parallelism_config.py, commands/launch.py).  JSON has no comments, so
// what DeepSpeed cannot be told stands in deepspeed_notes.txt.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/export_notes.h"
#include "report/text.h"

namespace millwright {
namespace {

std::int64_t MicroBatches(const Job& job) {
  return job.training.global_batch_size /
         (std::int64_t{job.parallel.data} * job.parallel.micro_batch_size);
}

// What neither has an option for.
void CannotModelParallelism(const Job& job, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  const TrainingConfig standard;
  const auto cannot = [&](bool differs, std::string_view field, std::string_view why) {
    if (differs) notes.Cannot(field, why);
  };
  cannot(true, "model", "it is the program's own");
  cannot(p.pipeline > 1, "parallel.pipeline_parallel",
         fmt::format("pp {} is how the program divides the model", p.pipeline));
  cannot(p.virtual_stages > 1 ||
             (p.schedule != ScheduleKind::k1F1B && p.schedule != ScheduleKind::kInterleaved),
         "parallel.schedule", "the order of passes is the program's");
  cannot(p.expert > 1 || p.expert_tensor > 1, "parallel.expert_parallel",
         fmt::format("ep {} and etp {} are how the program places experts", p.expert,
                     p.expert_tensor));
  cannot(t.bf16_weights, "training.bf16_weights", "products below 16 bits are the program's own");
  cannot(t.fused_swiglu, "training.fused_swiglu", "it is the program's own");
  cannot(t.fp8_activation_store, "training.fp8_activation_store", "it is the program's own");
  cannot(t.fused_cross_entropy, "training.fused_cross_entropy", "it is the program's own");
  cannot(!t.flash_attention, "training.flash_attention", "it is the program's own");
  cannot(t.flash_kernel != standard.flash_kernel, "training.flash_kernel",
         "which attention kernel runs is what is installed");
  cannot(t.cuda_graph != CudaGraph::kNone, "training.cuda_graph", "there is no option for graphs");
  cannot(t.launch_blocking, "training.launch_blocking",
         "set CUDA_LAUNCH_BLOCKING=1 in the environment");
  cannot(t.moe_token_drop, "training.moe_token_drop", "it is the program's own");
  cannot(t.moe_imbalance != 1, "training.moe_imbalance", "it is a property of the data");
  cannot(t.moe_dispatcher != standard.moe_dispatcher, "training.moe_dispatcher",
         "it is the program's own");
  cannot(t.expert_overlap, "training.expert_overlap", "it is the program's own");
  cannot(!t.overlap_p2p, "training.overlap_p2p", "it is the program's own");
  cannot(t.tp_comm_overlap, "training.tp_comm_overlap", "it is the program's own");
  cannot(!t.cp_comm_overlap, "training.cp_comm_overlap", "it is the program's own");
  cannot(LowPrecision(t.precision), "training.precision",
         "products below 16 bits are the program's own; written as BF16");
  cannot(t.mfu_convention != standard.mfu_convention, "training.mfu_convention",
         "it is how Millwright counts, not how a step runs");
}

// What _do_optimizer_sanity_check takes: with ZeRO either, without it one.
bool GradientsInFp32(int zero, int pipeline, bool fp16, double bytes) {
  if (zero > 0) return bytes != 2;
  if (fp16) return false;
  return bytes != 2 || pipeline == 1;
}

void CannotRecompute(const Recompute& r, ExportNotes& notes) {
  if (r.granularity == RecomputeGranularity::kSelective) {
    notes.Cannot("parallel.recompute", "which modules are recomputed is the program's own");
  } else if (r.full_layers > 0) {
    notes.Cannot("parallel.recompute", "how many layers are recomputed is the program's own");
  }
}

}  // namespace

void ExportDeepSpeed(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kDeepSpeed, exported);
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  CannotModelParallelism(job, notes);
  const Recompute& recompute = notes.RecomputeOf(p);
  CannotRecompute(recompute, notes);
  const auto cannot = [&](bool differs, std::string_view field, std::string_view why) {
    if (differs) notes.Cannot(field, why);
  };
  cannot(p.tensor > 1, "parallel.tensor_parallel",
         fmt::format("tp {} is how the program divides layers (mpu); of models that it knows, add "
                     "\"tensor_parallel\": {{\"autotp_size\": {}}}",
                     p.tensor, p.tensor));
  cannot(p.sequence_parallel, "parallel.sequence_parallel", "it is the program's own");
  cannot(p.context > 1, "parallel.context_parallel",
         fmt::format("cp {} is how the program divides sequences", p.context));
  // Groups of neighbouring ranks, which are data-parallel ones where there are no others.
  const bool mics = p.zero == 3 && p.zero_shard > 0 && p.tensor * p.context * p.pipeline == 1;
  cannot(p.zero_shard > 0 && !mics, "parallel.zero_shard",
         "state is sharded over all data-parallel ranks, but at ZeRO 3 without other parallelism");
  cannot(p.placed_otherwise(), "parallel.order", "pipeline stages are outermost");
  cannot(p.pipeline > 1 && p.zero >= 2, "parallel.zero",
         "its pipeline engine refuses ZeRO 2 and 3");
  cannot(
      t.framework != Framework::kMegatronDeepSpeed, "training.framework",
      "the plan is costed for other software; --framework megatron-deepspeed costs that of 2021");
  cannot(t.state != StateScheme::kMegatron, "training.state",
         "weights are a BF16 copy and an fp32 master");
  const bool fp16 = t.precision == Precision::kFp16;
  const bool fp32_gradients = GradientsInFp32(p.zero, p.pipeline, fp16, t.gradient_bytes);
  cannot(t.gradient_bytes != (fp32_gradients ? 4 : 2), "training.gradient_bytes",
         t.gradient_bytes != 2 && t.gradient_bytes != 4
             ? fmt::format("gradients have 2 or 4 bytes; written as {}", fp32_gradients ? 4 : 2)
             : fmt::format("at ZeRO 0 it accumulates those of {}; written as that",
                           fp16 ? "fp16 in fp16 alone" : "BF16 in fp32 alone"));
  cannot(t.moment_bytes != 8, "training.moment_bytes", "Adam's moments are fp32");
  cannot(t.overlap_param_gather != t.overlap_grad_reduce, "training.overlap_param_gather",
         "overlap_comm is of gradients and parameters alike");
  cannot(recompute.offload_layers > 0, "parallel.recompute",
         "cpu_checkpointing is of what full recomputation keeps, not of layers");

  nlohmann::ordered_json json{
      {"train_batch_size", t.global_batch_size},
      {"train_micro_batch_size_per_gpu", p.micro_batch_size},
      {"gradient_accumulation_steps", MicroBatches(job)},
      {fp16 ? "fp16" : "bf16", {{"enabled", true}}},
      {"data_types",
       {{"grad_accum_dtype", fp32_gradients ? "fp32"
                             : fp16         ? "fp16"
                                            : "bf16"}}},
      {"zero_optimization",
       {{"stage", p.zero},
        {"overlap_comm", t.overlap_grad_reduce},
        {"reduce_scatter", true},
        {"contiguous_gradients", true}}},
  };
  if (mics) {
    json["zero_optimization"]["mics_shard_size"] = p.zero_shard;
    notes.ByRelease("mics_shard_size wants the model made under deepspeed.zero.MiCS_Init");
  }
  if (recompute.granularity == RecomputeGranularity::kFull) {
    json["activation_checkpointing"] = {{"partition_activations", false},
                                        {"cpu_checkpointing", false}};
  }
  notes.AddFile("deepspeed.json", json.dump(2) + '\n');
  notes.AddFile("deepspeed_notes.txt",
                notes.Head(job, "DeepSpeed configuration deepspeed.json",
                           "deepspeedai/DeepSpeed, deepspeed/runtime/config.py at commit "
                           "029f12b3c6b9 (2026)",
                           "Use: give it as --deepspeed_config; the optimizer is yours to add."));
}

void ExportFsdp(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kFsdp, exported);
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  CannotModelParallelism(job, notes);
  const Recompute& recompute = notes.RecomputeOf(p);
  CannotRecompute(recompute, notes);
  const auto cannot = [&](bool differs, std::string_view field, std::string_view why) {
    if (differs) notes.Cannot(field, why);
  };
  cannot(p.zero < 2, "parallel.zero",
         fmt::format("FSDP shards gradients too: ZeRO {} is written as ZeRO 2", p.zero));
  // The ranks of its groups are all that there are.
  const int data = p.data * p.pipeline;
  cannot(
      p.pipeline > 1, "parallel.data_parallel",
      fmt::format("it has no pipelines, and their {} ranks are written as data-parallel ones, dp "
                  "{}",
                  p.pipeline, data));
  const bool whole_groups = p.zero_shard % p.context == 0;
  cannot(!whole_groups, "parallel.zero_shard", "a shard spans whole context groups");
  const bool alone = whole_groups && p.zero_shard == p.context && data > 1;
  cannot(alone && (p.tensor > 1 || p.context > 1), "parallel.zero_shard",
         "tp and cp go with no replicas of one rank; written as one shard");
  cannot(data == 1 && p.context == 1, "parallel.data_parallel",
         "there is nothing to shard at dp 1, and it wants a shard of several ranks");
  cannot(p.tensor > 1 && !p.sequence_parallel, "parallel.sequence_parallel",
         "how activations lie is the model's tensor parallel plan");
  cannot(p.context > 1 && p.context_kind != ContextParallelKind::kRing,
         "parallel.context_parallel_kind", "keys and values go around, heads are not exchanged");
  cannot(t.framework != Framework::kFsdp && t.framework != Framework::kFsdpCompiled,
         "training.framework",
         "the plan is costed for other software; --framework fsdp costs this");
  cannot(t.state != StateScheme::kFsdp, "training.state",
         "the fp32 shard is the master; --state fsdp costs that");
  cannot(t.gradient_bytes != 4, "training.gradient_bytes", "gradients are kept in fp32");
  cannot(t.moment_bytes != 8, "training.moment_bytes", "Adam's moments are fp32");
  cannot(!t.overlap_grad_reduce, "training.overlap_grad_reduce", "FSDP always overlaps");
  cannot(!t.overlap_param_gather, "training.overlap_param_gather", "FSDP always overlaps");
  cannot(recompute.offload_layers > 0, "parallel.recompute", "activations are not offloaded");
  cannot(true, "training.global_batch_size",
         fmt::format("give the program {} a rank and {} passes of accumulation",
                     Counted(p.micro_batch_size, "sequence"),
                     std::max<std::int64_t>(1, MicroBatches(job) / p.pipeline)));
  cannot(true, "training.seq_length", fmt::format("give the program {} tokens", t.seq_length));

  const Hosts hosts = HostsOf(job.cluster);
  const bool replicas =
      p.zero_shard > 0 && whole_groups && !(alone && (p.tensor > 1 || p.context > 1));
  const int shard = replicas ? p.zero_shard / p.context : data;
  std::string yaml = notes.Head(
      job, "accelerate configuration for FSDP2",
      "accelerate's example context_parallel_2gpu.yaml (2025), and accelerate 1.14 (2026)",
      "Use: accelerate launch --config_file fsdp.yaml --machine_rank N --main_process_ip HOST.");
  yaml += fmt::format(
      "\ncompute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: {}\n"
      "num_machines: {}\nnum_processes: {}\nrdzv_backend: c10d\n"
      "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: {}\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_activation_checkpointing: {}\n"
      "  fsdp_offload_params: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
      "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
      "  parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: {}\n"
      "  parallelism_config_cp_size: {}\n",
      t.precision == Precision::kFp16 ? "fp16" : "bf16", hosts.count,
      std::int64_t{hosts.count} * hosts.gpus, p.zero == 3,
      recompute.granularity == RecomputeGranularity::kFull, data / shard, shard, p.tensor,
      p.context);
  notes.AddFile("fsdp.yaml", yaml);
}

}  // namespace millwright
