// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference.h"

#include <cmath>
#include <cstddef>
#include <string_view>

#include "core/check.h"

namespace millwright {
namespace {

using Vector = std::vector<double>;

// arXiv:2104.09864 (RoPE), arXiv:1910.07467 (RMSNorm), as meta-llama/Llama-3.1-8B has them.
constexpr double kRotaryBase = 10'000;
constexpr double kEpsilon = 1e-5;

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

// y[n] = sum over k of w[n, k] x[k] (+ bias).
Vector Times(const Vector& w, const double* x, std::size_t k, const Vector* bias) {
  Vector y(w.size() / k);
  for (std::size_t n = 0; n < y.size(); ++n) {
    double sum = bias != nullptr ? (*bias)[n] : 0;
    for (std::size_t i = 0; i < k; ++i) sum += w[n * k + i] * x[i];
    y[n] = sum;
  }
  return y;
}

// Adds to dx, dw and dbias for one token.
void TimesBackward(const Vector& w, const double* x, std::size_t k, const Vector& dy, double* dx,
                   Vector& dw, Vector* dbias) {
  for (std::size_t n = 0; n < dy.size(); ++n) {
    if (dbias != nullptr) (*dbias)[n] += dy[n];
    for (std::size_t i = 0; i < k; ++i) {
      dx[i] += dy[n] * w[n * k + i];
      dw[n * k + i] += dy[n] * x[i];
    }
  }
}

Vector Normed(const Vector& x, const Vector& gain) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double rms = std::sqrt(squares / double(x.size()) + kEpsilon);
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / rms * gain[i];
  return y;
}

void NormedBackward(const Vector& x, const Vector& gain, const Vector& dy, Vector& dx,
                    Vector& dgain) {
  double squares = 0, dot = 0;
  for (double v : x) squares += v * v;
  const double n = double(x.size());
  const double rms = std::sqrt(squares / n + kEpsilon);
  for (std::size_t i = 0; i < x.size(); ++i) dot += dy[i] * gain[i] * x[i];
  for (std::size_t i = 0; i < x.size(); ++i) {
    dgain[i] += dy[i] * x[i] / rms;
    dx[i] += dy[i] * gain[i] / rms - x[i] * dot / (n * rms * rms * rms);
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

}  // namespace

Reference::Reference(const Workload& workload, bool single_precision) : workload_(workload) {
  for (int layer = -1; layer <= workload.model.num_layers; ++layer) {
    for (const Weight& weight : WeightsOf(workload.model, layer)) {
      const TensorName name{layer, weight.name};
      Vector& values = weights_[name];
      for (std::int64_t r = 0; r < weight.rows; ++r) {
        for (std::int64_t c = 0; c < weight.cols; ++c) {
          const double value = InitialValue(workload, name, weight, r, c);
          values.push_back(single_precision ? double(float(value)) : value);
        }
      }
      gradients_[name].assign(values.size(), 0);
      moment1_[name] = moment2_[name] = gradients_[name];
    }
  }
}

double Reference::ComputeLoss(int step) {
  double loss = 0;
  for (std::int64_t s = 0; s < workload_.training.global_batch_size; ++s) {
    loss += Sequence(step, s, false);
  }
  return loss;
}

double Reference::ComputeGradients(int step) {
  for (auto& [name, gradient] : gradients_) gradient.assign(gradient.size(), 0);
  double loss = 0;
  for (std::int64_t s = 0; s < workload_.training.global_batch_size; ++s) {
    loss += Sequence(step, s, true);
  }
  return loss;
}

double Reference::Sequence(int step, std::int64_t sequence, bool backward) {
  const ModelConfig& m = workload_.model;
  const auto tokens = std::size_t(workload_.training.seq_length);
  const auto h = std::size_t(m.hidden_size), e = std::size_t(m.kv_channels);
  const auto heads = std::size_t(m.num_attention_heads), groups = std::size_t(m.num_query_groups);
  const auto ffn = std::size_t(m.ffn_hidden_size);
  const bool rotary = m.position_embedding == PositionEmbedding::kRope;
  const auto w = [&](int layer, std::string_view weight) -> const Vector& {
    return weights_.at({layer, weight});
  };
  const auto g = [&](int layer, std::string_view weight) -> Vector& {
    return gradients_.at({layer, weight});
  };
  const auto optional = [&](Tensors& of, int layer, std::string_view weight) -> Vector* {
    const auto found = of.find({layer, weight});
    return found == of.end() ? nullptr : &found->second;
  };
  std::vector<std::size_t> word;
  for (std::size_t t = 0; t <= tokens; ++t) {
    word.push_back(std::size_t(Token(workload_, step, sequence, std::int64_t(t))));
  }

  struct Token1 {  // of one token in one layer
    Vector x, normed, q, k, v, attended, middle, normed2, fc1, inner;
    std::vector<Vector> softmax;  // of each head, over the tokens up to this one
  };
  std::vector<std::vector<Token1>> kept(std::size_t(m.num_layers), std::vector<Token1>(tokens));
  std::vector<Vector> x(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const double* row = w(-1, "token_embedding").data() + word[t] * h;
    x[t].assign(row, row + h);
  }
  for (int layer = 0; layer < m.num_layers; ++layer) {
    std::vector<Token1>& of = kept[std::size_t(layer)];
    for (std::size_t t = 0; t < tokens; ++t) {
      Token1& a = of[t];
      a.x = x[t];
      a.normed = Normed(a.x, w(layer, "attention_norm"));
      a.q = Times(w(layer, "q"), a.normed.data(), h, optional(weights_, layer, "q_bias"));
      const Vector kv =
          Times(w(layer, "kv"), a.normed.data(), h, optional(weights_, layer, "kv_bias"));
      a.k.assign(kv.begin(), kv.begin() + std::ptrdiff_t(groups * e));
      a.v.assign(kv.begin() + std::ptrdiff_t(groups * e), kv.end());
      if (rotary) {
        Rotate(a.q, e, t, 1);
        Rotate(a.k, e, t, 1);
      }
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      Token1& a = of[t];
      a.attended.assign(heads * e, 0);
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t group = head / (heads / groups);
        Vector& softmax = a.softmax.emplace_back(t + 1);
        double sum = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::size_t c = 0; c < e; ++c) score += a.q[head * e + c] * of[u].k[group * e + c];
          softmax[u] = std::exp(score / std::sqrt(double(e)));
          sum += softmax[u];
        }
        for (std::size_t u = 0; u <= t; ++u) {
          softmax[u] /= sum;
          for (std::size_t c = 0; c < e; ++c) {
            a.attended[head * e + c] += softmax[u] * of[u].v[group * e + c];
          }
        }
      }
      a.middle = Times(w(layer, "attention_output"), a.attended.data(), heads * e,
                       optional(weights_, layer, "attention_output_bias"));
      for (std::size_t c = 0; c < h; ++c) a.middle[c] += a.x[c];
      a.normed2 = Normed(a.middle, w(layer, "mlp_norm"));
      a.fc1 = Times(w(layer, "fc1"), a.normed2.data(), h, optional(weights_, layer, "fc1_bias"));
      a.inner.resize(ffn);
      for (std::size_t c = 0; c < ffn; ++c) {
        a.inner[c] = Activated(m.activation, a.fc1[c]);
        if (m.gated_linear_unit) a.inner[c] *= a.fc1[ffn + c];
      }
      x[t] = Times(w(layer, "fc2"), a.inner.data(), ffn, optional(weights_, layer, "fc2_bias"));
      for (std::size_t c = 0; c < h; ++c) x[t][c] += a.middle[c];
    }
  }

  const int head_layer = m.num_layers;
  const double share = 1 / (double(tokens) * double(workload_.training.global_batch_size));
  double loss = 0;
  std::vector<Vector> dx(tokens, Vector(h, 0));
  for (std::size_t t = 0; t < tokens; ++t) {
    const Vector normed = Normed(x[t], w(head_layer, "final_norm"));
    Vector p = Times(w(head_layer, "output_head"), normed.data(), h, nullptr);
    double sum = 0;
    for (double logit : p) sum += std::exp(logit);
    loss += share * (std::log(sum) - p[word[t + 1]]);
    if (!backward) continue;
    for (double& logit : p) logit = share * std::exp(logit) / sum;
    p[word[t + 1]] -= share;
    Vector dnormed(h, 0);
    TimesBackward(w(head_layer, "output_head"), normed.data(), h, p, dnormed.data(),
                  g(head_layer, "output_head"), nullptr);
    NormedBackward(x[t], w(head_layer, "final_norm"), dnormed, dx[t], g(head_layer, "final_norm"));
  }
  if (!backward) return loss;

  for (int layer = m.num_layers - 1; layer >= 0; --layer) {
    const std::vector<Token1>& of = kept[std::size_t(layer)];
    std::vector<Vector> dq(tokens, Vector(heads * e, 0));
    std::vector<Vector> dk(tokens, Vector(groups * e, 0)), dv = dk;
    for (std::size_t t = 0; t < tokens; ++t) {
      const Token1& a = of[t];
      Vector dinner(ffn, 0), dfc1(a.fc1.size(), 0), dnormed2(h, 0);
      TimesBackward(w(layer, "fc2"), a.inner.data(), ffn, dx[t], dinner.data(), g(layer, "fc2"),
                    optional(gradients_, layer, "fc2_bias"));
      for (std::size_t c = 0; c < ffn; ++c) {
        const double up = m.gated_linear_unit ? a.fc1[ffn + c] : 1;
        dfc1[c] = dinner[c] * up * ActivatedSlope(m.activation, a.fc1[c]);
        if (m.gated_linear_unit) dfc1[ffn + c] = dinner[c] * Activated(m.activation, a.fc1[c]);
      }
      TimesBackward(w(layer, "fc1"), a.normed2.data(), h, dfc1, dnormed2.data(), g(layer, "fc1"),
                    optional(gradients_, layer, "fc1_bias"));
      // The residual's gradient stays in dx; the norm's is added to it.
      NormedBackward(a.middle, w(layer, "mlp_norm"), dnormed2, dx[t], g(layer, "mlp_norm"));
      Vector dattended(heads * e, 0);
      TimesBackward(w(layer, "attention_output"), a.attended.data(), heads * e, dx[t],
                    dattended.data(), g(layer, "attention_output"),
                    optional(gradients_, layer, "attention_output_bias"));
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t group = head / (heads / groups);
        const Vector& softmax = a.softmax[head];
        Vector dsoftmax(t + 1, 0);
        double mean = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          for (std::size_t c = 0; c < e; ++c) {
            dsoftmax[u] += dattended[head * e + c] * of[u].v[group * e + c];
            dv[u][group * e + c] += softmax[u] * dattended[head * e + c];
          }
          mean += softmax[u] * dsoftmax[u];
        }
        for (std::size_t u = 0; u <= t; ++u) {
          const double dscore = softmax[u] * (dsoftmax[u] - mean) / std::sqrt(double(e));
          for (std::size_t c = 0; c < e; ++c) {
            dq[t][head * e + c] += dscore * of[u].k[group * e + c];
            dk[u][group * e + c] += dscore * a.q[head * e + c];
          }
        }
      }
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      const Token1& a = of[t];
      if (rotary) {
        Rotate(dq[t], e, t, -1);
        Rotate(dk[t], e, t, -1);
      }
      Vector dkv = dk[t], dnormed(h, 0);
      dkv.insert(dkv.end(), dv[t].begin(), dv[t].end());
      TimesBackward(w(layer, "q"), a.normed.data(), h, dq[t], dnormed.data(), g(layer, "q"),
                    optional(gradients_, layer, "q_bias"));
      TimesBackward(w(layer, "kv"), a.normed.data(), h, dkv, dnormed.data(), g(layer, "kv"),
                    optional(gradients_, layer, "kv_bias"));
      NormedBackward(a.x, w(layer, "attention_norm"), dnormed, dx[t], g(layer, "attention_norm"));
    }
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    double* row = g(-1, "token_embedding").data() + word[t] * h;
    for (std::size_t c = 0; c < h; ++c) row[c] += dx[t][c];
  }
  return loss;
}

void Reference::Update(const Adam& adam) {
  ++updates_;
  for (auto& [name, weight] : weights_) {
    const Vector& gradient = gradients_.at(name);
    Vector &m = moment1_.at(name), &v = moment2_.at(name);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      m[i] += (1 - adam.beta1) * (gradient[i] - m[i]);
      v[i] += (1 - adam.beta2) * (gradient[i] * gradient[i] - v[i]);
      const double mean = m[i] / (1 - std::pow(adam.beta1, updates_));
      const double square = v[i] / (1 - std::pow(adam.beta2, updates_));
      weight[i] -= adam.rate * mean / (std::sqrt(square) + adam.epsilon);
    }
  }
}

}  // namespace millwright
