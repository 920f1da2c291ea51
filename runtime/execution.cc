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

bool IsOf(const Bucket& bucket, const Communication& group) {
  return bucket.group.stride == group.stride && bucket.group.ranks == group.ranks;
}

}  // namespace

Execution::Execution(const Workload& workload, Backend& backend)
    : workload_(workload),
      backend_(backend),
      groups_(GroupsOf(workload.parallel, backend.rank())),
      operators_(workload, groups_, backend) {
  MILLWRIGHT_CHECK(backend.ranks() == workload.ranks());
  MILLWRIGHT_CHECK(workload.graph.ranks() == workload.schedule.pipeline);
  for (TaskId id = 0; id < workload.graph.size(); ++id) {
    if (workload.graph.task(id).rank == groups_.place.pipeline) program_.push_back(id);
  }
  const std::vector<Pass>& order = workload.schedule.orders[std::size_t(groups_.place.pipeline)];
  for (auto pass = order.rbegin(); pass != order.rend(); ++pass) {
    passes_[{pass->stage, pass->micro_batch}].push_back(*pass);
  }
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
    if (sharded(unit)) std::ranges::for_each(unit.buckets, [&](Bucket& b) { Forget(b); });
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

Timeline Execution::timeline() {
  const std::vector<ExecutedOperator>& done = operators();
  const std::size_t tasks = workload_.graph.size();
  Timeline timeline{.start = std::vector<Seconds>(tasks),
                    .end = std::vector<Seconds>(tasks),
                    .peak = std::vector<Bytes>(std::size_t(workload_.graph.ranks()))};
  Seconds now;
  std::size_t first = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const std::size_t last = ends_[i];
    timeline.start[program_[i]] = first < last ? done[first].start : now;
    if (first < last) now = done[last - 1].end;
    timeline.end[program_[i]] = now;
    first = last;
  }
  timeline.makespan = now;
  timeline.peak[std::size_t(groups_.place.pipeline)] = Bytes(double(backend_.peak_bytes()));
  return timeline;
}

// --- Tasks

void Execution::Take(TaskId id) {
  const Task& task = workload_.graph.task(id);
  if (task.through == kOfNoPass) {
    TakeOther(task, workload_.graph.label(id));
    return;
  }
  Run& run = RunOf(task);
  Advance(run, task.through, task.cause == Cause::kRecompute);
  if (task.through != kThroughPass) return;
  const std::optional<PipelineMessage> message = SentBy(workload_.schedule, run.state.pass);
  if (message && message->peer != groups_.place.pipeline) return;  // the next task is to send it
  EndPass(run);
}

void Execution::TakeOther(const Task& task, std::string_view label) {
  const Communication group = task.communication == kNoCommunication
                                  ? Communication{}
                                  : workload_.graph.communications()[task.communication];
  if (label == "receive") {
    RunOf(task);
  } else if (label == "send") {
    EndPass(RunOf(task));
  } else if (label == "gather parameters") {
    if (std::exchange(gathered_[task.stage], char{1}) != 0) return;
    for (Unit& unit : units_) {
      if (unit.stage != task.stage) continue;
      for (Bucket& bucket : unit.buckets) Gather(bucket);
    }
  } else if (label == "gather layer") {
    GatherNext(RunOf(task), group);
  } else if (label == "reduce gradients" || label == "reduce layer") {
    std::vector<Bucket*> rest;
    for (Bucket* bucket : unreduced_) {
      if (IsOf(*bucket, group)) {
        Reduce(*bucket);
      } else {
        rest.push_back(bucket);
      }
    }
    unreduced_ = std::move(rest);
  } else if (label == "sum replicated gradients") {
    SumCopies(false);
  } else if (label == "sum KV gradients") {
    SumCopies(true);
  } else if (label == "exchange copies' gradients" || label == "sum tied gradients") {
    FinishSums();
    const auto others = label == "sum tied gradients" ? Tables() : Twins();
    if (task.stream == Stream::kSend) {
      SendGradients(label, others);
    } else {
      ReceiveGradients(label, others);
    }
  } else if (label == "loss") {
    SumLoss();
  } else {
    MILLWRIGHT_CHECK(label == "slowed by NCCL" || label == "gradients complete");
  }
}

