// SPDX-License-Identifier: Apache-2.0
#include "runtime/execution.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/check.h"
#include "cost_models/operators.h"
#include "runtime/kernels.h"
#include "runtime/matrix.h"

namespace millwright {
namespace {

constexpr double kActivationWidth = 2;  // bytes of an element in cost_models/operators' payloads
constexpr double kLossWidth = 4;        //   and of a number of the cross-entropy

// The operators of cost_models/operators that can be executed.
enum class Code : std::uint8_t {
  kEmbedding,
  kInputNorm,
  kPreMlpNorm,
  kFinalNorm,
  kGather,
  kRegather,
  kReduce,
  kQkv,
  kRope,
  kUlyssesIn,
  kAttention,
  kRing,
  kRingMerge,
  kUlyssesOut,
  kAttentionOutput,
  kAttentionResidual,
  kFc1,
  kActivation,
  kFc2,
  kMlpResidual,
  kOutputHead,
  kCrossEntropy,
  kCrossEntropyReduce,
};

Code CodeOf(std::string_view name) {
  static constexpr std::pair<std::string_view, Code> kCodes[] = {
      {"embedding", Code::kEmbedding},
      {"embedding reduce", Code::kReduce},
      {"input norm", Code::kInputNorm},
      {"qkv gather", Code::kGather},
      {"qkv", Code::kQkv},
      {"qkv wgrad gather", Code::kRegather},
      {"rope", Code::kRope},
      {"ulysses qkv all-to-all", Code::kUlyssesIn},
      {"attention core", Code::kAttention},
      {"ring kv exchange", Code::kRing},
      {"ring output merge", Code::kRingMerge},
      {"ulysses output all-to-all", Code::kUlyssesOut},
      {"attention output", Code::kAttentionOutput},
      {"attention output reduce", Code::kReduce},
      {"attention residual", Code::kAttentionResidual},
      {"pre-mlp norm", Code::kPreMlpNorm},
      {"mlp gather", Code::kGather},
      {"fc1", Code::kFc1},
      {"fc1 wgrad gather", Code::kRegather},
      {"activation", Code::kActivation},
      {"fc2", Code::kFc2},
      {"mlp reduce", Code::kReduce},
      {"mlp residual", Code::kMlpResidual},
      {"final norm", Code::kFinalNorm},
      {"head gather", Code::kGather},
      {"output head", Code::kOutputHead},
      {"head wgrad gather", Code::kRegather},
      {"cross-entropy", Code::kCrossEntropy},
      {"cross-entropy reduce", Code::kCrossEntropyReduce},
  };
  const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes),
                                   [&](const auto& code) { return code.first == name; });
  MILLWRIGHT_CHECK(found != std::end(kCodes));
  return found->second;
}

bool IsMatrixProduct(Code code) {
  return code == Code::kQkv || code == Code::kAttentionOutput || code == Code::kFc1 ||
         code == Code::kFc2 || code == Code::kOutputHead;
}

// What is done of an operator, or around the operators of a layer.
enum class Part : std::uint8_t {
  kForward,
  kRecompute,
  kBoth,    // of a backward: both gradients,
  kInput,   //   the input's and those of norms,
  kWeight,  //   or those of the matrices
  kGather,  // ZeRO-3: the layer's parameters,
  kForget,  //   and give them back
  kReduce,  // ZeRO-2, 3: the layer's gradients
  kDrop,    // what of the activations is computed again
  kEnd,     // all activations
};

}  // namespace

template <class T>
class Execution<T>::Impl {
 public:
  Impl(const Workload& workload, Communicator& communicator);

  double ComputeGradients(int step);
  void Update(const Adam& adam);
  void ForEachTensor(const Visit& visit) const;
  const std::vector<ExecutedOperator>& operators() const { return executed_; }
  const std::vector<ExecutedCall>& calls() const { return exchange_.calls(); }

 private:
  using Rows = Matrix<T>;

  // The embedding, a layer or the head, as this rank holds it.
  struct Unit {
    int stage = 0, layer = 0;
    std::vector<Operator> operators;
    std::vector<Code> codes;
    bool recomputed = false;    // all of it, from its input
    ModuleMask recomputes = 0;  // or these modules
    std::vector<TensorPart> parts;
    std::vector<T> weights, gradients;                 // flat, in the order of `parts`
    std::int64_t first = 0, last = 0;                  // the elements that this rank updates
    std::vector<T> shard_gradients, moment1, moment2;  // of these
    int users = 0;                                     // ZeRO-3: passes that need the parameters

    const TensorPart& part(std::string_view name) const {
      const auto found = std::find_if(parts.begin(), parts.end(),
                                      [&](const TensorPart& p) { return p.name.weight == name; });
      MILLWRIGHT_CHECK(found != parts.end());
      return *found;
    }
    bool has(std::string_view name) const {
      return std::any_of(parts.begin(), parts.end(),
                         [&](const TensorPart& p) { return p.name.weight == name; });
    }
    static std::span<const T> Of(const std::vector<T>& flat, const TensorPart& p) {
      return std::span(flat).subspan(std::size_t(p.offset), std::size_t(p.elements()));
    }
    // Empty where the model has no such weight.
    std::span<const T> weight(std::string_view name) const {
      return has(name) ? Of(weights, part(name)) : std::span<const T>();
    }
    std::span<T> gradient(std::string_view name) {
      const TensorPart& p = part(name);
      return std::span(gradients).subspan(std::size_t(p.offset), std::size_t(p.elements()));
    }
  };

  // What a forward pass leaves for the backward pass of one micro-batch and unit.  `normed` is the
  // input of the GEMM after a norm: of attention [0] (or the head) and of the MLP [1].
  struct Saved {
    Rows input, middle;
    std::array<Rows, 2> normed;
    std::array<std::vector<T>, 2> rstd;
    Rows q, k, v, attended, log_sum, attention_rows;
    Rows fc1, fc2_input;
    Rows logits;
    std::vector<T> maximum, sum;
    // Gradients of outputs, until the weights' are computed.
    Rows dq, dk, dv, dattention, dfc1, dfc2, dlogits;
  };

  struct Step {
    Unit* unit = nullptr;
    std::size_t op = 0;
    Part part = Part::kForward;
  };

  // A pass in progress.
  struct Run {
    Pass pass;
    std::vector<Step> steps;
    std::size_t at = 0;
    Rows flow;        // what goes from operator to operator: activations or their gradient
    Rows residual;    // the gradient beside it
    Rows again;       // activations that are computed again
    Rows regathered;  // input of a GEMM, for its weight gradient
    bool done() const { return at == steps.size(); }
  };

  // --- Steps of a pass

  void AddUnits(int stage);
  std::vector<Step> StepsOf(const Pass& pass);
  Run StartPass(const Pass& pass);
  void TakeStep(Run& run);
  void EndPass(Run& run);
  static void Drop(const Unit& unit, Saved& saved);
  void RunPass(const Pass& pass);
  void RunTogether(const Pass& a, const Pass& b);

