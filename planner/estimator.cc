// SPDX-License-Identifier: Apache-2.0
#include "planner/estimator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "planner/fullest_rank.h"
#include "sim/schedule_timing.h"

namespace millwright {
namespace {

// A pass of one layer as what runs one after the other: compute, or communication of a stream.
class PieceTimes {
 public:
  enum Stream : std::uint8_t { kCompute, kTensor, kContext, kExpert, kStreams };
  struct Piece {
    Seconds time;
    Stream stream;
    Seconds slows;  // compute of the other pass
  };
  void AddForward(const LayerCost& layer, ModuleMask modules, bool all) {
    for (const OperatorCost& op : layer.operators) {
      if (all || (op.modules & modules) != 0) Add(op.forward, op.sm_share);
    }
    if (all) Add(layer.launch_wait.forward, 0);
  }
  void AddBackward(const LayerCost& layer) {
    for (auto op = layer.operators.rbegin(); op != layer.operators.rend(); ++op) {
      Add(op->backward, op->sm_share);
    }
    Add(layer.launch_wait.backward, 0);
  }
  const std::vector<Piece>& pieces() const { return pieces_; }
  void Reserve(std::size_t operators) { pieces_.reserve(2 * operators + 2); }

 private:
  void Add(const PassTime& time, double sm_share) {
    Add(time.compute, kCompute, 0);
    Add(time.tensor, kTensor, sm_share);
    Add(time.context, kContext, sm_share);
    Add(time.expert, kExpert, sm_share);
  }
  void Add(Seconds time, Stream stream, double sm_share) {
    if (time.value <= 0) return;
    if (pieces_.empty() || pieces_.back().stream != stream) {
      pieces_.push_back({.time{}, .stream = stream, .slows{}});
    }
    pieces_.back().time += time;
    pieces_.back().slows += sm_share * time;
  }
  std::vector<Piece> pieces_;
};

// Two layers' forwards and other layers' backwards, launched in turn as sim/step_graph does, and
// four of each, which begin like the two.
struct Together {
  Seconds two, four;
};
Together TimeTogether(const PieceTimes& forward, const PieceTimes& backward) {
  std::array<Seconds, PieceTimes::kStreams> free{};
  Seconds end[2];
  const auto two_more = [&] {
    const std::size_t count[] = {2 * forward.pieces().size(), 2 * backward.pieces().size()};
    std::size_t at[] = {0, 0};
    while (at[0] < count[0] || at[1] < count[1]) {
      const bool first =
          at[1] >= count[1] || (at[0] < count[0] && at[0] * count[1] <= at[1] * count[0]);
      const std::size_t pass = first ? 0 : 1;
      const std::vector<PieceTimes::Piece>& pieces = (first ? forward : backward).pieces();
      const PieceTimes::Piece& piece = pieces[at[pass]++ % pieces.size()];
      end[pass] = std::max(end[pass], free[piece.stream]) + piece.time;
      free[piece.stream] = end[pass];
      free[PieceTimes::kCompute] += piece.slows;
    }
    return std::max(end[0], end[1]);
  };
  const Seconds two = two_more();
  return {.two = two, .four = two_more()};
}

// Takes from each kind of communication its share of what runs under other work.
void Hide(Seconds hidden, StepTime& time) {
  Seconds& recompute = time[TimeItem::kRecompute];
  Seconds exchanged;
  constexpr TimeItem kExchanges[] = {TimeItem::kTensor, TimeItem::kContext, TimeItem::kExpert};
  for (TimeItem item : kExchanges) exchanged += time[item];
  if (hidden > exchanged) {
    recompute -= hidden - exchanged;  // the communication in it
    hidden = exchanged;
  }
  if (hidden.value <= 0) return;
  const double left = 1 - hidden / exchanged;
  for (TimeItem item : kExchanges) time[item] = left * time[item];
}

Calibration CalibrationOf(const TrainingConfig& training, const Cluster& cluster,
                          const EndToEnd& end_to_end) {
  Calibration calibration =
      Adjusted(CalibrationFor(cluster.gpu()), end_to_end, cluster.gpu(), cluster.gpus(), training);
  calibration.compute_speed = cluster.config().slowest().compute;
  return calibration;
}

}  // namespace

std::string_view Name(TimeItem item) {
  switch (item) {
    case TimeItem::kCompute:
      return "compute";
    case TimeItem::kRecompute:
      return "recompute";
    case TimeItem::kTensor:
      return "tensor-parallel communication";
    case TimeItem::kContext:
      return "context-parallel communication";
    case TimeItem::kExpert:
      return "expert-parallel communication";
    case TimeItem::kHost:
      return "copies to and from the host";
    case TimeItem::kPipeline:
      return "pipeline transfers";
    case TimeItem::kData:
      return "data-parallel communication";
    case TimeItem::kBubble:
      return "pipeline bubble";
    case TimeItem::kOptimizer:
      return "optimizer";
  }
  return {};
}

std::string_view JsonKey(TimeItem item) {
  switch (item) {
    case TimeItem::kCompute:
      return "compute";
    case TimeItem::kRecompute:
      return "recompute";
    case TimeItem::kTensor:
      return "exposed_tp";
    case TimeItem::kContext:
      return "exposed_cp";
    case TimeItem::kExpert:
      return "exposed_ep";
    case TimeItem::kHost:
      return "exposed_host";
    case TimeItem::kPipeline:
      return "exposed_pp";
    case TimeItem::kData:
      return "exposed_dp";
    case TimeItem::kBubble:
      return "bubble";
    case TimeItem::kOptimizer:
      return "optimizer";
  }
  return {};
}

Seconds StepTime::total() const {
  Seconds sum;
  for (Seconds s : items) sum += s;
  return sum;
}

std::vector<TreatedLayer> ShapeCosts::Treat(const Recompute& recompute) const {
  std::vector<TreatedLayer> treated;
  treated.reserve(kinds.size());
  for (const LayerCost& layer : kinds) {
    PassTime again;  // the forward of what is recomputed
    TreatedLayer t{.forward = layer.forward.total(),
                   .backward = layer.backward.total(),
                   .plain_backward = layer.backward.total(),
                   .weight = layer.backward_weight,
                   .split_more = layer.split_more,
                   .saved = layer.Saved(0),
                   .waiting = layer.held_for_weights,
                   .working_set = layer.largest_gradient};
    switch (recompute.granularity) {
      case RecomputeGranularity::kNone:
        break;
      case RecomputeGranularity::kSelective: {
        const ModuleMask mask = MaskOf(recompute.modules);
        again = layer.Recomputed(mask);
        // Modules come back one after the other; the largest sets the peak.
        Bytes alive;
        for (RecomputeModule m : recompute.modules) {
          alive = std::max(alive, layer.Saved(0) - layer.Saved(Mask(m)));
        }
        t.saved = layer.Saved(mask);
        t.working_set += alive;
        break;
      }
      case RecomputeGranularity::kFull:
        again = layer.forward;
        t.working_set += t.saved - layer.input;
        t.saved = layer.input;
        break;
    }
    t.backward += again.total();
    t.pair = (layer.forward + again + layer.backward).longest();
    if (recompute.offload_layers > 0) {
      t.offloaded = t.saved;
      t.saved = Bytes(0);
      t.copy = t.offloaded / to_host;
    }
    treated.push_back(t);
  }
  return treated;
}

void ShapeCosts::Pair(const Recompute& recompute, std::vector<TreatedLayer>& treated) const {
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const LayerCost& layer = kinds[k];
    PieceTimes forward, backward;
    forward.Reserve(layer.operators.size());
    backward.Reserve(2 * layer.operators.size());
    forward.AddForward(layer, 0, true);
    if (recompute.granularity != RecomputeGranularity::kNone) {
      backward.AddForward(layer, MaskOf(recompute.modules),
                          recompute.granularity == RecomputeGranularity::kFull);
    }
    backward.AddBackward(layer);
    // In a row, layers soon take equally long.
    const auto [two, four] = TimeTogether(forward, backward);
    treated[k].pair = std::max(treated[k].pair, 0.5 * (four - two));
    treated[k].pair_ends = two - 2 * treated[k].pair;
  }
}

std::vector<int> SomeLayers(const std::vector<StageContent>& stages, const Recompute& recompute) {
  return SomeLayers(stages, std::span(&recompute, 1));
}

std::vector<int> SomeLayers(const std::vector<StageContent>& stages,
                            std::span<const Recompute> choices) {
  std::vector<int> some;
  const auto of_some = [](const Recompute& r) { return r.full_layers > 0 || r.offload_layers > 0; };
  if (std::none_of(choices.begin(), choices.end(), of_some)) return some;
  for (const StageContent& stage : stages) {
    const Recompute& recompute = choices[std::size_t(stage.treatment)];
    const std::vector<int> one = recompute.offload_layers > 0
                                     ? stage.SpreadLayers(recompute.offload_layers)
                                     : stage.LeadingLayers(recompute.full_layers);
    some.insert(some.end(), one.begin(), one.end());
  }
  return some;
}

