// SPDX-License-Identifier: Apache-2.0
#include "core/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/parameters.h"

namespace millwright {
namespace {

constexpr const char* kModelled =
    "Modelled: llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, "
    "deepseek_v3, kimi_k2, gpt_oss, gpt2, gpt_neox, gemma, gemma2, gemma3_text, phi3";

ModelConfig Read(std::string_view text) { return ReadHfConfig("m/config.json", text); }

// The complaint without the file's name.
std::string Complaint(std::string_view text) {
  try {
    Read(text);
  } catch (const ConfigError& e) {
    std::string what = e.what();
    const std::string file = "m/config.json: ";
    for (std::size_t at; (at = what.find(file)) != what.npos;) what.erase(at, file.size());
    return what;
  }
  return "";
}

// A file of `model_type` with small sizes, where `more` has no others, and `more` keys.
std::string Small(const std::string& model_type, const std::string& more = "") {
  constexpr std::pair<std::string_view, int> kSizes[] = {{"num_hidden_layers", 4},
                                                         {"hidden_size", 64},
                                                         {"num_attention_heads", 8},
                                                         {"intermediate_size", 128},
                                                         {"vocab_size", 1000}};
  std::string text = R"({"model_type": ")" + model_type + '"';
  for (const auto& [key, size] : kSizes) {
    const std::string quoted = '"' + std::string(key) + '"';
    if (more.find(quoted) == more.npos) text += ", " + quoted + ": " + std::to_string(size);
  }
  return text + (more.empty() ? "" : ", ") + more + "}";
}

std::vector<std::int64_t> Windows(const ModelConfig& m) {
  std::vector<std::int64_t> out;
  for (int i = 0; i < m.num_layers; ++i) out.push_back(m.layer(i).sliding_window);
  return out;
}
std::vector<bool> Moe(const ModelConfig& m) {
  std::vector<bool> out;
  for (int i = 0; i < m.num_layers; ++i) out.push_back(m.layer(i).moe);
  return out;
}
using W = std::vector<std::int64_t>;
using B = std::vector<bool>;

TEST(HfConfig, LlamaWithNothingButItsSizes) {
  const ModelConfig m = Read(Small("llama"));
  EXPECT_EQ(m.name, "m");  // config.json is named after its folder
  EXPECT_EQ(m.architecture, "llama");
  EXPECT_EQ(m.num_query_groups, 8);  // absent: as many as heads
  EXPECT_EQ(m.kv_channels, 8);       // 64 / 8
  EXPECT_EQ(m.max_position_embeddings, 2048);
  EXPECT_TRUE(m.gated_linear_unit);
  EXPECT_EQ(m.activation, Activation::kSilu);
  EXPECT_FALSE(m.add_qkv_bias || m.add_mlp_bias || m.tied_embeddings || m.attention_dropout);
  EXPECT_EQ(m.layers, (std::vector<LayerRun>{{4, {}}}));

  const ModelConfig biased = Read(Small("llama", R"("attention_bias": true, "mlp_bias": true,
      "attention_dropout": 0.1, "tie_word_embeddings": true, "head_dim": 16,
      "num_key_value_heads": 2, "hidden_act": "gelu")"));
  EXPECT_TRUE(biased.add_qkv_bias && biased.add_attention_output_bias && biased.add_mlp_bias);
  EXPECT_TRUE(biased.attention_dropout && biased.tied_embeddings);
  EXPECT_EQ(biased.kv_channels, 16);
  EXPECT_EQ(biased.num_query_groups, 2);
  EXPECT_EQ(biased.activation, Activation::kGelu);
}

TEST(HfConfig, AbsentKeysMeanWhatTransformersTakes) {
  // num_key_value_heads absent is the class's default; null is one a query head.
  EXPECT_EQ(Read(Small("mistral")).num_query_groups, 8);
  EXPECT_EQ(Read(Small("gemma2")).num_query_groups, 4);
  EXPECT_EQ(Read(Small("gemma2", R"("num_key_value_heads": null)")).num_query_groups, 8);
  EXPECT_EQ(Read(Small("qwen3_moe")).num_query_groups, 4);
  // head_dim absent and null.
  EXPECT_EQ(Read(Small("qwen3", R"("num_key_value_heads": 8)")).kv_channels, 128);
  EXPECT_EQ(Read(Small("qwen3", R"("num_key_value_heads": 8, "head_dim": null)")).kv_channels, 8);
  EXPECT_EQ(Read(Small("qwen3_moe")).kv_channels, 8);
  EXPECT_EQ(Read(Small("gemma2")).kv_channels, 256);
  EXPECT_EQ(Read(Small("gpt_oss")).kv_channels, 64);
  // The head is tied by default in these alone.
  EXPECT_TRUE(Read(Small("gemma2")).tied_embeddings);
  EXPECT_TRUE(Read(Small("gemma", R"("num_key_value_heads": 1)")).tied_embeddings);
  for (const char* type : {"llama", "mistral", "gpt_neox", "phi3", "gpt_oss", "qwen3_moe"})
    EXPECT_FALSE(Read(Small(type)).tied_embeddings) << type;
}

TEST(HfConfig, Gpt2HasNamesOfItsOwn) {
  const ModelConfig m = Read(R"({"model_type": "gpt2", "n_inner": null})");
  EXPECT_EQ(m.num_layers, 12);  // GPT2Config's defaults are the small model
  EXPECT_EQ(m.hidden_size, 768);
  EXPECT_EQ(m.ffn_hidden_size, 4 * 768);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kLearned);
  EXPECT_EQ(m.normalization, Normalization::kLayerNorm);
  EXPECT_TRUE(m.tied_embeddings && m.attention_dropout && m.hidden_dropout);
  EXPECT_TRUE(m.add_qkv_bias && m.add_attention_output_bias && m.add_mlp_bias);
  EXPECT_EQ(CountParameters(m).total, 124439808);
  const ModelConfig n =
      Read(R"({"model_type": "gpt2", "n_inner": 1000, "attn_pdrop": 0, "resid_pdrop": 0.0})");
  EXPECT_EQ(n.ffn_hidden_size, 1000);
  EXPECT_FALSE(n.attention_dropout || n.hidden_dropout);
}

TEST(HfConfig, GptNeoxRunsAttentionAndMlpSideBySide) {
  const ModelConfig m = Read(Small("gpt_neox"));
  EXPECT_TRUE(m.parallel_residual && m.add_qkv_bias && m.add_mlp_bias);
  EXPECT_FALSE(m.gated_linear_unit);
  EXPECT_FALSE(Read(Small("gpt_neox", R"("use_parallel_residual": false)")).parallel_residual);
}

TEST(HfConfig, SlidingWindows) {
  EXPECT_EQ(Windows(Read(Small("mistral"))), (W{4096, 4096, 4096, 4096}));
  EXPECT_EQ(Windows(Read(Small("mistral", R"("sliding_window": null)"))), (W{0, 0, 0, 0}));
  EXPECT_EQ(Windows(Read(Small("mixtral"))), (W{0, 0, 0, 0}));
  // Qwen2: only where the flag says so, and only from max_window_layers on.
  const std::string qwen =
      R"("num_key_value_heads": 8, "sliding_window": 16, "max_window_layers": 3)";
  EXPECT_EQ(Windows(Read(Small("qwen2", qwen))), (W{0, 0, 0, 0}));
  EXPECT_EQ(Windows(Read(Small("qwen2", qwen + R"(, "use_sliding_window": true)"))),
            (W{0, 0, 0, 16}));
  EXPECT_EQ(Windows(Read(Small("qwen2_moe", qwen + R"(, "use_sliding_window": true)"))),
            (W{16, 0, 16, 0}));
  EXPECT_EQ(
      Windows(Read(Small("qwen3_moe", R"("sliding_window": 16, "use_sliding_window": true)"))),
      (W{16, 16, 16, 16}));
  EXPECT_EQ(Windows(Read(Small("gemma2"))), (W{4096, 0, 4096, 0}));
  EXPECT_EQ(Windows(Read(Small("gpt_oss"))), (W{128, 0, 128, 0}));
  EXPECT_EQ(Windows(Read(Small("gemma3_text", R"("sliding_window": 512)"))),
            (W{512, 512, 512, 512}));  // the sixth layer would see everything
  EXPECT_EQ(Windows(Read(Small("gemma3_text", R"("sliding_window_pattern": 2)"))),
            (W{4096, 0, 4096, 0}));
  // A list of layer types says it layer by layer.
  const std::string types = R"("layer_types": ["full_attention", "full_attention",
      "sliding_attention", "full_attention"])";
  EXPECT_EQ(Windows(Read(Small("gpt_oss", types))), (W{0, 0, 128, 0}));
  EXPECT_EQ(Windows(Read(Small("gemma3_text", types))), (W{0, 0, 4096, 0}));
  EXPECT_EQ(Windows(Read(Small("qwen2", qwen + ", " + types))), (W{0, 0, 0, 0}));
}

