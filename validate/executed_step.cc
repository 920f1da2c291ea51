// SPDX-License-Identifier: Apache-2.0
#include "validate/executed_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/check.h"
#include "cost_models/operators.h"
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

constexpr const char* kOptimizer = "optimizer";
constexpr const char* kData = "gradients and parameters";

// The operators of the embedding (-1), a layer, or the head, priced.
struct PricedUnit {
  std::vector<Operator> operators;
  std::vector<OperatorCost> costs;
};

class Prediction {
 public:
  Prediction(const Estimator& estimator, const Workload& workload)
      : estimator_(estimator),
        workload_(workload),
        shape_(ShapeOf(workload.parallel, estimator.training())),
        paths_(estimator.PathsOf(shape_)) {}

  // By name and direction, of all ranks.
  std::map<std::pair<std::string, bool>, Seconds> Operators() {
    const PipelineSchedule& schedule = workload_.schedule;
    for (const std::vector<Pass>& order : schedule.orders) {
      for (const Pass& pass : order) AddPass(pass);
    }
    const ParallelConfig& p = workload_.parallel;
    const double plane = double(p.tensor) * p.context * p.data;
    for (auto& [name, time] : sums_) time = plane * time;
    return std::move(sums_);
  }

 private:
  void AddPass(const Pass& pass) {
    const PipelineSchedule& schedule = workload_.schedule;
    const auto [first, last] = LayersOfStage(workload_, pass.stage);
    if (schedule.first_of_direction(pass.stage)) AddUnit(pass, -1, false);
    for (int layer = first; layer < last; ++layer) {
      const Recompute& r = RecomputeOf(pass);
      const bool full = r.granularity == RecomputeGranularity::kFull &&
                        (r.full_layers == 0 || layer - first < r.full_layers);
      AddUnit(pass, layer, full);
    }
    if (schedule.last_of_direction(pass.stage)) {
      AddUnit(pass, workload_.model.num_layers, false);
    }
  }

  const Recompute& RecomputeOf(const Pass& pass) const {
    return workload_.parallel.RecomputeOf(
        workload_.schedule.rank_of_stage[std::size_t(pass.stage)]);
  }

  void AddUnit(const Pass& pass, int layer, bool recomputed) {
    const PricedUnit& unit = UnitOf(layer);
    const Recompute& r = RecomputeOf(pass);
    const bool of_model = layer >= 0 && layer < workload_.model.num_layers;
    const ModuleMask again =
        of_model && r.granularity == RecomputeGranularity::kSelective ? MaskOf(r.modules) : 0;
    for (std::size_t i = 0; i < unit.operators.size(); ++i) {
      const Operator& op = unit.operators[i];
      const OperatorCost& cost = unit.costs[i];
      const std::string name(op.name);
      // A gather for the weight gradient alone.
      const bool of_weight = op.kind == OperatorKind::kCollective && op.hidden_under >= 0;
      switch (pass.kind) {
        case PassKind::kForward:
          sums_[{name, false}] += cost.forward.total();
          break;
        case PassKind::kBackward:
          sums_[{name, true}] += cost.backward.total();
          break;
        case PassKind::kBackwardInput:
          if (!of_weight) sums_[{name, true}] += cost.backward.total() - cost.weight_gradient;
          break;
        case PassKind::kBackwardWeight:
          sums_[{name, true}] += of_weight ? cost.backward.total() : cost.weight_gradient;
          break;
      }
      if ((pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardInput) &&
          (recomputed || (op.modules & again) != 0)) {
        sums_[{name, false}] += cost.forward.total();
      }
    }
  }

  const PricedUnit& UnitOf(int layer) {
    const auto [entry, inserted] = units_.try_emplace(layer);
    if (!inserted) return entry->second;
    const ModelConfig& model = workload_.model;
    const TrainingConfig& training = estimator_.training();
    PricedUnit& unit = entry->second;
    unit.operators = layer < 0 ? EmbeddingOperators(model, shape_, training)
                     : layer == model.num_layers
                         ? HeadOperators(model, shape_, training)
                         : LayerOperators(model, model.layer(layer), shape_, training);
    for (const Operator& op : unit.operators) {
      unit.costs.push_back(CostOfOperator(op, paths_, estimator_.context()));
    }
    return unit;
  }

  const Estimator& estimator_;
  const Workload& workload_;
  LayerShape shape_;
  LayerPaths paths_;
  std::map<int, PricedUnit> units_;
  std::map<std::pair<std::string, bool>, Seconds> sums_;
};

std::string NameOf(const RecordedOperator& op) {
  if (op.stream == Stream::kData) return kData;
  return op.name == "loss" ? kOptimizer : op.name;
}

// What the program does and the step's lists do not have stands with the rest.
bool Waits(Stream stream) { return stream == Stream::kSend || stream == Stream::kReceive; }

}  // namespace

