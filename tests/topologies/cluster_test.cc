// SPDX-License-Identifier: Apache-2.0
#include "topologies/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <set>

namespace millwright {
namespace {

using namespace literals;

Cluster Make(const char* preset, int nodes) {
  ClusterConfig c = FindCluster(preset);
  c.nodes = nodes;
  return Cluster(c);
}

std::vector<std::string> RouteNames(const Cluster& cluster, int from, int to) {
  std::vector<std::string> names{cluster.NameOf(cluster.GpuVertex(from))};
  for (int link : cluster.Route(from, to)) {
    names.push_back(cluster.NameOf(cluster.links()[static_cast<std::size_t>(link)].to));
  }
  return names;
}

double RouteSeconds(const Cluster& cluster, int from, int to) {
  double sum = 0;
  for (int link : cluster.Route(from, to)) {
    sum += cluster.links()[static_cast<std::size_t>(link)].latency.value;
  }
  return sum;
}

// Maximum flow from vertex -1 to vertex -2 by shortest augmenting paths (Edmonds and Karp).
class FlowNetwork {
 public:
  void Pipe(int u, int v, double capacity) {
    residual_[{u, v}] += capacity;
    next_[u].insert(v);
    next_[v].insert(u);
  }

  double MaxFlow() {
    double flow = 0;
    while (true) {
      std::map<int, int> came_from{{-1, -1}};
      std::queue<int> queue({-1});
      while (!queue.empty() && !came_from.contains(-2)) {
        const int u = queue.front();
        queue.pop();
        for (int v : next_[u]) {
          if (came_from.contains(v) || residual_[{u, v}] < 1) continue;  // under a byte per second
          came_from[v] = u;
          queue.push(v);
        }
      }
      if (!came_from.contains(-2)) return flow;
      double step = std::numeric_limits<double>::max();
      for (int v = -2; v != -1; v = came_from[v]) {
        step = std::min(step, residual_[{came_from[v], v}]);
      }
      for (int v = -2; v != -1; v = came_from[v]) {
        residual_[{came_from[v], v}] -= step;
        residual_[{v, came_from[v]}] += step;
      }
      flow += step;
    }
  }

 private:
  std::map<std::pair<int, int>, double> residual_;
  std::map<int, std::set<int>> next_;
};

// --- Derived by hand --------------------------------------------------------------------------

TEST(Cluster, TensorParallelGroupOfADgxH100) {
  const PathProfile p = Make("dgx-h100", 2).Profile({.stride = 1, .ranks = 8});
  EXPECT_EQ(p.ranks, 8);
  EXPECT_EQ(p.domains, 1);
  EXPECT_EQ(p.min_ranks_per_domain, 8);
  EXPECT_EQ(p.max_ranks_per_domain, 8);
  EXPECT_EQ(p.domain_bandwidth, 450_GBps);
  EXPECT_DOUBLE_EQ(p.domain_latency.value, 0.6e-6);
  EXPECT_EQ(p.fabric_bandwidth, BytesPerSecond(0));
  EXPECT_EQ(p.fabric_latency, Seconds(0));
  EXPECT_TRUE(p.in_switch_reduction);
}

TEST(Cluster, DataParallelGroupOverTwoDgxH100) {
  const PathProfile p = Make("dgx-h100", 2).Profile({.stride = 8, .ranks = 2});
  EXPECT_EQ(p.domains, 2);
  EXPECT_EQ(p.max_ranks_per_domain, 1);
  EXPECT_EQ(p.fabric_bandwidth, 50_GBps);  // a 400 Gb/s NIC for each GPU
  // Same rail, one leaf: 4 PCIe links of 0.5 us, 2 NICs of 0.25, one switch of 0.2.
  EXPECT_DOUBLE_EQ(p.fabric_latency.value, 2.7e-6);
  EXPECT_FALSE(p.in_switch_reduction);  // one member a domain: nothing to add up
}

TEST(Cluster, DgxA100HasHalfTheNicAndNoInSwitchReduction) {
  const Cluster a100 = Make("dgx-a100", 2);
  EXPECT_EQ(a100.Profile({.stride = 8, .ranks = 2}).fabric_bandwidth, 25_GBps);
  const PathProfile p = a100.Profile({.stride = 1, .ranks = 8});
  EXPECT_EQ(p.domain_bandwidth, 300_GBps);
  EXPECT_FALSE(p.in_switch_reduction);
}

TEST(Cluster, RailsWithinAndAcrossScalableUnits) {
  const Cluster c = Make("dgx-h100", 128);
  ASSERT_EQ(c.switch_levels(), 2);
  // 32 nodes on a rail: one leaf.  64 nodes: leaf, spine, leaf, two more hops of 0.2 us.
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 8, .ranks = 32}).fabric_latency.value, 2.7e-6);
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 8, .ranks = 64}).fabric_latency.value, 3.1e-6);
  EXPECT_EQ(c.Profile({.stride = 8, .ranks = 64}).fabric_bandwidth, 50_GBps);  // non-blocking
  // Whole domains have a member on every rail: 16 ranks on 2 domains stay on their rails.
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 1, .ranks = 16}).fabric_latency.value, 2.7e-6);
  // 4 ranks at stride 6 sit on rails 0, 6, 4, 2: no rail is common, so they meet at the spines.
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 6, .ranks = 4}).fabric_latency.value, 3.1e-6);
}

TEST(Cluster, ThirdSwitchLevelAbove2048Gpus) {
  const Cluster c = Make("dgx-h100", 2048);
  ASSERT_EQ(c.switch_levels(), 3);
  // A pod is one rail of 32 scalable units (1,024 nodes); 2,048 nodes need the cores: 5 switches.
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 8, .ranks = 1024}).fabric_latency.value, 3.1e-6);
  EXPECT_DOUBLE_EQ(c.Profile({.stride = 8, .ranks = 2048}).fabric_latency.value, 3.5e-6);
}

TEST(Cluster, ThreeToOneOversubscription) {
  const Cluster c = Make("dgx-h100-3to1", 12);  // 6 nodes a leaf
  EXPECT_EQ(c.Profile({.stride = 8, .ranks = 6}).fabric_bandwidth, 50_GBps);
  // 12 nodes: a third of 48 x 50 GB/s goes up, over 48 GPUs.
  EXPECT_NEAR(c.Profile({.stride = 8, .ranks = 12}).fabric_bandwidth.value, 50e9 / 3, 1);
  // 2 nodes on one leaf keep the NIC's rate; 4 nodes: the second group straddles leaves.
  EXPECT_EQ(c.Profile({.stride = 8, .ranks = 2}).fabric_bandwidth, 50_GBps);
  EXPECT_NEAR(c.Profile({.stride = 8, .ranks = 4}).fabric_bandwidth.value, 50e9 / 3, 1);
}

