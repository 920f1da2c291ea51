// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu_kernels.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <variant>

#include "core/check.h"
#include "runtime/fp8.h"

namespace millwright {
namespace {

template <class T>
struct Matrix {
  T* data;
  std::int64_t rows, cols;
  T* row(std::int64_t r) const { return data + r * cols; }
  T& operator[](std::int64_t i) const { return data[i]; }
};

template <class T>
Matrix<T> Of(View view) {
  MILLWRIGHT_CHECK(view.empty() || view.width == sizeof(T));
  return {reinterpret_cast<T*>(view.data), view.rows, view.cols};
}
template <class T>
Matrix<const T> Of(ConstView view) {
  MILLWRIGHT_CHECK(view.empty() || view.width == sizeof(T));
  return {reinterpret_cast<const T*>(view.data), view.rows, view.cols};
}
std::span<const std::int32_t> Indices(ConstView view) {
  const Matrix<const std::int32_t> all = Of<std::int32_t>(view);
  return {all.data, std::size_t(view.size())};
}

template <class T>
T Value(Activation activation, T x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2_v<T>));
    case Activation::kRelu:
      return std::max(x, T(0));
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : T(0);
  }
  return 0;
}

template <class T>
T Slope(Activation activation, T x) {
  switch (activation) {
    case Activation::kSilu: {
      const T sigmoid = 1 / (1 + std::exp(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    case Activation::kGelu:
      return (1 + std::erf(x / std::numbers::sqrt2_v<T>)) / 2 +
             x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
    case Activation::kRelu:
      return x > 0 ? T(1) : T(0);
    case Activation::kSquaredRelu:
      return x > 0 ? 2 * x : T(0);
  }
  return 0;
}

template <class T>
T Dot(const T* a, const T* b, std::int64_t n) {
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Calls visit(query row, key row) for each pair of a sequence that the causal mask and the window
// let through.
template <class Visit>
void ForRows(const AttentionLayout& shape, std::span<const std::int32_t> query_positions,
             std::span<const std::int32_t> key_positions, const Visit& visit) {
  const auto queries = std::int64_t(query_positions.size());
  const auto keys = std::int64_t(key_positions.size());
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t j = 0; j < keys; ++j) {
        const std::int64_t before =
            std::int64_t{query_positions[std::size_t(i)]} - key_positions[std::size_t(j)];
        if (before >= 0 && (shape.window == 0 || before < shape.window)) {
          visit(s * queries + i, s * keys + j);
        }
      }
    }
  }
}

// --- Moving and adding

template <class T>
void Compute(const compute::Fill& op) {
  const Matrix<T> to = Of<T>(op.to);
  std::fill_n(to.data, op.to.size(), T(op.value));
}

template <class T>
void Compute(const compute::Copy& op) {
  MILLWRIGHT_CHECK(op.from.size() == op.to.size() && op.from.width == op.to.width);
  std::copy_n(op.from.data, op.from.bytes(), op.to.data);
}

template <class T>
void Compute(const compute::CopyBlock& op) {
  const auto fits = [&](std::int64_t size, std::int64_t stride) {
    return (op.rows - 1) * stride + op.cols <= size;
  };
  MILLWRIGHT_CHECK(fits(op.from.size(), op.from_stride) && fits(op.to.size(), op.to_stride));
  const T* from = Of<T>(op.from).data;
  T* to = Of<T>(op.to).data;
  for (std::int64_t r = 0; r < op.rows; ++r, from += op.from_stride, to += op.to_stride) {
    if (op.add) {
      for (std::int64_t c = 0; c < op.cols; ++c) to[c] += from[c];
    } else {
      std::copy_n(from, op.cols, to);
    }
  }
}

template <class T>
void Compute(const compute::Add& op) {
  MILLWRIGHT_CHECK(op.from.size() == op.to.size());
  const Matrix<const T> from = Of<T>(op.from);
  const Matrix<T> to = Of<T>(op.to);
  for (std::int64_t i = 0; i < op.to.size(); ++i) to[i] += from[i];
}

// --- Linear layers

template <class T>
using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Eigen::Map<Dense<T>> Product(View view) {
  const Matrix<T> m = Of<T>(view);
  return {m.data, m.rows, m.cols};
}
template <class T>
Eigen::Map<const Dense<T>> Product(ConstView view) {
  const Matrix<const T> m = Of<T>(view);
  return {m.data, m.rows, m.cols};
}

template <class T>
Dense<T> FromFp8(ConstView view) {
  MILLWRIGHT_CHECK(IsFp8(view.element));
  std::array<T, 256> numbers;
  for (std::size_t bits = 0; bits < numbers.size(); ++bits) {
    numbers[bits] = T(FromFp8(FormatOf(view.element), std::uint8_t(bits)));
  }
  Dense<T> values(view.rows, view.cols);
  for (std::int64_t i = 0; i < view.size(); ++i) {
    values.data()[i] = numbers[std::to_integer<std::size_t>(view.data[i])];
  }
  return values;
}

template <class T>
void MultiplyFp8(const compute::Linear& op) {
  const auto scale = [](ConstView of) { return of.empty() ? T(1) : Of<T>(of)[0]; };
  const T factor = scale(op.x_scale) * scale(op.w_scale);
  if (op.add) {
    Product<T>(op.y).noalias() += factor * (FromFp8<T>(op.x) * FromFp8<T>(op.w).transpose());
  } else {
    Product<T>(op.y).noalias() = factor * (FromFp8<T>(op.x) * FromFp8<T>(op.w).transpose());
  }
}

template <class T>
void Compute(const compute::Linear& op) {
  MILLWRIGHT_CHECK(op.x.cols == op.w.cols && op.x.rows == op.y.rows && op.w.rows == op.y.cols);
  if (IsFp8(op.x.element)) {
    MultiplyFp8<T>(op);
    return;
  }
  MILLWRIGHT_CHECK(!op.add);
  Product<T>(op.y).noalias() = Product<T>(op.x) * Product<T>(op.w).transpose();
}

template <class T>
void Compute(const compute::LinearInputGradient& op) {
  MILLWRIGHT_CHECK(op.dy.cols == op.w.rows && op.dy.rows == op.dx.rows && op.w.cols == op.dx.cols);
  if (op.add) {
    Product<T>(op.dx).noalias() += Product<T>(op.dy) * Product<T>(op.w);
  } else {
    Product<T>(op.dx).noalias() = Product<T>(op.dy) * Product<T>(op.w);
  }
}

template <class T>
void Compute(const compute::LinearWeightGradient& op) {
  MILLWRIGHT_CHECK(op.dy.rows == op.x.rows && op.dw.rows == op.dy.cols && op.dw.cols == op.x.cols);
  Product<T>(op.dw).noalias() += Product<T>(op.dy).transpose() * Product<T>(op.x);
}

template <class T>
void Compute(const compute::RaiseFp8Scale& op) {
  const Matrix<const T> x = Of<T>(op.x);
  const Matrix<T> scale = Of<T>(op.scale);
  T largest = 0;
  for (std::int64_t i = 0; i < op.x.size(); ++i) largest = std::max(largest, std::abs(x[i]));
  scale[0] = std::max(scale[0], largest / T(LargestOf(FormatOf(op.format))));
}

template <class T>
void Compute(const compute::RoundToFp8& op) {
  const std::int64_t rows = op.transposed ? op.x.cols : op.x.rows,
                     cols = op.transposed ? op.x.rows : op.x.cols;
  MILLWRIGHT_CHECK(IsFp8(op.to.element) && op.to.rows == rows && op.to.cols >= cols);
  const Matrix<const T> x = Of<T>(op.x);
  const T scale = Of<T>(op.scale)[0];
  for (std::int64_t r = 0; r < rows; ++r) {
    std::byte* to = op.to.data + r * op.to.cols;
    for (std::int64_t c = 0; c < cols; ++c) {
      const T value = op.transposed ? x.row(c)[r] : x.row(r)[c];
      // Of a scale of 0 all are zeros, or so small that they become zeros, or no numbers.
      // In single precision, as everywhere in FP8: what is halfway between two numbers of it but
      // for FP64's last bit is halfway.
      const auto scaled = float(scale > 0 ? value / scale : value);
      to[c] = std::byte(ToFp8(FormatOf(op.to.element), double(scaled)));
    }
    std::fill(to + cols, to + op.to.cols, std::byte{0});
  }
}

template <class T>
void Compute(const compute::AddBias& op) {
  if (op.bias.empty()) return;
  MILLWRIGHT_CHECK(op.bias.size() == op.x.cols);
  const Matrix<const T> bias = Of<T>(op.bias);
  const Matrix<T> x = Of<T>(op.x);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t c = 0; c < x.cols; ++c) x.row(r)[c] += bias[c];
  }
}

