// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/parameters.h"

namespace millwright {
namespace {

constexpr EnumName<Normalization> kNormalizationNames[] = {
    {Normalization::kRmsNorm, "rms_norm"},
    {Normalization::kLayerNorm, "layer_norm"},
};
constexpr EnumName<Activation> kActivationNames[] = {
    {Activation::kSilu, "silu"},
    {Activation::kGelu, "gelu"},
    {Activation::kRelu, "relu"},
    {Activation::kSquaredRelu, "squared_relu"},
};
constexpr EnumName<PositionEmbedding> kPositionEmbeddingNames[] = {
    {PositionEmbedding::kRope, "rope"},
    {PositionEmbedding::kLearned, "learned"},
    {PositionEmbedding::kNone, "none"},
};

// In double, where nothing overflows.
double Elements(const std::vector<Weight>& weights) {
  double sum = 0;
  for (const Weight& w : weights)
    sum += static_cast<double>(w.rows) * static_cast<double>(w.cols) * static_cast<double>(w.count);
  return sum;
}

double ApproximateParameters(const ModelConfig& model) {
  double sum = Elements(EmbeddingWeights(model)) + Elements(HeadWeights(model));
  for (const LayerRun& run : model.layers)
    sum += run.count * Elements(LayerWeights(model, run.kind));
  return sum;
}

void LatentFields(ConfigIo& io, LatentAttention& mla) {
  io.Int("q_lora_rank", mla.q_lora_rank, {0, kMostHidden},
         "width that queries are compressed to, in elements; 0: projected directly");
  io.Int("kv_lora_rank", mla.kv_lora_rank, {1, kMostHidden},
         "width that keys and values are compressed to, in elements", Presence::kRequired);
  io.Int("qk_nope_head_dim", mla.qk_nope_head_dim, {1, kMostHeadSize},
         "elements of a head's query and key without position", Presence::kRequired);
  io.Int("qk_rope_head_dim", mla.qk_rope_head_dim, {1, kMostHeadSize},
         "elements of a head's query and key with rotary position; the key part is shared by all "
         "heads",
         Presence::kRequired);
  io.Int("v_head_dim", mla.v_head_dim, {1, kMostHeadSize}, "elements of a head's value",
         Presence::kRequired);
}

void ExpertFields(ConfigIo& io, MixtureOfExperts& moe) {
  io.Int("num_experts", moe.num_experts, {1, kMostExperts}, "routed experts of a MoE layer",
         Presence::kRequired);
  io.Int("topk", moe.topk, {1, kMostExperts}, "routed experts that a token is sent to",
         Presence::kRequired);
  io.Int("ffn_hidden_size", moe.ffn_hidden_size, {1, kMostFfn},
         "inner width of one routed expert, in elements", Presence::kRequired);
  io.Int("shared_expert_ffn_hidden_size", moe.shared_expert_ffn_hidden_size, {0, kMostFfn},
         "inner width of all shared experts together, in elements; 0: none");
  io.Bool("shared_expert_gate", moe.shared_expert_gate,
          "a learned gate scales the shared experts' output (Qwen2-MoE)");
  io.Bool("router_bias", moe.router_bias, "the router's logits have a learned bias (gpt-oss)");
  io.Bool("router_correction_bias", moe.router_correction_bias,
          "the router has a load-balancing bias (DeepSeek-V3)");
  io.Bool("normalize_topk", moe.normalize_topk,
          "the chosen experts' weights add up to 1; else they are the softmax over all experts");
  io.Int("num_groups", moe.num_groups, {0, kMostExperts},
         "groups of experts for node-limited routing; 0: none");
  io.Int("topk_groups", moe.topk_groups, {0, kMostExperts},
         "groups of experts that a token may be sent to; 0: all");
}

}  // namespace

std::span<const EnumName<Normalization>> NormalizationNames() { return kNormalizationNames; }
std::span<const EnumName<Activation>> ActivationNames() { return kActivationNames; }
std::span<const EnumName<PositionEmbedding>> PositionEmbeddingNames() {
  return kPositionEmbeddingNames;
}

bool ModelConfig::has_moe() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerRun& r) { return r.kind.moe; });
}

LayerKind ModelConfig::layer(int index) const {
  for (const LayerRun& run : layers) {
    if (index < run.count) return run.kind;
    index -= run.count;
  }
  MILLWRIGHT_CHECK(false && "a layer of the model");
  return {};
}

std::vector<LayerKind> ModelConfig::distinct_kinds() const {
  std::vector<LayerKind> kinds;
  for (const LayerRun& run : layers)
    if (std::find(kinds.begin(), kinds.end(), run.kind) == kinds.end()) kinds.push_back(run.kind);
  return kinds;
}