TEST(Cluster, OversubscribedSpines) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2048;
  config.spine_oversubscription = 7;
  const Cluster c(config);
  EXPECT_EQ(c.Profile({.stride = 8, .ranks = 1024}).fabric_bandwidth, 50_GBps);
  EXPECT_NEAR(c.Profile({.stride = 8, .ranks = 2048}).fabric_bandwidth.value, 50e9 / 7, 1);
}

TEST(Cluster, Nvl72) {
  const Cluster c = Make("gb200-nvl72", 2);
  EXPECT_EQ(c.gpus(), 144);
  const PathProfile rack = c.Profile({.stride = 1, .ranks = 72});
  EXPECT_EQ(rack.domains, 1);
  EXPECT_EQ(rack.domain_bandwidth, 900_GBps);
  EXPECT_TRUE(rack.in_switch_reduction);
  // 16 GPUs: groups 0 to 3 fill ranks 0 to 63; group 4 has 8 in each rack, on the same rails.
  const PathProfile p = c.Profile({.stride = 1, .ranks = 16});
  EXPECT_EQ(p.domains, 2);
  EXPECT_EQ(p.min_ranks_per_domain, 8);
  EXPECT_EQ(p.max_ranks_per_domain, 16);
  EXPECT_EQ(p.fabric_bandwidth, 50_GBps);
  EXPECT_DOUBLE_EQ(p.fabric_latency.value, 2.7e-6);
}

TEST(Cluster, UnevenGroups) {
  // 6 ranks on domains of 8: {0-5}, {6,7 | 8-11}, {12-15 | 16,17}, {18-23}.
  const PathProfile p = Make("dgx-h100", 3).Profile({.stride = 1, .ranks = 6});
  EXPECT_EQ(p.domains, 2);
  EXPECT_EQ(p.min_ranks_per_domain, 2);
  EXPECT_EQ(p.max_ranks_per_domain, 6);
  // The last of 3 ranks at stride 3 of {5, 8, 11}: 1 and 2; {0, 3, 6}: 3.
  const PathProfile q = Make("dgx-h100", 3).Profile({.stride = 3, .ranks = 3});
  EXPECT_EQ(q.domains, 2);
  EXPECT_EQ(q.min_ranks_per_domain, 1);
  EXPECT_EQ(q.max_ranks_per_domain, 3);
}

TEST(Cluster, NvlinkBridgesJoinPairsOnly) {
  const Cluster c = Make("h100-nvl", 1);
  const PathProfile pair = c.Profile({.stride = 1, .ranks = 2});
  EXPECT_EQ(pair.domain_bandwidth, 300_GBps);
  EXPECT_DOUBLE_EQ(pair.domain_latency.value, 0.6e-6);
  // 4 GPUs, two PCIe switches: two GPUs share a Gen5 link of 63 GB/s to the socket.
  const PathProfile four = c.Profile({.stride = 1, .ranks = 4});
  EXPECT_EQ(four.domain_bandwidth, 31.5_GBps);
  EXPECT_DOUBLE_EQ(four.domain_latency.value, 2e-6);  // 4 PCIe links
  // Ranks 1 and 2 are neighbours without a bridge.
  const std::vector<int> apart{1, 2};
  EXPECT_EQ(c.Profile(apart).domain_bandwidth, 31.5_GBps);
  // 8 GPUs: 96 GB/s between the sockets for 4 GPUs each.
  EXPECT_EQ(c.Profile({.stride = 1, .ranks = 8}).domain_bandwidth, 24_GBps);
}

TEST(Cluster, PcieBoxSharesItsNics) {
  const Cluster c = Make("pcie-l40s", 2);
  EXPECT_EQ(c.Profile({.stride = 1, .ranks = 2}).domain_bandwidth, 31.5_GBps);
  // 4 NICs of 25 GB/s for 8 GPUs.
  EXPECT_EQ(c.Profile({.stride = 8, .ranks = 2}).fabric_bandwidth, 12.5_GBps);
}

TEST(Cluster, MeshGivesAPairOneLink) {
  const Cluster c = Make("mi300x", 1);
  EXPECT_EQ(c.Profile({.stride = 1, .ranks = 8}).domain_bandwidth, 448_GBps);
  EXPECT_EQ(c.Profile({.stride = 1, .ranks = 2}).domain_bandwidth, 64_GBps);
  EXPECT_EQ(c.Profile({.stride = 2, .ranks = 4}).domain_bandwidth, 192_GBps);  // 3 links
}

TEST(Cluster, MoreNicsThanGpus) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2;
  config.gpus_per_node = 4;  // two NICs of 50 GB/s each, over one PCIe link of 63 GB/s
  EXPECT_EQ(Cluster(config).Profile({.stride = 4, .ranks = 2}).fabric_bandwidth, 63_GBps);
  config.pcie_bandwidth = 121_GBps;
  EXPECT_EQ(Cluster(config).Profile({.stride = 4, .ranks = 2}).fabric_bandwidth, 100_GBps);
}

TEST(Cluster, RailsWithoutSpinesForwardOverNvlink) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2;
  config.levels = 1;
  const Cluster c(config);
  EXPECT_EQ(
      RouteNames(c, 0, 9),
      (std::vector<std::string>{"node0/gpu0", "node0/pcie0", "node0/nic0", "leaf0.0", "node1/nic0",
                                "node1/pcie0", "node1/gpu0", "node1/nvswitch", "node1/gpu1"}));
  // 0.6 us of NVLink after the 2.7 us of the rail.
  const std::vector<int> off_rail{0, 9};
  EXPECT_DOUBLE_EQ(c.Profile(off_rail).fabric_latency.value, 3.3e-6);
}