template <class T>
void Compute(const compute::AddColumns& op) {
  MILLWRIGHT_CHECK(op.from.cols == op.to.size());
  const Matrix<const T> from = Of<T>(op.from);
  const Matrix<T> to = Of<T>(op.to);
  for (std::int64_t r = 0; r < from.rows; ++r) {
    for (std::int64_t c = 0; c < from.cols; ++c) to[c] += from.row(r)[c];
  }
}

// --- The rest of a layer

template <class T>
void Compute(const compute::RmsNorm& op) {
  MILLWRIGHT_CHECK(op.gain.size() == op.x.cols && op.rstd.size() == op.x.rows);
  const Matrix<const T> x = Of<T>(op.x), gain = Of<T>(op.gain);
  const Matrix<T> y = Of<T>(op.y), rstd = Of<T>(op.rstd);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T* in = x.row(r);
    const T mean_square = Dot(in, in, x.cols) / T(x.cols);
    const T scale = 1 / std::sqrt(mean_square + T(kNormEpsilon));
    rstd[r] = scale;
    T* out = y.row(r);
    for (std::int64_t c = 0; c < x.cols; ++c) out[c] = in[c] * scale * gain[c];
  }
}

template <class T>
void Compute(const compute::RmsNormGradient& op) {
  MILLWRIGHT_CHECK(op.gain.size() == op.x.cols && op.rstd.size() == op.x.rows);
  const Matrix<const T> dy = Of<T>(op.dy), x = Of<T>(op.x), gain = Of<T>(op.gain),
                        rstd = Of<T>(op.rstd);
  const Matrix<T> dx = Of<T>(op.dx), dgain = Of<T>(op.dgain);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T *in = x.row(r), *up = dy.row(r);
    const T scale = rstd[r];
    T along = 0;  // how much of the gradient only changes the length of x
    for (std::int64_t c = 0; c < x.cols; ++c) {
      along += up[c] * gain[c] * in[c];
      dgain[c] += up[c] * in[c] * scale;
    }
    along *= scale * scale / T(x.cols);
    T* out = dx.row(r);
    for (std::int64_t c = 0; c < x.cols; ++c) out[c] += scale * (up[c] * gain[c] - in[c] * along);
  }
}

