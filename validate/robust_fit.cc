// SPDX-License-Identifier: Apache-2.0
#include "validate/robust_fit.h"

#include <Eigen/Dense>
#include <Eigen/Sparse>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/check.h"

namespace millwright {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kHuber = 1.345;  // 95% as efficient as least squares on Gaussian noise (Huber)
constexpr double kLeastNoise = 1e-6;
constexpr double kTypicalNoise = 0.05;  // of a measured time
constexpr double kStep = 1e-3;          // of the numeric derivative, in log
constexpr double kFar = 40;             // e^40: past this a parameter is 0, 1 or senseless

double ToFree(ParameterKind kind, double value) {
  switch (kind) {
    case ParameterKind::kAboveZero:
      return std::log(value);
    case ParameterKind::kShare:
      return std::log(value / (1 - value));
  }
  return 0;
}

double FromFree(ParameterKind kind, double x) {
  x = std::clamp(x, -kFar, kFar);
  switch (kind) {
    case ParameterKind::kAboveZero:
      return std::exp(x);
    case ParameterKind::kShare:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}

// How much the value moves with x.
double Slope(ParameterKind kind, double value) {
  switch (kind) {
    case ParameterKind::kAboveZero:
      return value;
    case ParameterKind::kShare:
      return value * (1 - value);
  }
  return 0;
}

double Weight(double residual, double bend) {
  const double size = std::abs(residual);
  return size <= bend ? 1 : bend / size;
}

double Loss(const VectorXd& r, double bend) {
  double sum = 0;
  for (double v : r) {
    const double size = std::abs(v);
    sum += size <= bend ? size * size / 2 : bend * (size - bend / 2);
  }
  return sum;
}

// Median absolute deviation, as the standard deviation of a Gaussian that has it.
double Noise(const VectorXd& r, std::size_t rows) {
  std::vector<double> sizes;
  for (std::size_t i = 0; i < rows; ++i) sizes.push_back(std::abs(r[Eigen::Index(i)]));
  const auto middle = sizes.begin() + std::ptrdiff_t(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  return std::max(kLeastNoise, 1.4826 * (sizes.empty() ? 0 : *middle));
}

class Fit {
 public:
  Fit(std::span<const FitParameter> parameters, std::size_t rows, const LogErrors& model)
      : parameters_(parameters),
        rows_(rows),
        model_(model),
        size_(Eigen::Index(rows)),
        count_(Eigen::Index(parameters.size())),
        typical_(count_),
        values_(parameters.size()),
        logs_(rows) {
    for (Eigen::Index j = 0; j < count_; ++j) {
      typical_[j] = ToFree(parameters[std::size_t(j)].kind, parameters[std::size_t(j)].typical);
    }
  }

  std::vector<Fitted> Run() {
    VectorXd x = typical_;
    noise_ = kTypicalNoise;
    // The noise decides what an outlier is and how much a typical value counts, and is known
    // only after a fit.
    for (int round = 0; round < 3; ++round) {
      x = Descend(x);
      noise_ = Noise(Residuals(x), rows_);
    }
    x = Descend(x);
    return WithErrors(x);
  }

 private:
  // Rows, then how far each parameter is from its typical value.
  VectorXd Residuals(const VectorXd& x) {
    for (std::size_t j = 0; j < values_.size(); ++j) {
      values_[j] = FromFree(parameters_[j].kind, x[Eigen::Index(j)]);
    }
    model_(values_, logs_);
    VectorXd r(size_ + count_);
    for (Eigen::Index i = 0; i < size_; ++i) {
      const double log = logs_[std::size_t(i)];
      r[i] = std::isfinite(log) ? log : kFar;
    }
    r.tail(count_) = noise_ * (x - typical_);
    return r;
  }

  MatrixXd Jacobian(const VectorXd& x, const VectorXd& r) {
    MatrixXd j(r.size(), count_);
    for (Eigen::Index p = 0; p < count_; ++p) {
      VectorXd y = x;
      y[p] += kStep;
      j.col(p) = (Residuals(y) - r) / kStep;
    }
    return j;
  }

  VectorXd Weights(const VectorXd& r) const {
    VectorXd w(r.size());
    for (Eigen::Index i = 0; i < r.size(); ++i) w[i] = Weight(r[i], kHuber * noise_);
    return w;
  }

  VectorXd Descend(VectorXd x) {
    constexpr int kMostSteps = 60, kMostTries = 8;
    VectorXd r = Residuals(x);
    double loss = Loss(r, kHuber * noise_), damping = 1e-2;
    for (int step = 0; step < kMostSteps; ++step) {
      const MatrixXd j = Jacobian(x, r);
      const VectorXd w = Weights(r);
      const MatrixXd normal = j.transpose() * w.asDiagonal() * j;
      const VectorXd gradient = j.transpose() * w.cwiseProduct(r);
      double gain = 0;
      for (int attempt = 0; attempt < kMostTries && gain <= 0; ++attempt) {
        MatrixXd damped = normal;
        damped.diagonal() *= 1 + damping;
        damped.diagonal().array() += 1e-12;
        const VectorXd y = x - damped.ldlt().solve(gradient);
        const VectorXd moved = Residuals(y);
        const double at_y = Loss(moved, kHuber * noise_);
        if (at_y < loss) {
          gain = (loss - at_y) / loss;
          x = y;
          r = moved;
          loss = at_y;
          damping = std::max(damping / 3, 1e-9);
        } else {
          damping *= 4;
        }
      }
      constexpr double kSettled = 1e-7;
      if (gain < kSettled) break;
    }
    return x;
  }

  std::vector<Fitted> WithErrors(const VectorXd& x) {
    const VectorXd r = Residuals(x);
    const MatrixXd j = Jacobian(x, r);
    MatrixXd normal = j.transpose() * Weights(r).asDiagonal() * j;
    normal.diagonal().array() += 1e-12;
    const MatrixXd covariance = noise_ * noise_ * normal.inverse();
    std::vector<Fitted> fitted;
    for (Eigen::Index p = 0; p < count_; ++p) {
      const ParameterKind kind = parameters_[std::size_t(p)].kind;
      const double value = FromFree(kind, x[p]);
      fitted.push_back({value, Slope(kind, value) * std::sqrt(std::max(0.0, covariance(p, p)))});
    }
    return fitted;
  }

  std::span<const FitParameter> parameters_;
  std::size_t rows_;
  const LogErrors& model_;
  Eigen::Index size_, count_;
  VectorXd typical_;
  std::vector<double> values_, logs_;
  double noise_ = kTypicalNoise;
};

}  // namespace

std::vector<Fitted> FitParameters(std::span<const FitParameter> parameters, std::size_t rows,
                                  const LogErrors& model) {
  return Fit(parameters, rows, model).Run();
}

void FitResiduals(ResidualGrid& grid, std::span<const ResidualRow> rows,
                  const GridTension& tension) {
  Eigen::Index size = 1;
  for (const std::vector<double>& knots : grid.axes) size *= Eigen::Index(knots.size());
  std::vector<Eigen::Index> stride(grid.axes.size(), 1);
  for (std::size_t d = grid.axes.size(); d-- > 1;) {
    stride[d - 1] = stride[d] * Eigen::Index(grid.axes[d].size());
  }
  std::vector<std::vector<ResidualGrid::Corner>> corners(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    MILLWRIGHT_CHECK(rows[i].at.size() == grid.axes.size());
    grid.ForCorners(rows[i].at, [&](const ResidualGrid::Corner& c) { corners[i].push_back(c); });
  }
  std::vector<double> weights(rows.size(), 1);
  VectorXd v = VectorXd::Zero(size);
  for (int round = 0; round < 5; ++round) {
    std::vector<Eigen::Triplet<double>> entries;
    VectorXd right = VectorXd::Zero(size);
    const auto add = [&](Eigen::Index a, Eigen::Index b, double value) {
      entries.emplace_back(int(a), int(b), value);
    };
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const ResidualGrid::Corner& a : corners[i]) {
        right[Eigen::Index(a.index)] += weights[i] * a.weight * rows[i].log;
        for (const ResidualGrid::Corner& b : corners[i]) {
          add(Eigen::Index(a.index), Eigen::Index(b.index), weights[i] * a.weight * b.weight);
        }
      }
    }
    for (Eigen::Index a = 0; a < size; ++a) {
      add(a, a, tension.zero);
      for (std::size_t d = 0; d < grid.axes.size(); ++d) {
        const std::vector<double>& knots = grid.axes[d];
        const std::size_t k = std::size_t(a / stride[d]) % knots.size();
        if (k + 1 < knots.size()) {
          const Eigen::Index b = a + stride[d];
          const double pull = tension.neighbours * (tension.along.empty() ? 1 : tension.along[d]) /
                              (knots[k + 1] - knots[k]);
          add(a, a, pull);
          add(b, b, pull);
          add(a, b, -pull);
          add(b, a, -pull);
        }
        const auto hold = [&](std::span<const Eigen::Index> at, std::span<const double> sum,
                              double strength) {
          for (std::size_t p = 0; p < at.size(); ++p) {
            for (std::size_t q = 0; q < at.size(); ++q) {
              add(at[p], at[q], strength * sum[p] * sum[q]);
            }
          }
        };
        if (d == 0 && k > 0 && k + 1 < knots.size() && tension.curvature > 0) {
          constexpr double kSecond[] = {1, -2, 1};
          hold(std::array{a - stride[0], a, a + stride[0]}, kSecond, tension.curvature);
        }
        if (d > 0 && k + 1 < knots.size() && !tension.parallel.empty() &&
            a / stride[0] + 1 < Eigen::Index(grid.axes[0].size())) {
          constexpr double kMixed[] = {1, -1, -1, 1};
          hold(std::array{a, a + stride[0], a + stride[d], a + stride[0] + stride[d]}, kMixed,
               tension.parallel[d]);
        }
      }
    }
    Eigen::SparseMatrix<double> matrix(size, size);
    matrix.setFromTriplets(entries.begin(), entries.end());
    Eigen::ConjugateGradient<Eigen::SparseMatrix<double>, Eigen::Lower | Eigen::Upper> solver;
    solver.setTolerance(1e-7);
    solver.compute(matrix);
    v = solver.solveWithGuess(right, v);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      double left = rows[i].log;
      for (const ResidualGrid::Corner& c : corners[i]) {
        left -= c.weight * v[Eigen::Index(c.index)];
      }
      weights[i] = Weight(left, kTypicalNoise);
    }
  }
  grid.values.assign(v.begin(), v.end());
}

