// SPDX-License-Identifier: Apache-2.0
//
// The operators of a transformer layer that are not matrix products, forward and backward, on one
// rank's part of the data.
//
// Rows are tokens, all of a sequence after those of the one before.  Where a function takes a
// gradient to add to, it says so in its name.  T is float or double, also for sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model.h"
#include "runtime/matrix.h"

namespace millwright {

inline constexpr double kNormEpsilon = 1e-5;  // rms_norm_eps of meta-llama/Llama-3.1-8B
inline constexpr double kRopeBase = 10'000;   // arXiv:2104.09864, section 3.3

// y = x / rms(x) * gain; rstd[row] = 1 / rms.
template <class T>
Matrix<T> RmsNorm(const Matrix<T>& x, std::span<const T> gain, std::vector<T>& rstd);
// Adds to dx and dgain.
template <class T>
void AddRmsNormGradient(const Matrix<T>& dy, const Matrix<T>& x, std::span<const T> gain,
                        const std::vector<T>& rstd, Matrix<T>& dx, std::span<T> dgain);

// Turns elements i and i + size/2 of each head of `size` by position x base^(-2i/size), or back.
// `positions` are those of one sequence's rows.
template <class T>
void Rope(Matrix<T>& x, std::int64_t size, std::span<const std::int64_t> positions, bool back);

// Causal attention of queries on blocks of keys and values that arrive one after the other: the
// softmax is kept as a running maximum and sum (arXiv:2205.14135, algorithm 1).
// A query attends to keys of its sequence at its position and before.
struct AttentionLayout {
  std::int64_t sequences = 1, head_size = 1;
  int heads = 1, groups = 1;  // query heads and KV heads on this rank
  double scale = 1;
};
template <class T>
class Attention {
 public:
  Attention(const AttentionLayout& shape, std::int64_t query_rows);
  void Take(const Matrix<T>& q, std::span<const std::int64_t> query_positions, const Matrix<T>& k,
            const Matrix<T>& v, std::span<const std::int64_t> key_positions);
  // After the last block: the output, and the logarithm of each row's and head's sum.
  Matrix<T> Finish(Matrix<T>& log_sum);

 private:
  AttentionLayout shape_;
  Matrix<T> output_, maximum_, sum_;
};
// What one block of keys and values has to do with the gradients; adds to dq, dk and dv.
template <class T>
void AddAttentionGradient(const AttentionLayout& shape, const Matrix<T>& q,
                          std::span<const std::int64_t> query_positions, const Matrix<T>& k,
                          const Matrix<T>& v, std::span<const std::int64_t> key_positions,
                          const Matrix<T>& output, const Matrix<T>& log_sum,
                          const Matrix<T>& doutput, Matrix<T>& dq, Matrix<T>& dk, Matrix<T>& dv);

// activation(x), or activation(gate) x up where gated: x then holds the gate's columns before those
// of up.  GELU is the one with the error function.
template <class T>
Matrix<T> Activate(const Matrix<T>& x, Activation activation, bool gated);
template <class T>
Matrix<T> ActivationGradient(const Matrix<T>& dy, const Matrix<T>& x, Activation activation,
                             bool gated);

template <class T>
void Add(std::span<const T> from, std::span<T> to);
// to[c] += the sum of column c.
template <class T>
void AddColumns(const Matrix<T>& from, std::span<T> to);
// Each row + `bias`, which may be empty.
template <class T>
void AddBias(std::span<const T> bias, Matrix<T>& x);

}  // namespace millwright
