// SPDX-License-Identifier: Apache-2.0
#include "runtime/unit_operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

constexpr double kActivationWidth = 2;  // bytes of an element in cost_models/operators' payloads
constexpr double kLossWidth = 4;        //   and of a number of the cross-entropy

bool IsMatrixProduct(OperatorCode code) {
  return code == OperatorCode::kQkv || code == OperatorCode::kAttentionOutput ||
         code == OperatorCode::kFc1 || code == OperatorCode::kFc2 ||
         code == OperatorCode::kRouter || code == OperatorCode::kExpertFc1 ||
         code == OperatorCode::kExpertFc2 || code == OperatorCode::kOutputHead;
}

// Which norm's output is gathered, or is the input of the GEMM.
std::size_t NormBefore(const Operator& op) {
  const bool mlp = op.name.starts_with("mlp") || op.name.starts_with("fc1") ||
                   op.name.starts_with("shared expert");
  return mlp ? 1 : 0;
}

// The MLP of every token: in a MoE layer that of the shared experts.
struct MlpNames {
  std::string_view fc1 = "fc1", fc1_bias = "fc1_bias", fc2 = "fc2", fc2_bias = "fc2_bias";
};
MlpNames MlpOf(const Unit& unit) {
  if (!unit.is_moe()) return {};
  return {.fc1 = "shared_fc1",
          .fc1_bias = "shared_fc1_bias",
          .fc2 = "shared_fc2",
          .fc2_bias = "shared_fc2_bias"};
}

}  // namespace

UnitOperators::UnitOperators(const Workload& workload, const RankGroups& groups, Backend& backend)
    : workload_(workload),
      groups_(groups),
      backend_(backend),
      plain_(backend),
      linear_(MultipliesFp8(workload) ? LinearProducts(backend, groups.micro_batch, 1)
                                      : LinearProducts(backend)),
      attention_(workload, groups, backend),
      experts_(workload, groups, backend) {
  const PipelineSchedule& schedule = workload.schedule;
  const auto& order = schedule.orders[std::size_t(groups.place.pipeline)];
  const auto heads = std::count_if(order.begin(), order.end(), [&](const Pass& pass) {
    return pass.kind == PassKind::kForward && schedule.last_of_direction(pass.stage);
  });
  losses_ = Tensor(backend, 1, heads * tokens(), Element::kSum);
}

void UnitOperators::StartStep(int step) {
  step_ = step;
  counted_ = 0;
  routed_.clear();
}