template <class T>
void Compute(const compute::LayerNorm& op) {
  MILLWRIGHT_CHECK(op.gain.size() == op.x.cols && op.bias.size() == op.x.cols);
  MILLWRIGHT_CHECK(op.mean.size() == op.x.rows && op.rstd.size() == op.x.rows);
  const Matrix<const T> x = Of<T>(op.x), gain = Of<T>(op.gain), bias = Of<T>(op.bias);
  const Matrix<T> y = Of<T>(op.y), means = Of<T>(op.mean), rstd = Of<T>(op.rstd);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T* in = x.row(r);
    const T mean = std::accumulate(in, in + x.cols, T(0)) / T(x.cols);
    T variance = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) variance += (in[c] - mean) * (in[c] - mean);
    const T scale = 1 / std::sqrt(variance / T(x.cols) + T(kNormEpsilon));
    means[r] = mean;
    rstd[r] = scale;
    T* out = y.row(r);
    for (std::int64_t c = 0; c < x.cols; ++c) out[c] = (in[c] - mean) * scale * gain[c] + bias[c];
  }
}

template <class T>
void Compute(const compute::LayerNormGradient& op) {
  MILLWRIGHT_CHECK(op.gain.size() == op.x.cols && op.dbias.size() == op.x.cols);
  const Matrix<const T> dy = Of<T>(op.dy), x = Of<T>(op.x), gain = Of<T>(op.gain),
                        means = Of<T>(op.mean), rstd = Of<T>(op.rstd);
  const Matrix<T> dx = Of<T>(op.dx), dgain = Of<T>(op.dgain), dbias = Of<T>(op.dbias);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T *in = x.row(r), *up = dy.row(r);
    const T mean = means[r], scale = rstd[r];
    // How much of the gradient only moves x as a whole, and how much only stretches it.
    T moved = 0, stretched = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const T normed = (in[c] - mean) * scale;
      dgain[c] += up[c] * normed;
      dbias[c] += up[c];
      moved += up[c] * gain[c];
      stretched += up[c] * gain[c] * normed;
    }
    moved /= T(x.cols);
    stretched /= T(x.cols);
    T* out = dx.row(r);
    for (std::int64_t c = 0; c < x.cols; ++c) {
      out[c] += scale * (up[c] * gain[c] - moved - (in[c] - mean) * scale * stretched);
    }
  }
}

