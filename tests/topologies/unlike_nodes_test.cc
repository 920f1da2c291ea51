// SPDX-License-Identifier: Apache-2.0
#include "topologies/unlike_nodes.h"

#include <gtest/gtest.h>

#include "tests/read_config.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

using Ranges = std::vector<std::pair<int, int>>;

ClusterConfig Read(const std::string& text) {
  ClusterConfig config;
  ReadConfig("unlike.json", text, [&](ConfigIo& io) { Fields(io, config); });
  return config;
}

TEST(UnlikeNodes, AreNamedByNumbersAndRanges) {
  EXPECT_EQ(NodesNamed("3"), (Ranges{{3, 3}}));
  EXPECT_EQ(NodesNamed("3,8..15,0"), (Ranges{{3, 3}, {8, 15}, {0, 0}}));
  for (const char* wrong : {"", ",", "3,", "-1", "3..", "..3", "5..3", "1-3", "a", "1 ", "1...3",
                            "99999999999999999999"}) {
    EXPECT_TRUE(NodesNamed(wrong).empty()) << wrong;
  }
}

TEST(UnlikeNodes, TheSlowestIsTheWorstInEach) {
  const std::vector<UnlikeNodes> unlike{{"3,8..15", {.compute = 0.8, .nic = 0.5}},
                                        {"5", {.compute = 0.9, .nvlink = 0.25}}};
  EXPECT_EQ(SlowestOf(unlike, 0, 15), (NodeSpeed{.compute = 0.8, .nic = 0.5, .nvlink = 0.25}));
  EXPECT_EQ(SlowestOf(unlike, 4, 7), (NodeSpeed{.compute = 0.9, .nvlink = 0.25}));
  EXPECT_EQ(SlowestOf(unlike, 15, 20), (NodeSpeed{.compute = 0.8, .nic = 0.5}));
  EXPECT_EQ(SlowestOf(unlike, 0, 2), NodeSpeed{});
  EXPECT_EQ(TextOf(unlike),
            "nodes 3,8..15 at 0.8 of the compute, 0.5 of the NIC bandwidth; node 5 at 0.9 of the "
            "compute, 0.25 of the NVLink bandwidth");
}

TEST(UnlikeNodes, SurviveWriting) {
  const ClusterConfig config = Read(
      R"({"inherit": "dgx-h100", "nodes": 16, "unlike_nodes": [{"nodes": "3,8..15", "nic": 0.5}]})");
  ASSERT_EQ(config.unlike_nodes.size(), 1U);
  EXPECT_EQ(config.unlike_nodes[0], (UnlikeNodes{"3,8..15", {.nic = 0.5}}));
  EXPECT_EQ(Read(WriteConfig([&](ConfigIo& io) {
              ClusterConfig copy = config;
              Fields(io, copy);
            })),
            config);
}

TEST(UnlikeNodes, EveryMistakeAtOnce) {
  EXPECT_EQ(
      Complaint([] {
        Read(R"({"inherit": "dgx-h100", "nodes": 4, "unlike_nodes": [
                  {"nodes": "3..1", "compute": 2}, {"nic": 0}, {"nodes": "1", "speed": 0.5}]})");
      }),
      "unlike.json: at /unlike_nodes/0/nodes: expected nodes and ranges of them, as in "
      "\"3,8..15\", got \"3..1\"\n"
      "unlike.json: at /unlike_nodes/0/compute: expected a number from 1e-06 to 1, got 2\n"
      "unlike.json: at /unlike_nodes/1/nodes: expected a text, got nothing (this field is "
      "required)\n"
      "unlike.json: at /unlike_nodes/1/nic: expected a number from 1e-06 to 1, got 0\n"
      "unlike.json: at /unlike_nodes/2/speed: unknown field; accepted fields: nodes, compute, "
      "nic, nvlink");
  EXPECT_EQ(Complaint([] {
              Read(R"({"inherit": "dgx-h100", "nodes": 4, "unlike_nodes": [
                  {"nodes": "1..4", "compute": 0.8}, {"nodes": "2"}, {"nodes": "", "nic": 0.5}]})");
            }),
            "unlike.json: at /unlike_nodes: \"1..4\": there are 4 nodes, 0 to 3\n"
            "unlike.json: at /unlike_nodes: \"2\": compute, nic or nvlink must be below 1\n"
            "unlike.json: at /unlike_nodes: \"\": names no node\n"
            "unlike.json: at /unlike_nodes: node 2 is named twice");
  EXPECT_EQ(Complaint([] {
              Read(R"({"inherit": "pcie-h100", "nics_per_node": 0,
                       "unlike_nodes": [{"nodes": "0", "nic": 0.5, "nvlink": 0.5}]})");
            }),
            "unlike.json: at /unlike_nodes: nic: there are no NICs (nics_per_node is 0)\n"
            "unlike.json: at /unlike_nodes: nvlink: there is no NVLink (domain_link is pcie)");
}

TEST(UnlikeNodes, ProfilesAreOfTheSlowest) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  const PathProfile sound = Cluster(config).Profile({.stride = 1, .ranks = 32});
  config.unlike_nodes = {{"2", {.nic = 0.5}}, {"3", {.nvlink = 0.25}}};
  const PathProfile slow = Cluster(config).Profile({.stride = 1, .ranks = 32});
  EXPECT_DOUBLE_EQ(slow.fabric_bandwidth / sound.fabric_bandwidth, 0.5);
  EXPECT_DOUBLE_EQ(slow.domain_bandwidth / sound.domain_bandwidth, 0.25);
}

}  // namespace
}  // namespace millwright
