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

// What one token leaves in one layer.  `normed` and `attended` are as the products after them
// multiply them; `normed2` is not, since a router's does so too.
struct TokenKept {
  Vector x, normed, q_input, k_input, q, k, v, attended, middle, normed2;
  std::vector<Vector> softmax;  // of each head, over the tokens from `window_start` on
  std::size_t window_start = 0;
  MlpKept mlp;  // or the shared experts'
  Routed routed;
  std::vector<MlpKept> experts;
};

// Sequences of a step, forward and backward: some micro-batches together where that is what
// products are rounded by.
class SequencesPass {
 public:
  using Tensors = Reference::Tensors;
  // `products`: the weights as products have them.
  SequencesPass(const Workload& workload, const Tensors& weights, const Tensors& products,
                Tensors& gradients, int step, const std::vector<std::int64_t>& sequences)
      : model_(workload.model),
        rounds_(MultipliesFp8(workload)),
        length_(std::size_t(workload.training.seq_length)),
        tokens_(length_ * sequences.size()),
        of_micro_batch_(length_ * std::size_t(workload.parallel.micro_batch_size)),
        h_(std::size_t(model_.hidden_size)),
        e_(std::size_t(model_.kv_channels)),
        heads_(std::size_t(model_.num_attention_heads)),
        groups_(std::size_t(model_.num_query_groups)),
        share_(1 / (double(length_) * double(workload.training.global_batch_size))),
        weights_(weights),
        products_(products),
        gradients_(gradients),
        kept_(std::size_t(model_.num_layers), std::vector<TokenKept>(tokens_)) {
    for (const std::int64_t sequence : sequences) {
      for (std::size_t t = 0; t < length_; ++t) {
        word_.push_back(std::size_t(Token(workload, step, sequence, std::int64_t(t))));
        label_.push_back(std::size_t(Token(workload, step, sequence, std::int64_t(t) + 1)));
      }
    }
  }

  double Forward();
  void Backward();
  double margin() const { return margin_; }

 private:
  const Vector& W(int layer, std::string_view weight) const { return weights_.at({layer, weight}); }
  const Vector& P(int layer, std::string_view weight) const {
    return products_.at({layer, weight});
  }
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
    const Vector &first = P(layer, fc1), &second = P(layer, fc2);
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

  // What a product multiplies, where it is rounded: add(t, rows) adds a token's rows.
  template <class Add>
  void RoundMicroBatches(const EightBits& kind, const Add& add) {
    for (std::size_t first = 0; rounds_ && first < tokens_; first += of_micro_batch_) {
      std::vector<Vector*> rows;
      for (std::size_t t = first; t < first + of_micro_batch_; ++t) add(t, rows);
      RoundTogether(rows, kind);
    }
  }
  void RoundMicroBatches(const EightBits& kind, std::vector<Vector>& of_tokens) {
    RoundMicroBatches(
        kind, [&](std::size_t t, std::vector<Vector*>& rows) { rows.push_back(&of_tokens[t]); });
  }
  // Calls visit(token, which of its experts) for each token that goes to the expert.
  template <class Visit>
  void ForTokensOf(int layer, std::size_t expert, const Visit& visit) {
    for (std::size_t t = 0; t < tokens_; ++t) {
      const std::vector<std::size_t>& chosen = kept_[std::size_t(layer)][t].routed.experts;
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] == expert) visit(t, i);
      }
    }
  }

  void Attention(int layer, std::vector<Vector>& x);
  void AttentionBackward(int layer, std::vector<Vector>& dx);
  void CommonMlp(int layer, std::vector<Vector>& x);
  void CommonMlpBackward(int layer, const std::vector<Vector>& dx, std::vector<Vector>& dnormed);
  void Experts(int layer, std::vector<Vector>& x);
  void ExpertsBackward(int layer, const std::vector<Vector>& dx, std::vector<Vector>& dnormed);

  const ModelConfig& model_;
  bool rounds_;
  std::size_t length_, tokens_, of_micro_batch_, h_, e_, heads_, groups_;
  double share_;
  const Tensors &weights_, &products_;
  Tensors& gradients_;
  std::vector<std::size_t> word_, label_;
  std::vector<std::vector<TokenKept>> kept_;
  std::vector<Vector> last_;  // of each token after all layers
  double margin_ = std::numeric_limits<double>::infinity();
};

