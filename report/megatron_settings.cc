// SPDX-License-Identifier: Apache-2.0
#include "report/megatron_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "planner/estimator.h"
#include "planner/megatron_args.h"
#include "report/estimate_text.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

class Settings {
 public:
  void Topic(std::string_view topic) { topic_ = topic; }
  void Switch(std::string_view option, bool on = true) {
    if (on) all_.push_back({topic_, option, {}});
  }
  template <class... T>
  void Value(std::string_view option, const T&... values) {
    all_.push_back({topic_, option, {fmt::format("{}", values)...}});
  }
  void Values(std::string_view option, std::vector<std::string> values) {
    all_.push_back({topic_, option, std::move(values)});
  }
  std::vector<MegatronSetting> Take() { return std::move(all_); }

 private:
  std::string_view topic_;
  std::vector<MegatronSetting> all_;
};

std::string_view MegatronName(ContextParallelKind kind) {
  switch (kind) {
    case ContextParallelKind::kRing:
      return "p2p";
    case ContextParallelKind::kUlysses:
      return "a2a";
    case ContextParallelKind::kNested:
      return "a2a+p2p";
  }
  return {};
}

// A bit for each layer, as a list: "([0]*3+[1]*58)", which the command line evaluates, or as
// Bridge's YAML has it, which is not evaluated, "[0, 0, 0, 1, ...]".
std::string LayerBits(const std::vector<BitRun>& runs, ExportFormat format) {
  const bool bridge = format == ExportFormat::kBridge;
  std::vector<std::string> parts;
  for (const BitRun& run : runs) {
    const char bit = run.bit ? '1' : '0';
    if (bridge) {
      parts.insert(parts.end(), std::size_t(run.count), std::string(1, bit));
    } else {
      parts.push_back(fmt::format("[{}]*{}", bit, run.count));
    }
  }
  return bridge ? fmt::format("[{}]", fmt::join(parts, ", "))
                : fmt::format("({})", fmt::join(parts, "+"));
}

void Attention(const ModelConfig& m, Settings& s, ExportNotes& notes) {
  s.Value("--num-attention-heads", m.num_attention_heads);
  if (m.latent) {
    s.Switch("--multi-latent-attention");
    if (m.mla.q_lora_rank > 0) s.Value("--q-lora-rank", m.mla.q_lora_rank);
    s.Value("--kv-lora-rank", m.mla.kv_lora_rank);
    s.Value("--qk-head-dim", m.mla.qk_nope_head_dim);
    s.Value("--qk-pos-emb-head-dim", m.mla.qk_rope_head_dim);
    s.Value("--v-head-dim", m.mla.v_head_dim);
  }
  // Megatron takes no note of it under latent attention, whose heads have sizes of their own.
  s.Value("--kv-channels", m.kv_channels);
  if (m.num_query_groups != m.num_attention_heads) {
    s.Switch("--group-query-attention");
    s.Value("--num-query-groups", m.num_query_groups);
  }
  // Of latent attention the norms of what is projected down (gpt_layer_specs.py).
  s.Switch("--qk-layernorm", m.qk_layernorm || m.latent);
  if (m.attention_sinks) s.Value("--softmax-type", "learnable");

  std::set<std::int64_t> windows;
  std::vector<BitRun> windowed;
  for (const LayerRun& run : m.layers) {
    const bool bit = run.kind.sliding_window > 0;
    if (bit) windows.insert(run.kind.sliding_window);
    if (windowed.empty() || windowed.back().bit != bit) windowed.push_back({.bit = bit});
    windowed.back().count += run.count;
  }
  if (windows.size() == 1) {
    // A window of (left, 0) lets a query see its own key and `left` before it.
    s.Value("--window-size", fmt::format("{},0", *windows.begin() - 1));
    if (windowed.size() > 1)
      s.Value("--window-attn-skip-freq", LayerBits(windowed, notes.format()));
  } else if (windows.size() > 1) {
    notes.Cannot("model.layers", "layers have attention windows of several sizes; it takes one");
  }
}

