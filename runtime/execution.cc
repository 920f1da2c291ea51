// SPDX-License-Identifier: Apache-2.0
#include "runtime/execution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/check.h"
#include "cost_models/operators.h"
#include "runtime/pipeline_messages.h"
#include "runtime/processor_time.h"

namespace millwright {

namespace {

constexpr std::string_view kOptimizer = "optimizer";

}  // namespace

Execution::Execution(const Workload& workload, Backend& backend)
    : workload_(workload),
      backend_(backend),
      groups_(GroupsOf(workload.parallel, backend.rank())),
      operators_(workload, groups_, backend) {
  MILLWRIGHT_CHECK(backend.ranks() == workload.ranks());
  for (int stage = 0; stage < workload.schedule.stages(); ++stage) {
    if (workload.schedule.rank_of_stage[std::size_t(stage)] == groups_.place.pipeline) {
      AddUnits(stage);
    }
  }
  const auto has_table = [](const Unit& unit) { return unit.layer < 0; };
  const auto embedding = std::find_if(units_.begin(), units_.end(), has_table);
  if (!workload.model.tied_embeddings || embedding == units_.end()) return;
  for (Unit& unit : units_) {
    if (unit.layer == workload.model.num_layers) unit.table = &*embedding;
  }
}

void Execution::AddUnits(int stage) {
  const ModelConfig& model = workload_.model;
  const LayerShape shape = ShapeOf(workload_.parallel, workload_.training);
  const Recompute& recompute = workload_.parallel.RecomputeOf(groups_.place.pipeline);
  const auto [first, last] = LayersOfStage(workload_, stage);
  if (workload_.schedule.first_of_direction(stage)) {
    units_.push_back(MakeUnit(workload_, groups_, backend_, stage, -1,
                              EmbeddingOperators(model, shape, workload_.training)));
  }
  for (int layer = first; layer < last; ++layer) {
    Unit unit = MakeUnit(workload_, groups_, backend_, stage, layer,
                         LayerOperators(model, model.layer(layer), shape, workload_.training));
    unit.recomputed = recompute.granularity == RecomputeGranularity::kFull &&
                      (recompute.full_layers == 0 || layer - first < recompute.full_layers);
    if (recompute.granularity == RecomputeGranularity::kSelective) {
      unit.recomputes = MaskOf(recompute.modules);
    }
    if (sharded(unit)) Forget(unit);
    units_.push_back(std::move(unit));
  }
  if (workload_.schedule.last_of_direction(stage)) {
    units_.push_back(MakeUnit(workload_, groups_, backend_, stage, model.num_layers,
                              HeadOperators(model, shape, workload_.training), holds_embedding()));
  }
}

bool Execution::holds_embedding() const {
  const PipelineSchedule& s = workload_.schedule;
  for (int stage = 0; stage < s.stages(); ++stage) {
    if (s.first_of_direction(stage) &&
        s.rank_of_stage[std::size_t(stage)] == groups_.place.pipeline) {
      return true;
    }
  }
  return false;
}

int Execution::RankOnPipeline(int pipeline) const {
  const ParallelConfig& p = workload_.parallel;
  const int plane = p.tensor * p.context * p.data;
  return backend_.rank() % plane + pipeline * plane;
}

template <class Work>
void Execution::Do(ExecutedOperator op, const Work& work) {
  const Backend::Mark start = backend_.MarkTime();
  const std::size_t calls = backend_.calls().size();
  const Seconds processor = ProcessorTime();
  work();
  op.processor = ProcessorTime() - processor;
  op.calls = int(backend_.calls().size() - calls);
  executed_.push_back(op);
  marks_.emplace_back(start, backend_.MarkTime());
}

const std::vector<ExecutedOperator>& Execution::operators() {
  if (timed_ < executed_.size()) backend_.Synchronize();
  for (; timed_ < executed_.size(); ++timed_) {
    executed_[timed_].start = backend_.Between(begin_, marks_[timed_].first);
    executed_[timed_].end = backend_.Between(begin_, marks_[timed_].second);
  }
  return executed_;
}

// --- Steps of a pass

std::vector<Execution::Step> Execution::StepsOf(const Pass& pass) {
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
      steps.push_back({unit, 0, Part::kKept});
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
    steps.push_back({unit, 0, completes ? Part::kEnd : Part::kKept});
    if (completes && reduces_each_pass(*unit)) steps.push_back({unit, 0, Part::kReduce});
  }
  return steps;
}