// From x to `middle`, attention's output with x added.
void SequencesPass::Attention(int layer, std::vector<Vector>& x) {
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  for (std::size_t t = 0; t < tokens_; ++t) {
    of[t].x = of[t].normed = x[t];
    Norm(W(layer, "attention_norm"), h_, of[t].normed, 0);
  }
  RoundMicroBatches(kE4m3, [&](std::size_t t, auto& rows) { rows.push_back(&of[t].normed); });
  for (std::size_t t = 0; t < tokens_; ++t) {
    TokenKept& a = of[t];
    a.q = Times(P(layer, "q"), 0, heads_ * e_, a.normed, Optional(layer, "q_bias"));
    a.k = Times(P(layer, "kv"), 0, groups_ * e_, a.normed, Optional(layer, "kv_bias"));
    a.v = Times(P(layer, "kv"), groups_ * e_, groups_ * e_, a.normed, Optional(layer, "kv_bias"));
    if (model_.qk_layernorm) {
      a.q_input = a.q;
      a.k_input = a.k;
      for (std::size_t c = 0; c < a.q.size(); c += e_) Norm(W(layer, "q_norm"), e_, a.q, c);
      for (std::size_t c = 0; c < a.k.size(); c += e_) Norm(W(layer, "k_norm"), e_, a.k, c);
    }
    if (rotary()) {
      Rotate(a.q, e_, t % length_, 1);
      Rotate(a.k, e_, t % length_, 1);
    }
  }
  const auto window = std::size_t(model_.layer(layer).sliding_window);
  for (std::size_t t = 0; t < tokens_; ++t) {
    TokenKept& a = of[t];
    const std::size_t position = t % length_;
    a.window_start = t - position;
    if (window > 0 && position + 1 > window) a.window_start = t + 1 - window;
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
  }
  RoundMicroBatches(kE4m3, [&](std::size_t t, auto& rows) { rows.push_back(&of[t].attended); });
  for (std::size_t t = 0; t < tokens_; ++t) {
    TokenKept& a = of[t];
    a.middle = Times(P(layer, "attention_output"), 0, h_, a.attended,
                     Optional(layer, "attention_output_bias"));
    for (std::size_t c = 0; c < h_; ++c) a.middle[c] += a.x[c];
  }
}

// Adds to x what the MLP of every token makes of it.
void SequencesPass::CommonMlp(int layer, std::vector<Vector>& x) {
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  const Mlp mlp = CommonOf(layer);
  for (TokenKept& a : of) a.mlp.input = a.normed2;
  RoundMicroBatches(kE4m3, [&](std::size_t t, auto& rows) { rows.push_back(&of[t].mlp.input); });
  for (TokenKept& a : of) {
    MlpUp(mlp, a.mlp);
    a.mlp.inner = a.mlp.activated;
  }
  RoundMicroBatches(kE4m3, [&](std::size_t t, auto& rows) { rows.push_back(&of[t].mlp.inner); });
  for (std::size_t t = 0; t < tokens_; ++t) {
    const Vector output = MlpDown(mlp, of[t].mlp);
    for (std::size_t c = 0; c < h_; ++c) {
      x[t][c] += output[c] + (mlp.fc2_bias != nullptr ? (*mlp.fc2_bias)[c] : 0);
    }
  }
}

void SequencesPass::CommonMlpBackward(int layer, const std::vector<Vector>& dx,
                                      std::vector<Vector>& dnormed) {
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  const Mlp mlp = CommonOf(layer);
  const MlpGradients gradients = CommonGradients(layer);
  std::vector<Vector> doutput = dx;
  for (const Vector& dy : doutput) BiasBackward(0, dy, gradients.fc2_bias);
  RoundMicroBatches(kE5m2, doutput);
  for (std::size_t t = 0; t < tokens_; ++t) {
    Vector dactivated(mlp.inner, 0);
    TimesBackward(*mlp.fc2, 0, of[t].mlp.inner, doutput[t], dactivated, *gradients.fc2);
    ActivationBackward(mlp, dactivated, of[t].mlp);
    BiasBackward(0, of[t].mlp.dfc1, gradients.fc1_bias);
  }
  RoundMicroBatches(kE5m2, [&](std::size_t t, auto& rows) { rows.push_back(&of[t].mlp.dfc1); });
  for (std::size_t t = 0; t < tokens_; ++t) {
    TimesBackward(*mlp.fc1, 0, of[t].mlp.input, of[t].mlp.dfc1, dnormed[t], *gradients.fc1);
  }
}