bool AllBiases(const ModelConfig& m) {
  return m.add_mlp_bias && m.add_qkv_bias && m.add_attention_output_bias;
}

void Activations(const ModelConfig& m, Settings& s, ExportNotes& notes) {
  if (notes.format() == ExportFormat::kBridge) return;  // which has them by their names
  const bool gated = m.gated_linear_unit;
  switch (m.activation) {
    case Activation::kSilu:
      if (gated) {
        s.Switch("--swiglu");
      } else {
        notes.Cannot("model.activation", "SiLU comes gated only; written as GELU");
      }
      break;
    case Activation::kGelu:
      if (gated) {
        s.Switch("--quick-geglu");
        notes.Cannot("model.activation",
                     "gated GELU comes with GELU's quick approximation only, which costs the same");
      }
      break;
    case Activation::kRelu:
      s.Switch("--quick-geglu", gated);
      notes.Cannot("model.activation", "it has no ReLU; written as GELU");
      break;
    case Activation::kSquaredRelu:
      s.Switch("--squared-relu");
      // Biases are fused with GELU and SwiGLU alone, and by default.
      s.Switch("--no-bias-gelu-fusion", AllBiases(m));
      if (gated) notes.Cannot("model.gated_linear_unit", "squared ReLU comes without a gate only");
      break;
  }
}

void Mlp(const ModelConfig& m, Settings& s, ExportNotes& notes) {
  s.Value("--ffn-hidden-size", m.ffn_hidden_size);
  Activations(m, s, notes);
  if (AllBiases(m)) return;
  s.Switch("--disable-bias-linear");
  s.Switch("--add-qkv-bias", m.add_qkv_bias);
  if (m.add_attention_output_bias) {
    notes.Cannot("model.add_attention_output_bias",
                 "biases are of all projections, of QKV, or none");
  }
  if (m.add_mlp_bias) {
    notes.Cannot("model.add_mlp_bias", "biases are of all projections, of QKV, or none");
  }
}

void Experts(const ModelConfig& m, Settings& s, ExportNotes& notes) {
  if (!m.has_moe()) return;
  s.Value("--num-experts", m.moe.num_experts);
  s.Value("--moe-router-topk", m.moe.topk);
  s.Value("--moe-ffn-hidden-size", m.moe.ffn_hidden_size);
  if (m.moe.shared_expert_ffn_hidden_size > 0) {
    s.Value("--moe-shared-expert-intermediate-size", m.moe.shared_expert_ffn_hidden_size);
  }
  if (const auto runs = MoeRuns(m); runs.size() > 1) {
    s.Value("--moe-layer-freq", LayerBits(runs, notes.format()));
  }
  if (m.moe.num_groups > 0) s.Value("--moe-router-num-groups", m.moe.num_groups);
  if (m.moe.topk_groups > 0) s.Value("--moe-router-group-topk", m.moe.topk_groups);
  if (m.moe.router_correction_bias) {
    // The bias goes with sigmoid scores alone (DeepSeek-V3, arXiv:2412.19437 section 2.1.2).
    s.Value("--moe-router-score-function", "sigmoid");
    s.Switch("--moe-router-enable-expert-bias");
  }
  // By default its softmax is over the chosen experts alone, so that their weights add up to 1; of
  // one expert that would be no gradient, and it refuses.
  const bool one = m.moe.topk == 1 && !m.moe.router_correction_bias;
  s.Switch("--moe-router-pre-softmax", !m.moe.normalize_topk || one);
  if (m.moe.normalize_topk && one) {
    notes.Cannot("model.moe.normalize_topk",
                 "of one expert it wants the softmax before the choice");
  }
  s.Switch("--moe-grouped-gemm");
  if (m.moe.router_bias) notes.Cannot("model.moe.router_bias", "the router has no learned bias");
  if (m.moe.shared_expert_gate) {
    notes.Cannot("model.moe.shared_expert_gate", "shared experts have no gate");
  }
}

