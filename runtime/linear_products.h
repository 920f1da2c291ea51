// SPDX-License-Identifier: Apache-2.0
//
// The three products of linear layers, forward, for the gradient of the input and for that of the
// weight: of operands as they are, or rounded to FP8.
//
// In FP8 as Transformer Engine's Float8CurrentScaling with Format.HYBRID (its common/recipe, which
// is Megatron-LM's --fp8-recipe tensorwise --fp8-format hybrid): activations and weights in E4M3,
// gradients of outputs in E5M2, each tensor divided by the one number, no power of two, that makes
// its largest element the largest of the format; operands are rounded anew for every product, in
// which they are times these numbers again.  Sums, results and what is kept are as wide as without.
//
// A tensor is the whole one, whoever has parts of it: the weight of a layer, which of queries, keys
// and values is one and of experts one each; of activations and their gradients the rows of a
// micro-batch, and of an expert those of the micro-batches that its data-parallel ranks have at the
// same place in their order.  So ranks agree on the scales ("fp8 scales", a maximum over a few
// numbers before each product, which the simulated step does not charge), and no way to cut a step
// changes what comes of it.  Transformer Engine does so for rows that tensor ranks gather, and else
// has each rank scale its own part.
//
// FP8 products on tensor cores (cuBLAS library documentation, cublasLtMatmul) want both operands to
// have what is summed over in their rows, as many as a multiple of 16: the input's gradient takes
// the weight transposed, the weight's both operands, and rows are filled up with zeros.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/backend.h"
#include "runtime/rank_group.h"

namespace millwright {

// A product of a layer.
struct LinearPart {
  std::int64_t tensor = 0;  // whose scales it has
  ConstView x, w, dy;       // those that the product needs
  View to;                  // y, dx or dw
  bool add = false;         // to dx
};

class LinearProducts {
 public:
  // Of operands as they are.
  explicit LinearProducts(Backend& backend) : backend_(backend) {}
  // In FP8: of so many tensors of each kind, which the ranks of a group have together.  Every rank
  // of the group calls the same functions in the same order, with whatever parts it has.
  LinearProducts(Backend& backend, const RankGroup& group, std::int64_t tensors)
      : backend_(backend), group_(group), tensors_(tensors) {}

  void Forward(std::span<const LinearPart> parts);         // y = x W^T
  void InputGradient(std::span<const LinearPart> parts);   // dx = dy W, or += where `add`
  void WeightGradient(std::span<const LinearPart> parts);  // dW += dy^T x

 private:
  struct Operand {
    ConstView LinearPart::*of;
    Element format = Element::kFp8;
    bool transposed = false;
  };
  bool fp8() const { return tensors_ > 0; }
  // to = left right^T; += where `add`, or a part says so.
  void Multiply(std::span<const LinearPart> parts, const std::array<Operand, 2>& operands,
                bool add = false);

  Backend& backend_;
  RankGroup group_{};
  std::int64_t tensors_ = 0;
};

}  // namespace millwright
