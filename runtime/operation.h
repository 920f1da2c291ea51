// SPDX-License-Identifier: Apache-2.0
//
// What a backend can be asked to compute, on buffers that only it can read.
//
// An Operation is a kernel by name with its operands: the operators of a transformer, forward and
// backward, on one rank's part of the data.  Rows are tokens, all of a sequence after those of the
// one before.  Matrices are in row-major order; a linear layer is y = x W^T, W being output x input
// features.  Operands do not overlap.  What is added to, and not set, is marked +=.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/model.h"

namespace millwright {

// What a backend computes in.  With BF16, what is added up is FP32.
enum class ElementType : std::uint8_t { kFp64, kFp32, kBf16 };
std::string_view Name(ElementType type);  // "fp64"

// What a number is for; how wide it is then, the backend decides.
enum class Element : std::uint8_t {
  kValue,  // activations, weights and the gradients of activations
  kSum,    // what is added up: gradients of weights, the optimizer's state, a row's statistics
  kIndex,  // 32-bit integers: tokens and positions
  kFp8,    // operands of a Linear, multiplied as they are: E4M3 (runtime/fp8)
  kFp8Gradient,  // and such that are gradients: E5M2
};
constexpr bool IsFp8(Element element) {
  return element == Element::kFp8 || element == Element::kFp8Gradient;
}

// rows x cols elements of a device buffer, not owned.
template <class Byte>
struct BasicView {
  Byte* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  Element element = Element::kValue;
  int width = 0;  // bytes of an element