void Model(const Job& job, Settings& s, ExportNotes& notes) {
  const ModelConfig& m = job.model;
  s.Topic("model");
  s.Value("--num-layers", m.num_layers);
  s.Value("--hidden-size", m.hidden_size);
  Attention(m, s, notes);
  Mlp(m, s, notes);
  s.Value("--normalization", m.normalization == Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm");
  std::string_view position = "none";
  if (m.position_embedding == PositionEmbedding::kRope) position = "rope";
  if (m.position_embedding == PositionEmbedding::kLearned) position = "learned_absolute";
  s.Value("--position-embedding-type", position);
  // Megatron refuses sequences longer than this.
  s.Value("--max-position-embeddings",
          std::max(m.max_position_embeddings, job.training.seq_length));
  if (m.max_position_embeddings < job.training.seq_length) {
    notes.Cannot("model.max_position_embeddings", "may not be below the sequence length");
  }
  s.Value("--vocab-size", m.vocab_size);
  // It pads the vocabulary to a multiple of this times tp, 128 if nothing is said.
  std::int64_t multiple = 128;
  while (multiple > 1 && m.vocab_size % (multiple * job.parallel.tensor) != 0) multiple /= 2;
  s.Value("--make-vocab-size-divisible-by", multiple);
  if (m.vocab_size % job.parallel.tensor != 0) {
    notes.Cannot("model.vocab_size", fmt::format("{} tokens are padded to a multiple of tp {}",
                                                 m.vocab_size, job.parallel.tensor));
  }
  s.Switch("--untie-embeddings-and-output-weights", !m.tied_embeddings);
  // The probabilities are not ours to know: 0.1 is Megatron's own default.
  if (!m.attention_dropout) s.Value("--attention-dropout", "0.0");
  if (!m.hidden_dropout) s.Value("--hidden-dropout", "0.0");
  if (m.mtp_num_layers > 0) s.Value("--mtp-num-layers", m.mtp_num_layers);
  if (m.mtp_num_layers > 0 && m.position_embedding == PositionEmbedding::kLearned) {
    notes.Cannot("model.mtp_num_layers", "it refuses them with learned positions");
  }
  if (m.post_layer_norms) notes.Cannot("model.post_layer_norms", "layers have two norms only");
  if (m.parallel_residual) {
    notes.Cannot("model.parallel_residual", "attention and MLP come one after the other only");
  }
  s.Topic("experts");
  Experts(m, s, notes);
}

// Bytes of the two moments together, by their types.
const std::pair<std::string_view, std::string_view>* MomentTypes(double bytes) {
  struct Pair {
    double bytes;
    std::pair<std::string_view, std::string_view> types;
  };
  static constexpr Pair kPairs[] = {
      {2, {"fp8", "fp8"}},  {3, {"fp8", "bf16"}},  {4, {"bf16", "bf16"}},
      {5, {"fp8", "fp32"}}, {6, {"bf16", "fp32"}},
  };
  for (const Pair& pair : kPairs) {
    if (pair.bytes == bytes) return &pair.types;
  }
  return nullptr;
}

void PrecisionOptions(const Job& job, Settings& s, ExportNotes& notes) {
  const TrainingConfig& t = job.training;
  s.Topic("precision");
  s.Switch(t.precision == Precision::kFp16 ? "--fp16" : "--bf16");
  switch (t.precision) {
    case Precision::kFp16:
    case Precision::kBf16:
      break;
    case Precision::kFp8:
      s.Value("--fp8-format", "hybrid");
      s.Value("--fp8-recipe", "tensorwise");
      break;
    case Precision::kMxfp8:
      s.Value("--fp8-format", "e4m3");
      s.Value("--fp8-recipe", "mxfp8");
      break;
    case Precision::kNvfp4:
      s.Value("--fp4-format", "e2m1");
      s.Value("--fp4-recipe", "nvfp4");
      break;
  }
  const bool low = LowPrecision(t.precision);
  if (low && !t.bf16_weights) {
    if (job.parallel.zero >= 1) {
      s.Switch(t.precision == Precision::kNvfp4 ? "--fp4-param-gather" : "--fp8-param-gather");
      // Without it MXFP8 weights are gathered into a buffer of their own; it wants both overlaps
      // (distributed_data_parallel_config.py).
      s.Switch("--reuse-grad-buf-for-mxfp8-param-ag",
               t.precision == Precision::kMxfp8 && !WrittenAsFsdp(job.parallel) &&
                   t.overlap_grad_reduce && t.overlap_param_gather);
    } else {
      notes.Cannot("training.bf16_weights",
                   "only the distributed optimizer keeps weights quantised");
    }
  } else if (!low && t.bf16_weights) {
    notes.Cannot("training.bf16_weights", "weights are BF16");
  }
  // Gradients of BF16 weights are kept in fp32 unless it is told otherwise, those of fp16 the
  // other way round.
  const bool fp16 = t.precision == Precision::kFp16;
  if (t.gradient_bytes == 2) {
    s.Switch("--grad-reduce-in-bf16", !fp16);
  } else {
    s.Switch("--accumulate-allreduce-grads-in-fp32", fp16);
    if (t.gradient_bytes != 4) {
      notes.Cannot("training.gradient_bytes", "gradients have 2 or 4 bytes; written as 4");
    }
  }
  if (t.moment_bytes == 8) return;
  const auto* types = MomentTypes(t.moment_bytes);
  if (types == nullptr) {
    notes.Cannot(
        "training.moment_bytes",
        fmt::format("no two types of moments make {} bytes; written as fp32", t.moment_bytes));
  } else if (job.parallel.zero == 0) {
    notes.Cannot("training.moment_bytes",
                 "moments below fp32 need the distributed optimizer, and ZeRO is 0");
  } else {
    s.Switch("--use-precision-aware-optimizer");
    s.Value("--exp-avg-dtype", types->first);
    s.Value("--exp-avg-sq-dtype", types->second);
  }
}

// The plan that runs with these options.
ParallelConfig AsWritten(const Job& job) {
  ParallelConfig p = job.parallel;
  p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  // Of as many stages, or none.
  if (!p.stage_layers.empty() && p.stage_layers != ChunkLayersOf(job.model, p).layers) {
    p.stage_layers.clear();
  }
  if (!ShardsIn(Framework::kMegatron, p.pipeline, p.zero)) p.zero = 1;
  p.recompute = p.RecomputeOf(0);
  p.rank_recompute.clear();
  if (!OffloadsIn(Framework::kMegatron, p.pipeline, p.recompute)) p.recompute.offload_layers = 0;
  return p;
}

void Pipeline(const Job& job, Settings& s, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  s.Value("--pipeline-model-parallel-size", p.pipeline);
  if (p.schedule != ScheduleKind::k1F1B && p.schedule != ScheduleKind::kInterleaved) {
    notes.Cannot("parallel.schedule",
                 fmt::format("it has 1F1B and interleaved 1F1B only, not {}", NameOf(p.schedule)));
  }
  const bool chunked = p.virtual_stages > 1;
  // Without the schedule, its own chunks are not there either.
  const ParallelConfig written = AsWritten(job);
  const ChunkLayers chunks = ChunkLayersOf(job.model, written);
  if (p.stage_layers != written.stage_layers) {
    notes.Cannot("parallel.stage_layers", "it divides the stages of another schedule");
  }
  if (!chunks.even) {
    s.Value("--pipeline-model-parallel-layout",
            PipelineLayout(chunks.layers, job.model.mtp_num_layers));
  } else if (chunked) {
    s.Value("--num-virtual-stages-per-pipeline-rank", p.virtual_stages);
  }
  const bool refused = chunked && !job.training.overlap_p2p && p.pipeline == 2;
  s.Switch("--no-overlap-p2p-communication", !job.training.overlap_p2p && !refused);
  if (refused) {
    notes.Cannot("training.overlap_p2p",
                 "without overlap it refuses virtual stages at pp 2; written with it");
  }
}

// Pipelines inside data want as many data-parallel ranks of experts as of the rest, also where
// there are no experts (parallel_state.py).
void Order(const Job& job, Settings& s, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  if (p.order != RankOrder::kPipelineInside) return;
  const int dense = p.tensor * p.context;
  if (p.pipeline > 1 && job.model.has_moe() && p.expert * p.expert_tensor != dense) {
    notes.Cannot("parallel.order",
                 "at dp 1 it makes no difference, and is refused with these experts");
    return;
  }
  s.Switch("--use-tp-pp-dp-mapping");
  if (p.pipeline > 1 && p.context > 1 && !job.model.has_moe()) {
    s.Value("--expert-tensor-parallel-size", dense);
  }
}

void Sharding(const Job& job, Settings& s, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  s.Topic("data parallelism");
  Order(job, s, notes);
  if (p.zero >= 1) {
    s.Switch("--use-distributed-optimizer");
    if (p.zero_shard > 0) {
      s.Value("--num-distributed-optimizer-instances", p.data * p.context / p.zero_shard);
      NoteExpertShard(job, notes);
    }
  }
  if (p.zero >= 2 && !WrittenAsFsdp(p)) {
    notes.Cannot("parallel.zero",
                 fmt::format("Megatron-FSDP goes with no pipeline; written as the distributed "
                             "optimizer, ZeRO 1, which has gradients whole, unlike ZeRO {}",
                             p.zero));
  }
  if (WrittenAsFsdp(p)) {
    s.Switch("--use-megatron-fsdp");
    s.Value("--data-parallel-sharding-strategy",
            p.zero == 2 ? "optim_grads" : "optim_grads_params");
    s.Switch("--no-gradient-accumulation-fusion");
    s.Value("--ckpt-format", "fsdp_dtensor");  // the only one that it takes
  }
  s.Switch("--overlap-grad-reduce", t.overlap_grad_reduce);
  if (t.overlap_param_gather && p.zero >= 1) {
    if (t.overlap_grad_reduce) {
      s.Switch("--overlap-param-gather");
    } else {
      notes.Cannot("training.overlap_param_gather", "it needs --overlap-grad-reduce");
    }
  } else if (!t.overlap_param_gather && p.zero == 0) {
    notes.Cannot("training.overlap_param_gather", "nothing is gathered at ZeRO 0");
  }
}

void RecomputeOptions(const Job& job, Settings& s, ExportNotes& notes) {
  const Recompute& r = notes.RecomputeOf(job.parallel);
  s.Topic("recomputation");
  if (r.offload_layers > 0) {
    // transformer_config.py refuses the others.
    const char* why = job.parallel.pipeline > 1 ? "layers are not offloaded with pipelines"
                      : r.granularity != RecomputeGranularity::kNone
                          ? "layers are not offloaded with recomputation"
                      : job.training.cuda_graph != CudaGraph::kNone
                          ? "layers are not offloaded with CUDA graphs"
                      : r.offload_layers >= job.model.num_layers ? "some layers are to stay"
                                                                 : nullptr;
    if (why == nullptr) {
      s.Value("--cpu-offloading-num-layers", r.offload_layers);
    } else {
      notes.Cannot("parallel.recompute",
                   fmt::format("{}; written without the {} offloaded", why, r.offload_layers));
    }
  }
  switch (r.granularity) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective: {
      s.Value("--recompute-granularity", "selective");
      std::vector<std::string> names;
      for (const RecomputeModule module : r.modules) {
        for (const auto& n : RecomputeModuleNames()) {
          if (n.value == module) names.emplace_back(n.name);
        }
      }
      s.Values("--recompute-modules", std::move(names));
      break;
    }
    case RecomputeGranularity::kFull:
      s.Value("--recompute-granularity", "full");
      s.Value("--recompute-method", r.full_layers > 0 ? "block" : "uniform");
      s.Value("--recompute-num-layers", std::max(1, r.full_layers));
      break;
  }
}

