// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

#include "core/check.h"
#include "runtime/reference_math.h"

namespace millwright {

using namespace reference;  // NOLINT(google-build-using-namespace): what this file is about

namespace {

// What one token leaves in one layer.
struct TokenKept {
  Vector x, normed, q_input, k_input, q, k, v, attended, middle, normed2;
  std::vector<Vector> softmax;  // of each head, over the tokens from `window_start` on
  std::size_t window_start = 0;
  MlpKept mlp;  // or the shared experts'
  Routed routed;
  std::vector<MlpKept> experts;
};

// One sequence of a step, forward and backward.
class SequencePass {
 public:
  using Tensors = Reference::Tensors;
  SequencePass(const Workload& workload, const Tensors& weights, Tensors& gradients, int step,
               std::int64_t sequence)
      : model_(workload.model),
        tokens_(std::size_t(workload.training.seq_length)),
        h_(std::size_t(model_.hidden_size)),
        e_(std::size_t(model_.kv_channels)),
        heads_(std::size_t(model_.num_attention_heads)),
        groups_(std::size_t(model_.num_query_groups)),
        share_(1 / (double(tokens_) * double(workload.training.global_batch_size))),
        weights_(weights),
        gradients_(gradients),
        kept_(std::size_t(model_.num_layers), std::vector<TokenKept>(tokens_)) {
    for (std::size_t t = 0; t <= tokens_; ++t) {
      word_.push_back(std::size_t(Token(workload, step, sequence, std::int64_t(t))));
    }
  }

  double Forward();
  void Backward();
  double margin() const { return margin_; }

 private:
  const Vector& W(int layer, std::string_view weight) const { return weights_.at({layer, weight}); }
  Vector& G(int layer, std::string_view weight) { return gradients_.at({layer, weight}); }
  const Vector* Optional(int layer, std::string_view weight) const {
    const auto found = weights_.find({layer, weight});
    return found == weights_.end() ? nullptr : &found->second;
  }
  Vector* OptionalGradient(int layer, std::string_view weight) {
    const auto found = gradients_.find({layer, weight});
    return found == gradients_.end() ? nullptr : &found->second;
  }
  bool rotary() const { return model_.position_embedding == PositionEmbedding::kRope; }
  TensorName HeadName() const {
    if (model_.tied_embeddings) return {-1, "token_embedding"};
    return {model_.num_layers, "output_head"};
  }
  // Of expert `expert`, or the dense one, or that of the shared experts.
  Mlp MlpOf(int layer, std::size_t expert, std::string_view fc1, std::string_view fc1_bias,
            std::string_view fc2, std::string_view fc2_bias) const {
    const Vector &first = W(layer, fc1), &second = W(layer, fc2);
    const auto experts = std::size_t(fc1.starts_with("expert") ? model_.moe.num_experts : 1);
    return {.fc1 = &first,
            .fc1_bias = Optional(layer, fc1_bias),
            .fc2 = &second,
            .fc2_bias = Optional(layer, fc2_bias),
            .expert = expert,
            .hidden = h_,
            .inner = second.size() / (h_ * experts),
            .activation = model_.activation,
            .gated = model_.gated_linear_unit};
  }
  Mlp ExpertOf(int layer, std::size_t expert) const {
    return MlpOf(layer, expert, "expert_fc1", "expert_fc1_bias", "expert_fc2", "expert_fc2_bias");
  }
  // The MLP of every token, if the layer has one.
  bool has_common(int layer) const { return Optional(layer, CommonName(layer, 0)) != nullptr; }
  std::string_view CommonName(int layer, int which) const {
    static constexpr std::string_view kDense[] = {"fc1", "fc1_bias", "fc2", "fc2_bias"};
    static constexpr std::string_view kShared[] = {"shared_fc1", "shared_fc1_bias", "shared_fc2",
                                                   "shared_fc2_bias"};
    return model_.layer(layer).moe ? kShared[which] : kDense[which];
  }
  Mlp CommonOf(int layer) const {
    return MlpOf(layer, 0, CommonName(layer, 0), CommonName(layer, 1), CommonName(layer, 2),
                 CommonName(layer, 3));
  }
  MlpGradients CommonGradients(int layer) {
    return {.fc1 = &G(layer, CommonName(layer, 0)),
            .fc1_bias = OptionalGradient(layer, CommonName(layer, 1)),
            .fc2 = &G(layer, CommonName(layer, 2)),
            .fc2_bias = OptionalGradient(layer, CommonName(layer, 3))};
  }