TEST(Cluster, SwitchCountsOfTheSuperPod) {
  // DGX SuperPOD B200 reference architecture: scalable units, leaves, spines, cores.
  struct Row {
    int units, leaves, spines, cores;
  };
  for (const Row row : {Row{2, 16, 8, 0}, Row{4, 32, 16, 0}, Row{8, 64, 32, 0},
                        Row{16, 128, 128, 64}, Row{32, 256, 256, 128}, Row{64, 512, 512, 256}}) {
    const Cluster c = Make("dgx-b200", 32 * row.units);
    EXPECT_EQ(c.CountOf(VertexKind::kLeaf), row.leaves) << row.units;
    EXPECT_EQ(c.CountOf(VertexKind::kSpine), row.spines) << row.units;
    EXPECT_EQ(c.CountOf(VertexKind::kCore), row.cores) << row.units;
  }
}

TEST(Cluster, RoutesHopByHop) {
  const Cluster c = Make("dgx-h100", 64);
  EXPECT_EQ(RouteNames(c, 0, 3),
            (std::vector<std::string>{"node0/gpu0", "node0/nvswitch", "node0/gpu3"}));
  EXPECT_EQ(RouteNames(c, 3, 11),
            (std::vector<std::string>{"node0/gpu3", "node0/pcie3", "node0/nic3", "leaf0.3",
                                      "node1/nic3", "node1/pcie3", "node1/gpu3"}));
  // 16 leaves of 32 uplinks make 8 spines of 64 ports; node 33's turn is spine 33 mod 8.
  EXPECT_EQ(
      RouteNames(c, 3, 33 * 8 + 3),
      (std::vector<std::string>{"node0/gpu3", "node0/pcie3", "node0/nic3", "leaf0.3", "spine0.1",
                                "leaf1.3", "node33/nic3", "node33/pcie3", "node33/gpu3"}));
  EXPECT_TRUE(c.Route(5, 5).empty());
}

TEST(Cluster, RoutesOfAPcieBox) {
  const Cluster c = Make("pcie-h100", 1);
  EXPECT_EQ(RouteNames(c, 0, 1),
            (std::vector<std::string>{"node0/gpu0", "node0/pcie0", "node0/gpu1"}));
  EXPECT_EQ(RouteNames(c, 0, 7),
            (std::vector<std::string>{"node0/gpu0", "node0/pcie0", "node0/socket0", "node0/socket1",
                                      "node0/pcie3", "node0/gpu7"}));
}

TEST(Cluster, BisectionByFormula) {
  EXPECT_EQ(Make("dgx-h100", 1).Bisection(), 4 * 450_GBps);
  EXPECT_EQ(Make("dgx-h100", 64).Bisection(), 32 * 8 * 50_GBps);
  // 12 nodes, 6 a leaf: a third of 6 x 8 x 50 GB/s.
  EXPECT_NEAR(Make("dgx-h100-3to1", 12).Bisection().value, 6 * 8 * 50e9 / 3, 100);
  EXPECT_EQ(Make("mi300x", 1).Bisection(), 4 * 4 * 64_GBps);  // 16 links cross
  EXPECT_EQ(Make("pcie-h100", 1).Bisection(), 96_GBps);       // between the sockets
}

TEST(Cluster, ShapesThatDoNotFit) {
  const Cluster c = Make("dgx-h100", 1);
  const auto error = [&](auto group) -> std::string {
    try {
      c.Profile(group);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error(StridedGroup{.stride = 4, .ranks = 4}),
            "4 ranks at stride 4 do not fit on 8 GPUs");
  EXPECT_EQ(error(std::vector<int>{}), "a process group needs at least one rank");
  EXPECT_EQ(error(std::vector<int>{1, 8}), "rank 8 is not one of the cluster's 0 to 7");
  EXPECT_EQ(error(std::vector<int>{1, 2, 1}), "rank 1 is twice in a process group");
}

TEST(Cluster, SwitchesTooSmall) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 32768;
  config.switch_ports = 2;
  try {
    const Cluster cluster(config);
    FAIL() << cluster.gpus();
  } catch (const ConfigError& e) {
    // 1,024 groups of 8 leaves with 32 uplinks, each leaf a pod of 32 spines, one port up each:
    // 262,144 spines of one port need 131,072 cores, in gcd(32, 131,072) = 32 planes of 4,096.
    // 2 x (8,192 x 32 + 262,144 x 4,096).
    EXPECT_STREQ(e.what(),
                 "cluster dgx-h100: switch_ports: 2 ports make a fabric of 2148007936 links, more "
                 "than the 4194304 modelled");
  }
}

// --- Against brute force ----------------------------------------------------------------------

// Profiles by walking every route of every group over the links, and by maximum flow out of what
// the routes pass.  Shares nothing with the class but its links and routes.
class BruteForce {
 public:
  explicit BruteForce(const Cluster& cluster) : cluster_(cluster) {
    out_.resize(static_cast<std::size_t>(cluster.vertices()));
    for (std::size_t i = 0; i < cluster.links().size(); ++i) {
      out_[static_cast<std::size_t>(cluster.links()[i].from)].push_back(i);
    }
    for (int rank = 0; rank < cluster.gpus(); ++rank) rank_of_[cluster.GpuVertex(rank)] = rank;
    const int remote = cluster.gpus_per_domain();
    for (int rank = 0; rank < cluster.gpus() && cluster.domains() > 1; ++rank) {
      leaf_of_.push_back(First(VertexKind::kLeaf, rank, (rank + remote) % cluster.gpus()));
      nic_of_[cluster.GpuVertex(rank)] =
          First(VertexKind::kNic, rank, (rank + remote) % cluster.gpus());
    }
  }

  PathProfile Profile(StridedGroup shape) {
    const int block = shape.stride * shape.ranks;
    PathProfile worst;
    bool any = false;
    for (int outer = 0; (outer + 1) * block <= cluster_.gpus(); ++outer) {
      for (int inner = 0; inner < shape.stride; ++inner) {
        std::vector<int> ranks;
        for (int i = 0; i < shape.ranks; ++i) {
          ranks.push_back(outer * block + i * shape.stride + inner);
        }
        const Found found = Find(ranks);
        any = any || found.pairs;
        Add(found, worst, outer + inner == 0);
      }
    }
    Finish(worst, any);
    return worst;
  }

  PathProfile Profile(const std::vector<int>& ranks) {
    PathProfile p;
    const Found found = Find(ranks);
    Add(found, p, true);
    Finish(p, found.pairs);
    return p;
  }