TEST(HfConfig, WhichLayersHaveExperts) {
  EXPECT_EQ(Moe(Read(Small("mixtral"))), (B{true, true, true, true}));
  EXPECT_EQ(Moe(Read(Small("qwen3_moe", R"("decoder_sparse_step": 2)"))),
            (B{false, true, false, true}));
  EXPECT_EQ(Moe(Read(Small("qwen3_moe", R"("mlp_only_layers": [0, 3])"))),
            (B{false, true, true, false}));
  const std::string topk = R"("num_experts_per_tok": 2)";
  EXPECT_EQ(Moe(Read(Small("deepseek_v2", topk + R"(, "first_k_dense_replace": 1)"))),
            (B{false, true, true, true}));
  EXPECT_EQ(Moe(Read(Small("deepseek_v2", topk + R"(, "moe_layer_freq": 2)"))),
            (B{true, false, true, false}));
  // All layers dense: the experts are of no account.
  const ModelConfig dense = Read(Small("qwen3_moe", R"("mlp_only_layers": [0, 1, 2, 3])"));
  EXPECT_FALSE(dense.has_moe());
  EXPECT_EQ(dense.moe, MixtureOfExperts{});
  EXPECT_FALSE(Read(Small("deepseek_v3", R"("n_routed_experts": null)")).has_moe());
}

