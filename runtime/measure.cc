// SPDX-License-Identifier: Apache-2.0
#include "runtime/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/mixed.h"
#include "runtime/expert_layer.h"
#include "runtime/processor_time.h"

namespace millwright {
namespace {

constexpr int kMostCalls = 100'000;  // in a repeat
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Measurer::Measurer(Backend& backend, MeasureOptions options)
    : backend_(backend),
      options_(std::move(options)),
      everyone_{.first = 0, .stride = 1, .ranks = backend.ranks()},
      shared_(Tensor::Zeros(backend, 1, 3, Element::kSum)),
      state_(options_.seed * kMixedStep + std::uint64_t(backend.rank())) {}

// One collective for all there is to say, which ends a repeat and begins the next on all ranks.
Seconds Measurer::Agree(double own, Joined joined) {
  const double clock =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::array<double, 3> said{own, options_.stop() ? 1.0 : 0.0, clock};
  backend_.Upload(std::span<const double>(said), shared_);
  backend_.Collective("agree", CollectiveKind::kAllReduce, everyone_, shared_,
                      joined == Joined::kSlowest ? Reduction::kMaximum : Reduction::kSum);
  const std::vector<double> all = backend_.Download(shared_);
  backend_.ForgetCalls();
  const double share = joined == Joined::kSlowest ? 1 : 1.0 / backend_.ranks();
  stops_ = all[1] > 0;
  now_ = Seconds(share * all[2]);
  return Seconds(share * all[0]);
}

bool Measurer::Stops() {
  Agree(0, Joined::kSlowest);
  return stops_;
}

Seconds Measurer::Repeat(const std::function<void()>& call, int calls, Joined joined) {
  const Backend::Mark start = backend_.MarkTime();
  const Seconds processor = ProcessorTime();
  for (int i = 0; i < calls; ++i) call();
  const Seconds worked = ProcessorTime() - processor;
  const Backend::Mark end = backend_.MarkTime();
  backend_.Synchronize();
  const bool by_processor = options_.by_processor && joined == Joined::kMean;
  const Seconds took = by_processor ? worked : backend_.Between(start, end);
  backend_.ForgetMarks();
  return Agree(took.value / calls, joined);
}

Timing Measurer::Time(const std::function<void()>& call, const Tensor& output, Joined joined) {
  poisons_ = true;
  call();
  poisons_ = false;
  if (!output.empty()) CheckWritten(output);
  const Seconds once = Repeat(call, 1, joined);
  const double calls = std::ceil(options_.shortest / std::max(once, Seconds(1e-9)));
  const int together = int(std::clamp(calls, 1.0, double(kMostCalls)));
  return TimeUntilStable(
      options_.limits, [&] { return Repeat(call, together, joined); }, [&] { return now_; },
      [&] { return stops_; });
}

// A million numbers, over and over.
Tensor Measurer::Random(std::int64_t rows, std::int64_t cols, Element element) {
  constexpr std::int64_t kNumbers = std::int64_t{1} << 20;
  const std::int64_t size = rows * cols;
  std::vector<double> values(std::size_t(std::min(size, kNumbers)));
  for (double& value : values) {
    // Within +-1, a float to the bit.
    value = double(Mixed(state_) >> 41) / double(1 << 22) - 1;
    state_ += kMixedStep;
  }
  Tensor tensor(backend_, rows, cols, element);
  const auto numbers = std::int64_t(values.size());
  backend_.Upload(std::span<const double>(values), tensor.view().Part(0, numbers));
  for (std::int64_t at = numbers; at < size; at += numbers) {
    const std::int64_t count = std::min(numbers, size - at);
    backend_.Run(compute::Copy{.from = std::as_const(tensor).view().Part(0, count),
                               .to = tensor.view().Part(at, count)});
  }
  return tensor;
}

// For an output.
Tensor Measurer::Fresh(std::int64_t rows, std::int64_t cols, Element element) {
  Tensor tensor(backend_, rows, cols, element);
  if (poisons_) backend_.Run(compute::Fill{.to = tensor, .value = kNothing});
  return tensor;
}

Tensor Measurer::Indices(std::int64_t count, std::int64_t below) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Apart, so that neighbours are not in one cache line.
    ids[i] = std::int32_t(std::int64_t(i) * 7919 % below);
  }
  Tensor tensor(backend_, 1, count, Element::kIndex);
  backend_.Upload(std::span<const std::int32_t>(ids), tensor);
  return tensor;
}

