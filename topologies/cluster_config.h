// SPDX-License-Identifier: Apache-2.0
//
// Which machine: the recipe of a cluster, as a preset or a JSON file gives it.
//
// The model: `nodes` equal domains (a DGX, an NVL72 rack, a PCIe box) of `gpus_per_node` GPUs.
// Within a domain GPUs are joined by NVSwitches, NVLink bridges in pairs, a full mesh of xGMI
// links, or PCIe alone; each GPU also hangs on a PCIe switch under one of the domain's sockets,
// and so do the NICs.  NICs go to leaf switches, leaves to spines, spines to cores:
//
//   rail_optimized  NIC i of each of `nodes_per_leaf` nodes goes to leaf i mod rails of its group
//   fat_tree        all NICs of `nodes_per_leaf` nodes go to one leaf
//   single_switch   all NICs of the cluster go to one switch
//   none            the NICs, if any, are not connected
//
// A leaf of a group stands for as many chassis as its ports need.  Nodes may be slower than the
// others (topologies/unlike_nodes).  Limits: else all nodes are alike, one fabric, at most 2^18
// GPUs.  Bandwidths are per direction and raw (what the wire carries); what software achieves is
// the cost models' business.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_io.h"
#include "core/gpu.h"
#include "core/units.h"
#include "topologies/unlike_nodes.h"

namespace millwright {

enum class DomainLink { kNvswitch, kNvlinkBridge, kXgmiMesh, kPcie };
enum class Fabric { kRailOptimized, kFatTree, kSingleSwitch, kNone };

std::span<const EnumName<DomainLink>> DomainLinkNames();
std::span<const EnumName<Fabric>> FabricNames();

// The most GPUs a cluster may have: above the largest single fabric announced (200,000), and a
// graph of a few hundred megabytes.
inline constexpr int kMaxGpus = 1 << 18;
inline constexpr int kMaxGpusPerNode = 1024;
inline constexpr int kMaxMesh = 64;
inline constexpr int kMaxRails = 128;

struct ClusterConfig {
  std::string name;
  GpuSpec gpu;
  int nodes = 1;  // domains
  int gpus_per_node = 8;

  // Inside a domain.
  DomainLink domain_link = DomainLink::kNvswitch;
  BytesPerSecond nvlink_bandwidth;  // a GPU's NVLink or xGMI links together
  Seconds nvlink_latency;           // GPU to GPU, through the NVSwitch where there is one
  int nvswitches = 0;               // chips; traffic is striped over all of them
  bool in_switch_reduction = false;
  int sockets = 2;
  int gpus_per_pcie_switch = 1;
  BytesPerSecond pcie_bandwidth;    // of each PCIe link: GPU, NIC, switch to socket
  Seconds pcie_latency;             // of one PCIe link
  BytesPerSecond socket_bandwidth;  // between the sockets of a pair; 0: not joined
  BytesPerSecond host_bandwidth;    // of a GPU to its host's memory, all at once; 0: over PCIe
  Bytes host_memory;                // of a domain's hosts together; 0: not known

  // Between domains.
  int nics_per_node = 0;
  BytesPerSecond nic_bandwidth;
  Seconds nic_latency;  // NIC and cable, one end
  Fabric fabric = Fabric::kRailOptimized;
  int rails = 0;  // rail_optimized: leaves of a group; 0: one for each NIC of a node
  int nodes_per_leaf = 32;
  int switch_ports = 64;
  int levels = 0;                    // of switches; 0: as many as the size needs
  double leaf_oversubscription = 1;  // a leaf's bandwidth down over up
  double spine_oversubscription = 1;
  Seconds switch_latency;  // of one switch and the cable behind it

  std::vector<UnlikeNodes> unlike_nodes;
  std::string source;
  bool operator==(const ClusterConfig&) const = default;

  NodeSpeed slowest() const { return SlowestOf(unlike_nodes, 0, nodes - 1); }
  // What each GPU gets to and from its host's memory, per direction, while all copy: where it is
  // PCIe, its share of its switch's one link to the socket.
  BytesPerSecond ToHost() const {
    return host_bandwidth.value > 0 ? host_bandwidth : pcie_bandwidth / gpus_per_pcie_switch;
  }
  std::int64_t gpus() const { return std::int64_t{nodes} * gpus_per_node; }
};

void Fields(ConfigIo& io, ClusterConfig& cluster);

// What is wrong with the whole: a field and why.  Empty where a graph can be built.
struct ClusterProblem {
  const char* field;
  std::string what;
};
std::vector<ClusterProblem> Inconsistencies(const ClusterConfig& cluster);

struct ClusterPreset {
  ClusterConfig config;
  std::vector<std::string> aliases;
};
std::span<const ClusterPreset> ClusterPresets();

// A preset by name or alias (see SameName), with one node; ConfigError naming the nearest.
ClusterConfig FindCluster(std::string_view name);

// A preset, or a JSON file where the name has a '/' or ends in ".json" or is a file's.
ClusterConfig LoadCluster(const std::string& name_or_path);

}  // namespace millwright