  // --- Operators

  void Forward(const Unit& unit, const Operator& op, Code code, const Run& run, Saved& saved,
               Rows& flow);
  void Backward(Unit& unit, const Operator& op, Code code, Part part, Run& run, Saved& saved);
  void LinearBackward(Unit& unit, std::string_view weight, const Rows& x, Rows& kept, Part part,
                      Rows& flow);
  void QkvBackward(Unit& unit, const Rows& x, Part part, Saved& saved, Rows& flow);
  void NormBackward(Unit& unit, std::string_view gain, const Rows& x, int which, const Saved& saved,
                    const Rows& flow, Rows& dx);
  void BiasBackward(Unit& unit, std::string_view bias, const Rows& dy);

  Rows GatherRows(const Operator& op, const Rows& rows);
  Rows ScatterRows(const Operator& op, Rows rows);
  void ReduceRows(const Operator& op, Rows& rows);
  void Attend(const Unit& unit, Saved& saved, Rows& flow);
  void AttendBackward(const Unit& unit, const Rows& flow, Saved& saved);
  void PassOn(const Operator& ring, Rows& a, Rows& b);
  Rows Spread(const Rows& heads) const;
  Rows SumSpread(const Rows& heads) const;
  void TokensToHeads(const Operator& op, std::span<Rows* const> tensors);
  void HeadsToTokens(const Operator& op, std::span<Rows* const> tensors);
  void FindMaximum(Saved& saved) const;
  void CrossEntropy(const Operator* reduce, const Run& run, Saved& saved);
  Rows CrossEntropyGradient(const Run& run, const Saved& saved) const;

  // --- Once a step

  void ReduceShard(Unit& unit);
  void SumCopies(Unit& unit);
  void ExchangeTwins();
  void GatherUnit(Unit& unit);
  void Forget(Unit& unit);

  bool ring() const {
    return context_.ranks > 1 && workload_.parallel.context_kind == ContextParallelKind::kRing;
  }
  bool ulysses() const { return context_.ranks > 1 && !ring(); }
  bool is_layer(const Unit& unit) const {
    return unit.layer >= 0 && unit.layer < workload_.model.num_layers;
  }
  bool sharded(const Unit& unit) const { return workload_.parallel.zero == 3 && is_layer(unit); }
  bool reduces_each_pass(const Unit& unit) const {
    return workload_.parallel.zero == 2 || sharded(unit);
  }
  std::vector<std::int64_t> PositionsOf(int context_rank) const;
  std::int64_t TokenAt(const Pass& pass, std::int64_t row, int ahead) const;
  int RankOnPipeline(int pipeline) const {
    const int plane =
        workload_.parallel.tensor * workload_.parallel.context * workload_.parallel.data;
    return exchange_.rank() % plane + pipeline * plane;
  }
  int Tag(bool forward, const Pass& pass, int to_stage) const {
    const PipelineSchedule& s = workload_.schedule;
    return 1 + ((forward ? 0 : s.stages()) + to_stage) * s.micro_batches + pass.micro_batch;
  }
  AttentionLayout ShapeOfAttention(const Rows& q, const Rows& k) const {
    const std::int64_t e = workload_.model.kv_channels;
    return {.sequences = workload_.parallel.micro_batch_size,
            .head_size = e,
            .heads = int(q.cols() / e),
            .groups = int(k.cols() / e),
            .scale = 1 / std::sqrt(double(e))};
  }
  Seconds Now() const {
    return Seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  }

  const Workload& workload_;
  Exchange exchange_;
  RankPlace place_;
  RankGroup tensor_, context_, data_, everyone_;
  std::vector<std::int64_t> positions_;  // of this rank's tokens of a sequence
  std::vector<Unit> units_;
  std::map<std::pair<const Unit*, int>, Saved> saved_;  // by unit and micro-batch
  std::map<int, Rows> handed_on_;                       // by tag, between stages of this rank
  std::vector<ExecutedOperator> executed_;
  std::chrono::steady_clock::time_point begin_;
  int step_ = 0, updates_ = 0;
  double loss_ = 0;
};

template <class T>
Execution<T>::Impl::Impl(const Workload& workload, Communicator& communicator)
    : workload_(workload), exchange_(communicator) {
  const ParallelConfig& p = workload.parallel;
  MILLWRIGHT_CHECK(communicator.size() == workload.ranks());
  const int rank = communicator.rank();
  place_ = PlaceOf(p, rank);
  tensor_ = {.first = rank - place_.tensor, .stride = 1, .ranks = p.tensor};
  context_ = {.first = rank - place_.context * p.tensor, .stride = p.tensor, .ranks = p.context};
  data_ = {.first = rank - (place_.data * p.context + place_.context) * p.tensor,
           .stride = p.tensor,
           .ranks = p.data * p.context};
  everyone_ = {.first = 0, .stride = 1, .ranks = workload.ranks()};
  positions_ = PositionsOf(place_.context);
  for (int stage = 0; stage < workload.schedule.stages(); ++stage) {
    if (workload.schedule.rank_of_stage[std::size_t(stage)] == place_.pipeline) AddUnits(stage);
  }
}

template <class T>
void Execution<T>::Impl::AddUnits(int stage) {
  const ModelConfig& model = workload_.model;
  const LayerShape shape = ShapeOf(workload_.parallel, workload_.training);
  const Recompute& recompute = workload_.parallel.recompute;
  const auto [first, last] = LayersOfStage(workload_, stage);
  const auto add = [&](int layer, const std::vector<Operator>& operators) {
    Unit unit{.stage = stage, .layer = layer};
    for (const Operator& op : operators) {
      if (op.kind == OperatorKind::kHost) continue;  // a GPU's host is not here
      unit.operators.push_back(op);
      unit.codes.push_back(CodeOf(op.name));
    }
    unit.recomputed = is_layer(unit) && recompute.granularity == RecomputeGranularity::kFull &&
                      (recompute.full_layers == 0 || layer - first < recompute.full_layers);
    if (is_layer(unit) && recompute.granularity == RecomputeGranularity::kSelective) {
      unit.recomputes = MaskOf(recompute.modules);
    }
    unit.parts = PartsOf(workload_, layer, place_.tensor);
    for (const TensorPart& part : unit.parts) {
      for (std::int64_t r = 0; r < part.rows; ++r) {
        const std::int64_t row = part.global_row(r);
        for (std::int64_t c = 0; c < part.cols; ++c) {
          // Rows beyond the vocabulary are padding.
          unit.weights.push_back(
              row >= part.whole.rows
                  ? T(0)
                  : T(InitialValue(workload_, part.name, part.whole, row, part.first_col + c)));
        }
      }
    }
    const auto elements = std::int64_t(unit.weights.size());
    unit.gradients.assign(std::size_t(elements), T(0));
    std::tie(unit.first, unit.last) = workload_.parallel.zero == 0
                                          ? std::pair(std::int64_t{0}, elements)
                                          : exchange_.Part(data_, elements);
    unit.moment1.assign(std::size_t(unit.last - unit.first), T(0));
    unit.moment2 = unit.moment1;
    if (sharded(unit)) Forget(unit);
    units_.push_back(std::move(unit));
  };
  if (workload_.schedule.first_of_direction(stage)) {
    add(-1, EmbeddingOperators(model, shape, workload_.training));
  }
  for (int layer = first; layer < last; ++layer) {
    add(layer, LayerOperators(model, model.layer(layer), shape, workload_.training));
  }
  if (workload_.schedule.last_of_direction(stage)) {
    add(model.num_layers, HeadOperators(model, shape, workload_.training));
  }
}