ExecutedModel ExecutedModelOf(const Workload& workload, const GpuCurves& curves,
                              const ExecutedAs& how, const std::string& file) {
  TrainingConfig training = workload.training;
  training.overlap_grad_reduce = training.overlap_param_gather = false;
  training.overlap_p2p = training.tp_comm_overlap = training.cp_comm_overlap = false;
  training.expert_overlap = false;
  constexpr double kCountedWidth = 2;  // as activations are counted, which AsExecuted widens
  training.gradient_bytes = kCountedWidth;

  const ExecutedCurves executed = ExecutedCurvesOf(curves, how, workload.model);
  const LayerShape shape = ShapeOf(workload.parallel, training);
  std::vector<Operator> operators = EmbeddingOperators(workload.model, shape, training);
  for (LayerKind kind : workload.model.distinct_kinds()) {
    const std::vector<Operator> more = LayerOperators(workload.model, kind, shape, training);
    operators.insert(operators.end(), more.begin(), more.end());
  }
  const std::vector<Operator> head = HeadOperators(workload.model, shape, training);
  operators.insert(operators.end(), head.begin(), head.end());
  const ParallelConfig& plan = workload.parallel;
  std::vector<CollectiveKind> kinds;
  if (workload.ranks() > 1) kinds.push_back(CollectiveKind::kAllReduce);  // the loss
  if (plan.pipeline > 1) kinds.push_back(CollectiveKind::kSendRecv);
  if (plan.data * plan.context > 1 && plan.zero > 0) {
    kinds.insert(kinds.end(), {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather});
  }
  const std::vector<std::string> missing = NotMeasured(executed, operators, kinds);
  if (!missing.empty()) {
    throw ConfigError(
        fmt::format("{}: no curves of {} with {} over {}; measure them (measure --for JOB.json "
                    "--dtype {}{}, without --budget or with a larger one), and calibrate",
                    file, fmt::join(missing, ", "), how.stack, how.library,
                    how.dtype == "float32" ? "fp32" : "fp64",
                    how.library.find("threads") != std::string::npos ? " --backend threads" : ""));
  }

  ClusterConfig config = FindCluster("local-cpu");
  config.gpus_per_node = config.gpus_per_pcie_switch = workload.ranks();
  config.gpu = WithRates(config.gpu, curves.rates);
  if (curves.rates.link.value > 0) {
    config.nvlink_bandwidth = config.pcie_bandwidth = curves.rates.link;
  }
  return {.training = training, .cluster = Cluster(config), .calibration = AsExecuted(executed)};
}

MeasuredStep Measured(const RecordedStep& executed) {
  MeasuredStep step{.step = executed.step, .ranks = int(executed.ranks.size()), .operators = {}};
  std::map<std::pair<std::string, bool>, MeasuredOperator> operators;
  for (const std::vector<RecordedOperator>& rank : executed.ranks) {
    for (const RecordedOperator& op : rank) {
      MeasuredStream& stream = step.streams[std::size_t(op.stream)];
      stream.measured += op.end - op.start;
      stream.processor += op.processor;
      if (Waits(op.stream)) continue;
      // An operator that does nothing in a pass is entered and left.
      const bool backward = op.micro_batch >= 0 && op.pass != PassKind::kForward && !op.recomputed;
      MeasuredOperator& one = operators[{NameOf(op), backward}];
      one.name = NameOf(op);
      one.backward = backward;
      one.measured += op.end - op.start;
      one.processor += op.processor;
      ++one.calls;
    }
  }
  for (auto& [key, one] : operators) step.operators.push_back(std::move(one));
  return step;
}

ExecutedComparison CompareExecuted(const Estimator& estimator, const Workload& workload,
                                   const SimulatedStep& simulated, const MeasuredStep& executed) {
  const ParallelConfig& plan = workload.parallel;
  const double plane = double(plan.tensor) * plan.context * plan.data;
  ExecutedComparison comparison{.predicted = simulated.step(), .measured = executed.step};

  std::map<std::pair<std::string, bool>, ComparedOperator> operators;
  const auto of = [&](const std::string& name, bool backward) -> ComparedOperator& {
    ComparedOperator& one = operators[{name, backward}];
    one.name = name;
    one.backward = backward;
    return one;
  };
  for (const auto& [key, time] : Prediction(estimator, workload).Operators()) {
    if (time.value > 0) of(key.first, key.second).predicted += time;
  }
  std::array<Seconds, kStreams> predicted{};
  for (const Task& task : simulated.graph.tasks()) {
    predicted[std::size_t(task.stream)] += plane * task.duration;
    if (task.stream == Stream::kData) of(kData, false).predicted += plane * task.duration;
  }
  for (Seconds time : simulated.spec.optimizer) of(kOptimizer, false).predicted += plane * time;
  for (const MeasuredOperator& op : executed.operators) {
    ComparedOperator& one = of(op.name, op.backward);
    one.measured = op.measured;
    one.processor = op.processor;
    one.calls = op.calls;
  }
  for (auto& [key, one] : operators) comparison.operators.push_back(std::move(one));
  std::stable_sort(comparison.operators.begin(), comparison.operators.end(),
                   [](const ComparedOperator& a, const ComparedOperator& b) {
                     return std::max(a.predicted, a.measured) > std::max(b.predicted, b.measured);
                   });

  const double ranks = executed.ranks;
  ComparedStream rest{.name = "waiting, and the rest",
                      .predicted = comparison.predicted,
                      .measured = comparison.measured};
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    const MeasuredStream& measured = executed.streams[std::size_t(s)];
    comparison.processor += measured.processor / ranks;
    if (Waits(stream)) {
      rest.processor += measured.processor / ranks;
      continue;
    }
    const ComparedStream one{.name = std::string(Name(stream)),
                             .predicted = predicted[std::size_t(s)] / ranks,
                             .measured = measured.measured / ranks,
                             .processor = measured.processor / ranks};
    rest.predicted = rest.predicted - one.predicted;
    rest.measured = rest.measured - one.measured;
    if (one.predicted.value > 0 || one.measured.value > 0) comparison.streams.push_back(one);
  }
  // What rounding leaves of a step without a wait.
  if (std::abs(rest.predicted / comparison.predicted) < 1e-9) rest.predicted = Seconds(0);
  comparison.streams.push_back(rest);
  return comparison;
}

}  // namespace millwright
