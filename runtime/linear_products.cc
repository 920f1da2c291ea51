// SPDX-License-Identifier: Apache-2.0
#include "runtime/linear_products.h"

namespace millwright {
namespace {

// cuBLAS library documentation, "Tensor Core Usage": 16 bytes.
constexpr std::int64_t kMultiple = 16;

std::int64_t FilledUp(std::int64_t cols) { return (cols + kMultiple - 1) / kMultiple * kMultiple; }

}  // namespace

void LinearProducts::Forward(std::span<const LinearPart> parts) {
  if (fp8()) {
    Multiply(parts, {{{.of = &LinearPart::x}, {.of = &LinearPart::w}}});
    return;
  }
  for (const LinearPart& part : parts) {
    backend_.Run(compute::Linear{.x = part.x, .w = part.w, .y = part.to});
  }
}

void LinearProducts::InputGradient(std::span<const LinearPart> parts) {
  if (fp8()) {
    Multiply(parts, {{{.of = &LinearPart::dy, .format = Element::kFp8Gradient},
                      {.of = &LinearPart::w, .transposed = true}}});
    return;
  }
  for (const LinearPart& part : parts) {
    backend_.Run(
        compute::LinearInputGradient{.dy = part.dy, .w = part.w, .dx = part.to, .add = part.add});
  }
}

void LinearProducts::WeightGradient(std::span<const LinearPart> parts) {
  if (fp8()) {
    Multiply(parts,
             {{{.of = &LinearPart::dy, .format = Element::kFp8Gradient, .transposed = true},
               {.of = &LinearPart::x, .transposed = true}}},
             true);
    return;
  }
  for (const LinearPart& part : parts) {
    backend_.Run(compute::LinearWeightGradient{.dy = part.dy, .x = part.x, .dw = part.to});
  }
}

void LinearProducts::Multiply(std::span<const LinearPart> parts,
                              const std::array<Operand, 2>& operands, bool add) {
  Tensor scales = Tensor::Zeros(backend_, tensors_, 2, Element::kSum);
  const auto scale = [&](const LinearPart& part, std::size_t side) {
    return scales.view().Part(2 * part.tensor + std::int64_t(side), 1);
  };
  // Parts of a tensor have one of their operands in common.
  const auto same = [&](std::size_t part, std::size_t side) {
    const ConstView LinearPart::*const of = operands[side].of;
    return part > 0 && (parts[part].*of).data == (parts[part - 1].*of).data;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t side = 0; side < 2; ++side) {
      if (same(i, side)) continue;
      backend_.Run(compute::RaiseFp8Scale{.x = parts[i].*operands[side].of,
                                          .format = operands[side].format,
                                          .scale = scale(parts[i], side)});
    }
  }
  backend_.Collective("fp8 scales", CollectiveKind::kAllReduce, group_, scales,
                      Reduction::kMaximum);
  std::array<Tensor, 2> rounded;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t side = 0; side < 2; ++side) {
      if (same(i, side)) continue;
      const Operand& operand = operands[side];
      const ConstView x = parts[i].*operand.of;
      rounded[side] = Tensor(backend_, operand.transposed ? x.cols : x.rows,
                             FilledUp(operand.transposed ? x.rows : x.cols), operand.format);
      backend_.Run(compute::RoundToFp8{.x = x,
                                       .scale = scale(parts[i], side),
                                       .to = rounded[side],
                                       .transposed = operand.transposed});
    }
    backend_.Run(compute::Linear{.x = rounded[0],
                                 .w = rounded[1],
                                 .y = parts[i].to,
                                 .add = add || parts[i].add,
                                 .x_scale = scale(parts[i], 0),
                                 .w_scale = scale(parts[i], 1)});
  }
}

}  // namespace millwright