 private:
  struct Found {
    PathProfile profile;
    bool pairs = false;  // two members in one domain
    BytesPerSecond nearest;
  };

  int Domain(int rank) const { return rank / cluster_.gpus_per_domain(); }
  VertexKind Kind(int v) const { return cluster_.KindOf(v); }

  int First(VertexKind kind, int from, int to) const {
    for (int link : cluster_.Route(from, to)) {
      const int v = cluster_.links()[static_cast<std::size_t>(link)].to;
      if (Kind(v) == kind) return v;
    }
    return -1;
  }

  // A rail is what stands behind the point in a leaf's name.
  std::string RailOf(int rank) const {
    const std::string name = cluster_.NameOf(leaf_of_[static_cast<std::size_t>(rank)]);
    return name.substr(name.find('.'));
  }

  // Flow from `sources` to every vertex of kind `sink` that is not `not_sink`, without NVLink,
  // over a count of the sources.
  double Share(const std::set<int>& sources, VertexKind sink, int not_sink = -1) {
    const auto key = std::pair(sources, std::pair(sink, not_sink));
    if (const auto it = shares_.find(key); it != shares_.end()) return it->second;
    FlowNetwork network;
    std::set<int> nics;  // a GPU uses its own
    for (int s : sources) {
      network.Pipe(-1, s, 1e15);
      if (const auto it = nic_of_.find(s); it != nic_of_.end()) nics.insert(it->second);
    }
    for (const Link& link : cluster_.links()) {
      const auto stop = [&](int v) { return Kind(v) == sink && v != not_sink; };
      if (stop(link.from) || Kind(link.to) == VertexKind::kNvswitch) continue;
      if (Kind(link.from) == VertexKind::kGpu && Kind(link.to) == VertexKind::kGpu) continue;
      // NICs lead out, not from one domain into another below the sink.
      if (Kind(link.from) == VertexKind::kLeaf && Kind(link.to) == VertexKind::kNic) continue;
      if (Kind(link.to) == VertexKind::kNic && !nics.contains(link.to)) continue;
      network.Pipe(link.from, stop(link.to) ? -2 : link.to, link.bandwidth.value);
    }
    return shares_[key] = network.MaxFlow() / static_cast<double>(sources.size());
  }

  template <class Predicate>
  std::set<int> GpusWhere(const Predicate& predicate) const {
    std::set<int> vertices;
    for (const auto& [vertex, rank] : rank_of_) {
      if (predicate(rank)) vertices.insert(vertex);
    }
    return vertices;
  }

  // What a GPU gets on the way from a to b.
  double PairShare(int a, int b) {
    const std::vector<int> route = cluster_.Route(a, b);
    std::set<VertexKind> kinds;
    for (int link : route) {
      kinds.insert(Kind(cluster_.links()[static_cast<std::size_t>(link)].to));
    }
    const int va = cluster_.GpuVertex(a);
    if (Domain(a) == Domain(b)) {
      if (route.size() == 1 || kinds.contains(VertexKind::kNvswitch)) {
        return cluster_.links()[static_cast<std::size_t>(route[0])].bandwidth.value;
      }
      double share = Share({va}, VertexKind::kPcieSwitch);
      const int pcie = First(VertexKind::kPcieSwitch, a, b);
      const int socket = First(VertexKind::kSocket, a, b);
      if (socket < 0) return share;
      const auto below = [&](int switch_vertex, int rank) {
        for (std::size_t l : out_[static_cast<std::size_t>(cluster_.GpuVertex(rank))]) {
          if (cluster_.links()[l].to == switch_vertex) return true;
        }
        return false;
      };
      share = std::min(
          share, Share(GpusWhere([&](int r) { return below(pcie, r); }), VertexKind::kSocket));
      int sockets = 0;
      for (int link : route) {
        const int to = cluster_.links()[static_cast<std::size_t>(link)].to;
        sockets += Kind(to) == VertexKind::kSocket ? 1 : 0;
      }
      if (sockets == 1) return share;
      std::set<int> switches;
      for (std::size_t l : out_[static_cast<std::size_t>(socket)]) {
        if (Kind(cluster_.links()[l].to) == VertexKind::kPcieSwitch) {
          switches.insert(cluster_.links()[l].to);
        }
      }
      const auto under_socket = [&](int r) {
        return std::any_of(switches.begin(), switches.end(), [&](int s) { return below(s, r); });
      };
      return std::min(share, Share(GpusWhere(under_socket), VertexKind::kSocket, socket));
    }
    double share =
        Share(GpusWhere([&](int r) { return Domain(r) == Domain(a); }), VertexKind::kLeaf);
    if (!kinds.contains(VertexKind::kSpine)) return share;
    share = std::min(share, FullestLeaf());
    if (!kinds.contains(VertexKind::kCore)) return share;
    return std::min(share, FullestPod());
  }

  double FullestLeaf() {
    double least = 1e18;
    for (int leaf : std::set<int>(leaf_of_.begin(), leaf_of_.end())) {
      const auto here = [&](int r) { return leaf_of_[static_cast<std::size_t>(r)] == leaf; };
      least = std::min(least, Share(GpusWhere(here), VertexKind::kSpine));
    }
    return least;
  }

  double FullestPod() {
    const auto pod = [&](int rank) {
      const int leaf = leaf_of_[static_cast<std::size_t>(rank)];
      for (std::size_t l : out_[static_cast<std::size_t>(leaf)]) {
        if (Kind(cluster_.links()[l].to) == VertexKind::kSpine) return cluster_.links()[l].to;
      }
      return -1;
    };
    double least = 1e18;
    for (int rank = 0; rank < cluster_.gpus(); ++rank) {
      const auto here = [&](int r) { return pod(r) == pod(rank); };
      least = std::min(least, Share(GpusWhere(here), VertexKind::kCore));
    }
    return least;
  }