// At both ends of it.
void Measurer::CheckWritten(ConstView output) {
  constexpr std::int64_t kMost = 1 << 16;
  const std::int64_t count = std::min(output.size(), kMost);
  for (const std::int64_t first : {std::int64_t{0}, output.size() - count}) {
    for (double value : backend_.Download(output.Part(first, count))) {
      MILLWRIGHT_CHECK(std::isfinite(value));
    }
  }
}

Timing Measurer::Measure(const MeasuredCase& what) {
  return std::visit([&](const auto& one) { return Of(one); }, what);
}

Timing Measurer::Of(const GemmCase& gemm) {
  Tensor out;
  switch (gemm.pass) {
    case GemmPass::kForward: {
      const Element operands = gemm.fp8 ? Element::kFp8 : Element::kValue;
      const Tensor x = Random(gemm.m, gemm.k, operands), w = Random(gemm.n, gemm.k, operands);
      const auto call = [&] {
        out = Fresh(gemm.m, gemm.n);
        backend_.Run(compute::Linear{.x = x, .w = w, .y = out});
      };
      return Time(call, out, Joined::kMean);
    }
    case GemmPass::kInputGradient: {
      const Tensor dy = Random(gemm.m, gemm.k), w = Random(gemm.k, gemm.n);
      const auto call = [&] {
        out = Fresh(gemm.m, gemm.n);
        backend_.Run(compute::LinearInputGradient{.dy = dy, .w = w, .dx = out});
      };
      return Time(call, out, Joined::kMean);
    }
    case GemmPass::kWeightGradient: {
      const Tensor dy = Random(gemm.k, gemm.m), x = Random(gemm.k, gemm.n);
      out = Tensor::Zeros(backend_, gemm.m, gemm.n, Element::kSum);
      const auto call = [&] {
        backend_.Run(compute::LinearWeightGradient{.dy = dy, .x = x, .dw = out});
      };
      return Time(call, out, Joined::kMean);
    }
  }
  return {};
}

Tensor Measurer::Positions(std::int64_t tokens) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(tokens));
  std::iota(order.begin(), order.end(), 0);
  Tensor positions(backend_, 1, tokens, Element::kIndex);
  backend_.Upload(std::span<const std::int32_t>(order), positions);
  return positions;
}

Timing Measurer::Of(const AttentionCase& a) {
  const std::int64_t rows = a.sequences * a.tokens;
  const std::int64_t width = std::int64_t{a.heads} * a.head_size;
  const std::int64_t kv_width = std::int64_t{a.groups} * a.head_size;
  const AttentionLayout layout{.sequences = a.sequences,
                               .head_size = a.head_size,
                               .heads = a.heads,
                               .groups = a.groups,
                               .scale = 1 / std::sqrt(double(a.head_size))};
  const Tensor q = Random(rows, width), k = Random(rows, kv_width), v = Random(rows, kv_width);
  const Tensor positions = Positions(a.tokens);
  Tensor attended, log_sum;
  const auto forward = [&] {
    attended = Fresh(rows, width);
    log_sum = Tensor(backend_, rows, a.heads, Element::kSum);
    backend_.Attend({.layout = layout,
                     .q = q,
                     .k = k,
                     .v = v,
                     .positions = positions,
                     .output = attended,
                     .log_sum = log_sum});
  };
  if (!a.backward) return Time(forward, attended, Joined::kMean);
  forward();
  const Tensor doutput = Random(rows, width);
  Tensor dq, dk, dv;
  const auto backward = [&] {
    dq = Fresh(rows, width);
    dk = Fresh(rows, kv_width);
    dv = Fresh(rows, kv_width);
    backend_.AttendBackward({.layout = layout,
                             .q = q,
                             .k = k,
                             .v = v,
                             .positions = positions,
                             .output = attended,
                             .log_sum = log_sum,
                             .doutput = doutput,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv});
  };
  return Time(backward, dq, Joined::kMean);
}

