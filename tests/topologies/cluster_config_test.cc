// SPDX-License-Identifier: Apache-2.0
#include "topologies/cluster_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/read_config.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

using namespace literals;

std::string Write(ClusterConfig cluster) {
  return WriteConfig([&](ConfigIo& io) { Fields(io, cluster); });
}

TEST(ClusterConfig, NamesAsUsersWriteThem) {
  for (const char* name : {"h100", "H100-80GB", "H100 SXM", "dgx-h100", "DGX H100", "HGX_H100"}) {
    EXPECT_EQ(LoadCluster(name).name, "dgx-h100") << name;
  }
  EXPECT_EQ(LoadCluster("GB200 NVL72").name, "gb200-nvl72");
  EXPECT_EQ(LoadCluster("gb300").name, "gb300-nvl72");
}

TEST(ClusterConfig, EachGpuHasItsShareOfTheWayToTheHost) {
  // Two A100s share a switch's PCIe 4 link to the socket; an H100 has a link of PCIe 5 for itself;
  // 72 GPUs of a GB200 rack have the 18.4 TB/s of 36 Graces' memory.
  EXPECT_DOUBLE_EQ(FindCluster("dgx-a100").ToHost().value, 31.5e9 / 2);
  EXPECT_DOUBLE_EQ(FindCluster("dgx-h100").ToHost().value, 63e9);
  EXPECT_DOUBLE_EQ(FindCluster("gb200-nvl72").ToHost().value, 255e9);
  const auto cluster = Read<ClusterConfig>(
      R"({"inherit": "dgx-h100", "host_bandwidth": "40 GB/s", "host_memory": "1 TiB"})");
  EXPECT_DOUBLE_EQ(cluster.ToHost().value, 40e9);
  EXPECT_EQ(cluster.host_memory.value, 1099511627776);
}

TEST(ClusterConfig, UnknownNameListsTheNearest) {
  EXPECT_EQ(Complaint([] { LoadCluster("dgx-h1000"); }),
            "unknown cluster \"dgx-h1000\", did you mean \"dgx-h100\"?; known: dgx-a100, "
            "dgx-a100-40gb, dgx-h100, dgx-h200, dgx-h800, dgx-b200, dgx-b300, gb200-nvl72, "
            "gb300-nvl72, dgx-h100-3to1, pcie-l40s, pcie-h100, h100-nvl, a100-pcie-bridge, mi300x, "
            "local-cpu; or give a JSON file");
}

TEST(ClusterConfig, UnknownParentIsTheOnlyMistake) {
  constexpr char kKnown[] =
      "; known: dgx-a100, dgx-a100-40gb, dgx-h100, dgx-h200, dgx-h800, dgx-b200, dgx-b300, "
      "gb200-nvl72, gb300-nvl72, dgx-h100-3to1, pcie-l40s, pcie-h100, h100-nvl, "
      "a100-pcie-bridge, mi300x, local-cpu";
  EXPECT_EQ(Complaint([] { Read<ClusterConfig>(R"({"inherit": "dgx-h1000"})"); }),
            std::string("c.json: at /inherit: unknown cluster \"dgx-h1000\", did you mean "
                        "\"dgx-h100\"?") +
                kKnown);
  EXPECT_EQ(Complaint([] { Read<ClusterConfig>(R"({"inherit": "./other.json"})"); }),
            std::string("c.json: at /inherit: unknown cluster \"./other.json\"") + kKnown +
                "; inherit takes a preset's name, not a file");
}

TEST(ClusterConfig, NamesFromInputAreEscaped) {
  EXPECT_TRUE(Complaint([] {
                LoadCluster("dgx-\xff\x1b[31m");
              }).starts_with("unknown cluster \"dgx-\\xff\\u001b[31m\"; known: "));
  EXPECT_EQ(
      Complaint([] { Read<ClusterConfig>(R"({"inherit": "dgx-h100", "name": "a\u001b[31m"})"); }),
      "c.json: at /name: expected a text without control characters, got "
      "\"a\\u001b[31m\"");
}

TEST(ClusterConfig, MissingFile) {
  EXPECT_EQ(Complaint([] { LoadCluster("nowhere/my.json"); }), "nowhere/my.json: no such file");
}

TEST(ClusterConfig, EveryPresetIsSoundBuildsAndSurvivesWriting) {
  std::set<std::string> names;
  for (const ClusterPreset& preset : ClusterPresets()) {
    SCOPED_TRACE(preset.config.name);
    EXPECT_TRUE(Inconsistencies(preset.config).empty());
    EXPECT_EQ(preset.config.nodes, 1);
    EXPECT_FALSE(preset.config.source.empty());
    EXPECT_EQ(Read<ClusterConfig>(Write(preset.config)), preset.config);
    EXPECT_EQ(Cluster(preset.config).gpus(), preset.config.gpus_per_node);
    EXPECT_TRUE(names.insert(preset.config.name).second);
    for (const std::string& alias : preset.aliases) {
      EXPECT_EQ(FindCluster(alias).name, preset.config.name) << alias;
      EXPECT_TRUE(names.insert(alias).second) << alias << " is listed twice";
    }
  }
}

TEST(ClusterConfig, FileInheritsAndOverrides) {
  const auto file = std::filesystem::temp_directory_path() / "millwright_cluster_test.json";
  std::ofstream(file) << R"({
    "inherit": "dgx-h100",
    "gpu": {"inherit": "H100-SXM", "hbm_capacity": "141 GB"},
    "nodes": 16,
    "nic_bandwidth": "200 Gb/s"
  })";
  const ClusterConfig got = LoadCluster(file.string());
  std::filesystem::remove(file);
  ClusterConfig expected = FindCluster("dgx-h100");
  expected.gpu.hbm_capacity = 141_GB;
  expected.nodes = 16;
  expected.nic_bandwidth = 25_GBps;  // 200 Gb/s over 8
  EXPECT_EQ(got, expected);
}

