// SPDX-License-Identifier: Apache-2.0
#include "core/parameters.h"

namespace millwright {
namespace {

std::int64_t NormVectors(const ModelConfig& m) {
  return m.normalization == Normalization::kLayerNorm ? 2 : 1;  // gain and bias, or gain alone
}

Weight Norm(const ModelConfig& m, std::string_view name) {
  return {name, m.hidden_size, NormVectors(m), 1, WeightSplit::kReplicated};
}

// The projections of an MLP, each with its bias where the model has them.
struct MlpNames {
  std::string_view fc1, fc1_bias, fc2, fc2_bias;
};

void AddMlp(const ModelConfig& m, std::int64_t ffn, std::int64_t count, WeightSplit split,
            WeightSplit output_bias_split, const MlpNames& names, std::vector<Weight>& out) {
  const std::int64_t inner = (m.gated_linear_unit ? 2 : 1) * ffn;
  out.push_back({names.fc1, inner, m.hidden_size, count, split});
  if (m.add_mlp_bias) out.push_back({names.fc1_bias, inner, 1, count, split});
  out.push_back({names.fc2, m.hidden_size, ffn, count, split});
  if (m.add_mlp_bias) out.push_back({names.fc2_bias, m.hidden_size, 1, count, output_bias_split});
}

void AddAttention(const ModelConfig& m, std::vector<Weight>& out) {
  const std::int64_t h = m.hidden_size;
  const std::int64_t query = m.num_attention_heads * m.kv_channels;
  const std::int64_t key_value = m.num_query_groups * m.kv_channels * 2;
  out.push_back({"q", query, h, 1, WeightSplit::kTensor});
  if (m.add_qkv_bias) out.push_back({"q_bias", query, 1, 1, WeightSplit::kTensor});
  out.push_back({"kv", key_value, h, 1, WeightSplit::kQueryGroups});
  if (m.add_qkv_bias) out.push_back({"kv_bias", key_value, 1, 1, WeightSplit::kQueryGroups});
  if (m.qk_layernorm) {
    const std::int64_t vectors = NormVectors(m);
    out.push_back({"q_norm", m.kv_channels, vectors, 1, WeightSplit::kReplicated});
    out.push_back({"k_norm", m.kv_channels, vectors, 1, WeightSplit::kReplicated});
  }
  if (m.attention_sinks)
    out.push_back({"sinks", m.num_attention_heads, 1, 1, WeightSplit::kTensor});
  out.push_back({"attention_output", h, query, 1, WeightSplit::kTensor});
}

// The compressed query, key and value are whole on every tensor rank; the heads made from them
// are split (Megatron-LM, multi_latent_attention.py).
void AddLatentAttention(const ModelConfig& m, std::vector<Weight>& out) {
  const LatentAttention& a = m.mla;
  const std::int64_t h = m.hidden_size;
  const std::int64_t heads = m.num_attention_heads;
  const std::int64_t query = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim);
  if (a.q_lora_rank == 0) {
    out.push_back({"q", query, h, 1, WeightSplit::kTensor});
  } else {
    out.push_back({"q_down", a.q_lora_rank, h, 1, WeightSplit::kReplicated});
    if (m.add_qkv_bias)
      out.push_back({"q_down_bias", a.q_lora_rank, 1, 1, WeightSplit::kReplicated});
    out.push_back({"q_down_norm", a.q_lora_rank, NormVectors(m), 1, WeightSplit::kReplicated});
    out.push_back({"q_up", query, a.q_lora_rank, 1, WeightSplit::kTensor});
  }
  const std::int64_t compressed = a.kv_lora_rank + a.qk_rope_head_dim;
  out.push_back({"kv_down", compressed, h, 1, WeightSplit::kReplicated});
  if (m.add_qkv_bias) out.push_back({"kv_down_bias", compressed, 1, 1, WeightSplit::kReplicated});
  out.push_back({"kv_down_norm", a.kv_lora_rank, NormVectors(m), 1, WeightSplit::kReplicated});
  out.push_back({"kv_up", heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank, 1,
                 WeightSplit::kTensor});
  out.push_back({"attention_output", h, heads * a.v_head_dim, 1, WeightSplit::kTensor});
}

void AddExperts(const ModelConfig& m, std::vector<Weight>& out) {
  const MixtureOfExperts& moe = m.moe;
  const std::int64_t h = m.hidden_size;
  out.push_back({"router", moe.num_experts, h, 1, WeightSplit::kReplicated});
  if (moe.router_bias)
    out.push_back({"router_bias", moe.num_experts, 1, 1, WeightSplit::kReplicated});
  if (moe.router_correction_bias) {
    out.push_back({"router_correction_bias", moe.num_experts, 1, 1, WeightSplit::kReplicated});
  }
  AddMlp(m, moe.ffn_hidden_size, moe.num_experts, WeightSplit::kExpert,
         WeightSplit::kExpertReplicated,
         {"expert_fc1", "expert_fc1_bias", "expert_fc2", "expert_fc2_bias"}, out);
  if (moe.shared_expert_ffn_hidden_size > 0) {
    AddMlp(m, moe.shared_expert_ffn_hidden_size, 1, WeightSplit::kTensor, WeightSplit::kReplicated,
           {"shared_fc1", "shared_fc1_bias", "shared_fc2", "shared_fc2_bias"}, out);
    if (moe.shared_expert_gate) out.push_back({"shared_gate", 1, h, 1, WeightSplit::kReplicated});
  }
}

}  // namespace