// Whole, or a c-th; of a ring one block from the front and one from the back, so that all ranks
// have as much to do under the causal mask.
template <class T>
std::vector<std::int64_t> Execution<T>::Impl::PositionsOf(int context_rank) const {
  const std::int64_t sequence = workload_.training.seq_length, c = context_.ranks;
  std::vector<std::int64_t> positions;
  const auto append = [&](std::int64_t block, std::int64_t blocks) {
    for (std::int64_t i = 0; i < sequence / blocks; ++i) {
      positions.push_back(block * (sequence / blocks) + i);
    }
  };
  if (ring()) {
    append(context_rank, 2 * c);
    append(2 * c - 1 - context_rank, 2 * c);
  } else {
    append(context_rank, c);
  }
  return positions;
}

template <class T>
std::int64_t Execution<T>::Impl::TokenAt(const Pass& pass, std::int64_t row, int ahead) const {
  const PipelineSchedule& schedule = workload_.schedule;
  const auto tokens = std::int64_t(positions_.size());
  const int direction = pass.stage / schedule.stages_per_direction();
  const std::int64_t micro_batch =
      std::int64_t{1} * place_.data * schedule.micro_batches +
      std::int64_t{1} * direction * schedule.micro_batches_per_direction() + pass.micro_batch;
  return Token(workload_, step_, micro_batch * workload_.parallel.micro_batch_size + row / tokens,
               positions_[std::size_t(row % tokens)] + ahead);
}

// --- Steps of a pass
// ------------------------------------------------------------------------------------------------

template <class T>
auto Execution<T>::Impl::StepsOf(const Pass& pass) -> std::vector<Step> {
  std::vector<Step> steps;
  std::vector<Unit*> units;
  for (Unit& unit : units_) {
    if (unit.stage == int(pass.stage)) units.push_back(&unit);
  }
  const auto forward = [&](Unit* unit, Part part) {
    for (std::size_t op = 0; op < unit->operators.size(); ++op) steps.push_back({unit, op, part});
  };
  const auto backward = [&](Unit* unit, Part part) {
    for (std::size_t op = unit->operators.size(); op-- > 0;) steps.push_back({unit, op, part});
  };
  if (pass.kind == PassKind::kForward) {
    for (Unit* unit : units) {
      if (sharded(*unit)) steps.push_back({unit, 0, Part::kGather});
      forward(unit, Part::kForward);
      if (sharded(*unit)) steps.push_back({unit, 0, Part::kForget});
      if (unit->recomputed || unit->recomputes != 0) steps.push_back({unit, 0, Part::kDrop});
    }
    return steps;
  }
  std::reverse(units.begin(), units.end());
  for (Unit* unit : units) {
    const bool needs_weights = sharded(*unit) && pass.kind != PassKind::kBackwardWeight;
    const bool completes = pass.kind != PassKind::kBackwardInput;
    if (needs_weights) steps.push_back({unit, 0, Part::kGather});
    if (pass.kind != PassKind::kBackwardWeight) {
      for (std::size_t op = 0; op < unit->operators.size(); ++op) {
        if (unit->recomputed || (unit->operators[op].modules & unit->recomputes) != 0) {
          steps.push_back({unit, op, Part::kRecompute});
        }
      }
    }
    backward(unit, pass.kind == PassKind::kBackward        ? Part::kBoth
                   : pass.kind == PassKind::kBackwardInput ? Part::kInput
                                                           : Part::kWeight);
    if (needs_weights) steps.push_back({unit, 0, Part::kForget});
    if (completes) steps.push_back({unit, 0, Part::kEnd});
    if (completes && reduces_each_pass(*unit)) steps.push_back({unit, 0, Part::kReduce});
  }
  return steps;
}

template <class T>
auto Execution<T>::Impl::StartPass(const Pass& pass) -> Run {
  Run run{.pass = pass, .steps = StepsOf(pass)};
  const PipelineSchedule& schedule = workload_.schedule;
  const bool forward = pass.kind == PassKind::kForward;
  const bool from_outside =
      forward ? !schedule.first_of_direction(pass.stage)
              : pass.kind != PassKind::kBackwardWeight && !schedule.last_of_direction(pass.stage);
  if (!from_outside) return run;
  const int tag = Tag(forward, pass, pass.stage);
  const int from = schedule.rank_of_stage[std::size_t(forward ? pass.stage - 1 : pass.stage + 1)];
  if (from == place_.pipeline) {
    const auto handed_on = handed_on_.find(tag);
    MILLWRIGHT_CHECK(handed_on != handed_on_.end());
    run.flow = std::move(handed_on->second);
    handed_on_.erase(handed_on);
    return run;
  }
  const auto tokens = std::int64_t(positions_.size()) * workload_.parallel.micro_batch_size;
  run.flow = Rows(workload_.parallel.sequence_parallel ? tokens / tensor_.ranks : tokens,
                  workload_.model.hidden_size);
  exchange_.Receive(RankOnPipeline(from), tag, run.flow.all());
  return run;
}

template <class T>
void Execution<T>::Impl::EndPass(Run& run) {
  const PipelineSchedule& schedule = workload_.schedule;
  const Pass& pass = run.pass;
  const bool forward = pass.kind == PassKind::kForward;
  const bool to_outside =
      forward ? !schedule.last_of_direction(pass.stage)
              : pass.kind != PassKind::kBackwardWeight && !schedule.first_of_direction(pass.stage);
  if (!to_outside) return;
  const int stage = forward ? pass.stage + 1 : pass.stage - 1;
  const int to = schedule.rank_of_stage[std::size_t(stage)];
  if (to == place_.pipeline) {
    handed_on_[Tag(forward, pass, stage)] = std::move(run.flow);
  } else {
    exchange_.Send(std::string_view("send"), RankOnPipeline(to), Tag(forward, pass, stage),
                   std::span<const T>(run.flow.all()));
  }
}