Execution::Run& Execution::RunOf(const Task& task) {
  const RunKey key{task.stage, task.micro_batch};
  const auto running = runs_.find(key);
  if (running != runs_.end()) return running->second;
  std::vector<Pass>& left = passes_left_[key];
  MILLWRIGHT_CHECK(!left.empty());
  const Pass pass = left.back();
  left.pop_back();
  return runs_.emplace(key, StartPass(pass)).first->second;
}

void Execution::Advance(Run& run, std::uint8_t through, bool recompute) {
  MILLWRIGHT_CHECK(through == kThroughPass || !run.done());
  const Unit* const unit = run.done() ? nullptr : run.steps[run.at].unit;
  for (; !run.done(); TakeStep(run)) {
    const Step& step = run.steps[run.at];
    if (through == kThroughPass) continue;
    if (step.unit != unit) return;
    if (through == kThroughLayer) continue;
    const bool again = step.part == Part::kRecompute;
    if (again && !recompute) continue;  // that none of the tasks was for
    if (again != recompute || step.part >= Part::kForget) return;
    const int number = unit->numbers[step.op];
    if (again || step.part == Part::kForward ? number > through : number < through) return;
  }
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
      forward(unit, Part::kForward);
      if (sharded(*unit)) steps.push_back({unit, 0, Part::kForget});
      steps.push_back({unit, 0, Part::kKept});
    }
    return steps;
  }
  std::reverse(units.begin(), units.end());
  for (Unit* unit : units) {
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
    if (sharded(*unit) && pass.kind != PassKind::kBackwardWeight) {
      steps.push_back({unit, 0, Part::kForget});
    }
    steps.push_back({unit, 0, pass.kind == PassKind::kBackwardInput ? Part::kKept : Part::kEnd});
  }
  return steps;
}

Execution::Run Execution::StartPass(const Pass& pass) {
  Run run{.state = {.pass = pass}, .steps = StepsOf(pass)};
  if (workload_.parallel.zero == 3 && pass.kind != PassKind::kBackwardWeight) {
    const Unit* last = nullptr;
    for (const Step& step : run.steps) {
      if (step.unit == std::exchange(last, step.unit)) continue;
      // A backward finds an embedding and a head as the forward has left them.
      if (pass.kind != PassKind::kForward && !sharded(*step.unit)) continue;
      for (Bucket& bucket : step.unit->buckets) run.awaited.push_back({step.unit, &bucket});
    }
  }
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
  MILLWRIGHT_CHECK(run.done());
  const Pass pass = run.state.pass;
  const std::optional<PipelineMessage> message = SentBy(workload_.schedule, pass);
  if (message && message->peer == groups_.place.pipeline) {
    handed_on_[message->tag] = std::move(run.state.flow);
  } else if (message) {
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
  runs_.erase({pass.stage, pass.micro_batch});
}

void Execution::TakeStep(Run& run) {
  const Step step = run.steps[run.at++];
  Unit& unit = *step.unit;
  const std::pair<const Unit*, int> key{&unit, run.state.pass.micro_batch};
  switch (step.part) {
    case Part::kForget:
      for (Bucket& bucket : unit.buckets) {
        if (--bucket.users == 0) Forget(bucket);
      }
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
      if (reduces_each_pass(unit) || gradients_left_[std::size_t(unit.stage)] == 1) {
        for (Bucket& bucket : unit.buckets) unreduced_.push_back(&bucket);
      }
      if (run.done()) --gradients_left_[std::size_t(unit.stage)];
      return;
    case Part::kForward:
    case Part::kRecompute:
    case Part::kBoth:
    case Part::kInput:
    case Part::kWeight:
      break;
  }
  // Of ranks that share with nobody the graph gathers nothing.
  if (!run.awaited.empty()) {
    GatherFor(run, [&](const Awaited& one) { return one.unit == &unit; });
  }
  JoinForks(unit, step.part != Part::kForward && step.part != Part::kRecompute);
  if (unit.table != nullptr) JoinForks(*unit.table, step.part != Part::kForward);
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
         case Part::kForget:
         case Part::kKept:
         case Part::kEnd:
           return;
       }
     });
}

