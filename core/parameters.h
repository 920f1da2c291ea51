// SPDX-License-Identifier: Apache-2.0
//
// The weights of a model: which tensors, of what shape, and how tensor and expert parallelism
// split them.  One list gives the parameter count and, per rank, the memory.
//
// Source of the splits: Megatron-LM (column-, row- and vocab-parallel layers, grouped experts).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/model.h"

namespace millwright {

enum class WeightSplit {
  kReplicated,        // norms, routers, biases of row-parallel layers: whole on every tensor rank
  kTensor,            // split evenly over tensor ranks
  kQueryGroups,       // split over tensor ranks up to num_query_groups, replicated beyond
  kVocabulary,        // rows split over tensor ranks after padding to a multiple of 128 t
  kExpert,            // num_experts of these: split over expert and expert-tensor ranks
  kExpertReplicated,  // per expert, whole on every expert-tensor rank (bias of fc2)
};

// Names, where the model has them:
//   attention  attention_norm, q, q_bias, kv, kv_bias, q_norm, k_norm, sinks,
//              attention_output, attention_output_bias, post_attention_norm
//   latent     attention_norm, q (or q_down, q_down_bias, q_down_norm, q_up), kv_down,
//              kv_down_bias, kv_down_norm, kv_up, attention_output, attention_output_bias
//   MLP        mlp_norm, fc1, fc1_bias, fc2, fc2_bias, post_mlp_norm
//   MoE        mlp_norm, router, router_bias, router_correction_bias, expert_fc1,
//              expert_fc1_bias, expert_fc2, expert_fc2_bias, shared_fc1, shared_fc1_bias,
//              shared_fc2, shared_fc2_bias, shared_gate, post_mlp_norm
//   ends       token_embedding, position_embedding, final_norm, output_head
//   MTP        mtp_embedding_norm, mtp_hidden_norm, mtp_projection, mtp_final_norm
// A matrix has output x input features; fc1 of a gated unit holds gate and up together.
struct Weight {
  std::string_view name;
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  std::int64_t count = 1;  // num_experts for the expert splits
  WeightSplit split = WeightSplit::kTensor;
  std::int64_t elements() const { return rows * cols * count; }
};

std::vector<Weight> LayerWeights(const ModelConfig& model, LayerKind kind);
std::vector<Weight> EmbeddingWeights(const ModelConfig& model);  // token (and position) tables
std::vector<Weight> HeadWeights(const ModelConfig& model);  // final norm, output head unless tied
std::vector<Weight> MtpWeights(const ModelConfig& model);   // one MTP module beyond its layer

struct ParameterCount {
  std::int64_t total = 0;   // MTP modules left out, as model cards do
  std::int64_t active = 0;  // used by one token: topk of the experts; embedding and head in both
};
ParameterCount CountParameters(const ModelConfig& model);

}  // namespace millwright
