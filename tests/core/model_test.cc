// SPDX-License-Identifier: Apache-2.0
#include "core/model.h"

#include <gtest/gtest.h>

#include <random>

#include "core/check.h"
#include "core/model_presets.h"
#include "core/parameters.h"
#include "tests/read_config.h"

namespace millwright {
namespace {

std::string Write(const ModelConfig& model) {
  ModelConfig copy = model;
  return WriteConfig([&](ConfigIo& io) { Fields(io, copy); });
}

TEST(Model, EveryPresetIsWrittenAndReadBackEqual) {
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelConfig model = PresetModel(preset.name);
    EXPECT_EQ(Read<ModelConfig>(Write(model)), model) << preset.name;
    EXPECT_TRUE(Inconsistencies(model).empty()) << preset.name;
  }
}

TEST(Model, RandomModelsAreWrittenAndReadBackEqual) {
  std::mt19937_64 random(3);
  const auto from = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  const auto coin = [&] { return from(0, 1) == 1; };
  for (int round = 0; round < 2000; ++round) {
    ModelConfig m;
    m.name = "m" + std::to_string(round);
    m.architecture = coin() ? "gpt" : "llama";
    m.num_query_groups = from(1, 16);
    m.num_attention_heads = m.num_query_groups * from(1, 8);
    m.hidden_size = from(1, 20000);
    m.kv_channels = from(1, 256);
    m.ffn_hidden_size = from(1, 60000);
    m.vocab_size = from(1, 300000);
    m.max_position_embeddings = from(1, 1 << 20);
    m.gated_linear_unit = coin();
    m.activation = static_cast<Activation>(from(0, 3));
    m.normalization = static_cast<Normalization>(from(0, 1));
    m.post_layer_norms = coin();
    m.qk_layernorm = coin();
    m.position_embedding = static_cast<PositionEmbedding>(from(0, 2));
    m.parallel_residual = coin();
    m.add_qkv_bias = coin();
    m.add_attention_output_bias = coin();
    m.add_mlp_bias = coin();
    m.attention_sinks = coin();
    m.tied_embeddings = coin();
    m.attention_dropout = coin();
    m.hidden_dropout = coin();
    m.latent = coin();
    if (m.latent) {
      m.num_query_groups = m.num_attention_heads;
      m.mla = {from(0, 2048), from(1, 1024), from(1, 256), from(1, 128), from(1, 256)};
    }
    const bool experts = coin();
    if (experts) {
      m.moe.num_groups = from(0, 8);
      m.moe.topk_groups = from(0, m.moe.num_groups);
      m.moe.num_experts = std::max(1, m.moe.num_groups) * from(1, 32);
      m.moe.topk = from(1, m.moe.num_experts);
      m.moe.ffn_hidden_size = from(1, 4096);
      m.moe.shared_expert_ffn_hidden_size = from(0, 4096);
      m.moe.shared_expert_gate = coin();
      m.moe.router_bias = coin();
      m.moe.router_correction_bias = coin();
    }
    m.mtp_num_layers = from(0, 2);
    for (int runs = from(1, 5); runs > 0; --runs) {
      const LayerKind kind{.moe = experts && (m.layers.empty() || coin()),
                           .sliding_window = coin() ? from(1, 4096) : 0};
      m.layers.push_back({from(1, 30), kind});
      m.num_layers += m.layers.back().count;
    }
    ASSERT_TRUE(Inconsistencies(m).empty()) << Inconsistencies(m)[0].what;
    ASSERT_EQ(Read<ModelConfig>(Write(m)), m) << Write(m);
  }
}

TEST(Model, DefaultsFollowFromTheRest) {
  const ModelConfig m =
      Read<ModelConfig>(R"({"num_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
                                 "vocab_size": 100})");
  EXPECT_EQ(m.num_query_groups, 4);
  EXPECT_EQ(m.kv_channels, 16);       // 64 / 4
  EXPECT_EQ(m.ffn_hidden_size, 256);  // 4 x 64
  EXPECT_EQ(m.layers, (std::vector<LayerRun>{{3, {}}}));
  EXPECT_FALSE(m.has_moe());

