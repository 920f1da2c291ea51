// SPDX-License-Identifier: Apache-2.0
#include "sim/full_simulation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cost_models/calibration.h"

namespace millwright {
namespace {

using namespace literals;

Cluster Dgx(int nodes) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = nodes;
  return Cluster(config);
}

const CollectiveCalibration& CalibrationOf(const Cluster& cluster) {
  return CalibrationFor(cluster.gpu()).collective;
}

TaskId Compute(TaskGraph& graph, int rank, Seconds seconds, std::vector<TaskId> waits = {}) {
  return graph.Add({.duration = seconds, .label = graph.Label("work"), .rank = std::uint16_t(rank)},
                   waits);
}

TaskId Collective(TaskGraph& graph, int rank, Stream stream, Seconds price,
                  const Communication& communication, std::vector<TaskId> waits = {}) {
  return graph.Add({.duration = price,
                    .label = graph.Label("collective"),
                    .rank = std::uint16_t(rank),
                    .stream = stream,
                    .cause = stream == Stream::kData ? Cause::kData : Cause::kPipeline,
                    .communication = graph.Communicate(communication)},
                   waits);
}

// One rank of the graph on a plane of 8: work of 1 s, an all-reduce of 0.5 s, work of 1 s.
TaskGraph WorkReduceWork(int ranks = 8, int stride = 1) {
  TaskGraph graph(1);
  const TaskId a = Compute(graph, 0, 1_s);
  const TaskId b = Collective(graph, 0, Stream::kData, 500_ms,
                              {.payload = 1_GiB, .stride = stride, .ranks = ranks}, {a});
  Compute(graph, 0, 1_s, {b});
  graph.Seal();
  return graph;
}

TEST(FullSimulation, ASlowRankHoldsItsGroupBack) {
  // Rank 5 at 0.8: its first task takes 1.25 s, and the all-reduce of all 8 begins then: 1.75 s.
  // Its last ends at 3, that of the others at 2.75.
  const Cluster cluster = Dgx(1);
  const TaskGraph graph = WorkReduceWork();
  std::vector<double> speed(8, 1);
  speed[5] = 0.8;
  const FullSimulation full(graph, cluster, CalibrationOf(cluster),
                            {.plane = 8, .disturbance = {.gpu_speed = speed}});
  const FullStep step = full.Run();
  EXPECT_DOUBLE_EQ(step.makespan.value, 3);
  EXPECT_EQ(step.latest(), 5);
  EXPECT_DOUBLE_EQ(step.finish[4].value, 2.75);
  // Of 3 s a healthy rank works 2, waits 0.75 for the all-reduce and is idle for 0.25.
  EXPECT_DOUBLE_EQ(step.ranks[4].busy[std::size_t(Cause::kCompute)].value, 2);
  EXPECT_DOUBLE_EQ(step.ranks[4].waiting[std::size_t(Cause::kData)].value, 0.75);
  EXPECT_DOUBLE_EQ(step.ranks[4].idle.value, 0.25);
  EXPECT_EQ(step.tasks, 24);
  const Timeline healthy = full.TimelineOf(step, 4);
  EXPECT_DOUBLE_EQ(healthy.start[1].value, 1.25);  // when rank 5 has come
  EXPECT_DOUBLE_EQ(healthy.end[1].value, 1.75);
}

TEST(FullSimulation, ASlowRankLeavesOtherGroupsAlone) {
  // Pairs (0, 4), (1, 5), ...: only rank 1 waits for rank 5.
  const Cluster cluster = Dgx(1);
  const TaskGraph graph = WorkReduceWork(2, 4);
  std::vector<double> speed(8, 1);
  speed[5] = 0.8;
  const FullStep step =
      FullSimulation(graph, cluster, CalibrationOf(cluster),
                     {.plane = 8, .share_links = false, .disturbance = {.gpu_speed = speed}})
          .Run();
  for (int rank = 0; rank < 8; ++rank) {
    const double end = rank == 5 ? 3 : rank == 1 ? 2.75 : 2.5;
    EXPECT_DOUBLE_EQ(step.finish[std::size_t(rank)].value, end) << rank;
  }
}

// Pipeline rank 0 is node 0 and 1 is node 1.  Node 0's GPUs send 10 GiB each to node 1 and, at the
// same time, each in a pair with the same GPU of node 1's... own plane; see below.
TEST(FullSimulation, TwoTransfersOverOneNicTakeTwiceAsLong) {
  // Four nodes: planes of 16.  Each member sends to the next pipeline rank's (nodes 0, 1 -> 2, 3)
  // while pairs (node 0, node 1) all-gather: member m < 8's NIC carries both out of node 0.
  // The send takes 1 s alone, at half of what the NIC carries or more; so does the all-gather.
  const Cluster cluster = Dgx(4);
  const double nic = cluster.Profile(StridedGroup{.stride = 8, .ranks = 2}).fabric_bandwidth.value;
  const Bytes bytes(nic * 1.0);  // the whole NIC for a second
  const auto graph_of = [&](bool gather) {
    TaskGraph graph(2);
    Collective(graph, 0, Stream::kSend, 1_s,
               {.kind = CollectiveKind::kSendRecv, .payload = bytes, .to = 1});
    if (gather) {
      // An all-gather among two puts half of its payload on the wire, each way.
      Collective(
          graph, 0, Stream::kData, 1_s,
          {.kind = CollectiveKind::kAllGather, .payload = 2 * bytes, .stride = 8, .ranks = 2});
    }
    graph.Seal();
    return graph;
  };
  const auto run = [&](bool gather, bool share) {
    const TaskGraph graph = graph_of(gather);
    return FullSimulation(graph, cluster, CalibrationOf(cluster),
                          {.plane = 16, .share_links = share})
        .Run();
  };
  EXPECT_DOUBLE_EQ(run(true, false).makespan.value, 1);
  EXPECT_NEAR(run(false, true).makespan.value, 1, 1e-3);
  const FullStep shared = run(true, true);
  // Both need the whole NIC out of nodes 0 and 1: 2 s, but for the few microseconds of latency.
  EXPECT_NEAR(shared.makespan.value, 2, 1e-3);
  const Contention& sends = shared.contention[std::size_t(Cause::kPipeline)];
  EXPECT_EQ(sends.collectives, 16);
  EXPECT_EQ(sends.delayed, 16);
  EXPECT_NEAR(sends.worst, 2, 1e-3);
  EXPECT_NEAR(sends.delay.value, 16, 0.02);
  // The NICs' links are full all the time, and none is over its capacity.
  double most = 0;
  for (const LinkLoad& load : shared.links) most = std::max(most, load.utilisation);
  EXPECT_NEAR(most, 1, 1e-3);
  EXPECT_LE(most, 1 + 1e-9);
}

TEST(FullSimulation, ASlowLinkSlowsWhatCrossesIt) {
  // The all-gather needs its NICs whole for a second; one of them at half its speed: 2 s.
  const Cluster cluster = Dgx(2);
  const double nic = cluster.Profile(StridedGroup{.stride = 8, .ranks = 2}).fabric_bandwidth.value;
  TaskGraph graph(1);
  Collective(
      graph, 0, Stream::kData, 1_s,
      {.kind = CollectiveKind::kAllGather, .payload = Bytes(2 * nic), .stride = 8, .ranks = 2});
  graph.Seal();
  const std::vector<int> route = cluster.Route(3, 11);
  int nic_link = -1;
  for (int link : route) {
    if (cluster.KindOf(cluster.links()[std::size_t(link)].from) == VertexKind::kNic) {
      nic_link = link;
      break;
    }
  }
  ASSERT_GE(nic_link, 0);
  const FullStep step =
      FullSimulation(graph, cluster, CalibrationOf(cluster),
                     {.plane = 16, .disturbance = {.slow_links = {{nic_link, 0.5}}}})
          .Run();
  EXPECT_NEAR(step.makespan.value, 2, 1e-3);
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_NEAR(step.finish[std::size_t(rank)].value, rank % 8 == 3 ? 2 : 1, 1e-3) << rank;
  }
}

