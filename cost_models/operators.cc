// SPDX-License-Identifier: Apache-2.0
#include "cost_models/operators.h"

#include <algorithm>
#include <cmath>

namespace millwright {
namespace {

constexpr double kWidth = 2;  // bytes of an activation element: BF16 or FP16

constexpr ModuleMask kCoreAttn = Mask(RecomputeModule::kCoreAttn);
constexpr ModuleMask kMlp = Mask(RecomputeModule::kMlp);
constexpr ModuleMask kMoe = Mask(RecomputeModule::kMoe);
constexpr ModuleMask kMoeAct = Mask(RecomputeModule::kMoeAct);
constexpr ModuleMask kLayerNorm = Mask(RecomputeModule::kLayerNorm);
constexpr ModuleMask kMlaUpProj = Mask(RecomputeModule::kMlaUpProj);

// Transformer Engine keeps the quantised input of a linear layer for its weight gradient; torchao
// quantises again and keeps BF16.
double KeptInputWidth(const TrainingConfig& training) {
  if (training.framework != Framework::kMegatron) return kWidth;
  switch (training.precision) {
    case Precision::kFp16:
    case Precision::kBf16:
      return kWidth;
    case Precision::kFp8:
      return 1;
    case Precision::kMxfp8:
      return 1 + 1.0 / 32;  // a scale for each 32
    case Precision::kNvfp4:
      return 0.5 + 1.0 / 16;  // and for each 16
  }
  return kWidth;
}

// BF16 logits and their fp32 softmax; unfused, an fp32 copy of the logits beside them.  Of eager
// FSDP's programs llm-foundry's loss is FlashAttention's, which keeps BF16 logits and one number a
// token (its `loss_fn: fused_crossentropy`, the default).
double KeptBytesOfLogit(const TrainingConfig& training) {
  if (!training.fused_cross_entropy) return 10;
  return training.framework == Framework::kFsdp ? 2 : 6;
}

// Appends operators, knowing the token counts and the parallel shape.
class LayerBuilder {
 public:
  LayerBuilder(const ModelConfig& model, const LayerShape& shape, const TrainingConfig& training)
      : model_(model),
        shape_(shape),
        training_(training),
        t_(shape.tensor),
        tokens_(double(shape.micro_batch_size) * double(shape.seq_length) / shape.context),
        sharded_tokens_(shape.sequence_parallel ? tokens_ / t_ : tokens_),
        h_(double(model.hidden_size)),
        input_width_(KeptInputWidth(training)) {}

  std::vector<Operator> Take() { return std::move(operators_); }
  double tokens() const { return tokens_; }
  double sharded_tokens() const { return sharded_tokens_; }

  Operator& Add(std::string_view name, OperatorKind kind, ModuleMask modules = 0) {
    Operator& op = operators_.emplace_back();
    op.name = name;
    op.kind = kind;
    op.modules = modules;
    return op;
  }
  Operator& back() { return operators_.back(); }
  int last() const { return int(operators_.size()) - 1; }

  Operator& MemoryBound(std::string_view name, double bytes, ModuleMask modules = 0) {
    Operator& op = Add(name, OperatorKind::kMemoryBound, modules);
    op.bytes = Bytes(bytes);
    return op;
  }
  Operator& Gemm(std::string_view name, double m, double n, double k, ModuleMask modules = 0) {
    Operator& op = Add(name, OperatorKind::kGemm, modules);
    op.m = m;
    op.n = n;
    op.k = k;
    return op;
  }

  // Of the GEMM just added, whose input has so many elements that no operator before it holds too.
  // The gradient of its output is kept as wide as the input.
  void HeldForWeight(double input, double width) {
    Operator& op = back();
    op.held_for_weight = Bytes(width * (input + op.m * op.n * op.groups));
  }