Execution::Run Execution::StartPass(const Pass& pass) {
  Run run{.state = {.pass = pass}, .steps = StepsOf(pass)};
  const std::optional<PipelineMessage> message = AwaitedBy(workload_.schedule, pass);
  if (!message) return run;
  if (message->peer == groups_.place.pipeline) {
    const auto handed_on = handed_on_.find(message->tag);
    MILLWRIGHT_CHECK(handed_on != handed_on_.end());
    run.state.flow = std::move(handed_on->second);
    handed_on_.erase(handed_on);
    return run;
  }
  const std::int64_t tokens = operators_.tokens();
  run.state.flow = Tensor(
      backend_, workload_.parallel.sequence_parallel ? tokens / groups_.tensor.ranks : tokens,
      workload_.model.hidden_size);
  Do({.name = "receive",
      .stream = Stream::kReceive,
      .stage = pass.stage,
      .micro_batch = pass.micro_batch,
      .pass = pass.kind},
     [&] { backend_.Receive(RankOnPipeline(message->peer), message->tag, run.state.flow); });
  return run;
}

void Execution::EndPass(Run& run) {
  const std::optional<PipelineMessage> message = SentBy(workload_.schedule, run.state.pass);
  if (!message) return;
  if (message->peer == groups_.place.pipeline) {
    handed_on_[message->tag] = std::move(run.state.flow);
  } else {
    const Pass& pass = run.state.pass;
    Do({.name = "send",
        .stream = Stream::kSend,
        .stage = pass.stage,
        .micro_batch = pass.micro_batch,
        .pass = pass.kind},
       [&] {
         backend_.Send("send", RankOnPipeline(message->peer), message->tag,
                       std::move(run.state.flow));
       });
  }
}

void Execution::TakeStep(Run& run) {
  const Step step = run.steps[run.at++];
  Unit& unit = *step.unit;
  const std::pair<const Unit*, int> key{&unit, run.state.pass.micro_batch};
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
    case Part::kKept: {
      Saved& kept = saved_[key];
      if (run.state.pass.kind == PassKind::kForward) {
        operators_.DropComputedAgain(unit, kept);
      } else {
        operators_.DropAllButForWeights(kept);
      }
      if (watch_) watch_(unit, run.state.pass, kept);
      return;
    }
    case Part::kEnd:
      saved_.erase(key);
      if (watch_) watch_(unit, run.state.pass, {});
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
  Do({.name = op.name,
      .stream = op.kind == OperatorKind::kCollective ? StreamOf(op.group) : Stream::kCompute,
      .stage = unit.stage,
      .micro_batch = run.state.pass.micro_batch,
      .pass = run.state.pass.kind,
      .recomputed = step.part == Part::kRecompute},
     [&] {
       switch (step.part) {
         case Part::kForward:
           operators_.Forward(unit, step.op, run.state, saved);
           return;
         case Part::kRecompute:
           operators_.Recompute(unit, step.op, run.state, saved);
           return;
         case Part::kBoth:
           operators_.Backward(unit, step.op, BackwardPart::kBoth, run.state, saved);
           return;
         case Part::kInput:
           operators_.Backward(unit, step.op, BackwardPart::kInput, run.state, saved);
           return;
         case Part::kWeight:
           operators_.Backward(unit, step.op, BackwardPart::kWeight, run.state, saved);
           return;
         case Part::kGather:
         case Part::kForget:
         case Part::kReduce:
         case Part::kKept:
         case Part::kEnd:
           return;
       }
     });
}

void Execution::RunPass(const Pass& pass) {
  Run run = StartPass(pass);
  while (!run.done()) TakeStep(run);
  EndPass(run);
}