template <class T>
void Compute(const compute::Rope& op) {
  const std::int64_t size = op.head_size, half = size / 2;
  const Matrix<T> x = Of<T>(op.x);
  const std::span<const std::int32_t> positions = Indices(op.positions);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const auto position = double(positions[std::size_t(r) % positions.size()]);
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(kRopeBase, -2.0 * double(i) / double(size));
      const T cosine = T(std::cos(angle)), sine = T(op.back ? -std::sin(angle) : std::sin(angle));
      for (T* head = x.row(r); head < x.row(r) + x.cols; head += size) {
        const T a = head[i], b = head[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = a * sine + b * cosine;
      }
    }
  }
}

template <class T>
void Compute(const compute::Activate& op) {
  const Matrix<const T> x = Of<T>(op.x);
  const Matrix<T> y = Of<T>(op.y);
  const std::int64_t width = y.cols;
  MILLWRIGHT_CHECK(x.cols == (op.gated ? 2 : 1) * width && x.rows == y.rows);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T* in = x.row(r);
    T* out = y.row(r);
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = Value(op.activation, in[c]) * (op.gated ? in[width + c] : T(1));
    }
  }
}

template <class T>
void Compute(const compute::ActivationGradient& op) {
  const Matrix<const T> dy = Of<T>(op.dy), x = Of<T>(op.x);
  const Matrix<T> dx = Of<T>(op.dx);
  const std::int64_t width = dy.cols;
  MILLWRIGHT_CHECK(x.cols == (op.gated ? 2 : 1) * width && x.rows == dy.rows);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const T *up = dy.row(r), *in = x.row(r);
    T* out = dx.row(r);
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = up[c] * Slope(op.activation, in[c]) * (op.gated ? in[width + c] : T(1));
      if (op.gated) out[width + c] = up[c] * Value(op.activation, in[c]);
    }
  }
}

// --- Attention

template <class T>
void Compute(const compute::AttendBlock& op) {
  const std::int64_t e = op.layout.head_size;
  const int heads = op.layout.heads, groups = op.layout.groups;
  const T scale = T(op.layout.scale);
  const Matrix<const T> q = Of<T>(op.q), k = Of<T>(op.k), v = Of<T>(op.v);
  const Matrix<T> output = Of<T>(op.output), maxima = Of<T>(op.maximum), sums = Of<T>(op.sum);
  ForRows(op.layout, Indices(op.query_positions), Indices(op.key_positions),
          [&](std::int64_t i, std::int64_t j) {
            for (int h = 0; h < heads; ++h) {
              const std::int64_t group = std::int64_t{1} * h * groups / heads;
              const T score = scale * Dot(q.row(i) + h * e, k.row(j) + group * e, e);
              T &maximum = maxima.row(i)[h], &sum = sums.row(i)[h];
              T* out = output.row(i) + h * e;
              if (score > maximum) {
                const T shrink = std::exp(maximum - score);  // 0 for the first score
                for (std::int64_t c = 0; c < e; ++c) out[c] *= shrink;
                sum *= shrink;
                maximum = score;
              }
              const T weight = std::exp(score - maximum);
              sum += weight;
              const T* value = v.row(j) + group * e;
              for (std::int64_t c = 0; c < e; ++c) out[c] += weight * value[c];
            }
          });
}

