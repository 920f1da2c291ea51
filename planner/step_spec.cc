// SPDX-License-Identifier: Apache-2.0
#include "planner/step_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "core/machine_memory.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

Cause CauseOf(GroupKind group) {
  switch (group) {
    case GroupKind::kTensor:
      return Cause::kTensor;
    case GroupKind::kRing:
    case GroupKind::kUlysses:
      return Cause::kContext;
    case GroupKind::kExpert:
    case GroupKind::kExpertTensor:
      return Cause::kExpert;
  }
  return Cause::kTensor;
}

// Lists pieces, joining compute that nothing comes between.
class PieceList {
 public:
  PieceList(Cause compute, const std::vector<Operator>& operators)
      : compute_(compute), operators_(operators) {}
  // Of an operator, by its number.
  void Compute(const char* label, std::size_t op, Seconds duration) {
    if (duration.value <= 0) return;
    if (!pieces_.empty() && pieces_.back().stream == Stream::kCompute && after_ == kLast) {
      pieces_.back().duration += duration;
      pieces_.back().through = std::uint8_t(op);
      return;
    }
    Add({.label = label,
         .duration = duration,
         .cause = compute_,
         .routed = among_experts_,
         .through = std::uint8_t(op)});
  }
  // `sm_share`: taken from what another pass computes beside it.
  void Collective(const Operator& op, Seconds duration, const Communication& communication,
                  double sm_share = 0) {
    if (duration.value <= 0) return;
    // Between dispatch and combine, or the other way round, there is nothing but experts.
    const bool exchange = op.group == GroupKind::kExpert;
    if (exchange) among_experts_ = !among_experts_;
    Add({.label = op.name.data(),
         .duration = duration,
         .stream = StreamOf(op.group),
         .cause = compute_ == Cause::kRecompute ? Cause::kRecompute : CauseOf(op.group),
         .routed = exchange,
         .through = std::uint8_t(&op - operators_.data()),
         .sm_share = sm_share,
         .communication = communication});
  }
  // A collective, and compute that starts with it and is slowed; what comes next waits for both.
  void Beside(const Operator& op, Seconds duration, const Communication& communication,
              double sm_share, const char* label, std::size_t computed, Seconds compute) {
    MILLWRIGHT_CHECK(duration.value > 0 && compute.value > 0);
    const After begin = after_;
    Collective(op, duration, communication);
    Next(Back(begin, 1));
    Compute(label, computed, compute + SlowedBeside(compute, duration, sm_share));
    Next({1, 2});
  }
  // What the next piece waits for: so far back.  It is one of its own.
  using After = std::array<std::uint8_t, 2>;
  void Next(After after) { after_ = after; }
  After next() const { return after_; }
  static After Back(After after, int pieces) {
    for (std::uint8_t& back : after) {
      if (back > 0) back = std::uint8_t(back + pieces);
    }
    return after;
  }
  std::vector<Piece> Take() {
    // Of what is recomputed, what comes next waits for all (Append).
    MILLWRIGHT_CHECK(after_ == kLast || compute_ == Cause::kRecompute);
    return std::move(pieces_);
  }

 private:
  static constexpr After kLast{1, 0};
  void Add(Piece piece) {
    piece.after = std::exchange(after_, kLast);
    pieces_.push_back(piece);
  }

  Cause compute_;
  const std::vector<Operator>& operators_;
  bool among_experts_ = false;
  After after_ = kLast;
  std::vector<Piece> pieces_;
};

// Who takes part in an operator's collective.
Communication GroupOf(const Operator& op, const LayerShape& shape) {
  switch (op.group) {
    case GroupKind::kTensor:
      return {.stride = 1, .ranks = shape.tensor};
    case GroupKind::kRing:
      return {.stride = shape.tensor * shape.ulysses_ranks(), .ranks = shape.ring_ranks()};
    case GroupKind::kExpert:
      return {.stride = shape.expert_tensor, .ranks = shape.expert};
    case GroupKind::kExpertTensor:
      return {.stride = 1, .ranks = shape.expert_tensor};
    case GroupKind::kUlysses:
      return {.stride = shape.tensor, .ranks = shape.ulysses_ranks()};
  }
  return {};
}

class PassBuilder {
 public:
  PassBuilder(const std::vector<Operator>& operators, const LayerPaths& paths,
              const CostContext& context, const LayerShape& shape)
      : operators_(operators), paths_(paths), context_(context), shape_(shape) {
    for (std::size_t i = 0; i < operators.size(); ++i) {
      costs_.push_back(CostOfOperator(operators[i], paths, context));
      overlaps_.push_back(OverlapOf(operators, i, paths, context));
    }
    launch_wait_ = CostOfLayer(operators, paths, context).launch_wait;
  }