template <class T>
void Execution<T>::Impl::TakeStep(Run& run) {
  const Step step = run.steps[run.at++];
  Unit& unit = *step.unit;
  const std::pair<const Unit*, int> key{&unit, run.pass.micro_batch};
  switch (step.part) {
    case Part::kGather:
      if (unit.users++ == 0) GatherUnit(unit);
      return;
    case Part::kForget:
      if (--unit.users == 0) Forget(unit);
      return;
    case Part::kReduce:
      ReduceShard(unit);
      return;
    case Part::kDrop:
      Drop(unit, saved_[key]);
      return;
    case Part::kEnd:
      saved_.erase(key);
      return;
    case Part::kForward:
    case Part::kRecompute:
    case Part::kBoth:
    case Part::kInput:
    case Part::kWeight:
      break;
  }
  Saved& saved = saved_[key];
  const Operator& op = unit.operators[step.op];
  const Code code = unit.codes[step.op];
  const Seconds start = Now();
  if (step.part == Part::kForward) {
    Forward(unit, op, code, run, saved, run.flow);
  } else if (step.part == Part::kRecompute) {
    // What the operators that are computed again begin with; the others go on from there.
    if (code == Code::kInputNorm) run.again = std::move(saved.input);
    if (code == Code::kGather || (code == Code::kFc1 && tensor_.ranks == 1)) {
      run.again = saved.normed[op.name == "mlp gather" || code == Code::kFc1 ? 1 : 0];
    }
    Forward(unit, op, code, run, saved, run.again);
  } else {
    Backward(unit, op, code, step.part, run, saved);
  }
  executed_.push_back({.name = op.name,
                       .stage = unit.stage,
                       .micro_batch = run.pass.micro_batch,
                       .pass = run.pass.kind,
                       .recomputed = step.part == Part::kRecompute,
                       .start = start,
                       .end = Now()});
}

template <class T>
void Execution<T>::Impl::Drop(const Unit& unit, Saved& saved) {
  if (unit.recomputed) {
    Saved rest{.input = std::move(saved.input)};
    saved = std::move(rest);
    return;
  }
  const auto drops = [&](RecomputeModule module) { return (unit.recomputes & Mask(module)) != 0; };
  if (drops(RecomputeModule::kCoreAttn)) saved.attended = saved.log_sum = {};
  if (drops(RecomputeModule::kMlp)) saved.fc1 = saved.fc2_input = {};
  if (drops(RecomputeModule::kLayerNorm)) saved.normed = {};
}

template <class T>
void Execution<T>::Impl::RunPass(const Pass& pass) {
  Run run = StartPass(pass);
  while (!run.done()) TakeStep(run);
  EndPass(run);
}

template <class T>
void Execution<T>::Impl::RunTogether(const Pass& a, const Pass& b) {
  Run first = StartPass(a), second = StartPass(b);
  while (!first.done() || !second.done()) {
    // In step by the share that each has done, as sim/step_graph.
    const bool take_first = second.done() || (!first.done() && first.at * second.steps.size() <=
                                                                   second.at * first.steps.size());
    TakeStep(take_first ? first : second);
  }
  EndPass(first);
  EndPass(second);
}

template <class T>
double Execution<T>::Impl::ComputeGradients(int step) {
  step_ = step;
  loss_ = 0;
  exchange_.ForgetCalls();
  executed_.clear();
  begin_ = std::chrono::steady_clock::now();
  for (Unit& unit : units_) {
    std::fill(unit.gradients.begin(), unit.gradients.end(), T(0));
    unit.shard_gradients.assign(std::size_t(unit.last - unit.first), T(0));
  }
  const std::vector<Pass>& order = workload_.schedule.orders[std::size_t(place_.pipeline)];
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i].overlaps_next) {
      RunTogether(order[i], order[i + 1]);
      ++i;
    } else {
      RunPass(order[i]);
    }
  }
  MILLWRIGHT_CHECK(saved_.empty() && handed_on_.empty());
  for (Unit& unit : units_) {
    if (!reduces_each_pass(unit)) ReduceShard(unit);
    SumCopies(unit);
  }
  if (workload_.schedule.directions == 2) ExchangeTwins();
  T loss = T(loss_);
  exchange_.AllReduce("loss", everyone_, std::span(&loss, 1));
  return double(loss);
}

// --- Operators
// ------------------------------------------------------------------------------------------------

template <class T>
void Execution<T>::Impl::Forward(const Unit& unit, const Operator& op, Code code, const Run& run,
                                 Saved& saved, Rows& flow) {
  const ModelConfig& model = workload_.model;
  const std::int64_t h = model.hidden_size;
  const bool sequence_parallel = workload_.parallel.sequence_parallel;
  const auto norm = [&](std::string_view gain, const Rows& x, std::size_t which) {
    flow = RmsNorm(x, unit.weight(gain), saved.rstd[which]);
    saved.normed[which] = flow;
  };
  const auto linear = [&](std::string_view weight, std::string_view bias, const Rows& x) {
    const TensorPart& part = unit.part(weight);
    Rows y = Linear(x, unit.weight(weight), part.rows);
    AddBias(unit.weight(bias), y);
    return y;
  };
  switch (code) {
    case Code::kEmbedding: {
      const TensorPart& table = unit.part("token_embedding");
      const std::span<const T> weight = unit.weight("token_embedding");
      flow = Rows(std::int64_t(positions_.size()) * workload_.parallel.micro_batch_size, h);
      for (std::int64_t r = 0; r < flow.rows(); ++r) {
        const std::int64_t row = TokenAt(run.pass, r, 0) - table.first_row;
        if (row < 0 || row >= table.rows) continue;  // another tensor rank's
        std::copy_n(weight.data() + row * h, h, flow.row(r));
      }
      return;
    }
    case Code::kInputNorm:
    case Code::kFinalNorm:
      saved.input = std::move(flow);
      norm(code == Code::kFinalNorm ? "final_norm" : "attention_norm", saved.input, 0);
      return;
    case Code::kPreMlpNorm:
      norm("mlp_norm", saved.middle, 1);
      return;
    case Code::kGather:
      if (op.forward) flow = GatherRows(op, flow);
      return;
    case Code::kRegather:
      return;
    case Code::kReduce:
      if (sequence_parallel) {
        flow = ScatterRows(op, std::move(flow));
      } else {
        ReduceRows(op, flow);
      }
      return;
    case Code::kQkv: {
      saved.q = linear("q", "q_bias", flow);
      const std::int64_t width = unit.part("kv").rows / 2;  // keys', then as many of values'
      const std::span<const T> weight = unit.weight("kv"), bias = unit.weight("kv_bias");
      saved.k = Linear(flow, weight.first(std::size_t(width * h)), width);
      saved.v = Linear(flow, weight.last(std::size_t(width * h)), width);
      if (!bias.empty()) {
        AddBias(bias.first(std::size_t(width)), saved.k);
        AddBias(bias.last(std::size_t(width)), saved.v);
      }
      return;
    }
    case Code::kRope:
      for (Rows* rows : {&saved.q, &saved.k}) {
        Rope(*rows, model.kv_channels, std::span<const std::int64_t>(positions_), false);
      }
      return;
    case Code::kUlyssesIn: {
      saved.k = Spread(saved.k);
      saved.v = Spread(saved.v);
      const std::array<Rows*, 3> tensors{&saved.q, &saved.k, &saved.v};
      TokensToHeads(op, tensors);
      return;
    }
    case Code::kAttention:
      Attend(unit, saved, flow);
      return;
    case Code::kRing:  // done with the attention that it goes with
    case Code::kRingMerge:
      return;
    case Code::kUlyssesOut: {
      const std::array<Rows*, 1> tensors{&flow};
      HeadsToTokens(op, tensors);
      return;
    }
    case Code::kAttentionOutput:
      saved.attention_rows = std::move(flow);
      flow = linear("attention_output", "", saved.attention_rows);
      return;
    case Code::kAttentionResidual:
      // The bias of a row-parallel product: after the sum over ranks, or it would be added t times.
      AddBias(unit.weight("attention_output_bias"), flow);
      Add(std::span<const T>(saved.input.all()), flow.all());
      saved.middle = std::move(flow);
      return;
    case Code::kFc1:
      saved.fc1 = linear("fc1", "fc1_bias", flow);
      return;
    case Code::kActivation:
      saved.fc2_input = Activate(saved.fc1, model.activation, model.gated_linear_unit);
      return;
    case Code::kFc2:
      flow = linear("fc2", "", saved.fc2_input);
      return;
    case Code::kMlpResidual:
      AddBias(unit.weight("fc2_bias"), flow);
      Add(std::span<const T>(saved.middle.all()), flow.all());
      return;
    case Code::kOutputHead:
      saved.logits = linear("output_head", "", flow);
      return;
    case Code::kCrossEntropy:
      FindMaximum(saved);
      if (tensor_.ranks == 1) CrossEntropy(nullptr, run, saved);
      return;
    case Code::kCrossEntropyReduce:
      CrossEntropy(&op, run, saved);
      return;
  }
}