template <class T>
void Compute(const compute::FinishAttention& op) {
  const Matrix<const T> accumulated = Of<T>(op.accumulated), maximum = Of<T>(op.maximum),
                        sums = Of<T>(op.sum);
  const Matrix<T> output = Of<T>(op.output), log_sum = Of<T>(op.log_sum);
  const std::int64_t e = op.layout.head_size;
  for (std::int64_t r = 0; r < output.rows; ++r) {
    for (int h = 0; h < op.layout.heads; ++h) {
      const T sum = sums.row(r)[h];
      MILLWRIGHT_CHECK(sum > 0);  // a query sees its own key
      for (std::int64_t c = h * e; c < (h + 1) * e; ++c) {
        output.row(r)[c] = accumulated.row(r)[c] / sum;
      }
      log_sum.row(r)[h] = maximum.row(r)[h] + std::log(sum);
    }
  }
}

template <class T>
void Compute(const compute::AttentionRowSums& op) {
  const Matrix<const T> output = Of<T>(op.output), doutput = Of<T>(op.doutput);
  const Matrix<T> sums = Of<T>(op.sums);
  const std::int64_t e = op.layout.head_size;
  for (std::int64_t r = 0; r < output.rows; ++r) {
    for (int h = 0; h < op.layout.heads; ++h) {
      sums.row(r)[h] = Dot(doutput.row(r) + h * e, output.row(r) + h * e, e);
    }
  }
}

template <class T>
void Compute(const compute::AttentionGradient& op) {
  const std::int64_t e = op.layout.head_size;
  const int heads = op.layout.heads, groups = op.layout.groups;
  const T scale = T(op.layout.scale);
  const Matrix<const T> q = Of<T>(op.q), k = Of<T>(op.k), v = Of<T>(op.v),
                        log_sum = Of<T>(op.log_sum), row_sums = Of<T>(op.row_sums),
                        doutput = Of<T>(op.doutput);
  const Matrix<T> dq = Of<T>(op.dq), dk = Of<T>(op.dk), dv = Of<T>(op.dv);
  ForRows(op.layout, Indices(op.query_positions), Indices(op.key_positions),
          [&](std::int64_t i, std::int64_t j) {
            for (int h = 0; h < heads; ++h) {
              const std::int64_t group = std::int64_t{1} * h * groups / heads;
              const T *query = q.row(i) + h * e, *key = k.row(j) + group * e,
                      *value = v.row(j) + group * e;
              const T* up = doutput.row(i) + h * e;
              const T weight = std::exp(scale * Dot(query, key, e) - log_sum.row(i)[h]);
              const T dscore = weight * (Dot(up, value, e) - row_sums.row(i)[h]) * scale;
              T *dquery = dq.row(i) + h * e, *dkey = dk.row(j) + group * e,
                *dvalue = dv.row(j) + group * e;
              for (std::int64_t c = 0; c < e; ++c) {
                dquery[c] += dscore * key[c];
                dkey[c] += dscore * query[c];
                dvalue[c] += weight * up[c];
              }
            }
          });
}

// --- Embedding and cross-entropy

template <class T>
void Compute(const compute::Embed& op) {
  const Matrix<const T> table = Of<T>(op.table);
  const Matrix<T> y = Of<T>(op.y);
  const std::span<const std::int32_t> ids = Indices(op.ids);
  for (std::int64_t r = 0; r < y.rows; ++r) {
    const std::int64_t id = ids[std::size_t(r)];
    if (id < 0) {
      std::fill_n(y.row(r), y.cols, T(0));
    } else {
      std::copy_n(table.row(id), y.cols, y.row(r));
    }
  }
}

template <class T>
void Compute(const compute::EmbeddingGradient& op) {
  const Matrix<const T> dy = Of<T>(op.dy);
  const Matrix<T> dtable = Of<T>(op.dtable);
  const std::span<const std::int32_t> ids = Indices(op.ids);
  for (std::int64_t r = 0; r < dy.rows; ++r) {
    const std::int64_t id = ids[std::size_t(r)];
    if (id < 0) continue;
    for (std::int64_t c = 0; c < dy.cols; ++c) dtable.row(id)[c] += dy.row(r)[c];
  }
}