TEST(FullSimulation, JitterIsOfMeanOneAndTheSameForOneSeed) {
  // 200 tasks of 1 s on each of 8 ranks that never meet: a rank's sum has mean 200 and standard
  // deviation 0.1 sqrt(200) = 1.41; that of all 1,600, 4.
  const Cluster cluster = Dgx(1);
  TaskGraph graph(1);
  for (int i = 0; i < 200; ++i) Compute(graph, 0, 1_s);
  graph.Seal();
  const auto run = [&](double jitter, double rank_jitter, std::uint64_t seed, int step) {
    return FullSimulation(graph, cluster, CalibrationOf(cluster),
                          {.plane = 8, .jitter = jitter, .rank_jitter = rank_jitter, .seed = seed})
        .Run(step);
  };
  const FullStep a = run(0.1, 0, 1, 0);
  double sum = 0;
  for (Seconds finish : a.finish) {
    EXPECT_NEAR(finish.value, 200, 5 * 1.41);
    sum += finish.value;
  }
  EXPECT_NEAR(sum, 1600, 5 * 4);
  EXPECT_EQ(a.ends, run(0.1, 0, 1, 0).ends);
  EXPECT_NE(a.ends, run(0.1, 0, 2, 0).ends);
  EXPECT_NE(a.ends, run(0.1, 0, 1, 1).ends);
  // Of a rank for the whole step: all its tasks by one factor.
  const FullStep b = run(0, 0.1, 1, 0);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const double factor = b.ends[rank * 200];
    EXPECT_NE(factor, 1);
    EXPECT_NEAR(b.finish[rank].value, 200 * factor, 1e-9);
  }
}

}  // namespace
}  // namespace millwright
