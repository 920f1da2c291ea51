// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <random>

#include "core/config_io.h"
#include "sim/schedule_timing.h"
#include "sim/step_graph.h"

namespace millwright {
namespace {

TaskId AddTo(TaskGraph& graph, int rank, Stream stream, double seconds,
             std::initializer_list<TaskId> waits = {}, Cause cause = Cause::kCompute) {
  return graph.Add({.duration = Seconds(seconds),
                    .label = graph.Label("task"),
                    .rank = std::uint16_t(rank),
                    .stream = stream,
                    .cause = cause},
                   waits);
}

TEST(Simulate, StreamsRunInOrderAndSideBySide) {
  // compute: a (2) then c (3); tensor: b (4) after a.  b ends at 6, c at 5; d waits for both.
  TaskGraph graph(1);
  const TaskId a = AddTo(graph, 0, Stream::kCompute, 2);
  const TaskId b = AddTo(graph, 0, Stream::kTensor, 4, {a}, Cause::kTensor);
  const TaskId c = AddTo(graph, 0, Stream::kCompute, 3);
  const TaskId d = AddTo(graph, 0, Stream::kCompute, 1, {b, c});
  graph.Seal();
  const Timeline t = Simulate(graph);
  EXPECT_EQ(t.end[b].value, 6);
  EXPECT_EQ(t.end[c].value, 5);
  EXPECT_EQ(t.start[d].value, 6);
  EXPECT_EQ(t.makespan.value, 7);
  const RankTime time = TimeOfRank(graph, t, 0);
  EXPECT_EQ(time.busy[std::size_t(Cause::kCompute)].value, 6);
  EXPECT_EQ(time.waiting[std::size_t(Cause::kTensor)].value, 1);
  EXPECT_EQ(time.total().value, 7);
}

TEST(Simulate, WaitsMayNameLaterTasks) {
  TaskGraph graph(2);
  const TaskId receive = AddTo(graph, 0, Stream::kReceive, 0);
  const TaskId use = AddTo(graph, 0, Stream::kCompute, 1, {receive});
  const TaskId make = AddTo(graph, 1, Stream::kCompute, 5);
  const TaskId send = AddTo(graph, 1, Stream::kSend, 2, {make});
  graph.Wait(receive, send);
  graph.Seal();
  EXPECT_EQ(Simulate(graph).end[use].value, 8);
}

TEST(Simulate, PeakMemoryIsOfWhatIsHeldAtOnce) {
  // Two forwards take 10 each, the backward 5 more; it gives back its 5 and one 10 at its end.
  TaskGraph graph(1);
  for (int i = 0; i < 2; ++i) {
    graph.Add({.duration = Seconds(1), .taken = Bytes(10), .label = graph.Label("forward")});
  }
  const TaskId backward = graph.Add({.duration = Seconds(1),
                                     .taken = Bytes(5),
                                     .given_back = Bytes(15),
                                     .label = graph.Label("backward")});
  graph.Add({.duration = Seconds(1), .taken = Bytes(12), .label = graph.Label("forward")});
  graph.Seal();
  const Timeline t = Simulate(graph);
  EXPECT_EQ(t.peak[0].value, 25);  // then 10 + 12
  EXPECT_EQ(t.peak_task[0], backward);
}

TEST(Simulate, ADeadlockSaysWhoWaitsForWhom) {
  TaskGraph graph(2);
  const TaskId a = AddTo(graph, 0, Stream::kReceive, 0);
  const TaskId b = AddTo(graph, 0, Stream::kSend, 1, {a});
  const TaskId c = AddTo(graph, 1, Stream::kReceive, 0, {b});
  const TaskId d = AddTo(graph, 1, Stream::kSend, 1, {c});
  graph.Wait(a, d);
  graph.Seal();
  EXPECT_EQ(Simulate(graph).deadlock,
            "rank 0 send \"task\" (stage 0, micro-batch -1) waits for rank 0 receive \"task\" "
            "(stage 0, micro-batch -1)\n"
            "rank 0 receive \"task\" (stage 0, micro-batch -1) waits for rank 1 send \"task\" "
            "(stage 0, micro-batch -1)\n"
            "rank 1 send \"task\" (stage 0, micro-batch -1) waits for rank 1 receive \"task\" "
            "(stage 0, micro-batch -1)\n"
            "rank 1 receive \"task\" (stage 0, micro-batch -1) waits for rank 0 send \"task\" "
            "(stage 0, micro-batch -1)");
}

TEST(Simulate, TwoSimulationsDoNotTouch) {
  TaskGraph graph(1);
  AddTo(graph, 0, Stream::kCompute, 1);
  graph.Seal();
  EXPECT_EQ(Simulate(graph).makespan, Simulate(graph).makespan);
}

// A step of plain layers, one a stage: the graph gives what the schedule's own timing gives.
StepSpec PlainStep(const ScheduleChoice& choice, double f, double b, double w, double transfer) {
  StepSpec spec;
  spec.schedule = BuildSchedule(choice);
  LayerPasses layer;
  const double chunk = 1.0 / spec.schedule.chunk_cost_divisor;
  const auto piece = [&](double seconds) {
    return std::vector<Piece>{{.label = "layer", .duration = Seconds(seconds * chunk)}};
  };
  layer.forward = piece(f);
  layer.backward = piece(b + w);
  layer.backward_input = piece(b);
  layer.backward_weight = piece(w);
  layer.saved = layer.held_for_weight = Bytes(1);
  spec.kinds = {layer};
  spec.layers_of_stage.assign(std::size_t(spec.schedule.stages()), {0});
  spec.transfer = Seconds(transfer);
  return spec;
}

// One micro-batch through four layers of 1 s forward and 2 s backward, each of which saves a byte.
StepSpec OffloadingStep(double copy, const std::vector<int>& kinds) {
  StepSpec spec = PlainStep({.pipeline = 1, .micro_batches = 1}, 1, 2, 0, 0);
  LayerPasses offloaded = spec.kinds.front();
  offloaded.saved = Bytes(0);
  offloaded.offloaded = Bytes(1);
  offloaded.copy = Seconds(copy);
  spec.kinds.push_back(offloaded);
  spec.layers_of_stage = {kinds};
  return spec;
}

TEST(StepGraph, OffloadedLayersComeBackOneAhead) {
  // All four, of 3 s a copy.  Forwards end at 1, 2, and, since the third waits for the first copy
  // and the fourth for the second, at 5 and 8; copies at 4, 7, 10 and 13.  The last comes back from
  // 13 to 16 and the others behind it, each while the backward of the one before runs: backwards
  // end at 18, 21, 24 and 27.  No more than two layers are there at a time. Two of the four, of 1
  // s: hidden.  Two layers stay, and never is more than one of the others there.
  for (const StepDetail detail : {StepDetail::kPieces, StepDetail::kMerged}) {
    Timeline timeline = Simulate(BuildStepGraph(OffloadingStep(3, {1, 1, 1, 1}), detail));
    EXPECT_EQ(timeline.makespan.value, 27);
    EXPECT_EQ(timeline.peak[0].value, 2);
    timeline = Simulate(BuildStepGraph(OffloadingStep(1, {1, 0, 1, 0}), detail));
    EXPECT_EQ(timeline.makespan.value, 12);  // 4 x (1 + 2)
    EXPECT_EQ(timeline.peak[0].value, 3);
  }
  const StepSpec spec = OffloadingStep(3, {1, 1, 1, 1});
  const TaskGraph graph = BuildStepGraph(spec);
  EXPECT_EQ(TaskCount(spec), double(graph.size()) + 2);  // which counts what a pass may send
  const RankTime time = TimeOfRank(graph, Simulate(graph), 0);
  EXPECT_EQ(time.waiting[std::size_t(Cause::kHost)].value, 27 - 12);
}

// Layers with every kind of stream, tails that run under the next pass, and pieces side by side.
StepSpec RandomStep(const ScheduleChoice& choice, std::mt19937& random) {
  const auto seconds = [&] { return Seconds(double(1 + random() % 1000) / 64); };
  const auto pieces = [&] {
    constexpr Stream kStreamsOfPass[] = {Stream::kCompute, Stream::kTensor,  Stream::kCompute,
                                         Stream::kContext, Stream::kCompute, Stream::kExpert};
    std::vector<Piece> list;
    std::array<std::uint8_t, 2> after{1, 0};
    const auto add = [&](Stream stream) {
      list.push_back({.label = "piece", .duration = seconds(), .stream = stream, .after = after});
    };
    const auto any = [&] { return kStreamsOfPass[random() % std::size(kStreamsOfPass)]; };
    for (auto left = 1 + random() % 6; left > 0; --left) {
      switch (random() % 8) {
        case 0:  // two side by side
        case 1: {
          const bool joins = after[1] != 0;
          add(any());
          after = {2, std::uint8_t(joins ? 3 : 0)};
          add(any());
          after = {1, 2};
          break;
        }
        case 2:  // chunks, each after its exchange
          if (after[1] != 0) break;
          add(Stream::kTensor);
          after = {2, 0};
          add(Stream::kCompute);
          add(Stream::kTensor);
          after = {3, 2};
          add(Stream::kCompute);
          after = {2, 1};
          add(Stream::kCompute);
          after = {1, 0};
          break;
        case 3:  // exchanges, each after its chunk
          add(Stream::kCompute);
          after = {1, 0};
          add(Stream::kTensor);
          after = {2, 0};
          add(Stream::kCompute);
          after = {1, 2};
          add(Stream::kTensor);
          after = {2, 0};
          add(Stream::kCompute);
          after = {1, 2};
          break;
        default:
          add(any());
          after = {1, 0};
      }
    }
    if (list.empty() || after[1] != 0) add(Stream::kCompute);
    return list;
  };
  const auto layer = [&] {
    LayerPasses passes{.forward = pieces(),
                       .backward = pieces(),
                       .backward_input = pieces(),
                       .backward_weight = pieces(),
                       .saved = Bytes(double(random() % 100)),
                       .held_for_weight{},
                       .working_set = Bytes(double(random() % 50)),
                       .parameters = 1};
    passes.held_for_weight = 0.5 * passes.saved;
    if (random() % 2) passes.reduce.Add({.duration = seconds()});
    if (random() % 2) passes.gather.Add({.duration = seconds()});
    return passes;
  };
  StepSpec spec;
  spec.schedule = BuildSchedule(choice);
  spec.kinds = {layer(), layer()};
  if (random() % 2) spec.embedding = layer();
  if (random() % 2) spec.head = layer();
  for (int s = 0; s < spec.schedule.stages(); ++s) {
    auto& layers = spec.layers_of_stage.emplace_back();
    for (std::size_t i = 0; i <= random() % 4; ++i) layers.push_back(int(random() % 2));
  }
  if (random() % 4 == 0) {
    for (LayerPasses& kind : spec.kinds) kind.shard_reduce.Add({.duration = seconds()});
  }
  spec.transfer = seconds();
  spec.optimizer.assign(std::size_t(choice.pipeline), seconds());
  spec.contention = 0.5;
  spec.bucket_parameters = double(1 + random() % 3);
  spec.overlap_gather = random() % 2;
  spec.overlap_reduce = random() % 2;
  spec.overlap_transfers = random() % 2;
  return spec;
}

TEST(StepGraph, MergedItIsTheSameStep) {
  std::mt19937 random(11);
  double tasks = 0, merged_tasks = 0;
  for (const EnumName<ScheduleKind>& name : ScheduleKindNames()) {
    if (name.value == ScheduleKind::kForwardOnly) continue;
    for (int trial = 0; trial < 60; ++trial) {
      ScheduleChoice choice{
          .kind = name.value, .pipeline = 1 << (1 + random() % 3), .micro_batches = 0};
      choice.micro_batches = 2 * choice.pipeline * int(1 + random() % 2);
      if (name.value == ScheduleKind::kInterleaved || name.value == ScheduleKind::kBreadthFirst) {
        choice.virtual_stages = int(2 + random() % 2);
      }
      const StepSpec spec = RandomStep(choice, random);
      const TaskGraph graph = BuildStepGraph(spec);
      const TaskGraph merged = BuildStepGraph(spec, StepDetail::kMerged);
      const Timeline timeline = Simulate(graph), same = Simulate(merged);
      ASSERT_EQ(timeline.deadlock, "") << name.name;
      ASSERT_EQ(same.deadlock, "") << name.name;
      EXPECT_NEAR(same.makespan / timeline.makespan, 1, 1e-12) << name.name << " " << trial;
      for (std::size_t rank = 0; rank < timeline.peak.size(); ++rank) {
        // Taken at once: more, where what an earlier pass has left to communicate ends meanwhile.
        EXPECT_GE(same.peak[rank].value, timeline.peak[rank].value * (1 - 1e-12)) << name.name;
      }
      // All but data parallelism's.
      EXPECT_NEAR(TaskCount(spec) / double(graph.size()), 1, 0.5) << name.name;
      EXPECT_NEAR(TaskCount(spec, StepDetail::kMerged) / double(merged.size()), 1, 0.5)
          << name.name;
      tasks += double(graph.size());
      merged_tasks += double(merged.size());
    }
  }
  EXPECT_LT(merged_tasks, 0.75 * tasks);
}

TEST(StepGraph, EqualsTheTimingOfEverySchedule) {
  for (const EnumName<ScheduleKind>& name : ScheduleKindNames()) {
    if (name.value == ScheduleKind::kForwardOnly) continue;
    for (int p : {2, 4, 8}) {
      for (const double transfer : {0.0, 0.25}) {
        ScheduleChoice choice{.kind = name.value, .pipeline = p, .micro_batches = 2 * p};
        if (name.value == ScheduleKind::kInterleaved || name.value == ScheduleKind::kBreadthFirst) {
          choice.virtual_stages = 2;
        }
        const StepSpec spec = PlainStep(choice, 10, 12, 8, transfer);
        const TaskGraph graph = BuildStepGraph(spec);
        const Timeline timeline = Simulate(graph);
        ASSERT_EQ(timeline.deadlock, "") << name.name;
        const ScheduleTiming timing =
            TimeSchedule(spec.schedule, EvenCosts(spec.schedule,
                                                  {.forward = Seconds(10),
                                                   .backward_input = Seconds(12),
                                                   .backward_weight = Seconds(8)},
                                                  Seconds(transfer)));
        const bool pairs =
            name.value == ScheduleKind::kDualPipe || name.value == ScheduleKind::kDualPipeV;
        // A pair's two passes end together in the timing; one after the other in the graph, where
        // the first of them lets others go on earlier.
        if (pairs) {
          EXPECT_LE(timeline.makespan.value, timing.makespan.value * (1 + 1e-12)) << name.name;
          EXPECT_GE(timeline.makespan.value, timing.makespan.value * 0.85) << name.name;
        } else {
          EXPECT_NEAR(timeline.makespan / timing.makespan, 1, 1e-12) << name.name << " " << p;
          for (int rank = 0; rank < p; ++rank) {
            EXPECT_EQ(timeline.peak[std::size_t(rank)].value,
                      timing.in_flight_until_w[std::size_t(rank)])
                << name.name << " rank " << rank;
          }
        }
      }
    }
  }
}

TEST(StepGraph, GradientsAreReducedUnderTheLastBackward) {
  // One rank, two layers, one micro-batch: forward 1 + 1, backward 2 + 2, reduce 1 a layer, buckets
  // of one layer, no contention.  The first reduce hides; the second runs after the backward.
  StepSpec spec = PlainStep({.pipeline = 1, .micro_batches = 1}, 1, 1, 1, 0);
  spec.layers_of_stage = {{0, 0}};
  spec.kinds[0].parameters = 1;
  spec.kinds[0].reduce.Add({.duration = Seconds(1)});
  spec.bucket_parameters = 1;
  spec.optimizer = {Seconds(0.5)};
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 2 + 4 + 1 + 0.5);
  spec.overlap_reduce = false;
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 2 + 4 + 2 + 0.5);
  // With contention each overlapped reduce costs 0.25 of itself on the compute stream: the first
  // delays the second layer's backward, the second runs beside the reduce it comes from.
  spec.overlap_reduce = true;
  spec.contention = 0.25;
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 2 + 4 + 0.25 + 1 + 0.5);
}

