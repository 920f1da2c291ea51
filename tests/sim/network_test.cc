// SPDX-License-Identifier: Apache-2.0
#include "sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "core/check.h"
#include "core/config_io.h"

namespace millwright {
namespace {

using namespace literals;
using Kind = CollectiveKind;

constexpr Seconds kEver{std::numeric_limits<double>::infinity()};

// Nothing but bandwidth.
constexpr CollectiveCalibration kIdeal{.domain_efficiency = 1,
                                       .fabric_efficiency = 1,
                                       .tree_efficiency = 1,
                                       .all_to_all_efficiency = 1,
                                       .nvls_min_ranks = 1 << 30};

Cluster Make(const char* preset, int nodes) {
  ClusterConfig config = FindCluster(preset);
  config.nodes = nodes;
  return Cluster(config);
}

std::vector<int> Strided(int first, int stride, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

std::map<std::int64_t, double> RunAll(Network& network) {
  std::vector<Completion> done;
  network.Advance(kEver, &done);
  std::map<std::int64_t, double> ends;
  for (const Completion& c : done) ends[c.tag] = c.time.value;
  return ends;
}

// --- Alone, both networks agree
// --------------------------------------------------------------------

TEST(Network, AloneAFairShareIsTheClosedForm) {
  std::mt19937 random(11);
  for (const char* preset : {"dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "dgx-h100-3to1",
                             "pcie-l40s", "pcie-h100", "h100-nvl", "a100-pcie-bridge", "mi300x"}) {
    const Cluster cluster = Make(preset, 4);
    const int n = cluster.gpus_per_domain();
    const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
    std::vector<std::vector<int>> groups{
        {0, 1},           Strided(0, 1, n),     Strided(0, 1, n / 2), Strided(0, n, 4),
        Strided(1, n, 3), Strided(0, 1, 2 * n), Strided(0, n / 2, 8), {0, n}};
    for (const std::vector<int>& ranks : groups) {
      for (int k = 0; k <= int(Kind::kBroadcast); ++k) {
        if (Kind(k) == Kind::kSendRecv && ranks.size() > 2) continue;
        // A broadcast between xGMI meshes is a ring over single links of them.
        if (Kind(k) == Kind::kBroadcast && preset == std::string("mi300x") && ranks.size() > 8) {
          continue;
        }
        for (const Bytes payload : {8_B, 1_MiB, 64_MiB, 1_GiB}) {
          const CollectiveCall call{.group = 0, .kind = Kind(k), .payload = payload};
          FairShareNetwork shared(cluster, calibration);
          ClosedFormNetwork closed(cluster, calibration);
          shared.AddGroup(ranks);
          closed.AddGroup(ranks);
          shared.Start(1_s, call, 5);
          closed.Start(1_s, call, 5);
          const double expected = RunAll(closed).at(5) - 1, got = RunAll(shared).at(5) - 1;
          EXPECT_NEAR(got / expected, 1, 1e-9)
              << preset << " " << Name(Kind(k)) << " of " << ranks.size() << " from " << ranks[0]
              << " to " << ranks.back() << ", " << payload.value << " B";
          EXPECT_EQ(shared.Alone(call), closed.Alone(call));
        }
      }
    }
  }
}

// Every transfer a flow of its own: the same time for a ring alone.
TEST(Network, AloneARingOfTransfersIsTheClosedForm) {
  const Cluster cluster = Make("dgx-h100", 8);
  const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
  FairShareNetwork network(cluster, calibration, Expansion::kAlways);
  const int group = network.AddGroup(Strided(3, 8, 8));
  const CollectiveCall call{.group = group, .kind = Kind::kAllGather, .payload = 256_MiB};
  network.Start(0_s, call, 1);
  EXPECT_NEAR(RunAll(network).at(1) / network.Alone(call).value, 1, 1e-8);
}

TEST(Network, GroupOfOneAndNothingToSendEndAtOnce) {
  const Cluster cluster = Make("dgx-h100", 1);
  FairShareNetwork network(cluster, kIdeal);
  const int one = network.AddGroup(std::vector{3}), two = network.AddGroup(std::vector{3, 4});
  network.Start(2_s, {.group = one, .payload = 1_GB}, 1);
  network.Start(2_s, {.group = two, .payload = 0_B}, 2);
  const std::map<std::int64_t, double> expected{{1, 2}, {2, 2}};
  EXPECT_EQ(RunAll(network), expected);
  EXPECT_EQ(network.NextEvent(), kEver);
}

// --- Contention
// -----------------------------------------------------------------------------------

// Two send-receives from GPU 0 to two other nodes: 1 GB each over the one NIC of 50 GB/s.
TEST(Network, TwoMessagesShareANic) {
  const Cluster cluster = Make("dgx-h100", 3);
  FairShareNetwork network(cluster, kIdeal);
  const int a = network.AddGroup(std::vector{0, 8}), b = network.AddGroup(std::vector{0, 16});
  network.Start(0_s, {.group = a, .kind = Kind::kSendRecv, .payload = 1_GB}, 1);
  network.Start(0_s, {.group = b, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
  const auto ends = RunAll(network);
  EXPECT_NEAR(ends.at(1), 2.0 / 50, 1e-10);
  EXPECT_NEAR(ends.at(2), 2.0 / 50, 1e-10);
  // From different GPUs, by different NICs: nothing is shared.
  FairShareNetwork apart(cluster, kIdeal);
  const int c = apart.AddGroup(std::vector{0, 8}), d = apart.AddGroup(std::vector{1, 17});
  apart.Start(0_s, {.group = c, .kind = Kind::kSendRecv, .payload = 1_GB}, 1);
  apart.Start(0_s, {.group = d, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
  EXPECT_NEAR(RunAll(apart).at(2), 1.0 / 50, 1e-10);
}

// Data-parallel all-reduce over GPU 0 of 4 nodes: 2 x 3/4 x 1 GB over each NIC, 30 ms alone.  A
// pipeline send of 1 GB from GPU 0 of node 0 to GPU 0 of node 1, 20 ms alone, takes the same NIC
// out of node 0: 25 GB/s each.  The send is done after 40 ms; by then the ring has put 1 GB of its
// 1.5 through, and needs 10 ms more: 50 ms.
TEST(Network, DataParallelRingAndPipelineSendSlowEachOther) {
  const Cluster cluster = Make("dgx-h100", 4);
  for (const Expansion expansion :
       {Expansion::kNever, Expansion::kWhereShared, Expansion::kAlways}) {
    FairShareNetwork network(cluster, kIdeal, expansion);
    const int dp = network.AddGroup(Strided(0, 8, 4));
    const int pp = network.AddGroup(std::vector{0, 8});
    network.Start(0_s, {.group = dp, .kind = Kind::kAllReduce, .payload = 1_GB}, 1);
    network.Start(0_s, {.group = pp, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
    EXPECT_NEAR(network.Alone({.group = dp, .payload = 1_GB}).value, 0.030, 1e-12);
    const auto ends = RunAll(network);
    EXPECT_NEAR(ends.at(2), 0.040, 1e-9);
    EXPECT_NEAR(ends.at(1), 0.050, 1e-9);
  }
}

// The same two on different rails do not meet.
TEST(Network, AnotherRailIsFree) {
  const Cluster cluster = Make("dgx-h100", 4);
  FairShareNetwork network(cluster, kIdeal);
  const int dp = network.AddGroup(Strided(0, 8, 4)), pp = network.AddGroup(std::vector{1, 9});
  network.Start(0_s, {.group = dp, .kind = Kind::kAllReduce, .payload = 1_GB}, 1);
  network.Start(0_s, {.group = pp, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
  const auto ends = RunAll(network);
  EXPECT_NEAR(ends.at(1), 0.030, 1e-10);
  EXPECT_NEAR(ends.at(2), 0.020, 1e-10);
}

// Off the rail, a message crosses NVLink or a spine and collides with whoever owns the far NIC: GPU
// 1 of node 0 sends to GPU 0 of node 1 while GPU 0 of node 2 does so too.
TEST(Network, RailCollision) {
  const Cluster cluster = Make("dgx-h100", 3);
  FairShareNetwork network(cluster, kIdeal);
  const int a = network.AddGroup(std::vector{1, 8}), b = network.AddGroup(std::vector{16, 8});
  network.Start(0_s, {.group = a, .kind = Kind::kSendRecv, .payload = 1_GB}, 1);
  network.Start(0_s, {.group = b, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
  const auto ends = RunAll(network);
  EXPECT_NEAR(ends.at(1), 0.040, 1e-10);
  EXPECT_NEAR(ends.at(2), 0.040, 1e-10);
}

// Two data-parallel groups whose members share each node's NIC: two L40S under one PCIe switch and
// NIC.  Alone each has the NIC to itself only in its own price's sense; together they take as
// long as their bytes over the one NIC.
TEST(Network, TwoGroupsOnOneNic) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  config.nics_per_node = 4;  // GPUs 0 and 1 share NIC 0
  config.gpus_per_pcie_switch = 2;
  const Cluster cluster(config);
  FairShareNetwork network(cluster, kIdeal);
  const int a = network.AddGroup(Strided(0, 8, 4)), b = network.AddGroup(Strided(1, 8, 4));
  network.Start(0_s, {.group = a, .kind = Kind::kAllReduce, .payload = 1_GB}, 1);
  network.Start(0_s, {.group = b, .kind = Kind::kAllReduce, .payload = 1_GB}, 2);
  const auto ends = RunAll(network);
  // 2 x 1.5 GB over 50 GB/s.  The price already has only half a NIC for each GPU.
  EXPECT_NEAR(ends.at(1), 0.060, 1e-10);
  EXPECT_NEAR(ends.at(2), 0.060, 1e-10);
  for (const LinkLoad& load : network.Loads(Seconds(0.060))) {
    const Link& link = cluster.links()[std::size_t(load.link)];
    if (cluster.KindOf(link.from) != VertexKind::kNic ||
        cluster.KindOf(link.to) != VertexKind::kLeaf) {
      continue;
    }
    EXPECT_NEAR(load.bytes.value, 3e9, 1);
    EXPECT_NEAR(load.utilisation, 1, 1e-9);
  }
}

// 3:1 oversubscription.  Every GPU of 6 nodes under one leaf sends 1 GB to its twin under the next:
// 48 NICs of 50 GB/s behind 16 x 50 GB/s up, so 48 GB take 60 ms rather than 20.  All GPUs send at
// once, which is what the path profile assumes: the price is the same.
TEST(Network, OversubscriptionShows) {
  const Cluster cluster = Make("dgx-h100-3to1", 12);
  FairShareNetwork network(cluster, kIdeal);
  Seconds price;
  for (int rank = 0; rank < 48; ++rank) {
    const int group = network.AddGroup(std::vector{rank, rank + 48});
    const CollectiveCall call{.group = group, .kind = Kind::kSendRecv, .payload = 1_GB};
    price = network.Alone(call);
    network.Start(0_s, call, rank);
  }
  EXPECT_NEAR(price.value, 0.060, 1e-9);
  double last = 0;
  for (const auto& [tag, time] : RunAll(network)) last = std::max(last, time);
  EXPECT_NEAR(last, 0.060, 1e-9);
  // Under the leaf nothing is oversubscribed.
  FairShareNetwork below(cluster, kIdeal);
  for (int rank = 0; rank < 24; ++rank) {
    const int group = below.AddGroup(std::vector{rank, rank + 24});
    below.Start(0_s, {.group = group, .kind = Kind::kSendRecv, .payload = 1_GB}, rank);
  }
  last = 0;
  for (const auto& [tag, time] : RunAll(below)) last = std::max(last, time);
  EXPECT_NEAR(last, 0.020, 1e-9);
}

TEST(Network, ASlowLinkSlowsWhoCrossesIt) {
  const Cluster cluster = Make("dgx-h100", 4);
  FairShareNetwork network(cluster, kIdeal);
  for (const int link : cluster.Route(0, 8)) {  // the NIC of GPU 0, node 0
    if (cluster.KindOf(cluster.links()[std::size_t(link)].from) == VertexKind::kNic) {
      network.Slow(link, 0.5);
      break;
    }
  }
  const int slow = network.AddGroup(Strided(0, 8, 4)), sound = network.AddGroup(Strided(1, 8, 4));
  network.Start(0_s, {.group = slow, .kind = Kind::kAllReduce, .payload = 1_GB}, 1);
  network.Start(0_s, {.group = sound, .kind = Kind::kAllReduce, .payload = 1_GB}, 2);
  const auto ends = RunAll(network);
  EXPECT_NEAR(ends.at(1), 0.060, 1e-10);  // 1.5 GB at 25 GB/s
  EXPECT_NEAR(ends.at(2), 0.030, 1e-10);
}

// --- Slow and failed links, collisions
// -----------------------------------------------------------------------------

int LinkOf(const Cluster& cluster, const char* from, const char* to) {
  return *cluster.LinkBetween(*cluster.VertexNamed(from), *cluster.VertexNamed(to));
}

void ForBothWays(const Cluster& cluster, const char* a, const char* b, auto what) {
  what(LinkOf(cluster, a, b));
  what(LinkOf(cluster, b, a));
}

double TimeOf(FairShareNetwork& network, const CollectiveCall& call) {
  const double alone = network.Alone(call).value;
  network.Start(0_s, call, 1);
  const double time = RunAll(network).at(1);
  EXPECT_NEAR(time / alone, 1, 1e-9);
  return time;
}

// All-reduce of 1 GB over two nodes of 8: a tree, of which each NIC passes on 1/8 of the payload
// once: 0.125 GB at 50 GB/s, 2.5 ms.  NVLink has 1.875 GB at 450 GB/s, 4.17 ms.  With NIC 3 of node
// 0 at half speed its eighth takes twice as long, and so all.
TEST(Network, OneOfEightNicsAtHalfSpeedHalvesATreeOfTwoNodes) {
  const Cluster cluster = Make("dgx-h100", 2);
  for (const double factor : {1.0, 0.95, 0.5, 0.1}) {
    for (const bool out : {true, false}) {  // either direction
      FairShareNetwork network(cluster, kIdeal);
      network.Slow(
          out ? LinkOf(cluster, "node0/nic3", "leaf0.3") : LinkOf(cluster, "leaf0.3", "node0/nic3"),
          factor);
      const int all = network.AddGroup(Strided(0, 1, 16));
      EXPECT_NEAR(TimeOf(network, {.group = all, .payload = 1_GB}),
                  std::max(1.875 / 450, 2.5e-3 / factor), 1e-9);
    }
  }
}

// Without NIC 3 its eighth goes by other NICs of the node, which then carry two: half the rate.
TEST(Network, OneOfEightNicsDownHalvesATreeOfTwoNodes) {
  const Cluster cluster = Make("dgx-h100", 2);
  FairShareNetwork network(cluster, kIdeal);
  ForBothWays(cluster, "node0/nic3", "leaf0.3", [&](int link) { network.Fail(link); });
  const int all = network.AddGroup(Strided(0, 1, 16));
  EXPECT_NEAR(TimeOf(network, {.group = all, .payload = 1_GB}), 5e-3, 1e-9);
  for (const LinkLoad& load : network.Loads(1_s)) {
    EXPECT_NE(load.link, LinkOf(cluster, "node0/nic3", "leaf0.3"));
    EXPECT_NE(load.link, LinkOf(cluster, "leaf0.3", "node0/nic3"));
  }
}

// The same by rails: 8 data-parallel groups of two.  An all-gather of 2 GB puts 1 GB over each
// member's NIC: 20 ms.  GPU 3 of node 0 now sends to node 1 by NIC 5 (number (1 + 3) mod 7 of the
// seven left) and receives by NIC 4 (number 0 + 3): rails 3, 5 and 4 take 40 ms, the others 20.
TEST(Network, TwoRailsShareANicWhereOneIsDown) {
  const Cluster cluster = Make("dgx-h100", 2);
  FairShareNetwork network(cluster, kIdeal);
  ForBothWays(cluster, "node0/nic3", "leaf0.3", [&](int link) { network.Fail(link); });
  for (int rail = 0; rail < 8; ++rail) {
    const int group = network.AddGroup(Strided(rail, 8, 2));
    const CollectiveCall call{.group = group, .kind = Kind::kAllGather, .payload = 2_GB};
    EXPECT_NEAR(network.Alone(call).value, 0.020, 1e-12);  // alone even rail 3 has a whole NIC
    network.Start(0_s, call, rail);
  }
  const auto ends = RunAll(network);
  for (int rail = 0; rail < 8; ++rail) {
    const bool shares = rail == 3 || rail == 4 || rail == 5;
    EXPECT_NEAR(ends.at(rail), shares ? 0.040 : 0.020, 1e-9) << rail;
  }
}

// With what software achieves.  Over one rail, an all-gather of 2 GB has 1 GB to send at
// 50 GB/s x 0.96; over two whole nodes, the NVLS tree of an all-reduce of 1 GB has 1.875 GB at
// 450 GB/s x 1.14 x 0.92 of NVLink, 3.973 ms, and 1 GB at 8 x 50 GB/s x 0.96 x 0.92 of NICs, 2.831
// ms. Those parts of the price, and no others, follow the slow NIC, at the efficiency of a sound
// one.
TEST(Network, SlowLinksKeepTheEfficiencyOfSoundOnes) {
  const Cluster cluster = Make("dgx-h100", 2);
  const CollectiveCalibration& c = CalibrationFor(cluster.gpu()).collective;
  const double rail = 1e9 / (50e9 * c.fabric_efficiency);
  const double nvlink = 1.875e9 / (450e9 * c.nvls_efficiency * c.tree_efficiency);
  const double nics = 1e9 / (400e9 * c.fabric_efficiency * c.tree_efficiency);
  for (const double factor : {1.0, 0.95, 0.5}) {
    FairShareNetwork sound(cluster, c), slow(cluster, c);
    slow.Slow(LinkOf(cluster, "node1/nic0", "leaf0.0"), factor);
    const auto longer = [&](const std::vector<int>& ranks, Kind kind, Bytes payload) {
      const CollectiveCall call{.group = sound.AddGroup(ranks), .kind = kind, .payload = payload};
      slow.AddGroup(ranks);
      const double before = sound.Alone(call).value;
      EXPECT_GT(before, 0);
      return slow.Alone(call).value - before;
    };
    EXPECT_NEAR(longer({0, 8}, Kind::kAllGather, 2_GB), rail / factor - rail, 1e-9);
    EXPECT_NEAR(longer(Strided(0, 1, 16), Kind::kAllReduce, 1_GB),
                std::max(0.0, nics / factor - nvlink), 1e-9);
    // Who does not cross the link keeps its price to the last bit.
    EXPECT_EQ(longer({1, 9}, Kind::kAllGather, 2_GB), 0);
    slow.Start(0_s, {.group = 1, .payload = 1_GB}, 1);
    EXPECT_NEAR(RunAll(slow).at(1), slow.Alone({.group = 1, .payload = 1_GB}).value, 1e-9);
  }
}

// A caller's own price grows as the model's does: an all-gather over one rail is all NIC, and twice
// as long at half speed, whatever it was said to take.
TEST(Network, ASlowLinkStretchesACallersPrice) {
  const Cluster cluster = Make("dgx-h100", 2);
  FairShareNetwork network(cluster, kIdeal);
  network.Slow(LinkOf(cluster, "node1/nic0", "leaf0.0"), 0.5);
  for (const int rail : {0, 1}) {
    const CollectiveCall call{.group = network.AddGroup(Strided(rail, 8, 2)),
                              .kind = Kind::kAllGather,
                              .payload = 2_GB,
                              .price = 30_ms};  // 20 ms by the model
    EXPECT_NEAR(network.Alone(call).value, rail == 0 ? 0.060 : 0.030, 1e-12);
    EXPECT_NEAR(network.StretchAlone(call), rail == 0 ? 2 : 1, 1e-12);
  }
}

// Every transfer a flow of its own: a ring by one NIC per node, at half speed, again takes twice as
// long.
TEST(Network, ASlowLinkSlowsARingOfTransfersToo) {
  const Cluster cluster = Make("dgx-h100", 4);
  for (const Expansion expansion : {Expansion::kNever, Expansion::kAlways}) {
    FairShareNetwork network(cluster, kIdeal, expansion);
    network.Slow(LinkOf(cluster, "node2/nic5", "leaf0.5"), 0.5);
    const int group = network.AddGroup(Strided(5, 8, 4));
    EXPECT_NEAR(TimeOf(network, {.group = group, .payload = 1_GB}), 0.060, 1e-8);
  }
}

// GPU 5 has lost its NVSwitch: no NVLS, and the ring through it is over PCIe, 1.75 GB at 63 GB/s.
TEST(Network, WithoutTheNvswitchOverPcie) {
  const Cluster cluster = Make("dgx-h100", 1);
  CollectiveCalibration calibration = kIdeal;
  calibration.nvls_min_ranks = 5;
  calibration.nvls_efficiency = 1.14;
  FairShareNetwork sound(cluster, calibration), network(cluster, calibration);
  ForBothWays(cluster, "node0/gpu5", "node0/nvswitch", [&](int link) { network.Fail(link); });
  const CollectiveCall call{.group = sound.AddGroup(Strided(0, 1, 8)), .payload = 1_GB};
  network.AddGroup(Strided(0, 1, 8));
  EXPECT_NEAR(TimeOf(sound, call), 1.75 / (450 * 1.14), 1e-9);
  EXPECT_NEAR(TimeOf(network, call), 1.75 / 63, 1e-9);
  const CollectiveCall others{.group = network.AddGroup(Strided(0, 1, 5)), .payload = 1_GB};
  EXPECT_NEAR(network.Alone(others).value, 1.6 / (450 * 1.14), 1e-9);
}

// NVLS at half an NVLink: the bus bandwidth of 513 GB/s halves.
TEST(Network, NvlsOverASlowNvlink) {
  const Cluster cluster = Make("dgx-h100", 1);
  CollectiveCalibration calibration = kIdeal;
  calibration.nvls_min_ranks = 5;
  calibration.nvls_efficiency = 1.14;
  FairShareNetwork network(cluster, calibration);
  network.Slow(LinkOf(cluster, "node0/gpu5", "node0/nvswitch"), 0.5);
  const CollectiveCall call{.group = network.AddGroup(Strided(0, 1, 8)), .payload = 1_GB};
  EXPECT_NEAR(TimeOf(network, call), 2 * 1.75 / (450 * 1.14), 1e-9);
}

TEST(Network, CutOffByFailedLinks) {
  ClusterConfig config = FindCluster("pcie-h100");
  config.nodes = 2;
  config.gpus_per_node = config.nics_per_node = config.sockets = config.gpus_per_pcie_switch = 1;
  const Cluster cluster(config);
  FairShareNetwork network(cluster, kIdeal);
  network.Fail(LinkOf(cluster, "leaf0.0", "node1/nic0"));
  const CollectiveCall call{
      .group = network.AddGroup(std::vector{0, 1}), .kind = Kind::kSendRecv, .payload = 1_GB};
  try {
    network.Start(0_s, call, 1);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "node0/gpu0 cannot reach node1/gpu0: leaf0.0->node1/nic0 is down and no other way "
                 "is left");
  }
}

// Leaves of two nodes and 16-port switches: each leaf has one link of 50 GB/s to either spine, and
// the destination's node decides which.  From leaf 0, GPU 0 of nodes 0 and 1 send 1 GB each.
Cluster TwoSpines() {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 6;
  config.nodes_per_leaf = 2;
  config.switch_ports = 16;
  return Cluster(config);
}

TEST(Network, FlowsCollideOnASpineLink) {
  const Cluster cluster = TwoSpines();
  ASSERT_EQ(cluster.CountOf(VertexKind::kSpine), 2);
  const auto end = [&](int a_to, int b_to, const std::vector<int>& failed) {
    FairShareNetwork network(cluster, kIdeal);
    for (const int link : failed) network.Fail(link);
    const int a = network.AddGroup(std::vector{0, 8 * a_to});
    const int b = network.AddGroup(std::vector{8, 8 * b_to});
    network.Start(0_s, {.group = a, .kind = Kind::kSendRecv, .payload = 1_GB}, 1);
    network.Start(0_s, {.group = b, .kind = Kind::kSendRecv, .payload = 1_GB}, 2);
    const auto ends = RunAll(network);
    EXPECT_NEAR(ends.at(1), ends.at(2), 1e-12);
    return ends.at(1);
  };
  EXPECT_NEAR(end(2, 3, {}), 0.020, 1e-9);  // spines 0 and 1
  EXPECT_NEAR(end(2, 4, {}), 0.040, 1e-9);  // both by spine 0, though 1 is idle
  // Where spine 0 is down for leaf 0, both go by 1.
  EXPECT_NEAR(end(2, 3, {LinkOf(cluster, "leaf0.0", "spine0.0")}), 0.040, 1e-9);
}

// 3:1 and a collision.  12 nodes of dgx-h100-3to1, with 16-port switches: 16 x 50 GB/s up from a
// leaf, over two spines.  All 48 GPUs of leaf 0 send 1 GB.  Spread over all nodes of leaf 1 that is
// 48 GB at 800 GB/s, 60 ms, a third of the NIC's rate.  To the even nodes alone, two GPUs to each
// of theirs, everything goes by spine 0, 48 GB at 400 GB/s: 120 ms.
TEST(Network, CollisionsOnTopOfOversubscription) {
  ClusterConfig config = FindCluster("dgx-h100-3to1");
  config.nodes = 12;
  config.switch_ports = 16;
  config.levels = 2;
  const Cluster cluster(config);
  ASSERT_EQ(cluster.CountOf(VertexKind::kSpine), 2);
  for (const bool even : {false, true}) {
    FairShareNetwork network(cluster, kIdeal);
    for (int rank = 0; rank < 48; ++rank) {
      const int to = even ? 6 + rank / 8 / 2 * 2 : 6 + rank / 8;
      const int group = network.AddGroup(std::vector{rank, to * 8 + rank % 8});
      network.Start(0_s, {.group = group, .kind = Kind::kSendRecv, .payload = 1_GB}, rank);
    }
    for (const auto& [tag, time] : RunAll(network)) EXPECT_NEAR(time, even ? 0.120 : 0.060, 1e-9);
  }
}

// Randomly: links slowed and failed never make anything faster, and all comes to an end.
TEST(Network, DisturbancesOnlyEverDelay) {
  for (const char* preset :
       {"dgx-h100", "dgx-h100-3to1", "pcie-l40s", "h100-nvl", "mi300x", "gb200-nvl72"}) {
    const Cluster cluster = Make(preset, 3);
    const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
    for (unsigned seed = 0; seed < 8; ++seed) {
      std::mt19937 random(seed);
      FairShareNetwork sound(cluster, calibration);
      FairShareNetwork disturbed(cluster, calibration,
                                 seed % 2 == 0 ? Expansion::kNever : Expansion::kAlways);
      for (int i = 0; i < 4; ++i) {
        disturbed.Slow(int(random() % cluster.links().size()), double(1 + random() % 9) / 10);
        disturbed.Fail(int(random() % cluster.links().size()));
      }
      for (int i = 0; i < 20; ++i) {
        const int stride = 1 << random() % 4;
        const int count = std::min(2 + int(random() % 6), (cluster.gpus() - 1) / stride + 1);
        const int start = int(random() % unsigned(cluster.gpus() - stride * (count - 1)));
        const CollectiveCall call{.group = sound.AddGroup(Strided(start, stride, count)),
                                  .kind = Kind(random() % 6),
                                  .payload = double(1 + random() % 200) * 1_MB};
        disturbed.AddGroup(Strided(start, stride, count));
        double alone = 0;
        try {
          alone = disturbed.Alone(call).value;
        } catch (const ConfigError&) {  // cut off
          break;
        }
        EXPECT_GE(alone, sound.Alone(call).value * (1 - 1e-12)) << preset << " " << seed;
        std::vector<Completion> done;
        disturbed.Start(Seconds(double(i)), call, i);
        disturbed.Advance(Seconds(i + 0.9), &done);
        ASSERT_EQ(done.size(), 1u) << preset << " " << seed;
        EXPECT_GE(done[0].time.value - i, alone - 1e-9);
      }
    }
  }
}

// Skewed experts: rank 3 receives ten times what others do.  Its NVLink decides: 7 x 100 MB at
// 450 GB/s.
TEST(Network, UnevenExpertLoads) {
  const Cluster cluster = Make("dgx-h100", 1);
  std::vector<Bytes> loads(64, 10_MB);
  for (std::size_t from = 0; from < 8; ++from) loads[from * 8 + 3] = 100_MB;
  for (std::size_t rank = 0; rank < 8; ++rank) loads[rank * 9] = 0_B;
  for (const Expansion expansion : {Expansion::kNever, Expansion::kAlways}) {
    FairShareNetwork network(cluster, kIdeal, expansion);
    ClosedFormNetwork closed(cluster, kIdeal);
    const CollectiveCall call{
        .group = network.AddGroup(Strided(0, 1, 8)), .kind = Kind::kAllToAll, .loads = loads};
    closed.AddGroup(Strided(0, 1, 8));
    network.Start(0_s, call, 1);
    EXPECT_NEAR(RunAll(network).at(1), 0.7 / 450, 1e-10);
    EXPECT_NEAR(closed.Alone(call).value, 0.7 / 450, 1e-10);
  }
}

// One flow with lanes against every transfer a flow, with the same traffic in the way: rings,
// whose transfers all flow at once, agree to a few percent.
TEST(Network, LanesStandForTransfers) {
  const Cluster cluster = Make("dgx-h100", 8);
  const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
  std::map<std::int64_t, double> ends[2];
  for (const Expansion expansion : {Expansion::kNever, Expansion::kAlways}) {
    FairShareNetwork network(cluster, calibration, expansion);
    const int ring = network.AddGroup(Strided(0, 8, 8));
    network.Start(0_s, {.group = ring, .kind = Kind::kReduceScatter, .payload = 1_GiB}, 0);
    for (int i = 0; i < 3; ++i) {
      const int pair = network.AddGroup(std::vector{8 * i, 8 * i + 24});
      network.Start(0_s, {.group = pair, .kind = Kind::kSendRecv, .payload = 256_MiB}, i + 1);
    }
    ends[expansion == Expansion::kNever ? 0 : 1] = RunAll(network);
  }
  for (const auto& [tag, time] : ends[0]) EXPECT_NEAR(ends[1].at(tag) / time, 1, 0.05) << tag;
}

// --- Randomly, on every preset: never faster than alone, and the same again
// ------------------------

TEST(Network, ContentionOnlyEverDelaysAndIsDeterministic) {
  for (const char* preset : {"dgx-h100", "dgx-h100-3to1", "pcie-l40s", "mi300x", "gb200-nvl72"}) {
    const Cluster cluster = Make(preset, 3);
    const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
    for (unsigned seed = 0; seed < 6; ++seed) {
      std::vector<Completion> first;
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::mt19937 random(seed);
        FairShareNetwork network(cluster, calibration,
                                 seed % 2 == 0 ? Expansion::kNever : Expansion::kWhereShared);
        std::vector<Completion> done;
        std::vector<double> earliest;
        double now = 0;
        for (int i = 0; i < 60; ++i) {
          const int stride = 1 << random() % 4;
          const int count = std::min(2 + int(random() % 6), (cluster.gpus() - 1) / stride + 1);
          const int start = int(random() % unsigned(cluster.gpus() - stride * (count - 1)));
          const CollectiveCall call{.group = network.AddGroup(Strided(start, stride, count)),
                                    .kind = Kind(random() % 6),
                                    .payload = double(1 + random() % 200) * 1_MB};
          now += double(random() % 100) * 1e-5;
          network.Advance(Seconds(now), &done);
          network.Start(Seconds(now), call, i);
          earliest.push_back(now + network.Alone(call).value);
        }
        network.Advance(kEver, &done);
        ASSERT_EQ(done.size(), 60u);
        for (std::size_t i = 0; i < done.size(); ++i) {
          EXPECT_GE(done[i].time.value, earliest[std::size_t(done[i].tag)] * (1 - 1e-9));
          EXPECT_GE(done[i].time, done[i > 0 ? i - 1 : 0].time);
        }
        if (repeat == 0) {
          first = done;
          continue;
        }
        for (std::size_t i = 0; i < done.size(); ++i) {
          EXPECT_EQ(done[i].time, first[i].time);
          EXPECT_EQ(done[i].tag, first[i].tag);
        }
      }
    }
  }
}

TEST(Network, UnknownRank) {
  const Cluster cluster = Make("dgx-h100", 1);
  FairShareNetwork network(cluster, kIdeal);
  try {
    network.AddGroup(std::vector{7, 8});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 8 is not one of the cluster's 0 to 7");
  }
}

}  // namespace
}  // namespace millwright