std::vector<Weight> LayerWeights(const ModelConfig& m, LayerKind kind) {
  std::vector<Weight> out;
  out.push_back(Norm(m, "attention_norm"));
  if (m.latent) {
    AddLatentAttention(m, out);
  } else {
    AddAttention(m, out);
  }
  if (m.add_attention_output_bias)
    out.push_back({"attention_output_bias", m.hidden_size, 1, 1, WeightSplit::kReplicated});
  if (m.post_layer_norms) out.push_back(Norm(m, "post_attention_norm"));
  out.push_back(Norm(m, "mlp_norm"));
  if (kind.moe) {
    AddExperts(m, out);
  } else {
    AddMlp(m, m.ffn_hidden_size, 1, WeightSplit::kTensor, WeightSplit::kReplicated,
           {"fc1", "fc1_bias", "fc2", "fc2_bias"}, out);
  }
  if (m.post_layer_norms) out.push_back(Norm(m, "post_mlp_norm"));
  return out;
}

std::vector<Weight> EmbeddingWeights(const ModelConfig& m) {
  std::vector<Weight> out{
      {"token_embedding", m.vocab_size, m.hidden_size, 1, WeightSplit::kVocabulary}};
  if (m.position_embedding == PositionEmbedding::kLearned) {
    out.push_back({"position_embedding", m.max_position_embeddings, m.hidden_size, 1,
                   WeightSplit::kReplicated});
  }
  return out;
}

std::vector<Weight> HeadWeights(const ModelConfig& m) {
  std::vector<Weight> out{Norm(m, "final_norm")};
  if (!m.tied_embeddings) {
    out.push_back({"output_head", m.vocab_size, m.hidden_size, 1, WeightSplit::kVocabulary});
  }
  return out;
}

// DeepSeek-V3 (arXiv:2412.19437, section 2.2): two norms, a 2h to h projection and a final norm;
// embedding and head are the model's own.
std::vector<Weight> MtpWeights(const ModelConfig& m) {
  if (m.mtp_num_layers == 0) return {};
  return {
      Norm(m, "mtp_embedding_norm"),
      Norm(m, "mtp_hidden_norm"),
      {"mtp_projection", m.hidden_size, 2 * m.hidden_size, 1, WeightSplit::kTensor},
      Norm(m, "mtp_final_norm"),
  };
}

ParameterCount CountParameters(const ModelConfig& m) {
  ParameterCount count;
  const auto add = [&](const std::vector<Weight>& weights, std::int64_t times) {
    for (const Weight& w : weights) {
      const bool expert =
          w.split == WeightSplit::kExpert || w.split == WeightSplit::kExpertReplicated;
      count.total += times * w.elements();
      count.active += times * w.rows * w.cols * (expert ? m.moe.topk : w.count);
    }
  };
  add(EmbeddingWeights(m), 1);
  for (const LayerRun& run : m.layers) add(LayerWeights(m, run.kind), run.count);
  add(HeadWeights(m), 1);
  return count;
}

}  // namespace millwright
