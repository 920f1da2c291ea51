// SPDX-License-Identifier: Apache-2.0
#include "core/model_presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/hf_config.h"
#include "core/parameters.h"
#include "tests/read_config.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;

TEST(ModelPresets, AreFoundHoweverTheyAreSpelt) {
  for (const char* name : {"llama-3.1-70b", "Llama 3.1 70B", "LLAMA_3_1_70B", "llama3.170b",
                           "Meta-Llama-3.1-70B", "llama-3.3-70b"}) {
    EXPECT_EQ(PresetModel(name).name, "llama-3.1-70b") << name;
  }
  EXPECT_EQ(LoadModel("gpt3").name, "gpt3-175b");
  EXPECT_EQ(LoadModel("Mixtral-8x7B-v0.1").name, "mixtral-8x7b");
}

TEST(ModelPresets, NoTwoAnswerToOneNameAndEachHasASource) {
  std::set<std::string> seen;
  for (const ModelPreset& preset : ModelPresets()) {
    EXPECT_NE(preset.source, "") << preset.name;
    EXPECT_TRUE(seen.insert(std::string(preset.name)).second) << preset.name;
    EXPECT_EQ(PresetModel(preset.name).name, preset.name);
    for (std::string_view alias : preset.aliases)
      EXPECT_EQ(PresetModel(alias).name, preset.name) << alias;
  }
}

TEST(ModelPresets, EqualTheirPublishedFiles) {
  const fs::path folder = "../shared/hf_configs";
  if (!fs::exists(folder)) GTEST_SKIP() << "no published config.json files beside the repository";
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".json" || stem.starts_with("Nemotron")) continue;
    const std::string file = entry.path().string();
    ModelConfig read = ReadHfConfig(file, ReadTextFile(file));
    EXPECT_EQ(read.name, stem);
    const ModelConfig preset = PresetModel(stem);
    read.name = preset.name;
    EXPECT_EQ(read, preset) << stem;
    EXPECT_EQ(LoadModel(file).num_layers, preset.num_layers);
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

TEST(ModelPresets, AnUnknownNameGetsTheNearest) {
  std::string list;
  for (const ModelPreset& preset : ModelPresets())
    list += (list.empty() ? "" : ", ") + std::string(preset.name);
  EXPECT_EQ(
      Complaint([] { PresetModel("lama-3.1-70b"); }),
      "model \"lama-3.1-70b\": no such preset; did you mean \"llama-3.1-70b\"? presets: " + list);
  EXPECT_EQ(Complaint([] { LoadModel("qwen-3-8b"); }), "");  // only spelt differently
  EXPECT_EQ(Complaint([] { LoadModel("xyzzy"); }),
            "model \"xyzzy\": no such preset or file; presets: " + list);
  EXPECT_THAT(Complaint([] { LoadModel("meta-llama/Llama-3.1-8B-Instruct"); }),
              testing::StartsWith("model \"meta-llama/Llama-3.1-8B-Instruct\": no such file, and "
                                  "nothing is fetched from the hub; did you mean "
                                  "\"llama-3.1-8b\"? presets: llama-2-7b, "));
  // No size or version is near, but the family is known.
  EXPECT_THAT(Complaint([] { LoadModel("mixtral-9"); }),
              testing::StartsWith("model \"mixtral-9\": no such preset or file; did you mean one "
                                  "of mixtral-8x7b, mixtral-8x22b? presets: "));
  EXPECT_EQ(Complaint([] { LoadModel("no/such/config.json"); }),
            "no/such/config.json: no such file");
}

class ModelFile : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("model_presets_test_" + std::to_string(::getpid()));
    fs::create_directories(dir_ / "my-model");
  }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(ModelFile, APathMayBeAFileAFolderOrOneOfOurs) {
  std::ofstream(dir_ / "my-model" / "config.json")
      << R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4})";
  const ModelConfig by_folder = LoadModel((dir_ / "my-model").string());
  EXPECT_EQ(by_folder.name, "my-model");
  EXPECT_EQ(by_folder.num_layers, 2);
  EXPECT_EQ(LoadModel((dir_ / "my-model/").string()).num_layers, 2);
  EXPECT_EQ(LoadModel((dir_ / "my-model" / "config.json").string()), by_folder);
  EXPECT_EQ(Complaint([&] { LoadModel(dir_.string()); }),
            dir_.string() + ": is a directory without a config.json");

  ModelConfig written = PresetModel("deepseek-v3");
  const std::string ours = (dir_ / "ours.json").string();
  WriteTextFile(ours, WriteConfig([&](ConfigIo& io) { Fields(io, written); }));
  EXPECT_EQ(LoadModel(ours), written);
}

TEST(GptShape, FollowsMegatronsDefaults) {
  const ModelConfig m =
      GptShape({.num_layers = 96, .hidden_size = 12288, .num_attention_heads = 96});
  EXPECT_EQ(m.name, "gpt-175b");
  EXPECT_EQ(m.architecture, "gpt");
  EXPECT_EQ(m.ffn_hidden_size, 4 * 12288);
  EXPECT_EQ(m.kv_channels, 128);
  EXPECT_EQ(m.num_query_groups, 96);
  EXPECT_EQ(m.vocab_size, 51200);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kLearned);
  EXPECT_EQ(m.normalization, Normalization::kLayerNorm);
  EXPECT_EQ(m.activation, Activation::kGelu);
  EXPECT_FALSE(m.gated_linear_unit);
  EXPECT_TRUE(m.add_qkv_bias && m.add_attention_output_bias && m.add_mlp_bias);
  EXPECT_TRUE(m.tied_embeddings && m.attention_dropout && m.hidden_dropout);
}

TEST(GptShape, CanMakeALlama) {
  ModelConfig m = GptShape({.name = "llama-3-8b",
                            .num_layers = 32,
                            .hidden_size = 4096,
                            .num_attention_heads = 32,
                            .num_query_groups = 8,
                            .ffn_hidden_size = 14336,
                            .vocab_size = 128256,
                            .max_position_embeddings = 8192,
                            .swiglu = true,
                            .rms_norm = true,
                            .rope = true,
                            .bias = false,
                            .dropout = false,
                            .tied_embeddings = false});
  m.architecture = "llama";
  EXPECT_EQ(m, PresetModel("llama-3-8b"));
}

TEST(GptShape, BadShapesAreRefused) {
  EXPECT_EQ(Complaint([] { GptShape({}); }),
            "model shape: num_layers: expected an integer from 1 to 10000, got 0\n"
            "model shape: hidden_size: expected an integer from 1 to 1048576, got 0\n"
            "model shape: num_attention_heads: expected an integer from 1 to 65536, got 0\n"
            "model shape: num_query_groups: expected an integer from 1 to 65536, got 0\n"
            "model shape: kv_channels: expected an integer from 1 to 65536, got 0\n"
            "model shape: ffn_hidden_size: expected an integer from 1 to 16777216, got 0");
  EXPECT_EQ(
      Complaint([] { GptShape({.num_layers = 2, .hidden_size = 100, .num_attention_heads = 3}); }),
      "model shape: hidden_size: 100 is not a multiple of 3 attention heads");
  EXPECT_EQ(
      Complaint([] {
        GptShape(
            {.num_layers = 2, .hidden_size = 64, .num_attention_heads = 8, .num_query_groups = 3});
      }),
      "model shape: num_attention_heads: 8 attention heads cannot be shared out evenly among "
      "3 query groups (KV heads)");
}

}  // namespace
}  // namespace millwright
