// SPDX-License-Identifier: Apache-2.0
//
// A matrix in row-major order, and the three products of a linear layer y = x W^T, W being output x
// input features: y, the gradient of x and that of W.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millwright {

template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), data_(std::size_t(rows * cols)) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  bool empty() const { return data_.empty(); }
  T* row(std::int64_t r) { return data_.data() + r * cols_; }
  const T* row(std::int64_t r) const { return data_.data() + r * cols_; }
  std::span<T> all() { return data_; }
  std::span<const T> all() const { return data_; }

 private:
  std::int64_t rows_ = 0, cols_ = 0;
  std::vector<T> data_;
};

// `w` has `outputs` rows of x.cols().
template <class T>
Matrix<T> Linear(const Matrix<T>& x, std::span<const T> w, std::int64_t outputs);
// dx = dy W, with `inputs` columns.
template <class T>
Matrix<T> LinearInputGradient(const Matrix<T>& dy, std::span<const T> w, std::int64_t inputs);
// dw += dy^T x.
template <class T>
void AddLinearWeightGradient(const Matrix<T>& dy, const Matrix<T>& x, std::span<T> dw);

}  // namespace millwright