template <class T>
void Execution<T>::Impl::Backward(Unit& unit, const Operator& op, Code code, Part part, Run& run,
                                  Saved& saved) {
  const ModelConfig& model = workload_.model;
  const bool weight = part != Part::kInput, input = part != Part::kWeight;
  const bool sequence_parallel = workload_.parallel.sequence_parallel;
  Rows& flow = run.flow;
  if (part == Part::kWeight && !IsMatrixProduct(code) && code != Code::kRegather) return;
  // What the GEMM after a norm has worked on, gathered again where it was.
  const auto gathered = [&](std::size_t which) -> const Rows& {
    return sequence_parallel ? run.regathered : saved.normed[which];
  };
  switch (code) {
    case Code::kEmbedding: {
      const TensorPart& table = unit.part("token_embedding");
      const std::span<T> gradient = unit.gradient("token_embedding");
      for (std::int64_t r = 0; r < flow.rows(); ++r) {
        const std::int64_t row = TokenAt(run.pass, r, 0) - table.first_row;
        if (row < 0 || row >= table.rows) continue;
        Add(std::span<const T>(flow.row(r), std::size_t(table.cols)),
            gradient.subspan(std::size_t(row * table.cols), std::size_t(table.cols)));
      }
      return;
    }
    case Code::kInputNorm:
      NormBackward(unit, "attention_norm", saved.input, 0, saved, flow, run.residual);
      flow = std::move(run.residual);
      return;
    case Code::kPreMlpNorm:
      NormBackward(unit, "mlp_norm", saved.middle, 1, saved, flow, run.residual);
      flow = std::move(run.residual);
      return;
    case Code::kFinalNorm: {
      Rows dx(saved.input.rows(), saved.input.cols());
      NormBackward(unit, "final_norm", saved.input, 0, saved, flow, dx);
      flow = std::move(dx);
      return;
    }
    case Code::kGather:
      if (sequence_parallel) {
        flow = ScatterRows(op, std::move(flow));
      } else {
        ReduceRows(op, flow);
      }
      return;
    case Code::kRegather:
      if (!weight) return;
      run.regathered =
          GatherRows(op, saved.normed[op.name.starts_with("fc1") ? std::size_t(1) : 0]);
      return;
    case Code::kReduce:
      if (op.backward) flow = GatherRows(op, flow);
      return;
    case Code::kQkv:
      QkvBackward(unit, gathered(0), part, saved, flow);
      return;
    case Code::kRope:
      for (Rows* rows : {&saved.dq, &saved.dk}) {
        Rope(*rows, model.kv_channels, std::span<const std::int64_t>(positions_), true);
      }
      return;
    case Code::kUlyssesIn: {
      const std::array<Rows*, 3> tensors{&saved.dq, &saved.dk, &saved.dv};
      HeadsToTokens(op, tensors);
      saved.dk = SumSpread(saved.dk);
      saved.dv = SumSpread(saved.dv);
      return;
    }
    case Code::kAttention:
      AttendBackward(unit, flow, saved);
      return;
    case Code::kRing:
    case Code::kRingMerge:
      return;
    case Code::kUlyssesOut: {
      const std::array<Rows*, 1> tensors{&flow};
      TokensToHeads(op, tensors);
      return;
    }
    case Code::kAttentionOutput:
      LinearBackward(unit, "attention_output", saved.attention_rows, saved.dattention, part, flow);
      return;
    case Code::kAttentionResidual:
      BiasBackward(unit, "attention_output_bias", flow);
      run.residual = flow;
      return;
    case Code::kFc1:
      LinearBackward(unit, "fc1", gathered(1), saved.dfc1, part, flow);
      if (weight) BiasBackward(unit, "fc1_bias", saved.dfc1);
      return;
    case Code::kActivation:
      flow = ActivationGradient(flow, saved.fc1, model.activation, model.gated_linear_unit);
      return;
    case Code::kFc2:
      LinearBackward(unit, "fc2", saved.fc2_input, saved.dfc2, part, flow);
      return;
    case Code::kMlpResidual:
      BiasBackward(unit, "fc2_bias", flow);
      run.residual = flow;
      return;
    case Code::kOutputHead:
      LinearBackward(unit, "output_head", gathered(0), saved.dlogits, part, flow);
      return;
    case Code::kCrossEntropy:
      if (input) flow = CrossEntropyGradient(run, saved);
      return;
    case Code::kCrossEntropyReduce:
      return;
  }
}

template <class T>
void Execution<T>::Impl::LinearBackward(Unit& unit, std::string_view weight, const Rows& x,
                                        Rows& kept, Part part, Rows& flow) {
  if (part != Part::kWeight) {
    kept = std::move(flow);
    flow = LinearInputGradient(kept, unit.weight(weight), unit.part(weight).cols);
  }
  if (part != Part::kInput) AddLinearWeightGradient(kept, x, unit.gradient(weight));
}