  Found Find(const std::vector<int>& ranks) {
    std::map<int, std::vector<int>> members;
    for (int rank : ranks) members[Domain(rank)].push_back(rank);
    Found found;
    PathProfile& p = found.profile;
    p.ranks = static_cast<int>(ranks.size());
    p.domains = static_cast<int>(members.size());
    p.min_ranks_per_domain = 1 << 30;
    p.max_ranks_per_domain = 0;
    double domain_share = 1e18, fabric_share = 1e18;
    for (const auto& [domain, here] : members) {
      const int count = static_cast<int>(here.size());
      p.min_ranks_per_domain = std::min(p.min_ranks_per_domain, count);
      p.max_ranks_per_domain = std::max(p.max_ranks_per_domain, count);
      const bool mesh = cluster_.config().domain_link == DomainLink::kXgmiMesh;
      for (int a : here) {
        for (int b : here) {
          if (a == b) continue;
          found.pairs = true;
          domain_share = std::min(domain_share, PairShare(a, b) * (mesh ? count - 1 : 1));
          p.domain_latency = std::max(p.domain_latency, Seconds(RouteSeconds(cluster_, a, b)));
        }
        for (const auto& [other, there] : members) {
          if (other == domain) continue;
          std::vector<int> peers;
          for (int b : there) {
            if (RailOf(a) == RailOf(b)) peers.push_back(b);
          }
          for (int b : peers.empty() ? there : peers) {
            fabric_share = std::min(fabric_share, PairShare(a, b));
            p.fabric_latency = std::max(p.fabric_latency, Seconds(RouteSeconds(cluster_, a, b)));
          }
        }
      }
    }
    p.domain_bandwidth = BytesPerSecond(found.pairs ? domain_share : 1e18);
    p.fabric_bandwidth = BytesPerSecond(p.domains > 1 ? fabric_share : 1e18);
    return found;
  }

  static void Add(const Found& found, PathProfile& worst, bool first) {
    const PathProfile& p = found.profile;
    if (first) {
      worst = p;
      return;
    }
    worst.domains = std::max(worst.domains, p.domains);
    worst.min_ranks_per_domain = std::min(worst.min_ranks_per_domain, p.min_ranks_per_domain);
    worst.max_ranks_per_domain = std::max(worst.max_ranks_per_domain, p.max_ranks_per_domain);
    worst.domain_bandwidth = std::min(worst.domain_bandwidth, p.domain_bandwidth);
    worst.domain_latency = std::max(worst.domain_latency, p.domain_latency);
    worst.fabric_bandwidth = std::min(worst.fabric_bandwidth, p.fabric_bandwidth);
    worst.fabric_latency = std::max(worst.fabric_latency, p.fabric_latency);
  }

  void Finish(PathProfile& p, bool pairs) {
    if (!pairs) {  // what the nearest two GPUs of a domain would get
      p.domain_bandwidth = {};
      if (cluster_.gpus_per_domain() > 1) {
        p.domain_bandwidth = BytesPerSecond(PairShare(0, 1));
        p.domain_latency = Seconds(RouteSeconds(cluster_, 0, 1));
      }
    }
    if (p.domains == 1) p.fabric_bandwidth = {};
    p.in_switch_reduction = cluster_.config().in_switch_reduction && p.min_ranks_per_domain > 1;
  }

  const Cluster& cluster_;
  std::vector<std::vector<std::size_t>> out_;
  std::map<int, int> rank_of_, nic_of_;  // by GPU vertex
  std::vector<int> leaf_of_;
  std::map<std::pair<std::set<int>, std::pair<VertexKind, int>>, double> shares_;
};

void ExpectSame(const PathProfile& got, const PathProfile& expected) {
  EXPECT_EQ(got.ranks, expected.ranks);
  EXPECT_EQ(got.domains, expected.domains);
  EXPECT_EQ(got.min_ranks_per_domain, expected.min_ranks_per_domain);
  EXPECT_EQ(got.max_ranks_per_domain, expected.max_ranks_per_domain);
  const auto near = [](double a, double b) { EXPECT_NEAR(a, b, 1e-8 * std::max(a, b)); };
  near(got.domain_bandwidth.value, expected.domain_bandwidth.value);
  near(got.domain_latency.value, expected.domain_latency.value);
  near(got.fabric_bandwidth.value, expected.fabric_bandwidth.value);
  near(got.fabric_latency.value, expected.fabric_latency.value);
  EXPECT_EQ(got.in_switch_reduction, expected.in_switch_reduction);
}

struct Small {
  const char* what;
  const char* preset;
  int nodes;
  int gpus_per_node;
  void (*change)(ClusterConfig&);
};

// Small worlds in which every level occurs: odd domains, partly filled groups, three levels.
const Small kSmall[] = {
    {"nvswitch", "dgx-h100", 5, 8, [](ClusterConfig& c) { c.nodes_per_leaf = 2; }},
    {"three levels of rails", "dgx-h100", 6, 4,
     [](ClusterConfig& c) {
       c.nics_per_node = 4;
       c.nodes_per_leaf = 2;
       c.switch_ports = 4;
       c.spine_oversubscription = 2;
       c.leaf_oversubscription = 1.5;
     }},
    {"three levels of a fat tree", "dgx-h100-3to1", 9, 2,
     [](ClusterConfig& c) {
       c.nics_per_node = 2;
       c.nodes_per_leaf = 2;
       c.switch_ports = 6;
       c.spine_oversubscription = 2;
     }},
    {"domains of six", "dgx-a100", 4, 6,
     [](ClusterConfig& c) {
       c.nics_per_node = 6;
       c.gpus_per_pcie_switch = 3;
       c.nodes_per_leaf = 3;
     }},
    {"domains of three, shared rails", "dgx-h100", 7, 3,
     [](ClusterConfig& c) {
       c.sockets = 1;
       c.nics_per_node = 3;
       c.rails = 1;
       c.nodes_per_leaf = 2;
     }},
    {"racks of nine, rails of three", "gb200-nvl72", 3, 9,
     [](ClusterConfig& c) {
       c.sockets = 9;
       c.nics_per_node = 9;
       c.rails = 3;
       c.nodes_per_leaf = 2;
     }},
    {"bridges", "h100-nvl", 3, 8, [](ClusterConfig& c) { c.nodes_per_leaf = 2; }},
    {"bridges across switches", "h100-nvl", 2, 8,
     [](ClusterConfig& c) { c.gpus_per_pcie_switch = 1; }},
    {"pcie, a NIC on each socket", "pcie-l40s", 3, 8,
     [](ClusterConfig& c) { c.nics_per_node = 2; }},
    {"mesh", "mi300x", 3, 8, [](ClusterConfig& c) { c.nodes_per_leaf = 1; }},
    {"lone GPUs", "pcie-h100", 5, 1,
     [](ClusterConfig& c) {
       c.sockets = 1;
       c.nics_per_node = 1;
       c.gpus_per_pcie_switch = 1;
       c.nodes_per_leaf = 2;
     }},
    {"one switch", "dgx-h200", 4, 8, [](ClusterConfig& c) { c.fabric = Fabric::kSingleSwitch; }},
};

