// SPDX-License-Identifier: Apache-2.0
#include "sim/routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/config_io.h"

namespace millwright {
namespace {

using namespace literals;

// The parts put together are the whole: every pair of small clusters of every preset.
TEST(RouteTable, EqualsTheClustersOwnRoutes) {
  for (const ClusterPreset& preset : ClusterPresets()) {
    for (int nodes : {1, 2, 3, 7}) {
      ClusterConfig config = preset.config;
      if (nodes > 1 && (config.nics_per_node == 0 || config.fabric == Fabric::kNone)) continue;
      config.nodes = nodes;
      config.nodes_per_leaf = std::min(config.nodes_per_leaf, 2);  // leaves, and spines above
      const Cluster cluster(config);
      RouteTable table(cluster);
      const int step = cluster.gpus() > 100 ? 7 : 1;
      for (int from = 0; from < cluster.gpus(); from += step) {
        for (int to = 0; to < cluster.gpus(); to += step) {
          if (from == to) continue;
          const std::span<const int> found = table.LinksOf(table.Find(from, to));
          ASSERT_EQ(std::vector<int>(found.begin(), found.end()), cluster.Route(from, to))
              << config.name << " nodes " << nodes << " " << from << " to " << to;
        }
      }
    }
  }
}

TEST(RouteTable, ThreeSwitchLevels) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2048;
  const Cluster cluster(config);
  RouteTable table(cluster);
  for (int i = 1; i < 3000; ++i) {
    const int from = int(7919LL * i % cluster.gpus()), to = int(104729LL * i % cluster.gpus());
    if (from == to) continue;
    const std::span<const int> found = table.LinksOf(table.Find(from, to));
    ASSERT_EQ(std::vector<int>(found.begin(), found.end()), cluster.Route(from, to));
  }
}

TEST(RouteTable, RailsThatNoSpineJoins) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  config.levels = 1;
  const Cluster cluster(config);
  RouteTable table(cluster);
  for (int from = 0; from < 32; ++from) {
    for (int to = 0; to < 32; ++to) {
      if (from == to) continue;
      const std::span<const int> found = table.LinksOf(table.Find(from, to));
      ASSERT_EQ(std::vector<int>(found.begin(), found.end()), cluster.Route(from, to));
    }
  }
}

TEST(RouteTable, LatencyAndNarrowestLink) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2;
  const Cluster cluster(config);
  RouteTable table(cluster);
  // 4 PCIe links of 0.5 us, 2 NICs of 0.25, one switch of 0.2.
  const int across = table.Find(0, 8);
  EXPECT_DOUBLE_EQ(table.LatencyOf(across).value, 2.7e-6);
  EXPECT_EQ(table.BandwidthOf(across), 50_GBps);
  EXPECT_EQ(table.Find(0, 8), across);
  // To the switch that adds up: half of NVLink's 0.6 us.
  const int to_switch = table.Find(9, table.SwitchOf(9));
  EXPECT_EQ(table.LinksOf(to_switch).size(), 1u);
  EXPECT_DOUBLE_EQ(table.LatencyOf(to_switch).value, 0.3e-6);
  EXPECT_EQ(cluster.links()[std::size_t(table.LinksOf(to_switch)[0])].from, cluster.GpuVertex(9));
  const int from_switch = table.Find(table.SwitchOf(9), 9);
  EXPECT_EQ(cluster.links()[std::size_t(table.LinksOf(from_switch)[0])].to, cluster.GpuVertex(9));
}

TEST(RouteTable, StarAndSlowLink) {
  RouteTable star = RouteTable::Star(3, 10_GBps, 1_us);
  star.Slow(3 + 1, 0.5);  // down to rank 1
  EXPECT_EQ(star.BandwidthOf(star.Find(0, 1)), 5_GBps);
  EXPECT_EQ(star.BandwidthOf(star.Find(1, 0)), 10_GBps);
  EXPECT_EQ(star.LatencyOf(star.Find(1, 2)), 2_us);
}