// Adds to x what the routed experts make of the tokens.
void SequencesPass::Experts(int layer, std::vector<Vector>& x) {
  const MixtureOfExperts& moe = model_.moe;
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  for (TokenKept& a : of) {
    a.routed = Route(Times(W(layer, "router"), 0, std::size_t(moe.num_experts), a.normed2,
                           Optional(layer, "router_bias")),
                     std::size_t(moe.topk), moe.normalize_topk);
    margin_ = std::min(margin_, a.routed.margin);
    a.experts.resize(a.routed.experts.size());
  }
  for (std::size_t expert = 0; expert < std::size_t(moe.num_experts); ++expert) {
    const Mlp mlp = ExpertOf(layer, expert);
    std::vector<Vector*> inputs, inners;
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      of[t].experts[i].input = of[t].normed2;
      inputs.push_back(&of[t].experts[i].input);
      inners.push_back(&of[t].experts[i].inner);
    });
    if (rounds_) RoundTogether(inputs, kE4m3);
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      MlpKept& kept = of[t].experts[i];
      MlpUp(mlp, kept);
      kept.inner = kept.activated;
      for (double& value : kept.inner) value *= of[t].routed.weights[i];
    });
    if (rounds_) RoundTogether(inners, kE4m3);
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      const Vector output = MlpDown(mlp, of[t].experts[i]);
      for (std::size_t c = 0; c < h_; ++c) {
        x[t][c] += output[c];
        if (mlp.fc2_bias != nullptr) {
          x[t][c] += of[t].routed.weights[i] * (*mlp.fc2_bias)[FirstRowOfFc2(mlp) + c];
        }
      }
    });
  }
}

void SequencesPass::ExpertsBackward(int layer, const std::vector<Vector>& dx,
                                    std::vector<Vector>& dnormed) {
  std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  const MlpGradients gradients{.fc1 = &G(layer, "expert_fc1"),
                               .fc1_bias = OptionalGradient(layer, "expert_fc1_bias"),
                               .fc2 = &G(layer, "expert_fc2"),
                               .fc2_bias = OptionalGradient(layer, "expert_fc2_bias")};
  std::vector<Vector> dweights;
  for (const TokenKept& a : of) dweights.emplace_back(a.routed.experts.size(), 0.0);
  for (std::size_t expert = 0; expert < std::size_t(model_.moe.num_experts); ++expert) {
    const Mlp mlp = ExpertOf(layer, expert);
    const std::size_t first = FirstRowOfFc2(mlp);
    std::vector<Vector> doutput;
    std::vector<Vector*> doutputs, dfc1;
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      doutput.push_back(dx[t]);
      dfc1.push_back(&of[t].experts[i].dfc1);
      if (mlp.fc2_bias == nullptr) return;
      for (std::size_t c = 0; c < h_; ++c) {
        dweights[t][i] += dx[t][c] * (*mlp.fc2_bias)[first + c];
        (*gradients.fc2_bias)[first + c] += of[t].routed.weights[i] * dx[t][c];
      }
    });
    for (Vector& dy : doutput) doutputs.push_back(&dy);
    if (rounds_) RoundTogether(doutputs, kE5m2);
    std::size_t row = 0;
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      MlpKept& kept = of[t].experts[i];
      Vector dactivated(mlp.inner, 0);
      TimesBackward(*mlp.fc2, first, kept.inner, doutput[row++], dactivated, *gradients.fc2);
      for (std::size_t c = 0; c < mlp.inner; ++c) {
        dweights[t][i] += dactivated[c] * kept.activated[c];
        dactivated[c] *= of[t].routed.weights[i];
      }
      ActivationBackward(mlp, dactivated, kept);
      BiasBackward(FirstRowOfFc1(mlp), kept.dfc1, gradients.fc1_bias);
    });
    if (rounds_) RoundTogether(dfc1, kE5m2);
    ForTokensOf(layer, expert, [&](std::size_t t, std::size_t i) {
      const MlpKept& kept = of[t].experts[i];
      TimesBackward(*mlp.fc1, FirstRowOfFc1(mlp), kept.input, kept.dfc1, dnormed[t],
                    *gradients.fc1);
    });
  }
  for (std::size_t t = 0; t < tokens_; ++t) {
    const Vector dlogits = RouteBackward(of[t].routed, dweights[t], model_.moe.normalize_topk);
    TimesBackward(W(layer, "router"), 0, of[t].normed2, dlogits, dnormed[t], G(layer, "router"));
    BiasBackward(0, dlogits, OptionalGradient(layer, "router_bias"));
  }
}