template <class T>
void Compute(const compute::RowMaximum& op) {
  const Matrix<const T> logits = Of<T>(op.logits);
  const Matrix<T> maximum = Of<T>(op.maximum);
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    maximum[r] = -std::numeric_limits<T>::infinity();
    const T* row = logits.row(r);
    for (std::int64_t c = 0; c < op.words; ++c) maximum[r] = std::max(maximum[r], row[c]);
  }
}

template <class T>
void Compute(const compute::CrossEntropySums& op) {
  const Matrix<const T> logits = Of<T>(op.logits), maximum = Of<T>(op.maximum);
  const Matrix<T> sum = Of<T>(op.sum), label_logit = Of<T>(op.label_logit);
  const std::span<const std::int32_t> labels = Indices(op.labels);
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const T* row = logits.row(r);
    sum[r] = 0;
    for (std::int64_t c = 0; c < op.words; ++c) sum[r] += std::exp(row[c] - maximum[r]);
    const std::int64_t label = labels[std::size_t(r)];
    label_logit[r] = label < 0 ? T(0) : row[label];
  }
}

template <class T>
void Compute(const compute::TokenLoss& op) {
  const Matrix<const T> maximum = Of<T>(op.maximum), sum = Of<T>(op.sum),
                        label_logit = Of<T>(op.label_logit);
  const Matrix<T> loss = Of<T>(op.loss);
  for (std::int64_t r = 0; r < op.loss.size(); ++r) {
    loss[r] = maximum[r] + std::log(sum[r]) - label_logit[r];
  }
}

template <class T>
void Compute(const compute::CrossEntropyGradient& op) {
  const Matrix<const T> logits = Of<T>(op.logits), maximum = Of<T>(op.maximum), sum = Of<T>(op.sum);
  const Matrix<T> gradient = Of<T>(op.gradient);
  const std::span<const std::int32_t> labels = Indices(op.labels);
  const T share = T(op.share);
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    T* out = gradient.row(r);
    for (std::int64_t c = 0; c < op.words; ++c) {
      out[c] = share * std::exp(logits.row(r)[c] - maximum[r]) / sum[r];
    }
    std::fill(out + op.words, out + gradient.cols, T(0));
    if (const std::int64_t label = labels[std::size_t(r)]; label >= 0) out[label] -= share;
  }
}

// --- Experts

// Softmax of the chosen logits of a row, over these or over all.
template <class T>
std::vector<T> RouteWeights(const T* logits, std::int64_t experts,
                            std::span<const std::int32_t> chosen, bool normalize) {
  const T maximum = logits[chosen.front()];
  T sum = 0;
  std::vector<T> weights;
  for (std::int32_t expert : chosen)
    sum += weights.emplace_back(std::exp(logits[expert] - maximum));
  if (!normalize) {
    sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - maximum);
  }
  for (T& weight : weights) weight /= sum;
  return weights;
}

template <class T>
void Compute(const compute::Route& op) {
  const Matrix<const T> logits = Of<T>(op.logits);
  const Matrix<std::int32_t> chosen = Of<std::int32_t>(op.chosen);
  const Matrix<T> weights = Of<T>(op.weights);
  MILLWRIGHT_CHECK(chosen.rows == logits.rows && chosen.cols <= logits.cols);
  std::vector<std::int32_t> order(std::size_t(logits.cols));
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const T* row = logits.row(r);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen.cols, order.end(),
                      [row](std::int32_t a, std::int32_t b) {
                        return row[a] != row[b] ? row[a] > row[b] : a < b;
                      });
    std::copy_n(order.begin(), chosen.cols, chosen.row(r));
    const std::vector<T> of_row =
        RouteWeights(row, logits.cols, {chosen.row(r), std::size_t(chosen.cols)}, op.normalize);
    std::copy(of_row.begin(), of_row.end(), weights.row(r));
  }
}