Timing Measurer::Of(const RowsCase& r) {
  Tensor out;
  const auto timed = [&](const std::function<void()>& call) {
    return Time(call, out, Joined::kMean);
  };
  switch (r.kernel) {
    case RowKernel::kNorm:
      return OfNorm(r);
    case RowKernel::kRope: {
      out = Random(r.rows, r.cols - r.key_cols);
      Tensor keys = Random(r.rows, r.key_cols);
      const Tensor positions = Positions(r.rows);
      return timed([&] {
        for (Tensor* rows : {&out, &keys}) {
          backend_.Run(compute::Rope{
              .x = *rows, .positions = positions, .head_size = r.head_size, .back = r.backward});
        }
      });
    }
    case RowKernel::kActivation: {
      if (r.weighted) return OfWeighted(r);
      const std::int64_t inputs = (r.gated ? 2 : 1) * r.cols;
      const Tensor x = Random(r.rows, inputs), dy = Random(r.rows, r.cols);
      if (!r.backward) {
        return timed([&] {
          out = Fresh(r.rows, r.cols);
          backend_.Run(
              compute::Activate{.x = x, .y = out, .activation = r.activation, .gated = r.gated});
        });
      }
      return timed([&] {
        out = Fresh(r.rows, inputs);
        backend_.Run(compute::ActivationGradient{
            .dy = dy, .x = x, .dx = out, .activation = r.activation, .gated = r.gated});
      });
    }
    case RowKernel::kAdd: {
      const Tensor from = Random(r.rows, r.cols);
      if (r.backward) {  // of a sum: the gradient goes both ways
        return timed([&] { out = Tensor::CopyOf(backend_, from); });
      }
      out = Random(r.rows, r.cols);
      return timed([&] { backend_.Run(compute::Add{.from = from, .to = out}); });
    }
    case RowKernel::kBias: {
      const Tensor bias = Random(1, r.cols), dy = Random(r.rows, r.cols);
      if (!r.backward) {
        out = Random(r.rows, r.cols);
        return timed([&] { backend_.Run(compute::AddBias{.bias = bias, .x = out}); });
      }
      out = Tensor::Zeros(backend_, 1, r.cols, Element::kSum);
      return timed([&] { backend_.Run(compute::AddColumns{.from = dy, .to = out}); });
    }
    case RowKernel::kEmbedding: {
      constexpr std::int64_t kWords = 4096;
      const Tensor ids = Indices(r.rows, kWords);
      if (!r.backward) {
        const Tensor table = Random(kWords, r.cols);
        return timed([&] {
          out = Fresh(r.rows, r.cols);
          backend_.Run(compute::Embed{.table = table, .ids = ids, .y = out});
        });
      }
      const Tensor dy = Random(r.rows, r.cols);
      out = Tensor::Zeros(backend_, kWords, r.cols, Element::kSum);
      return timed(
          [&] { backend_.Run(compute::EmbeddingGradient{.dy = dy, .ids = ids, .dtable = out}); });
    }
    case RowKernel::kCrossEntropy: {
      const Tensor logits = Random(r.rows, r.cols), labels = Indices(r.rows, r.cols);
      Tensor maximum, sum;
      out = Tensor(backend_, 1, r.rows, Element::kSum);
      backend_.Run(compute::Fill{.to = out, .value = kNothing});
      const auto forward = [&] {
        maximum = Tensor(backend_, r.rows, 1, Element::kSum);
        backend_.Run(compute::RowMaximum{.logits = logits, .words = r.cols, .maximum = maximum});
        sum = Tensor(backend_, r.rows, 1, Element::kSum);
        Tensor label_logit(backend_, r.rows, 1, Element::kSum);
        backend_.Run(compute::CrossEntropySums{.logits = logits,
                                               .labels = labels,
                                               .maximum = maximum,
                                               .words = r.cols,
                                               .sum = sum,
                                               .label_logit = label_logit});
        backend_.Run(compute::TokenLoss{
            .maximum = maximum, .sum = sum, .label_logit = label_logit, .loss = out});
      };
      if (!r.backward) return timed(forward);
      forward();
      return timed([&] {
        out = Fresh(r.rows, r.cols);
        backend_.Run(compute::CrossEntropyGradient{.logits = logits,
                                                   .labels = labels,
                                                   .maximum = maximum,
                                                   .sum = sum,
                                                   .words = r.cols,
                                                   .share = 1.0 / double(r.rows),
                                                   .gradient = out});
      });
    }
    case RowKernel::kRoute:
    case RowKernel::kPermute:
    case RowKernel::kUnpermute:
      return OfExperts(r);
    case RowKernel::kAdam: {
      const Tensor gradient = Random(r.rows, r.cols, Element::kSum);
      Tensor first = Tensor::Zeros(backend_, r.rows, r.cols, Element::kSum);
      Tensor second = Tensor::Zeros(backend_, r.rows, r.cols, Element::kSum);
      Tensor master;
      if (backend_.WidthOf(Element::kValue) != backend_.WidthOf(Element::kSum)) {
        master = Random(r.rows, r.cols, Element::kSum);
      }
      out = Random(r.rows, r.cols);
      const Adam adam;
      return timed([&] {
        backend_.Run(compute::AdamUpdate{.gradient = gradient,
                                         .moment1 = first,
                                         .moment2 = second,
                                         .weights = out,
                                         .master = master,
                                         .rate = adam.rate,
                                         .beta1 = adam.beta1,
                                         .beta2 = adam.beta2,
                                         .epsilon = adam.epsilon,
                                         .correction1 = 1 - adam.beta1,
                                         .correction2 = 1 - adam.beta2});
      });
    }
    case RowKernel::kGradientSum: {
      Tensor gradients = Random(r.rows, r.cols, Element::kSum);
      Tensor sums = Random(r.rows, r.cols, Element::kSum);
      return timed([&] {  // all zeros
        backend_.Run(compute::Fill{.to = gradients, .value = 0});
        backend_.Run(compute::Fill{.to = sums, .value = 0});
        backend_.Run(compute::Add{.from = gradients, .to = sums});
        backend_.Run(compute::Fill{.to = gradients, .value = 0});
      });
    }
  }
  return {};
}