// transformer_config.py's rules; layers that are recomputed inside a graph may not draw numbers.
std::string_view RefusedGraph(const Job& job) {
  const Recompute& r = job.parallel.RecomputeOf(0);
  const bool whole = job.training.cuda_graph == CudaGraph::kFull;
  const auto recomputes = [&](RecomputeModule module) {
    return std::find(r.modules.begin(), r.modules.end(), module) != r.modules.end();
  };
  if (r.granularity == RecomputeGranularity::kFull && !whole) {
    return "with full recomputation only whole iterations are captured";
  }
  if (job.model.attention_dropout && recomputes(RecomputeModule::kCoreAttn)) {
    return "attention with dropout is not captured where it is recomputed";
  }
  if (job.model.hidden_dropout && whole &&
      (recomputes(RecomputeModule::kMlp) || recomputes(RecomputeModule::kMoe))) {
    return "MLPs of a model with dropout are not captured where they are recomputed";
  }
  return {};
}

void CudaGraphs(const Job& job, Settings& s, ExportNotes& notes) {
  const CudaGraph graph = job.training.cuda_graph;
  if (graph == CudaGraph::kNone) return;
  if (const std::string_view refused = RefusedGraph(job); !refused.empty()) {
    notes.Cannot("training.cuda_graph", refused);
    return;
  }
  if (graph == CudaGraph::kPartial) {
    s.Value("--cuda-graph-impl", "transformer_engine");
    s.Value("--cuda-graph-scope", "attn");
  } else {
    s.Value("--cuda-graph-impl", "local");
    s.Value("--cuda-graph-scope", "full_iteration");
    s.Switch("--no-check-for-nan-in-loss-and-grad");
  }
  notes.ByRelease(
      graph == CudaGraph::kPartial
          ? "in 2026 --cuda-graph-scope became --cuda-graph-modules; the old name is still taken"
          : "in 2026 --cuda-graph-scope full_iteration became --cuda-graph-impl full_iteration; "
            "the old spelling is still taken");
  if (job.parallel.RecomputeOf(0).granularity == RecomputeGranularity::kFull) {
    notes.ByRelease("those of 2025 refuse CUDA graphs with full recomputation");
  }
}

