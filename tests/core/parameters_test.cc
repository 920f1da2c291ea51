// SPDX-License-Identifier: Apache-2.0
#include "core/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/json_value.h"
#include "core/model_presets.h"

namespace millwright {
namespace {

std::map<std::string_view, Weight> ByName(const std::vector<Weight>& weights) {
  std::map<std::string_view, Weight> out;
  for (const Weight& w : weights) EXPECT_TRUE(out.emplace(w.name, w).second) << w.name;
  return out;
}

TEST(CountParameters, TinyLlamaByHand) {
  // A layer: norms 2 x 256; q 256 x 256; k and v 2 x 4 x 32 x 256; output 256 x 256;
  // gate and up 2 x 768 x 256; down 256 x 768.
  const std::int64_t h = 256, ffn = 768;
  const std::int64_t layer = h * 2 + h * h + h * 2 * 4 * 32 + h * h + h * 2 * ffn + h * ffn;
  // Embedding and head 1024 x 256 each, final norm 256.
  const std::int64_t total = layer * 4 + h * 2 * 1024 + h;
  EXPECT_EQ(total, 3672320);
  EXPECT_EQ(CountParameters(PresetModel("tiny-llama")).total, total);
}

TEST(CountParameters, TinyMoeByHand) {
  // Attention as in tiny-llama and two norms of heads of 32; MLP of the first layer; of the other
  // three a router and 8 experts of width 256, of which a token uses 2.
  const std::int64_t h = 256, ffn = 768, expert = h * 3 * 256;
  const std::int64_t attention = h * 2 + h * h + h * 2 * 4 * 32 + h * h + 64;
  const std::int64_t shared = attention * 4 + h * 3 * ffn + h * 3 * 8 + h * 2 * 1024 + h;
  const ParameterCount count = CountParameters(PresetModel("tiny-moe"));
  EXPECT_EQ(count.total, shared + expert * 3 * 8);
  EXPECT_EQ(count.active, shared + expert * 3 * 2);
}

TEST(CountParameters, EqualsTheGoldenCounts) {
  const std::string file = "tests/data/parameters.json";
  Mistakes mistakes(file);
  const JsonValue golden = ParseJson(file, ReadTextFile(file), mistakes);
  const JsonValue* parameters = golden.find("parameters");
  ASSERT_NE(parameters, nullptr);
  EXPECT_EQ(parameters->members.size(), 12U);
  for (const auto& [name, count] : parameters->members) {
    const ParameterCount got = CountParameters(PresetModel(name));
    EXPECT_EQ(got.total, count.find("total")->integer) << name;
    EXPECT_EQ(got.active, count.find("active")->integer) << name;
  }
}

TEST(CountParameters, EqualsPublishedCounts) {
  // What the checkpoints on the Hugging Face hub hold (safetensors metadata; gpt2 and gpt-neox-20b:
  // the model cards' and papers' own count of the same tensors).
  const struct {
    const char* preset;
    std::int64_t total;
  } kPublished[] = {
      {"gpt2", 124439808},
      {"gpt2-xl", 1557611200},
      {"gpt-neox-20b", 20554567680},
      {"llama-2-7b", 6738415616},
      {"llama-2-13b", 13015864320},
      {"llama-2-70b", 68976648192},
      {"llama-3-8b", 8030261248},
      {"llama-3-70b", 70553706496},
      {"llama-3.2-1b", 1235814400},
      {"llama-3.2-3b", 3212749824},
      {"mistral-7b", 7241732096},
      {"qwen2.5-7b", 7615616512},
      {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},
      {"gemma-2-9b", 9241705984},
      {"gemma-2-27b", 27227128320},
      {"gemma-3-1b", 999885952},
      {"gemma-3-27b", 27009346304},
      {"deepseek-v2", 235741434880},
      {"deepseek-v2-lite", 15706484224},
      {"gpt-oss-120b", 116829156672},
  };
  for (const auto& p : kPublished)
    EXPECT_EQ(CountParameters(PresetModel(p.preset)).total, p.total) << p.preset;
}

TEST(CountParameters, GptShapesEqualTheClosedForm) {
  // A Megatron GPT with biases: 12 L h^2 (1 + 13/(12 h)) + (V + s) h (arXiv:2104.04473, eq. 2),
  // and the final norm's 2 h, which that leaves out.
  const auto form = [](std::int64_t layers, std::int64_t h, std::int64_t vocab) {
    return layers * (12 * h * h + 13 * h) + (vocab + 2048) * h + 2 * h;
  };
  EXPECT_EQ(CountParameters(PresetModel("gpt-22b")).total, form(48, 6144, 51200));
  EXPECT_EQ(CountParameters(PresetModel("gpt3-175b")).total, form(96, 12288, 50257));
  EXPECT_EQ(CountParameters(PresetModel("mt-nlg-530b")).total, form(105, 20480, 51200));
  EXPECT_EQ(CountParameters(PresetModel("gpt-1t")).total, form(128, 25600, 51200));
}

TEST(CountParameters, MtpIsLeftOut) {
  ModelConfig model = PresetModel("deepseek-v3");
  EXPECT_EQ(model.mtp_num_layers, 1);
  const auto with = CountParameters(model).total;
  model.mtp_num_layers = 0;
  EXPECT_EQ(CountParameters(model).total, with);
}

TEST(LayerWeights, SplitsOfAGroupedQueryLayer) {
  const auto w = ByName(LayerWeights(PresetModel("qwen2.5-7b"), {}));
  EXPECT_EQ(w.at("q").rows, 28 * 128);
  EXPECT_EQ(w.at("q").split, WeightSplit::kTensor);
  EXPECT_EQ(w.at("q_bias").split, WeightSplit::kTensor);
  EXPECT_EQ(w.at("kv").rows, 2 * 4 * 128);
  EXPECT_EQ(w.at("kv").split, WeightSplit::kQueryGroups);
  EXPECT_EQ(w.at("kv_bias").split, WeightSplit::kQueryGroups);
  EXPECT_EQ(w.at("attention_output").cols, 28 * 128);
  EXPECT_EQ(w.at("attention_output").split, WeightSplit::kTensor);
  EXPECT_EQ(w.count("attention_output_bias"), 0U);
  EXPECT_EQ(w.at("fc1").rows, 2 * 18944);
  EXPECT_EQ(w.at("fc2").cols, 18944);
  EXPECT_EQ(w.at("mlp_norm").split, WeightSplit::kReplicated);
}

TEST(LayerWeights, BiasesOfRowParallelLayersAreReplicated) {
  const auto w = ByName(LayerWeights(PresetModel("gpt2"), {}));
  EXPECT_EQ(w.at("attention_norm").elements(), 2 * 768);  // gain and bias
  EXPECT_EQ(w.at("attention_output_bias").split, WeightSplit::kReplicated);
  EXPECT_EQ(w.at("fc1").rows, 4 * 768);
  EXPECT_EQ(w.at("fc1_bias").split, WeightSplit::kTensor);
  EXPECT_EQ(w.at("fc2_bias").split, WeightSplit::kReplicated);
}

TEST(LayerWeights, ExpertsOfGptOss) {
  const auto w = ByName(LayerWeights(PresetModel("gpt-oss-20b"), {.moe = true}));
  EXPECT_EQ(w.at("expert_fc1").elements(), 32LL * 2 * 2880 * 2880);
  EXPECT_EQ(w.at("expert_fc1").split, WeightSplit::kExpert);
  EXPECT_EQ(w.at("expert_fc1_bias").elements(), 32 * 2 * 2880);
  EXPECT_EQ(w.at("expert_fc1_bias").split, WeightSplit::kExpert);
  EXPECT_EQ(w.at("expert_fc2_bias").elements(), 32 * 2880);
  EXPECT_EQ(w.at("expert_fc2_bias").split, WeightSplit::kExpertReplicated);
  EXPECT_EQ(w.at("router_bias").elements(), 32);
  EXPECT_EQ(w.at("sinks").elements(), 64);
  EXPECT_EQ(w.at("sinks").split, WeightSplit::kTensor);
  EXPECT_EQ(w.count("fc1"), 0U);
}

TEST(LayerWeights, LatentAttentionOfDeepSeekV3) {
  const ModelConfig model = PresetModel("deepseek-v3");
  const auto w = ByName(LayerWeights(model, {.moe = true}));
  EXPECT_EQ(w.at("q_down").elements(), 1536 * 7168);
  EXPECT_EQ(w.at("q_down").split, WeightSplit::kReplicated);
  EXPECT_EQ(w.at("q_up").elements(), 128 * (128 + 64) * 1536);
  EXPECT_EQ(w.at("q_up").split, WeightSplit::kTensor);
  EXPECT_EQ(w.at("kv_down").elements(), (512 + 64) * 7168);
  EXPECT_EQ(w.at("kv_up").elements(), 128 * (128 + 128) * 512);
  EXPECT_EQ(w.at("attention_output").elements(), 7168 * 128 * 128);
  EXPECT_EQ(w.at("shared_fc1").elements(), 2 * 2048 * 7168);
  EXPECT_EQ(w.at("shared_fc1").split, WeightSplit::kTensor);
  EXPECT_EQ(w.at("router_correction_bias").elements(), 256);
  // The module's norms and projection: 3 x 7168 + 7168 x 14336.
  std::int64_t mtp = 0;
  for (const Weight& weight : MtpWeights(model)) mtp += weight.elements();
  EXPECT_EQ(mtp, 3 * 7168LL + 7168 * 14336LL);
  EXPECT_TRUE(MtpWeights(PresetModel("deepseek-v2")).empty());
  // V2-Lite projects its queries directly.
  const auto lite = ByName(LayerWeights(PresetModel("deepseek-v2-lite"), {}));
  EXPECT_EQ(lite.at("q").elements(), 16 * 192 * 2048);
  EXPECT_EQ(lite.count("q_down"), 0U);
}

TEST(HeadWeights, ATiedHeadIsNotCountedAgain) {
  const ModelConfig tied = PresetModel("gemma-2-9b");
  EXPECT_EQ(HeadWeights(tied).size(), 1U);  // the final norm
  EXPECT_EQ(HeadWeights(PresetModel("llama-3-8b")).back().elements(), 128256LL * 4096);
  EXPECT_EQ(EmbeddingWeights(PresetModel("gpt2")).back().name, "position_embedding");
  EXPECT_EQ(EmbeddingWeights(PresetModel("gpt2")).back().elements(), 1024 * 768);
}

}  // namespace
}  // namespace millwright