Timing Measurer::OfNorm(const RowsCase& r) {
  const bool centred = r.normalization == Normalization::kLayerNorm;
  const Tensor x = Random(r.rows, r.cols), dy = Random(r.rows, r.cols);
  const Tensor gain = Random(1, r.cols), bias = Random(1, r.cols);
  Tensor out, mean, rstd;
  const auto forward = [&] {
    out = Fresh(r.rows, r.cols);
    rstd = Tensor(backend_, 1, r.rows, Element::kSum);
    if (!centred) {
      backend_.Run(compute::RmsNorm{.x = x, .gain = gain, .y = out, .rstd = rstd});
      return;
    }
    mean = Tensor(backend_, 1, r.rows, Element::kSum);
    backend_.Run(compute::LayerNorm{
        .x = x, .gain = gain, .bias = bias, .y = out, .mean = mean, .rstd = rstd});
  };
  if (!r.backward) return Time(forward, out, Joined::kMean);
  forward();
  Tensor dgain = Tensor::Zeros(backend_, 1, r.cols, Element::kSum);
  Tensor dbias = Tensor::Zeros(backend_, 1, r.cols, Element::kSum);
  out = Tensor::Zeros(backend_, r.rows, r.cols);
  const auto backward = [&] {
    if (!centred) {
      backend_.Run(compute::RmsNormGradient{
          .dy = dy, .x = x, .gain = gain, .rstd = rstd, .dx = out, .dgain = dgain});
      return;
    }
    backend_.Run(compute::LayerNormGradient{.dy = dy,
                                            .x = x,
                                            .gain = gain,
                                            .mean = mean,
                                            .rstd = rstd,
                                            .dx = out,
                                            .dgain = dgain,
                                            .dbias = dbias});
  };
  return Time(backward, out, Joined::kMean);
}

