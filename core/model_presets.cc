// SPDX-License-Identifier: Apache-2.0
#include "core/model_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>

#include "core/check.h"
#include "core/file_kind.h"
#include "core/hf_config.h"
#include "core/mistakes.h"
#include "core/parameters.h"

namespace millwright {
namespace {

constexpr std::size_t kMostAliases = 3;

struct HfPreset {
  std::string_view name;
  std::string_view aliases[kMostAliases];
  std::string_view source;
  std::string_view json;
};

// Keys and values as in the published file; those that mean nothing here are left out.
constexpr HfPreset kHfPresets[] = {
    {"llama-2-7b",
     {"Llama-2-7b-hf"},
     "config.json of meta-llama/Llama-2-7b-hf; arXiv:2307.09288",
     R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
         "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": false})"},
    {"llama-2-13b",
     {"Llama-2-13b-hf"},
     "config.json of meta-llama/Llama-2-13b-hf; arXiv:2307.09288",
     R"({"model_type": "llama", "num_hidden_layers": 40, "hidden_size": 5120,
         "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13824,
         "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": false})"},
    {"llama-2-70b",
     {"Llama-2-70b-hf"},
     "config.json of meta-llama/Llama-2-70b-hf; arXiv:2307.09288",
     R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": false})"},
    {"llama-3-8b",
     {"Meta-Llama-3-8B"},
     "config.json of meta-llama/Meta-Llama-3-8B; arXiv:2407.21783",
     R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false})"},
    {"llama-3-70b",
     {"Meta-Llama-3-70B"},
     "config.json of meta-llama/Meta-Llama-3-70B; arXiv:2407.21783",
     R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false})"},
    {"llama-3.1-8b",
     {"Meta-Llama-3.1-8B"},
     "config.json of meta-llama/Llama-3.1-8B; arXiv:2407.21783, table 3",
     R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": false})"},
    {"llama-3.1-70b",
     {"Meta-Llama-3.1-70B", "llama-3.3-70b"},
     "config.json of meta-llama/Llama-3.1-70B; arXiv:2407.21783, table 3",
     R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": false})"},
    {"llama-3.1-405b",
     {"Meta-Llama-3.1-405B", "llama-3-405b"},
     "config.json of meta-llama/Llama-3.1-405B; arXiv:2407.21783, table 3",
     R"({"model_type": "llama", "num_hidden_layers": 126, "hidden_size": 16384,
         "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
         "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": false})"},
    {"llama-3.2-1b",
     {},
     "config.json of meta-llama/Llama-3.2-1B",
     R"({"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
         "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
         "tie_word_embeddings": true})"},
    {"llama-3.2-3b",
     {},
     "config.json of meta-llama/Llama-3.2-3B",
     R"({"model_type": "llama", "num_hidden_layers": 28, "hidden_size": 3072,
         "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
         "tie_word_embeddings": true})"},
    {"qwen2.5-7b",
     {},
     "config.json of Qwen/Qwen2.5-7B; arXiv:2412.15115",
     R"({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
         "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
         "vocab_size": 152064, "max_position_embeddings": 131072, "use_sliding_window": false,
         "tie_word_embeddings": false})"},
    {"qwen2.5-32b",
     {},
     "config.json of Qwen/Qwen2.5-32B; arXiv:2412.15115",
     R"({"model_type": "qwen2", "num_hidden_layers": 64, "hidden_size": 5120,
         "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648,
         "vocab_size": 152064, "max_position_embeddings": 131072, "use_sliding_window": false,
         "tie_word_embeddings": false})"},
    {"qwen2.5-72b",
     {},
     "config.json of Qwen/Qwen2.5-72B; arXiv:2412.15115",
     R"({"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 29568,
         "vocab_size": 152064, "max_position_embeddings": 131072, "use_sliding_window": false,
         "tie_word_embeddings": false})"},
    {"qwen3-0.6b",
     {},
     "config.json of Qwen/Qwen3-0.6B; arXiv:2505.09388",
     R"({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 3072, "vocab_size": 151936, "max_position_embeddings": 40960,
         "use_sliding_window": false, "tie_word_embeddings": true})"},
    {"qwen3-8b",
     {},
     "config.json of Qwen/Qwen3-8B; arXiv:2505.09388",
     R"({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
         "use_sliding_window": false, "tie_word_embeddings": false})"},
    {"qwen3-32b",
     {},
     "config.json of Qwen/Qwen3-32B; arXiv:2505.09388",
     R"({"model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 40960,
         "use_sliding_window": false, "tie_word_embeddings": false})"},
    {"qwen3-30b-a3b",
     {},
     "config.json of Qwen/Qwen3-30B-A3B; arXiv:2505.09388",
     R"({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
         "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "vocab_size": 151936, "max_position_embeddings": 40960, "use_sliding_window": false,
         "tie_word_embeddings": false})"},
    {"qwen3-235b-a22b",
     {},
     "config.json of Qwen/Qwen3-235B-A22B; arXiv:2505.09388",
     R"({"model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096,
         "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
         "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128,
         "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "vocab_size": 151936, "max_position_embeddings": 40960, "use_sliding_window": false,
         "tie_word_embeddings": false})"},
    {"mistral-7b",
     {"Mistral-7B-v0.1"},
     "config.json of mistralai/Mistral-7B-v0.1; arXiv:2310.06825",
     R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096,
         "tie_word_embeddings": false})"},
    {"mixtral-8x7b",
     {"Mixtral-8x7B-v0.1"},
     "config.json of mistralai/Mixtral-8x7B-v0.1; arXiv:2401.04088, table 1",
     R"({"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "max_position_embeddings": 32768, "sliding_window": null,
         "tie_word_embeddings": false})"},
    {"mixtral-8x22b",
     {"Mixtral-8x22B-v0.1"},
     "config.json of mistralai/Mixtral-8x22B-v0.1",
     R"({"model_type": "mixtral", "num_hidden_layers": 56, "hidden_size": 6144,
         "num_attention_heads": 48, "num_key_value_heads": 8, "intermediate_size": 16384,
         "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "max_position_embeddings": 65536, "sliding_window": null,
         "tie_word_embeddings": false})"},
    {"deepseek-v2",
     {},
     "config.json of deepseek-ai/DeepSeek-V2; arXiv:2405.04434, section 3.1.2",
     R"({"model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120,
         "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 12288,
         "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 8,
         "topk_group": 3, "topk_method": "group_limited_greedy", "q_lora_rank": 1536,
         "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "vocab_size": 102400, "max_position_embeddings": 163840, "tie_word_embeddings": false})"},
    {"deepseek-v2-lite",
     {},
     "config.json of deepseek-ai/DeepSeek-V2-Lite; arXiv:2405.04434, app. B",
     R"({"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1,
         "topk_group": 1, "topk_method": "greedy", "q_lora_rank": null, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "vocab_size": 102400, "max_position_embeddings": 163840, "tie_word_embeddings": false})"},
    {"deepseek-v3",
     {"deepseek-r1"},
     "config.json of deepseek-ai/DeepSeek-V3; arXiv:2412.19437, section 4.2",
     R"({"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
         "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
         "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
         "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8,
         "topk_group": 4, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
         "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
         "max_position_embeddings": 163840, "tie_word_embeddings": false})"},
    {"gpt-oss-20b",
     {},
     "config.json of openai/gpt-oss-20b; arXiv:2508.10925, section 2",
     R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
         "sliding_window": 128, "attention_bias": true, "vocab_size": 201088,
         "max_position_embeddings": 131072, "tie_word_embeddings": false})"},
    {"gpt-oss-120b",
     {},
     "config.json of openai/gpt-oss-120b; arXiv:2508.10925, section 2",
     R"({"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
         "sliding_window": 128, "attention_bias": true, "vocab_size": 201088,
         "max_position_embeddings": 131072, "tie_word_embeddings": false})"},
    {"gpt2",
     {"gpt2-small"},
     "config.json of openai-community/gpt2",
     R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
         "vocab_size": 50257, "attn_pdrop": 0.1, "resid_pdrop": 0.1})"},
    {"gpt2-xl",
     {},
     "config.json of openai-community/gpt2-xl",
     R"({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024,
         "vocab_size": 50257, "attn_pdrop": 0.1, "resid_pdrop": 0.1})"},
    {"gpt-neox-20b",
     {},
     "config.json of EleutherAI/gpt-neox-20b; arXiv:2204.06745, section 2",
     R"({"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144,
         "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu_fast",
         "use_parallel_residual": true, "vocab_size": 50432, "max_position_embeddings": 2048,
         "tie_word_embeddings": false})"},
    {"gemma-2-9b",
     {},
     "config.json of google/gemma-2-9b; arXiv:2408.00118, table 1",
     R"({"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
         "intermediate_size": 14336, "sliding_window": 4096, "vocab_size": 256000,
         "max_position_embeddings": 8192})"},
    {"gemma-2-27b",
     {},
     "config.json of google/gemma-2-27b; arXiv:2408.00118, table 1",
     R"({"model_type": "gemma2", "num_hidden_layers": 46, "hidden_size": 4608,
         "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
         "intermediate_size": 36864, "sliding_window": 4096, "vocab_size": 256000,
         "max_position_embeddings": 8192})"},
    {"gemma-3-1b",
     {},
     "config.json of google/gemma-3-1b-pt; arXiv:2503.19786",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
         "intermediate_size": 6912, "sliding_window": 512, "sliding_window_pattern": 6,
         "vocab_size": 262144, "max_position_embeddings": 32768})"},
    {"gemma-3-27b",
     {},
     "text_config of google/gemma-3-27b-pt; arXiv:2503.19786",
     R"({"model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376,
         "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
         "intermediate_size": 21504, "sliding_window": 1024, "sliding_window_pattern": 6,
         "vocab_size": 262208, "max_position_embeddings": 131072})"},
    {"tiny-llama",
     {},
     "no real model: small enough for tests to count by hand",
     R"({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256,
         "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 768,
         "vocab_size": 1024, "max_position_embeddings": 2048, "tie_word_embeddings": false})"},
    {"tiny-moe",
     {},
     "no real model: tiny-llama with a dense first layer and then 8 experts, small enough to run",
     R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 256,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
         "intermediate_size": 768, "moe_intermediate_size": 256, "num_experts": 8,
         "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "mlp_only_layers": [0], "vocab_size": 1024, "max_position_embeddings": 2048,
         "use_sliding_window": false, "tie_word_embeddings": false})"},
};