double UnitOperators::Loss() const {
  if (groups_.place.tensor != 0) return 0;  // all tensor ranks have the same
  MILLWRIGHT_CHECK(counted_ == losses_.size());
  if (losses_.empty()) return 0;
  const std::vector<double> losses = backend_.Download(losses_);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

Tensor UnitOperators::Ids(const Pass& pass, int ahead, std::int64_t first, std::int64_t count) {
  const PipelineSchedule& schedule = workload_.schedule;
  const std::vector<std::int32_t>& positions = attention_.positions();
  const int direction = pass.stage / schedule.stages_per_direction();
  const std::int64_t micro_batch =
      std::int64_t{1} * groups_.place.data * schedule.micro_batches +
      std::int64_t{1} * direction * schedule.micro_batches_per_direction() + pass.micro_batch;
  std::vector<std::int32_t> ids;
  for (std::int64_t s = 0; s < workload_.parallel.micro_batch_size; ++s) {
    for (std::int32_t position : positions) {
      const std::int64_t sequence = micro_batch * workload_.parallel.micro_batch_size + s;
      const std::int64_t id =
          Token(workload_, step_, sequence, std::int64_t{position} + ahead) - first;
      ids.push_back(id < count ? std::int32_t(std::max<std::int64_t>(id, -1)) : -1);
    }
  }
  Tensor tensor(backend_, 1, std::int64_t(ids.size()), Element::kIndex);
  backend_.Upload(std::span<const std::int32_t>(ids), tensor);
  return tensor;
}

// Of all rows of a micro-batch.
Tensor UnitOperators::RowPositions() {
  std::vector<std::int32_t> ids;
  for (int s = 0; s < workload_.parallel.micro_batch_size; ++s) {
    ids.insert(ids.end(), attention_.positions().begin(), attention_.positions().end());
  }
  Tensor tensor(backend_, 1, std::int64_t(ids.size()), Element::kIndex);
  backend_.Upload(std::span<const std::int32_t>(ids), tensor);
  return tensor;
}

// --- Forward

Tensor UnitOperators::Linear(const Unit& unit, const Operator& op, std::string_view weight,
                             std::string_view bias, ConstView x) {
  const ConstView w = unit.weight(weight);
  Tensor y(backend_, x.rows, w.rows);
  ProductsOf(op).Forward({{{.x = x, .w = w, .to = y}}});
  AddBias(unit.weight(bias), y);
  return y;
}

void UnitOperators::AddBias(ConstView bias, View x) {
  if (!bias.empty()) backend_.Run(compute::AddBias{.bias = bias, .x = x});
}

void UnitOperators::Norm(const Unit& unit, std::string_view gain, ConstView x, std::size_t which,
                         Saved& saved) {
  saved.normed[which] = Tensor(backend_, x.rows, x.cols);
  Normalize(unit.weight(gain), x, saved.normed[which], saved.statistics[which]);
}

void UnitOperators::Normalize(ConstView weights, ConstView x, View y, Tensor& statistics) {
  switch (workload_.model.normalization) {
    case Normalization::kRmsNorm:
      statistics = Tensor(backend_, 1, x.rows, Element::kSum);
      backend_.Run(compute::RmsNorm{.x = x, .gain = weights, .y = y, .rstd = statistics});
      return;
    case Normalization::kLayerNorm:
      statistics = Tensor(backend_, 2, x.rows, Element::kSum);
      backend_.Run(compute::LayerNorm{.x = x,
                                      .gain = weights.Rows(0, 1),
                                      .bias = weights.Rows(1, 1),
                                      .y = y,
                                      .mean = statistics.view().Rows(0, 1),
                                      .rstd = statistics.view().Rows(1, 1)});
      return;
  }
}

// Of every head by itself, all with the same weights.
void UnitOperators::HeadNorm(const Unit& unit, std::string_view weights, Tensor& heads,
                             Tensor& input, Tensor& statistics) {
  const std::int64_t e = workload_.model.kv_channels;
  input = std::exchange(heads, Tensor(backend_, heads.rows(), heads.cols()));
  const std::int64_t rows = input.size() / e;
  Normalize(unit.weight(weights), input.view().Shaped(rows, e), heads.view().Shaped(rows, e),
            statistics);
}

Tensor UnitOperators::Activated(ConstView x) {
  const ModelConfig& model = workload_.model;
  Tensor y(backend_, x.rows, x.cols / (model.gated_linear_unit ? 2 : 1));
  backend_.Run(compute::Activate{
      .x = x, .y = y, .activation = model.activation, .gated = model.gated_linear_unit});
  return y;
}

Tensor UnitOperators::ActivationBackward(ConstView dy, ConstView x) {
  const ModelConfig& model = workload_.model;
  Tensor dx(backend_, x.rows, x.cols);
  backend_.Run(compute::ActivationGradient{.dy = dy,
                                           .x = x,
                                           .dx = dx,
                                           .activation = model.activation,
                                           .gated = model.gated_linear_unit});
  return dx;
}

// What this rank sends its tokens' copies in, or gets them back in, is the payload of balanced
// routing.
void UnitOperators::CheckRouted(const Operator& op, std::int64_t elements) const {
  const double payload = op.payload.value / workload_.training.moe_imbalance;
  MILLWRIGHT_CHECK(std::abs(double(elements) * kActivationWidth - payload) <= 1e-9 * payload);
}

void UnitOperators::Forward(const Unit& unit, std::size_t index, const Pass& pass, Saved& saved,
                            Tensor& flow) {
  const Operator& op = unit.operators[index];
  const ModelConfig& model = workload_.model;
  // The input of the GEMM after a norm.
  const auto normed = [&](std::size_t which) -> ConstView {
    return std::as_const(flow.empty() ? saved.normed[which] : flow).view();
  };
  switch (unit.codes[index]) {
    case OperatorCode::kEmbedding: {
      const TensorPart& table = unit.part("token_embedding");
      const Tensor ids = Ids(pass, 0, table.first_row, table.rows);
      flow = Tensor(backend_, ids.size(), model.hidden_size);
      backend_.Run(compute::Embed{.table = unit.weight("token_embedding"), .ids = ids, .y = flow});
      // The sum over tensor ranks must have them once.
      if (unit.has("position_embedding") && groups_.place.tensor == 0) {
        Tensor positions(backend_, flow.rows(), flow.cols());
        backend_.Run(compute::Embed{
            .table = unit.weight("position_embedding"), .ids = RowPositions(), .y = positions});
        backend_.Run(compute::Add{.from = positions, .to = flow});
      }
      return;
    }
    case OperatorCode::kInputNorm:
    case OperatorCode::kFinalNorm:
      saved.input = std::move(flow);
      Norm(unit, op.name == "final norm" ? "final_norm" : "attention_norm", saved.input, 0, saved);
      return;
    case OperatorCode::kPreMlpNorm:
      Norm(unit, "mlp_norm", saved.middle, 1, saved);
      return;
    case OperatorCode::kGather:
      if (op.forward) flow = GatherRows(op, saved.normed[NormBefore(op)]);
      return;
    case OperatorCode::kRegather:
      return;
    case OperatorCode::kReduce:
      if (workload_.parallel.sequence_parallel) {
        flow = ScatterRows(op, std::move(flow));
      } else {
        ReduceRows(op, flow);
      }
      return;
    case OperatorCode::kQkv: {
      const ConstView x = normed(0), kv = unit.weight("kv"), bias = unit.weight("kv_bias");
      const std::int64_t width = kv.rows / 2;  // keys', then as many of values'
      saved.q = Tensor(backend_, x.rows, unit.part("q").rows);
      saved.k = Tensor(backend_, x.rows, width);
      saved.v = Tensor(backend_, x.rows, width);
      ProductsOf(op).Forward({{{.x = x, .w = unit.weight("q"), .to = saved.q},
                               {.x = x, .w = kv.Rows(0, width), .to = saved.k},
                               {.x = x, .w = kv.Rows(width, width), .to = saved.v}}});
      AddBias(unit.weight("q_bias"), saved.q);
      if (!bias.empty()) {
        AddBias(bias.Part(0, width), saved.k);
        AddBias(bias.Part(width, width), saved.v);
      }
      flow = {};
      return;
    }
    case OperatorCode::kQkNorm:
      HeadNorm(unit, "q_norm", saved.q, saved.q_input, saved.q_statistics);
      HeadNorm(unit, "k_norm", saved.k, saved.k_input, saved.k_statistics);
      return;
    case OperatorCode::kRope:
      for (Tensor* rows : {&saved.q, &saved.k}) {
        backend_.Run(compute::Rope{.x = *rows,
                                   .positions = attention_.device_positions(),
                                   .head_size = model.kv_channels});
      }
      return;
    case OperatorCode::kUlyssesIn: {
      saved.k = attention_.Spread(saved.k);
      saved.v = attention_.Spread(saved.v);
      const std::array<ConstView, 3> tensors{saved.q, saved.k, saved.v};
      std::vector<Tensor> exchanged = attention_.TokensToHeads(op, tensors);
      saved.q = std::move(exchanged[0]);
      saved.k = std::move(exchanged[1]);
      saved.v = std::move(exchanged[2]);
      return;
    }
    case OperatorCode::kAttention:
      flow = attention_.Attend(unit, saved);
      if (!attention_.ulysses()) saved.attended = std::move(flow);
      return;
    case OperatorCode::kRing:  // done with the attention that it goes with
    case OperatorCode::kRingMerge:
      return;
    case OperatorCode::kUlyssesOut: {
      const std::array<ConstView, 1> tensors{flow};
      saved.attended = std::move(attention_.HeadsToTokens(op, tensors).front());
      flow = {};
      return;
    }
    case OperatorCode::kAttentionOutput:
      flow = Linear(unit, op, "attention_output", "", saved.attended);
      return;
    case OperatorCode::kAttentionResidual:
      // The bias of a row-parallel product: after the sum over ranks, or it would be added t times.
      AddBias(unit.weight("attention_output_bias"), flow);
      backend_.Run(compute::Add{.from = saved.input, .to = flow});
      saved.middle = std::move(flow);
      return;
    case OperatorCode::kFc1:
      saved.fc1 = Linear(unit, op, MlpOf(unit).fc1, MlpOf(unit).fc1_bias, normed(1));
      flow = {};
      return;
    case OperatorCode::kActivation:
      saved.fc2_input = Activated(saved.fc1);
      return;
    case OperatorCode::kFc2:
      flow = Linear(unit, op, MlpOf(unit).fc2, "", saved.fc2_input);
      return;
    case OperatorCode::kRouter:
      experts_.Route(unit, saved.normed[1], saved.experts);
      return;
    case OperatorCode::kPermute:
      saved.experts.shared = std::move(flow);
      flow = experts_.Permute(saved.normed[1], saved.experts);
      routed_.push_back(experts_.Count(saved.experts));
      routed_.back().layer = unit.layer;
      routed_.back().micro_batch = pass.micro_batch;
      routed_.back().again = pass.kind != PassKind::kForward;
      return;
    case OperatorCode::kDispatch:
      CheckRouted(op, flow.size());
      flow = experts_.Dispatch(op.name, flow, saved.experts);
      return;
    case OperatorCode::kExpertGather:
      flow = experts_.Gather(op.name, flow, saved.experts);
      return;
    case OperatorCode::kExpertFc1:
      experts_.Fc1(unit, std::move(flow), saved.experts);
      flow = {};
      return;
    case OperatorCode::kExpertActivation:
      saved.experts.fc2_input = experts_.Weighted(Activated(saved.experts.fc1), saved.experts);
      return;
    case OperatorCode::kExpertFc2:
      flow = experts_.Fc2(unit, saved.experts);
      return;
    case OperatorCode::kExpertScatter:
      flow = experts_.Scatter(op.name, std::move(flow), saved.experts);
      return;
    case OperatorCode::kCombine:
      flow = experts_.Combine(op.name, flow, saved.experts);
      CheckRouted(op, flow.size());
      return;
    case OperatorCode::kUnpermute: {
      flow = experts_.Unpermute(flow, saved.experts);
      const Tensor shared = std::move(saved.experts.shared);
      if (!shared.empty()) backend_.Run(compute::Add{.from = shared, .to = flow});
      return;
    }
    case OperatorCode::kMlpResidual:
      AddBias(unit.weight(MlpOf(unit).fc2_bias), flow);
      backend_.Run(compute::Add{.from = saved.middle, .to = flow});
      return;
    case OperatorCode::kOutputHead:
      saved.logits = Linear(unit, op, HeadTable(), "", normed(0));
      flow = {};
      return;
    case OperatorCode::kCrossEntropy:
      saved.maximum = Tensor(backend_, saved.logits.rows(), 1, Element::kSum);
      backend_.Run(compute::RowMaximum{
          .logits = saved.logits, .words = WordsOf(saved.logits), .maximum = saved.maximum});
      if (groups_.tensor.ranks == 1) CrossEntropy(nullptr, pass, saved);
      return;
    case OperatorCode::kCrossEntropyReduce:
      CrossEntropy(&op, pass, saved);
      return;
  }
}

void UnitOperators::Recompute(const Unit& unit, std::size_t index, PassState& state, Saved& saved) {
  // What the operators that are computed again begin with; the others go on from there.
  const OperatorCode code = unit.codes[index];
  if (code == OperatorCode::kInputNorm) state.again = std::move(saved.input);
  if (code == OperatorCode::kGather || code == OperatorCode::kRouter ||
      (code == OperatorCode::kFc1 && groups_.tensor.ranks == 1)) {
    state.again = {};
  }
  Forward(unit, index, state.pass, saved, state.again);
  // Alone it is computed again for its log-sum-exp: of its output the exchanged one is kept.
  if (code == OperatorCode::kAttention && !unit.recomputed) state.again = {};
}

void UnitOperators::DropComputedAgain(const Unit& unit, Saved& saved) const {
  if (unit.recomputed) {
    Saved rest{.input = std::move(saved.input)};
    saved = std::move(rest);
    return;
  }
  if (workload_.training.fused_swiglu && workload_.model.gated_linear_unit) {
    saved.fc2_input = {};
    saved.experts.fc2_input = {};
  }
  const auto drops = [&](RecomputeModule module) { return (unit.recomputes & Mask(module)) != 0; };
  if (drops(RecomputeModule::kCoreAttn)) saved.log_sum = {};
  if (drops(unit.is_moe() ? RecomputeModule::kMoe : RecomputeModule::kMlp)) {
    saved.fc1 = {};
    saved.fc2_input = {};
    saved.experts = {};
  }
  if (drops(RecomputeModule::kMoeAct)) saved.experts.fc2_input = {};
  if (drops(RecomputeModule::kLayerNorm)) saved.normed = {};
}

// Inputs of products and gradients of their outputs stay.
void UnitOperators::DropAllButForWeights(Saved& saved) const {
  for (Tensor* tensor : {&saved.input,
                         &saved.middle,
                         &saved.statistics[0],
                         &saved.statistics[1],
                         &saved.q_input,
                         &saved.k_input,
                         &saved.q_statistics,
                         &saved.k_statistics,
                         &saved.q,
                         &saved.k,
                         &saved.v,
                         &saved.log_sum,
                         &saved.fc1,
                         &saved.logits,
                         &saved.labels,
                         &saved.maximum,
                         &saved.sum,
                         &saved.experts.logits,
                         &saved.experts.fc1,
                         &saved.experts.dweights}) {
    *tensor = {};
  }
}

// --- Backward

void UnitOperators::Backward(Unit& unit, std::size_t index, BackwardPart part, PassState& state,
                             Saved& saved) {
  const Operator& op = unit.operators[index];
  const OperatorCode code = unit.codes[index];
  const ModelConfig& model = workload_.model;
  const bool weight = part != BackwardPart::kInput, input = part != BackwardPart::kWeight;
  const bool sequence_parallel = workload_.parallel.sequence_parallel;
  Tensor& flow = state.flow;
  if (!input && !IsMatrixProduct(code) && code != OperatorCode::kRegather) return;
  // What the GEMM after a norm has worked on, gathered again where it was.
  const auto gathered = [&](std::size_t which) -> ConstView {
    return std::as_const(sequence_parallel ? state.regathered : saved.normed[which]).view();
  };
  switch (code) {
    case OperatorCode::kEmbedding: {
      const TensorPart& table = unit.part("token_embedding");
      backend_.Run(
          compute::EmbeddingGradient{.dy = flow,
                                     .ids = Ids(state.pass, 0, table.first_row, table.rows),
                                     .dtable = unit.gradient("token_embedding")});
      if (unit.has("position_embedding")) {
        backend_.Run(compute::EmbeddingGradient{
            .dy = flow, .ids = RowPositions(), .dtable = unit.gradient("position_embedding")});
      }
      return;
    }
    case OperatorCode::kInputNorm:
      NormBackward(unit, "attention_norm", saved.input, saved.statistics[0], flow, state.residual);
      flow = std::move(state.residual);
      return;
    case OperatorCode::kPreMlpNorm:
      NormBackward(unit, "mlp_norm", saved.middle, saved.statistics[1], flow, state.residual);
      flow = std::move(state.residual);
      return;
    case OperatorCode::kFinalNorm: {
      Tensor dx = Tensor::Zeros(backend_, saved.input.rows(), saved.input.cols());
      NormBackward(unit, "final_norm", saved.input, saved.statistics[0], flow, dx);
      flow = std::move(dx);
      return;
    }
    case OperatorCode::kGather:
      if (sequence_parallel) {
        flow = ScatterRows(op, std::move(flow));
      } else {
        ReduceRows(op, flow);
      }
      return;
    case OperatorCode::kRegather:
      if (weight) state.regathered = GatherRows(op, saved.normed[NormBefore(op)]);
      return;
    case OperatorCode::kReduce:
      if (op.backward) flow = GatherRows(op, flow);
      return;
    case OperatorCode::kQkv:
      QkvBackward(unit, op, gathered(0), part, saved, flow);
      return;
    case OperatorCode::kQkNorm:
      HeadNormBackward(unit, "q_norm", saved.q_input, saved.q_statistics, saved.dq);
      HeadNormBackward(unit, "k_norm", saved.k_input, saved.k_statistics, saved.dk);
      return;
    case OperatorCode::kRope:
      for (Tensor* rows : {&saved.dq, &saved.dk}) {
        backend_.Run(compute::Rope{.x = *rows,
                                   .positions = attention_.device_positions(),
                                   .head_size = model.kv_channels,
                                   .back = true});
      }
      return;
    case OperatorCode::kUlyssesIn: {
      const std::array<ConstView, 3> tensors{saved.dq, saved.dk, saved.dv};
      std::vector<Tensor> exchanged = attention_.HeadsToTokens(op, tensors);
      saved.dq = std::move(exchanged[0]);
      saved.dk = attention_.SumSpread(exchanged[1]);
      saved.dv = attention_.SumSpread(exchanged[2]);
      return;
    }
    case OperatorCode::kAttention:
      attention_.AttendBackward(unit, attention_.ulysses() ? state.exchanged : saved.attended, flow,
                                saved);
      state.exchanged = {};
      return;
    case OperatorCode::kRing:
    case OperatorCode::kRingMerge:
      return;
    case OperatorCode::kUlyssesOut: {
      const std::array<ConstView, 2> tensors{saved.attended, flow};
      std::vector<Tensor> exchanged = attention_.TokensToHeads(op, tensors, op.backward_repeats);
      state.exchanged = std::move(exchanged[0]);
      flow = std::move(exchanged[1]);
      return;
    }
    case OperatorCode::kAttentionOutput:
      LinearBackward(unit, op, "attention_output", saved.attended, saved.dattention, part, flow);
      return;
    case OperatorCode::kAttentionResidual:
      BiasBackward(unit, "attention_output_bias", flow);
      state.residual = Tensor::CopyOf(backend_, flow);
      return;
    case OperatorCode::kFc1:
      LinearBackward(unit, op, MlpOf(unit).fc1, gathered(1), saved.dfc1, part, flow);
      if (weight) BiasBackward(unit, MlpOf(unit).fc1_bias, saved.dfc1);
      return;
    case OperatorCode::kActivation:
      flow = ActivationBackward(flow, saved.fc1);
      return;
    case OperatorCode::kFc2:
      if (input && saved.fc2_input.empty()) saved.fc2_input = Activated(saved.fc1);  // fused SwiGLU
      LinearBackward(unit, op, MlpOf(unit).fc2, saved.fc2_input, saved.dfc2, part, flow);
      return;
    case OperatorCode::kRouter:
      if (input) {
        if (!state.routed.empty()) backend_.Run(compute::Add{.from = state.routed, .to = flow});
        state.routed = {};
        experts_.RouteBackward(unit, saved.experts, flow);
      }
      if (weight) experts_.RouterGradient(unit, saved.normed[1], saved.experts);
      return;
    case OperatorCode::kPermute:
      flow = experts_.PermuteBackward(flow, saved.experts);
      if (!saved.experts.dshared.empty()) {
        state.routed = std::exchange(flow, std::move(saved.experts.dshared));
      }
      return;
    case OperatorCode::kDispatch:
      flow = experts_.Combine(op.name, flow, saved.experts);
      CheckRouted(op, flow.size());
      return;
    case OperatorCode::kExpertGather:
      flow = experts_.Scatter(op.name, std::move(flow), saved.experts);
      return;
    case OperatorCode::kExpertFc1:
      if (input) flow = experts_.Fc1Backward(unit, std::move(flow), saved.experts);
      if (weight) experts_.Fc1Weights(unit, saved.experts);
      return;
    case OperatorCode::kExpertActivation:
      flow = experts_.WeightedBackward(flow, Activated(saved.experts.fc1), saved.experts);
      flow = ActivationBackward(flow, saved.experts.fc1);
      return;
    case OperatorCode::kExpertFc2:
      if (input && saved.experts.fc2_input.empty()) {
        saved.experts.fc2_input = experts_.Weighted(Activated(saved.experts.fc1), saved.experts);
      }
      if (input) flow = experts_.Fc2Backward(unit, std::move(flow), saved.experts);
      if (weight) experts_.Fc2Weights(unit, saved.experts);
      return;
    case OperatorCode::kExpertScatter:
      flow = experts_.Gather(op.name, flow, saved.experts);
      return;
    case OperatorCode::kCombine:
      CheckRouted(op, flow.size());
      flow = experts_.Dispatch(op.name, flow, saved.experts);
      return;
    case OperatorCode::kUnpermute:
      if (unit.has(MlpOf(unit).fc1)) saved.experts.dshared = Tensor::CopyOf(backend_, flow);
      flow = experts_.UnpermuteBackward(flow, saved.experts);
      return;
    case OperatorCode::kMlpResidual:
      BiasBackward(unit, MlpOf(unit).fc2_bias, flow);
      state.residual = Tensor::CopyOf(backend_, flow);
      return;
    case OperatorCode::kOutputHead:
      LinearBackward(unit, op, HeadTable(), gathered(0), saved.dlogits, part, flow);
      return;
    case OperatorCode::kCrossEntropy:
      flow = Tensor(backend_, saved.logits.rows(), saved.logits.cols());
      backend_.Run(
          compute::CrossEntropyGradient{.logits = saved.logits,
                                        .labels = saved.labels,
                                        .maximum = saved.maximum,
                                        .sum = saved.sum,
                                        .words = WordsOf(saved.logits),
                                        .share = 1 / (double(workload_.training.global_batch_size) *
                                                      double(workload_.training.seq_length)),
                                        .gradient = flow});
      return;
    case OperatorCode::kCrossEntropyReduce:
      return;
  }
}

void UnitOperators::LinearBackward(Unit& unit, const Operator& op, std::string_view weight,
                                   ConstView x, Tensor& kept, BackwardPart part, Tensor& flow) {
  if (part != BackwardPart::kWeight) {
    kept = std::move(flow);
    const ConstView w = unit.weight(weight);
    flow = Tensor(backend_, kept.rows(), w.cols);
    ProductsOf(op).InputGradient({{{.w = w, .dy = kept, .to = flow}}});
  }
  if (part != BackwardPart::kInput) {
    ProductsOf(op).WeightGradient({{{.x = x, .dy = kept, .to = unit.gradient(weight)}}});
  }
}

void UnitOperators::QkvBackward(Unit& unit, const Operator& op, ConstView x, BackwardPart part,
                                Saved& saved, Tensor& flow) {
  const std::int64_t width = unit.part("kv").rows / 2;
  if (part != BackwardPart::kWeight) {
    const ConstView kv = unit.weight("kv");
    flow = Tensor(backend_, saved.dq.rows(), workload_.model.hidden_size);
    ProductsOf(op).InputGradient(
        {{{.w = unit.weight("q"), .dy = saved.dq, .to = flow},
          {.w = kv.Rows(0, width), .dy = saved.dk, .to = flow, .add = true},
          {.w = kv.Rows(width, width), .dy = saved.dv, .to = flow, .add = true}}});
  }
  if (part != BackwardPart::kInput) {
    const View kv = unit.gradient("kv");
    ProductsOf(op).WeightGradient({{{.x = x, .dy = saved.dq, .to = unit.gradient("q")},
                                    {.x = x, .dy = saved.dk, .to = kv.Rows(0, width)},
                                    {.x = x, .dy = saved.dv, .to = kv.Rows(width, width)}}});
    BiasBackward(unit, "q_bias", saved.dq);
    if (unit.has("kv_bias")) {
      const View bias = unit.gradient("kv_bias");
      backend_.Run(compute::AddColumns{.from = saved.dk, .to = bias.Part(0, width)});
      backend_.Run(compute::AddColumns{.from = saved.dv, .to = bias.Part(width, width)});
    }
  }
}

void UnitOperators::NormBackward(Unit& unit, std::string_view weights, ConstView x,
                                 ConstView statistics, ConstView dy, View dx) {
  const ConstView w = unit.weight(weights);
  const View dw = unit.gradient(weights);
  switch (workload_.model.normalization) {
    case Normalization::kRmsNorm:
      backend_.Run(compute::RmsNormGradient{
          .dy = dy, .x = x, .gain = w, .rstd = statistics, .dx = dx, .dgain = dw});
      return;
    case Normalization::kLayerNorm:
      backend_.Run(compute::LayerNormGradient{.dy = dy,
                                              .x = x,
                                              .gain = w.Rows(0, 1),
                                              .mean = statistics.Rows(0, 1),
                                              .rstd = statistics.Rows(1, 1),
                                              .dx = dx,
                                              .dgain = dw.Rows(0, 1),
                                              .dbias = dw.Rows(1, 1)});
      return;
  }
}

void UnitOperators::HeadNormBackward(Unit& unit, std::string_view weights, ConstView input,
                                     ConstView statistics, Tensor& gradient) {
  const std::int64_t e = workload_.model.kv_channels, rows = input.size() / e;
  Tensor dx = Tensor::Zeros(backend_, input.rows, input.cols);
  NormBackward(unit, weights, input.Shaped(rows, e), statistics, gradient.view().Shaped(rows, e),
               dx.view().Shaped(rows, e));
  gradient = std::move(dx);
}

void UnitOperators::BiasBackward(Unit& unit, std::string_view bias, ConstView dy) {
  if (unit.has(bias)) backend_.Run(compute::AddColumns{.from = dy, .to = unit.gradient(bias)});
}

// --- Collectives among tensor ranks

Tensor UnitOperators::GatherRows(const Operator& op, ConstView rows) {
  Tensor whole(backend_, rows.rows * groups_.tensor.ranks, rows.cols);
  MILLWRIGHT_CHECK(double(whole.size()) * kActivationWidth == op.payload.value);
  const auto [first, last] = PartOf(groups_.tensor, backend_.rank(), whole.size());
  MILLWRIGHT_CHECK(last - first == rows.size());
  backend_.Run(compute::Copy{.from = rows, .to = whole.view().Part(first, last - first)});
  backend_.Collective(op.name, CollectiveKind::kAllGather, groups_.tensor, whole);
  return whole;
}

Tensor UnitOperators::ScatterRows(const Operator& op, Tensor rows) {
  MILLWRIGHT_CHECK(double(rows.size()) * kActivationWidth == op.payload.value);
  backend_.Collective(op.name, CollectiveKind::kReduceScatter, groups_.tensor, rows);
  const auto [first, last] = PartOf(groups_.tensor, backend_.rank(), rows.size());
  Tensor part(backend_, rows.rows() / groups_.tensor.ranks, rows.cols());
  MILLWRIGHT_CHECK(last - first == part.size());
  backend_.Run(compute::Copy{.from = rows.view().Part(first, last - first), .to = part});
  return part;
}

void UnitOperators::ReduceRows(const Operator& op, View rows) {
  MILLWRIGHT_CHECK(double(rows.size()) * kActivationWidth == op.payload.value);
  backend_.Collective(op.name, CollectiveKind::kAllReduce, groups_.tensor, rows);
}

// --- Loss

std::int64_t UnitOperators::WordsOf(ConstView logits) const {
  return std::clamp<std::int64_t>(workload_.model.vocab_size - groups_.place.tensor * logits.cols,
                                  0, logits.cols);
}

void UnitOperators::CrossEntropy(const Operator* reduce, const Pass& pass, Saved& saved) {
  const std::int64_t rows = saved.logits.rows(), cols = saved.logits.cols();
  const auto over_ranks = [&](View values, Reduction reduction) {
    if (reduce == nullptr) return;
    MILLWRIGHT_CHECK(double(values.size()) * kLossWidth == reduce->payload.value);
    backend_.Collective(reduce->name, CollectiveKind::kAllReduce, groups_.tensor, values,
                        reduction);
  };
  over_ranks(saved.maximum, Reduction::kMaximum);
  saved.labels = Ids(pass, 1, groups_.place.tensor * cols, cols);
  saved.sum = Tensor(backend_, rows, 1, Element::kSum);
  Tensor label_logit(backend_, rows, 1, Element::kSum);
  backend_.Run(compute::CrossEntropySums{.logits = saved.logits,
                                         .labels = saved.labels,
                                         .maximum = saved.maximum,
                                         .words = WordsOf(saved.logits),
                                         .sum = saved.sum,
                                         .label_logit = label_logit});
  over_ranks(saved.sum, Reduction::kSum);
  over_ranks(label_logit, Reduction::kSum);
  backend_.Run(compute::TokenLoss{.maximum = saved.maximum,
                                  .sum = saved.sum,
                                  .label_logit = label_logit,
                                  .loss = losses_.view().Part(counted_, rows)});
  counted_ += rows;
}

}  // namespace millwright