// An expert's activation as it is executed: weighted, and backward computed again for that.
Timing Measurer::OfWeighted(const RowsCase& r) {
  const std::int64_t inputs = (r.gated ? 2 : 1) * r.cols;
  const Tensor x = Random(r.rows, inputs), dy = Random(r.rows, r.cols);
  SavedExperts saved;
  saved.row_weights = Random(r.rows, 1, Element::kSum);
  std::vector<std::int32_t> numbers(std::size_t(r.rows), 0);
  std::iota(numbers.begin(), numbers.end(), 0);
  saved.row_numbers = Tensor(backend_, r.rows, 1, Element::kIndex);
  backend_.Upload(std::span<const std::int32_t>(numbers), saved.row_numbers);
  const Workload none;
  const RankGroups alone = GroupsOf({}, 0);
  ExpertLayer layer(none, alone, backend_);
  Tensor out;
  const auto activated = [&] {
    Tensor y = Fresh(r.rows, r.cols);
    backend_.Run(compute::Activate{.x = x, .y = y, .activation = r.activation, .gated = r.gated});
    return y;
  };
  const auto forward = [&] { out = layer.Weighted(activated(), saved); };
  const auto backward = [&] {
    saved.drow_weights = {};
    const Tensor up = layer.WeightedBackward(dy, activated(), saved);
    out = Fresh(r.rows, inputs);
    backend_.Run(compute::ActivationGradient{
        .dy = up, .x = x, .dx = out, .activation = r.activation, .gated = r.gated});
  };
  return r.backward ? Time(backward, out, Joined::kMean) : Time(forward, out, Joined::kMean);
}

// On one rank that has all experts.
Timing Measurer::OfExperts(const RowsCase& r) {
  const std::int64_t experts = r.kernel == RowKernel::kRoute ? r.cols : r.experts;
  const std::int64_t tokens = r.kernel == RowKernel::kRoute ? r.rows : r.rows / r.topk;
  Tensor out, dweights;
  const auto timed = [&](const std::function<void()>& call) {
    return Time(call, out, Joined::kMean);
  };
  SavedExperts saved;
  saved.logits = Random(tokens, experts);
  const auto route = [&] {
    saved.routes.chosen = Tensor(backend_, tokens, r.topk, Element::kIndex);
    saved.routes.weights = Fresh(tokens, r.topk, Element::kSum);
    backend_.Run(compute::Route{
        .logits = saved.logits, .chosen = saved.routes.chosen, .weights = saved.routes.weights});
  };
  route();
  if (r.kernel == RowKernel::kRoute) {
    if (!r.backward) return Time(route, saved.routes.weights, Joined::kMean);
    dweights = Random(tokens, r.topk, Element::kSum);
    return timed([&] {
      out = Fresh(tokens, experts);
      backend_.Run(compute::RouteGradient{.logits = saved.logits,
                                          .chosen = saved.routes.chosen,
                                          .dweights = dweights,
                                          .dlogits = out});
    });
  }
  Workload workload;
  workload.model.hidden_size = r.cols;
  workload.model.moe = {.num_experts = r.experts, .topk = r.topk};
  const RankGroups alone = GroupsOf({}, 0);
  ExpertLayer layer(workload, alone, backend_);
  const Tensor x = Random(tokens, r.cols);
  const Tensor rows = layer.Permute(x, saved);
  if (r.kernel == RowKernel::kPermute) {
    // Both take what rows count, or its gradient, with them.
    if (!r.backward) {
      return timed([&] {
        saved.routes.weights = Tensor(backend_, tokens, r.topk, Element::kSum);
        out = layer.Permute(x, saved);
      });
    }
    return timed([&] {
      saved.drow_weights = Tensor(backend_, rows.rows(), 1, Element::kSum);
      out = layer.PermuteBackward(rows, saved);
    });
  }
  if (!r.backward) return timed([&] { out = layer.Unpermute(rows, saved); });
  return timed([&] { out = layer.UnpermuteBackward(x, saved); });
}