TreatedStages TreatStages(const ShapeCosts& shape, const std::vector<StageContent>& stages,
                          std::span<const Recompute> choices) {
  TreatedStages all;
  const auto add = [&](const Recompute& choice, std::vector<TreatedLayer>& layers) {
    std::vector<TreatedLayer> treated = shape.Treat(choice);
    shape.Pair(choice, treated);
    layers.insert(layers.end(), treated.begin(), treated.end());
  };
  for (const Recompute& choice : choices) {
    add(choice, all.treated);
    add(OfOthers(choice), all.rest);
  }
  all.some = SomeLayers(stages, choices);
  return all;
}

std::vector<TreatedChoice> Undominated(const std::vector<TreatedChoice>& choices, bool pairs) {
  const auto costs = [&](const TreatedLayer& layer) {
    return std::array{layer.backward.value, layer.saved.value, layer.working_set.value,
                      pairs ? layer.pair.value : 0, pairs ? layer.pair_ends.value : 0};
  };
  const auto no_better = [&](const TreatedChoice& a, const TreatedChoice& b) {
    bool equal = true;
    for (std::size_t k = 0; k < a.treated.size(); ++k) {
      const auto x = costs(a.treated[k]), y = costs(b.treated[k]);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] < y[i]) return false;
        equal = equal && x[i] == y[i];
      }
    }
    return !equal || &a > &b;  // of equals the first stays
  };
  std::vector<TreatedChoice> kept;
  for (const TreatedChoice& a : choices) {
    if (std::none_of(choices.begin(), choices.end(),
                     [&](const TreatedChoice& b) { return &a != &b && no_better(a, b); })) {
      kept.push_back(a);
    }
  }
  return kept;
}

Recompute OfOthers(const Recompute& recompute) {
  if (recompute.granularity == RecomputeGranularity::kFull) return {};
  Recompute others = recompute;
  others.offload_layers = 0;
  return others;
}

Estimator::Estimator(const ModelConfig& model, const TrainingConfig& training,
                     const Cluster& cluster, const EndToEnd& end_to_end)
    : Estimator(model, training, cluster, CalibrationOf(training, cluster, end_to_end)) {}

Estimator::Estimator(const ModelConfig& model, const TrainingConfig& training,
                     const Cluster& cluster, const Calibration& calibration)
    : model_(model),
      training_(training),
      cluster_(cluster),
      calibration_(std::make_unique<Calibration>(calibration)),
      context_{.gpu = cluster.gpu(),
               .calibration = *calibration_,
               .training = training,
               .moe_topk = model.moe.topk,
               .moe_num_groups = model.moe.num_groups,
               .moe_topk_groups = model.moe.topk_groups},
      kinds_(model.distinct_kinds()),
      layers_(kinds_.size()) {
  for (const LayerRun& run : model.layers) {
    const auto kind = std::find(kinds_.begin(), kinds_.end(), run.kind) - kinds_.begin();
    layers_[std::size_t(kind)] +=
        run.count + (&run == &model.layers.back() ? model.mtp_num_layers : 0);
  }
  scalar_sum_ = CostOfCollective(CollectiveKind::kAllReduce, Bytes(4), Profile(1, cluster.gpus()),
                                 calibration_->collective)
                    .time;
}

const PathProfile& Estimator::Profile(std::int64_t stride, std::int64_t ranks) const {
  const auto [entry, inserted] = profiles_.try_emplace(stride << 32 | ranks);
  if (inserted && ranks > 1) {
    entry->second = cluster_.Profile(StridedGroup{.stride = int(stride), .ranks = int(ranks)});
  }
  return entry->second;
}

const PathProfile& Estimator::Profile(const ParallelConfig& plan, std::int64_t stride,
                                      std::int64_t ranks) const {
  const std::int64_t block = std::int64_t{1} * plan.tensor * plan.context;
  const std::int64_t plane = block * plan.data;
  if (!plan.placed_otherwise() || stride * ranks <= block || stride * ranks > plane) {
    return Profile(GpuOf(plan, stride), ranks);
  }
  if (stride % block == 0) return Profile(stride * plan.pipeline, ranks);
  const auto [entry, inserted] = scattered_.try_emplace({block, plan.pipeline, stride, ranks});
  if (inserted) {
    std::vector<int> gpus(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      gpus[i] = int(GpuOf(plan, std::int64_t(i) * stride));
    }
    entry->second = cluster_.Profile(gpus);
  }
  return entry->second;
}

const PathProfile& Estimator::PipelineProfile(const ParallelConfig& plan) const {
  return Profile(plan, std::int64_t{1} * plan.tensor * plan.context * plan.data, plan.pipeline);
}

Seconds Estimator::TiedSum(const ParallelConfig& plan, const ShapeCosts& shape) const {
  // As far apart as the pipeline reaches.
  PathProfile pair = PipelineProfile(plan);
  pair.ranks = 2;
  pair.domains = std::min(2, pair.domains);
  pair.min_ranks_per_domain = pair.max_ranks_per_domain = pair.domains == 2 ? 1 : 2;
  return CostOfCollective(CollectiveKind::kAllReduce,
                          Bytes(shape.token_table.dense * training_.gradient_bytes), pair,
                          calibration_->collective)
      .time;
}

Seconds Estimator::Transfer(const ShapeCosts& shape, const PathProfile& path) const {
  const CollectiveCalibration& c = calibration_->collective;
  const Seconds sent = CostOfCollective(CollectiveKind::kSendRecv, shape.sent, path, c).time;
  if (shape.sent == shape.boundary) return sent;
  return sent + CostOfCollective(CollectiveKind::kAllGather, shape.boundary,
                                 Profile(1, shape.shape.tensor), c)
                    .time;
}

std::vector<StageContent> StagesOfPlan(const ModelConfig& model, const ParallelConfig& plan) {
  std::vector<StageContent> stages =
      StagesOf(model, plan.pipeline, RankOfStage(ScheduleOf(plan, 1)), CopiesOfModel(plan.schedule),
               plan.stage_layers);
  const std::vector<Recompute> choices = plan.Recomputes();
  for (StageContent& stage : stages) {
    const auto own = std::find(choices.begin(), choices.end(), plan.RecomputeOf(stage.ranks[0]));
    stage.treatment = int(own - choices.begin());
  }
  return stages;
}

const ScheduleForms* Estimator::Forms(const ScheduleChoice& choice) const {
  if (FollowsFromStages(choice.kind)) return {};
  const ScheduleChoice shared = ScheduleForms::Shared(choice);
  const ScheduleForms*& forms = forms_[KnownForms::KeyOf(shared)];
  if (forms == nullptr) forms = &known_forms_->Of(shared);
  return forms;
}

std::vector<Estimator> EstimatorsFor(const ModelConfig& model, const TrainingConfig& training,
                                     const Cluster& cluster, int threads) {
  std::vector<Estimator> estimators;
  estimators.reserve(std::size_t(threads));
  for (int i = 0; i < threads; ++i) {
    estimators.emplace_back(model, training, cluster);
    estimators.back().known_forms_ = estimators.front().known_forms_;
  }
  return estimators;
}

const PipelineSchedule& Estimator::Orders(const ScheduleChoice& choice) const {
  const KnownForms::Key key = KnownForms::KeyOf(choice);
  const auto known = orders_.find(key);
  return known != orders_.end() ? known->second
                                : orders_.emplace(key, BuildSchedule(choice)).first->second;
}

LayerPaths Estimator::PathsOf(const LayerShape& shape) const {
  return {
      .tensor = Profile(1, shape.tensor),
      .ring = Profile(std::int64_t{1} * shape.tensor * shape.ulysses_ranks(), shape.ring_ranks()),
      .expert = Profile(shape.expert_tensor, shape.expert),
      .expert_tensor = Profile(1, shape.expert_tensor),
      .ulysses = Profile(shape.tensor, shape.ulysses_ranks())};
}

