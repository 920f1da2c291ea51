// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millwright::reference {
namespace {

// arXiv:2104.09864 (RoPE), arXiv:1910.07467 (RMSNorm), as meta-llama/Llama-3.1-8B has them;
// arXiv:1607.06450 (LayerNorm), as openai-community/gpt2.
constexpr double kRotaryBase = 10'000;
constexpr double kEpsilon = 1e-5;

struct Moments {
  double mean = 0, deviation = 0;
};
Moments MomentsOf(bool centred, std::size_t size, const Vector& x, std::size_t first) {
  Moments moments;
  const auto n = double(size);
  if (centred) {
    for (std::size_t i = 0; i < size; ++i) moments.mean += x[first + i] / n;
  }
  double squares = 0;
  for (std::size_t i = 0; i < size; ++i) squares += std::pow(x[first + i] - moments.mean, 2);
  moments.deviation = std::sqrt(squares / n + kEpsilon);
  return moments;
}

}  // namespace

double Activated(Activation kind, double x) {
  if (kind == Activation::kSilu) return x / (1 + std::exp(-x));
  if (kind == Activation::kGelu) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double positive = x > 0 ? x : 0;
  return kind == Activation::kRelu ? positive : positive * positive;
}

double ActivatedSlope(Activation kind, double x) {
  if (kind == Activation::kSilu) {
    const double s = 1 / (1 + std::exp(-x));
    return s + x * s * (1 - s);
  }
  if (kind == Activation::kGelu) {
    const double pi = std::acos(-1.0);
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi);
  }
  if (x <= 0) return 0;
  return kind == Activation::kRelu ? 1 : 2 * x;
}

Vector Times(const Vector& w, std::size_t first, std::size_t rows, const Vector& x,
             const Vector* bias) {
  const std::size_t k = x.size();
  Vector y(rows);
  for (std::size_t n = 0; n < rows; ++n) {
    double sum = bias != nullptr ? (*bias)[first + n] : 0;
    for (std::size_t i = 0; i < k; ++i) sum += w[(first + n) * k + i] * x[i];
    y[n] = sum;
  }
  return y;
}

void TimesBackward(const Vector& w, std::size_t first, const Vector& x, const Vector& dy,
                   Vector& dx, Vector& dw) {
  const std::size_t k = x.size();
  for (std::size_t n = 0; n < dy.size(); ++n) {
    for (std::size_t i = 0; i < k; ++i) {
      dx[i] += dy[n] * w[(first + n) * k + i];
      dw[(first + n) * k + i] += dy[n] * x[i];
    }
  }
}

void BiasBackward(std::size_t first, const Vector& dy, Vector* dbias) {
  if (dbias == nullptr) return;
  for (std::size_t n = 0; n < dy.size(); ++n) (*dbias)[first + n] += dy[n];
}

void Norm(const Vector& weights, std::size_t size, Vector& x, std::size_t first) {
  const bool centred = weights.size() == 2 * size;
  const Moments moments = MomentsOf(centred, size, x, first);
  for (std::size_t i = 0; i < size; ++i) {
    double& value = x[first + i];
    value = (value - moments.mean) / moments.deviation * weights[i];
    if (centred) value += weights[size + i];
  }
}

void NormBackward(const Vector& weights, std::size_t size, const Vector& x, std::size_t first,
                  Vector& dy, Vector& dweights) {
  const bool centred = weights.size() == 2 * size;
  const auto n = double(size);
  const Moments moments = MomentsOf(centred, size, x, first);
  double dmean = 0, ddeviation = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double up = dy[first + i], off = x[first + i] - moments.mean;
    dweights[i] += up * off / moments.deviation;
    if (centred) dweights[size + i] += up;
    dmean -= up * weights[i] / moments.deviation;
    ddeviation -= up * weights[i] * off / (moments.deviation * moments.deviation);
  }
  for (std::size_t i = 0; i < size; ++i) {
    const double off = x[first + i] - moments.mean;
    dy[first + i] = dy[first + i] * weights[i] / moments.deviation +
                    ddeviation * off / (n * moments.deviation) + (centred ? dmean / n : 0);
  }
}