void FitResiduals(ResidualGrid& grid, std::span<const ResidualRow> rows, Covariance covariance,
                  double noise) {
  // Rows of one shape are one observation.
  std::map<std::vector<double>, std::vector<double>> shapes;
  for (const ResidualRow& row : rows) {
    MILLWRIGHT_CHECK(row.at.size() == grid.axes.size());
    shapes[row.at].push_back(row.log);
  }
  std::size_t size = 1;
  for (const std::vector<double>& knots : grid.axes) size *= knots.size();
  std::vector<std::vector<double>> knots(size, std::vector<double>(grid.axes.size()));
  for (std::size_t k = 0; k < size; ++k) {
    for (std::size_t d = grid.axes.size(), rest = k; d-- > 0; rest /= grid.axes[d].size()) {
      knots[k][d] = grid.axes[d][rest % grid.axes[d].size()];
    }
  }
  const Eigen::Index count = Eigen::Index(shapes.size()), all = Eigen::Index(size);
  MatrixXd prior(all, all);
  for (Eigen::Index k = 0; k < all; ++k) {
    for (Eigen::Index l = 0; l <= k; ++l) {
      prior(k, l) = prior(l, k) = covariance(knots[std::size_t(k)], knots[std::size_t(l)]);
    }
  }
  // A row is seen as what lies on a line between its knots, and strays from that as two shapes do.
  VectorXd logs(count), variance(count);
  MatrixXd seen = MatrixXd::Zero(all, count);  // knots' covariance with rows
  std::vector<std::vector<ResidualGrid::Corner>> corners;
  for (auto& [at, of_shape] : shapes) {
    const Eigen::Index i = Eigen::Index(corners.size());
    std::sort(of_shape.begin(), of_shape.end());
    const std::size_t n = of_shape.size();
    logs[i] = (of_shape[(n - 1) / 2] + of_shape[n / 2]) / 2;
    corners.emplace_back();
    double strays = covariance(at, at);
    grid.ForCorners(at, [&](const ResidualGrid::Corner& c) {
      corners.back().push_back(c);
      seen.col(i) += c.weight * prior.col(Eigen::Index(c.index));
      strays -= 2 * c.weight * covariance(at, knots[c.index]);
    });
    for (const ResidualGrid::Corner& c : corners.back()) {
      strays += c.weight * seen(Eigen::Index(c.index), i);
    }
    variance[i] = noise / std::sqrt(double(n)) + std::max(0.0, strays);
  }
  MatrixXd alike = MatrixXd::Zero(count, count);
  for (Eigen::Index i = 0; i < count; ++i) {
    for (const ResidualGrid::Corner& c : corners[std::size_t(i)]) {
      alike.row(i) += c.weight * seen.row(Eigen::Index(c.index));
    }
  }
  VectorXd weights = VectorXd::Ones(count), solved;
  for (int round = 0; round < 3; ++round) {
    MatrixXd matrix = alike;
    const VectorXd widened = variance.cwiseQuotient(weights);
    matrix.diagonal() += widened;
    solved = matrix.llt().solve(logs);
    for (Eigen::Index i = 0; i < count; ++i) {
      weights[i] = Weight(widened[i] * solved[i], kTypicalNoise);
    }
  }
  const VectorXd values = seen * solved;
  grid.values.assign(values.begin(), values.end());
}

}  // namespace millwright