  // Operators of which `modules` holds one, or all of them.
  std::vector<Piece> Forward(Cause cause, ModuleMask modules, bool all) const {
    PieceList list(cause, operators_);
    const auto runs = [&](std::size_t i) {
      return i < operators_.size() && (all || (operators_[i].modules & modules) != 0);
    };
    for (std::size_t i = 0; i < operators_.size(); ++i) {
      if (!runs(i)) continue;
      const std::size_t next = i + 1;
      const Operator* ring = RingAfter(i);
      if (ring && runs(next)) {
        // Of a ring's steps the first computes on what the rank holds.
        const double steps = ring->repeats + 1;
        const Seconds attention = costs_[i].forward.compute;
        list.Compute("forward", i, attention / steps);
        Beside(list, *ring, costs_[next].forward, true, costs_[next].sm_share, "attention", i,
               attention * (ring->repeats / steps));
        ++i;
        continue;
      }
      const bool gathers = overlaps_[i].gemm == int(next) && runs(next);
      const bool scatters = runs(next) && overlaps_[next].gemm == int(i);
      const std::size_t collective = gathers ? i : next;
      if ((gathers || scatters) && overlaps_[collective].forward.chunks > 1) {
        Chunks(list, operators_[collective], overlaps_[collective].forward, gathers, true,
               "forward", gathers ? next : i);
        ++i;
        continue;
      }
      if (operators_[i].kind == OperatorKind::kCollective) {
        Add(list, operators_[i], costs_[i].forward, true);
      } else {
        list.Compute("forward", i, costs_[i].forward.compute);
      }
    }
    if (all) list.Compute("launches", operators_.size() - 1, launch_wait_.forward.compute);
    return list.Take();
  }

  enum class Part { kBoth, kInput, kWeight };
  std::vector<Piece> Backward(Part part) const {
    PieceList list(Cause::kCompute, operators_);
    for (std::size_t i = operators_.size(); i-- > 0;) {
      const Operator& op = operators_[i];
      if (part == Part::kWeight) {
        if (op.hidden_under >= 0 && HidesUnderGemm(op)) Add(list, op, costs_[i].backward, false);
        list.Compute("weight gradient", i, costs_[i].weight_gradient);
        continue;
      }
      if (op.hidden_under >= 0 && !HidesUnderGemm(op)) {
        // A ring, and the attention that it runs beside.
        const std::size_t attention = std::size_t(op.hidden_under);
        const double steps = op.repeats + 1;
        const Seconds compute = costs_[attention].backward.compute;
        list.Compute("backward", attention, compute / steps);
        Beside(list, op, costs_[i].backward, false, costs_[i].sm_share, "attention backward",
               attention, compute * (op.repeats / steps));
        MILLWRIGHT_CHECK(attention + 1 == i);
        i = attention;
        continue;
      }
      // A GEMM, and what goes with it: the gathering of what its weight gradient needs, after it in
      // the list, and the collective beside it, before or after.
      const bool regathered = op.hidden_under >= 0;
      const bool scattered = overlaps_[i].gemm >= 0 && !overlaps_[i].gathers;
      if (regathered || scattered || op.kind == OperatorKind::kGemm) {
        const std::size_t gemm = regathered || scattered ? i - 1 : i;
        MILLWRIGHT_CHECK(operators_[gemm].kind == OperatorKind::kGemm);
        const bool gathers = gemm > 0 && overlaps_[gemm - 1].gemm == int(gemm);
        MILLWRIGHT_CHECK(!(scattered && gathers) && (!regathered || op.hidden_under == int(gemm)));
        GemmBackward(list, part, gemm, regathered ? &op : nullptr,
                     scattered ? &op
                     : gathers ? &operators_[gemm - 1]
                               : nullptr);
        i = gathers ? gemm - 1 : gemm;
        continue;
      }
      if (op.kind == OperatorKind::kCollective) {
        Add(list, op, costs_[i].backward, false);
      } else {
        const Seconds weight = part == Part::kBoth ? costs_[i].weight_gradient : Seconds(0);
        list.Compute("backward", i,
                     costs_[i].backward.compute - costs_[i].weight_gradient + weight);
      }
    }
    if (part != Part::kWeight) list.Compute("launches", 0, launch_wait_.backward.compute);
    return list.Take();
  }

 private:
  const Operator* RingAfter(std::size_t i) const {
    if (i + 1 >= operators_.size()) return nullptr;
    const Operator& next = operators_[i + 1];
    return next.hidden_under == int(i) && !HidesUnderGemm(next) ? &next : nullptr;
  }
  bool HidesUnderGemm(const Operator& op) const {
    return operators_[std::size_t(op.hidden_under)].kind == OperatorKind::kGemm;
  }
  std::size_t IndexOf(const Operator& op) const { return std::size_t(&op - operators_.data()); }