TEST(StepGraph, ShardedLayersAreGatheredOneAhead) {
  // Three layers, forward 2 each, gather 1 each: only the first gather shows.  Backward 4 each and
  // gather 1: again the first, and the last layer's reduce of 1 at the end.
  StepSpec spec = PlainStep({.pipeline = 1, .micro_batches = 1}, 2, 2, 2, 0);
  spec.layers_of_stage = {{0, 0, 0}};
  spec.kinds[0].shard_gather.calls = {{.duration = Seconds(1)}};
  spec.kinds[0].shard_reduce.calls = {{.duration = Seconds(1)}};
  spec.optimizer = {Seconds(0.5)};
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 1 + 6 + 1 + 12 + 1 + 0.5);
  // Gathers of 3 under forwards of 2: each layer waits one more second than it computes.
  spec.kinds[0].shard_gather.calls = {{.duration = Seconds(3)}};
  spec.kinds[0].shard_reduce.calls = {{.duration = Seconds(0)}};
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value,
                   (3 + 3 + 3 + 2) + (3 + 4 + 4 + 4) + 0.5);
}

TEST(StepGraph, CommunicationSlowsTheOtherPassOfItsPair) {
  // F = 2 compute, 1 exchange, 2 compute; BW = 4.  One rank: F0, then F1 beside BW0, then BW1.
  StepSpec spec = PlainStep({.pipeline = 1, .micro_batches = 2}, 2, 2, 2, 0);
  LayerPasses& layer = spec.kinds[0];
  layer.forward = {
      {.label = "in", .duration = Seconds(2)},
      {.label = "exchange",
       .duration = Seconds(1),
       .stream = Stream::kExpert,
       .cause = Cause::kExpert,
       .sm_share = 0.25},
      {.label = "out", .duration = Seconds(2)},
  };
  // Nothing beside: 5 + 4 + 5 + 4.
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 18);
  std::vector<Pass>& order = spec.schedule.orders[0];
  ASSERT_EQ(order.size(), 4U);
  std::swap(order[1], order[2]);
  order[1].overlaps_next = true;
  // The second exchange hides under BW0, which goes on a quarter of it longer.
  const TaskGraph graph = BuildStepGraph(spec);
  const Timeline timeline = Simulate(graph);
  EXPECT_DOUBLE_EQ(timeline.makespan.value, 17.25);
  EXPECT_DOUBLE_EQ(TimeOfRank(graph, timeline, 0).busy[std::size_t(Cause::kExpert)].value, 0.25);
}

TEST(StepGraph, TransfersMayHoldARankUp) {
  // GPipe, 2 ranks, 2 micro-batches, F = 1, BW = 2, transfers of 0.5.  Under compute: rank 0 runs
  // F at 0 and 1, rank 1 at 1.5 and 2.5, BW at 3.5 and 5.5, rank 0 BW at 6 and 8, until 10.
  StepSpec spec =
      PlainStep({.kind = ScheduleKind::kGpipe, .pipeline = 2, .micro_batches = 2}, 1, 1, 1, 0.5);
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 10);
  // Waited for: rank 0 runs F at 0 and 1.5, rank 1 at 1.5 and 3, BW at 4 and 6.5, rank 0 BW at 6.5
  // and 9, until 11.
  spec.overlap_transfers = false;
  EXPECT_DOUBLE_EQ(Simulate(BuildStepGraph(spec)).makespan.value, 11);
}

}  // namespace
}  // namespace millwright
