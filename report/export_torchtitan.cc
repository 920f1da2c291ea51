// SPDX-License-Identifier: Apache-2.0
//
// torchtitan's TOML and its pipeline schedule as CSV.
//
// Keys: pytorch/torchtitan, torchtitan/config/job_config.py of early 2026, the last form that is
// read from TOML, in which a key that there is not is an error; that of August 2025 (commit
// 6404b932421f) says torch.compile and float8 elsewhere.  Since then a configuration is a function
// in Python (torchtitan/config/configs.py at commit 0014ac2ca45a).  What parallel_dims.py (commit
// 0119de156de5) and pipeline_parallel.py (commit 02ef790c7961) of torchtitan/distributed assert,
// and torch 2.14's schedules, is said where a plan is otherwise.  The CSV is
// torch.distributed.pipelining's compute-only form (torch/distributed/pipelining/schedules.py): a
// line a rank, each action a stage, a letter and a micro-batch: F forward, B backward, I and W its
// halves, "(0F4;3B1)OVERLAP_F_B" two that run together.

#include <fmt/format.h>

#include <algorithm>

#include "report/export_notes.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

// A schedule of more actions makes a file that nobody loads.
constexpr double kMostActions = 4e6;

// Of these torch has the very order, with fewer synchronisations; with a CSV it would not overlap
// the experts of a DualPipeV either (pipeline_parallel.py).
bool IsTorchsOrder(ScheduleKind kind) {
  return kind == ScheduleKind::k1F1B || kind == ScheduleKind::kGpipe ||
         kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbH1 ||
         kind == ScheduleKind::kDualPipeV;
}

// Where stages lie and, where torchtitan has it by name, the order too.
std::string_view ScheduleName(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
      return "GPipe";
    case ScheduleKind::k1F1B:
      return "1F1B";
    case ScheduleKind::kInterleaved:
      return "Interleaved1F1B";
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
      return "InterleavedZeroBubble";
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kVZb:
      return "ZBVZeroBubble";  // stages in a V
    case ScheduleKind::kDualPipeV:
      return "DualPipeV";
    case ScheduleKind::kBreadthFirst:
      return "LoopedBFS";
    case ScheduleKind::kDualPipe:
    case ScheduleKind::kForwardOnly:
      return {};
  }
  return {};
}

std::string Action(const Pass& pass) {
  char letter = 'F';
  switch (pass.kind) {
    case PassKind::kForward:
      break;
    case PassKind::kBackward:
      letter = 'B';
      break;
    case PassKind::kBackwardInput:
      letter = 'I';
      break;
    case PassKind::kBackwardWeight:
      letter = 'W';
      break;
  }
  return fmt::format("{}{}{}", pass.stage, letter, pass.micro_batch);
}

std::string ScheduleCsv(const PipelineSchedule& schedule) {
  std::string csv;
  for (const std::vector<Pass>& order : schedule.orders) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0) csv += ',';
      if (order[i].overlaps_next && i + 1 < order.size()) {
        csv += fmt::format("({};{})OVERLAP_F_B", Action(order[i]), Action(order[i + 1]));
        ++i;
      } else {
        csv += Action(order[i]);
      }
    }
    csv += '\n';
  }
  return csv;
}

// The modules of each stage by torchtitan's names (torchtitan/models/llama3).
std::string StageModules(const std::vector<int>& layers) {
  std::string text = "[\n";
  int next = 0;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    std::string modules = stage == 0 ? "\"tok_embeddings\"" : "";
    const auto add = [&](const std::string& name) {
      modules += fmt::format("{}\"{}\"", modules.empty() ? "" : ", ", name);
    };
    for (int i = 0; i < layers[stage]; ++i) add(fmt::format("layers.{}", next++));
    if (stage + 1 == layers.size()) {
      add("norm");
      add("output");
    }
    text += fmt::format("  [{}],\n", modules);
  }
  return text + "]";
}