  // `regather`: beside the input gradient, for the weight gradient.  `collective`: of the block
  // that the GEMM begins or ends, beside one of them.
  void GemmBackward(PieceList& list, Part part, std::size_t gemm, const Operator* regather,
                    const Operator* collective) const {
    const OperatorCost& cost = costs_[gemm];
    const Seconds input = cost.backward.compute - cost.weight_gradient;
    const bool both = part == Part::kBoth;
    const TensorOverlap none;
    const TensorOverlap& overlap = collective ? overlaps_[IndexOf(*collective)] : none;
    const bool chunked = overlap.backward.chunks > 1 && !(overlap.with_weight_gradient && both);
    if (collective && !overlap.gathers && !chunked) {
      Add(list, *collective, costs_[IndexOf(*collective)].backward, false);
    }
    if (regather && both && context_.calibration.executed) {
      Add(list, *regather, costs_[IndexOf(*regather)].backward, false);
      list.Compute("backward", gemm, input);
    } else if (chunked) {
      Chunks(list, *collective, overlap.backward, !overlap.gathers, false, "backward", gemm);
    } else if (regather && both) {
      Beside(list, *regather, costs_[IndexOf(*regather)].backward, false, 0, "backward", gemm,
             input);
    } else {
      list.Compute("backward", gemm, input);
    }
    if (collective && overlap.gathers && !chunked && !both) {
      Add(list, *collective, costs_[IndexOf(*collective)].backward, false);
    }
    if (!both) return;
    if (!overlap.with_weight_gradient) {
      list.Compute("backward", gemm, cost.weight_gradient);
      return;
    }
    // The scatter needs the input gradient alone, the weight gradient what was gathered beside it.
    const PieceList::After begin = list.next();
    if (regather) list.Next({1, 0});
    PassTime scatter = costs_[IndexOf(*collective)].backward;
    scatter.tensor += overlap.slowed;
    Add(list, *collective, scatter, false);
    list.Next(PieceList::Back(begin, 1));
    list.Compute("backward", gemm, cost.weight_gradient + overlap.slowed);
    list.Next({1, 2});
  }

  // A GEMM in chunks, and the exchanges beside them.
  void Chunks(PieceList& list, const Operator& op, const ChunkedGemm& cut, bool gathers,
              bool forward, const char* label, std::size_t gemm) const {
    Communication part = CommunicationOf(op, forward);
    part.payload = part.payload / (cut.chunks - 1);
    const Seconds exchange = cut.exchange + cut.slowed, slow = cut.gemm + cut.slowed;
    if (gathers) {
      // In the order in which they are listed, exchange i + 1 stands between chunks i - 1 and i,
      // and waits for exchange i alone.
      const PieceList::After begin = list.next();
      for (int i = 0; i + 1 < cut.chunks; ++i) {
        if (i > 0) list.Next({2, 0});
        list.Collective(op, exchange, part);
        list.Next(i == 0 ? PieceList::Back(begin, 1) : PieceList::After{3, 2});
        list.Compute(label, gemm, slow);
      }
      list.Next({2, 1});
      list.Compute(label, gemm, cut.gemm);
      return;
    }
    list.Compute(label, gemm, cut.gemm);
    for (int i = 1; i < cut.chunks; ++i) {
      // Exchange i waits for chunk i - 1 and for exchange i - 1, chunk i for chunk i - 1.
      if (i > 1) list.Next({1, 2});
      list.Collective(op, exchange, part);
      list.Next({2, 0});
      list.Compute(label, gemm, slow);
    }
    list.Next({1, 2});
  }

  void Beside(PieceList& list, const Operator& op, const PassTime& pass, bool forward,
              double sm_share, const char* label, std::size_t computed, Seconds compute) const {
    list.Beside(op, TimeOf(pass), CommunicationOf(op, forward), sm_share, label, computed, compute);
  }
  void Add(PieceList& list, const Operator& op, const PassTime& pass, bool forward) const {
    const std::size_t i = IndexOf(op);
    const bool own = op.hidden_under >= 0 || overlaps_[i].gemm >= 0;
    list.Collective(op, TimeOf(pass), CommunicationOf(op, forward), own ? 0 : costs_[i].sm_share);
  }
  static Seconds TimeOf(const PassTime& pass) { return pass.tensor + pass.context + pass.expert; }

  Communication CommunicationOf(const Operator& op, bool forward) const {
    const Seconds duration =
        TimeOf(forward ? costs_[IndexOf(op)].forward : costs_[IndexOf(op)].backward);
    Communication group = GroupOf(op, shape_);
    group.kind = forward ? op.forward_collective : op.backward_collective;
    const double calls = op.repeats * (forward ? 1 : op.backward_repeats);
    const Seconds whole = calls * CostOfCollective(group.kind, op.payload, PathOf(op.group, paths_),
                                                   context_.calibration.collective)
                                      .time;
    // What is hidden, or is not sent twice to one place, loads no link here.
    const double share = whole > duration ? duration / whole : 1;
    if (group.kind == CollectiveKind::kSendRecv) {
      // A ring that passes blocks on loads links as the ring of an all-gather does.
      group.kind = CollectiveKind::kAllGather;
      group.payload = share * (calls / (group.ranks - 1.0)) * group.ranks * op.payload;
    } else {
      group.payload = share * calls * op.payload;
    }
    return group;
  }