TEST(HfConfig, ExpertsOfEachKind) {
  const MixtureOfExperts mixtral = Read(Small("mixtral")).moe;
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.topk, 2);
  EXPECT_EQ(mixtral.ffn_hidden_size, 128);  // intermediate_size
  const MixtureOfExperts qwen = Read(Small("qwen2_moe", R"("num_key_value_heads": 8)")).moe;
  EXPECT_EQ(qwen.num_experts, 60);
  EXPECT_EQ(qwen.ffn_hidden_size, 1408);
  EXPECT_EQ(qwen.shared_expert_ffn_hidden_size, 5632);
  EXPECT_TRUE(qwen.shared_expert_gate);
  EXPECT_TRUE(mixtral.normalize_topk);  // the softmax is over the chosen experts
  EXPECT_FALSE(qwen.normalize_topk);
  EXPECT_TRUE(Read(Small("qwen3_moe", R"("norm_topk_prob": true)")).moe.normalize_topk);
  const MixtureOfExperts v3 = Read(Small("deepseek_v3")).moe;
  EXPECT_EQ(v3.num_groups, 8);
  EXPECT_EQ(v3.topk_groups, 4);
  EXPECT_TRUE(v3.router_correction_bias);
  EXPECT_EQ(v3.shared_expert_ffn_hidden_size, 2048);
  const MixtureOfExperts greedy =
      Read(Small("deepseek_v2", R"("num_experts_per_tok": 6, "n_group": 8, "topk_group": 3)")).moe;
  EXPECT_EQ(greedy.num_groups, 0);  // only group_limited_greedy limits by group
  EXPECT_FALSE(greedy.router_correction_bias);
  EXPECT_EQ(greedy.shared_expert_ffn_hidden_size, 2 * 1407);
  EXPECT_TRUE(Read(Small("gpt_oss")).moe.router_bias);
}