Timing Measurer::Of(const CollectiveCase& c) {
  MILLWRIGHT_CHECK(c.ranks >= 2 && c.ranks <= backend_.ranks());
  const bool takes_part = backend_.rank() < c.ranks;
  const RankGroup group{.first = 0, .stride = 1, .ranks = c.ranks};
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather: {
      // Sums of zeros stay what they are, however often they are added up.
      Tensor data = Tensor::Zeros(backend_, 1, c.elements);
      return Time(
          [&] {
            if (takes_part) backend_.Collective("measured", c.kind, group, data);
          },
          {}, Joined::kSlowest);
    }
    case CollectiveKind::kAllToAll: {
      const Tensor out = Random(1, c.elements);
      Tensor in(backend_, 1, c.elements);
      backend_.Run(compute::Fill{.to = in, .value = takes_part ? kNothing : 0});
      return Time(
          [&] {
            if (takes_part) backend_.AllToAll("measured", group, out, in);
          },
          in, Joined::kSlowest);
    }
    case CollectiveKind::kSendRecv: {
      // There and back again, which is two.
      const int other = 1 - backend_.rank();
      Tensor ball = Random(1, c.elements);
      Timing timing = Time(
          [&] {
            if (backend_.rank() > 1) return;
            for (int turn = 0; turn < 2; ++turn) {
              if (turn == backend_.rank()) {
                backend_.Send("measured", other, 1, std::exchange(ball, Tensor()));
              } else {
                ball = Tensor(backend_, 1, c.elements);
                backend_.Receive(other, 1, ball);
              }
            }
          },
          ball, Joined::kSlowest);
      timing.burst = timing.burst / 2;
      timing.sustained = timing.sustained / 2;
      return timing;
    }
    case CollectiveKind::kBroadcast:
      break;
  }
  MILLWRIGHT_CHECK(false && "no backend broadcasts");
  return {};
}

std::optional<OverlapTimes> Measurer::Overlap(const GemmCase& product) {
  if (backend_.ranks() < 2) return std::nullopt;
  const int rank = backend_.rank(), other = 1 - rank;
  const Tensor x = Random(product.m, product.k), w = Random(product.n, product.k);
  Tensor out, message, arrived;
  const auto send = [&](std::int64_t elements) {
    if (rank > 1) return;
    message = Tensor::Zeros(backend_, 1, elements);
    backend_.Send("measured", other, 1, std::move(message));
  };
  const auto receive = [&](std::int64_t elements) {
    if (rank > 1) return;
    arrived = Tensor(backend_, 1, elements);
    backend_.Receive(other, 1, arrived);
  };
  const auto multiply = [&] {
    out = Fresh(product.m, product.n);
    backend_.Run(compute::Linear{.x = x, .w = w, .y = out});
  };
  const auto exchange = [&](std::int64_t elements) {
    return Time(
               [&, elements] {
                 send(elements);
                 receive(elements);
               },
               {}, Joined::kSlowest)
        .sustained;
  };
  OverlapTimes times{.product = Time(multiply, out, Joined::kSlowest).sustained};
  constexpr std::int64_t kFirst = 1 << 16, kMost = 1 << 26;
  const Seconds first = exchange(kFirst);
  if (stops_ || first.value <= 0) return std::nullopt;
  const auto elements =
      std::clamp<std::int64_t>(std::int64_t(double(kFirst) * (times.product / first)), 1, kMost);
  times.bytes = double(elements) * backend_.WidthOf(Element::kValue);
  times.messages = exchange(elements);
  times.together = Time(
                       [&] {
                         send(elements);
                         multiply();
                         receive(elements);
                       },
                       out, Joined::kSlowest)
                       .sustained;
  if (stops_) return std::nullopt;
  return times;
}

}  // namespace millwright
