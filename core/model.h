// SPDX-License-Identifier: Apache-2.0
//
// What a decoder-only transformer is made of, in Megatron-LM's names.
//
// One struct serves dense, grouped-query, latent (MLA) and mixture-of-experts models.
// Sizes are counts of elements.  Read from a Hugging Face config.json by core/hf_config,
// from a preset by core/model_presets, from a job file by Fields().
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_io.h"

namespace millwright {

enum class Normalization { kRmsNorm, kLayerNorm };
enum class Activation { kSilu, kGelu, kRelu, kSquaredRelu };
enum class PositionEmbedding { kRope, kLearned, kNone };

std::span<const EnumName<Normalization>> NormalizationNames();
std::span<const EnumName<Activation>> ActivationNames();
std::span<const EnumName<PositionEmbedding>> PositionEmbeddingNames();

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).
struct LatentAttention {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  bool operator==(const LatentAttention&) const = default;
};

struct MixtureOfExperts {
  int num_experts = 0;
  int topk = 0;
  std::int64_t ffn_hidden_size = 0;                // of one routed expert
  std::int64_t shared_expert_ffn_hidden_size = 0;  // of all shared experts together; 0: none
  bool shared_expert_gate = false;                 // a hidden_size x 1 gate (Qwen2-MoE)
  bool router_bias = false;                        // a learned bias on the logits (gpt-oss)
  bool router_correction_bias = false;             // DeepSeek-V3's load-balancing bias
  bool normalize_topk = true;                      // chosen experts' weights add up to 1
  int num_groups = 0;                              // node-limited routing: expert groups, 0: none
  int topk_groups = 0;                             //   and groups a token may be sent to
  bool operator==(const MixtureOfExperts&) const = default;
};

// Layers that cost the same have the same kind.
struct LayerKind {
  bool moe = false;
  std::int64_t sliding_window = 0;  // keys a query sees; 0: the whole (causal) sequence
  auto operator<=>(const LayerKind&) const = default;
};

struct LayerRun {
  int count = 0;
  LayerKind kind{};
  bool operator==(const LayerRun&) const = default;
};

struct ModelConfig {
  std::string name{};
  std::string architecture{};  // Hugging Face model_type, or "gpt" for a shape given by flags
  int num_layers = 0;
  std::int64_t hidden_size = 0;
  int num_attention_heads = 0;
  int num_query_groups = 0;          // KV heads
  std::int64_t kv_channels = 0;      // head size
  std::int64_t ffn_hidden_size = 0;  // of a dense layer
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;

  bool gated_linear_unit = true;
  Activation activation = Activation::kSilu;
  Normalization normalization = Normalization::kRmsNorm;
  bool post_layer_norms = false;  // two more norms, on the outputs (Gemma 2 and 3)
  bool qk_layernorm = false;      // on each head's query and key (Qwen3, Gemma 3)
  PositionEmbedding position_embedding = PositionEmbedding::kRope;
  bool parallel_residual = false;  // attention and MLP read the same input (GPT-NeoX)
  bool add_qkv_bias = false;
  bool add_attention_output_bias = false;
  bool add_mlp_bias = false;     // of MLP and experts
  bool attention_sinks = false;  // a learned logit a head (gpt-oss)
  bool tied_embeddings = false;  // output head shares the embedding
  bool attention_dropout = false;
  bool hidden_dropout = false;

  bool latent = false;
  LatentAttention mla{};   // meaningful where latent
  MixtureOfExperts moe{};  // meaningful where a layer is MoE
  int mtp_num_layers = 0;  // multi-token-prediction modules after the last layer

  std::vector<LayerRun> layers{};  // the kinds in order; counts add up to num_layers

  bool operator==(const ModelConfig&) const = default;

  bool has_moe() const;
  LayerKind layer(int index) const;
  std::vector<LayerKind> distinct_kinds() const;  // in order of first appearance
};

// Sets what follows from the rest where it is 0 or empty: kv_channels = hidden / heads,
// num_query_groups = heads, ffn_hidden_size = 4 hidden, layers = all alike (MoE where the model
// has experts).
void FillDefaults(ModelConfig& model);

// Each inconsistency of the whole (heads not a multiple of query groups, layer counts that do
// not add up, top-k above the experts, ...) as the field and what is wrong; empty where sound.
// Expects FillDefaults.  A sound model has fewer than 2^53 parameters, so nothing that counts
// its elements or bytes overflows or rounds.
struct Inconsistency {
  std::string_view field;  // as Fields() names it
  std::string what;
};
std::vector<Inconsistency> Inconsistencies(const ModelConfig& model);

// Reading also fills in the defaults and reports each inconsistency.
void Fields(ConfigIo& io, ModelConfig& model);

// The most that one size of a model may be: far above any model, far below overflow.
inline constexpr int kMostLayers = 10'000;
inline constexpr std::int64_t kMostHidden = std::int64_t{1} << 20;
inline constexpr int kMostHeads = 1 << 16;
inline constexpr std::int64_t kMostHeadSize = std::int64_t{1} << 16;
inline constexpr std::int64_t kMostFfn = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;
inline constexpr int kMostExperts = 1 << 16;

}  // namespace millwright
