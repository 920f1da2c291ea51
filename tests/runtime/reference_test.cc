// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

// (L(w + d) - L(w - d)) / 2d is the derivative to O(d^2) and rounding of L over d: with d = 1e-5
// both are below 1e-9, and of gradients of 1e-3 and more 1e-5 is what may be asked for.
void CheckGradients(const ModelConfig& model, int expected_tensors) {
  const Workload workload = TinyWorkload(model, {}, 2, 6);
  Reference reference(workload, false);
  reference.ComputeGradients(0);
  // A step of 1e-5 must not send a token to another expert.
  EXPECT_GT(reference.routing_margin(), 1e-3);
  int tensors = 0;
  for (const auto& [name, gradient] : reference.gradients()) {
    double largest = 0;
    for (double value : gradient) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 1e-4) << Text(name, model);
    // The element with the largest gradient, and some others.
    std::vector<std::size_t> elements{0, gradient.size() / 2, gradient.size() - 1};
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (std::abs(gradient[i]) == largest) elements.push_back(i);
    }
    for (std::size_t i : elements) {
      constexpr double kStep = 1e-5;
      double& weight = reference.weight(name)[i];
      const double at = weight;
      weight = at + kStep;
      const double above = reference.ComputeLoss(0);
      weight = at - kStep;
      const double below = reference.ComputeLoss(0);
      weight = at;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-5 * largest + 1e-9)
          << Text(name, model) << " " << i;
    }
    ++tensors;
  }
  EXPECT_EQ(tensors, expected_tensors);
}

// Embedding, final norm, head; per layer two norms, q, kv, output, fc1, fc2.
TEST(Reference, GradientsAreDifferencesOfTheLoss) {
  CheckGradients(WithLayers(TinyModel(), 2), 3 + 2 * 7);
}

TEST(Reference, GradientsOfAPlainMlpWithBiases) {
  ModelConfig model = WithBiases(WithLayers(TinyModel(), 2));
  model.gated_linear_unit = false;
  model.activation = Activation::kGelu;
  CheckGradients(model, 3 + 2 * 12);  // and 5 biases
}

// LayerNorm, learned positions, a tied head: no head but a table of positions.
TEST(Reference, GradientsOfAGpt) { CheckGradients(WithLayers(TinyGpt(), 2), 3 + 2 * 12); }

TEST(Reference, GradientsOfNormedHeadsAndAWindow) {
  for (const Normalization norm : {Normalization::kRmsNorm, Normalization::kLayerNorm}) {
    ModelConfig model = WithLayers(TinyModel(), 2);
    model.normalization = norm;
    model.qk_layernorm = true;
    model.layers = {{.count = 1, .kind = {.sliding_window = 3}}, {.count = 1, .kind = {}}};
    CheckGradients(model, 3 + 2 * 9);  // and two norms of heads
  }
}

// A dense layer; then router and its bias, of routed and shared experts fc1 and fc2 and 4 biases
// beside the 3 of attention.
TEST(Reference, GradientsOfExperts) {
  for (const bool normalize : {false, true}) {
    ModelConfig model = WithBiases(WithLayers(TinyModel(), 2));
    model.moe = TinyMoe(8).moe;
    model.moe.num_experts = 4;
    model.moe.router_bias = true;
    model.moe.normalize_topk = normalize;
    model.layers = {{.count = 1, .kind = {}}, {.count = 1, .kind = {.moe = true}}};
    CheckGradients(model, 3 + 12 + 5 + 3 + 2 + 4 + 4);
  }
}

TEST(Reference, LossOfAUniformHeadIsTheLogarithmOfTheVocabulary) {
  const Workload workload = TinyWorkload(WithLayers(TinyModel(), 1), {}, 2, 6);
  Reference reference(workload, false);
  for (double& value : reference.weight({1, "output_head"})) value = 0;
  EXPECT_NEAR(reference.ComputeLoss(0), std::log(301.0), 1e-12);
}

// The first step of Adam is rate x g / (|g| + epsilon): m and v are g and g^2 once corrected.
TEST(Reference, FirstStepOfAdamHasTheSizeOfTheRate) {
  const Workload workload = TinyWorkload(WithLayers(TinyModel(), 1), {}, 2, 6);
  Reference reference(workload, false);
  reference.ComputeGradients(0);
  const TensorName name{0, "fc1"};
  const std::vector<double> before = reference.weights().at(name);
  const std::vector<double> gradient = reference.gradients().at(name);
  reference.Update({});
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(reference.weights().at(name)[i],
                before[i] - 1e-3 * gradient[i] / (std::abs(gradient[i]) + 1e-8), 1e-15);
  }
}

}  // namespace
}  // namespace millwright
