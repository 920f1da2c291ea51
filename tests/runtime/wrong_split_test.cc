// SPDX-License-Identifier: Apache-2.0
//
// Why an MLP is split by columns and then by rows: what the other ways come out as.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "runtime/exchange.h"
#include "runtime/kernels.h"

namespace millwright {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 3, kHidden = 4, kInner = 8;

Matrix<double> Filled(std::int64_t rows, std::int64_t cols, double phase) {
  Matrix<double> m(rows, cols);
  for (std::size_t i = 0; i < m.all().size(); ++i) m.all()[i] = std::sin(double(i) + phase);
  return m;
}

// Columns [first, first + count).
Matrix<double> Columns(const Matrix<double>& m, std::int64_t first, std::int64_t count) {
  Matrix<double> part(m.rows(), count);
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    std::copy_n(m.row(r) + first, count, part.row(r));
  }
  return part;
}

class WrongSplit : public testing::Test {
 protected:
  WrongSplit()
      : x_(Filled(kTokens, kHidden, 0)),
        w1_(Filled(kInner, kHidden, 1)),
        w2_(Filled(kHidden, kInner, 2)),
        bias_{0.5, -1, 2, 0.25} {
    const Matrix<double> inner =
        Activate(Linear<double>(x_, w1_.all(), kInner), Activation::kGelu, false);
    dense_ = Linear<double>(inner, w2_.all(), kHidden);
    AddBias<double>(bias_, dense_);
  }

  // The largest difference from the dense MLP of what two ranks come to.
  template <class Mlp>
  double Off(const Mlp& mlp) const {
    double off = 0;
    std::mutex mutex;
    RunThreads(kRanks, [&](Communicator& communicator) {
      Exchange exchange(communicator);
      const Matrix<double> y = mlp(communicator.rank(), exchange);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < y.all().size(); ++i) {
        off = std::max(off, std::abs(y.all()[i] - dense_.all()[i]));
      }
    });
    return off;
  }

  // This rank's rows of w1 and columns of w2: the product is a part of the sum.
  Matrix<double> ColumnThenRow(int rank) const {
    const std::int64_t inner = kInner / kRanks;
    const auto w1 =
        w1_.all().subspan(std::size_t(rank * inner * kHidden), std::size_t(inner * kHidden));
    const Matrix<double> part = Activate(Linear<double>(x_, w1, inner), Activation::kGelu, false);
    return Linear<double>(part, Columns(w2_, rank * inner, inner).all(), kHidden);
  }

  const RankGroup group_{.first = 0, .stride = 1, .ranks = kRanks};
  Matrix<double> x_, w1_, w2_, dense_;
  std::vector<double> bias_;
};

TEST_F(WrongSplit, ColumnThenRowIsRight) {
  EXPECT_LT(Off([&](int rank, Exchange& exchange) {
              Matrix<double> y = ColumnThenRow(rank);
              exchange.AllReduce("mlp", group_, y.all());
              AddBias<double>(bias_, y);
              return y;
            }),
            1e-14);
}

// Each rank has half of each inner feature's sum, and the activation of a sum is not the sum of
// activations.
TEST_F(WrongSplit, RowFirstIsWrong) {
  EXPECT_GT(Off([&](int rank, Exchange& exchange) {
              const std::int64_t h = kHidden / kRanks;
              const Matrix<double> partial =
                  Linear<double>(Columns(x_, rank * h, h), Columns(w1_, rank * h, h).all(), kInner);
              Matrix<double> y =
                  Linear<double>(Activate(partial, Activation::kGelu, false), w2_.all(), kHidden);
              exchange.AllReduce("mlp", group_, y.all());
              AddBias<double>(bias_, y);
              return y;
            }),
            0.1);
}

// Added before the sum over ranks it is there twice: off by the largest element of the bias, 2.
TEST_F(WrongSplit, ABiasOnEveryRankIsAddedAsOftenAsThereAreRanks) {
  EXPECT_NEAR(Off([&](int rank, Exchange& exchange) {
                Matrix<double> y = ColumnThenRow(rank);
                AddBias<double>(bias_, y);
                exchange.AllReduce("mlp", group_, y.all());
                return y;
              }),
              (kRanks - 1) * 2.0, 1e-14);
}

}  // namespace
}  // namespace millwright