void Software(const Job& job, Settings& s, ExportNotes& notes) {
  const TrainingConfig& t = job.training;
  const TrainingConfig standard;
  s.Topic("kernels and memory");
  const bool bridge = notes.format() == ExportFormat::kBridge;
  // Of the fused kernels only cuDNN's knows sinks (softmax_type of transformer_config.py).
  s.Value("--attention-backend", !t.flash_attention          ? "unfused"
                                 : job.model.attention_sinks ? "fused"
                                                             : "flash");
  if (t.fused_cross_entropy) {
    s.Switch("--cross-entropy-loss-fusion");
    s.Value("--cross-entropy-fusion-impl", bridge ? "te" : "native");
    if (!bridge) {
      notes.Cannot(
          "training.fused_cross_entropy",
          "in 2026 it refuses Transformer Engine's, which keeps no fp32 logits; written as "
          "its own, which does");
      notes.ByRelease(
          "--cross-entropy-fusion-impl te is taken by releases of 2025, and keeps no fp32 logits");
    }
  }
  if (t.fp8_activation_store) {
    if (!job.model.gated_linear_unit || job.model.activation != Activation::kSilu) {
      notes.Cannot("training.fp8_activation_store", "only SwiGLU's input can be kept in FP8");
    } else if (bridge) {
      s.Switch("--activation-func-fp8-input-store");
    } else {
      notes.Cannot(
          "training.fp8_activation_store",
          "TransformerConfig has activation_func_fp8_input_store, and no argument sets it");
    }
  }
  CudaGraphs(job, s, notes);

  const auto cannot = [&](bool differs, std::string_view field, std::string_view why) {
    if (differs) notes.Cannot(field, why);
  };
  cannot(t.state != standard.state, "training.state",
         "weights are a BF16 copy and an fp32 master, not PyTorch FSDP's fp32 shard");
  cannot(t.framework != standard.framework, "training.framework",
         "the plan is costed for other software than this");
  cannot(t.flash_kernel != standard.flash_kernel, "training.flash_kernel",
         "which attention kernel runs is what is installed");
  cannot(t.launch_blocking, "training.launch_blocking",
         "set CUDA_LAUNCH_BLOCKING=1 in the environment");
  cannot(t.fused_swiglu, "training.fused_swiglu", "the gated product is kept");
  cannot(!t.cp_comm_overlap, "training.cp_comm_overlap",
         "the ring's exchange is always overlapped");
  cannot(t.moe_imbalance != 1, "training.moe_imbalance", "it is a property of the data");
  cannot(t.mfu_convention != standard.mfu_convention, "training.mfu_convention",
         "it is how Millwright counts, not how a step runs");
}

