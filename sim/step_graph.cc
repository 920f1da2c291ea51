// SPDX-License-Identifier: Apache-2.0
#include "sim/step_graph.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

constexpr std::size_t kReach = 4;  // pieces wait for none further back

// One pass on its way: what its next piece waits for.
struct Thread {
  int rank = 0;
  int stage = 0;
  int micro_batch = 0;
  std::array<TaskId, 4> begin{kNoTask, kNoTask, kNoTask,
                              kNoTask};  // what its first pieces wait for
  std::array<TaskId, 4> recent{};        // its latest pieces, by their number
  std::size_t pieces = 0;
  TaskId also = kNoTask;        // what the next piece waits for too
  TaskId prefetched = kNoTask;  // ZeRO-3: the gathering of its next layer, which has begun
  TaskId last() const { return pieces == 0 ? begin[0] : recent[(pieces - 1) % recent.size()]; }
};

// A piece of a pass with what goes with it.
struct Step {
  const Piece* piece = nullptr;
  Seconds duration;  // on this rank
  std::uint16_t label = 0, communication = kNoCommunication;
  Bytes taken, given_back;
  TaskId waits_for = kNoTask;  // a bucket of parameters
  // ZeRO-3: the layer to gather before this piece, and the one to prefetch while it computes.
  const LayerPasses* sharded = nullptr;
  const LayerPasses* next_sharded = nullptr;
  const LayerPasses* ends = nullptr;       // whose pass this piece completes
  const LayerPasses* offloaded = nullptr;  // whose pass it begins, where its activations move
  unsigned streams = 0;                    // merged: on which it communicates, a bit each
};
constexpr unsigned Bit(Stream stream) { return 1U << static_cast<unsigned>(stream); }

class Builder {
 public:
  Builder(const StepSpec& spec, StepDetail detail)
      : spec_(spec),
        detail_(detail),
        schedule_(spec.schedule),
        graph_(schedule_.pipeline),
        merged_(std::size_t(schedule_.stages())),
        slowing_(std::size_t(schedule_.stages()), {-1, -1, -1, -1}),
        forward_end_(Table()),
        backward_end_(Table()),
        forward_send_(Table()),
        backward_send_(Table()),
        copied_out_(
            std::size_t(schedule_.stages()),
            std::vector<std::vector<TaskId>>(std::size_t(schedule_.micro_batches_per_direction()))),
        passes_left_(std::size_t(schedule_.stages())),
        first_forward_(std::size_t(schedule_.stages()), 1),
        layer_gather_(std::size_t(schedule_.stages())),
        unreduced_(std::size_t(schedule_.pipeline)),
        last_reduce_(std::size_t(schedule_.pipeline), kNoTask),
        copy_send_(std::size_t(schedule_.pipeline), kNoTask),
        tied_send_(std::size_t(schedule_.pipeline), kNoTask) {
    for (const LayerPasses& kind : spec.kinds) {
      sharded_ = sharded_ || kind.shard_gather.any();
    }
    // Labels and groups are looked up once, not for every task.
    for (const LayerPasses& kind : spec.kinds) known_.push_back(Know(kind));
    known_.push_back(Know(spec.embedding));
    known_.push_back(Know(spec.head));
    for (const auto& order : schedule_.orders) {
      for (const Pass& pass : order) {
        if (CompletesGradients(pass.kind)) ++passes_left_[pass.stage];
      }
    }
  }

  // But for data parallelism's few.
  double Tasks() {
    // Of each stage and kind of pass: of a usual pass, and what the first and the last have more.
    std::vector<std::array<std::optional<double>, 4>> usual(std::size_t(schedule_.stages()));
    double tasks = 0;
    for (const auto& order : schedule_.orders) {
      bool in_pair = false;
      for (const Pass& pass : order) {
        if (pass.overlaps_next || in_pair) tasks += Slowing(pass);
        in_pair = pass.overlaps_next;
        std::optional<double>& known = usual[pass.stage][std::size_t(pass.kind)];
        if (!known) {
          const std::vector<Step> steps = StepsOf(pass, false);
          const double pieces = double(steps.size());
          const double copies =
              double(std::count_if(steps.begin(), steps.end(),
                                   [](const Step& step) { return step.offloaded != nullptr; }));
          const bool merge = CanMerge(pass) && !pass.overlaps_next;
          known = 1 + copies + (merge ? double(MergedSteps(pass).size()) : pieces);
          tasks += 1 + copies + pieces - *known;
        }
        tasks += *known;
      }
    }
    return tasks;
  }

  // Tasks that slow the other pass of a pair.
  double Slowing(const Pass& pass) {
    double& known = slowing_[pass.stage][std::size_t(pass.kind)];
    if (known < 0) {
      const std::vector<Step> steps = StepsOf(pass, false);
      known = double(std::count_if(steps.begin(), steps.end(),
                                   [](const Step& step) { return step.piece->sm_share > 0; }));
    }
    return known;
  }