void Execution::RunTogether(const Pass& a, const Pass& b) {
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

// --- A step

double Execution::ComputeGradients(int step) {
  backend_.ForgetCalls();
  executed_.clear();
  timed_ = 0;
  marks_.clear();
  backend_.ForgetMarks();
  begin_ = backend_.MarkTime();
  operators_.StartStep(step);
  for (int peer = 0; peer < workload_.schedule.pipeline; ++peer) {
    if (peer == groups_.place.pipeline) continue;
    backend_.Expect(RankOnPipeline(peer),
                    TagsBetween(workload_.schedule, peer, groups_.place.pipeline));
  }
  Do({.name = kOptimizer}, [&] {
    for (Unit& unit : units_) {
      for (Bucket& bucket : unit.buckets) {
        backend_.Run(compute::Fill{.to = bucket.gradients, .value = 0});
        backend_.Run(compute::Fill{.to = bucket.shard_gradients, .value = 0});
      }
    }
  });
  const std::vector<Pass>& order = workload_.schedule.orders[std::size_t(groups_.place.pipeline)];
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
    for (Bucket& bucket : unit.buckets) SumCopies(bucket);
  }
  if (workload_.schedule.directions == 2) ExchangeTwins();
  if (workload_.model.tied_embeddings) ExchangeTables();
  const TrainingConfig& training = workload_.training;
  const double loss =
      operators_.Loss() / (double(training.global_batch_size) * double(training.seq_length));
  Tensor sum(backend_, 1, 1, Element::kSum);
  backend_.Upload(std::span(&loss, 1), sum);
  Do({.name = "loss", .stream = Stream::kData},
     [&] { backend_.Collective("loss", CollectiveKind::kAllReduce, groups_.everyone, sum); });
  return backend_.Download(sum).front();
}

// Adds the sum over data-parallel ranks of what has come together to this rank's share.
void Execution::ReduceShard(Unit& unit) {
  for (Bucket& bucket : unit.buckets) {
    Do({.name = "reduce gradients", .stream = Stream::kData}, [&] {
      backend_.Collective("reduce gradients",
                          workload_.parallel.zero == 0 ? CollectiveKind::kAllReduce
                                                       : CollectiveKind::kReduceScatter,
                          bucket.group, bucket.gradients);
    });
    Do({.name = kOptimizer}, [&] {
      backend_.Run(compute::Add{
          .from = bucket.gradients.view().Part(bucket.first, bucket.last - bucket.first),
          .to = bucket.shard_gradients});
      backend_.Run(compute::Fill{.to = bucket.gradients, .value = 0});
    });
  }
}

// Tensor ranks that hold the same weights have the gradients of their own tokens or heads.
void Execution::SumCopies(Bucket& bucket) {
  for (const bool kv : {false, true}) {
    std::vector<View> pieces;
    std::int64_t elements = 0;
    int copies = 1;
    for (const TensorPart& part : bucket.parts) {
      if (!part.partial_gradient || part.copies == 1) continue;
      if ((part.whole.split == WeightSplit::kQueryGroups) != kv) continue;
      copies = part.copies;
      const std::int64_t first = std::max(part.offset, bucket.first);
      const std::int64_t last = std::min(part.offset + part.elements(), bucket.last);
      if (first >= last) continue;
      pieces.push_back(bucket.shard_gradients.view().Part(first - bucket.first, last - first));
      elements += last - first;
    }
    if (pieces.empty()) continue;
    const RankGroup group{
        .first = backend_.rank() - backend_.rank() % copies, .stride = 1, .ranks = copies};
    const std::string_view name = kv ? "sum KV gradients" : "sum replicated gradients";
    Do({.name = name, .stream = Stream::kData}, [&] {
      Tensor together(backend_, 1, elements, Element::kSum);
      std::int64_t at = 0;
      for (const View& piece : pieces) {
        backend_.Run(compute::Copy{.from = piece, .to = together.view().Part(at, piece.size())});
        at += piece.size();
      }
      backend_.Collective(name, CollectiveKind::kAllReduce, group, together);
      at = 0;
      for (const View& piece : pieces) {
        backend_.Run(compute::Copy{.from = together.view().Part(at, piece.size()), .to = piece});
        at += piece.size();
      }
    });
  }
}

// What both ranks have of the same parameters becomes the sum.
void Execution::ExchangeGradients(std::string_view name, int with,
                                  std::span<Bucket* const> buckets) {
  const int tag = GradientsTag(workload_.schedule);
  Do({.name = name, .stream = Stream::kSend}, [&] {
    for (const Bucket* bucket : buckets) {
      backend_.Send(name, with, tag, Tensor::CopyOf(backend_, bucket->shard_gradients));
    }
  });
  Do({.name = name, .stream = Stream::kReceive}, [&] {
    for (Bucket* bucket : buckets) {
      Tensor other(backend_, 1, bucket->shard_gradients.size(), Element::kSum);
      backend_.Receive(with, tag, other);
      backend_.Run(compute::Add{.from = other, .to = bucket->shard_gradients});
    }
  });
}