  const std::vector<Operator>& operators_;
  const LayerPaths& paths_;
  const CostContext& context_;
  const LayerShape& shape_;
  std::vector<OperatorCost> costs_;
  std::vector<TensorOverlap> overlaps_;
  OperatorCost launch_wait_;
};

// The first of `from` waits for whatever the last two of `to` are.
void Append(std::vector<Piece>& to, const std::vector<Piece>& from) {
  const std::size_t at = to.size();
  to.insert(to.end(), from.begin(), from.end());
  if (at > 0 && at < to.size()) to[at].after = {1, 2};
}

LayerPasses PassesOf(const std::vector<Operator>& operators, const LayerPaths& paths,
                     const CostContext& context, const LayerShape& shape,
                     const Recompute& recompute) {
  const PassBuilder builder(operators, paths, context, shape);
  LayerPasses passes;
  passes.forward = builder.Forward(Cause::kCompute, 0, true);
  std::vector<Piece> again;
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      break;
    case RecomputeGranularity::kSelective:
      again = builder.Forward(Cause::kRecompute, MaskOf(recompute.modules), false);
      break;
    case RecomputeGranularity::kFull:
      again = builder.Forward(Cause::kRecompute, 0, true);
      break;
  }
  passes.backward = again;
  Append(passes.backward, builder.Backward(PassBuilder::Part::kBoth));
  passes.backward_input = std::move(again);
  Append(passes.backward_input, builder.Backward(PassBuilder::Part::kInput));
  passes.backward_weight = builder.Backward(PassBuilder::Part::kWeight);
  return passes;
}

// What data parallelism does with a part of a rank's parameters: its share of all that the rank
// holds, dense and experts apart, which have groups of their own.
class DataShares {
 public:
  DataShares(const RankParameters& whole, const ParallelConfig& plan, const DataGroups& groups,
             const TrainingConfig& training, const Calibration& calibration)
      : plan_(plan), groups_(groups), training_(training), calibration_(calibration.collective) {
    const RankParameters dense{.dense = whole.dense}, expert{.expert = whole.expert};
    const int expert_stride = plan.expert * plan.expert_tensor;
    parts_ = {
        Part{.parameters = whole.dense,
             .sync = SyncOf(dense, plan.zero, groups, training, calibration),
             .shard = {.stride = plan.tensor, .ranks = int(groups.dense_shard)},
             .replicas = {.stride = int(plan.tensor * groups.dense_shard),
                          .ranks = int(groups.dense_ranks / groups.dense_shard)}},
        Part{.parameters = whole.expert,
             .sync = SyncOf(expert, plan.zero, groups, training, calibration),
             .shard = {.stride = expert_stride, .ranks = int(groups.expert_shard)},
             .replicas = {.stride = int(expert_stride * groups.expert_shard),
                          .ranks = int(groups.expert_ranks / groups.expert_shard)}},
    };
  }

  void Give(LayerPasses& passes, const RankParameters& parameters) const {
    passes.parameters = parameters.total();
    const double width = training_.gradient_bytes;
    const double held[] = {parameters.dense, parameters.expert};
    for (std::size_t i = 0; i < 2; ++i) {
      const Part& part = parts_[i];
      if (held[i] <= 0) continue;
      const double share = held[i] / part.parameters;
      passes.gather.Add(Call(part.shard, CollectiveKind::kAllGather, share * part.sync.parameters,
                             held[i] * kParameterWidth));
      const CollectiveKind reduction =
          plan_.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
      // ZeRO-2 reduces after every micro-batch.
      (plan_.zero == 2 ? passes.shard_reduce : passes.reduce)
          .Add(Call(part.shard, reduction, share * part.sync.gradients, held[i] * width));
      passes.reduce.Add(Call(part.replicas, CollectiveKind::kAllReduce, share * part.sync.replicas,
                             held[i] * width / part.shard.ranks));
    }
  }

  // ZeRO-3: a unit is gathered before each pass, and its gradients scattered after each backward.
  void GiveShardPasses(LayerPasses& passes, const RankParameters& unit) const {
    const RankParameters held[] = {{.dense = unit.dense}, {.expert = unit.expert}};
    for (std::size_t i = 0; i < 2; ++i) {
      const ShardPass pass = ShardPassOf(held[i], groups_, training_, calibration_);
      const double parameters = held[i].total();
      passes.shard_gather.Add(Call(parts_[i].shard, CollectiveKind::kAllGather, pass.gather,
                                   parameters * kParameterWidth));
      passes.shard_reduce.Add(Call(parts_[i].shard, CollectiveKind::kReduceScatter, pass.reduce,
                                   parameters * training_.gradient_bytes));
    }
  }

 private:
  struct Part {
    double parameters = 0;
    DataSync sync;
    Communication shard, replicas;
  };
  static DataCall Call(Communication group, CollectiveKind kind, Seconds duration, double payload) {
    group.kind = kind;
    group.payload = Bytes(payload);
    return {.duration = duration, .communication = group};
  }