// Of the linear layers and, where there are some, of the experts.
std::string Converters(const ModelConfig& model, std::string_view what) {
  return fmt::format("converters = [\"quantize.linear.{}\"{}]\n", what,
                     model.has_moe() ? fmt::format(", \"quantize.grouped_mm.{}\"", what) : "");
}
std::string FilteredModules(const ModelConfig& model) {
  return fmt::format("filter_fqns = [\"output\"{}]\n", model.has_moe() ? ", \"router.gate\"" : "");
}

void ModelSection(const Job& job, ExportNotes& notes, std::string& toml) {
  // torchtitan/models/llama3/train_configs: what has a flavor of its own.
  struct Flavor {
    std::string_view model, flavor;
  };
  static constexpr Flavor kFlavors[] = {
      {"llama-3.1-8b", "8B"}, {"llama-3.1-70b", "70B"}, {"llama-3.1-405b", "405B"}};
  const auto* flavor = std::find_if(std::begin(kFlavors), std::end(kFlavors),
                                    [&](const Flavor& f) { return f.model == job.model.name; });
  toml += "\n[model]\n";
  if (flavor != std::end(kFlavors)) {
    toml += fmt::format("name = \"llama3\"\nflavor = \"{}\"\n", flavor->flavor);
  } else {
    toml += "# name and flavor are of a model that you have registered with torchtitan\n";
    notes.Cannot("model", "models are registered in Python, and named here");
  }
  switch (job.training.precision) {
    case Precision::kBf16:
      break;
    case Precision::kFp8:
      toml += Converters(job.model, "float8");
      toml +=
          "\n[quantize.linear.float8]\nrecipe_name = \"tensorwise\"\n"
          "enable_fsdp_float8_all_gather = true\n";
      toml += FilteredModules(job.model);
      if (job.model.has_moe()) toml += "\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n";
      break;
    case Precision::kMxfp8:
      toml += Converters(job.model, "mx");
      toml += "\n[quantize.linear.mx]\nrecipe_name = \"mxfp8_cublas\"\n";
      toml += FilteredModules(job.model);
      if (job.model.has_moe()) {
        toml += "\n[quantize.grouped_mm.mx]\nrecipe_name = \"mxfp8\"\nfqns = [\"experts\"]\n";
      }
      break;
    case Precision::kFp16:
      notes.Cannot("training.precision", "it has no fp16; written as BF16");
      break;
    case Precision::kNvfp4:
      notes.Cannot("training.precision", "it has no NVFP4; written as BF16");
      break;
  }
}

bool Compiles(const Job& job) {
  return job.training.framework == Framework::kFsdpCompiled &&
         (job.parallel.pipeline == 1 || !SplitsBackward(job.parallel.schedule));
}