ShapeCosts Estimator::CostShape(const LayerShape& shape) const {
  const LayerPaths paths = PathsOf(shape);
  const auto parameters = [&](const std::vector<Weight>& weights) {
    return ParametersPerRank(weights, model_, shape.tensor, shape.expert, shape.expert_tensor);
  };
  const auto partial = [&](const std::vector<Weight>& weights) {
    return PartialGradientsOf(weights, model_, shape.tensor, shape.sequence_parallel);
  };
  ShapeCosts costs{.shape = shape};
  for (const LayerKind& kind : kinds_) {
    costs.kinds.push_back(
        CostOfLayer(LayerOperators(model_, kind, shape, training_), paths, context_));
    costs.kind_parameters.push_back(parameters(LayerWeights(model_, kind)));
    costs.kind_partial.push_back(partial(LayerWeights(model_, kind)));
    const LayerCost& layer = costs.kinds.back();
    costs.least_layer = std::max(costs.least_layer, layer.input + layer.largest_gradient);
  }
  const LayerCost embedding =
      CostOfLayer(EmbeddingOperators(model_, shape, training_), paths, context_);
  costs.embedding_forward = embedding.forward;
  costs.embedding_backward = embedding.backward;
  costs.embedding_saved = embedding.Saved(0);
  costs.embedding_parameters = parameters(EmbeddingWeights(model_));
  costs.token_table = parameters({EmbeddingWeights(model_).front()});

  const std::vector<Operator> head_operators = HeadOperators(model_, shape, training_);
  const LayerCost head = CostOfLayer(head_operators, paths, context_);
  costs.head_forward = head.forward;
  costs.head_backward = head.backward;
  costs.head_weight = head.backward_weight;
  costs.head_split_more = head.split_more;
  costs.head_waiting = head.held_for_weights;
  costs.head_saved = head.Saved(0);
  costs.head_working_set = head.largest_gradient;
  costs.head_parameters = parameters(HeadWeights(model_));
  costs.head_partial = partial(HeadWeights(model_));
  if (model_.mtp_num_layers > 0) {
    const LayerCost mtp = CostOfLayer(MtpOperators(model_, shape, training_), paths, context_);
    const double modules = model_.mtp_num_layers;
    costs.head_forward += modules * (head.forward + mtp.forward);
    costs.head_backward += modules * (head.backward + mtp.backward);
    costs.head_weight += modules * (head.backward_weight + mtp.backward_weight);
    costs.head_split_more += modules * (head.split_more + mtp.split_more);
    costs.head_waiting += modules * (head.held_for_weights + mtp.held_for_weights);
    costs.head_saved += modules * (head.Saved(0) + mtp.Saved(0));
    costs.head_parameters += modules * parameters(MtpWeights(model_));
    costs.head_partial += modules * partial(MtpWeights(model_));
  }
  PassTime work =
      costs.embedding_forward + costs.embedding_backward + costs.head_forward + costs.head_backward;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    work += double(layers_[k]) * (costs.kinds[k].forward + costs.kinds[k].backward);
  }
  costs.work = work.total();
  costs.overlapped_work = work.longest();
  costs.to_host = calibration_->host_efficiency * cluster_.config().ToHost();
  const double tokens =
      double(shape.micro_batch_size) * double(shape.seq_length) / double(shape.context);
  costs.boundary = Bytes(kParameterWidth * tokens * double(model_.hidden_size) /
                         (shape.sequence_parallel ? shape.tensor : 1));
  // Software of 2021 cuts what tensor ranks hold alike, and gathers it where it arrives
  // (Megatron-LM's scatter_gather_tensors_in_pipeline; DeepSpeed's pipe_partitioned).
  const bool scattered = Of2021(training_.framework) && !shape.sequence_parallel;
  costs.sent = (scattered ? 1.0 / shape.tensor : 1.0) * costs.boundary;
  return costs;
}

LeastWork Estimator::LeastWorkOf(const LayerShape& shape) const {
  const std::size_t most =
      std::size_t(std::max_element(layers_.begin(), layers_.end()) - layers_.begin());
  const std::vector<Operator> operators = LayerOperators(model_, kinds_[most], shape, training_);
  const LayerCost layer = CostOfLayer(operators, PathsOf(shape), context_);
  PassTime shared;
  for (std::size_t i = 0; i < operators.size(); ++i) {
    // Attention and the ring's part of it, and exchanges of heads: else all is as under any kind.
    if ((operators[i].modules & Mask(RecomputeModule::kCoreAttn)) != 0 ||
        operators[i].group == GroupKind::kUlysses) {
      continue;
    }
    shared += layer.operators[i].forward;
    shared += layer.operators[i].backward;
  }
  const double layers = layers_[most];
  const PassTime work = layer.forward + layer.backward;
  return {.work = layers * work.total(),
          .overlapped = layers * work.longest(),
          .shared_work = layers * shared.total(),
          .shared_overlapped = layers * shared.longest(),
          .least_layer = layer.input + layer.largest_gradient};
}

PipelineTerms::PipelineTerms(const Estimator& estimator, const ShapeCosts& shape,
                             const std::vector<StageContent>& stages, const ParallelConfig& plan)
    : PipelineTerms(Unscheduled(), estimator, shape, stages, plan) {
  Reschedule(plan);
}

StateFloor PipelineTerms::StateFloorOf(const Estimator& estimator, const ShapeCosts& shape,
                                       const std::vector<StageContent>& stages,
                                       const ParallelConfig& plan, bool if_divided) {
  return PipelineTerms(Unscheduled(), estimator, shape, stages, plan).FloorOfState(if_divided);
}

PipelineTerms::PipelineTerms(Unscheduled, const Estimator& estimator, const ShapeCosts& shape,
                             const std::vector<StageContent>& stages, const ParallelConfig& plan)
    : estimator_(estimator), shape_(shape), zero_(plan.zero) {
  const TrainingConfig& training = estimator.training();
  micro_batches_ =
      double(training.global_batch_size) / (double(plan.data) * double(plan.micro_batch_size));
  virtual_stages_ = plan.virtual_stages;
  ranks_ = plan.pipeline;
  copies_ = CopiesOfModel(plan.schedule);
  const double chunks = double(stages.front().chunks.size());
  unevenness_ = ChunkUnevenness(stages, plan.pipeline);
  if (plan.pipeline > 1) {
    boundary_transfer_ = estimator.Transfer(shape, estimator.PipelineProfile(plan));
  }

  const DataGroups groups =
      DataGroupsOf(plan, [&](std::int64_t stride, std::int64_t ranks) -> const PathProfile& {
        return estimator.Profile(plan, stride, ranks);
      });
  dense_shard_ = double(groups.dense_shard);
  expert_shard_ = double(groups.expert_shard);
  int communicators = 0;
  for (std::int64_t ranks :
       {std::int64_t{plan.tensor}, std::int64_t{plan.context}, std::int64_t{plan.pipeline},
        groups.dense_ranks, std::int64_t{plan.expert}, std::int64_t{plan.expert_tensor}}) {
    communicators += ranks > 1;
  }
  communicators += estimator.model().has_moe() && groups.expert_ranks > 1;

  const DeviceOverheads overheads = DeviceOverheadsOf(training);
  slack_ = overheads.allocator_slack;
  stages_.resize(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Stage& stage = stages_[s];
    const StageContent& content = stages[s];
    stage.content = &content;
    stage.fixed.stage = content.ranks.front();
    if (content.embedding) {
      stage.forward += shape.embedding_forward.total();
      stage.backward += shape.embedding_backward.total();
      stage.embedding_saved = shape.embedding_saved;
    }
    if (content.head) {
      stage.forward += shape.head_forward.total();
      stage.backward += shape.head_backward.total();
      stage.weight = shape.head_weight;
      stage.split_more = shape.head_split_more;
      stage.head_saved = shape.head_saved;
      stage.head_working_set = shape.head_working_set;
    }
    AddState(stage, plan, groups);
    if (plan.pipeline > 1) {
      // One activation and one gradient being received; twice that where sends overlap.
      stage.fixed[MemoryItem::kPipelineBuffers] =
          (chunks > 1 && training.overlap_p2p ? 4.0 : 2.0) * shape.boundary;
      if (training.framework == Framework::kMegatronDeepSpeed) {
        // Its engine keeps what every micro-batch in flight passed on.
        stage.fixed[MemoryItem::kPipelineBuffers] +=
            InFlight1F1B(content.ranks.front()) * shape.boundary;
      }
    }
    stage.fixed[MemoryItem::kWorkspace] = overheads.workspace;
    stage.fixed[MemoryItem::kGradientBuckets] += overheads.buckets;
    stage.fixed_allocated = stage.fixed.total();
    stage.fixed[MemoryItem::kNccl] = double(communicators) * overheads.nccl_per_group;
    stage.fixed[MemoryItem::kCudaContext] = overheads.cuda_context;
    stage.overhead = stage.fixed.total() - stage.fixed_allocated;
  }
}