  const ParallelConfig& plan_;
  const DataGroups& groups_;
  const TrainingConfig& training_;
  const CollectiveCalibration& calibration_;
  std::array<Part, 2> parts_;
};

// Of each stage, the kinds of its layers in order.
std::vector<std::vector<int>> KindsOfStages(const ModelConfig& model,
                                            const PipelineSchedule& schedule,
                                            std::span<const int> stage_layers) {
  std::vector<std::size_t> next(std::size_t(schedule.pipeline));  // of each rank's chunks
  const std::vector<StageContent> content =
      StagesOf(model, schedule.pipeline, schedule.rank_of_stage, schedule.directions, stage_layers);
  std::vector<std::vector<int>> kinds;
  for (const int rank : schedule.rank_of_stage) {
    kinds.push_back(content[std::size_t(rank)].chunks[next[std::size_t(rank)]++]);
  }
  return kinds;
}

// What ranks that hold the same weights sum once a step, and the loss.
void AddSums(const Estimator& estimator, const ParallelConfig& plan, const ShapeCosts& costs,
             const DataGroups& groups, const std::vector<std::vector<int>>& kinds_of_stage,
             StepSpec& spec) {
  const PipelineSchedule& schedule = spec.schedule;
  const TrainingConfig& training = estimator.training();
  const CollectiveCalibration& calibration = estimator.calibration().collective;
  const auto profile = [&](std::int64_t stride, std::int64_t ranks) -> const PathProfile& {
    return estimator.Profile(plan, stride, ranks);
  };
  const auto ranks = std::int64_t(plan.gpus());
  spec.loss = {.duration = ranks > 1 ? estimator.scalar_sum() : Seconds(0),
               .communication = {.payload = 4_B, .ranks = int(ranks), .everyone = true}};
  if (schedule.forward_only) return;

  std::vector<PartialGradients> partial(std::size_t(plan.pipeline));
  std::vector<RankParameters> held(std::size_t(plan.pipeline));
  for (int s = 0; s < schedule.stages(); ++s) {
    const auto rank = std::size_t(schedule.rank_of_stage[std::size_t(s)]);
    for (int kind : kinds_of_stage[std::size_t(s)]) {
      partial[rank] += costs.kind_partial[std::size_t(kind)];
      held[rank] += costs.kind_parameters[std::size_t(kind)];
    }
    if (schedule.first_of_direction(s)) held[rank] += costs.embedding_parameters;
    if (schedule.last_of_direction(s)) {
      partial[rank] += costs.head_partial;
      held[rank] += costs.head_parameters;
    }
  }
  const int copies = CopiesOfKeyValue(estimator.model(), plan.tensor);
  for (int rank = 0; rank < plan.pipeline; ++rank) {
    const auto r = std::size_t(rank);
    GradientSums& sums = spec.sums.emplace_back();
    const TensorSums tensor =
        TensorSumsOf(partial[r], estimator.model(), plan, groups, training, calibration, profile);
    sums.replicated = {
        .duration = tensor.replicated,
        .communication = {.payload = tensor.replicated_payload, .ranks = plan.tensor}};
    sums.key_value = {.duration = tensor.key_value,
                      .communication = {.payload = tensor.key_value_payload, .ranks = copies}};
    if (schedule.directions == 2) {
      // A rank's stages of both directions have their copies on one other rank.
      const CopiesExchange exchange = CopiesExchangeOf(held[r], plan, groups, training, calibration,
                                                       estimator.PipelineProfile(plan));
      sums.copies = {.duration = exchange.time,
                     .communication = {.kind = CollectiveKind::kSendRecv,
                                       .payload = exchange.payload,
                                       .to = plan.pipeline - 1 - rank}};
    }
  }
  const bool table_twice =
      estimator.model().tied_embeddings || estimator.model().mtp_num_layers > 0;
  const int first = schedule.rank_of_stage.front(), last = schedule.rank_of_stage.back();
  if (table_twice && schedule.directions == 1 && first != last) {
    const Bytes payload(costs.token_table.dense * training.gradient_bytes);
    for (const auto& [rank, other] : {std::pair{first, last}, std::pair{last, first}}) {
      // Of two ranks an all-reduce sends as much as an exchange.
      spec.sums[std::size_t(rank)].tied = {
          .duration = estimator.TiedSum(plan, costs),
          .communication = {.kind = CollectiveKind::kSendRecv, .payload = payload, .to = other}};
    }
  }
}