// Without a pipeline a pass has a micro-batch, and passes are accumulated; with one, the pipeline
// divides the rank's whole batch.
void TrainingSection(const Job& job, ExportNotes& notes, std::string& toml) {
  const TrainingConfig& t = job.training;
  const ParallelConfig& p = job.parallel;
  const std::int64_t local =
      p.pipeline > 1 ? t.global_batch_size / p.data : std::int64_t{p.micro_batch_size};
  toml += fmt::format(
      "\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n"
      "mixed_precision_param = \"bfloat16\"\nmixed_precision_reduce = \"float32\"\n\n[compile]\n"
      "enable = {}\n",
      local, t.global_batch_size, t.seq_length, Compiles(job));
  if (t.framework == Framework::kFsdpCompiled && !Compiles(job)) {
    notes.Cannot("training.framework",
                 fmt::format("torch refuses torch.compile with {}, whose backward pass is divided",
                             NameOf(p.schedule)));
  }
  const std::int64_t cut = p.tensor * 2LL * p.context;
  if ((p.tensor > 1 || p.context > 1) && t.seq_length % cut != 0) {
    notes.Cannot("training.seq_length",
                 fmt::format("{} tokens are to be a multiple of {}, 2 tp cp", t.seq_length, cut));
  }
  const TrainingConfig standard;
  const auto cannot = [&](bool differs, std::string_view field, std::string_view why) {
    if (differs) notes.Cannot(field, why);
  };
  cannot(t.framework != Framework::kFsdpCompiled, "training.framework",
         "the plan is costed for other software; --framework fsdp-compiled costs torchtitan");
  cannot(t.state != StateScheme::kFsdp, "training.state",
         "the fp32 shard is the master; --state fsdp costs that");
  cannot(job.parallel.placed_otherwise(), "parallel.order", "pipeline stages are outermost");
  cannot(t.gradient_bytes != 4, "training.gradient_bytes",
         "gradients are reduced and kept in fp32");
  cannot(t.moment_bytes != 8, "training.moment_bytes", "Adam's moments are fp32");
  cannot(!t.flash_attention, "training.flash_attention", "attention is fused where it can be");
  cannot(t.flash_kernel != standard.flash_kernel, "training.flash_kernel",
         "which attention kernel runs is what is installed");
  cannot(t.bf16_weights, "training.bf16_weights", "weights are sharded in fp32");
  cannot(t.fused_swiglu, "training.fused_swiglu", "torch.compile decides what is kept");
  cannot(t.fp8_activation_store, "training.fp8_activation_store", "it is kept as computed");
  cannot(t.fused_cross_entropy, "training.fused_cross_entropy", "the loss keeps fp32 logits");
  cannot(t.moe_imbalance != 1, "training.moe_imbalance", "it is a property of the data");
  cannot(t.cuda_graph != CudaGraph::kNone, "training.cuda_graph", "there is no option for graphs");
  cannot(t.launch_blocking, "training.launch_blocking",
         "set CUDA_LAUNCH_BLOCKING=1 in the environment");
  cannot(t.moe_token_drop, "training.moe_token_drop", "routing is dropless");
  cannot(!t.overlap_grad_reduce, "training.overlap_grad_reduce", "FSDP always overlaps");
  cannot(!t.overlap_param_gather, "training.overlap_param_gather", "FSDP always overlaps");
  cannot(!t.overlap_p2p, "training.overlap_p2p", "sends are always asynchronous");
  cannot(!t.cp_comm_overlap, "training.cp_comm_overlap", "the exchange is always overlapped");
  const bool with_experts = job.model.has_moe() && p.expert > 1;
  cannot(t.expert_overlap && (p.schedule != ScheduleKind::kDualPipeV || !with_experts),
         "training.expert_overlap", "only DualPipeV overlaps the experts' exchange");
  cannot(t.moe_dispatcher != MoeDispatcher::kAllToAll && !with_experts, "training.moe_dispatcher",
         "nothing is exchanged at ep 1");
  cannot(t.mfu_convention != standard.mfu_convention, "training.mfu_convention",
         "it is how Millwright counts, not how a step runs");
}

// FSDP shards over dp_shard x cp ranks.
int ShardDegree(const ParallelConfig& p) {
  const bool alone = p.tensor == 1 && p.context == 1 && p.pipeline == 1;
  if (p.zero == 0 && alone) return 1;
  if (p.zero_shard == 1 && !alone) return p.data;
  if (p.zero_shard > 0 && p.zero_shard % p.context == 0) return p.zero_shard / p.context;
  return p.data;
}

