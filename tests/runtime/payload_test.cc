// SPDX-License-Identifier: Apache-2.0
//
// What a rank really sends against what the simulated step charges it: call by call the name, kind,
// group and payload, in a step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "planner/estimator.h"
#include "runtime/cpu_backend.h"
#include "runtime/execution.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

// By name, kind and group: bytes as the cost models count them.
using Payloads = std::map<std::string, double>;

std::string Key(std::string_view name, CollectiveKind kind, int stride, int ranks) {
  return fmt::format("{}: {} of {} ranks, {} apart", name, Name(kind), ranks, stride);
}

// What the step's passes on a pipeline rank and its data parallelism come to.
Payloads Charged(const StepSpec& spec, int rank, double table_share) {
  Payloads sum;
  const PipelineSchedule& schedule = spec.schedule;
  const auto pieces = [&](const std::vector<Piece>& of) {
    for (const Piece& piece : of) {
      const Communication& c = piece.communication;
      if (c.any()) sum[Key(piece.label, c.kind, c.stride, c.ranks)] += c.payload.value;
    }
  };
  const auto call = [&](const char* name, const DataCall& of, double times = 1) {
    const Communication& c = of.communication;
    if (of.duration.value > 0) sum[Key(name, c.kind, c.stride, c.ranks)] += times * c.payload.value;
  };
  const auto calls = [&](const char* name, const DataCalls& of, double times = 1) {
    for (const DataCall& one : of.calls) call(name, one, times);
  };
  const auto parts_of = [&](int stage) {
    std::vector<const LayerPasses*> parts;
    if (schedule.first_of_direction(stage)) parts.push_back(&spec.embedding);
    for (int kind : spec.layers_of_stage[std::size_t(stage)]) {
      parts.push_back(&spec.kinds[std::size_t(kind)]);
    }
    if (schedule.last_of_direction(stage)) parts.push_back(&spec.head);
    return parts;
  };
  const auto send = [&](int from, int to) {
    if (schedule.rank_of_stage[std::size_t(from)] == schedule.rank_of_stage[std::size_t(to)])
      return;
    sum[Key("send", CollectiveKind::kSendRecv, 1, 1)] += spec.transfer_payload.value;
  };
  for (const Pass& pass : schedule.orders[std::size_t(rank)]) {
    for (const LayerPasses* part : parts_of(pass.stage)) {
      switch (pass.kind) {
        case PassKind::kForward:
          pieces(part->forward);
          break;
        case PassKind::kBackward:
          pieces(part->backward);
          break;
        case PassKind::kBackwardInput:
          pieces(part->backward_input);
          break;
        case PassKind::kBackwardWeight:
          pieces(part->backward_weight);
          break;
      }
      // Under ZeRO-3 embedding and head are gathered before each forward pass and reduced after
      // each backward pass, as FSDP does; what is executed does so once a step.
      const double times = part->stays_gathered ? 1.0 / schedule.micro_batches_per_direction() : 1;
      if (pass.kind == PassKind::kForward ||
          (pass.kind != PassKind::kBackwardWeight && !part->stays_gathered)) {
        calls("gather parameters", part->shard_gather, times);
      }
      if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) {
        calls("reduce gradients", part->shard_reduce, times);
      }
    }
    const bool forward = pass.kind == PassKind::kForward;
    if (forward && !schedule.last_of_direction(pass.stage)) send(pass.stage, pass.stage + 1);
    if ((pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardInput) &&
        !schedule.first_of_direction(pass.stage)) {
      send(pass.stage, pass.stage - 1);
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of_stage[std::size_t(stage)] != rank) continue;
    for (const LayerPasses* part : parts_of(stage)) {
      calls("gather parameters", part->gather);
      calls("reduce gradients", part->reduce);
    }
  }
  const GradientSums& sums = spec.sums[std::size_t(rank)];
  call("sum replicated gradients", sums.replicated);
  call("sum KV gradients", sums.key_value);
  call("exchange copies' gradients", sums.copies);
  // Of the shards that ZeRO leaves; what is charged is the whole table, as Megatron-LM exchanges
  // it.
  call("sum tied gradients", sums.tied, table_share);
  call("loss", spec.loss);
  return sum;
}

// Of what ZeRO leaves a rank: where a norm lies in one rank's shard, the others have nothing to
// sum.
const std::set<std::string_view> kOfShards{"sum replicated gradients", "sum KV gradients",
                                           "exchange copies' gradients", "sum tied gradients"};