// --- A step

double Execution::ComputeGradients(int step) {
  backend_.ForgetCalls();
  executed_.clear();
  timed_ = 0;
  marks_.clear();
  ends_.clear();
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
  passes_left_ = passes_;
  for (Unit& unit : units_) {
    for (Bucket& bucket : unit.buckets) bucket.users = 0;
  }
  gathered_.assign(std::size_t(workload_.schedule.stages()), 0);
  gradients_left_.assign(gathered_.size(), 0);
  for (const auto& [key, passes] : passes_) {
    gradients_left_[std::size_t(key.first)] +=
        int(std::count_if(passes.begin(), passes.end(), [](const Pass& pass) {
          return pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight;
        }));
  }
  copies_summed_ = {};
  loss_summed_ = false;
  forks_.clear();
  for (const TaskId id : program_) {
    if (workload_.graph.task(id).cause == Cause::kOptimizer) break;
    for (const TaskId awaited : workload_.graph.waits(id)) {
      const auto fork = forks_.find(awaited);
      if (fork != forks_.end()) backend_.Join(fork->second);
    }
    const Backend::Fork before = last_fork_;
    Take(id);
    if (last_fork_ != before) forks_[id] = last_fork_;
    ends_.push_back(executed_.size());
  }
  SumLoss();
  MILLWRIGHT_CHECK(runs_.empty() && saved_.empty() && handed_on_.empty());
  return loss_;
}

void Execution::SumLoss() {
  if (std::exchange(loss_summed_, true)) return;
  FinishSums();
  const TrainingConfig& training = workload_.training;
  const double loss =
      operators_.Loss() / (double(training.global_batch_size) * double(training.seq_length));
  Tensor sum(backend_, 1, 1, Element::kSum);
  backend_.Upload(std::span(&loss, 1), sum);
  Do({.name = "loss", .stream = Stream::kData},
     [&] { backend_.Collective("loss", CollectiveKind::kAllReduce, groups_.everyone, sum); });
  loss_ = backend_.Download(sum).front();
}

// Adds the sum over data-parallel ranks of what has come together to this rank's share.
void Execution::Reduce(Bucket& bucket) {
  backend_.StartFork();
  Do({.name = "reduce gradients", .stream = Stream::kData}, [&] {
    backend_.Collective(
        "reduce gradients",
        workload_.parallel.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter,
        bucket.group, bucket.gradients);
  });
  Do({.name = kOptimizer}, [&] {
    backend_.Run(
        compute::Add{.from = bucket.gradients.view().Part(bucket.first, bucket.last - bucket.first),
                     .to = bucket.shard_gradients});
    backend_.Run(compute::Fill{.to = bucket.gradients, .value = 0});
  });
  bucket.reducing = last_fork_ = backend_.Rejoin();
}

// What the graph has no task for: of ranks that share with nobody.  All are there then.
void Execution::ReduceAll() {
  for (Bucket* bucket : std::exchange(unreduced_, {})) Reduce(*bucket);
  for (Unit& unit : units_) JoinForks(unit, true);
}

// What comes and goes beside the passes is there before it is worked on.
void Execution::JoinForks(Unit& unit, bool gradients) {
  for (Bucket& bucket : unit.buckets) {
    Backend::Fork last = std::exchange(bucket.gathering, 0);
    if (gradients) last = std::max(last, std::exchange(bucket.reducing, 0));
    if (last > 0) backend_.Join(last);
  }
}

void Execution::FinishSums() {
  for (const bool kv : {false, true}) SumCopies(kv);
}

// Once a step, when all gradients are reduced.
void Execution::SumCopies(bool kv) {
  if (std::exchange(copies_summed_[std::size_t(kv)], true)) return;
  ReduceAll();
  for (Unit& unit : units_) {
    for (Bucket& bucket : unit.buckets) SumCopies(bucket, kv);
  }
}