template <class T>
void Execution<T>::Impl::QkvBackward(Unit& unit, const Rows& x, Part part, Saved& saved,
                                     Rows& flow) {
  const std::int64_t h = workload_.model.hidden_size, width = unit.part("kv").rows / 2;
  if (part != Part::kWeight) {
    const std::span<const T> kv = unit.weight("kv");
    flow = LinearInputGradient(saved.dq, unit.weight("q"), h);
    const Rows of_k = LinearInputGradient(saved.dk, kv.first(std::size_t(width * h)), h);
    const Rows of_v = LinearInputGradient(saved.dv, kv.last(std::size_t(width * h)), h);
    Add(of_k.all(), flow.all());
    Add(of_v.all(), flow.all());
  }
  if (part != Part::kInput) {
    AddLinearWeightGradient(saved.dq, x, unit.gradient("q"));
    const std::span<T> kv = unit.gradient("kv");
    AddLinearWeightGradient(saved.dk, x, kv.first(std::size_t(width * h)));
    AddLinearWeightGradient(saved.dv, x, kv.last(std::size_t(width * h)));
    BiasBackward(unit, "q_bias", saved.dq);
    if (unit.has("kv_bias")) {
      const std::span<T> bias = unit.gradient("kv_bias");
      AddColumns(saved.dk, bias.first(std::size_t(width)));
      AddColumns(saved.dv, bias.last(std::size_t(width)));
    }
  }
}

template <class T>
void Execution<T>::Impl::NormBackward(Unit& unit, std::string_view gain, const Rows& x, int which,
                                      const Saved& saved, const Rows& flow, Rows& dx) {
  AddRmsNormGradient(flow, x, unit.weight(gain), saved.rstd[std::size_t(which)], dx,
                     unit.gradient(gain));
}

template <class T>
void Execution<T>::Impl::BiasBackward(Unit& unit, std::string_view bias, const Rows& dy) {
  if (unit.has(bias)) AddColumns(dy, unit.gradient(bias));
}

// --- Collectives among tensor ranks.  `op`'s payload must be what is really there.

template <class T>
auto Execution<T>::Impl::GatherRows(const Operator& op, const Rows& rows) -> Rows {
  Rows whole(rows.rows() * tensor_.ranks, rows.cols());
  MILLWRIGHT_CHECK(double(whole.all().size()) * kActivationWidth == op.payload.value);
  const auto [first, last] = exchange_.Part(tensor_, std::int64_t(whole.all().size()));
  MILLWRIGHT_CHECK(last - first == std::int64_t(rows.all().size()));
  std::copy(rows.all().begin(), rows.all().end(), whole.all().begin() + first);
  exchange_.AllGather(op.name, tensor_, whole.all());
  return whole;
}

template <class T>
auto Execution<T>::Impl::ScatterRows(const Operator& op, Rows rows) -> Rows {
  MILLWRIGHT_CHECK(double(rows.all().size()) * kActivationWidth == op.payload.value);
  exchange_.ReduceScatter(op.name, tensor_, rows.all());
  const auto [first, last] = exchange_.Part(tensor_, std::int64_t(rows.all().size()));
  Rows part(rows.rows() / tensor_.ranks, rows.cols());
  MILLWRIGHT_CHECK(last - first == std::int64_t(part.all().size()));
  std::copy(rows.all().begin() + first, rows.all().begin() + last, part.all().begin());
  return part;
}

template <class T>
void Execution<T>::Impl::ReduceRows(const Operator& op, Rows& rows) {
  MILLWRIGHT_CHECK(double(rows.all().size()) * kActivationWidth == op.payload.value);
  exchange_.AllReduce(op.name, tensor_, rows.all());
}

// --- Attention

// Sends two tensors of one shape to the next rank of the ring and replaces them by those of the
// one before.
template <class T>
void Execution<T>::Impl::PassOn(const Operator& ring_exchange, Rows& a, Rows& b) {
  const std::size_t n = a.all().size();
  std::vector<T> message(a.all().begin(), a.all().end());
  message.insert(message.end(), b.all().begin(), b.all().end());
  MILLWRIGHT_CHECK(double(message.size()) * kActivationWidth == ring_exchange.payload.value);
  const int c = context_.ranks;
  exchange_.Send(ring_exchange.name, context_.member((place_.context + 1) % c), 0,
                 std::span<const T>(message));
  exchange_.Receive(context_.member((place_.context + c - 1) % c), 0, std::span(message));
  std::copy_n(message.begin(), n, a.all().begin());
  std::copy_n(message.begin() + std::ptrdiff_t(n), n, b.all().begin());
}

template <class T>
void Execution<T>::Impl::Attend(const Unit& unit, Saved& saved, Rows& flow) {
  Attention<T> attention(ShapeOfAttention(saved.q, saved.k), saved.q.rows());
  if (ring()) {
    const auto exchange = std::find(unit.codes.begin(), unit.codes.end(), Code::kRing);
    const Operator& op = unit.operators[std::size_t(exchange - unit.codes.begin())];
    Rows k = saved.k, v = saved.v;
    for (int step = 0; step < context_.ranks; ++step) {
      if (step > 0) PassOn(op, k, v);
      const int owner = (place_.context + context_.ranks - step) % context_.ranks;
      attention.Take(saved.q, positions_, k, v, PositionsOf(owner));
    }
  } else {
    // Ulysses has exchanged heads for the whole sequence.
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < workload_.training.seq_length; ++i) positions.push_back(i);
    attention.Take(saved.q, positions, saved.k, saved.v, positions);
  }
  saved.attended = attention.Finish(saved.log_sum);
  flow = saved.attended;
}

template <class T>
void Execution<T>::Impl::AttendBackward(const Unit& unit, const Rows& flow, Saved& saved) {
  const AttentionLayout shape = ShapeOfAttention(saved.q, saved.k);
  saved.dq = Rows(saved.q.rows(), saved.q.cols());
  saved.dk = Rows(saved.k.rows(), saved.k.cols());
  saved.dv = Rows(saved.v.rows(), saved.v.cols());
  if (!ring()) {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < workload_.training.seq_length; ++i) positions.push_back(i);
    AddAttentionGradient(shape, saved.q, positions, saved.k, saved.v, positions, saved.attended,
                         saved.log_sum, flow, saved.dq, saved.dk, saved.dv);
    return;
  }
  const auto exchange = std::find(unit.codes.begin(), unit.codes.end(), Code::kRing);
  const Operator& op = unit.operators[std::size_t(exchange - unit.codes.begin())];
  AddAttentionGradient(shape, saved.q, positions_, saved.k, saved.v, positions_, saved.attended,
                       saved.log_sum, flow, saved.dq, saved.dk, saved.dv);
  // The gradient of a block begins on the rank after its owner and goes around with it; the last
  // message brings this rank's own home.
  Rows k = saved.k, v = saved.v;
  Rows dk(k.rows(), k.cols()), dv(v.rows(), v.cols());
  for (int step = 1; step < context_.ranks; ++step) {
    PassOn(op, k, v);
    const int owner = (place_.context + context_.ranks - step) % context_.ranks;
    AddAttentionGradient(shape, saved.q, positions_, k, v, PositionsOf(owner), saved.attended,
                         saved.log_sum, flow, saved.dq, dk, dv);
    PassOn(op, dk, dv);
  }
  Add(std::span<const T>(dk.all()), saved.dk.all());
  Add(std::span<const T>(dv.all()), saved.dv.all());
}