struct GptPreset {
  std::string_view name;
  std::string_view aliases[kMostAliases];
  std::string_view source;
  int layers;
  std::int64_t hidden;
  int heads;
  std::int64_t vocab;
};
constexpr GptPreset kGptPresets[] = {
    {"gpt-22b", {}, "arXiv:2205.05198, table 3", 48, 6144, 64, 51200},
    {"gpt3-175b",
     {"gpt3"},
     "arXiv:2005.14165, table 2.1; vocabulary of GPT-2, section 2.1",
     96,
     12288,
     96,
     50257},
    {"mt-nlg-530b",
     {"megatron-turing-nlg-530b"},
     "arXiv:2201.11990; vocabulary as in arXiv:2205.05198",
     105,
     20480,
     128,
     51200},
    {"gpt-1t", {}, "arXiv:2104.04473, table 1; arXiv:2205.05198, table 3", 128, 25600, 160, 51200},
};

ModelConfig ModelOf(const HfPreset& preset) {
  ModelConfig model = ReadHfConfig("preset " + std::string(preset.name), preset.json);
  model.name = preset.name;
  return model;
}

ModelConfig ModelOf(const GptPreset& preset) {
  return GptShape({.name = std::string(preset.name),
                   .num_layers = preset.layers,
                   .hidden_size = preset.hidden,
                   .num_attention_heads = preset.heads,
                   .vocab_size = preset.vocab});
}