TEST(HfConfig, LatentAttention) {
  const ModelConfig m =
      Read(Small("kimi_k2", R"("q_lora_rank": null, "num_nextn_predict_layers": 1)"));
  EXPECT_EQ(m.architecture, "deepseek_v3");
  EXPECT_TRUE(m.latent);
  EXPECT_EQ(m.mla, (LatentAttention{0, 512, 128, 64, 128}));
  EXPECT_EQ(m.kv_channels, 128);  // a value head
  EXPECT_EQ(m.num_query_groups, 8);
  EXPECT_EQ(m.mtp_num_layers, 1);
  EXPECT_EQ(Read(Small("deepseek_v3")).mla.q_lora_rank, 1536);
}

TEST(HfConfig, TheTextModelOfAWrapperIsRead) {
  // As google/gemma-3-4b-it has it: what equals the class's default is left out.
  const ModelConfig m = Read(R"({"model_type": "gemma3", "vision_config": {"hidden_size": 1152},
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                      "model_type": "gemma3_text", "sliding_window": 1024}})");
  EXPECT_EQ(m.architecture, "gemma3_text");
  EXPECT_EQ(m.num_attention_heads, 8);
  EXPECT_EQ(m.vocab_size, 262208);
  EXPECT_EQ(CountParameters(m).total, 3880263168);  // 4.3 B with the vision tower's 0.42 B
  EXPECT_EQ(Read(R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560}})").num_layers,
            26);
  EXPECT_EQ(Complaint(R"({"model_type": "gemma3", "text_config": {"hidden_size": -1}})"),
            "at /text_config/hidden_size: expected an integer from 1 to 1048576, got -1");
  EXPECT_EQ(Read(R"({"model_type": "llava", "text_config": )" + Small("llama") + "}").architecture,
            "llama");
}

TEST(HfConfig, ArchitecturesWithoutAPresetCountAsPublished) {
  const struct {
    const char* text;
    std::int64_t total;  // of the checkpoint on the Hugging Face hub
  } kPublished[] = {
      // microsoft/Phi-3-mini-4k-instruct: 2 x 32064 x 3072 + 32 (4 x 3072^2 + 3 x 3072 x 8192 + 2 x
      // 3072) + 3072.
      {R"({"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072,
           "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
           "vocab_size": 32064, "sliding_window": 2047})",
       3821079552},
      // google/gemma-7b: 256000 x 3072 + 28 (4 x 3072 x 4096 + 3 x 3072 x 24576 + 2 x 3072) + 3072.
      {R"({"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072,
           "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
           "intermediate_size": 24576, "vocab_size": 256000, "hidden_act": "gelu"})",
       8537680896},
      // Qwen/Qwen1.5-MoE-A2.7B.
      {R"({"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048,
           "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
           "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
           "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936})",
       14315784192},
  };
  for (const auto& p : kPublished)
    EXPECT_EQ(CountParameters(Read(p.text)).total, p.total) << p.text;
}