void ExpertParallelism(const Job& job, Settings& s, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  if (!job.model.has_moe()) {
    const auto cannot = [&](bool differs, std::string_view field) {
      if (differs) notes.Cannot(field, "the model has no experts");
    };
    cannot(t.moe_dispatcher != MoeDispatcher::kAllToAll, "training.moe_dispatcher");
    cannot(t.moe_token_drop, "training.moe_token_drop");
    cannot(t.expert_overlap, "training.expert_overlap");
    return;
  }
  s.Value("--expert-model-parallel-size", p.expert);
  s.Value("--expert-tensor-parallel-size", p.expert_tensor);
  if (p.expert_tensor > 1 && AllBiases(job.model)) {
    notes.Cannot("parallel.expert_tensor_parallel",
                 fmt::format("it refuses experts with biases that are cut, etp {}; give etp 1, or "
                             "--disable-bias-linear",
                             p.expert_tensor));
  }
  const bool deepep = t.moe_dispatcher == MoeDispatcher::kDeepEp && p.expert * p.expert_tensor > 1;
  if (deepep) {
    s.Value("--moe-token-dispatcher-type", "flex");
    s.Switch("--moe-enable-deepep");
  } else {
    s.Value("--moe-token-dispatcher-type", "alltoall");
    if (t.moe_dispatcher == MoeDispatcher::kDeepEp) {
      notes.Cannot("training.moe_dispatcher",
                   "its dispatcher for DeepEP wants several expert ranks");
    }
  }
  if (t.moe_token_drop) {
    s.Value("--moe-expert-capacity-factor", "1.0");
    s.Switch("--moe-pad-expert-input-to-capacity", !deepep);
    if (deepep) {
      notes.Cannot("training.moe_token_drop",
                   "with DeepEP experts are not padded to their capacity: tokens are dropped, and "
                   "shapes are not fixed");
    }
  }
  const bool overlapped = WrittenExpertOverlap(job.model, t, p);
  s.Switch("--overlap-moe-expert-parallel-comm", overlapped);
  if (t.expert_overlap && !overlapped) {
    notes.Cannot("training.expert_overlap",
                 "it overlaps with ep above 1, virtual stages where there are stages, no layer or "
                 "MoE recomputed as a whole, and one multi-token-prediction module at most");
  }
  if (t.precision == Precision::kFp16) {
    notes.ByRelease(
        "those of 2025 refuse expert parallelism and --moe-grouped-gemm in fp16, later ones do "
        "not");
  }
}

}  // namespace