  void Attention(int layer, std::vector<Vector>& x);
  void AttentionBackward(int layer, std::vector<Vector>& dx);
  void Experts(int layer, TokenKept& a, Vector& y);
  void ExpertsBackward(int layer, const TokenKept& a, const Vector& dy, Vector& dnormed);

  const ModelConfig& model_;
  std::size_t tokens_, h_, e_, heads_, groups_;
  double share_;
  const Tensors& weights_;
  Tensors& gradients_;
  std::vector<std::size_t> word_;
  std::vector<std::vector<TokenKept>> kept_;
  std::vector<Vector> last_;  // of each token after all layers
  double margin_ = std::numeric_limits<double>::infinity();
};

// From x to `middle`, attention's output with x added.
void SequencePass::Attention(int layer, std::vector<Vector>& x) {
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  for (std::size_t t = 0; t < tokens_; ++t) {
    TokenKept& a = of[t];
    a.x = a.normed = x[t];
    Norm(W(layer, "attention_norm"), h_, a.normed, 0);
    a.q = Times(W(layer, "q"), 0, heads_ * e_, a.normed, Optional(layer, "q_bias"));
    a.k = Times(W(layer, "kv"), 0, groups_ * e_, a.normed, Optional(layer, "kv_bias"));
    a.v = Times(W(layer, "kv"), groups_ * e_, groups_ * e_, a.normed, Optional(layer, "kv_bias"));
    if (model_.qk_layernorm) {
      a.q_input = a.q;
      a.k_input = a.k;
      for (std::size_t c = 0; c < a.q.size(); c += e_) Norm(W(layer, "q_norm"), e_, a.q, c);
      for (std::size_t c = 0; c < a.k.size(); c += e_) Norm(W(layer, "k_norm"), e_, a.k, c);
    }
    if (rotary()) {
      Rotate(a.q, e_, t, 1);
      Rotate(a.k, e_, t, 1);
    }
  }
  const auto window = std::size_t(model_.layer(layer).sliding_window);
  for (std::size_t t = 0; t < tokens_; ++t) {
    TokenKept& a = of[t];
    a.window_start = window > 0 && t + 1 > window ? t + 1 - window : 0;
    a.attended.assign(heads_ * e_, 0);
    for (std::size_t head = 0; head < heads_; ++head) {
      const std::size_t group = head / (heads_ / groups_);
      Vector& softmax = a.softmax.emplace_back();
      double sum = 0;
      for (std::size_t u = a.window_start; u <= t; ++u) {
        double score = 0;
        for (std::size_t c = 0; c < e_; ++c) score += a.q[head * e_ + c] * of[u].k[group * e_ + c];
        sum += softmax.emplace_back(std::exp(score / std::sqrt(double(e_))));
      }
      for (std::size_t u = a.window_start; u <= t; ++u) {
        double& weight = softmax[u - a.window_start];
        weight /= sum;
        for (std::size_t c = 0; c < e_; ++c) {
          a.attended[head * e_ + c] += weight * of[u].v[group * e_ + c];
        }
      }
    }
    a.middle = Times(W(layer, "attention_output"), 0, h_, a.attended,
                     Optional(layer, "attention_output_bias"));
    for (std::size_t c = 0; c < h_; ++c) a.middle[c] += a.x[c];
  }
}

// Adds to y what the routed experts make of a token.
void SequencePass::Experts(int layer, TokenKept& a, Vector& y) {
  const MixtureOfExperts& moe = model_.moe;
  a.routed = Route(Times(W(layer, "router"), 0, std::size_t(moe.num_experts), a.normed2,
                         Optional(layer, "router_bias")),
                   std::size_t(moe.topk), moe.normalize_topk);
  margin_ = std::min(margin_, a.routed.margin);
  for (std::size_t i = 0; i < a.routed.experts.size(); ++i) {
    a.experts.push_back(MlpForward(ExpertOf(layer, a.routed.experts[i]), a.normed2));
    for (std::size_t c = 0; c < h_; ++c) y[c] += a.routed.weights[i] * a.experts[i].output[c];
  }
}

void SequencePass::ExpertsBackward(int layer, const TokenKept& a, const Vector& dy,
                                   Vector& dnormed) {
  const MlpGradients gradients{.fc1 = &G(layer, "expert_fc1"),
                               .fc1_bias = OptionalGradient(layer, "expert_fc1_bias"),
                               .fc2 = &G(layer, "expert_fc2"),
                               .fc2_bias = OptionalGradient(layer, "expert_fc2_bias")};
  Vector dweights;
  for (std::size_t i = 0; i < a.routed.experts.size(); ++i) {
    Vector doutput = dy;
    double dweight = 0;
    for (std::size_t c = 0; c < h_; ++c) {
      dweight += dy[c] * a.experts[i].output[c];
      doutput[c] *= a.routed.weights[i];
    }
    dweights.push_back(dweight);
    MlpBackward(ExpertOf(layer, a.routed.experts[i]), gradients, a.normed2, a.experts[i], doutput,
                dnormed);
  }
  TimesBackward(W(layer, "router"), 0, a.normed2,
                RouteBackward(a.routed, dweights, model_.moe.normalize_topk), dnormed,
                G(layer, "router"), OptionalGradient(layer, "router_bias"));
}

double SequencePass::Forward() {
  std::vector<Vector> x(tokens_);
  for (std::size_t t = 0; t < tokens_; ++t) {
    const double* row = W(-1, "token_embedding").data() + word_[t] * h_;
    x[t].assign(row, row + h_);
    const Vector* const positions = Optional(-1, "position_embedding");
    for (std::size_t c = 0; positions != nullptr && c < h_; ++c)
      x[t][c] += (*positions)[t * h_ + c];
  }
  for (int layer = 0; layer < model_.num_layers; ++layer) {
    Attention(layer, x);
    for (std::size_t t = 0; t < tokens_; ++t) {
      TokenKept& a = kept_[std::size_t(layer)][t];
      a.normed2 = a.middle;
      Norm(W(layer, "mlp_norm"), h_, a.normed2, 0);
      x[t] = a.middle;
      if (has_common(layer)) {
        a.mlp = MlpForward(CommonOf(layer), a.normed2);
        for (std::size_t c = 0; c < h_; ++c) x[t][c] += a.mlp.output[c];
      }
      if (model_.layer(layer).moe) Experts(layer, a, x[t]);
    }
  }
  last_ = std::move(x);
  double loss = 0;
  for (std::size_t t = 0; t < tokens_; ++t) {
    Vector normed = last_[t];
    Norm(W(model_.num_layers, "final_norm"), h_, normed, 0);
    const Vector logits =
        Times(weights_.at(HeadName()), 0, std::size_t(model_.vocab_size), normed, nullptr);
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit);
    loss += share_ * (std::log(sum) - logits[word_[t + 1]]);
  }
  return loss;
}

void SequencePass::AttentionBackward(int layer, std::vector<Vector>& dx) {
  const std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  std::vector<Vector> dq(tokens_, Vector(heads_ * e_, 0));
  std::vector<Vector> dk(tokens_, Vector(groups_ * e_, 0)), dv = dk;
  for (std::size_t t = 0; t < tokens_; ++t) {
    const TokenKept& a = of[t];
    Vector dattended(heads_ * e_, 0);
    TimesBackward(W(layer, "attention_output"), 0, a.attended, dx[t], dattended,
                  G(layer, "attention_output"), OptionalGradient(layer, "attention_output_bias"));
    for (std::size_t head = 0; head < heads_; ++head) {
      const std::size_t group = head / (heads_ / groups_), start = a.window_start;
      const Vector& softmax = a.softmax[head];
      Vector dsoftmax(softmax.size(), 0);
      double mean = 0;
      for (std::size_t u = start; u <= t; ++u) {
        for (std::size_t c = 0; c < e_; ++c) {
          dsoftmax[u - start] += dattended[head * e_ + c] * of[u].v[group * e_ + c];
          dv[u][group * e_ + c] += softmax[u - start] * dattended[head * e_ + c];
        }
        mean += softmax[u - start] * dsoftmax[u - start];
      }
      for (std::size_t u = start; u <= t; ++u) {
        const double dscore =
            softmax[u - start] * (dsoftmax[u - start] - mean) / std::sqrt(double(e_));
        for (std::size_t c = 0; c < e_; ++c) {
          dq[t][head * e_ + c] += dscore * of[u].k[group * e_ + c];
          dk[u][group * e_ + c] += dscore * a.q[head * e_ + c];
        }
      }
    }
  }
  for (std::size_t t = 0; t < tokens_; ++t) {
    const TokenKept& a = of[t];
    if (rotary()) {
      Rotate(dq[t], e_, t, -1);
      Rotate(dk[t], e_, t, -1);
    }
    if (model_.qk_layernorm) {
      for (std::size_t c = 0; c < dq[t].size(); c += e_) {
        NormBackward(W(layer, "q_norm"), e_, a.q_input, c, dq[t], G(layer, "q_norm"));
      }
      for (std::size_t c = 0; c < dk[t].size(); c += e_) {
        NormBackward(W(layer, "k_norm"), e_, a.k_input, c, dk[t], G(layer, "k_norm"));
      }
    }
    Vector dkv = dk[t], dnormed(h_, 0);
    dkv.insert(dkv.end(), dv[t].begin(), dv[t].end());
    TimesBackward(W(layer, "q"), 0, a.normed, dq[t], dnormed, G(layer, "q"),
                  OptionalGradient(layer, "q_bias"));
    TimesBackward(W(layer, "kv"), 0, a.normed, dkv, dnormed, G(layer, "kv"),
                  OptionalGradient(layer, "kv_bias"));
    NormBackward(W(layer, "attention_norm"), h_, a.x, 0, dnormed, G(layer, "attention_norm"));
    for (std::size_t c = 0; c < h_; ++c) dx[t][c] += dnormed[c];
  }
}

void SequencePass::Backward() {
  std::vector<Vector> dx(tokens_, Vector(h_, 0));
  for (std::size_t t = 0; t < tokens_; ++t) {
    Vector normed = last_[t];
    Norm(W(model_.num_layers, "final_norm"), h_, normed, 0);
    Vector p = Times(weights_.at(HeadName()), 0, std::size_t(model_.vocab_size), normed, nullptr);
    double sum = 0;
    for (double logit : p) sum += std::exp(logit);
    for (double& logit : p) logit = share_ * std::exp(logit) / sum;
    p[word_[t + 1]] -= share_;
    TimesBackward(weights_.at(HeadName()), 0, normed, p, dx[t], gradients_.at(HeadName()), nullptr);
    NormBackward(W(model_.num_layers, "final_norm"), h_, last_[t], 0, dx[t],
                 G(model_.num_layers, "final_norm"));
  }
  for (int layer = model_.num_layers - 1; layer >= 0; --layer) {
    for (std::size_t t = 0; t < tokens_; ++t) {
      const TokenKept& a = kept_[std::size_t(layer)][t];
      Vector dnormed(h_, 0);
      if (has_common(layer)) {
        MlpBackward(CommonOf(layer), CommonGradients(layer), a.normed2, a.mlp, dx[t], dnormed);
      }
      if (model_.layer(layer).moe) ExpertsBackward(layer, a, dx[t], dnormed);
      // The residual's gradient stays in dx; the norm's is added to it.
      NormBackward(W(layer, "mlp_norm"), h_, a.middle, 0, dnormed, G(layer, "mlp_norm"));
      for (std::size_t c = 0; c < h_; ++c) dx[t][c] += dnormed[c];
    }
    AttentionBackward(layer, dx);
  }
  Vector &dwords = G(-1, "token_embedding"), *const dpositions =
                                                 OptionalGradient(-1, "position_embedding");
  for (std::size_t t = 0; t < tokens_; ++t) {
    for (std::size_t c = 0; c < h_; ++c) {
      dwords[word_[t] * h_ + c] += dx[t][c];
      if (dpositions != nullptr) (*dpositions)[t * h_ + c] += dx[t][c];
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
  SequencePass pass(workload_, weights_, gradients_, step, sequence);
  const double loss = pass.Forward();
  if (backward) pass.Backward();
  routing_margin_ = std::min(routing_margin_, pass.margin());
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
