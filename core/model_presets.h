// SPDX-License-Identifier: Apache-2.0
//
// Models by name, from a file, or from a few numbers.
//
// A preset is the part of the published config.json that says anything about sizes, read by the
// same table as a file of the user's (core/hf_config), or a GPT shape from a paper; each has its
// source beside it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"

namespace millwright {

struct ModelPreset {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::string_view source;
};
std::vector<ModelPreset> ModelPresets();

// By name or alias, ignoring case, '-', '_', '.' and spaces.  ConfigError naming the nearest.
ModelConfig PresetModel(std::string_view name);

// A preset's name; or a path to a Hugging Face config.json, to a folder that holds one, or to a
// model written by Fields().  ConfigError with every mistake, or naming the nearest presets.
ModelConfig LoadModel(const std::string& name_or_path);

// A GPT-3-style model as Megatron-LM builds it by default: learned positions, LayerNorm, GELU,
// biases, dropout, the head tied to the embedding.  Sizes left 0 follow from the others.
struct GptShapeOptions {
  std::string name = {};  // empty: made from the number of parameters, "gpt-175b"
  int num_layers = 0;
  std::int64_t hidden_size = 0;
  int num_attention_heads = 0;
  int num_query_groups = 0;          // 0: as many as heads
  std::int64_t kv_channels = 0;      // 0: hidden / heads
  std::int64_t ffn_hidden_size = 0;  // 0: 4 hidden
  std::int64_t vocab_size = 51200;   // GPT-2's 50,257 padded (arXiv:2104.04473, section 5)
  std::int64_t max_position_embeddings = 2048;  // arXiv:2005.14165, section 2.1
  bool swiglu = false;                          // SiLU-gated MLP
  bool rms_norm = false;
  bool rope = false;
  bool bias = true;     // of all projections
  bool dropout = true;  // on attention weights and on what is added
  bool tied_embeddings = true;
};
// ConfigError with every inconsistency.
ModelConfig GptShape(const GptShapeOptions& options);

}  // namespace millwright