TEST(ClusterConfig, FullyExplicit) {
  const ClusterConfig c = Read<ClusterConfig>(R"({
    "name": "mine", "nodes": 2, "gpus_per_node": 4, "domain_link": "pcie", "sockets": 1,
    "gpu": {"name": "X", "peak_bf16": "100 TFLOP/s", "hbm_bandwidth": "1 TB/s",
            "hbm_capacity": "40 GiB", "sm_count": 100, "calibration": "generic"},
    "pcie_bandwidth": "30 GB/s", "nics_per_node": 1, "nic_bandwidth": "100 Gb/s",
    "fabric": "single_switch"
  })");
  EXPECT_EQ(c.gpus(), 8);
  EXPECT_EQ(c.gpu.peak_bf16, 100_TFLOPS);
  EXPECT_EQ(c.domain_link, DomainLink::kPcie);
}

TEST(ClusterConfig, EveryMistakeOfAFileAtOnce) {
  EXPECT_EQ(Complaint([] {
              Read<ClusterConfig>(R"({"inherit": "dgx-h100", "nodes": 0, "nic_bandwith": "1 GB/s",
                       "nic_latency": 3, "fabric": "fat-tree", "leaf_oversubscription": 0.5})");
            }),
            "c.json: at /nodes: expected an integer from 1 to 262144, got 0\n"
            "c.json: at /nic_latency: expected a number and a unit, such as \"5 us\" (units: s, "
            "ms, us, ns), got 3\n"
            "c.json: at /fabric: expected one of \"rail_optimized\", \"fat_tree\", "
            "\"single_switch\", \"none\", got \"fat-tree\"; did you mean \"fat_tree\"?\n"
            "c.json: at /leaf_oversubscription: expected a number from 1 to 1000, got 0.5\n"
            "c.json: at /nic_bandwith: unknown field; did you mean \"nic_bandwidth\"? accepted "
            "fields: inherit, name, gpu, nodes, gpus_per_node, domain_link, nvlink_bandwidth, "
            "nvlink_latency, nvswitches, in_switch_reduction, sockets, gpus_per_pcie_switch, "
            "pcie_bandwidth, pcie_latency, socket_bandwidth, host_bandwidth, host_memory, "
            "nics_per_node, nic_bandwidth, "
            "nic_latency, fabric, rails, nodes_per_leaf, switch_ports, levels, "
            "leaf_oversubscription, spine_oversubscription, switch_latency, unlike_nodes, source");
}

TEST(ClusterConfig, DisconnectedWithoutNics) {
  EXPECT_EQ(Complaint([] {
              Read<ClusterConfig>(R"({"inherit": "dgx-h100", "nodes": 4, "nics_per_node": 0})");
            }),
            "c.json: at /nodes: node 0 cannot reach nodes 1 to 3: nics_per_node is 0");
}

TEST(ClusterConfig, DisconnectedWithoutFabric) {
  ClusterConfig c = FindCluster("dgx-h100");
  c.nodes = 2;
  c.fabric = Fabric::kNone;
  EXPECT_EQ(Complaint([&] { Cluster{c}; }),
            "cluster dgx-h100: nodes: node 0 cannot reach nodes 1 to 1: fabric is none");
}

TEST(ClusterConfig, DisconnectedLeaves) {
  EXPECT_EQ(Complaint([] {
              Read<ClusterConfig>(R"({"inherit": "dgx-h100", "nodes": 64, "levels": 1})");
            }),
            "c.json: at /levels: nodes 0 to 31 cannot reach nodes 32 to 63: one level of switches "
            "joins 32 nodes");
}

TEST(ClusterConfig, ShapesThatDoNotShareEvenly) {
  ClusterConfig c = FindCluster("pcie-h100");
  c.nics_per_node = 3;
  c.gpus_per_pcie_switch = 3;
  c.sockets = 2;
  c.gpu = {};
  c.nvswitches = 4;
  c.in_switch_reduction = true;
  EXPECT_EQ(Complaint([&] { Cluster{c}; }),
            "cluster pcie-h100: gpu: has no peak_bf16, hbm_bandwidth or hbm_capacity: give them, "
            "or \"inherit\" a GPU preset\n"
            "cluster pcie-h100: in_switch_reduction: needs NVSwitches: domain_link must be "
            "nvswitch\n"
            "cluster pcie-h100: gpus_per_pcie_switch: 3 does not divide a socket's 4 GPUs\n"
            "cluster pcie-h100: nics_per_node: 3 NICs cannot be shared evenly by 8 GPUs");
}

TEST(ClusterConfig, TooLarge) {
  ClusterConfig c = FindCluster("dgx-h100");
  c.nodes = 40000;
  EXPECT_EQ(Complaint([&] { Cluster{c}; }),
            "cluster dgx-h100: nodes: 40000 nodes of 8 GPUs are 320000 GPUs, more than the 262144 "
            "modelled: at most 32768 nodes");
}

TEST(ClusterConfig, SocketsThatDoNotMeet) {
  ClusterConfig c = FindCluster("pcie-l40s");
  c.socket_bandwidth = {};
  EXPECT_EQ(Complaint([&] { Cluster{c}; }),
            "cluster pcie-l40s: sockets: GPUs under 2 sockets cannot reach each other: at most 2 "
            "joined by socket_bandwidth where there is no NVSwitch or mesh");
}

}  // namespace
}  // namespace millwright