// What two spellings of a name have in common.
std::string Canonical(std::string_view name) {
  std::string out;
  for (char c : name)
    if (std::string_view("-_. ").find(c) == std::string_view::npos)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

template <class Preset>
bool Answers(const Preset& preset, const std::string& canonical) {
  return Canonical(preset.name) == canonical ||
         std::any_of(std::begin(preset.aliases), std::end(preset.aliases),
                     [&](std::string_view a) { return !a.empty() && Canonical(a) == canonical; });
}

// Calls `use` on the preset of that name; false where there is none.
template <class Use>
bool WithPreset(std::string_view name, const Use& use) {
  const std::string canonical = Canonical(name);
  for (const HfPreset& preset : kHfPresets)
    if (Answers(preset, canonical)) return use(preset), true;
  for (const GptPreset& preset : kGptPresets)
    if (Answers(preset, canonical)) return use(preset), true;
  return false;
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const HfPreset& preset : kHfPresets) names.push_back(preset.name);
  for (const GptPreset& preset : kGptPresets) names.push_back(preset.name);
  return names;
}

// The letters that a name begins with, "llama"; empty where they are too few to tell anything.
std::string Family(std::string_view name) {
  constexpr std::size_t kLeast = 3;
  const std::string canonical = Canonical(name);
  const auto end = std::find_if(canonical.begin(), canonical.end(), [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) == 0;
  });
  const std::string letters(canonical.begin(), end);
  return letters.size() >= kLeast ? letters : "";
}

// `word` is what the names of presets are compared with.
[[noreturn]] void FailUnknown(std::string_view name, std::string_view word, std::string_view what) {
  const std::vector<std::string_view> names = PresetNames();
  std::vector<std::string> canonical;
  for (std::string_view n : names) canonical.push_back(Canonical(n));
  const std::vector<std::string_view> views(canonical.begin(), canonical.end());
  std::string near;
  if (const std::string_view found = NearestName(Canonical(word), views); !found.empty()) {
    const auto at = std::find(views.begin(), views.end(), found) - views.begin();
    near = fmt::format("did you mean \"{}\"? ", names[static_cast<std::size_t>(at)]);
  }
  // Another size or version of a family: all that there are of it.
  if (near.empty()) {
    const std::string family = Family(word);
    std::vector<std::string_view> relatives;
    for (std::string_view n : names)
      if (!family.empty() && Family(n) == family) relatives.push_back(n);
    if (!relatives.empty())
      near = fmt::format("did you mean one of {}? ", fmt::join(relatives, ", "));
  }
  throw ConfigError(fmt::format("model \"{}\": {}; {}presets: {}", Printable(name, kMostNameShown),
                                what, near, fmt::join(names, ", ")));
}

}  // namespace

