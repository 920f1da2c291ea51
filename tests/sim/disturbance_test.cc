// SPDX-License-Identifier: Apache-2.0
#include "sim/disturbance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/config_io.h"

namespace millwright {
namespace {

Cluster Dgx(int nodes) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = nodes;
  return Cluster(config);
}

int LinkOf(const Cluster& cluster, const char* from, const char* to) {
  return *cluster.LinkBetween(*cluster.VertexNamed(from), *cluster.VertexNamed(to));
}

using Texts = std::vector<std::string>;

std::string ErrorOf(const Texts& slow, const Texts& down, const Cluster& cluster) {
  try {
    ReadDisturbance(slow, down, cluster);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Disturbance, SlowGpusAndNodes) {
  const Cluster cluster = Dgx(3);
  const Disturbance d =
      ReadDisturbance(Texts{"gpu:17=0.8", "node:1=0.5", "gpu:9=0.5"}, {}, cluster);
  std::vector<double> expected(24, 1);
  for (std::size_t rank = 8; rank < 16; ++rank) expected[rank] = 0.5;
  expected[9] = 0.25;  // the node's and its own
  expected[17] = 0.8;
  EXPECT_EQ(d.gpu_speed, expected);
  EXPECT_TRUE(d.slow_links.empty() && d.failed_links.empty());
  EXPECT_EQ(d, ReadDisturbance(Texts{"gpu:9=0.5", "gpu:17=0.8", "node:1=0.5"}, {}, cluster));
}

TEST(Disturbance, UnlikeNodesAreSlowPartsOfSoundOnes) {
  const Cluster cluster = Dgx(3);
  const auto disturbed = [&](const UnlikeNodes& unlike, Disturbance disturbance = {}) {
    Disturb(std::vector{unlike}, cluster, &disturbance);
    return disturbance;
  };
  EXPECT_EQ(disturbed({"0,2", {.compute = 0.5}}),
            ReadDisturbance(Texts{"node:0=0.5", "node:2=0.5"}, {}, cluster));
  Texts nics;
  for (int nic = 8; nic < 16; ++nic) nics.push_back("nic:" + std::to_string(nic) + "=0.25");
  EXPECT_EQ(disturbed({"1", {.nic = 0.25}}), ReadDisturbance(nics, {}, cluster));
  EXPECT_EQ(disturbed({"1", {.nvlink = 0.25}}),
            ReadDisturbance(Texts{"link:node1/nvswitch=0.25"}, {}, cluster));
  // On top of what else is slow.
  EXPECT_EQ(disturbed({"1", {.compute = 0.5}}, ReadDisturbance(Texts{"gpu:8=0.5"}, {}, cluster)),
            ReadDisturbance(Texts{"gpu:8=0.5", "node:1=0.5"}, {}, cluster));
}

TEST(Disturbance, NothingSaidAndNothingSlow) {
  const Cluster cluster = Dgx(1);
  EXPECT_TRUE(ReadDisturbance({}, {}, cluster).empty());
  EXPECT_TRUE(ReadDisturbance(Texts{"gpu:3=1", "node:0=1.0", "nic:2=1e0"}, {}, cluster).empty());
}

TEST(Disturbance, SlowLinks) {
  const Cluster cluster = Dgx(64);
  // NIC 17 is node 2's second.
  const int out = LinkOf(cluster, "node2/nic1", "leaf0.1");
  const int in = LinkOf(cluster, "leaf0.1", "node2/nic1");
  using Links = std::vector<std::pair<int, double>>;
  EXPECT_EQ(ReadDisturbance(Texts{"nic:17=0.5"}, {}, cluster).slow_links,
            (Links{{out, 0.5}, {in, 0.5}}));
  EXPECT_EQ(ReadDisturbance(Texts{"link:node2/nic1->leaf0.1=0.5"}, {}, cluster).slow_links,
            (Links{{out, 0.5}}));
  // Both ways, and once more one way.
  EXPECT_EQ(ReadDisturbance(Texts{"link:leaf0.1-node2/nic1=0.5", "link:leaf0.1->node2/nic1=0.5"},
                            {}, cluster)
                .slow_links,
            (Links{{out, 0.5}, {in, 0.25}}));
  // A spine of 64 nodes has a link to each of 16 leaves, both ways.
  EXPECT_EQ(ReadDisturbance(Texts{"link:spine0.3=0.5"}, {}, cluster).slow_links.size(), 32u);
}

TEST(Disturbance, FailedLinks) {
  const Cluster cluster = Dgx(2);
  const int out = LinkOf(cluster, "node1/nic3", "leaf0.3");
  const int in = LinkOf(cluster, "leaf0.3", "node1/nic3");
  for (const char* text : {"nic:11", "node1/nic3-leaf0.3", "link:leaf0.3-node1/nic3"}) {
    EXPECT_EQ(ReadDisturbance({}, Texts{text}, cluster).failed_links, (std::vector{out, in}))
        << text;
  }
  EXPECT_EQ(ReadDisturbance({}, Texts{"leaf0.3->node1/nic3"}, cluster).failed_links,
            (std::vector{in}));
  // Each once, however often it is meant.
  EXPECT_EQ(ReadDisturbance({}, Texts{"leaf0.3->node1/nic3", "nic:11"}, cluster).failed_links,
            (std::vector{out, in}));
  // All of a NIC's: to its leaf and to PCIe.
  EXPECT_EQ(ReadDisturbance({}, Texts{"node1/nic3"}, cluster).failed_links.size(), 4u);
}

// Every mistake, each in a line that says what would do.
TEST(Disturbance, Mistakes) {
  const Cluster cluster = Dgx(128);
  EXPECT_EQ(
      ErrorOf({"gpu:99999=0.8", "gpu:-1=0.8", "gpu:=0.8", "gpu:07=0.8", "node:128=0.5",
               "nic:1024=1", "gpu:1=0", "gpu:2=1.5", "gpu:3=nan", "gpu:4=1e999", "gpu:5=-1",
               "gpu:6=", "gpu:7", "", "gpu:8=1e-300", "gpu:8=0.5", "cpu:3=0.5", "node3/nic5=0.5"},
              {}, cluster),
      "--slow gpu:99999=0.8: there are 1,024 GPUs, 0 to 1023; got \"99999\"\n"
      "--slow gpu:-1=0.8: there are 1,024 GPUs, 0 to 1023; got \"-1\"\n"
      "--slow gpu:=0.8: there are 1,024 GPUs, 0 to 1023; got \"\"\n"
      "--slow gpu:07=0.8: there are 1,024 GPUs, 0 to 1023; got \"07\"\n"
      "--slow node:128=0.5: there are 128 nodes, 0 to 127; got \"128\"\n"
      "--slow nic:1024=1: there are 1,024 NICs, 0 to 1023; got \"1024\"\n"
      "--slow gpu:1=0: the factor must be a number from 0.000001 to 1, got \"0\"\n"
      "--slow gpu:2=1.5: the factor must be a number from 0.000001 to 1, got \"1.5\"\n"
      "--slow gpu:3=nan: the factor must be a number from 0.000001 to 1, got \"nan\"\n"
      "--slow gpu:4=1e999: the factor must be a number from 0.000001 to 1, got \"1e999\"\n"
      "--slow gpu:5=-1: the factor must be a number from 0.000001 to 1, got \"-1\"\n"
      "--slow gpu:6=: the factor must be a number from 0.000001 to 1, got \"\"\n"
      "--slow gpu:7: expected a part and a factor, as in gpu:17=0.8\n"
      "--slow \"\": expected a part and a factor, as in gpu:17=0.8\n"
      "--slow gpu:8=1e-300: the factor must be a number from 0.000001 to 1, got \"1e-300\"\n"
      "--slow gpu:8=0.5: \"gpu:8\" is named twice\n"
      "--slow cpu:3=0.5: expected gpu:N, node:N, nic:N or link: and A->B (one way), A-B (both "
      "ways) "
      "or A (every link of A), got \"cpu:3\"; did you mean \"gpu\"?\n"
      "--slow node3/nic5=0.5: expected gpu:N, node:N, nic:N or link: and A->B (one way), A-B (both "
      "ways) or A (every link of A), got \"node3/nic5\"");
  const std::string parts =
      "; parts are node0/gpu0 to node127/gpu7, node0/nvswitch to node127/nvswitch, node0/pcie0 to "
      "node127/pcie7, node0/socket0 to node127/socket1, node0/nic0 to node127/nic7, leaf0.0 to "
      "leaf3.7, spine0.0 to spine0.15";
  EXPECT_EQ(
      ErrorOf({"link:node3/gpu5->node3/nic5=0.5"},
              {"node3/nix5-leaf0.5", "spin0.3", "node3/nic5-", "gpu:3", "nic:1024", "leaf0.1",
               "leaf0.1", "leaf0.1->leaf0.2"},
              cluster),
      "--slow link:node3/gpu5->node3/nic5=0.5: node3/gpu5 and node3/nic5 are not linked; "
      "node3/gpu5 "
      "is linked to node3/nvswitch, node3/pcie5\n"
      "--link-down node3/nix5-leaf0.5: there is no \"node3/nix5\"; did you mean \"node3/nic5\"?" +
          parts +
          "\n"
          "--link-down spin0.3: there is no \"spin0.3\"; did you mean \"spine0.3\"?" +
          parts +
          "\n"
          "--link-down node3/nic5-: expected a part's name behind the -, as in node0/nic0-leaf0.0; "
          "a "
          "shell takes an unquoted > for itself\n"
          "--link-down gpu:3: expected nic:N, A->B (one way), A-B (both ways) or A (every link of "
          "A), got \"gpu:3\"\n"
          "--link-down nic:1024: there are 1,024 NICs, 0 to 1023; got \"1024\"\n"
          "--link-down leaf0.1: \"leaf0.1\" is named twice\n"
          "--link-down leaf0.1->leaf0.2: leaf0.1 and leaf0.2 are not linked; leaf0.1 is linked to "
          "node0/nic1 to node31/nic1, spine0.0 to spine0.15");
}

TEST(Disturbance, ClustersWithoutNicsOrFabric) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.fabric = Fabric::kNone;
  EXPECT_EQ(ErrorOf({"nic:3=0.5"}, {}, Cluster(config)),
            "--slow nic:3=0.5: node0/nic3 is joined to no switch");
  config.nics_per_node = 0;
  EXPECT_EQ(ErrorOf({}, {"nic:3"}, Cluster(config)), "--link-down nic:3: there are no NICs");
}

TEST(Disturbance, ManyMistakesAreCounted) {
  const Texts slow(130, "\x1b[31m");
  const std::string error = ErrorOf(slow, {}, Dgx(1));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 100);
  EXPECT_TRUE(error.ends_with("\nand 30 more mistakes"));
  EXPECT_TRUE(error.starts_with("--slow \\u001b[31m: expected a part and a factor"));
}

}  // namespace
}  // namespace millwright