  const ModelConfig moe =
      Read<ModelConfig>(R"({"num_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
      "vocab_size": 100, "moe": {"num_experts": 4, "topk": 2, "ffn_hidden_size": 32}})");
  EXPECT_EQ(moe.layers, (std::vector<LayerRun>{{3, {.moe = true}}}));
}

TEST(Model, LayersAreFoundByNumber) {
  ModelConfig m;
  const LayerKind dense{}, sliding{.moe = false, .sliding_window = 8}, moe{.moe = true};
  m.layers = {{2, dense}, {1, sliding}, {2, moe}, {1, sliding}};
  EXPECT_EQ(m.layer(0), dense);
  EXPECT_EQ(m.layer(1), dense);
  EXPECT_EQ(m.layer(2), sliding);
  EXPECT_EQ(m.layer(4), moe);
  EXPECT_EQ(m.layer(5), sliding);
  EXPECT_THROW(m.layer(6), InternalError);
  EXPECT_EQ(m.distinct_kinds(), (std::vector<LayerKind>{dense, sliding, moe}));
  EXPECT_TRUE(m.has_moe());
}

TEST(Model, RelationsOfFieldsAreChecked) {
  const auto with = [](const std::string& more) {
    return R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100)" +
           more + "}";
  };
  EXPECT_EQ(Complaint<ModelConfig>(with("")), "");
  EXPECT_EQ(
      Complaint<ModelConfig>(with(R"(, "num_query_groups": 3)")),
      "c.json: at /num_attention_heads: 8 attention heads cannot be shared out evenly among 3 "
      "query groups (KV heads)");
  EXPECT_EQ(Complaint<ModelConfig>(with(R"(, "layers": [{"count": 3}])")),
            "c.json: at /layers: the runs hold 3 layers, the model 4");
  EXPECT_EQ(Complaint<ModelConfig>(with(R"(, "layers": [{"count": 4, "moe": true}])")),
            "c.json: at /layers: a layer is MoE but the model has no experts");
  EXPECT_EQ(Complaint<ModelConfig>(
                with(R"(, "moe": {"num_experts": 4, "topk": 5, "ffn_hidden_size": 8})")),
            "c.json: at /moe: a token cannot be sent to 5 of 4 experts");
  EXPECT_EQ(
      Complaint<ModelConfig>(with(R"(, "moe": {"num_experts": 9, "topk": 2, "ffn_hidden_size": 8,
                                        "num_groups": 2, "topk_groups": 3})")),
      "c.json: at /moe: 9 experts cannot be put into 2 equal groups\n"
      "c.json: at /moe: a token cannot be sent to 3 of 2 groups");
  EXPECT_EQ(Complaint<ModelConfig>(with(R"(, "position_embedding": "learned")")),
            "c.json: at /max_position_embeddings: learned positions need at least 1, got 0");
  EXPECT_EQ(
      Complaint<ModelConfig>(with(R"(, "num_query_groups": 4, "mla": {"kv_lora_rank": 8,
                 "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8})")),
      "c.json: at /num_query_groups: latent attention has one query group a head: expected 8, "
      "got 4");
  EXPECT_EQ(
      Complaint<ModelConfig>(R"({"num_layers": 4, "hidden_size": 65, "num_attention_heads": 8,
                          "vocab_size": 100})"),
      "c.json: at /kv_channels: hidden_size 65 is not a multiple of 8 attention heads, so the "
      "head size must be given");
}

TEST(Model, TooManyParametersToCountAreRefused) {
  // A layer: MLP 2 x 2^44, attention 4 x 2^36: 3.546e13 parameters; and 10,000 of them.
  EXPECT_EQ(Complaint<ModelConfig>(
                R"({"num_layers": 10000, "hidden_size": 1048576, "num_attention_heads": 65536,
                          "vocab_size": 16777216, "ffn_hidden_size": 16777216,
                          "gated_linear_unit": false, "kv_channels": 1})"),
            "c.json: at /num_layers: the model would have 3.55e+17 parameters, past 2^53");
}

}  // namespace
}  // namespace millwright