void NoteWhatRuns(const Job& job, ExportNotes& notes) {
  const ParallelConfig written = AsWritten(job);
  if (written == job.parallel) return;
  const std::string what = fmt::format("written is {}", BriefName(written));
  const ClusterConfig& config = job.cluster;
  if (const Verdict v = CheckPlan(job.model, job.training, config.gpu, config.gpus(), written)) {
    return notes.Cannot("parallel", fmt::format("{}, which cannot run: {}", what, v->detail));
  }
  const Cluster cluster(config);
  const Estimator estimator(job.model, job.training, cluster);
  const Estimate plan = estimator.Itemise(job.parallel), runs = estimator.Itemise(written);
  notes.Cannot("parallel", runs.fits()
                               ? fmt::format("{}: {} a step by the estimate, not {}", what,
                                             PerStep(runs.step), PerStep(plan.step))
                               : fmt::format("{}, which does not fit: {}", what,
                                             MissSentence(runs, runs.capacity, config.gpu)));
}

// transformer_config.py's rules for overlap_moe_expert_parallel_comm.
bool WrittenExpertOverlap(const ModelConfig& model, const TrainingConfig& training,
                          const ParallelConfig& plan) {
  const Recompute& r = plan.RecomputeOf(0);
  return training.expert_overlap && model.has_moe() && plan.expert > 1 &&
         (plan.pipeline == 1 || plan.virtual_stages > 1) &&
         r.granularity != RecomputeGranularity::kFull &&
         std::find(r.modules.begin(), r.modules.end(), RecomputeModule::kMoe) == r.modules.end() &&
         model.mtp_num_layers <= 1;
}