TEST(HfConfig, PythonsWordsMeanNothingInKeysThatMeanNothing) {
  EXPECT_EQ(Complaint(Small("llama", R"("time_step_limit": [0.0, Infinity], "x": -Infinity,
                                        "y": NaN, "z": 1e999)")),
            "");
  EXPECT_EQ(Complaint(Small("llama", R"("num_key_value_heads": NaN)")),
            "at /num_key_value_heads: expected an integer from 1 to 65536, got NaN");
}

TEST(HfConfig, IgnoredKeysAreListed) {
  std::vector<std::string> ignored;
  ReadHfConfig("x.json", Small("llama", R"("rope_theta": 1e6, "attention_bias": false,
                                           "auto_map": {"a": 1})"),
               &ignored);
  EXPECT_THAT(ignored, testing::ElementsAre("/rope_theta", "/auto_map"));
  ignored.clear();
  ReadHfConfig("x.json",
               R"({"model_type": "gemma3", "vision_config": {}, "text_config": {"rope_theta": 1}})",
               &ignored);
  EXPECT_THAT(ignored, testing::ElementsAre("/vision_config", "/text_config/rope_theta"));
}

TEST(HfConfig, AKeyThatCountsIsGivenOnce) {
  EXPECT_EQ(Complaint(Small("llama", R"("vocab_size": 2000, "vocab_size": 1000)")),
            "at /vocab_size: duplicate field, given 2 times");
  EXPECT_EQ(Complaint(R"({"model_type": "gemma3", "text_config": {}, "text_config": {}})"),
            "at /text_config: duplicate field, given 2 times");
  // What has no influence may be there twice.
  EXPECT_EQ(Complaint(Small("llama", R"("rope_theta": 1, "rope_theta": 2)")), "");
}

TEST(HfConfig, NamesFromFilesArePrintable) {
  EXPECT_EQ(ReadHfConfig("a\xff\x1b[31mb.json", Small("llama")).name, "a\\xff\\u001b[31mb");
}

TEST(HfConfig, EveryMistakeAtOnce) {
  EXPECT_EQ(
      Complaint(R"({"model_type": "llama", "num_hidden_layers": -3, "hidden_size": "big",
          "num_attention_heads": 0, "vocab_size": 1e6, "max_position_embeddings": 9223372036854775808,
          "head_dim": 1.5, "attention_bias": "no", "attention_dropout": 7, "hidden_act": "sine"})"),
      "at /num_hidden_layers: expected an integer from 1 to 10000, got -3\n"
      "at /hidden_size: expected an integer from 1 to 1048576, got \"big\"\n"
      "at /num_attention_heads: expected an integer from 1 to 65536, got 0\n"
      "at /vocab_size: expected an integer from 1 to 16777216, got 1e6\n"
      "at /max_position_embeddings: expected an integer from 1 to 1073741824, got "
      "9223372036854775808 (beyond 64 bits)\n"
      "at /intermediate_size: expected an integer from 1 to 16777216, got nothing (this key is "
      "required)\n"
      "at /head_dim: expected an integer from 1 to 65536, got 1.5\n"
      "at /hidden_act: expected one of \"silu\", \"swish\", \"gelu\", \"gelu_new\", \"gelu_fast\", "
      "\"gelu_pytorch_tanh\", \"quick_gelu\", \"relu\", \"relu2\", got \"sine\"\n"
      "at /attention_bias: expected true or false, got \"no\"\n"
      "at /attention_dropout: expected a probability from 0 to 1, got 7");
}

