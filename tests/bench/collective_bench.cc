// SPDX-License-Identifier: Apache-2.0
//
// How fast communication is simulated: one collective in closed form and with every transfer an
// event, fair sharing of a quarter of a million flows, and a network under the load of a training
// step.  Items are events.
#include <benchmark/benchmark.h>

#include "sim/collective_run.h"
#include "sim/network.h"

namespace millwright {
namespace {

using namespace literals;

TransferPlan Plan(CollectiveKind kind, CollectiveAlgorithm algorithm, std::vector<int> sizes) {
  return TransferPlan({.kind = kind,
                       .algorithm = algorithm,
                       .payload = 1_GiB,
                       .domain_sizes = std::move(sizes),
                       .loads = {}});
}

RouteTable StarOf(int ranks) {
  return RouteTable::Star(ranks, BytesPerSecond(50 * (1_GiB).value), 500_ns);
}

// A ring all-reduce of 1 GiB, links found and all.  The baseline is the line below.
void RingInClosedForm(benchmark::State& state) {
  const int ranks = int(state.range(0));
  for (auto _ : state) {
    RouteTable star = StarOf(ranks);
    const TransferPlan plan = Plan(CollectiveKind::kAllReduce, CollectiveAlgorithm::kRing, {ranks});
    benchmark::DoNotOptimize(RunCollective(plan, {}, star, RunMode::kRounds).time);
  }
}

void RingByTransfers(benchmark::State& state) {
  const int ranks = int(state.range(0));
  std::int64_t transfers = 0;
  for (auto _ : state) {
    RouteTable star = StarOf(ranks);
    const TransferPlan plan = Plan(CollectiveKind::kAllReduce, CollectiveAlgorithm::kRing, {ranks});
    transfers += RunCollective(plan, {}, star, RunMode::kTransfers).transfers;
  }
  state.SetItemsProcessed(transfers);
}

void RingByRecurrence(benchmark::State& state) {
  const auto ranks = std::size_t(state.range(0));
  for (auto _ : state) {
    std::vector<Seconds> at(ranks);
    RingRecurrence(std::vector<Seconds>(ranks, 6_us), 2 * (int(ranks) - 1), &at);
    benchmark::DoNotOptimize(at.data());
  }
}

void DirectAllToAllOnAStar(benchmark::State& state) {
  const int ranks = int(state.range(0));
  std::int64_t transfers = 0;
  for (auto _ : state) {
    RouteTable star = StarOf(ranks);
    const TransferPlan plan =
        Plan(CollectiveKind::kAllToAll, CollectiveAlgorithm::kDirect, {ranks});
    transfers += RunCollective(plan, {}, star, RunMode::kTransfers).transfers;
  }
  state.SetItemsProcessed(transfers);
}

void DirectAllToAllOnDgx(benchmark::State& state) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = int(state.range(0)) / 8;
  const Cluster cluster(config);
  std::int64_t transfers = 0;
  for (auto _ : state) {
    RouteTable routes(cluster);
    const TransferPlan plan = Plan(CollectiveKind::kAllToAll, CollectiveAlgorithm::kDirect,
                                   std::vector<int>(std::size_t(config.nodes), 8));
    transfers += RunCollective(plan, {}, routes, RunMode::kTransfers).transfers;
  }
  state.SetItemsProcessed(transfers);
}

// 16,384 GPUs: the groups of a step with TP 8, PP 16, DP 128, and all they do in one micro-batch
// and the gradients' reduce-scatter, over and over.  Items are collectives.
void NetworkOf16kGpus(benchmark::State& state) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2048;
  const Cluster cluster(config);
  const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
  FairShareNetwork network(cluster, calibration);
  std::vector<int> tensor, pipeline, data;
  std::vector<int> ranks;
  for (int node = 0; node < 2048; ++node) {
    ranks.clear();
    for (int i = 0; i < 8; ++i) ranks.push_back(8 * node + i);
    tensor.push_back(network.AddGroup(ranks));
  }
  for (int rank = 0; rank + 1024 < 16384; ++rank) {
    pipeline.push_back(network.AddGroup(std::vector{rank, rank + 1024}));
  }
  for (int stage = 0; stage < 16; ++stage) {
    for (int rail = 0; rail < 8; ++rail) {
      ranks.clear();
      for (int i = 0; i < 128; ++i) ranks.push_back(1024 * stage + 8 * i + rail);
      data.push_back(network.AddGroup(ranks));
    }
  }
  std::vector<Completion> done;
  std::int64_t calls = 0;
  Seconds now;
  for (auto _ : state) {
    for (const int group : tensor) {
      network.Start(now, {group, CollectiveKind::kReduceScatter, 128_MiB}, calls++);
    }
    for (const int group : pipeline) {
      network.Start(now, {group, CollectiveKind::kSendRecv, 16_MiB}, calls++);
    }
    for (const int group : data) {
      network.Start(now, {group, CollectiveKind::kReduceScatter, 64_MiB}, calls++);
    }
    done.clear();
    while (network.NextEvent() < Seconds(1e9)) {
      now = network.NextEvent();
      network.Advance(now, &done);
    }
  }
  state.SetItemsProcessed(calls);
}

BENCHMARK(RingInClosedForm)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(RingByRecurrence)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(RingByTransfers)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(DirectAllToAllOnAStar)->Arg(64)->Arg(256)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(DirectAllToAllOnDgx)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(NetworkOf16kGpus)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millwright
