// SPDX-License-Identifier: Apache-2.0
//
// Why an MLP is split by columns and then by rows: what the other ways come out as.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "runtime/cpu_backend.h"

namespace millwright {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 3, kHidden = 4, kInner = 8;

Tensor Filled(Backend& backend, std::int64_t rows, std::int64_t cols, double phase) {
  std::vector<double> values(std::size_t(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(double(i) + phase);
  Tensor tensor(backend, rows, cols);
  backend.Upload(std::span<const double>(values), tensor);
  return tensor;
}

// Columns [first, first + count).
Tensor Columns(Backend& backend, ConstView m, std::int64_t first, std::int64_t count) {
  Tensor part(backend, m.rows, count);
  backend.Run(compute::CopyBlock{.from = m.Part(first, m.size() - first),
                                 .to = part,
                                 .rows = m.rows,
                                 .cols = count,
                                 .from_stride = m.cols,
                                 .to_stride = count});
  return part;
}

Tensor Linear(Backend& backend, ConstView x, ConstView w) {
  Tensor y(backend, x.rows, w.rows);
  backend.Run(compute::Linear{.x = x, .w = w, .y = y});
  return y;
}

Tensor Activated(Backend& backend, ConstView x) {
  Tensor y(backend, x.rows, x.cols);
  backend.Run(compute::Activate{.x = x, .y = y, .activation = Activation::kGelu});
  return y;
}

// A rank's view of an MLP: whole inputs and weights, of which it takes its part.
struct Mlp {
  explicit Mlp(Communicator& communicator)
      : backend(communicator),
        x(Filled(backend, kTokens, kHidden, 0)),
        w1(Filled(backend, kInner, kHidden, 1)),
        w2(Filled(backend, kHidden, kInner, 2)),
        bias(backend, 1, kHidden) {
    const std::vector<double> values{0.5, -1, 2, 0.25};
    backend.Upload(std::span<const double>(values), bias);
  }

  void AddBias(Tensor& y) { backend.Run(compute::AddBias{.bias = bias, .x = y}); }
  void AllReduce(Tensor& y) {
    backend.Collective("mlp", CollectiveKind::kAllReduce,
                       {.first = 0, .stride = 1, .ranks = kRanks}, y);
  }
  // This rank's rows of w1 and columns of w2: the product is a part of the sum.
  Tensor ColumnThenRow() {
    const std::int64_t inner = kInner / kRanks, first = backend.rank() * inner;
    const Tensor part = Activated(backend, Linear(backend, x, w1.view().Rows(first, inner)));
    return Linear(backend, part, Columns(backend, w2, first, inner));
  }

  CpuBackend<double> backend;
  Tensor x, w1, w2, bias;
};

// The largest difference from the dense MLP of what two ranks come to.
template <class OfRank>
double Off(const OfRank& of_rank) {
  double off = 0;
  std::mutex mutex;
  RunThreads(kRanks, [&](Communicator& communicator) {
    Mlp mlp(communicator);
    Tensor dense =
        Linear(mlp.backend, Activated(mlp.backend, Linear(mlp.backend, mlp.x, mlp.w1)), mlp.w2);
    mlp.AddBias(dense);
    const std::vector<double> expected = mlp.backend.Download(dense);
    const std::vector<double> values = mlp.backend.Download(of_rank(mlp));
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < values.size(); ++i) {
      off = std::max(off, std::abs(values[i] - expected[i]));
    }
  });
  return off;
}

TEST(WrongSplit, ColumnThenRowIsRight) {
  EXPECT_LT(Off([](Mlp& mlp) {
              Tensor y = mlp.ColumnThenRow();
              mlp.AllReduce(y);
              mlp.AddBias(y);
              return y;
            }),
            1e-14);
}

// Each rank has half of each inner feature's sum, and the activation of a sum is not the sum of
// activations.
TEST(WrongSplit, RowFirstIsWrong) {
  EXPECT_GT(Off([](Mlp& mlp) {
              const std::int64_t h = kHidden / kRanks, first = mlp.backend.rank() * h;
              const Tensor partial = Linear(mlp.backend, Columns(mlp.backend, mlp.x, first, h),
                                            Columns(mlp.backend, mlp.w1, first, h));
              Tensor y = Linear(mlp.backend, Activated(mlp.backend, partial), mlp.w2);
              mlp.AllReduce(y);
              mlp.AddBias(y);
              return y;
            }),
            0.1);
}

// Added before the sum over ranks it is there twice: off by the largest element of the bias, 2.
TEST(WrongSplit, ABiasOnEveryRankIsAddedAsOftenAsThereAreRanks) {
  EXPECT_NEAR(Off([](Mlp& mlp) {
                Tensor y = mlp.ColumnThenRow();
                mlp.AddBias(y);
                mlp.AllReduce(y);
                return y;
              }),
              (kRanks - 1) * 2.0, 1e-14);
}

}  // namespace
}  // namespace millwright