template <class T>
void Compute(const compute::RouteGradient& op) {
  const Matrix<const T> logits = Of<T>(op.logits), dweights = Of<T>(op.dweights);
  const Matrix<const std::int32_t> chosen = Of<std::int32_t>(op.chosen);
  const Matrix<T> dlogits = Of<T>(op.dlogits);
  for (std::int64_t r = 0; r < logits.rows; ++r) {
    const std::span<const std::int32_t> of_row{chosen.row(r), std::size_t(chosen.cols)};
    const T *row = logits.row(r), *up = dweights.row(r);
    const std::vector<T> weights = RouteWeights(row, logits.cols, of_row, op.normalize);
    T mean = 0;
    for (std::size_t i = 0; i < of_row.size(); ++i) mean += weights[i] * up[i];
    // Every expert lowers the weight of the others that it is normalised with.
    T* out = dlogits.row(r);
    const T unit = weights.front();  // of the largest logit
    for (std::int64_t e = 0; e < logits.cols; ++e) {
      out[e] = op.normalize ? T(0) : -unit * std::exp(row[e] - row[of_row.front()]) * mean;
    }
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      out[of_row[i]] = weights[i] * (up[i] - mean);
    }
  }
}

template <class T>
void Compute(const compute::CombineRows& op) {
  const Matrix<const T> rows = Of<T>(op.rows), weights = Of<T>(op.weights);
  const Matrix<const std::int32_t> slots = Of<std::int32_t>(op.slots);
  const Matrix<T> y = Of<T>(op.y);
  MILLWRIGHT_CHECK(slots.rows == y.rows &&
                   (op.weights.empty() || op.weights.size() == op.slots.size()));
  for (std::int64_t r = 0; r < y.rows; ++r) {
    T* out = y.row(r);
    std::fill_n(out, y.cols, T(0));
    for (std::int64_t i = 0; i < slots.cols; ++i) {
      const T weight = op.weights.empty() ? T(1) : weights.row(r)[i];
      const T* row = rows.row(slots.row(r)[i]);
      for (std::int64_t c = 0; c < y.cols; ++c) out[c] += weight * row[c];
    }
  }
}

template <class T>
void Compute(const compute::CombineRowsGradient& op) {
  const Matrix<const T> dy = Of<T>(op.dy), rows = Of<T>(op.rows), weights = Of<T>(op.weights);
  const Matrix<const std::int32_t> slots = Of<std::int32_t>(op.slots);
  const Matrix<T> drows = Of<T>(op.drows), dweights = Of<T>(op.dweights);
  for (std::int64_t r = 0; r < dy.rows; ++r) {
    const T* up = dy.row(r);
    for (std::int64_t i = 0; i < slots.cols; ++i) {
      const std::int64_t slot = slots.row(r)[i];
      const T weight = weights.row(r)[i];
      dweights.row(r)[i] = Dot(up, rows.row(slot), dy.cols);
      for (std::int64_t c = 0; c < dy.cols; ++c) drows.row(slot)[c] = weight * up[c];
    }
  }
}

// --- Optimizer

template <class T>
void Compute(const compute::AdamUpdate& op) {
  const Matrix<const T> gradients = Of<T>(op.gradient);
  const Matrix<T> moment1 = Of<T>(op.moment1), moment2 = Of<T>(op.moment2),
                  weights = Of<T>(op.weights);
  const Matrix<T> master = op.master.empty() ? weights : Of<T>(op.master);
  MILLWRIGHT_CHECK(op.gradient.size() == op.weights.size());
  for (std::int64_t i = 0; i < op.gradient.size(); ++i) {
    const T gradient = gradients[i];
    T &m = moment1[i], &v = moment2[i];
    m = T(op.beta1) * m + T(1 - op.beta1) * gradient;
    v = T(op.beta2) * v + T(1 - op.beta2) * gradient * gradient;
    master[i] -=
        T(op.rate) * (m / T(op.correction1)) / (std::sqrt(v / T(op.correction2)) + T(op.epsilon));
    weights[i] = master[i];
  }
}

}  // namespace

template <class T>
void ComputeOnCpu(const Operation& operation) {
  std::visit([](const auto& op) { Compute<T>(op); }, operation);
}
template void ComputeOnCpu<float>(const Operation&);
template void ComputeOnCpu<double>(const Operation&);

}  // namespace millwright
