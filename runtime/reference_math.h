// SPDX-License-Identifier: Apache-2.0
//
// What runtime/reference computes a token with, in plain loops, each with its derivative. Gradients
// are added to, but for those that are returned.
#pragma once

#include <cstddef>
#include <vector>

#include "core/model.h"

namespace millwright::reference {

using Vector = std::vector<double>;

double Activated(Activation kind, double x);
double ActivatedSlope(Activation kind, double x);

// y[n] = sum over k of w[n, k] x[k], from row `first` of w on, `rows` of them (+ bias).
Vector Times(const Vector& w, std::size_t first, std::size_t rows, const Vector& x,
             const Vector* bias);
void TimesBackward(const Vector& w, std::size_t first, const Vector& x, const Vector& dy,
                   Vector& dx, Vector& dw);
void BiasBackward(std::size_t first, const Vector& dy, Vector* dbias);  // of none nothing

// Over x[first, first + size): RMSNorm where `weights` is a gain of that size, LayerNorm where a
// bias follows it.
void Norm(const Vector& weights, std::size_t size, Vector& x, std::size_t first);
// From x as it was before; dy becomes dx.
void NormBackward(const Vector& weights, std::size_t size, const Vector& x, std::size_t first,
                  Vector& dy, Vector& dweights);

// RoPE of heads of `size`, or with direction -1 back.
void Rotate(Vector& x, std::size_t size, std::size_t position, double direction);

// An MLP whose fc1 and fc2 are rows of larger matrices, as one expert's are; fc1 then has its gate
// first where gated.
struct Mlp {
  const Vector *fc1, *fc1_bias, *fc2, *fc2_bias;
  std::size_t expert, hidden, inner;
  Activation activation;
  bool gated;
};
struct MlpGradients {
  Vector *fc1, *fc1_bias, *fc2, *fc2_bias;
};
// Its two products by themselves, since what they multiply may be rounded before.
struct MlpKept {
  Vector input, fc1;
  Vector activated;  // of fc1's output
  Vector inner;      // what fc2 multiplies: that times the expert's weight
  Vector dfc1;
};
void MlpUp(const Mlp& mlp, MlpKept& kept);            // from `input` to `activated`
Vector MlpDown(const Mlp& mlp, const MlpKept& kept);  // from `inner`, without the bias
// From the gradient of `activated` to `dfc1`.
void ActivationBackward(const Mlp& mlp, const Vector& dactivated, MlpKept& kept);
// The rows of an expert's weights before those of another.
std::size_t FirstRowOfFc1(const Mlp& mlp);
std::size_t FirstRowOfFc2(const Mlp& mlp);

// FP8 (arXiv:2209.05433, table 1): bits of the mantissa, the exponent of the least normal number,
// and the largest number.
struct EightBits {
  int mantissa, least_exponent;
  double largest;
};
inline constexpr EightBits kE4m3{.mantissa = 3, .least_exponent = -6, .largest = 448};
inline constexpr EightBits kE5m2{.mantissa = 2, .least_exponent = -14, .largest = 57344};
// All of them to numbers of that kind, times what makes the largest of them the kind's largest.
void RoundTogether(const std::vector<Vector*>& rows, const EightBits& kind);

// The experts of a token and their weights.
struct Routed {
  std::vector<std::size_t> experts;
  Vector weights;
  Vector all;         // softmax over all experts
  double margin = 0;  // of the last expert's logit over the next
};
Routed Route(const Vector& logits, std::size_t topk, bool normalize);
// To the gradient of the logits.
Vector RouteBackward(const Routed& routed, const Vector& dweights, bool normalize);

}  // namespace millwright::reference