void DataParallelKeys(const ParallelConfig& p, ExportNotes& notes, std::string& toml) {
  const int shard = ShardDegree(p);
  if (p.zero == 0 && (p.tensor > 1 || p.context > 1 || p.pipeline > 1)) {
    notes.Cannot("parallel.zero", "plain data parallelism goes with no other; ZeRO is at least 2");
  } else if (p.zero == 1) {
    notes.Cannot("parallel.zero", "the optimizer alone is not sharded; written as ZeRO-2");
  }
  if (p.zero_shard == 1 && shard > 1) {
    notes.Cannot("parallel.zero_shard", "plain data parallelism goes with no other");
  } else if (p.zero_shard % p.context != 0) {
    notes.Cannot("parallel.zero_shard",
                 fmt::format("a shard spans whole context groups, and cp {} does not divide {}",
                             p.context, p.zero_shard));
  }
  toml += fmt::format(
      "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n"
      "fsdp_reshard_after_forward = \"{}\"\n",
      p.data / shard, shard, p.zero == 3 ? "always" : "never");
}

void PipelineKeys(const Job& job, ExportNotes& notes, std::string& toml) {
  const ParallelConfig& p = job.parallel;
  toml += fmt::format("pipeline_parallel_degree = {}\n", p.pipeline);
  if (p.pipeline == 1) return;
  toml += fmt::format("pipeline_parallel_microbatch_size = {}\n", p.micro_batch_size);
  const std::string_view name = ScheduleName(p.schedule);
  if (name.empty()) {
    notes.Cannot("parallel.schedule",
                 fmt::format("no rank holds stages of two copies of the model, as {} has it",
                             NameOf(p.schedule)));
    return;
  }
  toml += fmt::format("pipeline_parallel_schedule = \"{}\"\n", name);
  toml += fmt::format("module_fqns_per_model_part = {}\n",
                      StageModules(ChunkLayersOf(job.model, p).layers));
  if (job.model.mtp_num_layers > 0) {
    notes.Cannot("model.mtp_num_layers", "the stages here have no multi-token-prediction modules");
  }
  const std::int64_t micro_batches =
      job.training.global_batch_size / (std::int64_t{p.data} * p.micro_batch_size);
  const ScheduleChoice choice = ScheduleOf(p, micro_batches);
  const double actions = 3.0 * p.pipeline * ChunksOfRank(choice) * double(micro_batches);
  if (actions > kMostActions) {
    notes.Cannot("parallel.schedule",
                 fmt::format("{:.0f} passes are too many for a CSV; {} is torch's own order",
                             actions, name));
    return;
  }
  toml += fmt::format("{}pipeline_parallel_schedule_csv = \"pipeline_schedule.csv\"\n",
                      IsTorchsOrder(p.schedule) ? "# the same order in full: " : "");
  notes.AddFile("pipeline_schedule.csv", ScheduleCsv(BuildSchedule(choice)));
}

void ExpertKeys(const Job& job, ExportNotes& notes, std::string& toml) {
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  toml += fmt::format("expert_parallel_degree = {}\n", p.expert);
  if (!job.model.has_moe()) return;
  // Experts are cut as the rest is, or not at all; at ep 1 they are not.
  const bool cut = p.expert > 1 && p.expert_tensor == p.tensor;
  if (p.expert_tensor > 1 && !cut) {
    notes.Cannot("parallel.expert_tensor_parallel",
                 fmt::format("etp is 1 or, with ep above 1, tp {}; written as 1", p.tensor));
  }
  if (p.expert == 1) return;
  const int tensor = cut ? p.tensor : 1;
  toml += fmt::format("expert_tensor_parallel_degree = {}\n", tensor);
  notes.ByRelease("later in 2026 expert_tensor_parallel_degree went: experts are not cut");
  // Expert ranks are all of the context ranks, of the tensor ranks that do not cut experts, and
  // some of the sharded data ranks.
  const int inner = p.context * (cut ? 1 : p.tensor);
  const int shard = ShardDegree(p);
  if (p.expert % inner != 0 || (shard * inner) % p.expert != 0) {
    notes.Cannot(
        "parallel.expert_parallel",
        fmt::format("ep {} is to be a multiple of {}, cp{}, and to divide {}, that times the "
                    "ranks of a shard",
                    p.expert, inner, cut ? "" : " x tp", shard * inner));
  }
  if (t.moe_dispatcher == MoeDispatcher::kDeepEp) {
    toml += "expert_parallel_comm_backend = \"deepep\"\n";
  }
  if (p.pipeline > 1 && p.schedule == ScheduleKind::kDualPipeV) {
    toml += fmt::format("pipeline_parallel_expert_parallel_overlap = {}\n", t.expert_overlap);
    if (t.expert_overlap && p.RecomputeOf(0).granularity != RecomputeGranularity::kNone) {
      notes.Cannot("training.expert_overlap", "it goes with no recomputation");
    }
  }
}

