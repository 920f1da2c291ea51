// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/check.h"

namespace millwright {
namespace {

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

// Calls visit(query row, key row) for each pair of a sequence that the causal mask lets through.
template <class Visit>
void ForRows(const AttentionLayout& shape, std::span<const std::int64_t> query_positions,
             std::span<const std::int64_t> key_positions, const Visit& visit) {
  const auto queries = std::int64_t(query_positions.size());
  const auto keys = std::int64_t(key_positions.size());
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t j = 0; j < keys; ++j) {
        if (key_positions[std::size_t(j)] <= query_positions[std::size_t(i)]) {
          visit(s * queries + i, s * keys + j);
        }
      }
    }
  }
}

}  // namespace

template <class T>
Matrix<T> RmsNorm(const Matrix<T>& x, std::span<const T> gain, std::vector<T>& rstd) {
  Matrix<T> y(x.rows(), x.cols());
  rstd.assign(std::size_t(x.rows()), T(0));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const T* in = x.row(r);
    const T mean_square = Dot(in, in, x.cols()) / T(x.cols());
    const T scale = 1 / std::sqrt(mean_square + T(kNormEpsilon));
    rstd[std::size_t(r)] = scale;
    T* out = y.row(r);
    for (std::int64_t c = 0; c < x.cols(); ++c) out[c] = in[c] * scale * gain[std::size_t(c)];
  }
  return y;
}

template <class T>
void AddRmsNormGradient(const Matrix<T>& dy, const Matrix<T>& x, std::span<const T> gain,
                        const std::vector<T>& rstd, Matrix<T>& dx, std::span<T> dgain) {
  const std::int64_t n = x.cols();
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const T *in = x.row(r), *up = dy.row(r);
    const T scale = rstd[std::size_t(r)];
    T along = 0;  // how much of the gradient only changes the length of x
    for (std::int64_t c = 0; c < n; ++c) {
      along += up[c] * gain[std::size_t(c)] * in[c];
      dgain[std::size_t(c)] += up[c] * in[c] * scale;
    }
    along *= scale * scale / T(n);
    T* out = dx.row(r);
    for (std::int64_t c = 0; c < n; ++c) {
      out[c] += scale * (up[c] * gain[std::size_t(c)] - in[c] * along);
    }
  }
}

template <class T>
void Rope(Matrix<T>& x, std::int64_t size, std::span<const std::int64_t> positions, bool back) {
  const std::int64_t half = size / 2;
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const auto position = double(positions[std::size_t(r) % positions.size()]);
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(kRopeBase, -2.0 * double(i) / double(size));
      const T cosine = T(std::cos(angle)), sine = T(back ? -std::sin(angle) : std::sin(angle));
      for (T* head = x.row(r); head < x.row(r) + x.cols(); head += size) {
        const T a = head[i], b = head[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = a * sine + b * cosine;
      }
    }
  }
}

template <class T>
Attention<T>::Attention(const AttentionLayout& shape, std::int64_t query_rows)
    : shape_(shape),
      output_(query_rows, shape.heads * shape.head_size),
      maximum_(query_rows, shape.heads),
      sum_(query_rows, shape.heads) {
  std::fill(maximum_.all().begin(), maximum_.all().end(), -std::numeric_limits<T>::infinity());
}