std::vector<ModelPreset> ModelPresets() {
  std::vector<ModelPreset> out;
  const auto add = [&](const auto& preset) {
    ModelPreset one{preset.name, {}, preset.source};
    for (std::string_view alias : preset.aliases)
      if (!alias.empty()) one.aliases.push_back(alias);
    out.push_back(std::move(one));
  };
  for (const HfPreset& preset : kHfPresets) add(preset);
  for (const GptPreset& preset : kGptPresets) add(preset);
  return out;
}

ModelConfig PresetModel(std::string_view name) {
  ModelConfig model;
  if (!WithPreset(name, [&](const auto& preset) { model = ModelOf(preset); }))
    FailUnknown(name, name, "no such preset");
  return model;
}

ModelConfig LoadModel(const std::string& name_or_path) {
  ModelConfig model;
  if (WithPreset(name_or_path, [&](const auto& preset) { model = ModelOf(preset); })) return model;

  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string file = name_or_path;
  if (fs::is_directory(file, ignored)) {
    const fs::path inside = fs::path(file) / "config.json";
    if (!fs::exists(inside, ignored))
      throw ConfigError(Printable(file, 300) + ": is a directory without a config.json");
    file = inside.string();
  }
  // A bare word that is no file was meant as a preset.
  const bool path_like = file.find('/') != file.npos || file.ends_with(".json");
  if (!fs::exists(file, ignored)) {
    if (!path_like) FailUnknown(name_or_path, name_or_path, "no such preset or file");
    // ORGANISATION/MODEL, as the Hugging Face hub names it.
    const std::string last = fs::path(file).filename().string();
    const bool hub_name = std::count(file.begin(), file.end(), '/') == 1 && file.front() != '/' &&
                          file.front() != '.' && !last.empty() && !file.ends_with(".json") &&
                          !fs::exists(fs::path(file).parent_path(), ignored);
    if (hub_name) FailUnknown(file, last, "no such file, and nothing is fetched from the hub");
  }

  const std::string text = ReadTextFile(file);
  const FileKind kind = RefuseOtherKinds(file, text, FileKind::kModel);
  if (kind != FileKind::kModel) return ReadHfConfig(file, text);
  ReadConfig(file, text, [&](ConfigIo& io) { Fields(io, model); });
  if (model.name.empty()) model.name = Printable(fs::path(file).stem().string(), kMostNameShown);
  return model;
}

ModelConfig GptShape(const GptShapeOptions& o) {
  ModelConfig m;
  m.architecture = "gpt";
  m.num_layers = o.num_layers;
  m.hidden_size = o.hidden_size;
  m.num_attention_heads = o.num_attention_heads;
  m.num_query_groups = o.num_query_groups;
  m.kv_channels = o.kv_channels;
  m.ffn_hidden_size = o.ffn_hidden_size;
  m.vocab_size = o.vocab_size;
  m.max_position_embeddings = o.max_position_embeddings;
  m.gated_linear_unit = o.swiglu;
  m.activation = o.swiglu ? Activation::kSilu : Activation::kGelu;
  m.normalization = o.rms_norm ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  m.position_embedding = o.rope ? PositionEmbedding::kRope : PositionEmbedding::kLearned;
  m.add_qkv_bias = m.add_attention_output_bias = m.add_mlp_bias = o.bias;
  m.tied_embeddings = o.tied_embeddings;
  m.attention_dropout = m.hidden_dropout = o.dropout;

  Mistakes mistakes("model shape");
  if (m.kv_channels == 0 && m.num_attention_heads > 0 &&
      m.hidden_size % m.num_attention_heads != 0) {
    mistakes.Add("", fmt::format("hidden_size: {} is not a multiple of {} attention heads",
                                 m.hidden_size, m.num_attention_heads));
  } else {
    FillDefaults(m);
    for (const Inconsistency& found : Inconsistencies(m))
      mistakes.Add("", fmt::format("{}: {}", found.field, found.what));
  }
  mistakes.ThrowIfAny();
  m.name = o.name;
  if (m.name.empty()) {
    const double billions = static_cast<double>(CountParameters(m).total) / 1e9;
    m.name = fmt::format("gpt-{:.{}f}b", billions, billions < 10 ? 1 : 0);
  }
  return m;
}

}  // namespace millwright