void PipelineTerms::Reschedule(const ParallelConfig& plan) {
  const ScheduleChoice schedule = ScheduleOf(plan, std::int64_t(micro_batches_));
  forms_ = estimator_.Forms(schedule);
  const double warm_up =
      (virtual_stages_ - 1) * ranks_ + (ranks_ - 1) / (virtual_stages_ > 1 ? 1 : 2);
  in_a_row_ = forms_ != nullptr ? 1 : std::min(1.0, warm_up / (micro_batches_ * virtual_stages_));
  steady_ = estimator_.Forms(ScheduleForms::Steady(schedule));
  const TrainingConfig& training = estimator_.training();
  transfer_ = send_ = steady_transfers_ = fill_transfers_ = Seconds(0);
  if (forms_ != nullptr) {
    const double chunks = double(stages_.front().content->chunks.size());
    if (chunks > copies_ && !training.overlap_p2p) {
      send_ = chunks / copies_ * boundary_transfer_;
    } else {
      transfer_ = boundary_transfer_;
    }
  } else if (plan.virtual_stages == 1) {
    steady_transfers_ = 2 * (ranks_ - 1) / ranks_ * boundary_transfer_;
    fill_transfers_ = ExposedTransfers1F1B(plan.pipeline, 1) * boundary_transfer_;
  } else {
    const double exposed = training.overlap_p2p ? estimator_.calibration().overlap.p2p_exposed : 1;
    steady_transfers_ = exposed * 2 * virtual_stages_ * boundary_transfer_;
    fill_transfers_ = 2 * (ranks_ - 1) * boundary_transfer_;
  }
}

void PipelineTerms::SetInFlight() {
  HeldByStages held;
  for (const Stage& stage : stages_) held.push_back(HeldBy(stage, stage.content->ranks));
  held_ = std::make_shared<const HeldByStages>(std::move(held));
}

double PipelineTerms::InFlight1F1B(int rank) const {
  const double held = ChunksInFlight(int(ranks_), std::int64_t(micro_batches_), 1, rank);
  const bool one_more =
      estimator_.training().framework == Framework::kMegatronDeepSpeed && ranks_ > 1;
  return one_more ? std::min(held + 1, micro_batches_) : held;
}

// Model state, the buffers that sharding needs, and the communication and optimizer time that
// follow from the parameters of a stage.
void PipelineTerms::AddState(Stage& stage, const ParallelConfig& plan, const DataGroups& groups) {
  const TrainingConfig& training = estimator_.training();
  const CollectiveCalibration& c = estimator_.calibration().collective;
  const StageContent& content = *stage.content;

  RankParameters parameters, outside, largest;  // outside: embedding and head
  for (std::size_t k = 0; k < content.layers.size(); ++k) {
    const RankParameters& layer = shape_.kind_parameters[k];
    parameters += double(content.layers[k]) * layer;
    if (content.layers[k] > 0 && layer.total() > largest.total()) largest = layer;
  }
  const Bytes quantised = QuantisedWeights(parameters, training);
  const bool tied = estimator_.model().tied_embeddings || estimator_.model().mtp_num_layers > 0;
  if (content.embedding) outside += shape_.embedding_parameters;
  if (content.head) outside += shape_.head_parameters;
  // A tied embedding, or one that MTP modules use, lives with the first stage and again with the
  // last, unless one rank holds both.
  const bool tied_copy = tied && !(content.embedding && content.head);
  if (tied_copy && content.head) outside += shape_.token_table;
  parameters += outside;

  const ModelState state =
      StateOf(parameters, training, zero_, double(groups.dense_shard), double(groups.expert_shard));
  stage.fixed[MemoryItem::kWeights] = state.weights + quantised;
  stage.fixed[MemoryItem::kGradients] = state.gradients;
  // Ranks that hold the same stages in two copies of the model share what the optimizer keeps.
  stage.fixed[MemoryItem::kOptimizer] = state.optimizer / copies_;

  const DataSync sync = SyncOf(parameters, zero_, groups, training, estimator_.calibration());
  stage.grad_sync = sync.gradients;
  stage.param_sync = sync.parameters;
  stage.replica_sync = sync.replicas;
  if (tied_copy && (content.embedding || content.head)) {
    stage.tied_sync = estimator_.TiedSum(plan, shape_);
  }
  if (copies_ > 1) {
    stage.copies_sync =
        CopiesExchangeOf(parameters, plan, groups, training, c, estimator_.PipelineProfile(plan))
            .time;
  }
  if (plan.tensor > 1) {
    PartialGradients partial;
    for (std::size_t k = 0; k < content.layers.size(); ++k) {
      partial += double(content.layers[k]) * shape_.kind_partial[k];
    }
    if (content.head) partial += shape_.head_partial;
    const TensorSums sums =
        TensorSumsOf(partial, estimator_.model(), plan, groups, training, c,
                     [&](std::int64_t stride, std::int64_t ranks) -> const PathProfile& {
                       return estimator_.Profile(plan, stride, ranks);
                     });
    stage.tensor_sums = sums.replicated + sums.key_value;
  }

  if (zero_ >= 2) {
    // Unsharded gradients wait in two buckets (ZeRO-2), or of two layers (ZeRO-3).
    const double waiting =
        zero_ == 2 ? std::min(parameters.total(), 2 * BucketParameters(double(groups.dense_shard)))
                   : std::min(parameters.total(), 2 * largest.total());
    stage.fixed[MemoryItem::kGradientBuckets] = Bytes(waiting * training.gradient_bytes);
  }
  if (zero_ == 3) {
    // The layer computing and the one prefetched; embedding and head form the root unit, which
    // stays gathered.
    stage.fixed[MemoryItem::kGatherBuffers] =
        Bytes(kParameterWidth * (2 * largest.total() + outside.total()));
    const auto add = [&](double n, const RankParameters& unit) {
      const ShardPass pass = ShardPassOf(unit, groups, training, c);
      stage.gather += n * pass.gather;
      stage.reduce += n * pass.reduce;
    };
    stage.root_gather = ShardPassOf(outside, groups, training, c).gather;
    stage.reduce = ShardPassOf(outside, groups, training, c).reduce;
    for (std::size_t k = 0; k < content.layers.size(); ++k) {
      add(content.layers[k], shape_.kind_parameters[k]);
    }
  }

  const Seconds optimizer = OptimizerTime((1 / copies_) * parameters, zero_, groups,
                                          estimator_.cluster().gpu(), estimator_.calibration());
  optimizer_ = std::max(optimizer_, 2 * estimator_.scalar_sum() + optimizer);
}

Seconds PipelineTerms::ExposedData(const Stage& stage, const StageCost& cost) const {
  const TrainingConfig& training = estimator_.training();
  // What ZeRO-2 adds to every micro-batch is counted there; the last hides under less.
  const Seconds counted = zero_ == 2 ? cost.sharding : Seconds(0);
  // Of 1F1B and interleaved, gradients hide under what is recomputed too: of one chunk, so that
  // recomputing more never makes a step faster.
  const bool closed = zero_ <= 1 && forms_ == nullptr;
  const Seconds again =
      closed ? cost.backward - cost.backward_wait - cost.plain_backward : Seconds(0);
  const double chunks = closed ? virtual_stages_ : 1;
  Seconds gradients = stage.grad_sync + stage.replica_sync, parameters = stage.param_sync;
  if (training.overlap_grad_reduce) {
    gradients = Overlapped(gradients, chunks, cost.plain_backward, again, true);
  }
  if (training.overlap_param_gather) {
    parameters =
        Overlapped(parameters, chunks, cost.forward - cost.forward_wait, Seconds(0), false);
  }
  return std::max(Seconds(0), gradients - counted) + stage.tied_sync + stage.copies_sync +
         stage.tensor_sums + parameters;
}

// What `communication` of parameters or gradients costs where it goes under passes of a rank with
// so many chunks.  Compute goes on, slowed by it.  The chunk that is first or last in a step has
// its own pass, and `again` of it, to hide under, the others have as many as there are ranks.
// `slows_all`: gradients of every chunk slow compute; later chunks' parameters come while the rank
// waits for a first micro-batch.
Seconds PipelineTerms::Overlapped(Seconds communication, double chunks, Seconds pass, Seconds again,
                                  bool slows_all) const {
  const OverlapCalibration& o = estimator_.calibration().overlap;
  const double own = 1 / chunks;
  const Seconds slowed = o.dp_exposed * communication, left = communication - slowed;
  const Seconds window = o.dp_window * pass + own * again;
  const Seconds others =
      slows_all ? left - ranks_ * o.dp_window * pass : communication - ranks_ * pass;
  return (slows_all ? 1 : own) * slowed + own * std::max(Seconds(0), left - window) +
         (1 - own) * std::max(Seconds(0), others);
}