void Rotate(Vector& x, std::size_t size, std::size_t position, double direction) {
  for (std::size_t head = 0; head < x.size(); head += size) {
    for (std::size_t i = 0; i < size / 2; ++i) {
      const double angle =
          direction * double(position) / std::pow(kRotaryBase, double(2 * i) / double(size));
      const double a = x[head + i], b = x[head + i + size / 2];
      x[head + i] = a * std::cos(angle) - b * std::sin(angle);
      x[head + i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

std::size_t FirstRowOfFc1(const Mlp& mlp) { return mlp.expert * (mlp.gated ? 2 : 1) * mlp.inner; }
std::size_t FirstRowOfFc2(const Mlp& mlp) { return mlp.expert * mlp.hidden; }

void MlpUp(const Mlp& mlp, MlpKept& kept) {
  kept.fc1 = Times(*mlp.fc1, FirstRowOfFc1(mlp), (mlp.gated ? 2 : 1) * mlp.inner, kept.input,
                   mlp.fc1_bias);
  kept.activated.resize(mlp.inner);
  for (std::size_t c = 0; c < mlp.inner; ++c) {
    kept.activated[c] = Activated(mlp.activation, kept.fc1[c]);
    if (mlp.gated) kept.activated[c] *= kept.fc1[mlp.inner + c];
  }
}

Vector MlpDown(const Mlp& mlp, const MlpKept& kept) {
  return Times(*mlp.fc2, FirstRowOfFc2(mlp), mlp.hidden, kept.inner, nullptr);
}

void ActivationBackward(const Mlp& mlp, const Vector& dactivated, MlpKept& kept) {
  kept.dfc1.assign(kept.fc1.size(), 0);
  for (std::size_t c = 0; c < mlp.inner; ++c) {
    const double up = mlp.gated ? kept.fc1[mlp.inner + c] : 1;
    kept.dfc1[c] = dactivated[c] * up * ActivatedSlope(mlp.activation, kept.fc1[c]);
    if (mlp.gated) {
      kept.dfc1[mlp.inner + c] = dactivated[c] * Activated(mlp.activation, kept.fc1[c]);
    }
  }
}

void RoundTogether(const std::vector<Vector*>& rows, const EightBits& kind) {
  double largest = 0;
  for (const Vector* row : rows) {
    for (double value : *row) largest = std::max(largest, std::abs(value));
  }
  if (largest == 0) return;
  const double scale = largest / kind.largest;
  for (Vector* row : rows) {
    for (double& value : *row) {
      const auto size = double(float(std::abs(value / scale)));  // in FP8's company, FP32
      if (size == 0) continue;
      const int exponent = std::max(int(std::floor(std::log2(size))), kind.least_exponent);
      const double step = std::pow(2.0, exponent - kind.mantissa);
      const double rounded = std::min(std::nearbyint(size / step) * step, kind.largest);
      value = std::copysign(rounded * scale, value);
    }
  }
}

Routed Route(const Vector& logits, std::size_t topk, bool normalize) {
  Routed routed;
  double sum = 0, chosen = 0;
  for (double logit : logits) sum += routed.all.emplace_back(std::exp(logit));
  for (double& share : routed.all) share /= sum;
  std::vector<bool> taken(logits.size(), false);
  const auto best = [&] {
    std::size_t of_rest = logits.size();
    for (std::size_t e = 0; e < logits.size(); ++e) {
      if (!taken[e] && (of_rest == logits.size() || logits[e] > logits[of_rest])) of_rest = e;
    }
    return of_rest;
  };
  for (std::size_t i = 0; i < topk; ++i) {
    routed.experts.push_back(best());
    taken[routed.experts.back()] = true;
    chosen += routed.all[routed.experts.back()];
  }
  for (std::size_t expert : routed.experts) {
    routed.weights.push_back(routed.all[expert] / (normalize ? chosen : 1));
  }
  routed.margin = topk < logits.size() ? logits[routed.experts.back()] - logits[best()]
                                       : std::numeric_limits<double>::infinity();
  return routed;
}

Vector RouteBackward(const Routed& routed, const Vector& dweights, bool normalize) {
  // Of the shares: w = share / chosen, or the share itself.
  double chosen = 0, along = 0;
  for (std::size_t i = 0; i < routed.experts.size(); ++i) {
    chosen += routed.all[routed.experts[i]];
    along += dweights[i] * routed.weights[i];
  }
  Vector dshares(routed.all.size(), 0), dlogits(routed.all.size());
  for (std::size_t i = 0; i < routed.experts.size(); ++i) {
    dshares[routed.experts[i]] = normalize ? (dweights[i] - along) / chosen : dweights[i];
  }
  double mean = 0;
  for (std::size_t e = 0; e < dshares.size(); ++e) mean += routed.all[e] * dshares[e];
  for (std::size_t e = 0; e < dshares.size(); ++e) {
    dlogits[e] = routed.all[e] * (dshares[e] - mean);
  }
  return dlogits;
}

}  // namespace millwright::reference