double SequencesPass::Forward() {
  std::vector<Vector> x(tokens_);
  for (std::size_t t = 0; t < tokens_; ++t) {
    const double* row = W(-1, "token_embedding").data() + word_[t] * h_;
    x[t].assign(row, row + h_);
    const Vector* const positions = Optional(-1, "position_embedding");
    for (std::size_t c = 0; positions != nullptr && c < h_; ++c) {
      x[t][c] += (*positions)[t % length_ * h_ + c];
    }
  }
  for (int layer = 0; layer < model_.num_layers; ++layer) {
    Attention(layer, x);
    for (std::size_t t = 0; t < tokens_; ++t) {
      TokenKept& a = kept_[std::size_t(layer)][t];
      a.normed2 = a.middle;
      Norm(W(layer, "mlp_norm"), h_, a.normed2, 0);
      x[t] = a.middle;
    }
    if (has_common(layer)) CommonMlp(layer, x);
    if (model_.layer(layer).moe) Experts(layer, x);
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
    loss += share_ * (std::log(sum) - logits[label_[t]]);
  }
  return loss;
}

void SequencesPass::AttentionBackward(int layer, std::vector<Vector>& dx) {
  const std::vector<TokenKept>& of = kept_[std::size_t(layer)];
  std::vector<Vector> dq(tokens_, Vector(heads_ * e_, 0));
  std::vector<Vector> dk(tokens_, Vector(groups_ * e_, 0)), dv = dk;
  std::vector<Vector> doutput = dx;
  for (const Vector& dy : doutput) {
    BiasBackward(0, dy, OptionalGradient(layer, "attention_output_bias"));
  }
  RoundMicroBatches(kE5m2, doutput);
  for (std::size_t t = 0; t < tokens_; ++t) {
    const TokenKept& a = of[t];
    Vector dattended(heads_ * e_, 0);
    TimesBackward(P(layer, "attention_output"), 0, a.attended, doutput[t], dattended,
                  G(layer, "attention_output"));
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
  std::vector<Vector> dkv(tokens_);
  for (std::size_t t = 0; t < tokens_; ++t) {
    const TokenKept& a = of[t];
    if (rotary()) {
      Rotate(dq[t], e_, t % length_, -1);
      Rotate(dk[t], e_, t % length_, -1);
    }
    if (model_.qk_layernorm) {
      for (std::size_t c = 0; c < dq[t].size(); c += e_) {
        NormBackward(W(layer, "q_norm"), e_, a.q_input, c, dq[t], G(layer, "q_norm"));
      }
      for (std::size_t c = 0; c < dk[t].size(); c += e_) {
        NormBackward(W(layer, "k_norm"), e_, a.k_input, c, dk[t], G(layer, "k_norm"));
      }
    }
    dkv[t] = dk[t];
    dkv[t].insert(dkv[t].end(), dv[t].begin(), dv[t].end());
    BiasBackward(0, dq[t], OptionalGradient(layer, "q_bias"));
    BiasBackward(0, dkv[t], OptionalGradient(layer, "kv_bias"));
  }
  RoundMicroBatches(kE5m2, [&](std::size_t t, auto& rows) {
    rows.insert(rows.end(), {&dq[t], &dkv[t]});
  });
  for (std::size_t t = 0; t < tokens_; ++t) {
    Vector dnormed(h_, 0);
    TimesBackward(P(layer, "q"), 0, of[t].normed, dq[t], dnormed, G(layer, "q"));
    TimesBackward(P(layer, "kv"), 0, of[t].normed, dkv[t], dnormed, G(layer, "kv"));
    NormBackward(W(layer, "attention_norm"), h_, of[t].x, 0, dnormed, G(layer, "attention_norm"));
    for (std::size_t c = 0; c < h_; ++c) dx[t][c] += dnormed[c];
  }
}

void SequencesPass::Backward() {
  std::vector<Vector> dx(tokens_, Vector(h_, 0));
  for (std::size_t t = 0; t < tokens_; ++t) {
    Vector normed = last_[t];
    Norm(W(model_.num_layers, "final_norm"), h_, normed, 0);
    Vector p = Times(weights_.at(HeadName()), 0, std::size_t(model_.vocab_size), normed, nullptr);
    double sum = 0;
    for (double logit : p) sum += std::exp(logit);
    for (double& logit : p) logit = share_ * std::exp(logit) / sum;
    p[label_[t]] -= share_;
    TimesBackward(weights_.at(HeadName()), 0, normed, p, dx[t], gradients_.at(HeadName()));
    NormBackward(W(model_.num_layers, "final_norm"), h_, last_[t], 0, dx[t],
                 G(model_.num_layers, "final_norm"));
  }
  for (int layer = model_.num_layers - 1; layer >= 0; --layer) {
    std::vector<Vector> dnormed(tokens_, Vector(h_, 0));
    if (has_common(layer)) CommonMlpBackward(layer, dx, dnormed);
    if (model_.layer(layer).moe) ExpertsBackward(layer, dx, dnormed);
    for (std::size_t t = 0; t < tokens_; ++t) {
      // The residual's gradient stays in dx; the norm's is added to it.
      NormBackward(W(layer, "mlp_norm"), h_, kept_[std::size_t(layer)][t].middle, 0, dnormed[t],
                   G(layer, "mlp_norm"));
      for (std::size_t c = 0; c < h_; ++c) dx[t][c] += dnormed[t][c];
    }
    AttentionBackward(layer, dx);
  }
  Vector &dwords = G(-1, "token_embedding"), *const dpositions =
                                                 OptionalGradient(-1, "position_embedding");
  for (std::size_t t = 0; t < tokens_; ++t) {
    for (std::size_t c = 0; c < h_; ++c) {
      dwords[word_[t] * h_ + c] += dx[t][c];
      if (dpositions != nullptr) (*dpositions)[t % length_ * h_ + c] += dx[t][c];
    }
  }
}

// What comes together where products are rounded: the micro-batches that data-parallel ranks have
// at one place in their order.  Else each sequence by itself.
std::vector<std::vector<std::int64_t>> SequencesTogether(const Workload& w) {
  std::vector<std::vector<std::int64_t>> together;
  if (!MultipliesFp8(w)) {
    for (std::int64_t s = 0; s < w.training.global_batch_size; ++s) together.push_back({s});
    return together;
  }
  const std::int64_t of_rank = w.schedule.micro_batches, size = w.parallel.micro_batch_size;
  for (std::int64_t place = 0; place < of_rank; ++place) {
    std::vector<std::int64_t>& sequences = together.emplace_back();
    for (int data = 0; data < w.parallel.data; ++data) {
      for (std::int64_t s = 0; s < size; ++s) {
        sequences.push_back((data * of_rank + place) * size + s);
      }
    }
  }
  return together;
}

// Weights as products in FP8 have them: queries, keys and values are one matrix, experts are one
// each, the head, the router and what is no matrix are as they are.
Reference::Tensors RoundedWeights(const Workload& w, const Reference::Tensors& weights) {
  Reference::Tensors rounded = weights;
  for (auto& [name, values] : rounded) {
    if (name.layer < 0 || name.layer == w.model.num_layers) continue;
    if (name.weight == "q") {
      RoundTogether({&values, &rounded.at({name.layer, "kv"})}, kE4m3);
    } else if (name.weight == "expert_fc1" || name.weight == "expert_fc2") {
      const std::size_t size = values.size() / std::size_t(w.model.moe.num_experts);
      for (std::size_t first = 0; first < values.size(); first += size) {
        const auto begin = values.begin() + std::ptrdiff_t(first);
        Vector expert(begin, begin + std::ptrdiff_t(size));
        RoundTogether({&expert}, kE4m3);
        std::copy(expert.begin(), expert.end(), begin);
      }
    } else if (name.weight == "attention_output" || name.weight.ends_with("fc1") ||
               name.weight.ends_with("fc2")) {
      RoundTogether({&values}, kE4m3);
    }
  }
  return rounded;
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

double Reference::ComputeLoss(int step) { return Compute(step, false); }

double Reference::ComputeGradients(int step) {
  for (auto& [name, gradient] : gradients_) gradient.assign(gradient.size(), 0);
  return Compute(step, true);
}

double Reference::Compute(int step, bool backward) {
  const bool rounds = MultipliesFp8(workload_);
  const Tensors rounded = rounds ? RoundedWeights(workload_, weights_) : Tensors();
  double loss = 0;
  for (const std::vector<std::int64_t>& sequences : SequencesTogether(workload_)) {
    SequencesPass pass(workload_, weights_, rounds ? rounded : weights_, gradients_, step,
                       sequences);
    loss += pass.Forward();
    if (backward) pass.Backward();
    routing_margin_ = std::min(routing_margin_, pass.margin());
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