// With a NIC, a leaf's uplink and an NVLink out, on small clusters of every preset: what the
// cluster itself says, nothing over a failed link, and the old route for whoever did not use one.
TEST(RouteTable, GoesAroundFailedLinks) {
  int detours = 0;
  for (const ClusterPreset& preset : ClusterPresets()) {
    for (int nodes : {1, 2, 5}) {
      ClusterConfig config = preset.config;
      if (nodes > 1 && (config.nics_per_node == 0 || config.fabric == Fabric::kNone)) continue;
      config.nodes = nodes;
      config.nodes_per_leaf = std::min(config.nodes_per_leaf, 2);
      const Cluster cluster(config);
      RouteTable sound(cluster), table(cluster);
      std::vector<int> failed;
      const auto fail = [&](const char* from, const char* to) {
        const auto a = cluster.VertexNamed(from), b = cluster.VertexNamed(to);
        const auto link = a && b ? cluster.LinkBetween(*a, *b) : std::nullopt;
        if (!link) return;
        failed.push_back(*link);
        table.Fail(*link);
      };
      const int last = config.gpus_per_node - 1;  // not in domain 0 alone: shifted routes too
      const std::string node = fmt::format("node{}/", nodes - 1);
      fail((node + "nic1").c_str(), "leaf0.1");
      fail((node + "nic1").c_str(), "leaf0.0");
      fail("leaf0.0", (node + "nic0").c_str());
      fail("leaf0.0", "spine0.0");
      fail("leaf2.0", "spine0.0");
      fail((node + "nvswitch").c_str(), fmt::format("{}gpu{}", node, last).c_str());
      fail((node + "gpu0").c_str(), (node + "gpu1").c_str());
      std::sort(failed.begin(), failed.end());
      EXPECT_EQ(table.disturbed(), !failed.empty());
      const int step = cluster.gpus() > 100 ? 7 : 1;
      for (int from = 0; from < cluster.gpus(); from += step) {
        for (int to = 0; to < cluster.gpus(); to += step) {
          if (from == to) continue;
          const std::span<const int> before = sound.LinksOf(sound.Find(from, to));
          const auto broken = [&](int link) {
            return std::binary_search(failed.begin(), failed.end(), link);
          };
          const bool untouched = std::none_of(before.begin(), before.end(), broken);
          std::vector<int> expected;
          try {
            expected = cluster.Route(from, to, failed);
          } catch (const ConfigError&) {  // two links up to the only spine are out
            EXPECT_THROW(table.Find(from, to), ConfigError);
            continue;
          }
          const int route = table.Find(from, to);
          const std::vector<int> found(table.LinksOf(route).begin(), table.LinksOf(route).end());
          ASSERT_EQ(found, expected)
              << config.name << " nodes " << nodes << " " << from << " " << to;
          ASSERT_TRUE(std::none_of(found.begin(), found.end(), broken));
          ASSERT_EQ(table.IsDetour(route), !untouched);
          if (untouched) {
            ASSERT_EQ(found, std::vector<int>(before.begin(), before.end()));
          }
          detours += untouched ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(detours, 1000);
}

TEST(RouteTable, LatencyOfADetourAndNoSwitch) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 2;
  const Cluster cluster(config);
  RouteTable table(cluster);
  const auto link = [&](const char* from, const char* to) {
    return *cluster.LinkBetween(*cluster.VertexNamed(from), *cluster.VertexNamed(to));
  };
  table.Fail(link("node0/nic0", "leaf0.0"));
  table.Fail(link("node1/gpu2", "node1/nvswitch"));
  // 2.7 us as it was, NVLink's 0.6 to a neighbour, and up to a spine and down again, 0.2 each.
  EXPECT_NEAR(table.LatencyOf(table.Find(0, 8)).value, 3.7e-6, 1e-12);
  EXPECT_EQ(table.BandwidthOf(table.Find(0, 8)), 50_GBps);
  EXPECT_NEAR(table.LatencyOf(table.Find(8, 0)).value, 2.7e-6, 1e-12);
  EXPECT_TRUE(table.ReachesSwitch(9));
  EXPECT_FALSE(table.ReachesSwitch(10));
  EXPECT_TRUE(table.ReachesSwitch(2));
  try {
    table.Find(10, table.SwitchOf(10));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "no NVLink SHARP for node1/gpu2: node1/gpu2->node1/nvswitch is down");
  }
  // The table is as good as before.
  EXPECT_EQ(table.LinksOf(table.Find(10, 11)).size(), 4u);  // PCIe, socket, PCIe
}

}  // namespace
}  // namespace millwright