Cluster MakeSmall(const Small& small) {
  ClusterConfig c = FindCluster(small.preset);
  c.nodes = small.nodes;
  c.gpus_per_node = small.gpus_per_node;
  small.change(c);
  return Cluster(c);
}

TEST(Cluster, EveryStridedShapeEqualsBruteForce) {
  for (const Small& small : kSmall) {
    const Cluster cluster = MakeSmall(small);
    BruteForce brute(cluster);
    for (int stride = 1; stride <= cluster.gpus(); ++stride) {
      for (int ranks = 1; stride * ranks <= cluster.gpus(); ++ranks) {
        SCOPED_TRACE(testing::Message()
                     << small.what << ": " << ranks << " ranks at stride " << stride);
        ExpectSame(cluster.Profile({.stride = stride, .ranks = ranks}),
                   brute.Profile(StridedGroup{.stride = stride, .ranks = ranks}));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Cluster, AnyGroupEqualsBruteForce) {
  std::mt19937 random(7);
  for (const Small& small : kSmall) {
    const Cluster cluster = MakeSmall(small);
    BruteForce brute(cluster);
    std::vector<int> all(static_cast<std::size_t>(cluster.gpus()));
    std::iota(all.begin(), all.end(), 0);
    for (int i = 0; i < 60; ++i) {
      std::shuffle(all.begin(), all.end(), random);
      const auto size = 1 + random() % std::min<std::size_t>(6, all.size());
      const std::vector<int> group(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
      SCOPED_TRACE(testing::Message() << small.what << ": " << testing::PrintToString(group));
      ExpectSame(cluster.Profile(group), brute.Profile(group));
      if (HasFailure()) return;
    }
  }
}

// On real machines: the fast path for shapes, against the profiles of their groups one by one.
TEST(Cluster, EveryStridedShapeEqualsItsGroups) {
  for (const auto& [preset, nodes] : {std::pair("gb200-nvl72", 5), std::pair("dgx-h100", 70),
                                      std::pair("dgx-h100-3to1", 40), std::pair("h100-nvl", 20)}) {
    const Cluster c = Make(preset, nodes);
    for (int stride = 1; stride <= c.gpus(); stride += stride < 40 ? 1 : 7) {
      for (int ranks = 2; stride * ranks <= c.gpus(); ranks += ranks < 20 ? 1 : 5) {
        SCOPED_TRACE(testing::Message() << preset << ": " << ranks << " at " << stride);
        PathProfile worst;
        const int block = stride * ranks;
        for (int start = 0; start + block <= c.gpus(); start += block) {
          for (int inner = 0; inner < stride; ++inner) {
            std::vector<int> group;
            for (int i = 0; i < ranks; ++i) group.push_back(start + inner + i * stride);
            const PathProfile p = c.Profile(group);
            if (start + inner == 0) worst = p;
            worst.domains = std::max(worst.domains, p.domains);
            worst.min_ranks_per_domain =
                std::min(worst.min_ranks_per_domain, p.min_ranks_per_domain);
            worst.max_ranks_per_domain =
                std::max(worst.max_ranks_per_domain, p.max_ranks_per_domain);
            worst.domain_bandwidth = std::min(worst.domain_bandwidth, p.domain_bandwidth);
            worst.domain_latency = std::max(worst.domain_latency, p.domain_latency);
            if (worst.fabric_bandwidth == BytesPerSecond(0) ||
                (p.domains > 1 && p.fabric_bandwidth < worst.fabric_bandwidth)) {
              worst.fabric_bandwidth = p.fabric_bandwidth;
            }
            worst.fabric_latency = std::max(worst.fabric_latency, p.fabric_latency);
            worst.in_switch_reduction = worst.in_switch_reduction && p.in_switch_reduction;
          }
        }
        ExpectSame(c.Profile({.stride = stride, .ranks = ranks}), worst);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Cluster, RoutesAreWaysAndSymmetric) {
  for (const Small& small : kSmall) {
    SCOPED_TRACE(small.what);
    const Cluster c = MakeSmall(small);
    for (int a = 0; a < c.gpus(); ++a) {
      for (int b = 0; b < c.gpus(); ++b) {
        int at = c.GpuVertex(a);
        for (int index : c.Route(a, b)) {
          const Link& link = c.links()[static_cast<std::size_t>(index)];
          ASSERT_EQ(link.from, at);
          at = link.to;
          ASSERT_TRUE(at == c.GpuVertex(b) || c.KindOf(at) != VertexKind::kGpu);
        }
        ASSERT_EQ(at, c.GpuVertex(b));
        ASSERT_NEAR(RouteSeconds(c, a, b), RouteSeconds(c, b, a), 1e-15);
      }
    }
  }
}

TEST(Cluster, LinksComeInEqualPairs) {
  const Cluster c = Make("dgx-h100", 80);
  std::map<std::pair<int, int>, const Link*> by_ends;
  for (const Link& link : c.links()) by_ends[{link.from, link.to}] = &link;
  EXPECT_EQ(by_ends.size(), c.links().size());  // no two links between the same ends
  for (const Link& link : c.links()) {
    const Link* back = by_ends[{link.to, link.from}];
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(back->bandwidth, link.bandwidth);
    EXPECT_EQ(back->latency, link.latency);
  }
}

TEST(Cluster, EveryVertexIsReached) {
  for (const Small& small : kSmall) {
    const Cluster c = MakeSmall(small);
    std::vector<bool> seen(static_cast<std::size_t>(c.vertices()));
    std::queue<int> queue({0});
    seen[0] = true;
    while (!queue.empty()) {
      const int v = queue.front();
      queue.pop();
      for (const Link& link : c.links()) {
        if (link.from == v && !seen[static_cast<std::size_t>(link.to)]) {
          seen[static_cast<std::size_t>(link.to)] = true;
          queue.push(link.to);
        }
      }
    }
    for (int v = 0; v < c.vertices(); ++v) {
      EXPECT_TRUE(seen[static_cast<std::size_t>(v)]) << small.what << ": " << c.NameOf(v);
    }
  }
}

// Full-graph maximum flow, against the contraction that Bisection() uses.
TEST(Cluster, BisectionEqualsMaxFlowOverTheWholeGraph) {
  for (const Small& small : kSmall) {
    SCOPED_TRACE(small.what);
    const Cluster c = MakeSmall(small);
    const int half = c.domains() / 2 * c.gpus_per_domain();
    FlowNetwork network;
    for (int r = 0; r < c.gpus(); ++r) {
      if (r < half) network.Pipe(-1, c.GpuVertex(r), 1e15);
      if (r >= half) network.Pipe(c.GpuVertex(r), -2, 1e15);
    }
    for (const Link& link : c.links()) network.Pipe(link.from, link.to, link.bandwidth.value);
    const double flow = network.MaxFlow();
    EXPECT_NEAR(c.Bisection().value, flow, 1e-8 * flow);
  }
}

// --- Failed links -----------------------------------------------------------------------------

// GPUs passed on the way, then seconds; a hop counts a little, so that fewer are better.
using WayCost = std::pair<int, double>;

WayCost CostOf(const Cluster& c, const std::vector<int>& route) {
  WayCost cost{0, 0};
  for (std::size_t i = 0; i < route.size(); ++i) {
    const Link& link = c.links()[static_cast<std::size_t>(route[i])];
    cost.first += i > 0 && c.KindOf(link.from) == VertexKind::kGpu ? 1 : 0;
    cost.second += link.latency.value + 1e-12;
  }
  return cost;
}

// The cheapest way by relaxing every link until nothing changes (Bellman and Ford); none: {}.
template <class MayPass>
std::optional<WayCost> BestWay(const Cluster& c, int from, int to, const std::set<int>& failed,
                               const MayPass& may_pass) {
  std::map<int, WayCost> best{{c.GpuVertex(from), {0, 0.0}}};
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < c.links().size(); ++i) {
      const Link& link = c.links()[i];
      const auto at = best.find(link.from);
      if (at == best.end() || failed.contains(static_cast<int>(i))) continue;
      if (link.to != c.GpuVertex(to) && !may_pass(link.to)) continue;
      WayCost cost = at->second;
      const bool passes = link.from != c.GpuVertex(from) && c.KindOf(link.from) == VertexKind::kGpu;
      cost.first += passes ? 1 : 0;
      cost.second += link.latency.value + 1e-12;
      const auto there = best.find(link.to);
      if (there == best.end() || cost.first < there->second.first ||
          (cost.first == there->second.first && cost.second < there->second.second - 1e-16)) {
        best[link.to] = cost;
        changed = true;
      }
    }
  }
  const auto found = best.find(c.GpuVertex(to));
  return found == best.end() ? std::nullopt : std::optional(found->second);
}

// What the three reaches of Cluster::Route allow, in words of its own.
std::optional<WayCost> BestDetour(const Cluster& c, int from, int to, const std::set<int>& failed) {
  const int n = c.gpus_per_domain();
  std::set<int> own_nics;
  if (from / n != to / n) {
    for (int link : c.Route(from, to)) {
      const Link& l = c.links()[static_cast<std::size_t>(link)];
      if (c.KindOf(l.to) == VertexKind::kNic) own_nics.insert(l.to);
    }
  }
  const auto domain_of = [&](int v) {  // -1: a switch
    const std::string name = c.NameOf(v);
    return name.starts_with("node") ? std::stoi(name.substr(4)) : -1;
  };
  const DomainLink kind = c.config().domain_link;
  const bool all_linked = kind == DomainLink::kNvswitch || kind == DomainLink::kXgmiMesh;
  const bool bridged = kind == DomainLink::kNvlinkBridge && from % n / 2 == to % n / 2;
  const auto near = [&](int v) { return domain_of(v) == from / n || domain_of(v) == to / n; };
  const auto is = [&](int v, VertexKind k) { return c.KindOf(v) == k; };
  const auto own = [&](int v) {
    if (from / n == to / n) {
      if (!near(v)) return false;
      return all_linked || bridged ? is(v, VertexKind::kNvswitch)
                                   : is(v, VertexKind::kPcieSwitch) || is(v, VertexKind::kSocket);
    }
    if (domain_of(v) < 0) return true;
    return near(v) &&
           (own_nics.contains(v) || is(v, VertexKind::kPcieSwitch) || is(v, VertexKind::kSocket));
  };
  const auto forwarded = [&](int v) {
    if (from / n == to / n) return near(v) && !is(v, VertexKind::kNic);
    return domain_of(v) < 0 || (near(v) && !(all_linked && is(v, VertexKind::kSocket)));
  };
  const auto any = [&](int v) { return domain_of(v) < 0 || near(v); };
  if (const auto way = BestWay(c, from, to, failed, own)) return way;
  if (const auto way = BestWay(c, from, to, failed, forwarded)) return way;
  return BestWay(c, from, to, failed, any);
}

// On every small world, up to three links out, of every kind: who does not need them goes as
// before; who does takes the best way that brute force finds; and only where it finds none is there
// none.
TEST(Cluster, DetoursEqualBruteForce) {
  std::mt19937 random(3);
  int detours = 0, cut_off = 0;
  for (const Small& small : kSmall) {
    const Cluster c = MakeSmall(small);
    std::map<std::pair<VertexKind, VertexKind>, std::vector<int>> by_kind;
    for (std::size_t i = 0; i < c.links().size(); ++i) {
      const Link& link = c.links()[i];
      by_kind[{c.KindOf(link.from), c.KindOf(link.to)}].push_back(static_cast<int>(i));
    }
    for (const auto& [kinds, links] : by_kind) {
      std::set<int> failed;
      for (unsigned i = 0; i <= random() % 3; ++i) {
        const int link = links[random() % links.size()];
        failed.insert(link);
        const Link& l = c.links()[static_cast<std::size_t>(link)];
        if (random() % 2 == 0) failed.insert(*c.LinkBetween(l.to, l.from));
      }
      const std::vector<int> sorted(failed.begin(), failed.end());
      const auto broken = [&](const std::vector<int>& route) {
        return std::any_of(route.begin(), route.end(), [&](int l) { return failed.contains(l); });
      };
      for (int from = 0; from < c.gpus(); ++from) {
        for (int to = 0; to < c.gpus(); ++to) {
          const std::vector<int> sound = c.Route(from, to);
          if (!broken(sound)) {
            ASSERT_EQ(c.Route(from, to, sorted), sound);
            continue;
          }
          SCOPED_TRACE(testing::Message() << small.what << ": " << from << " to " << to
                                          << " without " << c.NameOfLink(sorted.front()));
          const std::optional<WayCost> best = BestDetour(c, from, to, failed);
          std::vector<int> route;
          try {
            route = c.Route(from, to, sorted);
          } catch (const ConfigError&) {
            ASSERT_FALSE(best.has_value());
            ++cut_off;
            continue;
          }
          ASSERT_TRUE(best.has_value());
          ASSERT_FALSE(broken(route));
          int at = c.GpuVertex(from);
          for (int link : route) {
            ASSERT_EQ(c.links()[static_cast<std::size_t>(link)].from, at);
            at = c.links()[static_cast<std::size_t>(link)].to;
          }
          ASSERT_EQ(at, c.GpuVertex(to));
          ASSERT_EQ(CostOf(c, route).first, best->first);
          ASSERT_NEAR(CostOf(c, route).second, best->second, 1e-14);
          ++detours;
        }
      }
    }
  }
  EXPECT_GT(detours, 1000);
  EXPECT_GT(cut_off, 10);
}

std::vector<std::string> DetourNames(const Cluster& c, int from, int to,
                                     const std::vector<std::string>& down) {
  std::vector<int> failed;
  for (std::size_t l = 0; l < c.links().size(); ++l) {
    if (std::count(down.begin(), down.end(), c.NameOfLink(static_cast<int>(l))) > 0) {
      failed.push_back(static_cast<int>(l));
    }
  }
  EXPECT_EQ(failed.size(), down.size());
  std::vector<std::string> names;
  for (int link : c.Route(from, to, failed)) {
    names.push_back(c.NameOf(c.links()[static_cast<std::size_t>(link)].to));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Cluster, DetoursHopByHop) {
  const Cluster dgx = Make("dgx-h100", 64);
  // Without NIC 3, GPU 3 of node 0 sends by NVLink to a neighbour's, the one whose turn it is for
  // node 1: the second of seven.  From leaf 1 it changes rails at the spine; 1 / 7 leaves the
  // first.
  EXPECT_EQ(DetourNames(dgx, 3, 11, {"node0/nic3->leaf0.3"}),
            (Names{"node0/nvswitch", "node0/gpu1", "node0/pcie1", "node0/nic1", "leaf0.1",
                   "spine0.0", "leaf0.3", "node1/nic3", "node1/pcie3", "node1/gpu3"}));
  // Only the way out is broken.
  EXPECT_EQ(
      DetourNames(dgx, 11, 3, {"node0/nic3->leaf0.3"}),
      (Names{"node1/pcie3", "node1/nic3", "leaf0.3", "node0/nic3", "node0/pcie3", "node0/gpu3"}));
  // Node 33's turn was spine 1 of 8; of the seven left it is 33 mod 7 = 5, the sixth: spine 6.
  EXPECT_EQ(DetourNames(dgx, 3, 33 * 8 + 3, {"leaf0.3->spine0.1"}),
            (Names{"node0/pcie3", "node0/nic3", "leaf0.3", "spine0.6", "leaf1.3", "node33/nic3",
                   "node33/pcie3", "node33/gpu3"}));
  // Off the NVSwitch: over PCIe and the socket.
  EXPECT_EQ(DetourNames(dgx, 0, 1, {"node0/gpu0->node0/nvswitch"}),
            (Names{"node0/pcie0", "node0/socket0", "node0/pcie1", "node0/gpu1"}));
  // A bridge: over the PCIe switch that the pair is under.
  EXPECT_EQ(DetourNames(Make("h100-nvl", 1), 0, 1, {"node0/gpu0->node0/gpu1"}),
            (Names{"node0/pcie0", "node0/gpu1"}));
  // An NVL72's Graces are not joined here: by its own to the neighbour, which forwards; without
  // that one's NVLink, by a NIC and the leaf.
  const Cluster racks = Make("gb200-nvl72", 2);
  EXPECT_EQ(DetourNames(racks, 0, 4, {"node0/gpu0->node0/nvswitch"}),
            (Names{"node0/pcie0", "node0/socket0", "node0/pcie1", "node0/gpu1", "node0/nvswitch",
                   "node0/gpu4"}));
  EXPECT_EQ(
      DetourNames(racks, 0, 4, {"node0/gpu0->node0/nvswitch", "node0/gpu1->node0/nvswitch"}),
      (Names{"node0/pcie0", "node0/nic0", "leaf0.0", "node0/nic4", "node0/pcie4", "node0/gpu4"}));
}

TEST(Cluster, CutOff) {
  const Cluster dgx = Make("dgx-h100", 2);
  const int pcie =
      *dgx.LinkBetween(*dgx.VertexNamed("node1/pcie2"), *dgx.VertexNamed("node1/gpu2"));
  const int nvlink =
      *dgx.LinkBetween(*dgx.VertexNamed("node1/nvswitch"), *dgx.VertexNamed("node1/gpu2"));
  const std::vector<int> failed{std::min(pcie, nvlink), std::max(pcie, nvlink)};
  EXPECT_NO_THROW(dgx.Route(0, 10, std::vector{pcie}));  // by NVLink from a neighbour
  EXPECT_NO_THROW(dgx.Route(10, 0, failed));
  try {
    dgx.Route(0, 10, failed);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "node0/gpu0 cannot reach node1/gpu2: node1/pcie2->node1/gpu2 is down and no other "
                 "way is left");
  }
}

TEST(Cluster, EveryNameIsFound) {
  for (const Small& small : kSmall) {
    const Cluster c = MakeSmall(small);
    for (int v = 0; v < c.vertices(); ++v) EXPECT_EQ(c.VertexNamed(c.NameOf(v)), v) << c.NameOf(v);
  }
  const Cluster c = Make("dgx-h100", 2);
  for (const char* name :
       {"", "node", "node0", "node0/", "node0/gpu", "node0/gpu8", "node2/gpu0", "node0/gpu00",
        "node0/gpu-1", "node0/gpu99999999999999999999", "node0/nvswitch0", "leaf0", "leaf0.8",
        "leaf1.0", "spine0", "core0", "node0/gpu0 ", "Node0/gpu0", "node-1/gpu0"}) {
    EXPECT_EQ(c.VertexNamed(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace millwright