void FillDefaults(ModelConfig& model) {
  const int heads = model.num_attention_heads;
  if (model.kv_channels == 0 && model.latent) model.kv_channels = model.mla.v_head_dim;
  if (model.kv_channels == 0 && heads > 0) model.kv_channels = model.hidden_size / heads;
  if (model.num_query_groups == 0) model.num_query_groups = heads;
  if (model.ffn_hidden_size == 0) model.ffn_hidden_size = 4 * model.hidden_size;
  if (model.layers.empty() && model.num_layers > 0) {
    model.layers = {{model.num_layers, {.moe = model.moe.num_experts > 0, .sliding_window = 0}}};
  }
}

std::vector<Inconsistency> Inconsistencies(const ModelConfig& m) {
  std::vector<Inconsistency> found;
  const auto add = [&](std::string_view field, std::string what) {
    found.push_back({field, std::move(what)});
  };
  const auto at_most = [&](std::string_view field, std::int64_t value, std::int64_t least,
                           std::int64_t most) {
    if (value < least || value > most)
      add(field, fmt::format("expected an integer from {} to {}, got {}", least, most, value));
  };
  at_most("num_layers", m.num_layers, 1, kMostLayers);
  at_most("hidden_size", m.hidden_size, 1, kMostHidden);
  at_most("num_attention_heads", m.num_attention_heads, 1, kMostHeads);
  at_most("num_query_groups", m.num_query_groups, 1, kMostHeads);
  at_most("kv_channels", m.kv_channels, 1, kMostHeadSize);
  at_most("ffn_hidden_size", m.ffn_hidden_size, 1, kMostFfn);
  at_most("vocab_size", m.vocab_size, 1, kMostVocabulary);
  at_most("max_position_embeddings", m.max_position_embeddings, 0, kMostPositions);
  at_most("mtp_num_layers", m.mtp_num_layers, 0, kMostLayers);
  if (m.latent) {
    at_most("mla", m.mla.q_lora_rank, 0, kMostHidden);
    at_most("mla", m.mla.kv_lora_rank, 1, kMostHidden);
    at_most("mla", m.mla.qk_nope_head_dim, 1, kMostHeadSize);
    at_most("mla", m.mla.qk_rope_head_dim, 1, kMostHeadSize);
    at_most("mla", m.mla.v_head_dim, 1, kMostHeadSize);
  }
  if (m.moe != MixtureOfExperts{}) {
    at_most("moe", m.moe.num_experts, 1, kMostExperts);
    at_most("moe", m.moe.topk, 1, kMostExperts);
    at_most("moe", m.moe.ffn_hidden_size, 1, kMostFfn);
    at_most("moe", m.moe.shared_expert_ffn_hidden_size, 0, kMostFfn);
    at_most("moe", m.moe.num_groups, 0, kMostExperts);
    at_most("moe", m.moe.topk_groups, 0, kMostExperts);
  }
  if (!found.empty()) return found;

  if (m.num_attention_heads % m.num_query_groups != 0) {
    add("num_attention_heads",
        fmt::format("{} attention heads cannot be shared out evenly among {} query groups (KV "
                    "heads)",
                    m.num_attention_heads, m.num_query_groups));
  }
  if (m.latent && m.num_query_groups != m.num_attention_heads) {
    add("num_query_groups",
        fmt::format("latent attention has one query group a head: expected {}, got {}",
                    m.num_attention_heads, m.num_query_groups));
  }
  if (m.position_embedding == PositionEmbedding::kLearned && m.max_position_embeddings == 0)
    add("max_position_embeddings", "learned positions need at least 1, got 0");

  std::int64_t listed = 0;
  bool sound = true;
  for (const LayerRun& run : m.layers) {
    listed += run.count;
    if (run.count < 1 || run.kind.sliding_window < 0) sound = false;
  }
  if (!sound) add("layers", "each run needs a count of at least 1 and a window of at least 0");
  if (sound && listed != m.num_layers)
    add("layers", fmt::format("the runs hold {} layers, the model {}", listed, m.num_layers));
  const bool has_experts = m.moe.num_experts > 0;
  if (m.has_moe() && !has_experts) add("layers", "a layer is MoE but the model has no experts");
  if (!m.has_moe() && has_experts) add("moe", "the model has experts but no layer is MoE");
  if (m.moe.topk > m.moe.num_experts) {
    add("moe",
        fmt::format("a token cannot be sent to {} of {} experts", m.moe.topk, m.moe.num_experts));
  }
  if (m.moe.num_groups > 0 && m.moe.num_experts % m.moe.num_groups != 0) {
    add("moe", fmt::format("{} experts cannot be put into {} equal groups", m.moe.num_experts,
                           m.moe.num_groups));
  }
  if (m.moe.topk_groups > m.moe.num_groups) {
    add("moe", fmt::format("a token cannot be sent to {} of {} groups", m.moe.topk_groups,
                           m.moe.num_groups));
  }
  if (!found.empty()) return found;

  constexpr double kMostParameters = 9007199254740992;  // 2^53
  if (const double parameters = ApproximateParameters(m); !(parameters < kMostParameters))
    add("num_layers", fmt::format("the model would have {:.3g} parameters, past 2^53", parameters));
  return found;
}