// Each KV head as often as context ranks need it, where there are fewer than ranks.
template <class T>
auto Execution<T>::Impl::Spread(const Rows& heads) const -> Rows {
  const std::int64_t e = workload_.model.kv_channels, count = heads.cols() / e;
  const std::int64_t copies = std::max<std::int64_t>(1, context_.ranks / count);
  Rows spread(heads.rows(), heads.cols() * copies);
  for (std::int64_t r = 0; r < heads.rows(); ++r) {
    for (std::int64_t head = 0; head < count * copies; ++head) {
      std::copy_n(heads.row(r) + head / copies * e, e, spread.row(r) + head * e);
    }
  }
  return spread;
}

template <class T>
auto Execution<T>::Impl::SumSpread(const Rows& heads) const -> Rows {
  const std::int64_t e = workload_.model.kv_channels;
  const std::int64_t count =
      std::max<std::int64_t>(1, workload_.model.num_query_groups / tensor_.ranks);
  const std::int64_t copies = heads.cols() / e / count;
  Rows sum(heads.rows(), count * e);
  for (std::int64_t r = 0; r < heads.rows(); ++r) {
    for (std::int64_t head = 0; head < count * copies; ++head) {
      Add(std::span<const T>(heads.row(r) + head * e, std::size_t(e)),
          std::span<T>(sum.row(r) + head / copies * e, std::size_t(e)));
    }
  }
  return sum;
}

// A c-th of the tokens and all heads -> all tokens and a c-th of the heads.
template <class T>
void Execution<T>::Impl::TokensToHeads(const Operator& op, std::span<Rows* const> tensors) {
  const std::int64_t c = context_.ranks, sequences = workload_.parallel.micro_batch_size;
  std::vector<T> out;
  for (std::int64_t to = 0; to < c; ++to) {
    for (const Rows* rows : tensors) {
      const std::int64_t width = rows->cols() / c;
      for (std::int64_t r = 0; r < rows->rows(); ++r) {
        const T* from = rows->row(r) + to * width;
        out.insert(out.end(), from, from + width);
      }
    }
  }
  MILLWRIGHT_CHECK(double(out.size()) * kActivationWidth == op.payload.value);
  std::vector<T> in(out.size());
  exchange_.AllToAll(op.name, context_, std::span<const T>(out), std::span(in));
  std::vector<Rows> exchanged;
  for (const Rows* rows : tensors) exchanged.emplace_back(rows->rows() * c, rows->cols() / c);
  const T* next = in.data();
  for (std::int64_t from = 0; from < c; ++from) {
    for (Rows& rows : exchanged) {
      const std::int64_t tokens = rows.rows() / (c * sequences);  // of a sequence, of a rank
      for (std::int64_t s = 0; s < sequences; ++s) {
        for (std::int64_t i = 0; i < tokens; ++i) {
          std::copy_n(next, rows.cols(), rows.row((s * c + from) * tokens + i));
          next += rows.cols();
        }
      }
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) *tensors[i] = std::move(exchanged[i]);
}

// And back.
template <class T>
void Execution<T>::Impl::HeadsToTokens(const Operator& op, std::span<Rows* const> tensors) {
  const std::int64_t c = context_.ranks, sequences = workload_.parallel.micro_batch_size;
  std::vector<T> out;
  for (std::int64_t to = 0; to < c; ++to) {
    for (const Rows* rows : tensors) {
      const std::int64_t tokens = rows->rows() / (c * sequences);
      for (std::int64_t s = 0; s < sequences; ++s) {
        const T* from = rows->row((s * c + to) * tokens);
        out.insert(out.end(), from, from + tokens * rows->cols());
      }
    }
  }
  MILLWRIGHT_CHECK(double(out.size()) * kActivationWidth == op.payload.value);
  std::vector<T> in(out.size());
  exchange_.AllToAll(op.name, context_, std::span<const T>(out), std::span(in));
  std::vector<Rows> exchanged;
  for (const Rows* rows : tensors) exchanged.emplace_back(rows->rows() / c, rows->cols() * c);
  const T* next = in.data();
  for (std::int64_t from = 0; from < c; ++from) {
    for (Rows& rows : exchanged) {
      const std::int64_t width = rows.cols() / c;
      for (std::int64_t r = 0; r < rows.rows(); ++r) {
        std::copy_n(next, width, rows.row(r) + from * width);
        next += width;
      }
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) *tensors[i] = std::move(exchanged[i]);
}

// --- Loss

// Padding is no word: columns beyond the vocabulary take no part.
template <class T>
void Execution<T>::Impl::FindMaximum(Saved& saved) const {
  const std::int64_t words = std::clamp<std::int64_t>(
      workload_.model.vocab_size - place_.tensor * saved.logits.cols(), 0, saved.logits.cols());
  saved.maximum.assign(std::size_t(saved.logits.rows()), -std::numeric_limits<T>::infinity());
  for (std::int64_t r = 0; r < saved.logits.rows(); ++r) {
    const T* row = saved.logits.row(r);
    for (std::int64_t c = 0; c < words; ++c) {
      saved.maximum[std::size_t(r)] = std::max(saved.maximum[std::size_t(r)], row[c]);
    }
  }
}

template <class T>
void Execution<T>::Impl::CrossEntropy(const Operator* reduce, const Run& run, Saved& saved) {
  const std::int64_t rows = saved.logits.rows(), cols = saved.logits.cols();
  const std::int64_t first = place_.tensor * cols;
  const std::int64_t words = std::clamp<std::int64_t>(workload_.model.vocab_size - first, 0, cols);
  const auto over_ranks = [&](std::vector<T>& values, Exchange::Reduction reduction) {
    if (reduce == nullptr) return;
    MILLWRIGHT_CHECK(double(values.size()) * kLossWidth == reduce->payload.value);
    exchange_.AllReduce(reduce->name, tensor_, std::span(values), reduction);
  };
  over_ranks(saved.maximum, Exchange::Reduction::kMaximum);
  saved.sum.assign(std::size_t(rows), T(0));
  std::vector<T> label_logit(std::size_t(rows), T(0));
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = saved.logits.row(r);
    for (std::int64_t c = 0; c < words; ++c) {
      saved.sum[std::size_t(r)] += std::exp(row[c] - saved.maximum[std::size_t(r)]);
    }
    const std::int64_t label = TokenAt(run.pass, r, 1) - first;
    if (label >= 0 && label < cols) label_logit[std::size_t(r)] = row[label];
  }
  over_ranks(saved.sum, Exchange::Reduction::kSum);
  over_ranks(label_logit, Exchange::Reduction::kSum);
  if (place_.tensor != 0) return;  // all tensor ranks have the same
  const double tokens =
      double(workload_.training.global_batch_size) * double(workload_.training.seq_length);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = std::size_t(r);
    loss_ += double(saved.maximum[i] + std::log(saved.sum[i]) - label_logit[i]) / tokens;
  }
}

