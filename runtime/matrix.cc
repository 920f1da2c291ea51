// SPDX-License-Identifier: Apache-2.0
#include "runtime/matrix.h"

#include <Eigen/Core>

#include "core/check.h"

namespace millwright {
namespace {

template <class T>
using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Eigen::Map<const Dense<T>> View(const Matrix<T>& m) {
  return {m.all().data(), m.rows(), m.cols()};
}

template <class T>
Eigen::Map<const Dense<T>> View(std::span<const T> data, std::int64_t rows, std::int64_t cols) {
  MILLWRIGHT_CHECK(std::int64_t(data.size()) == rows * cols);
  return {data.data(), rows, cols};
}

}  // namespace

template <class T>
Matrix<T> Linear(const Matrix<T>& x, std::span<const T> w, std::int64_t outputs) {
  Matrix<T> y(x.rows(), outputs);
  Eigen::Map<Dense<T>>(y.all().data(), y.rows(), y.cols()).noalias() =
      View(x) * View(w, outputs, x.cols()).transpose();
  return y;
}

template <class T>
Matrix<T> LinearInputGradient(const Matrix<T>& dy, std::span<const T> w, std::int64_t inputs) {
  Matrix<T> dx(dy.rows(), inputs);
  Eigen::Map<Dense<T>>(dx.all().data(), dx.rows(), dx.cols()).noalias() =
      View(dy) * View(w, dy.cols(), inputs);
  return dx;
}

template <class T>
void AddLinearWeightGradient(const Matrix<T>& dy, const Matrix<T>& x, std::span<T> dw) {
  MILLWRIGHT_CHECK(std::int64_t(dw.size()) == dy.cols() * x.cols() && dy.rows() == x.rows());
  Eigen::Map<Dense<T>>(dw.data(), dy.cols(), x.cols()).noalias() += View(dy).transpose() * View(x);
}

template Matrix<float> Linear(const Matrix<float>&, std::span<const float>, std::int64_t);
template Matrix<double> Linear(const Matrix<double>&, std::span<const double>, std::int64_t);
template Matrix<float> LinearInputGradient(const Matrix<float>&, std::span<const float>,
                                           std::int64_t);
template Matrix<double> LinearInputGradient(const Matrix<double>&, std::span<const double>,
                                            std::int64_t);
template void AddLinearWeightGradient(const Matrix<float>&, const Matrix<float>&, std::span<float>);
template void AddLinearWeightGradient(const Matrix<double>&, const Matrix<double>&,
                                      std::span<double>);

}  // namespace millwright