// What the simulated step has the host wait for, one number beside each routed row's h, and two for
// each tensor of a product in FP8.
const std::set<std::string_view> kNotCharged{"expert token counts", "expert weights", "fp8 scales"};

// Bytes of an element in the cost models' payloads: activations and parameters are BF16, gradients
// and the numbers of the cross-entropy are not.
double Width(std::string_view name) {
  return name == "reduce gradients" || name == "cross-entropy reduce" || name == "loss" ||
                 kOfShards.count(name) > 0
             ? 4
             : 2;
}

// By operator, what a rank's executed routing makes of the payload of balanced routing.  A pass
// forward has `sent` rows to give in dispatch and `received` in combine, a pass backward the other
// way round.
std::map<std::string, double> RoutingFactors(const std::vector<RoutedRows>& routed,
                                             int expert_tensor) {
  double balanced = 0, dispatched = 0, combined = 0, gathered = 0;
  for (const RoutedRows& rows : routed) {
    const int backward = rows.again ? 0 : 1;
    balanced += double(rows.sent) * (1 + backward);
    dispatched += double(rows.sent + backward * rows.received);
    combined += double(rows.received + backward * rows.sent);
    gathered += double(rows.gathered) * (1 + backward);
  }
  const double of_tensor = gathered / (balanced * expert_tensor);
  return {{"expert dispatch", dispatched / balanced},
          {"expert combine", combined / balanced},
          {"expert tensor gather", of_tensor},
          {"expert tensor scatter", of_tensor}};
}

Payloads Executed(const std::vector<ExecutedCall>& calls, const ParallelConfig& parallel) {
  Payloads sum;
  for (const ExecutedCall& call : calls) {
    if (kNotCharged.count(call.name) > 0) continue;
    const double bytes = Width(call.name) * double(call.elements);
    if (call.name == "ring kv exchange") {
      // r - 1 exchanges are charged as an all-gather, whose payload is that of r ranks.
      const int r = parallel.ring_ranks(), stride = parallel.tensor * parallel.ulysses_ranks();
      sum[Key(call.name, CollectiveKind::kAllGather, stride, r)] += bytes * r / (r - 1);
    } else {
      sum[Key(call.name, call.kind, call.stride, call.ranks)] += bytes;
    }
  }
  return sum;
}

void ExpectSamePayloads(const ModelConfig& model, const ParallelConfig& parallel,
                        std::int64_t global_batch = 8, bool tp_comm_overlap = false,
                        Precision precision = Precision::kBf16) {
  SCOPED_TRACE(fmt::format("{} {}", ShortName(parallel), NameOf(parallel.schedule)));
  Workload workload = TinyWorkload(model, parallel, global_batch);
  workload.training.tp_comm_overlap = tp_comm_overlap;
  workload.training.precision = precision;
  ASSERT_EQ(WhyNotExecutable(workload), std::vector<std::string>());
  const StepSpec spec = SpecOf(workload);
  workload.graph = BuildStepGraph(spec);
  std::vector<Payloads> executed(std::size_t(workload.ranks()));
  std::vector<std::vector<RoutedRows>> routed(executed.size());
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Execution execution(workload, backend);
    execution.ComputeGradients(0);
    execution.Update({});
    executed[std::size_t(communicator.rank())] = Executed(execution.calls(), parallel);
    routed[std::size_t(communicator.rank())] = execution.routed();
  });
  // Shards differ by what lies in them: a rank is charged the mean over those of its pipeline rank.
  std::vector<Payloads> of_shards(std::size_t(parallel.pipeline));
  const int plane = workload.ranks() / parallel.pipeline;
  for (int rank = 0; rank < workload.ranks(); ++rank) {
    for (const auto& [key, bytes] : executed[std::size_t(rank)]) {
      if (kOfShards.count(key.substr(0, key.find(':'))) == 0) continue;
      of_shards[std::size_t(PlaceOf(parallel, rank).pipeline)][key] += bytes / plane;
    }
  }
  for (int rank = 0; rank < workload.ranks(); ++rank) {
    const int pipeline = PlaceOf(parallel, rank).pipeline;
    Payloads& of_rank = executed[std::size_t(rank)];
    for (const auto& [key, bytes] : of_shards[std::size_t(pipeline)]) of_rank[key] = bytes;
    const int shard = parallel.data * parallel.context;
    Payloads charged = Charged(spec, pipeline, parallel.zero > 0 ? 1.0 / shard : 1);
    if (model.has_moe()) {
      const auto factors = RoutingFactors(routed[std::size_t(rank)], parallel.expert_tensor);
      for (auto& [key, bytes] : charged) {
        const auto factor = factors.find(key.substr(0, key.find(':')));
        if (factor != factors.end()) bytes *= factor->second;
      }
    }
    if (model.tied_embeddings && pipeline > 0 && pipeline == parallel.pipeline - 1) {
      // The head's own token table, whose data parallelism the step does not charge.
      const double table =
          double(PartsOf(workload, -1, PlaceOf(parallel, rank)).front().elements());
      const CollectiveKind reduction =
          parallel.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
      charged[Key("reduce gradients", reduction, parallel.tensor, shard)] += 4 * table;
      if (parallel.zero > 0) {
        charged[Key("gather parameters", CollectiveKind::kAllGather, parallel.tensor, shard)] +=
            2 * table;
      }
    }
    EXPECT_FALSE(charged.empty());
    for (const auto& [key, bytes] : charged) {
      const auto found = of_rank.find(key);
      if (found == of_rank.end()) {
        ADD_FAILURE() << "rank " << rank << " has not executed " << key;
      } else {
        EXPECT_NEAR(found->second, bytes, 1e-9 * bytes) << "rank " << rank << " " << key;
      }
    }
    for (const auto& [key, bytes] : of_rank) {
      EXPECT_TRUE(charged.count(key) > 0) << key << " is not charged: " << bytes;
    }
  }
}