// Prices are of the slowest node of all; a pipeline rank goes as fast as the slowest of its own.
std::vector<double> ComputeTimes(const ClusterConfig& cluster, const ParallelConfig& plan) {
  std::vector<double> times;
  const double slowest = cluster.slowest().compute;
  if (slowest == 1) return times;
  const std::int64_t in_a_row = std::int64_t{1} * plan.tensor * plan.context;
  for (int rank = 0; rank < plan.pipeline; ++rank) {
    double own = 1;
    for (int copy = 0; copy < plan.data; ++copy) {
      const std::int64_t gpu = GpuOf(plan, in_a_row * (std::int64_t{1} * rank * plan.data + copy));
      const int first = int(gpu / cluster.gpus_per_node);
      const int last = int((gpu + in_a_row - 1) / cluster.gpus_per_node);
      own = std::min(own, SlowestOf(cluster.unlike_nodes, first, last).compute);
    }
    times.push_back(slowest / own);
  }
  return times;
}

}  // namespace

std::vector<StageMemory> HeldByRanks(const Estimator& estimator, const ParallelConfig& plan,
                                     const PipelineSchedule& schedule) {
  const std::vector<StageContent> ranks =
      StagesOf(estimator.model(), schedule.pipeline, schedule.rank_of_stage, schedule.directions,
               plan.stage_layers);
  const std::vector<StageContent> distinct = DistinctStages(ranks);
  ParallelConfig held = plan;
  held.virtual_stages = int(ranks[0].chunks.size());
  held.schedule = held.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  const ShapeCosts shape = estimator.CostShape(ShapeOf(plan, estimator.training()));
  const std::vector<TreatedLayer> layers = shape.Treat({});
  PipelineTerms terms(estimator, shape, distinct, held);
  terms.SetInFlight();
  std::vector<StageMemory> memory =
      terms.Itemise(held, {.treated = layers, .rest = {}, .some = {}}).memory;
  for (StageMemory& rank : memory) {
    for (MemoryItem item : {MemoryItem::kActivations, MemoryItem::kLogits, MemoryItem::kWorkingSet,
                            MemoryItem::kAllocatorSlack}) {
      rank[item] = Bytes(0);
    }
    rank[MemoryItem::kOptimizer] = rank[MemoryItem::kOptimizer] / double(schedule.directions);
  }
  return memory;
}

StepSpec StepSpecOf(const Estimator& estimator, const ParallelConfig& plan,
                    const ScheduleChoice& schedule) {
  return StepSpecOf(estimator, plan, BuildSchedule(schedule));
}