  TaskGraph Build() {
    graph_.Reserve(std::size_t(Tasks()));
    for (int rank = 0; rank < schedule_.pipeline; ++rank) GatherParameters(rank);
    for (int rank = 0; rank < schedule_.pipeline; ++rank) {
      const std::vector<Pass>& order = schedule_.orders[std::size_t(rank)];
      last_layer_end_ = pass_barrier_ = last_send_ = kNoTask;
      last_of_stream_.fill(kNoTask);
      copies_ = {kNoTask, kNoTask};
      fetch_after_ = {kNoTask, kNoTask};
      last_pass_end_ = kNoTask;
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i].overlaps_next) {
          RunTogether(rank, order[i], order[i + 1]);
          ++i;
        } else {
          Run(rank, order[i]);
        }
      }
      Finish(rank);
    }
    for (const auto& [receive, send] : receives_) graph_.Wait(receive, *send);
    for (TaskId loss : losses_) {
      for (TaskId complete : complete_) graph_.Wait(loss, complete);
    }
    graph_.Seal();
    return std::move(graph_);
  }

 private:
  // What a layer's passes run, by PassKind.
  using KnownPasses = std::array<std::vector<Step>, 4>;
  KnownPasses Know(const LayerPasses& layer) {
    KnownPasses known;
    for (const auto& [kind, pieces] :
         {std::pair{PassKind::kForward, &layer.forward},
          std::pair{PassKind::kBackward, &layer.backward},
          std::pair{PassKind::kBackwardInput, &layer.backward_input},
          std::pair{PassKind::kBackwardWeight, &layer.backward_weight}}) {
      for (const Piece& piece : *pieces) {
        known[std::size_t(kind)].push_back(
            {.piece = &piece,
             .duration = piece.duration,
             .label = graph_.Label(piece.label),
             .communication = graph_.Communicate(piece.communication)});
      }
    }
    return known;
  }
  std::size_t Embedding() const { return spec_.kinds.size(); }
  std::size_t Head() const { return spec_.kinds.size() + 1; }

  using PassTable = std::vector<std::vector<TaskId>>;  // [stage][micro-batch]
  PassTable Table() const {
    return PassTable(
        std::size_t(schedule_.stages()),
        std::vector<TaskId>(std::size_t(schedule_.micro_batches_per_direction()), kNoTask));
  }
  static bool CompletesGradients(PassKind kind) {
    return kind == PassKind::kBackward || kind == PassKind::kBackwardWeight;
  }
  const std::vector<int>& Layers(int stage) const {
    return spec_.layers_of_stage[std::size_t(stage)];
  }
  bool OnAnotherRank(int stage, int other) const {
    return schedule_.rank_of_stage[std::size_t(stage)] !=
           schedule_.rank_of_stage[std::size_t(other)];
  }

  // What the pass waits for from another stage: over the wire, or from this same rank.
  TaskId Input(int rank, int stage, int micro_batch, int from, PassTable& sends, PassTable& ends) {
    const std::size_t s = std::size_t(from), m = std::size_t(micro_batch);
    if (!OnAnotherRank(stage, from)) return ends[s][m];
    const TaskId receive = graph_.Add({.label = graph_.Label("receive"),
                                       .micro_batch = micro_batch,
                                       .rank = std::uint16_t(rank),
                                       .stage = std::uint16_t(stage),
                                       .stream = Stream::kReceive,
                                       .cause = Cause::kPipeline});
    receives_.emplace_back(receive, &sends[s][m]);
    return receive;
  }
  void Send(const Thread& thread, int to, PassTable& sends) {
    if (!OnAnotherRank(thread.stage, to)) return;
    const std::array<TaskId, 1> waits{thread.last()};
    const Communication communication{.kind = CollectiveKind::kSendRecv,
                                      .payload = spec_.transfer_payload,
                                      .to = schedule_.rank_of_stage[std::size_t(to)]};
    TaskId& send = sends[std::size_t(thread.stage)][std::size_t(thread.micro_batch)];
    send = graph_.Add({.duration = spec_.transfer,
                       .label = graph_.Label("send"),
                       .micro_batch = thread.micro_batch,
                       .rank = std::uint16_t(thread.rank),
                       .stage = std::uint16_t(thread.stage),
                       .stream = Stream::kSend,
                       .cause = Cause::kPipeline,
                       .communication = graph_.Communicate(communication)},
                      waits);
    if (!spec_.overlap_transfers) last_send_ = send;
  }

  // Collectives take part of the GPU from what runs beside them.  Of no micro-batch: it is none of
  // the pieces of a pass.
  void Contend(int rank, int stage, Seconds slowed, Cause cause = Cause::kData,
               bool routed = false) {
    if (slowed.value <= 0) return;
    graph_.Add({.duration = OnRank(rank, slowed),
                .label = graph_.Label("slowed by NCCL"),
                .routed = routed,
                .rank = std::uint16_t(rank),
                .stage = std::uint16_t(stage),
                .stream = Stream::kCompute,
                .cause = cause});
  }
  Seconds OnRank(int rank, Seconds compute) const {
    return spec_.compute_time.empty() ? compute : spec_.compute_time[std::size_t(rank)] * compute;
  }

  void ContendSharded(const Thread& thread, const std::vector<Piece>& pass, Seconds communication) {
    Seconds compute;
    for (const Piece& piece : pass) compute += piece.duration;
    Contend(thread.rank, thread.stage, spec_.shard_contention * std::min(compute, communication));
  }

  // ZeRO-1, 2: parameters come bucket by bucket, in the order in which layers need them.
  // Not overlapped, all of a rank's come before its first pass.
  void GatherParameters(int rank) {
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (schedule_.rank_of_stage[std::size_t(stage)] != rank) continue;
      std::vector<TaskId>& gathers = layer_gather_[std::size_t(stage)];
      const std::vector<int>& layers = Layers(stage);
      gathers.assign(layers.size(), kNoTask);
      DataCalls bucket;
      if (schedule_.first_of_direction(stage)) bucket.Add(spec_.embedding.gather);
      if (schedule_.last_of_direction(stage)) bucket.Add(spec_.head.gather);
      const auto gather = [&](std::size_t first, std::size_t end) {
        if (!bucket.any()) return;
        last_gather_ = Communicate({.rank = rank, .stage = stage, .micro_batch = -1}, bucket,
                                   "gather parameters", kNoTask);
        for (std::size_t i = first; i < end; ++i) gathers[i] = last_gather_;
        bucket = {};
      };
      double parameters = 0;
      std::size_t first = 0;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const LayerPasses& kind = spec_.kinds[std::size_t(layers[i])];
        bucket.Add(kind.gather);
        parameters += kind.parameters;
        if (parameters < spec_.bucket_parameters && i + 1 < layers.size()) continue;
        gather(first, i + 1);
        parameters = 0;
        first = i + 1;
      }
      gather(0, 0);  // of a stage without layers
    }
    if (spec_.overlap_gather) return;
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (schedule_.rank_of_stage[std::size_t(stage)] != rank) continue;
      std::vector<TaskId>& gathers = layer_gather_[std::size_t(stage)];
      std::fill(gathers.begin(), gathers.end(), last_gather_);
    }
  }

  // Parameters that arrive under a stage's first forward.  Later stages have all of theirs by the
  // time that a first micro-batch arrives.
  void ContendWithGathers(int rank, int stage) {
    if (!spec_.overlap_gather || !schedule_.first_of_direction(stage)) return;
    for (std::size_t i = 0; i < Layers(stage).size(); ++i) {
      if (layer_gather_[std::size_t(stage)][i] == kNoTask) continue;
      const LayerPasses& kind = spec_.kinds[std::size_t(Layers(stage)[i])];
      Contend(rank, stage, spec_.contention * kind.gather.time());
    }
  }

  // The pieces of a pass in order, with their memory and what of data parallelism goes with them.
  // `first`: the stage's first forward, which waits for parameters.
  std::vector<Step> StepsOf(const Pass& pass, bool first) const {
    std::vector<Step> steps;
    const int stage = pass.stage;
    const std::vector<int>& layers = Layers(stage);
    const bool first_stage = schedule_.first_of_direction(stage);
    const bool last_stage = schedule_.last_of_direction(stage);
    const bool forward = pass.kind == PassKind::kForward;
    std::optional<std::size_t> sharded_before;
    const auto add = [&](std::size_t known, const LayerPasses& kind, TaskId gather) {
      const std::size_t begin = steps.size();
      const std::vector<Step>& pieces = known_[known][std::size_t(pass.kind)];
      steps.insert(steps.end(), pieces.begin(), pieces.end());
      if (steps.size() == begin) return;
      Step &head = steps[begin], &tail = steps.back();
      head.waits_for = gather;
      if (kind.copy.value > 0) head.offloaded = &kind;
      const Bytes saved = kind.saved + kind.offloaded;  // on the GPU while the layer is at work
      switch (pass.kind) {
        case PassKind::kForward:
          head.taken = saved;
          break;
        case PassKind::kBackward:
          head.taken = kind.working_set;
          tail.given_back = kind.working_set + saved;
          break;
        case PassKind::kBackwardInput:
          head.taken = kind.working_set + std::max(Bytes(0), kind.held_for_weight - saved);
          tail.given_back = kind.working_set + std::max(Bytes(0), saved - kind.held_for_weight);
          break;
        case PassKind::kBackwardWeight:
          tail.given_back = kind.held_for_weight;
          break;
      }
      tail.ends = &kind;
      const bool gathers =
          forward || !(kind.stays_gathered || pass.kind == PassKind::kBackwardWeight);
      if (kind.shard_gather.any() && gathers) {
        if (sharded_before) steps[*sharded_before].next_sharded = &kind;
        head.sharded = &kind;
        sharded_before = begin;
      }
    };
    const auto layer = [&](std::size_t i) {
      const LayerPasses& kind = spec_.kinds[std::size_t(layers[i])];
      const TaskId gather = first ? layer_gather_[std::size_t(stage)][i] : kNoTask;
      add(std::size_t(layers[i]), kind, gather);
    };
    if (forward) {
      if (first_stage) add(Embedding(), spec_.embedding, kNoTask);
      for (std::size_t i = 0; i < layers.size(); ++i) layer(i);
      if (last_stage) add(Head(), spec_.head, kNoTask);
    } else {
      if (last_stage) add(Head(), spec_.head, kNoTask);
      for (std::size_t i = layers.size(); i-- > 0;) layer(i);
      if (first_stage) add(Embedding(), spec_.embedding, kNoTask);
    }
    if (!spec_.compute_time.empty()) {
      const int rank = schedule_.rank_of_stage[std::size_t(stage)];
      for (Step& step : steps) {
        if (step.piece->stream == Stream::kCompute) step.duration = OnRank(rank, step.duration);
      }
    }
    return steps;
  }

  // ZeRO-3: each pass gathers each layer.  Overlapped, the next layer's gather is launched when a
  // layer begins to compute, before that layer's gradients are reduced.
  TaskId ShardGather(const Thread& thread, const Pass& pass, const LayerPasses& kind) {
    Seconds communication = kind.shard_gather.time();
    const bool forward = pass.kind == PassKind::kForward;
    if (!forward) communication += kind.shard_reduce.time();
    const bool overlapped = forward ? spec_.overlap_gather : spec_.overlap_reduce;
    if (overlapped) {
      ContendSharded(thread, forward ? kind.forward : kind.backward, communication);
    }
    return Communicate(thread, kind.shard_gather, "gather layer",
                       overlapped ? last_layer_end_ : thread.last());
  }

  // The last of the calls, which run one after the other.
  TaskId Communicate(const Thread& thread, const DataCalls& data, const char* label,
                     TaskId waits_for, Cause cause = Cause::kData) {
    TaskId last = kNoTask;
    for (const DataCall& call : data.calls) {
      if (call.duration.value <= 0) continue;
      const std::array<TaskId, 1> waits{waits_for};
      last = graph_.Add({.duration = call.duration,
                         .label = graph_.Label(label),
                         .micro_batch = thread.micro_batch,
                         .rank = std::uint16_t(thread.rank),
                         .stage = std::uint16_t(thread.stage),
                         .stream = Stream::kData,
                         .cause = cause,
                         .communication = graph_.Communicate(call.communication)},
                        waits);
    }
    return last;
  }

  Thread Start(int rank, const Pass& pass) {
    Thread thread{.rank = rank, .stage = pass.stage, .micro_batch = pass.micro_batch};
    thread.begin[2] = pass_barrier_;
    thread.begin[3] = last_send_;
    const std::size_t s = pass.stage, m = std::size_t(pass.micro_batch);
    switch (pass.kind) {
      case PassKind::kForward:
        if (!schedule_.first_of_direction(pass.stage)) {
          thread.begin[0] = Input(rank, pass.stage, pass.micro_batch, pass.stage - 1, forward_send_,
                                  forward_end_);
        }
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        thread.begin[0] = forward_end_[s][m];
        if (!schedule_.last_of_direction(pass.stage)) {
          thread.begin[1] = Input(rank, pass.stage, pass.micro_batch, pass.stage + 1,
                                  backward_send_, backward_end_);
        }
        break;
      case PassKind::kBackwardWeight:
        thread.begin[0] = backward_end_[s][m];
        break;
    }
    return thread;
  }

  // What of a pass runs piece after piece, whatever other passes do, as one task on the compute
  // stream.  Tasks are cut where another pass may run beside: before the first piece on a stream,
  // which may have to wait for an earlier pass, after the last one, which a later pass may wait
  // for, and what communicates before the first and after the last piece of compute stays as it is.
  std::vector<Step> Merge(const std::vector<Step>& steps) {
    struct Group {  // pieces beside each other; all before it have ended when it begins
      std::size_t begin = 0, end = 0;
      unsigned streams = 0, unseen = 0, last = 0;
    };
    std::vector<Group> groups;
    unsigned seen = 0;
    for (std::size_t at = 0; at < steps.size();) {
      Group& group = groups.emplace_back(Group{.begin = at, .end = GroupEnd(steps, at)});
      for (; at < group.end; ++at) group.streams |= Bit(steps[at].piece->stream);
      group.unseen = group.streams & ~seen;
      seen |= group.streams;
    }
    seen = 0;
    std::size_t last_compute = 0;
    for (std::size_t g = groups.size(); g-- > 0;) {
      groups[g].last = groups[g].streams & ~seen;
      seen |= groups[g].streams;
      if (groups[g].last & Bit(Stream::kCompute)) last_compute = g;
    }

    std::vector<Step> merged;
    bool computed = false, open = false;  // open: the last of `merged` can grow
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const Group& group = groups[g];
      const bool alone = group.end == group.begin + 1;
      const unsigned unseen = group.unseen & ~Bit(Stream::kCompute);
      computed = computed || (group.streams & Bit(Stream::kCompute)) != 0;
      if (!computed || g >= last_compute || (!alone && (group.unseen | group.last) != 0)) {
        merged.insert(merged.end(), steps.begin() + std::ptrdiff_t(group.begin),
                      steps.begin() + std::ptrdiff_t(group.end));
        open = false;
        continue;
      }
      if (!open || unseen != 0) {
        merged_pieces_.push_back({.label = "merged", .after = steps[group.begin].piece->after});
        merged.push_back(
            {.piece = &merged_pieces_.back(), .label = graph_.Label(merged_pieces_.back().label)});
      }
      Step& task = merged.back();
      task.streams |= group.streams & ~Bit(Stream::kCompute);
      Bytes taken, given_back;
      for (std::size_t i = group.begin; i < group.end; ++i) {
        taken += steps[i].taken;
        given_back += steps[i].given_back;
      }
      task.duration += LengthOf(steps, group.begin, group.end);
      // Taken at once is the most that its pieces hold, given back what they do not keep.
      const Bytes held = task.taken - task.given_back + taken;
      task.taken = std::max(task.taken, held);
      task.given_back = task.taken - held + given_back;
      open = (group.last & ~Bit(Stream::kCompute)) == 0;
    }
    return merged;
  }

  // The first piece after `begin` before which all must end: it and what is beside it wait for all
  // that nobody has waited for.
  static std::size_t GroupEnd(const std::vector<Step>& steps, std::size_t begin) {
    const auto waits = [&](std::size_t at, std::size_t awaited) {
      const auto& after = steps[at].piece->after;
      return std::find(after.begin(), after.end(), at - awaited) != after.end();
    };
    for (std::size_t at = begin + 1; at < steps.size(); ++at) {
      const std::size_t first = at - std::min(at - begin, kReach);
      bool all = true;
      for (std::size_t before = first; before < at && all; ++before) {
        bool awaited = false;
        for (std::size_t i = before + 1; i < at; ++i) awaited = awaited || waits(i, before);
        for (std::size_t i = at; i < std::min(at + kReach, steps.size()) && all && !awaited; ++i) {
          const auto& after = steps[i].piece->after;
          const bool within = std::any_of(after.begin(), after.end(), [&](std::size_t back) {
            return back > 0 && back <= i - at;
          });
          all = within || waits(i, before);
        }
      }
      if (all) return at;
    }
    return steps.size();
  }
  // How long the pieces of a group take together.
  static Seconds LengthOf(const std::vector<Step>& steps, std::size_t begin, std::size_t end) {
    std::vector<Seconds> ends;
    std::array<Seconds, kStreams> free{};
    Seconds length;
    for (std::size_t at = begin; at < end; ++at) {
      const Piece& piece = *steps[at].piece;
      Seconds& of_stream = free[std::size_t(piece.stream)];
      for (const std::size_t back : piece.after) {
        if (back > 0 && back <= ends.size()) {
          of_stream = std::max(of_stream, ends[ends.size() - back]);
        }
      }
      of_stream += steps[at].duration;
      ends.push_back(of_stream);
      length = std::max(length, of_stream);
    }
    return length;
  }

  bool CanMerge(const Pass& pass) const {
    if (detail_ == StepDetail::kPieces || sharded_) return false;
    const std::vector<int>& layers = Layers(pass.stage);
    if (std::any_of(layers.begin(), layers.end(),
                    [&](int k) { return spec_.kinds[std::size_t(k)].copy.value > 0; })) {
      return false;
    }
    return !CompletesGradients(pass.kind) || std::none_of(layers.begin(), layers.end(), [&](int k) {
      return spec_.kinds[std::size_t(k)].shard_reduce.any();
    });
  }
  const std::vector<Step>& MergedSteps(const Pass& pass) {
    std::vector<Step>& steps = merged_[std::size_t(pass.stage)][std::size_t(pass.kind)];
    if (steps.empty()) steps = Merge(StepsOf(pass, false));
    return steps;
  }

  void Emit(Thread& thread, const std::vector<Step>& steps, std::size_t& at, const Pass& pass,
            bool last_gradients) {
    // Pieces that run beside each other go together.
    bool together = true;
    while (together) {
      const Step& step = steps[at];
      TaskId gather = step.waits_for;
      TaskId moved = kNoTask;
      if (step.offloaded) {
        moved = pass.kind == PassKind::kForward ? copies_[0] : Fetch(thread, *step.offloaded);
      }
      if (step.sharded) {
        gather = thread.prefetched != kNoTask ? thread.prefetched
                                              : ShardGather(thread, pass, *step.sharded);
        thread.prefetched = kNoTask;
        const bool ahead =
            pass.kind == PassKind::kForward ? spec_.overlap_gather : spec_.overlap_reduce;
        if (step.next_sharded && ahead) {
          thread.prefetched = ShardGather(thread, pass, *step.next_sharded);
        }
      }
      const TaskId id = graph_.Add({.duration = step.duration,
                                    .taken = step.taken,
                                    .given_back = step.given_back,
                                    .label = step.label,
                                    .routed = step.piece->routed,
                                    .through = at + 1 == steps.size() ? kThroughPass
                                               : step.ends            ? kThroughLayer
                                                                      : step.piece->through,
                                    .micro_batch = thread.micro_batch,
                                    .rank = std::uint16_t(thread.rank),
                                    .stage = std::uint16_t(thread.stage),
                                    .stream = step.piece->stream,
                                    .cause = step.piece->cause,
                                    .communication = step.communication});
      if (in_pair_ && step.piece->sm_share > 0) {
        Contend(thread.rank, thread.stage, step.piece->sm_share * step.piece->duration,
                step.piece->cause, step.piece->routed);
      }
      bool first = false;
      for (const std::size_t back : step.piece->after) {
        if (back == 0) continue;
        if (back <= thread.pieces) {
          graph_.Wait(id, thread.recent[(thread.pieces - back) % thread.recent.size()]);
        } else if (!std::exchange(first, true)) {
          for (const TaskId awaited : thread.begin) graph_.Wait(id, awaited);
        }
      }
      graph_.Wait(id, gather);
      graph_.Wait(id, moved);
      graph_.Wait(id, std::exchange(thread.also, kNoTask));
      if (detail_ == StepDetail::kMerged) {
        const unsigned streams = step.streams | Bit(step.piece->stream);
        for (Stream stream : {Stream::kTensor, Stream::kContext, Stream::kExpert}) {
          if ((streams & Bit(stream)) == 0) continue;
          TaskId& last = last_of_stream_[std::size_t(stream)];
          graph_.Wait(id, last);
          last = id;
        }
      }
      thread.recent[thread.pieces++ % thread.recent.size()] = id;
      ++at;
      together = at < steps.size() && steps[at].piece->after[0] != 1;
      if (step.ends) LayerEnded(thread, *step.ends, pass, last_gradients);
    }
  }

  // What an offloaded layer has saved comes back while the backward of the one before it is run;
  // that of a pass's first while other passes are, once its own forward is over.
  TaskId Fetch(const Thread& thread, const LayerPasses& kind) {
    std::vector<TaskId>& copied =
        copied_out_[std::size_t(thread.stage)][std::size_t(thread.micro_batch)];
    MILLWRIGHT_CHECK(!copied.empty());
    const TaskId fetch = AddCopy(thread, kind, Stream::kFromHost, "fetch from host");
    graph_.Wait(fetch, copied.back());
    graph_.Wait(fetch, thread.begin[0]);
    for (const TaskId awaited : fetch_after_) graph_.Wait(fetch, awaited);
    if (thread.pieces > 0) {
      fetch_after_ = {thread.last(), kNoTask};
    } else {
      fetch_after_ = {thread.begin[1], last_pass_end_};
    }
    copied.pop_back();
    return fetch;
  }
  TaskId AddCopy(const Thread& thread, const LayerPasses& kind, Stream stream, const char* label) {
    const bool out = stream == Stream::kToHost;
    return graph_.Add({.duration = kind.copy,
                       .taken = out ? Bytes(0) : kind.offloaded,
                       .given_back = out ? kind.offloaded : Bytes(0),
                       .label = graph_.Label(label),
                       .micro_batch = thread.micro_batch,
                       .rank = std::uint16_t(thread.rank),
                       .stage = std::uint16_t(thread.stage),
                       .stream = stream,
                       .cause = Cause::kHost});
  }
  void CopyOut(const Thread& thread, const LayerPasses& kind) {
    const TaskId copy = AddCopy(thread, kind, Stream::kToHost, "copy to host");
    graph_.Wait(copy, thread.last());
    copies_ = {copies_[1], copy};
    copied_out_[std::size_t(thread.stage)][std::size_t(thread.micro_batch)].push_back(copy);
  }

  // Gradients of a layer are complete when its last backward is: they join the bucket.
  void LayerEnded(Thread& thread, const LayerPasses& kind, const Pass& pass, bool last_gradients) {
    last_layer_end_ = thread.last();
    if (kind.copy.value > 0 && pass.kind == PassKind::kForward) CopyOut(thread, kind);
    if (kind.shard_reduce.any() && CompletesGradients(pass.kind)) {
      TaskId& last = last_reduce_[std::size_t(thread.rank)];
      last = Communicate(thread, kind.shard_reduce, "reduce layer", thread.last());
      if (spec_.overlap_reduce && kind.stays_gathered) {
        ContendSharded(thread, kind.backward, kind.shard_reduce.time());
      } else if (spec_.overlap_reduce && !kind.shard_gather.any()) {
        Contend(thread.rank, thread.stage, spec_.contention * kind.shard_reduce.time());
      }
      if (!spec_.overlap_reduce) thread.also = last;
    }
    if (!last_gradients || !kind.reduce.any()) return;
    Bucket& bucket = unreduced_[std::size_t(thread.rank)];
    bucket.reduce.Add(kind.reduce);
    bucket.parameters += kind.parameters;
    bucket.from = thread;
    if (spec_.overlap_reduce && bucket.parameters >= spec_.bucket_parameters) {
      FlushBucket(thread.rank);
    }
  }
  void FlushBucket(int rank) {
    Bucket& bucket = unreduced_[std::size_t(rank)];
    if (!bucket.reduce.any()) return;
    last_reduce_[std::size_t(rank)] =
        Communicate(bucket.from, bucket.reduce, "reduce gradients", bucket.from.last());
    // Only the rank that is last to finish has no time to spare for it.
    const bool last_to_finish = rank == schedule_.rank_of_stage[0];
    if (spec_.overlap_reduce && last_to_finish)
      Contend(rank, bucket.from.stage, spec_.contention * bucket.reduce.time());
    bucket = {};
  }

  bool FirstForward(int rank, const Pass& pass) {
    if (pass.kind != PassKind::kForward) return false;
    const bool first = std::exchange(first_forward_[pass.stage], 0) != 0;
    if (first) ContendWithGathers(rank, pass.stage);
    return first;
  }
  bool LastGradients(const Pass& pass) {
    return CompletesGradients(pass.kind) && --passes_left_[pass.stage] == 0;
  }

  void End(const Thread& thread, const Pass& pass) {
    last_pass_end_ = thread.last();
    const std::size_t s = pass.stage, m = std::size_t(pass.micro_batch);
    switch (pass.kind) {
      case PassKind::kForward:
        forward_end_[s][m] = thread.last();
        if (!schedule_.last_of_direction(pass.stage)) Send(thread, pass.stage + 1, forward_send_);
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        backward_end_[s][m] = thread.last();
        if (!schedule_.first_of_direction(pass.stage)) {
          Send(thread, pass.stage - 1, backward_send_);
        }
        break;
      case PassKind::kBackwardWeight:
        break;
    }
    // FSDP waits for a backward pass's reductions before it goes on.
    if (CompletesGradients(pass.kind) && sharded_) {
      pass_barrier_ = last_reduce_[std::size_t(thread.rank)];
    }
  }

  void Run(int rank, const Pass& pass) {
    Thread thread = Start(rank, pass);
    const bool first = FirstForward(rank, pass);
    const bool last_gradients = LastGradients(pass);
    const bool merge = !first && !last_gradients && CanMerge(pass);
    const std::vector<Step> pieces = merge ? std::vector<Step>() : StepsOf(pass, first);
    const std::vector<Step>& steps = merge ? MergedSteps(pass) : pieces;
    MILLWRIGHT_CHECK(!steps.empty());
    for (std::size_t at = 0; at < steps.size();) Emit(thread, steps, at, pass, last_gradients);
    End(thread, pass);
  }

  // A forward and a backward whose pieces alternate: the communication of one runs under the
  // compute of the other.
  void RunTogether(int rank, const Pass& a, const Pass& b) {
    Thread first = Start(rank, a), second = Start(rank, b);
    const bool first_a = FirstForward(rank, a), first_b = FirstForward(rank, b);
    const std::vector<Step> steps_a = StepsOf(a, first_a), steps_b = StepsOf(b, first_b);
    const bool last_a = LastGradients(a), last_b = LastGradients(b);
    std::size_t at_a = 0, at_b = 0;
    in_pair_ = true;
    while (at_a < steps_a.size() || at_b < steps_b.size()) {
      // Keep the two in step by the share each has done.
      const bool take_a = at_b >= steps_b.size() ||
                          (at_a < steps_a.size() && at_a * steps_b.size() <= at_b * steps_a.size());
      if (take_a) {
        Emit(first, steps_a, at_a, a, last_a);
      } else {
        Emit(second, steps_b, at_b, b, last_b);
      }
    }
    in_pair_ = false;
    End(first, a);
    End(second, b);
  }

  void Finish(int rank) {
    const Thread end{.rank = rank,
                     .stage = schedule_.orders[std::size_t(rank)].back().stage,
                     .micro_batch = -1,
                     .begin = {last_layer_end_, kNoTask, kNoTask, kNoTask}};
    Bucket& bucket = unreduced_[std::size_t(rank)];
    if (!spec_.overlap_reduce || bucket.from.last() == kNoTask) bucket.from = end;
    FlushBucket(rank);
    TaskId& last = last_reduce_[std::size_t(rank)];
    const auto after = [&](TaskId task) {
      if (task != kNoTask) last = task;
    };
    if (!spec_.sums.empty()) {
      const GradientSums& sums = spec_.sums[std::size_t(rank)];
      const auto sum = [&](const DataCall& call, const char* label) {
        after(Communicate(end, {.calls = {call}}, label, Gradients(end)));
      };
      sum(sums.replicated, "sum replicated gradients");
      sum(sums.key_value, "sum KV gradients");
      after(ExchangeGradients(end, sums.copies, "exchange copies' gradients", copy_send_));
      after(ExchangeGradients(end, sums.tied, "sum tied gradients", tied_send_));
    }
    if (spec_.loss.duration.value > 0) {
      const std::array<TaskId, 1> waits{Gradients(end)};
      complete_.push_back(graph_.Add({.label = graph_.Label("gradients complete"),
                                      .rank = std::uint16_t(rank),
                                      .stage = std::uint16_t(end.stage),
                                      .stream = Stream::kCompute,
                                      .cause = Cause::kData},
                                     waits));
      last = Communicate(end, {.calls = {spec_.loss}}, "loss", complete_.back(), Cause::kPipeline);
      losses_.push_back(last);
    }
    const Seconds optimizer =
        spec_.optimizer.empty() ? Seconds(0) : spec_.optimizer[std::size_t(rank)];
    if (optimizer.value > 0) {
      const std::array<TaskId, 1> waits{last};
      graph_.Add({.duration = OnRank(rank, optimizer),
                  .label = graph_.Label("optimizer"),
                  .rank = std::uint16_t(rank),
                  .stage = std::uint16_t(end.stage),
                  .stream = Stream::kCompute,
                  .cause = Cause::kOptimizer},
                 waits);
    }
  }
  // What a rank's gradients are there after: reductions of what its passes have added up.
  TaskId Gradients(const Thread& end) const {
    const TaskId reduced = last_reduce_[std::size_t(end.rank)];
    return reduced != kNoTask ? reduced : end.last();
  }
  // Both ranks send what they have, and go on when both transfers are over.
  TaskId ExchangeGradients(const Thread& end, const DataCall& call, const char* label,
                           std::vector<TaskId>& sends) {
    if (call.duration.value <= 0) return kNoTask;
    const std::array<TaskId, 1> waits{Gradients(end)};
    const Task task{.label = graph_.Label(label),
                    .rank = std::uint16_t(end.rank),
                    .stage = std::uint16_t(end.stage),
                    .cause = Cause::kData};
    Task send = task, receive = task;
    send.duration = call.duration;
    send.stream = Stream::kSend;
    send.communication = graph_.Communicate(call.communication);
    receive.stream = Stream::kReceive;
    TaskId& own = sends[std::size_t(end.rank)];
    own = graph_.Add(send, waits);
    const TaskId received = graph_.Add(receive, std::array<TaskId, 1>{own});
    receives_.emplace_back(received, &sends[std::size_t(call.communication.to)]);
    return received;
  }

  struct Bucket {
    DataCalls reduce;
    double parameters = 0;
    Thread from;
  };

  const StepSpec& spec_;
  StepDetail detail_;
  const PipelineSchedule& schedule_;
  TaskGraph graph_;
  std::vector<KnownPasses> known_;              // of kinds of layers, embedding, head
  std::vector<KnownPasses> merged_;             // of each stage, once they were needed
  std::vector<std::array<double, 4>> slowing_;  //   and how many tasks; below 0: not yet known
  std::deque<Piece> merged_pieces_;
  std::array<TaskId, kStreams> last_of_stream_{};           // of a rank's passes; merged
  PassTable forward_end_, backward_end_;                    // last task of a pass
  PassTable forward_send_, backward_send_;                  // its transfer to the next stage
  std::vector<std::pair<TaskId, const TaskId*>> receives_;  // and the send each waits for
  // Copies to the host that have not come back, of each stage and micro-batch.
  std::vector<std::vector<std::vector<TaskId>>> copied_out_;
  std::array<TaskId, 2> copies_{kNoTask, kNoTask};  // of a rank, the last two to the host
  // After which the next one comes back: what the backward of the last that came back begins after.
  std::array<TaskId, 2> fetch_after_{kNoTask, kNoTask};
  TaskId last_pass_end_ = kNoTask;
  std::vector<int> passes_left_;     // of each stage, that complete gradients
  std::vector<char> first_forward_;  // of each stage: still to come
  std::vector<std::vector<TaskId>> layer_gather_;
  std::vector<Bucket> unreduced_;
  std::vector<TaskId> last_reduce_;  // of each rank
  std::vector<TaskId> copy_send_, tied_send_;
  std::vector<TaskId> complete_, losses_;  // of each rank: its gradients are there; loss summed
  TaskId last_gather_ = kNoTask;
  TaskId last_layer_end_ = kNoTask, pass_barrier_ = kNoTask;
  TaskId last_send_ = kNoTask;  // where sends are waited for
  bool sharded_ = false;        // ZeRO-3
  bool in_pair_ = false;        // two passes run together
};

}  // namespace

void DataCalls::Add(const DataCall& call, double share) {
  const Communication& to = call.communication;
  const auto same = std::find_if(calls.begin(), calls.end(), [&](const DataCall& known) {
    const Communication& c = known.communication;
    return c.kind == to.kind && c.stride == to.stride && c.ranks == to.ranks;
  });
  DataCall& sum = same != calls.end() ? *same : calls.emplace_back();
  sum.communication = {.kind = to.kind,
                       .payload = sum.communication.payload + share * to.payload,
                       .stride = to.stride,
                       .ranks = to.ranks};
  sum.duration += share * call.duration;
}

void DataCalls::Add(const DataCalls& more, double share) {
  for (const DataCall& call : more.calls) Add(call, share);
}

Seconds DataCalls::time() const {
  Seconds sum;
  for (const DataCall& call : calls) sum += call.duration;
  return sum;
}

double TaskCount(const StepSpec& spec, StepDetail detail) { return Builder(spec, detail).Tasks(); }

TaskGraph BuildStepGraph(const StepSpec& spec, StepDetail detail) {
  return Builder(spec, detail).Build();
}

}  // namespace millwright