  // Entry to a tensor-parallel block: with sequence parallelism gather `width` elements a token
  // and scatter their gradient; without, only the gradient is all-reduced.
  void Gather(std::string_view name, double width, ModuleMask modules = 0) {
    if (t_ == 1) return;
    Operator& op = Add(name, OperatorKind::kCollective, modules);
    op.payload = Bytes(kWidth * tokens_ * width);
    op.forward = shape_.sequence_parallel;
    op.forward_collective = CollectiveKind::kAllGather;
    op.backward_collective =
        shape_.sequence_parallel ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  }
  // The weight gradient of the GEMM just added needs the gathered input again; Megatron gathers
  // it under the input-gradient GEMM.
  void RegatherForWgrad(std::string_view name, double width) {
    if (t_ == 1 || !shape_.sequence_parallel) return;
    const int gemm = last();
    Operator& op = Add(name, OperatorKind::kCollective);
    op.payload = Bytes(kWidth * tokens_ * width);
    op.forward = false;
    op.backward_collective = CollectiveKind::kAllGather;
    op.hidden_under = gemm;
  }
  // Exit of a tensor-parallel block.
  void Reduce(std::string_view name, ModuleMask modules = 0) {
    if (t_ == 1) return;
    Operator& op = Add(name, OperatorKind::kCollective, modules);
    op.payload = Bytes(kWidth * tokens_ * h_);
    op.forward_collective =
        shape_.sequence_parallel ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
    op.backward = shape_.sequence_parallel;
    op.backward_collective = CollectiveKind::kAllGather;
  }

  // A norm over the hidden size, its input (once a residual branch) and its output kept, as the
  // linear layer behind it keeps it where that is all that reads it.
  void Norm(std::string_view name, bool keep_input, bool layer_input, bool keep_output,
            bool for_linear = false) {
    // Megatron's layernorm module recomputes the norms whose outputs it drops.
    Operator& op = MemoryBound(name, 2 * kWidth * sharded_tokens_ * h_,
                               keep_output ? kLayerNorm : ModuleMask{0});
    if (keep_input) {
      op.saved.push_back({.name = "norm input",
                          .bytes = Bytes(kWidth * sharded_tokens_ * h_),
                          .layer_input = layer_input});
    }
    const double statistics = model_.normalization == Normalization::kRmsNorm ? 4 : 8;
    op.saved.push_back({.name = "norm statistics",
                        .bytes = Bytes(statistics * sharded_tokens_),
                        .statistic = true});
    if (keep_output) {
      op.saved.push_back(
          {.name = "norm output",
           .bytes = Bytes((for_linear ? input_width_ : kWidth) * sharded_tokens_ * h_),
           .modules = kLayerNorm});
    }
  }
  void Residual(std::string_view name) {
    const double dropout = model_.hidden_dropout ? 3 : 0;  // reads and writes beside the add
    Operator& op = MemoryBound(name, (3 * kWidth + dropout) * sharded_tokens_ * h_);
    if (model_.hidden_dropout) {
      op.saved.push_back({.name = "dropout mask", .bytes = Bytes(sharded_tokens_ * h_)});
    }
  }

  void Attention(LayerKind kind);
  void DenseMlp();
  void MoeMlp();

 private:
  void QueryKeyValue();
  void LatentQueryKeyValue();
  void Core(LayerKind kind, double heads, double groups, double qk_head, double v_head);
  // fc1, activation, fc2 on `tokens` rows, inner size `inner` on this rank, `groups` experts.
  // Where `gathered`, the input was gathered over tensor ranks and is gathered again for wgrad;
  // `input`: its elements that fc1 alone holds.
  void TwoLinears(double tokens, double inner, double groups, bool gathered, double input,
                  ModuleMask modules, ModuleMask product_modules);