TEST(HfConfig, EachKindOfMistakeHasItsMessage) {
  const struct {
    std::string text;
    std::string complaint;
  } kCases[] = {
      {Small("llama", R"("num_hidden_layers": 1000000)"),
       "at /num_hidden_layers: expected an integer from 1 to 10000, got 1000000"},
      {Small("llama", R"("vocab_size": null)"),
       "at /vocab_size: expected an integer from 1 to 16777216, got null"},
      {Small("llama", R"("num_key_value_heads": 3)"),
       "at /num_attention_heads: 8 attention heads cannot be shared out evenly among 3 query "
       "groups "
       "(KV heads)"},
      {Small("llama", R"("hidden_size": 63)"),
       "at /hidden_size: 63 is not a multiple of num_attention_heads 8"},
      {Small("gpt_oss", R"("layer_types": ["full_attention"])"),
       "at /layer_types: expected a list of 4 layer types, one a layer, got 1"},
      {Small("gpt_oss", R"("layer_types": "full_attention")"),
       "at /layer_types: expected a list of 4 layer types, got \"full_attention\""},
      {Small("gpt_oss", R"("layer_types": ["full_attention", "linear_attention", 5,
                                           "sliding_attention"])"),
       "at /layer_types/1: expected \"full_attention\" or \"sliding_attention\", got "
       "\"linear_attention\"\n"
       "at /layer_types/2: expected \"full_attention\" or \"sliding_attention\", got 5"},
      {Small("gpt_oss", R"("sliding_window": null, "layer_types": ["full_attention",
                           "full_attention", "full_attention", "sliding_attention"])"),
       "at /sliding_window: layer_types has sliding layers, but there is no window"},
      {Small("qwen3_moe", R"("mlp_only_layers": [4])"),
       "at /mlp_only_layers/0: expected a layer from 0 to 3, got 4"},
      {Small("qwen3_moe", R"("mlp_only_layers": 4)"),
       "at /mlp_only_layers: expected a list of layer numbers, got 4"},
      {Small("mixtral", R"("num_experts_per_tok": 9)"),
       "at /num_local_experts: a token cannot be sent to 9 of 8 experts"},
      {Small("deepseek_v2"),
       "at /num_experts_per_tok: expected an integer from 1 to 65536, got nothing (this key is "
       "required)"},
      {Small("deepseek_v3", R"("topk_method": "best")"),
       "at /topk_method: expected one of \"greedy\", \"group_limited_greedy\", \"noaux_tc\", got "
       "\"best\""},
      {Small("deepseek_v3", R"("n_routed_experts": 250)"),
       "at /n_routed_experts: 250 experts cannot be put into 8 equal groups"},
      {Small("deepseek_v3", R"("n_shared_experts": 60000, "moe_intermediate_size": 1000)"),
       "at /n_shared_experts: 60000 shared experts of width 1000 are wider than 16777216 together"},
      {Small("llama", R"("num_hidden_layers": 10000, "hidden_size": 1048576,
                         "intermediate_size": 16777216, "head_dim": 1024)"),
       // A layer: gate, up and down 3 x 2^44, attention 4 x 2^33: 5.28e13; and 10,000 of them.
       "at /num_hidden_layers: the model would have 5.28e+17 parameters, past 2^53"},
      {"{}", std::string("at /model_type: expected a text that names the architecture, got nothing "
                         "(this key is required). ") +
                 kModelled},
      {R"({"model_type": 5})",
       std::string("at /model_type: expected a text that names the architecture, got 5. ") +
           kModelled},
      {R"({"model_type": "lama"})",
       std::string("at /model_type: \"lama\" is not an architecture that is modelled; did you mean "
                   "\"llama\"? ") +
           kModelled},
      {R"({"model_type": "blorp"})",
       std::string("at /model_type: \"blorp\" is not an architecture that is modelled. ") +
           kModelled},
      {"[]", "expected an object, got []"},
      {"{",
       "line 1, column 2: not valid JSON: while parsing object key - unexpected end of input; "
       "expected string literal"},
  };
  for (const auto& c : kCases) EXPECT_EQ(Complaint(c.text), c.complaint) << c.text;
}

TEST(HfConfig, WhatCannotBeModelledIsRefusedByName) {
  EXPECT_EQ(Complaint(R"({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-MM"})"),
            std::string("at /model_type: \"nemotron_h\" is a Mamba-2 hybrid "
                        "(hybrid_override_pattern has 4 Mamba layers); state-space layers are not "
                        "modelled. ") +
                kModelled);
  EXPECT_EQ(Complaint(R"({"model_type": "t5", "num_layers": 6})"),
            std::string("at /model_type: \"t5\" cannot be modelled: encoder-decoder models are not "
                        "modelled. ") +
                kModelled);
  EXPECT_EQ(Complaint(R"({"model_type": "jamba"})"),
            std::string("at /model_type: \"jamba\" cannot be modelled: state-space layers are not "
                        "modelled. ") +
                kModelled);
  for (const char* type : {"bert", "rwkv", "falcon_mamba", "qwen3_next", "whisper", "mamba2"})
    EXPECT_THAT(Complaint(R"({"model_type": ")" + std::string(type) + "\"}"),
                testing::HasSubstr("cannot be modelled: "))
        << type;
}

TEST(HfConfig, ThePublishedNemotronHIsRefused) {
  const std::string file = "../shared/hf_configs/Nemotron-H-56B-Base-8K.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not beside the repository";
  try {
    ReadHfConfig(file, ReadTextFile(file));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.what(), file +
                            ": at /model_type: \"nemotron_h\" is a Mamba-2 hybrid "
                            "(hybrid_override_pattern has 54 Mamba layers); state-space layers are "
                            "not modelled. " +
                            kModelled);
  }
}

}  // namespace
}  // namespace millwright