template <class T>
auto Execution<T>::Impl::CrossEntropyGradient(const Run& run, const Saved& saved) const -> Rows {
  const std::int64_t rows = saved.logits.rows(), cols = saved.logits.cols();
  const std::int64_t first = place_.tensor * cols;
  const std::int64_t words = std::clamp<std::int64_t>(workload_.model.vocab_size - first, 0, cols);
  const T share =
      T(1 / (double(workload_.training.global_batch_size) * double(workload_.training.seq_length)));
  Rows gradient(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = std::size_t(r);
    for (std::int64_t c = 0; c < words; ++c) {
      gradient.row(r)[c] =
          share * std::exp(saved.logits.row(r)[c] - saved.maximum[i]) / saved.sum[i];
    }
    const std::int64_t label = TokenAt(run.pass, r, 1) - first;
    if (label >= 0 && label < cols) gradient.row(r)[label] -= share;
  }
  return gradient;
}

// --- Data parallelism and the optimizer
// ------------------------------------------------------------------------------------------------

// Adds the sum over data-parallel ranks of what has come together to this rank's share.
template <class T>
void Execution<T>::Impl::ReduceShard(Unit& unit) {
  const std::span<T> all(unit.gradients);
  if (workload_.parallel.zero == 0) {
    exchange_.AllReduce("reduce gradients", data_, all);
  } else {
    exchange_.ReduceScatter("reduce gradients", data_, all);
  }
  Add(std::span<const T>(all.subspan(std::size_t(unit.first), unit.shard_gradients.size())),
      std::span<T>(unit.shard_gradients));
  std::fill(all.begin(), all.end(), T(0));
}

// Tensor ranks that hold the same weights have the gradients of their own tokens or heads.
template <class T>
void Execution<T>::Impl::SumCopies(Unit& unit) {
  for (const bool kv : {false, true}) {
    std::vector<T> together;
    int copies = 1;
    const auto for_each = [&](const auto& use) {
      for (const TensorPart& part : unit.parts) {
        if (!part.partial_gradient || part.copies == 1) continue;
        if ((part.whole.split == WeightSplit::kQueryGroups) != kv) continue;
        copies = part.copies;
        const std::int64_t first = std::max(part.offset, unit.first);
        const std::int64_t last = std::min(part.offset + part.elements(), unit.last);
        for (std::int64_t e = first; e < last; ++e) {
          use(unit.shard_gradients[std::size_t(e - unit.first)]);
        }
      }
    };
    for_each([&](T value) { together.push_back(value); });
    if (together.empty()) continue;
    const RankGroup group{
        .first = exchange_.rank() - place_.tensor % copies, .stride = 1, .ranks = copies};
    exchange_.AllReduce(kv ? "sum KV gradients" : "sum replicated gradients", group,
                        std::span(together));
    auto next = together.begin();
    for_each([&](T& value) { value = *next++; });
  }
}

// DualPipe: the same stage of the other direction, on another rank, has seen the other half of the
// micro-batches.
template <class T>
void Execution<T>::Impl::ExchangeTwins() {
  const PipelineSchedule& schedule = workload_.schedule;
  const int first_tag = 1 + 2 * schedule.stages() * schedule.micro_batches;
  const auto twin_of = [&](const Unit& unit) {
    const int stage = (unit.stage + schedule.stages_per_direction()) % schedule.stages();
    return RankOnPipeline(schedule.rank_of_stage[std::size_t(stage)]);
  };
  for (const Unit& unit : units_) {
    exchange_.Send("exchange copies' gradients", twin_of(unit), first_tag + unit.layer + 1,
                   std::span<const T>(unit.shard_gradients));
  }
  for (Unit& unit : units_) {
    std::vector<T> other(unit.shard_gradients.size());
    exchange_.Receive(twin_of(unit), first_tag + unit.layer + 1, std::span(other));
    Add(std::span<const T>(other), std::span<T>(unit.shard_gradients));
  }
}

template <class T>
void Execution<T>::Impl::GatherUnit(Unit& unit) {
  exchange_.AllGather("gather parameters", data_, std::span<T>(unit.weights));
}

// What a rank does not hold under ZeRO-3 must not be computed with by mistake.
template <class T>
void Execution<T>::Impl::Forget(Unit& unit) {
  for (std::int64_t e = 0; e < std::int64_t(unit.weights.size()); ++e) {
    if (e < unit.first || e >= unit.last) {
      unit.weights[std::size_t(e)] = std::numeric_limits<T>::quiet_NaN();
    }
  }
}

template <class T>
void Execution<T>::Impl::Update(const Adam& adam) {
  ++updates_;
  const double correction1 = 1 - std::pow(adam.beta1, updates_);
  const double correction2 = 1 - std::pow(adam.beta2, updates_);
  for (Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.shard_gradients.size(); ++i) {
      const T gradient = unit.shard_gradients[i];
      T &m = unit.moment1[i], &v = unit.moment2[i];
      m = T(adam.beta1) * m + T(1 - adam.beta1) * gradient;
      v = T(adam.beta2) * v + T(1 - adam.beta2) * gradient * gradient;
      unit.weights[std::size_t(unit.first) + i] -=
          T(adam.rate) * (m / T(correction1)) / (std::sqrt(v / T(correction2)) + T(adam.epsilon));
    }
    if (workload_.parallel.zero > 0 && !sharded(unit)) GatherUnit(unit);
  }
}

template <class T>
void Execution<T>::Impl::ForEachTensor(const Visit& visit) const {
  for (const Unit& unit : units_) {
    for (const TensorPart& part : unit.parts) {
      const std::int64_t first = std::max(part.offset, unit.first);
      const std::int64_t last = std::min(part.offset + part.elements(), unit.last);
      if (first >= last) continue;
      const auto count = std::size_t(last - first);
      visit(part, first - part.offset, std::span(unit.weights).subspan(std::size_t(first), count),
            std::span(unit.shard_gradients).subspan(std::size_t(first - unit.first), count));
    }
  }
}

template <class T>
Execution<T>::Execution(const Workload& workload, Communicator& communicator)
    : impl_(std::make_unique<Impl>(workload, communicator)) {}
template <class T>
Execution<T>::~Execution() = default;
template <class T>
double Execution<T>::ComputeGradients(int step) {
  return impl_->ComputeGradients(step);
}
template <class T>
void Execution<T>::Update(const Adam& adam) {
  impl_->Update(adam);
}
template <class T>
void Execution<T>::ForEachTensor(const Visit& visit) const {
  impl_->ForEachTensor(visit);
}
template <class T>
const std::vector<ExecutedOperator>& Execution<T>::operators() const {
  return impl_->operators();
}
template <class T>
const std::vector<ExecutedCall>& Execution<T>::calls() const {
  return impl_->calls();
}

template class Execution<float>;
template class Execution<double>;

}  // namespace millwright