  std::int64_t size() const { return rows * cols; }
  std::int64_t bytes() const { return size() * width; }
  bool empty() const { return size() == 0; }
  // Elements [first, first + count), as one row.
  BasicView Part(std::int64_t first, std::int64_t count) const {
    return {data + first * width, 1, count, element, width};
  }
  BasicView Rows(std::int64_t first, std::int64_t count) const {
    return {data + first * cols * width, count, cols, element, width};
  }
  BasicView Shaped(std::int64_t new_rows, std::int64_t new_cols) const {
    return {data, new_rows, new_cols, element, width};
  }
  // NOLINTNEXTLINE(google-explicit-constructor): what may be written may be read
  operator BasicView<const Byte>() const
    requires(!std::is_const_v<Byte>)
  {
    return {data, rows, cols, element, width};
  }
};
using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

// Query heads and KV heads on this rank; a query attends to keys of its sequence at its position
// and before, the last `window` of them where that is not 0.
struct AttentionLayout {
  std::int64_t sequences = 1, head_size = 1;
  int heads = 1, groups = 1;
  double scale = 1;
  std::int64_t window = 0;
  auto operator<=>(const AttentionLayout&) const = default;
};

// rms_norm_eps of meta-llama/Llama-3.1-8B, and layer_norm_epsilon of openai-community/gpt2.
inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRopeBase = 10'000;  // arXiv:2104.09864, section 3.3

namespace compute {

// --- Moving and adding

struct Fill {
  View to;
  double value = 0;
};
struct Copy {
  ConstView from;
  View to;  // as many elements of the same kind
};
// rows x cols elements, rows `*_stride` elements apart.
struct CopyBlock {
  ConstView from;
  View to;  // += where `add`
  std::int64_t rows = 0, cols = 0, from_stride = 0, to_stride = 0;
  bool add = false;
};
struct Add {
  ConstView from;
  View to;  // +=
};

// --- Linear layers

struct Linear {
  ConstView x, w;  // both of values, or both in FP8
  View y;          // += where `add`, which is for operands in FP8; of a kSum too then
  bool add = false;
  ConstView x_scale, w_scale;  // one number each, that FP8 operands are times; empty: 1
};
struct LinearInputGradient {
  ConstView dy, w;
  View dx;  // += where `add`
  bool add = false;
};
struct LinearWeightGradient {
  ConstView dy, x;
  View dw;  // +=
};
// What `x` is to be divided by so that its largest element becomes the largest of `format`; raised
// to that where it is less.
struct RaiseFp8Scale {
  ConstView x;
  Element format = Element::kFp8;
  View scale;  // one kSum
};
// x / scale, to the nearest; of a scale of 0 zeros.  Transposed it has a row for each column of x.
// The rest of longer rows is filled with zeros.
struct RoundToFp8 {
  ConstView x, scale;
  View to;
  bool transposed = false;
};
// `bias`, which may be empty, to each row.
struct AddBias {
  ConstView bias;
  View x;  // +=
};
struct AddColumns {
  ConstView from;
  View to;  // += the sum of each column
};

// --- The rest of a layer

// y = x / rms(x) * gain; rstd[row] = 1 / rms.
struct RmsNorm {
  ConstView x, gain;
  View y, rstd;
};
struct RmsNormGradient {
  ConstView dy, x, gain, rstd;
  View dx, dgain;  // += both
};
// y = (x - mean) / deviation * gain + bias; mean and rstd = 1 / deviation of each row.
struct LayerNorm {
  ConstView x, gain, bias;
  View y, mean, rstd;
};
struct LayerNormGradient {
  ConstView dy, x, gain, mean, rstd;
  View dx, dgain, dbias;  // += all
};
// Turns elements i and i + size/2 of each head by position x base^(-2i/size), or back.
// `positions` are those of one sequence's rows.
struct Rope {
  View x;
  ConstView positions;
  std::int64_t head_size = 0;
  bool back = false;
};
// activation(x), or activation(gate) x up where gated: x then holds the gate's columns before those
// of up.  GELU is the one with the error function.
struct Activate {
  ConstView x;
  View y;
  Activation activation = Activation::kSilu;
  bool gated = false;
};
struct ActivationGradient {
  ConstView dy, x;
  View dx;
  Activation activation = Activation::kSilu;
  bool gated = false;
};

// --- Attention on blocks of keys and values that arrive one after the other: the softmax is kept
// as a running maximum and sum (arXiv:2205.14135, algorithm 1).

// Into the state of each query's row and head: output, maximum (at first minus infinity) and sum.
struct AttendBlock {
  AttentionLayout layout;
  ConstView q, k, v, query_positions, key_positions;
  View output, maximum, sum;  // kSum, +=
};
// After the last block: the output, and the logarithm of each row's and head's sum.
struct FinishAttention {
  AttentionLayout layout;
  ConstView accumulated, maximum, sum;
  View output, log_sum;
};
// Of each query's row and head the sum of output x its gradient, which is that of the softmax x its
// gradient.
struct AttentionRowSums {
  AttentionLayout layout;
  ConstView output, doutput;
  View sums;
};
// What one block of keys and values has to do with the gradients.
struct AttentionGradient {
  AttentionLayout layout;
  ConstView q, k, v, query_positions, key_positions, log_sum, row_sums, doutput;
  View dq, dk, dv;  // +=
};

// Attention whose keys and values are all here, at the queries' positions: 0, 1, 2 and so on of
// each sequence.  Not an Operation, but a call of its own (Backend::Attend): block by block with
// those above, or a library's at once.
struct Attention {
  AttentionLayout layout;
  ConstView q, k, v, positions;
  View output, log_sum;
};
struct AttentionBackward {
  AttentionLayout layout;
  ConstView q, k, v, positions, output, log_sum, doutput;
  View dq, dk, dv;
};

// --- Embedding and cross-entropy.  Ids are rows of this rank's table, or columns of its logits; of
// an id that is negative another rank has the row or column.

struct Embed {
  ConstView table, ids;
  View y;  // of the table's kind
};
struct EmbeddingGradient {
  ConstView dy, ids;
  View dtable;  // +=
};
// Columns from `words` on are padding.
struct RowMaximum {
  ConstView logits;
  std::int64_t words = 0;
  View maximum;  // minus infinity where there are no words
};
struct CrossEntropySums {
  ConstView logits, labels, maximum;
  std::int64_t words = 0;
  View sum, label_logit;  // of exp(logit - maximum); 0 where another rank has the label
};
struct TokenLoss {
  ConstView maximum, sum, label_logit;
  View loss;
};
// share x (softmax - 1 at the label).
struct CrossEntropyGradient {
  ConstView logits, labels, maximum, sum;
  std::int64_t words = 0;
  double share = 1;
  View gradient;
};

// --- Experts.  Rows are copied to the experts of their tokens and back by Embed, whose table is
// rows then.

// The chosen.cols experts with the largest logits of each row, the largest first and of equals the
// lower number, with their softmax: over these alone where `normalize`, else over all.
struct Route {
  ConstView logits;
  View chosen, weights;
  bool normalize = true;
};
struct RouteGradient {
  ConstView logits, chosen, dweights;
  View dlogits;
  bool normalize = true;
};
// y = sum of weights x the rows in `slots`, which are of as many columns; of all weights 1 where
// they are empty.
struct CombineRows {
  ConstView rows, slots, weights;
  View y;
};
// Each row is in one slot.
struct CombineRowsGradient {
  ConstView dy, rows, slots, weights;
  View drows, dweights;
};

// --- Optimizer

// Adam (arXiv:1412.6980, algorithm 1) of the step by which the corrections are 1 - beta^step.
// Where `master` is not empty it is what is updated, and `weights` are its rounded copy.
struct AdamUpdate {
  ConstView gradient;
  View moment1, moment2, weights, master;
  double rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, correction1 = 1, correction2 = 1;
};

}  // namespace compute

using Operation =
    std::variant<compute::Fill, compute::Copy, compute::CopyBlock, compute::Add, compute::Linear,
                 compute::LinearInputGradient, compute::LinearWeightGradient, compute::AddBias,
                 compute::AddColumns, compute::RmsNorm, compute::RmsNormGradient,
                 compute::LayerNorm, compute::LayerNormGradient, compute::Rope, compute::Activate,
                 compute::ActivationGradient, compute::AttendBlock, compute::FinishAttention,
                 compute::AttentionRowSums, compute::AttentionGradient, compute::Embed,
                 compute::EmbeddingGradient, compute::RowMaximum, compute::CrossEntropySums,
                 compute::TokenLoss, compute::CrossEntropyGradient, compute::Route,
                 compute::RouteGradient, compute::CombineRows, compute::CombineRowsGradient,
                 compute::AdamUpdate, compute::RaiseFp8Scale, compute::RoundToFp8>;
using AttentionCall = std::variant<compute::Attention, compute::AttentionBackward>;

}  // namespace millwright
