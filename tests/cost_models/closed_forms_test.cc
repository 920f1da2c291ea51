// SPDX-License-Identifier: Apache-2.0
//
// Every value of tests/data/closed_forms.json comes out of the public functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/json_value.h"
#include "core/model_presets.h"
#include "core/parameters.h"
#include "cost_models/collectives.h"
#include "cost_models/memory.h"
#include "cost_models/operators.h"
#include "cost_models/pipeline.h"

namespace millwright {
namespace {

double Number(const JsonValue* value) {
  return value->kind == JsonValue::Kind::kInteger ? double(value->integer) : value->number;
}

struct Given {
  const JsonValue& entry;
  double operator()(const char* key) const { return Number(entry.find("given")->find(key)); }
  bool has(const char* key) const { return entry.find("given")->find(key) != nullptr; }
  bool flag(const char* key) const { return entry.find("given")->find(key)->boolean; }
};

// A GPT layer as the papers count it: 4 h MLP, GELU, LayerNorm, dropout masks.
ModelConfig GptOf(std::int64_t hidden, int heads, int layers = 1) {
  return GptShape({.num_layers = layers, .hidden_size = hidden, .num_attention_heads = heads});
}

double TensorCommunicationOverCompute(const Given& given, bool backward) {
  const ModelConfig model = GptOf(std::int64_t(given("hidden")), 64);
  const LayerShape shape{.tensor = int(given("tp")), .micro_batch_size = 2, .seq_length = 4096};
  double communication = 0, compute = 0;
  for (const Operator& op : LayerOperators(model, model.layer(0), shape, {})) {
    if (op.kind == OperatorKind::kGemm) {
      compute += (backward ? 3 : 1) * op.forward_flops(MfuConvention::kFull).value;
    }
    if (op.kind != OperatorKind::kCollective) continue;
    const auto wire = [&](CollectiveKind kind) {
      return op.payload.value * RingBytesSentFactor(kind, shape.tensor);
    };
    if (op.forward) communication += wire(op.forward_collective);
    if (op.backward && backward) communication += wire(op.backward_collective);
  }
  return communication / given("bytes_per_s") / (compute / given("flops_per_s"));
}

double LayerActivation(const Given& given) {
  const ModelConfig model = GptOf(std::int64_t(given("d")), int(given("heads")));
  TrainingConfig training;
  training.flash_attention = false;
  const LayerShape shape{.tensor = int(given("tp")),
                         .sequence_parallel = given.flag("sp") && given("tp") > 1,
                         .micro_batch_size = int(given("b")),
                         .seq_length = std::int64_t(given("T"))};
  const ModuleMask recomputed =
      given.has("recompute") ? Mask(RecomputeModule::kCoreAttn) : ModuleMask{0};
  return SavedBytes(LayerOperators(model, model.layer(0), shape, training), recomputed,
                    /*with_statistics=*/false)
      .value;
}

double ValueOf(const std::string& id, const Given& given) {
  const auto starts = [&](const char* prefix) { return id.rfind(prefix, 0) == 0; };
  if (starts("state_bytes")) {
    TrainingConfig training;
    training.gradient_bytes = given("gradient_bytes");
    training.moment_bytes = given("optimizer_bytes") - 4;  // beside the fp32 master
    return StateOf({.dense = given("parameters")}, training, 0, 1, 1).total().value;
  }
  if (starts("zero")) {
    TrainingConfig training;
    training.gradient_bytes = 2;
    return StateOf({.dense = given("parameters")}, training, int(given("zero")), given("dp"), 1)
        .total()
        .value;
  }
  if (id == "tp_allreduce_payload") {
    const ModelConfig model = GptOf(std::int64_t(given("hidden")), 64);
    const LayerShape shape{.tensor = 8, .seq_length = std::int64_t(given("tokens"))};
    int reductions = 0;
    double payload = 0;
    for (const Operator& op : LayerOperators(model, model.layer(0), shape, {})) {
      if (op.kind != OperatorKind::kCollective) continue;
      reductions += (op.forward ? 1 : 0) + (op.backward ? 1 : 0);
      EXPECT_TRUE(payload == 0 || payload == op.payload.value);
      payload = op.payload.value;
    }
    EXPECT_EQ(reductions, 4);  // two forward, two backward
    return payload;
  }
  if (id == "matrix_bf16") {
    const ModelConfig model = GptOf(std::int64_t(given("rows")), 64);
    for (const Weight& w : LayerWeights(model, model.layer(0))) {
      if (w.rows * w.cols == std::int64_t(given("rows") * given("cols"))) {
        const RankParameters one = ParametersPerRank({w}, model, 1, 1, 1);
        return StateOf(one, {}, 0, 1, 1).weights.value;
      }
    }
    return 0;
  }
  if (starts("activations_70b")) {
    const ModelConfig model = GptOf(std::int64_t(given("hidden")), 64);
    const LayerShape shape{.micro_batch_size = int(given("batch")),
                           .seq_length = std::int64_t(given("tokens"))};
    return given("layers") *
           SavedBytes(LayerOperators(model, model.layer(0), shape, {}), 0, false).value;
  }
  if (starts("tp_comm_over_compute_forward")) return TensorCommunicationOverCompute(given, false);
  if (starts("tp_comm_over_compute_step")) return TensorCommunicationOverCompute(given, true);
  if (starts("bubble")) {
    return BubbleRatio(int(given("pp")), std::int64_t(given("microbatches")), int(given("vpp")));
  }
  if (id == "layer_activation_full_recompute") {
    const ModelConfig model = GptOf(std::int64_t(given("d")), 64);
    const LayerShape shape{.micro_batch_size = int(given("b")),
                           .seq_length = std::int64_t(given("T"))};
    return LayerInputBytes(LayerOperators(model, model.layer(0), shape, {})).value;
  }
  if (starts("layer_activation")) return LayerActivation(given);
  if (starts("ring_allreduce_factor")) {
    return RingBytesSentFactor(CollectiveKind::kAllReduce, int(given("ranks")));
  }
  if (starts("model_flops")) {
    const ModelConfig model = GptShape({.num_layers = int(given("layers")),
                                        .hidden_size = std::int64_t(given("hidden")),
                                        .num_attention_heads = 96,
                                        .vocab_size = std::int64_t(given("vocab"))});
    TrainingConfig training;
    training.global_batch_size = std::int64_t(given("batch"));
    training.seq_length = std::int64_t(given("seq"));
    training.mfu_convention = MfuConvention::kFull;
    return FlopsOfStep(model, training, {.granularity = RecomputeGranularity::kFull})
        .hardware.value;
  }
  ADD_FAILURE() << "no function gives " << id;
  return 0;
}

TEST(ClosedForms, EveryGoldenValueComesOut) {
  const std::string file = "tests/data/closed_forms.json";
  Mistakes mistakes(file);
  const JsonValue golden = ParseJson(file, ReadTextFile(file), mistakes);
  ASSERT_EQ(golden.items.size(), 37U);
  for (const JsonValue& entry : golden.items) {
    const std::string id = entry.find("id")->text;
    const double value = Number(entry.find("value"));
    const double relative = Number(entry.find("rel_tol"));
    // A tolerance of 0 still allows what a double's last bit does to a product of integers.
    EXPECT_NEAR(ValueOf(id, Given{entry}), value, std::max(relative, 1e-15) * value) << id;
  }
}

// The formulas leave row statistics out; what they leave out is small.
TEST(ClosedForms, StatisticsAreSmall) {
  const ModelConfig model = GptOf(6144, 64);
  const LayerShape shape{.micro_batch_size = 4, .seq_length = 2048};
  const auto operators = LayerOperators(model, model.layer(0), shape, {});
  const double with = SavedBytes(operators).value;
  const double without = SavedBytes(operators, 0, false).value;
  // Two LayerNorms' mean and 1/std, 8 bytes a token each, and a log-sum-exp of 4 bytes a head:
  // 272 of 34 x 6144 bytes.
  EXPECT_DOUBLE_EQ(with - without, 4 * 2048 * (2 * 8 + 4 * 64.0));
  EXPECT_LT(with / without, 1.002);
}

}  // namespace
}  // namespace millwright