template <class T>
void Attention<T>::Take(const Matrix<T>& q, std::span<const std::int64_t> query_positions,
                        const Matrix<T>& k, const Matrix<T>& v,
                        std::span<const std::int64_t> key_positions) {
  const std::int64_t e = shape_.head_size;
  const T scale = T(shape_.scale);
  ForRows(shape_, query_positions, key_positions, [&](std::int64_t i, std::int64_t j) {
    for (int h = 0; h < shape_.heads; ++h) {
      const std::int64_t group = std::int64_t{1} * h * shape_.groups / shape_.heads;
      const T score = scale * Dot(q.row(i) + h * e, k.row(j) + group * e, e);
      T &maximum = maximum_.row(i)[h], &sum = sum_.row(i)[h];
      T* out = output_.row(i) + h * e;
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
Matrix<T> Attention<T>::Finish(Matrix<T>& log_sum) {
  log_sum = Matrix<T>(output_.rows(), shape_.heads);
  for (std::int64_t r = 0; r < output_.rows(); ++r) {
    for (int h = 0; h < shape_.heads; ++h) {
      const T sum = sum_.row(r)[h];
      MILLWRIGHT_CHECK(sum > 0);  // a query sees its own key
      T* out = output_.row(r) + h * shape_.head_size;
      for (std::int64_t c = 0; c < shape_.head_size; ++c) out[c] /= sum;
      log_sum.row(r)[h] = maximum_.row(r)[h] + std::log(sum);
    }
  }
  return std::move(output_);
}

template <class T>
void AddAttentionGradient(const AttentionLayout& shape, const Matrix<T>& q,
                          std::span<const std::int64_t> query_positions, const Matrix<T>& k,
                          const Matrix<T>& v, std::span<const std::int64_t> key_positions,
                          const Matrix<T>& output, const Matrix<T>& log_sum,
                          const Matrix<T>& doutput, Matrix<T>& dq, Matrix<T>& dk, Matrix<T>& dv) {
  const std::int64_t e = shape.head_size;
  const T scale = T(shape.scale);
  // Row sums of the softmax times its gradient.
  Matrix<T> along(q.rows(), shape.heads);
  for (std::int64_t r = 0; r < q.rows(); ++r) {
    for (int h = 0; h < shape.heads; ++h) {
      along.row(r)[h] = Dot(doutput.row(r) + h * e, output.row(r) + h * e, e);
    }
  }
  ForRows(shape, query_positions, key_positions, [&](std::int64_t i, std::int64_t j) {
    for (int h = 0; h < shape.heads; ++h) {
      const std::int64_t group = std::int64_t{1} * h * shape.groups / shape.heads;
      const T *query = q.row(i) + h * e, *key = k.row(j) + group * e, *value = v.row(j) + group * e;
      const T* up = doutput.row(i) + h * e;
      const T weight = std::exp(scale * Dot(query, key, e) - log_sum.row(i)[h]);
      const T dscore = weight * (Dot(up, value, e) - along.row(i)[h]) * scale;
      T *dquery = dq.row(i) + h * e, *dkey = dk.row(j) + group * e, *dvalue = dv.row(j) + group * e;
      for (std::int64_t c = 0; c < e; ++c) {
        dquery[c] += dscore * key[c];
        dkey[c] += dscore * query[c];
        dvalue[c] += weight * up[c];
      }
    }
  });
}

template <class T>
Matrix<T> Activate(const Matrix<T>& x, Activation activation, bool gated) {
  const std::int64_t width = gated ? x.cols() / 2 : x.cols();
  Matrix<T> y(x.rows(), width);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const T* in = x.row(r);
    T* out = y.row(r);
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = Value(activation, in[c]) * (gated ? in[width + c] : T(1));
    }
  }
  return y;
}

template <class T>
Matrix<T> ActivationGradient(const Matrix<T>& dy, const Matrix<T>& x, Activation activation,
                             bool gated) {
  const std::int64_t width = dy.cols();
  Matrix<T> dx(x.rows(), x.cols());
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const T *up = dy.row(r), *in = x.row(r);
    T* out = dx.row(r);
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = up[c] * Slope(activation, in[c]) * (gated ? in[width + c] : T(1));
      if (gated) out[width + c] = up[c] * Value(activation, in[c]);
    }
  }
  return dx;
}

template <class T>
void Add(std::span<const T> from, std::span<T> to) {
  MILLWRIGHT_CHECK(from.size() == to.size());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

template <class T>
void AddColumns(const Matrix<T>& from, std::span<T> to) {
  for (std::int64_t r = 0; r < from.rows(); ++r) {
    for (std::int64_t c = 0; c < from.cols(); ++c) to[std::size_t(c)] += from.row(r)[c];
  }
}

template <class T>
void AddBias(std::span<const T> bias, Matrix<T>& x) {
  if (bias.empty()) return;
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t c = 0; c < x.cols(); ++c) x.row(r)[c] += bias[std::size_t(c)];
  }
}

#define MILLWRIGHT_KERNELS(T)                                                                    \
  template Matrix<T> RmsNorm(const Matrix<T>&, std::span<const T>, std::vector<T>&);             \
  template void AddRmsNormGradient(const Matrix<T>&, const Matrix<T>&, std::span<const T>,       \
                                   const std::vector<T>&, Matrix<T>&, std::span<T>);             \
  template void Rope(Matrix<T>&, std::int64_t, std::span<const std::int64_t>, bool);             \
  template class Attention<T>;                                                                   \
  template void AddAttentionGradient(                                                            \
      const AttentionLayout&, const Matrix<T>&, std::span<const std::int64_t>, const Matrix<T>&, \
      const Matrix<T>&, std::span<const std::int64_t>, const Matrix<T>&, const Matrix<T>&,       \
      const Matrix<T>&, Matrix<T>&, Matrix<T>&, Matrix<T>&);                                     \
  template Matrix<T> Activate(const Matrix<T>&, Activation, bool);                               \
  template Matrix<T> ActivationGradient(const Matrix<T>&, const Matrix<T>&, Activation, bool);   \
  template void Add(std::span<const T>, std::span<T>);                                           \
  template void AddColumns(const Matrix<T>&, std::span<T>);                                      \
  template void AddBias(std::span<const T>, Matrix<T>&);
MILLWRIGHT_KERNELS(float)
MILLWRIGHT_KERNELS(double)
#undef MILLWRIGHT_KERNELS

}  // namespace millwright