// DualPipe: the same stage of the other direction, on another rank, has seen the other half of the
// micro-batches.
void Execution::ExchangeTwins() {
  const PipelineSchedule& schedule = workload_.schedule;
  std::map<int, std::vector<Bucket*>> by_twin;
  for (Unit& unit : units_) {
    const int twin = RankOnPipeline(TwinOf(schedule, unit.stage));
    for (Bucket& bucket : unit.buckets) by_twin[twin].push_back(&bucket);
  }
  for (auto& [twin, buckets] : by_twin) {
    // In one order on both sides.
    std::ranges::stable_sort(buckets, {},
                             [](const Bucket* b) { return b->parts.front().name.layer; });
    ExchangeGradients("exchange copies' gradients", twin, buckets);
  }
}

// The first and the last stage each have a token table, which the embedding and the head use.
void Execution::ExchangeTables() {
  const std::optional<std::pair<int, int>> ends = TiedEnds(workload_.schedule);
  const int own = groups_.place.pipeline;
  if (!ends || (own != ends->first && own != ends->second)) return;
  const int other = own == ends->first ? ends->second : ends->first;
  for (Unit& unit : units_) {
    for (Bucket& bucket : unit.buckets) {
      if (bucket.parts.front().bucket != BucketKind::kTable) continue;
      Bucket* const table = &bucket;
      ExchangeGradients("sum tied gradients", RankOnPipeline(other), std::span(&table, 1));
    }
  }
}

void Execution::GatherUnit(Unit& unit) {
  for (Bucket& bucket : unit.buckets) {
    Do({.name = "gather parameters", .stream = Stream::kData}, [&] {
      backend_.Collective("gather parameters", CollectiveKind::kAllGather, bucket.group,
                          bucket.weights);
    });
  }
}

// What a rank does not hold under ZeRO-3 must not be computed with by mistake.
void Execution::Forget(Unit& unit) {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  for (Bucket& bucket : unit.buckets) {
    const View all = bucket.weights;
    backend_.Run(compute::Fill{.to = all.Part(0, bucket.first), .value = nothing});
    backend_.Run(
        compute::Fill{.to = all.Part(bucket.last, all.size() - bucket.last), .value = nothing});
  }
}

void Execution::UpdateBucket(Bucket& bucket, const Adam& adam) {
  backend_.Run(compute::AdamUpdate{
      .gradient = bucket.shard_gradients,
      .moment1 = bucket.moment1,
      .moment2 = bucket.moment2,
      .weights = bucket.weights.view().Part(bucket.first, bucket.last - bucket.first),
      .master = bucket.master,
      .rate = adam.rate,
      .beta1 = adam.beta1,
      .beta2 = adam.beta2,
      .epsilon = adam.epsilon,
      .correction1 = 1 - std::pow(adam.beta1, updates_),
      .correction2 = 1 - std::pow(adam.beta2, updates_)});
}

void Execution::Update(const Adam& adam) {
  ++updates_;
  for (Unit& unit : units_) {
    Do({.name = kOptimizer}, [&] {
      for (Bucket& bucket : unit.buckets) UpdateBucket(bucket, adam);
    });
    if (workload_.parallel.zero > 0 && !sharded(unit)) GatherUnit(unit);
  }
}

void Execution::ForEachTensor(const Visit& visit) const {
  for (const Unit& unit : units_) {
    for (const Bucket& bucket : unit.buckets) {
      for (const TensorPart& part : bucket.parts) {
        const std::int64_t first = std::max(part.offset, bucket.first);
        const std::int64_t last = std::min(part.offset + part.elements(), bucket.last);
        if (first >= last) continue;
        const std::int64_t in_shard = first - bucket.first, count = last - first;
        const std::vector<double> weights =
            backend_.Download(bucket.master.empty() ? bucket.weights.view().Part(first, count)
                                                    : bucket.master.view().Part(in_shard, count));
        const std::vector<double> gradients =
            backend_.Download(bucket.shard_gradients.view().Part(in_shard, count));
        visit(part, first - part.offset, weights, gradients);
      }
    }
  }
}

}  // namespace millwright