  const ModelConfig& model_;
  const LayerShape& shape_;
  const TrainingConfig& training_;
  double t_;
  double tokens_;          // in tensor-parallel regions
  double sharded_tokens_;  // around them
  double h_;
  double input_width_;  // bytes that a linear layer keeps of an element of its input
  std::vector<Operator> operators_;
};

void LayerBuilder::Attention(LayerKind kind) {
  Norm("input norm", true, true, true, true);
  if (model_.latent) {
    LatentQueryKeyValue();
  } else {
    QueryKeyValue();
  }
  const double e = double(model_.kv_channels);
  const double heads = model_.num_attention_heads / t_;
  if (model_.latent) {
    Core(kind, heads, heads, double(model_.mla.qk_nope_head_dim + model_.mla.qk_rope_head_dim),
         double(model_.mla.v_head_dim));
  } else {
    Core(kind, heads, std::max(1.0, model_.num_query_groups / t_), e, e);
  }
  const double width = heads * (model_.latent ? double(model_.mla.v_head_dim) : e);
  Operator& output = Gemm("attention output", tokens_, h_, width);
  HeldForWeight(tokens_ * width, input_width_);
  if (input_width_ < kWidth) {  // beside what the attention core keeps in BF16
    output.saved.push_back(
        {.name = "quantised attention output", .bytes = Bytes(input_width_ * tokens_ * width)});
  }
  Reduce("attention output reduce");
  if (model_.post_layer_norms) Norm("post-attention norm", true, false, false);
  Residual("attention residual");
}

void LayerBuilder::QueryKeyValue() {
  const double e = double(model_.kv_channels);
  const double heads = model_.num_attention_heads / t_;
  const double groups = std::max(1.0, model_.num_query_groups / t_);  // replicated beyond t = g
  Gather("qkv gather", h_);
  Gemm("qkv", tokens_, (heads + 2 * groups) * e, h_);
  HeldForWeight(sharded_tokens_ * h_, input_width_);
  RegatherForWgrad("qkv wgrad gather", h_);
  if (model_.qk_layernorm) {
    Operator& op = MemoryBound("qk norm", 2 * kWidth * tokens_ * (heads + groups) * e);
    op.saved.push_back(
        {.name = "qk norm input", .bytes = Bytes(kWidth * tokens_ * (heads + groups) * e)});
    const double statistics = model_.normalization == Normalization::kRmsNorm ? 4 : 8;
    op.saved.push_back({.name = "qk norm statistics",
                        .bytes = Bytes(statistics * tokens_ * (heads + groups)),
                        .statistic = true});
  }
  if (model_.position_embedding == PositionEmbedding::kRope) {
    MemoryBound("rope", 2 * kWidth * tokens_ * (heads + groups) * e);
  }
}

// Multi-head latent attention: down-projections are replicated over tensor ranks and run on the
// sequence-sharded tokens; the latents are gathered; up-projections are split by heads.
void LayerBuilder::LatentQueryKeyValue() {
  const LatentAttention& a = model_.mla;
  const double heads = model_.num_attention_heads / t_;
  const double qk = double(a.qk_nope_head_dim + a.qk_rope_head_dim);
  const double down = double(a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim);
  const double latents = double(a.q_lora_rank + a.kv_lora_rank);
  Gemm("mla down", sharded_tokens_, down, h_);
  HeldForWeight(sharded_tokens_ * h_, input_width_);
  Operator& norm = MemoryBound("latent norm", 2 * kWidth * sharded_tokens_ * latents);
  norm.saved.push_back({.name = "latents", .bytes = Bytes(kWidth * sharded_tokens_ * down)});
  norm.saved.push_back(
      {.name = "normed latents", .bytes = Bytes(kWidth * sharded_tokens_ * latents)});
  norm.saved.push_back(
      {.name = "latent norm statistics", .bytes = Bytes(8 * sharded_tokens_), .statistic = true});
  if (a.q_lora_rank > 0) {
    Gather("latent gather", down, kMlaUpProj);
    Gemm("q up", tokens_, heads * qk, double(a.q_lora_rank), kMlaUpProj);
    HeldForWeight(sharded_tokens_ * double(a.q_lora_rank), input_width_);
  } else {
    Gather("q gather", h_);
    Gemm("q projection", tokens_, heads * qk, h_);
    HeldForWeight(0, input_width_);  // the input of the down-projection
    RegatherForWgrad("q wgrad gather", h_);
    Gather("latent gather", down, kMlaUpProj);
  }
  Gemm("kv up", tokens_, heads * double(a.qk_nope_head_dim + a.v_head_dim), double(a.kv_lora_rank),
       kMlaUpProj);
  HeldForWeight(sharded_tokens_ * double(a.kv_lora_rank), input_width_);
  RegatherForWgrad("latent wgrad gather", latents);
  // Rope on the queries' and the shared key's rotary part, and the key assembled a head.
  MemoryBound("rope", 2 * kWidth * tokens_ * (heads * double(a.qk_rope_head_dim) + heads * qk),
              kMlaUpProj);
}

void LayerBuilder::Core(LayerKind kind, double heads, double groups, double qk_head,
                        double v_head) {
  const double sequence = double(shape_.seq_length);
  const double u = shape_.ulysses_ranks(), r = shape_.ring_ranks();
  const bool ulysses = u > 1, ring = r > 1;
  const double window =
      kind.sliding_window > 0 ? std::min(double(kind.sliding_window), sequence) : sequence;
  // With Ulysses, KV heads fewer than t u are replicated before the exchange, and kept so.
  const double spread = std::max(1.0, u / groups);
  const double query_bytes = kWidth * tokens_ * heads * qk_head;
  const double key_bytes = kWidth * tokens_ * groups * qk_head * spread;
  const double value_bytes = kWidth * tokens_ * groups * v_head * spread;
  const double output_bytes = kWidth * tokens_ * heads * v_head;

  if (ulysses) {
    // Sequence-sharded, all heads of a tensor rank -> the tokens of all u, heads / u; payload is
    // what a rank holds.
    Operator& in = Add("ulysses qkv all-to-all", OperatorKind::kCollective);
    in.group = GroupKind::kUlysses;
    in.payload = Bytes(query_bytes + key_bytes + value_bytes);
    in.forward_collective = in.backward_collective = CollectiveKind::kAllToAll;
  }

  Operator& core = Add("attention core", OperatorKind::kAttention, kCoreAttn);
  core.fused = training_.flash_attention;
  core.low_precision = false;
  core.qk_head = qk_head;
  core.v_head = v_head;
  core.scores_full = heads * tokens_ * window;
  core.scores = heads * tokens_ * (window - window * window / (2 * sequence));
  core.scores_square = heads * tokens_ * sequence;
  core.attention_tokens = sequence / r;
  core.kernels = shape_.ring_ranks();
  const ModuleMask qkv_modules = model_.latent ? kMlaUpProj : ModuleMask{0};
  core.saved = {{.name = "query", .bytes = Bytes(query_bytes), .modules = qkv_modules},
                {.name = "key", .bytes = Bytes(key_bytes), .modules = qkv_modules},
                {.name = "value", .bytes = Bytes(value_bytes), .modules = qkv_modules},
                {.name = "attention output", .bytes = Bytes(output_bytes)}};
  if (core.fused) {
    core.saved.push_back({.name = "log-sum-exp",
                          .bytes = Bytes(4 * tokens_ * heads),
                          .modules = kCoreAttn,
                          .statistic = true});
  } else {
    const double score_elements = core.scores_square;
    core.saved.push_back(
        {.name = "softmax", .bytes = Bytes(2 * score_elements), .modules = kCoreAttn});
    if (model_.attention_dropout) {
      core.saved.push_back(
          {.name = "attention dropout mask", .bytes = Bytes(score_elements), .modules = kCoreAttn});
      core.saved.push_back({.name = "attention dropout output",
                            .bytes = Bytes(2 * score_elements),
                            .modules = kCoreAttn});
    }
  }

  if (ring) {
    // r - 1 exchanges of the KV block under attention; backward passes KV again and dKV.  A block
    // has u times the tokens of a plain ring's and a u-th of the heads: as many bytes.
    const int attention = last();
    Operator& exchange = Add("ring kv exchange", OperatorKind::kCollective, kCoreAttn);
    exchange.group = GroupKind::kRing;
    exchange.payload = Bytes(key_bytes + value_bytes);
    exchange.forward_collective = exchange.backward_collective = CollectiveKind::kSendRecv;
    exchange.repeats = shape_.ring_ranks() - 1;
    exchange.backward_repeats = 2;
    if (training_.cp_comm_overlap) exchange.hidden_under = attention;
    // Each later step's output is merged into an fp32 accumulator by its log-sum-exp.
    MemoryBound("ring output merge", (r - 1) * (4 + 4 + kWidth) * tokens_ * heads * v_head,
                kCoreAttn);
  }
  if (ulysses) {
    // Backward exchanges the output again beside its gradient, since only the exchanged one is kept
    // (AttnFuncWithCPAndQKVOA2A of Transformer Engine's context_parallel.py, and for a2a+p2p
    // AttnFuncWithCPAndKVP2P).
    Operator& out = Add("ulysses output all-to-all", OperatorKind::kCollective);
    out.group = GroupKind::kUlysses;
    out.payload = Bytes(output_bytes);
    out.backward_repeats = 2;
    out.forward_collective = out.backward_collective = CollectiveKind::kAllToAll;
  }
}

void LayerBuilder::TwoLinears(double tokens, double inner, double groups, bool gathered,
                              double input, ModuleMask modules, ModuleMask product_modules) {
  const double fc1_width = (model_.gated_linear_unit ? 2 : 1) * inner;
  const auto linear = [&](std::string_view name, double n, double k) -> Operator& {
    Operator& op = Gemm(name, tokens / groups, n, k, modules);
    if (groups > 1) op.kind = OperatorKind::kGroupedGemm;
    op.groups = groups;
    return op;
  };
  linear("fc1", fc1_width, h_);
  HeldForWeight(input, input_width_);
  if (gathered) RegatherForWgrad("fc1 wgrad gather", h_);
  Operator& act = MemoryBound("activation", kWidth * tokens * (fc1_width + inner),
                              ModuleMask(modules | product_modules));
  const double kept = training_.fp8_activation_store ? 1 : kWidth;
  act.saved.push_back(
      {.name = "fc1 output", .bytes = Bytes(kept * tokens * fc1_width), .modules = modules});
  if (!(training_.fused_swiglu && model_.gated_linear_unit)) {
    act.saved.push_back({.name = "fc2 input",
                         .bytes = Bytes(input_width_ * tokens * inner),
                         .modules = ModuleMask(modules | product_modules)});
  }
  if (training_.fp8_activation_store) {
    // A kernel of its own each way: BF16 in and FP8 out, and back.
    MemoryBound("fp8 activation store", (kWidth + 1) * tokens * fc1_width, modules);
  }
  linear("fc2", h_, inner);
  HeldForWeight(tokens * inner, input_width_);
}

void LayerBuilder::DenseMlp() {
  Norm("pre-mlp norm", !model_.parallel_residual, false, true, true);
  Gather("mlp gather", h_, kMlp);
  TwoLinears(tokens_, double(model_.ffn_hidden_size) / t_, 1, true, sharded_tokens_ * h_, kMlp, 0);
  Reduce("mlp reduce", kMlp);
  if (model_.post_layer_norms) Norm("post-mlp norm", true, false, false);
  Residual("mlp residual");
}

void LayerBuilder::MoeMlp() {
  const MixtureOfExperts& moe = model_.moe;
  const double x = shape_.expert_tensor;
  const double local_experts = double(moe.num_experts) / shape_.expert;
  // Tokens that this rank routes: its share of the sequence-sharded stream.
  const double own = sharded_tokens_;
  const double sent = own * moe.topk;
  const double routed = sent * x * training_.moe_imbalance;  // rows of the expert GEMMs

  Norm("pre-mlp norm", !model_.parallel_residual, false, true);
  Operator& router = Gemm("router", own, moe.num_experts, h_, kMoe);
  router.low_precision = false;
  router.held_for_weight = Bytes(kWidth * own * h_ + 4 * own * moe.num_experts);
  router.saved.push_back(
      {.name = "router logits", .bytes = Bytes(4 * own * moe.num_experts), .modules = kMoe});
  if (moe.shared_expert_ffn_hidden_size > 0) {
    Gather("shared expert gather", h_, kMoe);
    TwoLinears(tokens_, double(moe.shared_expert_ffn_hidden_size) / t_, 1, true, 0, kMoe, 0);
    Reduce("shared expert reduce", kMoe);
  }
  Add("expert token counts", OperatorKind::kHost, kMoe).waits_for_experts = local_experts;
  MemoryBound("permute", 5 * sent * training_.moe_imbalance * h_, kMoe);
  if (shape_.expert > 1) {
    Operator& dispatch = Add("expert dispatch", OperatorKind::kCollective, kMoe);
    dispatch.group = GroupKind::kExpert;
    dispatch.payload = Bytes(kWidth * sent * training_.moe_imbalance * h_);
    dispatch.forward_collective = dispatch.backward_collective = CollectiveKind::kAllToAll;
  }
  if (x > 1) {
    Operator& gather = Add("expert tensor gather", OperatorKind::kCollective, kMoe);
    gather.group = GroupKind::kExpertTensor;
    gather.payload = Bytes(kWidth * routed * h_);
    gather.forward_collective = CollectiveKind::kAllGather;
    gather.backward_collective = CollectiveKind::kReduceScatter;
  }
  const int first = last() + 1;
  TwoLinears(routed, double(moe.ffn_hidden_size) / x, local_experts, false, routed * h_, kMoe,
             kMoeAct);
  operators_[first].saved.push_back(
      {.name = "permuted tokens", .bytes = Bytes(input_width_ * routed * h_), .modules = kMoe});
  if (x > 1) {
    Operator& scatter = Add("expert tensor scatter", OperatorKind::kCollective, kMoe);
    scatter.group = GroupKind::kExpertTensor;
    scatter.payload = Bytes(kWidth * routed * h_);
    scatter.forward_collective = CollectiveKind::kReduceScatter;
    scatter.backward_collective = CollectiveKind::kAllGather;
  }
  if (shape_.expert > 1) {
    Operator& combine = Add("expert combine", OperatorKind::kCollective, kMoe);
    combine.group = GroupKind::kExpert;
    combine.payload = Bytes(kWidth * sent * training_.moe_imbalance * h_);
    combine.forward_collective = combine.backward_collective = CollectiveKind::kAllToAll;
  }
  MemoryBound("unpermute", 5 * sent * training_.moe_imbalance * h_, kMoe);
  if (model_.post_layer_norms) Norm("post-mlp norm", true, false, false);
  Residual("mlp residual");
}

}  // namespace

LayerShape ShapeOf(const ParallelConfig& p, const TrainingConfig& training) {
  return {.tensor = p.tensor,
          .sequence_parallel = p.sequence_parallel,
          .context = p.context,
          .context_kind = p.context_kind,
          .expert = p.expert,
          .expert_tensor = p.expert_tensor,
          .micro_batch_size = p.micro_batch_size,
          .seq_length = training.seq_length,
          .context_ulysses = p.context_ulysses};
}

ModuleMask MaskOf(const std::vector<RecomputeModule>& modules) {
  ModuleMask mask = 0;
  for (RecomputeModule m : modules) mask |= Mask(m);
  return mask;
}

Flops Operator::forward_flops(MfuConvention convention) const {
  switch (kind) {
    case OperatorKind::kGemm:
    case OperatorKind::kGroupedGemm:
      return Flops(2 * m * n * k * groups);
    case OperatorKind::kAttention:
      return Flops(2 * (qk_head + v_head) *
                   (convention == MfuConvention::kCausal ? scores : scores_full));
    case OperatorKind::kMemoryBound:
    case OperatorKind::kCollective:
    case OperatorKind::kHost:
      return Flops(0);
  }
  return Flops(0);
}

std::vector<Operator> LayerOperators(const ModelConfig& model, LayerKind kind,
                                     const LayerShape& shape, const TrainingConfig& training) {
  LayerBuilder layer(model, shape, training);
  layer.Add("launch gaps", OperatorKind::kHost);
  layer.Attention(kind);
  if (kind.moe) {
    layer.MoeMlp();
  } else {
    layer.DenseMlp();
  }
  return layer.Take();
}

std::vector<Operator> EmbeddingOperators(const ModelConfig& model, const LayerShape& shape,
                                         const TrainingConfig& training) {
  LayerBuilder builder(model, shape, training);
  builder.MemoryBound("embedding", 2 * kWidth * builder.tokens() * double(model.hidden_size));
  builder.Reduce("embedding reduce");
  if (shape.tensor > 1) builder.back().beside_gemm = false;
  if (model.hidden_dropout) {
    const double elements = builder.sharded_tokens() * double(model.hidden_size);
    builder.MemoryBound("embedding dropout", 5 * elements)
        .saved.push_back({.name = "dropout mask", .bytes = Bytes(elements)});
  }
  return builder.Take();
}

std::vector<Operator> HeadOperators(const ModelConfig& model, const LayerShape& shape,
                                    const TrainingConfig& training) {
  LayerBuilder builder(model, shape, training);
  const double h = double(model.hidden_size);
  builder.Norm("final norm", true, false, true);
  builder.Gather("head gather", h);
  const double vocabulary = double(PaddedVocabulary(model.vocab_size, shape.tensor)) / shape.tensor;
  builder.Gemm("output head", builder.tokens(), vocabulary, h).low_precision = false;
  builder.HeldForWeight(builder.sharded_tokens() * h, kWidth);
  builder.RegatherForWgrad("head wgrad gather", h);
  const double logits = builder.tokens() * vocabulary;
  // 12 bytes of HBM traffic a logit and pass.
  Operator& loss = builder.MemoryBound("cross-entropy", 12 * logits);
  loss.backward_as_forward = true;
  loss.saved.push_back({.name = "logits", .bytes = Bytes(KeptBytesOfLogit(training) * logits)});
  if (shape.tensor > 1) {
    // Vocabulary-parallel: max, sum and target logit, fp32, one number a token each.
    Operator& op = builder.Add("cross-entropy reduce", OperatorKind::kCollective);
    op.payload = Bytes(4 * builder.tokens());
    op.repeats = 3;
    op.backward = false;
    op.beside_gemm = false;
  }
  return builder.Take();
}

std::vector<Operator> MtpOperators(const ModelConfig& model, const LayerShape& shape,
                                   const TrainingConfig& training) {
  LayerBuilder builder(model, shape, training);
  const double h = double(model.hidden_size);
  builder.Norm("mtp hidden norm", true, false, true);
  builder.Norm("mtp embedding norm", true, false, true);
  builder.Gather("mtp gather", 2 * h);
  builder.Gemm("mtp projection", builder.tokens(), h / shape.tensor, 2 * h);
  builder.HeldForWeight(builder.sharded_tokens() * 2 * h, kWidth);
  builder.RegatherForWgrad("mtp wgrad gather", 2 * h);
  builder.Gather("mtp output gather", h);
  return builder.Take();
}

std::int64_t PaddedVocabulary(std::int64_t vocab_size, int tensor) {
  const std::int64_t multiple = std::int64_t{128} * tensor;
  return (vocab_size + multiple - 1) / multiple * multiple;
}

Bytes SavedBytes(const std::vector<Operator>& operators, ModuleMask recomputed,
                 bool with_statistics) {
  Bytes sum;
  for (const Operator& op : operators) {
    for (const SavedTensor& s : op.saved) {
      if ((s.modules & recomputed) == 0 && (with_statistics || !s.statistic)) sum += s.bytes;
    }
  }
  return sum;
}

Bytes LayerInputBytes(const std::vector<Operator>& operators) {
  Bytes sum;
  for (const Operator& op : operators) {
    for (const SavedTensor& s : op.saved) {
      if (s.layer_input) sum += s.bytes;
    }
  }
  return sum;
}

Bytes HeldForWeights(const std::vector<Operator>& operators) {
  Bytes sum;
  for (const Operator& op : operators) sum += op.held_for_weight;
  return sum;
}

StepFlops FlopsOfStep(const ModelConfig& model, const TrainingConfig& training,
                      const Recompute& recompute, double full_share) {
  LayerShape whole{.seq_length = training.seq_length};
  TrainingConfig balanced = training;
  balanced.moe_imbalance = 1;
  const double sequences = double(training.global_batch_size);
  const ModuleMask modules = recompute.granularity == RecomputeGranularity::kSelective
                                 ? MaskOf(recompute.modules)
                                 : ModuleMask{0};
  StepFlops flops;
  const auto add_layers = [&](double count, LayerKind kind) {
    for (const Operator& op : LayerOperators(model, kind, whole, balanced)) {
      const Flops forward = count * sequences * op.forward_flops(training.mfu_convention);
      flops.model += 3 * forward;
      double repeated = (op.modules & modules) != 0 ? 1 : 0;
      if (recompute.granularity == RecomputeGranularity::kFull) repeated = full_share;
      flops.hardware += (3 + repeated) * forward;
    }
  };
  for (const LayerRun& run : model.layers) add_layers(run.count, run.kind);
  const double head = 2 * sequences * double(training.seq_length) * double(model.hidden_size) *
                      double(model.vocab_size);
  double heads = 1;
  if (model.mtp_num_layers > 0) {
    add_layers(model.mtp_num_layers, model.layers.back().kind);
    heads += model.mtp_num_layers;
    for (const Operator& op : MtpOperators(model, whole, balanced)) {
      const Flops forward =
          model.mtp_num_layers * sequences * op.forward_flops(training.mfu_convention);
      flops.model += 3 * forward;
      flops.hardware += 3 * forward;
    }
  }
  flops.model += Flops(3 * heads * head);
  flops.hardware += Flops(3 * heads * head);
  return flops;
}

}  // namespace millwright