// Tensor ranks that hold the same weights have the gradients of their own tokens or heads.
void Execution::SumCopies(Bucket& bucket, bool kv) {
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
  if (pieces.empty()) return;
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

// What both ranks have of the same parameters becomes the sum.
void Execution::SendGradients(std::string_view name,
                              const std::map<int, std::vector<Bucket*>>& to) {
  const int tag = GradientsTag(workload_.schedule);
  for (const auto& [rank, buckets] : to) {
    Do({.name = name, .stream = Stream::kSend}, [&, rank = rank, &buckets = buckets] {
      for (const Bucket* bucket : buckets) {
        backend_.Send(name, rank, tag, Tensor::CopyOf(backend_, bucket->shard_gradients));
      }
    });
  }
}

void Execution::ReceiveGradients(std::string_view name,
                                 const std::map<int, std::vector<Bucket*>>& from) {
  const int tag = GradientsTag(workload_.schedule);
  for (const auto& [rank, buckets] : from) {
    Do({.name = name, .stream = Stream::kReceive}, [&, rank = rank, &buckets = buckets] {
      for (Bucket* bucket : buckets) {
        Tensor other(backend_, 1, bucket->shard_gradients.size(), Element::kSum);
        backend_.Receive(rank, tag, other);
        backend_.Run(compute::Add{.from = other, .to = bucket->shard_gradients});
      }
    });
  }
}

// DualPipe: the same stage of the other direction, on another rank, has seen the other half of the
// micro-batches.
std::map<int, std::vector<Bucket*>> Execution::Twins() {
  std::map<int, std::vector<Bucket*>> by_twin;
  for (Unit& unit : units_) {
    const int twin = RankOnPipeline(TwinOf(workload_.schedule, unit.stage));
    for (Bucket& bucket : unit.buckets) by_twin[twin].push_back(&bucket);
  }
  for (auto& [twin, buckets] : by_twin) {
    // In one order on both sides.
    std::ranges::stable_sort(buckets, {},
                             [](const Bucket* b) { return b->parts.front().name.layer; });
  }
  return by_twin;
}

// The first and the last stage each have a token table, which the embedding and the head use.
std::map<int, std::vector<Bucket*>> Execution::Tables() {
  const std::optional<std::pair<int, int>> ends = TiedEnds(workload_.schedule);
  MILLWRIGHT_CHECK(ends.has_value());
  const int other = groups_.place.pipeline == ends->first ? ends->second : ends->first;
  std::map<int, std::vector<Bucket*>> tables;
  for (Unit& unit : units_) {
    for (Bucket& bucket : unit.buckets) {
      if (bucket.parts.front().bucket != BucketKind::kTable) continue;
      tables[RankOnPipeline(other)].push_back(&bucket);
    }
  }
  return tables;
}

void Execution::Gather(Bucket& bucket) {
  backend_.StartFork();
  Do({.name = "gather parameters", .stream = Stream::kData}, [&] {
    backend_.Collective("gather parameters", CollectiveKind::kAllGather, bucket.group,
                        bucket.weights);
  });
  bucket.gathering = last_fork_ = backend_.Rejoin();
}

// ZeRO-3: what a pass still waits for from these ranks of the first layer of which it does.
void Execution::GatherNext(Run& run, const Communication& group) {
  const auto same = [&](const Awaited& one) { return IsOf(*one.bucket, group); };
  const auto next = std::ranges::find_if(run.awaited, same);
  if (next == run.awaited.end()) return;
  Unit* const unit = next->unit;
  GatherFor(run, [&](const Awaited& one) { return one.unit == unit && same(one); });
}

template <class Which>
void Execution::GatherFor(Run& run, const Which& which) {
  for (const Awaited& one : run.awaited) {
    if (which(one) && one.bucket->users++ == 0) Gather(*one.bucket);
  }
  std::erase_if(run.awaited, which);
}

// What a rank does not hold under ZeRO-3 must not be computed with by mistake.
void Execution::Forget(Bucket& bucket) {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const View all = bucket.weights;
  backend_.Run(compute::Fill{.to = all.Part(0, bucket.first), .value = nothing});
  backend_.Run(
      compute::Fill{.to = all.Part(bucket.last, all.size() - bucket.last), .value = nothing});
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
  }
  if (ends_.size() < program_.size()) ends_.push_back(executed_.size());
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