TEST(Payload, OfTensorParallelism) {
  for (bool sequence_parallel : {false, true}) {
    for (int tensor : {2, 4}) {
      const ParallelConfig parallel{.tensor = tensor, .sequence_parallel = sequence_parallel};
      ExpectSamePayloads(TinyModel(), parallel);
      // In chunks, the same bytes.
      ExpectSamePayloads(TinyModel(), parallel, 8, true);
    }
  }
}

TEST(Payload, OfEverySchedule) {
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    ExpectSamePayloads(WithLayers(TinyModel(), 8),
                       {.tensor = 2,
                        .sequence_parallel = true,
                        .pipeline = 2,
                        .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                        .schedule = name.value});
  }
  ParallelConfig divided{.tensor = 2, .pipeline = 4};
  divided.stage_layers = {3, 2, 2, 1};
  ExpectSamePayloads(WithLayers(TinyModel(), 8), divided);
}

TEST(Payload, OfContextParallelism) {
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    for (int context : {2, 4}) {
      ExpectSamePayloads(TinyModel(), {.context = context, .context_kind = kind});
      ExpectSamePayloads(
          TinyModel(),
          {.tensor = 2, .sequence_parallel = true, .context = context, .context_kind = kind});
    }
  }
}

TEST(Payload, OfNestedContextParallelism) {
  for (const auto& [context, inner] : {std::pair(4, 2), std::pair(8, 2), std::pair(8, 4)}) {
    const ParallelConfig parallel{
        .context = context, .context_kind = ContextParallelKind::kNested, .context_ulysses = inner};
    ExpectSamePayloads(TinyModel(), parallel);
  }
  for (const bool sequence_parallel : {false, true}) {
    ExpectSamePayloads(TinyModel(), {.tensor = 2,
                                     .sequence_parallel = sequence_parallel,
                                     .context = 4,
                                     .context_kind = ContextParallelKind::kNested,
                                     .context_ulysses = 2});
  }
}

TEST(Payload, OfDataParallelism) {
  for (int zero : {0, 1, 2, 3}) {
    // 3 does not divide the layers' parameters.
    ExpectSamePayloads(TinyModel(), {.data = 3, .zero = zero}, 6);
    ExpectSamePayloads(TinyModel(),
                       {.tensor = 2, .context = 2, .pipeline = 2, .data = 2, .zero = zero});
  }
}

// Four and eight tensor ranks on two KV heads, biases of row-parallel layers and of heads.
TEST(Payload, OfGradientsThatTensorRanksHaveInParts) {
  for (int tensor : {2, 4, 8}) {
    for (int zero : {0, 1, 3}) {
      ExpectSamePayloads(
          WithBiases(TinyModel()),
          {.tensor = tensor, .sequence_parallel = true, .data = tensor == 8 ? 1 : 2, .zero = zero});
    }
  }
}