// Of several ranks of one content, what any of them may hold.
std::vector<PipelineTerms::Held> PipelineTerms::HeldBy(const Stage& stage,
                                                       std::span<const int> ranks) const {
  using Working = ChunksHeld::Working;
  const StageContent& content = *stage.content;
  std::vector<Held> all;
  const auto add = [&](std::span<const double> chunks, std::span<const double> waiting,
                       double at_head, double head_waiting, ChunksHeld::Working working) {
    const std::vector<double> none(content.layers.size());
    Held held{.layers = none,
              .waiting = none,
              .chunks = {chunks.begin(), chunks.end()},
              .at_head = working == Working::kHead ? std::max(0.0, at_head - 1) : at_head,
              .head_waiting = head_waiting,
              .working = working};
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      for (int kind : content.chunks[chunk]) {
        held.layers[std::size_t(kind)] += chunks[chunk];
        if (!waiting.empty()) held.waiting[std::size_t(kind)] += waiting[chunk];
      }
    }
    // The first of a model's chunks has its embedding: with two copies that of the second may be
    // this rank's last.
    held.embedding = ranks.front() == 0 || copies_ == 1 ? chunks.front() : chunks.back();
    all.push_back(std::move(held));
  };
  const std::int64_t micro_batches = std::int64_t(micro_batches_);
  if (forms_ != nullptr) {
    const auto in_flight = [&](std::vector<double> chunks) {
      for (double& chunk : chunks) chunk = forms_->InFlight(chunk, micro_batches_);
      return chunks;
    };
    for (int rank : ranks) {
      for (const ChunksHeld& held : forms_->Held(rank)) {
        add(in_flight(held.chunks), in_flight(held.waiting),
            forms_->InFlight(held.at_head, micro_batches_), held.head_waiting, held.working);
      }
    }
  } else if (virtual_stages_ == 1) {
    const double in_flight = InFlight1F1B(ranks.front());  // the first of them has most
    add({&in_flight, 1}, {}, 0, 0, Working::kHead);
  } else {
    add(ChunksHeldAtPeak(int(ranks_), micro_batches, int(virtual_stages_), ranks.front(), content),
        {}, 0, 0, Working::kHead);
  }
  return all;
}

namespace {

// Layers in flight that stay on the GPU, of a rank that offloads so many of its layers in all: of
// each chunk the same number, or all that it has.
double Staying(const StageContent& content, std::span<const double> micro_batches,
               double offloaded) {
  const auto first = [&](std::size_t of_chunk) {
    double layers = 0;
    for (const auto& chunk : content.chunks) layers += double(std::min(of_chunk, chunk.size()));
    return layers;
  };
  std::size_t of_chunk = 0;
  while (first(of_chunk) < offloaded) ++of_chunk;
  double staying = 0;
  for (std::size_t c = 0; c < content.chunks.size(); ++c) {
    const std::size_t layers = content.chunks[c].size();
    staying += micro_batches[c] * double(layers - std::min(of_chunk, layers));
  }
  return staying;
}

}  // namespace

// Where only some layers of a kind are recomputed, all chunks are taken to hold their share; of
// offloaded ones each chunk what it has of them.
PipelineTerms::Activations PipelineTerms::ActivationsOf(const Stage& stage, std::size_t s,
                                                        const RecomputeTerms& recompute,
                                                        const Held& held) const {
  Bytes saved = held.embedding * stage.embedding_saved + held.at_head * stage.head_saved +
                held.head_waiting * shape_.head_waiting;
  Bytes offloaded, of_layer, stays;
  double layers_offloaded = 0, in_flight = 0, staying = 0;
  bool several = false;  // micro-batches in flight
  const TreatedLayer* layer = recompute.TreatedOf(*stage.content);
  const TreatedLayer* rest = recompute.RestOf(*stage.content);
  for (std::size_t k = 0; k < held.layers.size(); ++k) {
    const int layers = stage.content->layers[k];
    if (layers == 0) continue;
    const int treated = recompute.Treated(*stage.content, s, k);
    const double share = double(treated) / layers;
    saved += held.layers[k] * share * layer[k].saved;
    if (treated < layers) stays += held.layers[k] * (1 - share) * rest[k].saved;
    staying += held.layers[k] * (1 - share);
    in_flight += held.layers[k];
    saved += held.waiting[k] * layer[k].waiting;  // as of the rest
    if (treated == 0 || layer[k].offloaded.value <= 0) continue;
    offloaded += held.layers[k] * share * layer[k].offloaded;
    of_layer = std::max(of_layer, layer[k].offloaded);
    layers_offloaded += treated;
    several = several || held.layers[k] > layers;
  }
  if (offloaded.value > 0 && staying > 0) {
    const double right = Staying(*stage.content, held.chunks, layers_offloaded);
    stays = right / staying * stays;
    offloaded = (in_flight - right) / (in_flight - staying) * offloaded;
  }
  saved += stays;
  if (offloaded.value > 0) {
    // Two layers' buffers on the way out, and two on the way in.  Of a single micro-batch one
    // that goes out is soon the one that comes back, and where its last layer stays another is
    // enough.
    const bool all = layers_offloaded == stage.content->total_layers;
    const double buffers = several ? 4 : all ? 2 : 1;
    saved += std::min(buffers, 2 * layers_offloaded) * of_layer;
  }
  return {saved, offloaded};
}

// A domain's GPUs are taken to be all of the pipeline rank that needs most.
Bytes PipelineTerms::OfDomain(Bytes host) const {
  return double(estimator_.cluster().gpus_per_domain()) * host;
}

PipelineTerms::StageCost PipelineTerms::CostOfStage(std::size_t s, const RecomputeTerms& recompute,
                                                    Ask ask) const {
  const Stage& stage = stages_[s];
  StageCost cost{
      .forward = stage.forward, .backward = stage.backward, .plain_backward = stage.backward};
  const auto add = [&](double n, const TreatedLayer& layer) {
    cost.forward += n * layer.forward;
    cost.backward += n * layer.backward;
    cost.plain_backward += n * layer.plain_backward;
    cost.copies += n * layer.copy;
    if (layer.copy.value > 0) cost.copied += n;
    if (n > 0) cost.layer_working_set = std::max(cost.layer_working_set, layer.working_set);
    if (forms_ == nullptr) return;
    cost.weight += n * layer.weight;
    cost.split_more += n * layer.split_more;
    cost.pair += n * layer.pair;
    if (n > 0) cost.pair_ends = std::max(cost.pair_ends, layer.pair_ends);
  };
  for (std::size_t k = 0; k < stage.content->layers.size(); ++k) {
    const int layers = stage.content->layers[k];
    const int treated = recompute.Treated(*stage.content, s, k);
    add(treated, recompute.TreatedOf(*stage.content)[k]);
    if (treated < layers) add(layers - treated, recompute.RestOf(*stage.content)[k]);
  }
  if (cost.copies.value > 0) WaitForCopies(stage, cost);
  if (forms_ != nullptr) FinishPasses(stage, cost);
  if (ask == Ask::kTimeAndMemory) SetMemory(stage, (*held_)[s], s, recompute, cost);

  if (zero_ == 2) {
    const bool overlapped = estimator_.training().overlap_grad_reduce;
    cost.sharding =
        overlapped ? Overlapped(stage.grad_sync, 1, cost.forward + cost.backward, Seconds(0), true)
                   : stage.grad_sync;
  }
  if (zero_ == 3) {
    const TrainingConfig& training = estimator_.training();
    const double contention = estimator_.calibration().overlap.fsdp_contention;
    const auto added = [&](Seconds compute, Seconds communication, bool overlapped) {
      if (!overlapped) return communication;
      return std::max(compute, communication) + contention * std::min(compute, communication) -
             compute;
    };
    cost.sharding =
        added(cost.forward, stage.gather + stage.root_gather, training.overlap_param_gather) +
        added(cost.backward, stage.gather + stage.reduce, training.overlap_grad_reduce);
  }
  return cost;
}

void PipelineTerms::SetMemory(const Stage& stage, std::span<const Held> held_by_it, std::size_t s,
                              const RecomputeTerms& recompute, StageCost& cost) const {
  // The head's tensors are gone before the layers' backward begins: whichever is larger.
  const Bytes at_head = stage.head_saved + stage.head_working_set;
  Bytes most;
  for (const Held& held : held_by_it) {
    const bool in_backward = held.working != ChunksHeld::Working::kNone;
    const bool head =
        held.working == ChunksHeld::Working::kHead && at_head > cost.layer_working_set;
    const Activations kept = ActivationsOf(stage, s, recompute, held);
    cost.host = std::max(cost.host, kept.on_host);
    const Bytes peak = kept.on_gpu + (!in_backward ? Bytes(0)
                                      : head       ? at_head
                                                   : cost.layer_working_set);
    if (peak <= most) continue;
    most = peak;
    cost.activations = kept.on_gpu;
    cost.in_backward = in_backward;
    cost.head_is_peak = head;
  }
  cost.peak = (stage.fixed_allocated + most) * (1 + slack_) + stage.overhead;
}