void ParallelismSection(const Job& job, ExportNotes& notes, std::string& toml) {
  const ParallelConfig& p = job.parallel;
  toml += "\n[parallelism]\n";
  DataParallelKeys(p, notes, toml);
  toml += fmt::format("tensor_parallel_degree = {}\n", p.tensor);
  if (p.tensor > 1 && !p.sequence_parallel) {
    notes.Cannot("parallel.sequence_parallel", "tensor parallelism always brings it");
  }
  if (job.training.tp_comm_overlap && Compiles(job)) {
    toml += "enable_async_tensor_parallel = true\n";
  } else if (job.training.tp_comm_overlap) {
    // distributed/tensor_parallel.py refuses it.
    notes.Cannot("training.tp_comm_overlap", "it wants torch.compile");
  }
  NoteExpertShard(job, notes);
  PipelineKeys(job, notes, toml);
  toml += fmt::format("context_parallel_degree = {}\n", p.context);
  if (p.context > 1 && p.context_kind == ContextParallelKind::kRing) {
    toml += "context_parallel_rotate_method = \"alltoall\"\n";
  } else if (p.context_kind != ContextParallelKind::kRing) {
    notes.Cannot("parallel.context_parallel_kind",
                 "keys and values rotate, heads are not exchanged");
  }
  ExpertKeys(job, notes, toml);
}

void RecomputeSection(const Recompute& r, ExportNotes& notes, std::string& toml) {
  if (r.offload_layers > 0) notes.Cannot("parallel.recompute", "activations are not offloaded");
  std::string_view mode = "none";
  switch (r.granularity) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective:
      mode = "selective";
      notes.Cannot("parallel.recompute",
                   "what is recomputed is chosen by operator, not by module: \"op\" keeps the "
                   "attention's and every second product's output");
      break;
    case RecomputeGranularity::kFull:
      mode = "full";
      if (r.full_layers > 0) {
        notes.Cannot("parallel.recompute", "full is of all layers, not of the first of a stage");
      }
      break;
  }
  toml += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", mode);
  if (mode == "selective") toml += "selective_ac_option = \"op\"\n";
}

}  // namespace

void ExportTorchtitan(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kTorchtitan, exported);
  std::string toml;
  ModelSection(job, notes, toml);
  TrainingSection(job, notes, toml);
  ParallelismSection(job, notes, toml);
  RecomputeSection(notes.RecomputeOf(job.parallel), notes, toml);
  notes.ByRelease(
      "those that read no TOML (2026: a configuration is a function in Python, --module and "
      "--config) have training, parallelism, compile and activation_checkpoint.mode under the same "
      "names, and take them as --parallelism.tensor_parallel_degree 8; model and quantize are "
      "the function's, selective recomputation is always by operator");
  notes.ByRelease(
      "those up to August 2025 have compile in [training], and [float8] and [mx] in place of "
      "quantize");
  const std::string head = notes.Head(
      job, "torchtitan configuration",
      "pytorch/torchtitan, torchtitan/config/job_config.py of early 2026, the last to be read from "
      "TOML",
      "Use: add your data, tokenizer, optimizer and checkpoint sections, and what costs neither "
      "time nor memory (RoPE's base and scaling, epsilons), and give it as --job.config_file.");
  notes.AddFile("torchtitan.toml", head + toml);
}

}  // namespace millwright