void Fields(ConfigIo& io, ModelConfig& m) {
  io.Text("name", m.name, "what tables and messages call the model");
  io.Text("architecture", m.architecture,
          "Hugging Face model_type, or \"gpt\" for a shape given by flags");
  io.Int("num_layers", m.num_layers, {1, kMostLayers}, "transformer layers", Presence::kRequired);
  io.Int("hidden_size", m.hidden_size, {1, kMostHidden},
         "width of the residual stream, in elements", Presence::kRequired);
  io.Int("num_attention_heads", m.num_attention_heads, {1, kMostHeads}, "query heads of a layer",
         Presence::kRequired);
  io.Int("num_query_groups", m.num_query_groups, {0, kMostHeads},
         "key and value heads of a layer; 0: as many as query heads");
  io.Int("kv_channels", m.kv_channels, {0, kMostHeadSize},
         "elements of one head; 0: hidden_size / num_attention_heads");
  io.Int("ffn_hidden_size", m.ffn_hidden_size, {0, kMostFfn},
         "inner width of a dense layer's MLP, in elements; 0: 4 hidden_size");
  io.Int("vocab_size", m.vocab_size, {1, kMostVocabulary}, "tokens of the vocabulary",
         Presence::kRequired);
  io.Int("max_position_embeddings", m.max_position_embeddings, {0, kMostPositions},
         "longest sequence, in tokens; with learned positions, rows of their table");
  io.Bool("gated_linear_unit", m.gated_linear_unit,
          "the MLP multiplies a gate and an up projection (SwiGLU, GeGLU)");
  io.Enum("activation", m.activation, ActivationNames(), "the MLP's activation function");
  io.Enum("normalization", m.normalization, NormalizationNames(), "the layers' normalization");
  io.Bool("post_layer_norms", m.post_layer_norms,
          "two more norms a layer, on the outputs of attention and MLP (Gemma 2 and 3)");
  io.Bool("qk_layernorm", m.qk_layernorm, "a norm on each head's query and key (Qwen3, Gemma 3)");
  io.Enum("position_embedding", m.position_embedding, PositionEmbeddingNames(),
          "how positions enter");
  io.Bool("parallel_residual", m.parallel_residual,
          "attention and MLP read the same input (GPT-NeoX)");
  io.Bool("add_qkv_bias", m.add_qkv_bias, "the query, key and value projections have a bias");
  io.Bool("add_attention_output_bias", m.add_attention_output_bias,
          "the attention's output projection has a bias");
  io.Bool("add_mlp_bias", m.add_mlp_bias, "both projections of MLP and experts have a bias");
  io.Bool("attention_sinks", m.attention_sinks, "a learned attention logit a head (gpt-oss)");
  io.Bool("tied_embeddings", m.tied_embeddings, "the output head is the token embedding");
  io.Bool("attention_dropout", m.attention_dropout, "dropout on the attention weights");
  io.Bool("hidden_dropout", m.hidden_dropout, "dropout on what attention and MLP add");
  io.OptionalObject("mla", m.latent,
                    "multi-head latent attention (arXiv:2405.04434, section 2.1); absent: plain "
                    "attention",
                    [&] { LatentFields(io, m.mla); });
  bool has_experts = m.moe != MixtureOfExperts{};
  io.OptionalObject("moe", has_experts, "the experts of MoE layers; absent: a dense model",
                    [&] { ExpertFields(io, m.moe); });
  io.Int("mtp_num_layers", m.mtp_num_layers, {0, kMostLayers},
         "multi-token-prediction modules after the last layer (DeepSeek-V3)");
  io.Array<LayerRun>(
      "layers", m.layers,
      "runs of equal layers, in order; empty: all alike, MoE where the model has experts",
      [&](LayerRun& run) {
        io.Int("count", run.count, {1, kMostLayers}, "layers in this run", Presence::kRequired);
        io.Bool("moe", run.kind.moe, "a MoE layer, not a dense one");
        io.Int("sliding_window", run.kind.sliding_window, {0, kMostPositions},
               "keys that a query sees; 0: the whole causal sequence");
      });
  if (!io.reading()) return;
  if (m.kv_channels == 0 && !m.latent && m.num_attention_heads > 0 &&
      m.hidden_size % m.num_attention_heads != 0) {
    io.Problem("kv_channels", fmt::format("hidden_size {} is not a multiple of {} attention heads, "
                                          "so the head size must be given",
                                          m.hidden_size, m.num_attention_heads));
  }
  FillDefaults(m);
  for (const Inconsistency& found : Inconsistencies(m))
    io.Problem(std::string(found.field).c_str(), found.what);
}

}  // namespace millwright