// A layer begins its forward when the copy of the one before the last has ended, and comes back
// while the one before it is run (sim/step_graph.h).  Of passes of one kind in a row each takes its
// copies' time at least.  Where forward and backward alternate, what two layers copy out drains
// under the backward, and the first of a backward's layers comes back under the forward; but on the
// rank with the head that is the forward of the same micro-batch, which must have copied it out.
void PipelineTerms::WaitForCopies(const Stage& stage, StageCost& cost) const {
  const double chunks = double(stage.content->chunks.size());
  const double layers = stage.content->total_layers, copied = cost.copied / chunks;
  const Seconds copy = (1 / cost.copied) * cost.copies;
  // Of one layer, and from one that is copied to the next.
  const Seconds forward = cost.forward - stage.forward, backward = cost.backward - stage.backward;
  const Seconds one_forward = (1 / layers) * forward, one_backward = (1 / layers) * backward;
  const Seconds forward_apart = (1 / cost.copied) * forward;
  const Seconds backward_apart = (1 / cost.copied) * backward;
  const auto at_least_none = [](Seconds time) { return std::max(Seconds(0), time); };

  const Seconds forward_waits =
      at_least_none(std::max(0.0, copied - 2) * at_least_none(copy - forward_apart) -
                    (forward_apart - one_forward));
  Seconds backward_waits = std::max(0.0, copied - 1) * at_least_none(copy - backward_apart);
  Seconds back_again;
  if (stage.content->head) {
    const Seconds out =
        one_forward + std::max(0.0, copied - 1) * std::max(copy, forward_apart) + copy;
    const Seconds needed = copied * forward_apart + forward_waits + stage.forward + stage.backward +
                           backward_apart - one_backward;
    back_again = at_least_none(out + copy - needed);
  }
  const double alternate = 1 - in_a_row_;
  cost.forward_wait =
      in_a_row_ * at_least_none(cost.copies - cost.forward) + alternate * chunks * forward_waits;
  cost.backward_wait = in_a_row_ * at_least_none(cost.copies - cost.backward) +
                       alternate * (chunks * backward_waits + back_again);
  // Both together take no less than the copies of either way.
  cost.forward_wait += at_least_none(
      cost.copies - (cost.forward + cost.forward_wait + cost.backward + cost.backward_wait));
  cost.forward += cost.forward_wait;
  cost.backward += cost.backward_wait;
}

// What a schedule that is not 1F1B asks of a rank besides.
void PipelineTerms::FinishPasses(const Stage& stage, StageCost& cost) const {
  cost.weight += stage.weight;
  cost.split_more += stage.split_more;
  cost.pair += stage.forward + stage.backward;  // with those nothing overlaps
  cost.pair += double(stage.content->chunks.size()) * cost.pair_ends;
  if (forms_->splits_backward()) {
    cost.backward += cost.split_more;
  } else {
    // All of it is one pass, of which this is the second half.
    cost.weight -= cost.split_more;
    cost.split_more = Seconds(0);
  }
  for (Seconds* time : {&cost.forward, &cost.backward, &cost.plain_backward, &cost.weight,
                        &cost.pair, &cost.forward_wait, &cost.backward_wait}) {
    *time = *time / copies_;
  }
  cost.forward += send_;
  cost.backward += send_;
}

template <PipelineTerms::Ask ask, class Each>
PipelineTerms::Ranks PipelineTerms::OverRanks(const RecomputeTerms& recompute,
                                              const Each& each) const {
  Ranks ranks;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageCost cost = CostOfStage(s, recompute, ask);
    const Seconds total = cost.total();
    const double like_it = double(stages_[s].content->ranks.size());
    ranks.sum += like_it * total;
    if (total > ranks.slowest) {
      ranks.slowest = total;
      ranks.slowest_stage = s;
    }
    if (forms_ != nullptr) {
      const RankPassCosts passes = PassCostsOf(cost);
      if (ranks.slowest_stage == s) ranks.slowest_passes = passes;
      ranks.passes += like_it * passes;
    }
    const Seconds data = ExposedData(stages_[s], cost);
    ranks.data = std::max(ranks.data, data);
    ranks.data_sum += like_it * data;
    ranks.peak = std::max(ranks.peak, cost.peak);
    ranks.host = std::max(ranks.host, cost.host);
    each(s, cost);
  }
  return ranks;
}

RankPassCosts PipelineTerms::PassCostsOf(const StageCost& cost) const {
  // What sharding adds goes with the passes that it is beside.
  const double share = cost.sharding / (cost.forward + cost.backward);
  const Seconds work = cost.forward + cost.backward;
  return {.forward = (1 + share) * cost.forward,
          .backward_input = (1 + share) * cost.backward - cost.weight,
          .backward_weight = cost.weight,
          .overlapped = share * work + std::min(work, cost.pair),
          .transfer = transfer_};
}

PipelineTerms::Makespan PipelineTerms::FormsMakespan(const Ranks& ranks) const {
  const double m = micro_batches_, pairs = forms_->OverlappedPairs(m);
  const RankPassCosts& slow = ranks.slowest_passes;
  const RankPassCosts others =
      ranks_ > 1 ? (1 / (ranks_ - 1)) * (ranks.passes + -1.0 * slow) : slow;
  const auto hidden = [&](const RankPassCosts& c) { return pairs * (c.work() - c.overlapped); };
  const auto own = [&](const RankPassCosts& c) { return m * c.work() - hidden(c); };
  RankPassCosts instant = others;
  instant.transfer = Seconds(0);
  Makespan result{.hidden = hidden(slow)};
  // Of equal ranks like the mean of the others: what is beside the work, and what of that are turns
  // that wait for each other, during which a slower rank may work.
  const Seconds makespan = forms_->Makespan(others, m);
  result.transfers = makespan - forms_->Makespan(instant, m);
  // Of few micro-batches not every one meets the pace of many: no more waits than there is beside
  // the work.
  const Seconds beside = makespan - result.transfers - own(others);
  const Seconds waits =
      std::clamp(m * steady_->Pace(others) - own(others), Seconds(0), std::max(Seconds(0), beside));
  const Seconds slower = own(slow) - own(others);
  result.total = makespan + std::max(Seconds(0), slower - waits);
  result.even = makespan;
  result.bubble = result.total - result.transfers - own(slow);
  return result;
}

PipelineTerms::Makespan PipelineTerms::MakespanOf(const Ranks& ranks) const {
  if (forms_ != nullptr) return FormsMakespan(ranks);
  // Micro-batches come at the pace of the slowest rank; or, where the others have no time to spare
  // for it, of what uneven chunks and transfers make of them.
  const Seconds others = unevenness_ * ranks.sum / ranks_;
  const Seconds own_pace = std::max(ranks.slowest, others);  // without transfers
  // What overlapping leaves of an interleaved schedule's many transfers was measured on whole
  // steps, spare time and all; 1F1B's are hidden where there is time to spare.
  const Seconds pace = virtual_stages_ > 1 ? own_pace + steady_transfers_
                                           : std::max(own_pace, others + steady_transfers_);
  Makespan m;
  m.total =
      ranks.sum / virtual_stages_ + (micro_batches_ - 1 / virtual_stages_) * pace + fill_transfers_;
  m.even = m.total - (micro_batches_ - 1 / virtual_stages_) *
                         (pace - std::min(pace, others + steady_transfers_));
  m.transfers = (micro_batches_ - 1 / virtual_stages_) * (pace - own_pace) + fill_transfers_;
  // What is left beside the slowest rank's own work: other stages' fill and drain, and waiting for
  // longer chunks.
  m.bubble = (ranks.sum - own_pace) / virtual_stages_ + micro_batches_ * (own_pace - ranks.slowest);
  return m;
}

namespace {

// Of the layers of a rank's two chunks, whose forward and backward are pairs, the share that has
// one of the other chunk beside it.
double Paired(const StageContent& content) {
  if (content.chunks.size() != 2 || content.total_layers == 0) return 1;
  return 2.0 * double(std::min(content.chunks[0].size(), content.chunks[1].size())) /
         content.total_layers;
}

}  // namespace

// What of a stage's layers is in which of its chunks.
std::vector<RankPassCosts> PipelineTerms::PassesOfChunks(std::size_t s,
                                                         const RecomputeTerms& recompute,
                                                         const Recompute& choice) const {
  const StageContent& content = *stages_[s].content;
  const bool split = forms_->splits_backward();
  std::vector<RankPassCosts> chunks;
  for (const std::vector<int>& chunk : content.chunks) {
    RankPassCosts& sum = chunks.emplace_back();
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const bool treated = choice.offload_layers > 0
                               ? IsSpread(int(i), int(chunk.size()), choice.offload_layers)
                               : choice.full_layers == 0 || int(i) < choice.full_layers;
      const TreatedLayer& layer =
          (treated ? recompute.TreatedOf(content) : recompute.RestOf(content))[chunk[i]];
      const Seconds weight = split ? layer.weight : layer.weight - layer.split_more;
      sum.forward += layer.forward;
      sum.backward_weight += weight;
      sum.backward_input += layer.backward + (split ? layer.split_more : Seconds(0)) - weight;
    }
  }
  return chunks;
}