TEST(Payload, OfDualPipesCopies) {
  for (int zero : {0, 1}) {
    ExpectSamePayloads(
        WithLayers(TinyModel(), 4),
        {.tensor = 2, .pipeline = 2, .data = 2, .zero = zero, .schedule = ScheduleKind::kDualPipe},
        16);
  }
}

TEST(Payload, OfSelectiveRecomputation) {
  for (RecomputeModule module :
       {RecomputeModule::kCoreAttn, RecomputeModule::kMlp, RecomputeModule::kLayerNorm}) {
    ExpectSamePayloads(TinyModel(), {.tensor = 2,
                                     .sequence_parallel = true,
                                     .context = 2,
                                     .recompute = {.granularity = RecomputeGranularity::kSelective,
                                                   .modules = {module}}});
  }
}

TEST(Payload, OfExpertParallelism) {
  for (const ModelConfig& model : {TinyMoe(), TinyMoe(24)}) {
    ExpectSamePayloads(model, {.data = 4, .expert = 4});
    ExpectSamePayloads(model, {.data = 4, .expert = 2, .expert_tensor = 2});
    ExpectSamePayloads(
        model,
        {.tensor = 2, .sequence_parallel = true, .data = 2, .expert = 2, .expert_tensor = 2});
  }
  for (const int zero : {0, 1, 2, 3}) {
    ExpectSamePayloads(TinyMoe(24), {.tensor = 2,
                                     .sequence_parallel = true,
                                     .pipeline = 2,
                                     .data = 2,
                                     .expert = 2,
                                     .zero = zero,
                                     .schedule = ScheduleKind::kZbH1});
  }
  for (const RecomputeModule module : {RecomputeModule::kMoe, RecomputeModule::kMoeAct}) {
    ExpectSamePayloads(TinyMoe(24), {.tensor = 2,
                                     .sequence_parallel = true,
                                     .data = 2,
                                     .expert = 2,
                                     .expert_tensor = 2,
                                     .recompute = {.granularity = RecomputeGranularity::kSelective,
                                                   .modules = {module}}});
  }
}

TEST(Payload, OfATiedHead) {
  for (const int zero : {0, 1}) {
    ExpectSamePayloads(
        TinyGpt(),
        {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .data = 2, .zero = zero});
    ExpectSamePayloads(TinyGpt(), {.tensor = 2, .data = 2, .zero = zero});
  }
}

// Of all rows that ranks send, those whose expert is on another rank go over a link, once forward
// and once backward, as wide as a float.
TEST(Payload, BytesOfDispatchAreTheRowsThatLeaveTheirRank) {
  const Workload workload = TinyWorkload(TinyMoe(), {.data = 4, .expert = 4});
  std::int64_t away = 0, sent = 0;
  std::mutex mutex;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Execution execution(workload, backend);
    execution.ComputeGradients(0);
    const std::lock_guard lock(mutex);
    for (const RoutedRows& rows : execution.routed()) away += rows.away;
    for (const ExecutedCall& call : execution.calls()) {
      if (call.name == "expert dispatch") sent += call.sent_bytes;
    }
  });
  // 3 layers, 4 sequences of 16 tokens to 2 experts each, 3 in 4 of them on another rank: about.
  EXPECT_NEAR(double(away), 3 * 4 * 16 * 2 * 0.75, 3 * 4 * 16 * 2 * 0.1);
  EXPECT_EQ(sent, 2 * away * 16 * 4);
}

// Router and norms of heads are among what tensor ranks hold alike.
TEST(Payload, OfNormedHeads) {
  ModelConfig model = WithLayers(TinyModel(), 2);
  model.qk_layernorm = true;
  for (const bool sequence_parallel : {false, true}) {
    ExpectSamePayloads(model, {.tensor = 4, .sequence_parallel = sequence_parallel, .data = 2});
  }
}

TEST(Payload, OfFullRecomputation) {
  ExpectSamePayloads(TinyModel(), {.tensor = 2,
                                   .sequence_parallel = true,
                                   .pipeline = 2,
                                   .data = 2,
                                   .zero = 3,
                                   .recompute = {.granularity = RecomputeGranularity::kFull}});
}