StepSpec StepSpecOf(const Estimator& estimator, const ParallelConfig& plan,
                    PipelineSchedule schedule) {
  const ModelConfig& model = estimator.model();
  const TrainingConfig& training = estimator.training();
  const LayerShape shape = ShapeOf(plan, training);
  const LayerPaths paths = estimator.PathsOf(shape);
  const ShapeCosts costs = estimator.CostShape(shape);
  const CostContext& context = estimator.context();
  const Calibration& calibration = estimator.calibration();

  StepSpec spec;
  spec.schedule = std::move(schedule);
  MILLWRIGHT_CHECK(spec.schedule.pipeline == plan.pipeline);
  std::vector<int> held_stages(std::size_t(plan.pipeline));
  for (int rank : spec.schedule.rank_of_stage) ++held_stages[std::size_t(rank)];
  if (std::count(held_stages.begin(), held_stages.end(), held_stages[0]) != plan.pipeline) {
    throw ConfigError(
        fmt::format("{}: some ranks hold more stages than others, and a step splits "
                    "the layers evenly",
                    spec.schedule.file));
  }
  const int stages = spec.schedule.stages_per_direction();
  if (stages % plan.pipeline != 0) {
    throw ConfigError(fmt::format("{}: {} stages in a direction are not a multiple of {} ranks",
                                  spec.schedule.file, stages, plan.pipeline));
  }
  if (stages > model.num_layers && stages != model.num_layers + 2) {
    throw ConfigError(fmt::format("schedule {} cuts the model into {} stages, and {} has {} layers",
                                  spec.schedule.name, stages, model.name, model.num_layers));
  }
  const bool split = std::any_of(
      spec.schedule.orders.begin(), spec.schedule.orders.end(), [](const std::vector<Pass>& order) {
        return std::any_of(order.begin(), order.end(), [](const Pass& pass) {
          return pass.kind == PassKind::kBackwardInput || pass.overlaps_next;
        });
      });
  if (plan.Offloads() && split) {
    throw ConfigError(fmt::format(
        "schedule {} splits the backward pass, or runs passes in pairs, which does not go with "
        "offloaded layers",
        spec.schedule.name));
  }
  const std::int64_t micro_batches =
      training.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
  MILLWRIGHT_CHECK(micro_batches == spec.schedule.micro_batches);

  // Layers that are recomputed in full, or offloaded, and others of the same kind are two kinds
  // here, and those of another rank's choice are more.
  const std::vector<Recompute> choices = plan.Recomputes();
  const std::vector<LayerKind>& kinds = estimator.kinds();
  const auto add_kinds = [&](const Recompute& recompute) {
    const std::vector<TreatedLayer> treated = costs.Treat(recompute);
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const std::vector<Operator> operators = LayerOperators(model, kinds[k], shape, training);
      LayerPasses layer = PassesOf(operators, paths, context, shape, recompute);
      const TreatedLayer& t = treated[k];
      layer.saved = t.saved;
      layer.held_for_weight = t.waiting;
      layer.offloaded = t.offloaded;
      layer.copy = t.copy;
      layer.working_set = t.working_set;
      spec.kinds.push_back(std::move(layer));
    }
  };
  std::vector<int> first_kind;  // of each choice: of the layers that it treats
  for (const Recompute& recompute : choices) {
    first_kind.push_back(int(spec.kinds.size()));
    add_kinds(recompute);
    if (recompute.full_layers > 0 || recompute.offload_layers > 0) add_kinds(OfOthers(recompute));
  }
  const std::vector<Operator> embedding = EmbeddingOperators(model, shape, training);
  spec.embedding = PassesOf(embedding, paths, context, shape, {});
  spec.embedding.saved = costs.embedding_saved;
  const std::vector<Operator> head = HeadOperators(model, shape, training);
  spec.head = PassesOf(head, paths, context, shape, {});
  for (int module = 0; module < model.mtp_num_layers; ++module) {
    const std::vector<Operator> mtp = MtpOperators(model, shape, training);
    for (const auto* operators : {&mtp, &head}) {
      const LayerPasses more = PassesOf(*operators, paths, context, shape, {});
      Append(spec.head.forward, more.forward);
      Append(spec.head.backward, more.backward);
      Append(spec.head.backward_input, more.backward_input);
      Append(spec.head.backward_weight, more.backward_weight);
    }
  }
  spec.head.saved = costs.head_saved;
  spec.head.held_for_weight = costs.head_waiting;
  spec.head.working_set = costs.head_working_set;

  // Stages, in the order in which a micro-batch passes them.
  const std::vector<std::vector<int>> kinds_of_stage =
      KindsOfStages(model, spec.schedule, plan.stage_layers);
  for (std::size_t s = 0; s < kinds_of_stage.size(); ++s) {
    const Recompute& recompute = plan.RecomputeOf(spec.schedule.rank_of_stage[s]);
    const auto choice = std::find(choices.begin(), choices.end(), recompute) - choices.begin();
    const bool partly = recompute.full_layers > 0 || recompute.offload_layers > 0;
    std::vector<int>& out = spec.layers_of_stage.emplace_back(kinds_of_stage[s]);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool is_treated = recompute.offload_layers > 0
                                  ? IsSpread(int(i), int(out.size()), recompute.offload_layers)
                                  : int(i) < recompute.full_layers;
      out[i] += first_kind[std::size_t(choice)];
      if (partly && !is_treated) out[i] += int(kinds.size());
    }
  }

  if (plan.pipeline > 1) {
    spec.transfer = estimator.Transfer(costs, estimator.PipelineProfile(plan));
    spec.transfer_payload = costs.sent;
  }

  // Data parallelism, at the rate of the first rank's dense parameters.
  const DataGroups groups =
      DataGroupsOf(plan, [&](std::int64_t stride, std::int64_t ranks) -> const PathProfile& {
        return estimator.Profile(plan, stride, ranks);
      });
  std::vector<RankParameters> held(std::size_t(plan.pipeline));
  for (int s = 0; s < stages; ++s) {
    RankParameters& rank = held[std::size_t(spec.schedule.rank_of_stage[std::size_t(s)])];
    for (int kind : kinds_of_stage[std::size_t(s)]) {
      rank += costs.kind_parameters[std::size_t(kind)];
    }
    if (s == 0) rank += costs.embedding_parameters;
    if (s + 1 == stages &&
        spec.schedule.rank_of_stage[std::size_t(s)] != spec.schedule.rank_of_stage[0] &&
        (model.tied_embeddings || model.mtp_num_layers > 0)) {
      rank += costs.token_table;
    }
    if (s + 1 == stages) rank += costs.head_parameters;
  }
  // The first rank may hold dense layers alone.
  RankParameters whole = held[0];
  for (const RankParameters& rank : held) whole.expert = std::max(whole.expert, rank.expert);
  const DataShares data(whole, plan, groups, training, calibration);
  const std::size_t layer_kinds = kinds.size();
  for (std::size_t k = 0; k < spec.kinds.size(); ++k) {
    const RankParameters& part = costs.kind_parameters[k % layer_kinds];
    data.Give(spec.kinds[k], part);
    if (plan.zero == 3) data.GiveShardPasses(spec.kinds[k], part);
  }
  data.Give(spec.embedding, costs.embedding_parameters);
  data.Give(spec.head, costs.head_parameters);
  if (plan.zero == 3) {
    data.GiveShardPasses(spec.embedding, costs.embedding_parameters);
    data.GiveShardPasses(spec.head, costs.head_parameters);
    spec.embedding.stays_gathered = spec.head.stays_gathered = true;
  }
  AddSums(estimator, plan, costs, groups, kinds_of_stage, spec);
  for (const RankParameters& rank : held) {
    spec.optimizer.push_back(estimator.scalar_sum() + OptimizerTime(rank, plan.zero, groups,
                                                                    estimator.cluster().gpu(),
                                                                    calibration));
  }
  spec.compute_time = ComputeTimes(estimator.cluster().config(), plan);
  spec.contention = calibration.overlap.dp_exposed;
  spec.shard_contention = calibration.overlap.fsdp_contention;
  spec.bucket_parameters = BucketParameters(double(groups.dense_shard));
  spec.overlap_gather = training.overlap_param_gather;
  spec.overlap_reduce = training.overlap_grad_reduce;
  // With one stage a rank Megatron-LM has nothing to overlap a transfer with.
  spec.overlap_transfers = training.overlap_p2p || stages == plan.pipeline;
  return spec;
}