PipelineTerms::Makespan PipelineTerms::WalkedMakespan(const ParallelConfig& plan,
                                                      const RecomputeTerms& recompute,
                                                      const Ranks& ranks,
                                                      std::span<const StageCost> costs) const {
  ScheduleChoice choice = ScheduleOf(plan, std::int64_t(micro_batches_));
  const PipelineSchedule& whole = estimator_.Orders(ScheduleForms::Shared(choice));
  const std::vector<Recompute> choices = plan.Recomputes();
  ScheduleCosts of_stages{.stages = std::vector<PassCosts>(std::size_t(whole.stages())),
                          .transfer = transfer_};
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageContent& content = *stages_[s].content;
    const RankPassCosts passes = copies_ * PassCostsOf(costs[s]);
    const double pair_share = 1 - Paired(content) * (1 - passes.overlapped / passes.work());
    for (const int rank : content.ranks) {
      std::vector<RankPassCosts> chunks =
          PassesOfChunks(s, recompute, choices[std::size_t(content.treatment)]);
      std::vector<std::size_t> of_rank;  // its stages, in the order of its chunks
      for (std::size_t stage = 0; stage < whole.rank_of_stage.size(); ++stage) {
        if (whole.rank_of_stage[stage] == rank) of_rank.push_back(stage);
      }
      RankPassCosts sum;
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        RankPassCosts& chunk = chunks[c];
        const auto add = [&](const PassTime& forward, const PassTime& backward, Seconds weight) {
          chunk.forward += forward.total();
          chunk.backward_input += backward.total() - weight;
          chunk.backward_weight += weight;
        };
        if (whole.first_of_direction(int(of_rank[c]))) {
          add(shape_.embedding_forward, shape_.embedding_backward, Seconds(0));
        }
        if (whole.last_of_direction(int(of_rank[c]))) {
          add(shape_.head_forward, shape_.head_backward, shape_.head_weight);
        }
        sum += chunk;
      }
      // Copies, sharding and sends are shared out alike.
      const auto part = [](Seconds whole_rank, Seconds chunk, Seconds all) {
        return all.value > 0 ? chunk / all * whole_rank : Seconds(0);
      };
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        of_stages.stages[of_rank[c]] = {
            .forward = part(passes.forward, chunks[c].forward, sum.forward),
            .backward_input =
                part(passes.backward_input, chunks[c].backward_input, sum.backward_input),
            .backward_weight =
                part(passes.backward_weight, chunks[c].backward_weight, sum.backward_weight),
            .pair_share = pair_share};
      }
    }
  }
  const auto walk = [&](const PipelineSchedule& schedule) {
    return TimeSchedule(schedule, of_stages, PassTimes::kLeaveOut).makespan;
  };
  Makespan result = MakespanOf(ranks);
  const Seconds hidden = Paired(*stages_[ranks.slowest_stage].content) * result.hidden;
  const Seconds own = result.total - result.transfers - result.bubble + result.hidden - hidden;
  result.hidden = hidden;
  result.total = walk(whole);
  const double turns = (micro_batches_ - whole.micro_batches) / ranks_;
  if (turns > 0) {
    choice.micro_batches = whole.micro_batches + choice.pipeline;
    result.total += turns * (walk(estimator_.Orders(choice)) - result.total);
  }
  result.total = std::max(result.total, own);
  result.transfers = std::min(result.transfers, result.total - own);
  result.bubble = result.total - result.transfers - own;
  return result;
}

Seconds PipelineTerms::Step(const RecomputeTerms& recompute) const {
  const Ranks ranks = OverRanks<Ask::kTime>(recompute, [](std::size_t, const StageCost&) {});
  return MakespanOf(ranks).total + ranks.data + optimizer_;
}

Seconds PipelineTerms::LeastSlowestOf(const RecomputeTerms& recompute) const {
  std::vector<RanksToFill<Seconds>> ranks;
  std::vector<LayersToDivide<Seconds>> layers(shape_.kinds.size());
  const bool split = forms_ != nullptr && forms_->splits_backward();
  const auto time = [&](const TreatedLayer& layer) {
    return layer.forward + layer.backward + (split ? layer.split_more : Seconds(0));
  };
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    const StageContent& content = *stage.content;
    const double like_it = double(content.ranks.size());
    ranks.push_back({.count = like_it,
                     .own = (1 / copies_) * (stage.forward + stage.backward +
                                             (split ? stage.split_more : Seconds(0)))});
    for (std::size_t k = 0; k < layers.size(); ++k) {
      const double treated = recompute.Treated(content, s, k);
      const double others = content.layers[k] - treated;
      layers[k].count += like_it * content.layers[k];
      layers[k].each += like_it * treated * time(recompute.TreatedOf(content)[k]);
      if (others > 0) layers[k].each += like_it * others * time(recompute.RestOf(content)[k]);
    }
  }
  for (LayersToDivide<Seconds>& kind : layers) {
    if (kind.count > 0) kind.each = (1 / (copies_ * kind.count)) * kind.each;
  }
  return LeastOfFullest<Seconds>(layers, ranks);
}

Seconds PipelineTerms::StepIfDivided(const RecomputeTerms& recompute) const {
  Ranks ranks = OverRanks<Ask::kTime>(recompute, [](std::size_t, const StageCost&) {});
  const Seconds as_it_is = MakespanOf(ranks).total;
  const Seconds mean = (1 / ranks_) * ranks.sum;
  ranks.slowest = std::clamp(LeastSlowestOf(recompute), mean, std::max(mean, ranks.slowest));
  if (forms_ != nullptr) ranks.slowest_passes = (ranks.slowest / ranks.sum) * ranks.passes;
  return std::min(as_it_is, MakespanOf(ranks).total) + (1 / ranks_) * ranks.data_sum + optimizer_;
}

QuickCost PipelineTerms::Cost(const RecomputeTerms& recompute) const {
  const Ranks ranks =
      OverRanks<Ask::kTimeAndMemory>(recompute, [](std::size_t, const StageCost&) {});
  const Makespan makespan = MakespanOf(ranks);
  return {.step = makespan.total + ranks.data + optimizer_,
          .peak = ranks.peak,
          .host = OfDomain(ranks.host),
          .even_pace = makespan.even + (1 / ranks_) * ranks.data_sum + optimizer_};
}

std::vector<RankCost> PipelineTerms::CostOfRanks(const RecomputeTerms& recompute) const {
  std::vector<RankCost> costs;
  costs.reserve(stages_.size());
  OverRanks<Ask::kTimeAndMemory>(recompute, [&](std::size_t s, const StageCost& cost) {
    costs.push_back({.time = cost.total(),
                     .peak = cost.peak,
                     .host = cost.host,
                     .data = ExposedData(stages_[s], cost)});
  });
  return costs;
}

Seconds PipelineTerms::MakespanOf(Seconds sum, Seconds slowest) const {
  MILLWRIGHT_CHECK(forms_ == nullptr);
  Ranks ranks;
  ranks.sum = sum;
  ranks.slowest = slowest;
  return MakespanOf(ranks).total;
}

Seconds PipelineTerms::StepOf(std::span<const RankCost> of_stages) const {
  Seconds sum, slowest, data;
  for (std::size_t s = 0; s < of_stages.size(); ++s) {
    sum += double(stages_[s].content->ranks.size()) * of_stages[s].time;
    slowest = std::max(slowest, of_stages[s].time);
    data = std::max(data, of_stages[s].data);
  }
  return MakespanOf(sum, slowest) + data + optimizer_;
}

// Of what each of the stages has, layers among it: the fullest with them divided best.
Bytes PipelineTerms::IfDivided(std::span<const Bytes> of_stages) const {
  std::vector<LayersToDivide<Bytes>> layers(shape_.kind_parameters.size());
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const RankParameters& parameters = shape_.kind_parameters[k];
    const TrainingConfig& training = estimator_.training();
    const ModelState state = StateOf(parameters, training, zero_, dense_shard_, expert_shard_);
    layers[k].each = state.weights + QuantisedWeights(parameters, training) + state.gradients +
                     state.optimizer / copies_;
  }
  std::vector<RanksToFill<Bytes>> ranks;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageContent& content = *stages_[s].content;
    const double like_it = double(content.ranks.size());
    ranks.push_back({.count = like_it, .own = of_stages[s]});
    for (std::size_t k = 0; k < layers.size(); ++k) {
      layers[k].count += like_it * content.layers[k];
      ranks.back().own -= double(content.layers[k]) * layers[k].each;
    }
  }
  return LeastOfFullest<Bytes>(layers, ranks);
}