// In FP8 every other message is what it was.
TEST(Payload, OfProductsInFp8) {
  const ParallelConfig parallel{.tensor = 2,
                                .sequence_parallel = true,
                                .pipeline = 2,
                                .data = 2,
                                .zero = 3,
                                .schedule = ScheduleKind::kZbH1};
  ExpectSamePayloads(TinyModel(), parallel, 8, false, Precision::kFp8);
  ParallelConfig with_experts = parallel;
  with_experts.expert = 2;
  ExpectSamePayloads(TinyMoe(24), with_experts, 8, false, Precision::kFp8);
}

// The tasks of a stream of the graph, and what of the calls belongs to it.
std::vector<std::string> Program(const TaskGraph& graph, int rank, Stream stream) {
  std::vector<std::string> program;
  for (TaskId id : graph.program(rank, stream)) {
    const Task& task = graph.task(id);
    const Communication& c = graph.communications()[task.communication];
    program.push_back(fmt::format("{} {} {}", graph.label(id), Name(c.kind), c.payload.value));
  }
  return program;
}

std::vector<std::string> Program(const std::vector<ExecutedCall>& calls, CollectiveKind kind,
                                 int ranks) {
  std::vector<std::string> program;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ExecutedCall& call = calls[i];
    const bool transfer = call.kind == CollectiveKind::kSendRecv;
    // Sums of gradients are on the graph's data stream, and those of shards of other shards' size.
    if (call.name == "loss" || kOfShards.count(call.name) > 0 ||
        transfer != (kind == CollectiveKind::kSendRecv) || call.ranks != ranks) {
      continue;
    }
    // Three reductions of the cross-entropy are one task.
    const int together = call.name == "cross-entropy reduce" ? 3 : 1;
    program.push_back(fmt::format("{} {} {}", call.name, Name(call.kind),
                                  together * Width(call.name) * double(call.elements)));
    i += std::size_t(together) - 1;
  }
  return program;
}

// What the graph has on its streams of tensor collectives and of sends, in its order.  Pairs of
// passes that overlap are left out: they take turns by tasks there, by operators here.
TEST(Payload, OrderIsThatOfTheTaskGraph) {
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    if (name.value == ScheduleKind::kDualPipe || name.value == ScheduleKind::kDualPipeV) continue;
    SCOPED_TRACE(name.name);
    const ParallelConfig parallel{.tensor = 2,
                                  .sequence_parallel = true,
                                  .pipeline = 4,
                                  .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                                  .schedule = name.value};
    const Workload workload = TinyWorkload(WithLayers(TinyModel(), 8), parallel, 8);
    const TaskGraph graph = BuildStepGraph(SpecOf(workload));
    std::mutex mutex;
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      CpuBackend<float> backend(communicator);
      Execution execution(workload, backend);
      execution.ComputeGradients(0);
      const int pipeline = PlaceOf(parallel, communicator.rank()).pipeline;
      const auto tensor = Program(execution.calls(), CollectiveKind::kAllReduce, 2);
      const auto sent = Program(execution.calls(), CollectiveKind::kSendRecv, 1);
      const std::lock_guard lock(mutex);
      EXPECT_GT(tensor.size(), 8U * 2 * 8);
      EXPECT_EQ(tensor, Program(graph, pipeline, Stream::kTensor));
      EXPECT_EQ(sent, Program(graph, pipeline, Stream::kSend));
    });
  }
}

// A ring of n sends 2(n-1)/n of the payload for an all-reduce and (n-1)/n for the others; a
// rank of `elements` as wide as a float.
TEST(Payload, BytesSentAreThoseOfTheAlgorithm) {
  RunThreads(4, [](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    const RankGroup group{.first = 0, .stride = 1, .ranks = 4};
    Tensor data = Tensor::Zeros(backend, 1, 40), other(backend, 1, 40);
    backend.Collective("a", CollectiveKind::kAllReduce, group, data);
    backend.Collective("b", CollectiveKind::kReduceScatter, group, data);
    backend.Collective("c", CollectiveKind::kAllGather, group, data);
    backend.AllToAll("d", group, data, other);
    std::vector<std::int64_t> sent;
    for (const ExecutedCall& call : backend.calls()) sent.push_back(call.sent_bytes);
    // 160 B of payload: 2 x 3/4 of it, and three times 3/4.
    EXPECT_EQ(sent, (std::vector<std::int64_t>{240, 120, 120, 120}));
  });
}

}  // namespace
}  // namespace millwright