std::string PipelineLayout(const std::vector<int>& layers, int mtp_layers) {
  const auto repeated = [](char what, int count) {
    if (count == 0) return std::string();
    return count == 1 ? std::string(1, what) : fmt::format("{}*{}", what, count);
  };
  std::string layout = "E" + repeated('t', layers.front());
  const std::size_t last = layers.size() - 1;
  if (last > 0) layout += '|';
  for (std::size_t i = 1, end = 1; i < last; i = end) {
    while (end < last && layers[end] == layers[i]) ++end;
    const std::string one = repeated('t', layers[i]) + '|';
    layout += end - i > 1 ? fmt::format("({})*{}", one, end - i) : one;
  }
  if (last > 0) layout += repeated('t', layers.back());
  return layout + repeated('m', mtp_layers) + "L";
}

std::vector<MegatronSetting> MegatronSettings(const Job& job, ExportNotes& notes) {
  const ParallelConfig& p = job.parallel;
  const TrainingConfig& t = job.training;
  Settings s;
  Model(job, s, notes);
  s.Topic("batch");
  s.Value("--seq-length", t.seq_length);
  s.Value("--micro-batch-size", p.micro_batch_size);
  s.Value("--global-batch-size", t.global_batch_size);
  PrecisionOptions(job, s, notes);
  s.Topic("parallelism");
  s.Value("--tensor-model-parallel-size", p.tensor);
  s.Switch("--sequence-parallel", p.sequence_parallel);
  if (t.tp_comm_overlap) {
    if (p.sequence_parallel) {
      s.Switch("--tp-comm-overlap");
    } else {
      notes.Cannot("training.tp_comm_overlap", "it needs sequence parallelism");
    }
  }
  s.Value("--context-parallel-size", p.context);
  if (p.context > 1 && t.seq_length % (2LL * p.context) != 0) {
    notes.Cannot("training.seq_length", fmt::format("{} tokens are to be a multiple of 2 x cp {}",
                                                    t.seq_length, p.context));
  }
  if (p.context > 1 || p.context_kind != ContextParallelKind::kRing) {
    s.Value("--cp-comm-type", MegatronName(p.context_kind));
  }
  if (const std::string refused = RefusedExchange(job.model, p); !refused.empty()) {
    notes.Cannot("parallel.context_parallel_kind",
                 fmt::format("--cp-comm-type {}: {}", MegatronName(p.context_kind), refused));
  }
  if (p.context_kind == ContextParallelKind::kNested) {
    s.Value("--hierarchical-context-parallel-sizes", p.ulysses_ranks(), p.ring_ranks());
  }
  Pipeline(job, s, notes);
  ExpertParallelism(job, s, notes);
  Sharding(job, s, notes);
  RecomputeOptions(job, s, notes);
  Software(job, s, notes);
  NoteWhatRuns(job, notes);
  return s.Take();
}

}  // namespace millwright