Bytes PipelineTerms::FloorPeak(bool if_divided) const {
  Bytes floor;
  std::vector<Bytes> of_stages;
  for (const Stage& stage : stages_) {
    const Bytes bytes = stage.fixed_allocated * (1 + slack_) + stage.overhead;
    floor = std::max(floor, bytes);
    if (if_divided) of_stages.push_back(stage.fixed_allocated);
  }
  if (!if_divided) return floor;
  return std::min(floor, IfDivided(of_stages) * (1 + slack_) + stages_.front().overhead);
}

MemoryItem PipelineTerms::LargestFloorItem() const {
  return std::max_element(stages_.begin(), stages_.end(),
                          [&](const Stage& a, const Stage& b) {
                            return a.fixed_allocated * (1 + slack_) + a.overhead <
                                   b.fixed_allocated * (1 + slack_) + b.overhead;
                          })
      ->fixed.largest();
}

StateFloor PipelineTerms::FloorOfState(bool if_divided) const {
  StateFloor floor;
  std::vector<Bytes> of_stages;
  for (const Stage& stage : stages_) {
    StageMemory state = stage.fixed;
    state[MemoryItem::kPipelineBuffers] = Bytes(0);
    const MemoryItem largest = state.largest();
    state[MemoryItem::kNccl] = state[MemoryItem::kCudaContext] = Bytes(0);  // the overhead
    const Bytes bytes = state.total() * (1 + slack_) + stage.overhead;
    if (bytes > floor.bytes) floor = {bytes, largest};
    if (if_divided) of_stages.push_back(state.total());
  }
  if (if_divided) {
    const Bytes divided = IfDivided(of_stages) * (1 + slack_) + stages_.front().overhead;
    floor.bytes = std::min(floor.bytes, divided);
  }
  return floor;
}

void PipelineTerms::GivePeak(const Stage& stage, const StageCost& cost, StageMemory& memory) {
  memory[MemoryItem::kActivations] = cost.activations;
  if (!cost.in_backward) return;
  memory[MemoryItem::kWorkingSet] =
      cost.head_is_peak ? stage.head_working_set : cost.layer_working_set;
  if (cost.head_is_peak) memory[MemoryItem::kLogits] = stage.head_saved;
}

MemoryItem PipelineTerms::LargestItem(const RecomputeTerms& recompute) const {
  Bytes peak;
  MemoryItem item = MemoryItem::kWeights;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageCost cost = CostOfStage(s, recompute, Ask::kTimeAndMemory);
    if (cost.peak <= peak) continue;
    peak = cost.peak;
    StageMemory memory = stages_[s].fixed;
    GivePeak(stages_[s], cost, memory);
    item = memory.largest();
  }
  return item;
}

Estimate PipelineTerms::Itemise(const ParallelConfig& plan, const RecomputeTerms& recompute) const {
  Estimate e{.plan = plan};
  e.micro_batches = std::int64_t(micro_batches_);
  e.capacity = estimator_.capacity();
  e.host_capacity = estimator_.cluster().config().host_memory;

  const std::vector<Recompute> choices = plan.Recomputes();
  // Layers of all ranks, and of each choice those that it treats: of some alone where it is full.
  std::vector<double> recomputed_layers(choices.size());
  double all_layers = 0;
  std::vector<StageCost> costs;
  const Ranks ranks =
      OverRanks<Ask::kTimeAndMemory>(recompute, [&](std::size_t s, const StageCost& cost) {
        costs.push_back(cost);
        const StageContent& one = *stages_[s].content;
        const std::size_t choice = std::size_t(one.treatment);
        const bool full = choices[choice].granularity == RecomputeGranularity::kFull;
        for (std::size_t k = 0; k < one.layers.size(); ++k) {
          recomputed_layers[choice] +=
              double(one.ranks.size()) * (full ? recompute.Treated(one, s, k) : one.layers[k]);
        }
        all_layers += double(one.ranks.size()) * one.total_layers;
      });
  const std::size_t slow = ranks.slowest_stage;
  e.slowest_stage = stages_[slow].content->ranks.front();

  // The slowest rank's micro-batches, by cause.
  const StageContent& content = *stages_[slow].content;
  PassTime pass;
  Seconds recomputation;
  for (std::size_t k = 0; k < content.layers.size(); ++k) {
    const LayerCost& layer = shape_.kinds[k];
    pass += double(content.layers[k]) * (layer.forward + layer.backward);
    const int treated = recompute.Treated(content, slow, k);
    recomputation +=
        double(treated) * (recompute.TreatedOf(content)[k].backward - layer.backward.total());
    if (treated < content.layers[k]) {
      recomputation += double(content.layers[k] - treated) *
                       (recompute.RestOf(content)[k].backward - layer.backward.total());
    }
  }
  if (content.embedding) pass += shape_.embedding_forward + shape_.embedding_backward;
  if (content.head) pass += shape_.head_forward + shape_.head_backward;
  e.time[TimeItem::kCompute] = micro_batches_ * pass.compute;
  e.time[TimeItem::kRecompute] = micro_batches_ * recomputation;
  e.time[TimeItem::kTensor] = micro_batches_ * pass.tensor;
  e.time[TimeItem::kContext] = micro_batches_ * pass.context;
  e.time[TimeItem::kExpert] = micro_batches_ * pass.expert;
  for (Seconds& time : e.time.items) time = time / copies_;
  e.time[TimeItem::kTensor] += micro_batches_ * costs[slow].split_more / copies_;
  const bool of_its_own =
      choices.size() > 1 ||
      (!plan.stage_layers.empty() &&
       plan.stage_layers !=
           LayersPerChunk(estimator_.model(), plan.pipeline, StagesPerCopy(plan) / plan.pipeline));
  const Makespan makespan = forms_ != nullptr && of_its_own
                                ? WalkedMakespan(plan, recompute, ranks, costs)
                                : MakespanOf(ranks);
  Hide(makespan.hidden, e.time);
  e.time[TimeItem::kHost] = micro_batches_ * (costs[slow].forward_wait + costs[slow].backward_wait);
  e.time[TimeItem::kPipeline] = makespan.transfers + 2 * micro_batches_ * send_;
  e.time[TimeItem::kData] = micro_batches_ * costs[slow].sharding + ranks.data;
  e.time[TimeItem::kBubble] = makespan.bubble;
  e.time[TimeItem::kOptimizer] = optimizer_;
  e.step = e.time.total();

  // Every rank's memory: ranks of one content differ by what they have in flight.
  e.memory.resize(std::size_t(plan.pipeline));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    for (const int rank : stage.content->ranks) {
      StageMemory& memory = e.memory[std::size_t(rank)];
      memory = stage.fixed;
      memory.stage = rank;
      StageCost cost = costs[s];
      SetMemory(stage, HeldBy(stage, {&rank, 1}), s, recompute, cost);
      GivePeak(stage, cost, memory);
      e.host = std::max(e.host, OfDomain(cost.host));
      memory[MemoryItem::kAllocatorSlack] =
          slack_ * (memory.total() - memory[MemoryItem::kNccl] - memory[MemoryItem::kCudaContext]);
    }
  }
  for (const StageMemory& memory : e.memory) {
    if (memory.total() <= e.peak) continue;
    e.peak = memory.total();
    e.peak_stage = memory.stage;
  }

  const ModelConfig& model = estimator_.model();
  const TrainingConfig& training = estimator_.training();
  const double gpus = plan.gpus();
  StepFlops flops =
      FlopsOfStep(model, training, choices.front(), recomputed_layers.front() / all_layers);
  if (choices.size() > 1) {
    flops = FlopsOfStep(model, training, {});
    const Flops once = flops.hardware;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Flops with = FlopsOfStep(model, training, choices[i]).hardware;
      flops.hardware += recomputed_layers[i] / all_layers * (with - once);
    }
  }
  e.tokens_per_second_per_gpu =
      double(training.global_batch_size) * double(training.seq_length) / e.step.value / gpus;
  e.model_flops_per_gpu = flops.model / e.step / gpus;
  const FlopsPerSecond peak = estimator_.cluster().gpu().peak(training.precision);
  e.mfu = e.model_flops_per_gpu / peak;
  e.hfu = flops.hardware / e.step / gpus / peak;
  return e;
}

Estimate Estimator::Itemise(const ParallelConfig& plan) const {
  const ShapeCosts shape = CostShape(ShapeOf(plan, training_));
  const std::vector<StageContent> stages = DistinctStages(StagesOfPlan(model_, plan));
  PipelineTerms terms(*this, shape, stages, plan);
  terms.SetInFlight();
  return terms.Itemise(plan, TreatStages(shape, stages, plan.Recomputes()).terms());
}

}  // namespace millwright