void CheckSize(const StepSpec& spec) {
  // A simulated step of 3.2 M tasks took 86 at its peak, waits and timeline included.
  constexpr double kBytesOfTask = 100;
  constexpr double kMostTasks = 4e9;  // ids are 32 bits
  const double tasks = TaskCount(spec);
  const Bytes needed(tasks * kBytesOfTask);
  const Bytes memory = MachineMemory();
  if (needed <= memory && tasks < kMostTasks) return;
  throw ConfigError(fmt::format(
      "a step of {} micro-batches is about {} tasks, which need {} of this machine's {}; estimate "
      "answers it without a graph, and a larger --micro-batch has fewer tasks",
      FormatInteger(spec.schedule.micro_batches), FormatCount(tasks), FormatBytes(needed),
      FormatBytes(memory)));
}

int SimulatedStep::fullest() const {
  return int(std::max_element(peak.begin(), peak.end()) - peak.begin());
}

int SimulatedStep::slowest() const {
  const auto longer = [](const RankTime& a, const RankTime& b) {
    return a.total_busy() < b.total_busy();
  };
  return int(std::max_element(ranks.begin(), ranks.end(), longer) - ranks.begin());
}

SimulatedStep SimulateStep(const Estimator& estimator, const ParallelConfig& plan,
                           const ScheduleChoice& schedule) {
  return SimulateStep(estimator, plan, StepSpecOf(estimator, plan, schedule));
}

namespace {

// Of `estimate`'s plan.
Timeline SimulateGraph(const Estimator& estimator, const Estimate& estimate, const StepSpec& spec,
                       const TaskGraph& graph) {
  Timeline timeline = Simulate(graph);
  if (!timeline.deadlock.empty()) {
    if (!spec.schedule.file.empty()) {
      throw ConfigError(spec.schedule.file + ": " + timeline.deadlock);
    }
    throw InternalError("a built-in schedule deadlocks:\n" + timeline.deadlock);
  }
  // No result beats physics: all FLOPs at the peak.  (The full convention counts more than runs.)
  MILLWRIGHT_CHECK(estimator.training().mfu_convention == MfuConvention::kFull ||
                   estimate.hfu * (estimate.step / timeline.makespan) <= 1);
  return timeline;
}

// What the framework's allocator holds, and what it keeps beside that, and all else.
Bytes PeakOf(const StageMemory& fixed, Bytes most_of_step, double slack) {
  return (fixed.allocated() + most_of_step) * (1 + slack) + fixed.total() - fixed.allocated();
}

}  // namespace

SimulatedStep SimulateStep(const Estimator& estimator, const ParallelConfig& plan, StepSpec spec) {
  SimulatedStep result;
  result.spec = std::move(spec);
  result.graph = BuildStepGraph(result.spec);
  result.timeline = SimulateGraph(estimator, estimator.Itemise(plan), result.spec, result.graph);
  result.fixed = HeldByRanks(estimator, plan, result.spec.schedule);
  for (const StageMemory& memory : result.fixed) {
    result.ranks.push_back(TimeOfRank(result.graph, result.timeline, memory.stage));
  }
  result.slack = DeviceOverheadsOf(estimator.training()).allocator_slack;
  result.SetPeaks();
  return result;
}

SimulatedCost CostOfStep(const Estimator& estimator, const Estimate& estimate,
                         const StepSpec& spec) {
  const Timeline timeline =
      SimulateGraph(estimator, estimate, spec, BuildStepGraph(spec, StepDetail::kMerged));
  const double slack = DeviceOverheadsOf(estimator.training()).allocator_slack;
  SimulatedCost cost{.step = timeline.makespan, .peak{}};
  for (const StageMemory& fixed : HeldByRanks(estimator, estimate.plan, spec.schedule)) {
    const Bytes most = timeline.peak[std::size_t(fixed.stage)];
    cost.peak = std::max(cost.peak, PeakOf(fixed, most, slack));
  }
  return cost;
}

void SimulatedStep::SetPeaks() {
  peak.clear();
  for (std::size_t rank = 0; rank < fixed.size(); ++rank) {
    peak.push_back(PeakOf(fixed[rank], timeline.peak[rank], slack));
  }
}

}  // namespace millwright
