// SPDX-License-Identifier: Apache-2.0
#include "sim/routes.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace millwright
