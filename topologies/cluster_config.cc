// SPDX-License-Identifier: Apache-2.0
#include "topologies/cluster_config.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "core/file_kind.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

constexpr NumberRange kLatency{.min = 0, .max = 1};  // seconds
// Bytes per second: whole ones for the flow algorithms, and 2^18 GPUs of the most fit 64 bits.
constexpr NumberRange kBandwidth{.min = 1, .max = 1e13};
constexpr NumberRange kBandwidthOrNone{.min = 0, .max = 1e13};
constexpr NumberRange kHostMemory{.min = 0, .max = 1e18};  // bytes

const ClusterConfig* FindPreset(std::string_view name) {
  for (const ClusterPreset& preset : ClusterPresets()) {
    if (SameName(name, preset.config.name)) return &preset.config;
    for (const std::string& alias : preset.aliases) {
      if (SameName(name, alias)) return &preset.config;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const EnumName<DomainLink>> DomainLinkNames() {
  static constexpr std::array<EnumName<DomainLink>, 4> names{{
      {DomainLink::kNvswitch, "nvswitch"},
      {DomainLink::kNvlinkBridge, "nvlink_bridge"},
      {DomainLink::kXgmiMesh, "xgmi_mesh"},
      {DomainLink::kPcie, "pcie"},
  }};
  return names;
}

std::span<const EnumName<Fabric>> FabricNames() {
  static constexpr std::array<EnumName<Fabric>, 4> names{{
      {Fabric::kRailOptimized, "rail_optimized"},
      {Fabric::kFatTree, "fat_tree"},
      {Fabric::kSingleSwitch, "single_switch"},
      {Fabric::kNone, "none"},
  }};
  return names;
}

void Fields(ConfigIo& io, ClusterConfig& c) {
  std::string inherit;
  io.Text("inherit", inherit, "cluster preset that the other fields change; empty: none");
  if (io.reading() && !inherit.empty()) {
    try {
      c = FindCluster(inherit);
    } catch (const ConfigError& error) {
      const bool file = inherit.find('/') != std::string::npos || inherit.ends_with(".json");
      io.Mistake("inherit", fmt::format("{}{}", error.what(),
                                        file ? "; inherit takes a preset's name, not a file" : ""));
    }
  }
  io.Text("name", c.name, "what to call it");
  io.Object("gpu", "the GPU, all alike", [&] { Fields(io, c.gpu); });
  io.Int("nodes", c.nodes, {.min = 1, .max = kMaxGpus}, "domains: DGX systems, NVL72 racks, boxes");
  io.Int("gpus_per_node", c.gpus_per_node, {.min = 1, .max = kMaxGpusPerNode}, "GPUs of a domain");
  io.Enum("domain_link", c.domain_link, DomainLinkNames(), "what joins the GPUs of a domain");
  io.Quantity("nvlink_bandwidth", c.nvlink_bandwidth, kBandwidthOrNone,
              "of a GPU's NVLink or xGMI links together, per direction");
  io.Quantity("nvlink_latency", c.nvlink_latency, kLatency,
              "GPU to GPU, through the NVSwitch where there is one");
  io.Int("nvswitches", c.nvswitches, {.min = 0, .max = 4096}, "NVSwitch chips of a domain");
  io.Bool("in_switch_reduction", c.in_switch_reduction, "the NVSwitches add up (NVLink SHARP)");
  io.Int("sockets", c.sockets, {.min = 1, .max = kMaxGpusPerNode}, "CPU sockets of a domain");
  io.Int("gpus_per_pcie_switch", c.gpus_per_pcie_switch, {.min = 1, .max = kMaxGpusPerNode},
         "GPUs that share a link to the socket");
  io.Quantity("pcie_bandwidth", c.pcie_bandwidth, kBandwidth, "of one PCIe link, per direction");
  io.Quantity("pcie_latency", c.pcie_latency, kLatency, "of one PCIe link");
  io.Quantity("socket_bandwidth", c.socket_bandwidth, kBandwidthOrNone,
              "between two sockets, per direction; 0: not joined");
  io.Quantity("host_bandwidth", c.host_bandwidth, kBandwidthOrNone,
              "of a GPU to its host's memory while all GPUs copy, per direction; 0: over PCIe");
  io.Quantity("host_memory", c.host_memory, kHostMemory,
              "of a domain's hosts together, for offloaded activations; 0: not known");
  io.Int("nics_per_node", c.nics_per_node, {.min = 0, .max = kMaxGpusPerNode},
         "fabric NICs of a domain");
  io.Quantity("nic_bandwidth", c.nic_bandwidth, kBandwidthOrNone, "of one NIC, per direction");
  io.Quantity("nic_latency", c.nic_latency, kLatency, "of a NIC and its cable, at one end");
  io.Enum("fabric", c.fabric, FabricNames(), "how the NICs are joined");
  io.Int("rails", c.rails, {.min = 0, .max = kMaxRails},
         "rail_optimized: leaves of a group; 0: one for each NIC of a node");
  io.Int("nodes_per_leaf", c.nodes_per_leaf, {.min = 1, .max = kMaxGpus},
         "nodes whose NICs share leaves (a scalable unit)");
  io.Int("switch_ports", c.switch_ports, {.min = 2, .max = 4096}, "ports of a fabric switch");
  io.Int("levels", c.levels, {.min = 0, .max = 3},
         "of fabric switches; 0: as many as the size needs");
  io.Number("leaf_oversubscription", c.leaf_oversubscription, {.min = 1, .max = 1000},
            "a leaf's bandwidth down over up; 1: non-blocking");
  io.Number("spine_oversubscription", c.spine_oversubscription, {.min = 1, .max = 1000},
            "a spine's bandwidth down over up, with three levels");
  io.Quantity("switch_latency", c.switch_latency, kLatency, "of a switch and its cable");
  io.Array<UnlikeNodes>("unlike_nodes", c.unlike_nodes, "nodes slower than the others",
                        [&](UnlikeNodes& unlike) { Fields(io, unlike); });
  io.Text("source", c.source, "where the numbers come from");
  for (const ClusterProblem& problem : Inconsistencies(c)) io.Problem(problem.field, problem.what);
}

std::vector<ClusterProblem> Inconsistencies(const ClusterConfig& c) {
  std::vector<ClusterProblem> problems;
  const auto add = [&](const char* field, std::string what) {
    problems.push_back({field, std::move(what)});
  };
  if (c.gpu.peak_bf16 <= FlopsPerSecond(0) || c.gpu.hbm_capacity <= Bytes(0) ||
      c.gpu.hbm_bandwidth <= BytesPerSecond(0)) {
    add("gpu",
        "has no peak_bf16, hbm_bandwidth or hbm_capacity: give them, or \"inherit\" a "
        "GPU preset");
  }
  if (c.nodes < 1 || c.gpus_per_node < 1) {
    add("nodes", fmt::format("{} nodes of {} GPUs are no cluster", c.nodes, c.gpus_per_node));
    return problems;
  }
  if (c.gpus() > kMaxGpus) {
    add("nodes",
        fmt::format("{} nodes of {} GPUs are {} GPUs, more than the {} modelled: at most "
                    "{} nodes",
                    c.nodes, c.gpus_per_node, c.gpus(), kMaxGpus, kMaxGpus / c.gpus_per_node));
  }
  for (std::string& problem : ProblemsOf(c.unlike_nodes, c.nodes)) {
    add("unlike_nodes", std::move(problem));
  }
  const NodeSpeed slowest = c.slowest();
  if (slowest.nic < 1 && c.nics_per_node == 0) {
    add("unlike_nodes", "nic: there are no NICs (nics_per_node is 0)");
  }
  if (slowest.nvlink < 1 && c.domain_link == DomainLink::kPcie) {
    add("unlike_nodes", "nvlink: there is no NVLink (domain_link is pcie)");
  }
  const bool linked = c.domain_link != DomainLink::kPcie && c.gpus_per_node > 1;
  if (linked && c.nvlink_bandwidth <= BytesPerSecond(0)) {
    add("nvlink_bandwidth", "must be above 0 where domain_link is not pcie");
  }
  const bool over_pcie =
      c.gpus_per_node > 1 || c.nics_per_node > 0 || c.host_bandwidth <= BytesPerSecond(0);
  if (c.pcie_bandwidth <= BytesPerSecond(0) && over_pcie) {
    add("pcie_bandwidth", "must be given: GPUs reach NICs, each other or the host over PCIe");
  }
  if (linked && c.domain_link == DomainLink::kNvswitch && c.nvswitches < 1) {
    add("nvswitches", "must be at least 1 where domain_link is nvswitch");
  }
  if (c.in_switch_reduction && c.domain_link != DomainLink::kNvswitch) {
    add("in_switch_reduction", "needs NVSwitches: domain_link must be nvswitch");
  }
  if (c.gpus_per_node % c.sockets != 0) {
    add("sockets", fmt::format("{} do not divide {} GPUs", c.sockets, c.gpus_per_node));
  } else if ((c.gpus_per_node / c.sockets) % c.gpus_per_pcie_switch != 0) {
    add("gpus_per_pcie_switch", fmt::format("{} does not divide a socket's {} GPUs",
                                            c.gpus_per_pcie_switch, c.gpus_per_node / c.sockets));
  } else if (c.domain_link == DomainLink::kNvlinkBridge &&
             ((c.gpus_per_node / c.sockets) % 2 != 0 ||
              (c.gpus_per_pcie_switch > 1 && c.gpus_per_pcie_switch % 2 != 0))) {
    add("domain_link",
        "nvlink_bridge joins pairs: GPUs of a socket and of a PCIe switch must be "
        "even");
  }
  const bool pcie_only =
      c.domain_link == DomainLink::kPcie || c.domain_link == DomainLink::kNvlinkBridge;
  if (pcie_only && c.sockets > 1 && (c.sockets > 2 || c.socket_bandwidth <= BytesPerSecond(0))) {
    add("sockets", fmt::format("GPUs under {} sockets cannot reach each other: at most 2 joined "
                               "by socket_bandwidth where there is no NVSwitch or mesh",
                               c.sockets));
  }
  if (c.domain_link == DomainLink::kXgmiMesh && c.gpus_per_node > kMaxMesh) {
    add("domain_link",
        fmt::format("an xgmi_mesh joins at most {} GPUs, not {}", kMaxMesh, c.gpus_per_node));
  }
  if (c.gpus() <= kMaxGpus &&
      std::int64_t{c.nodes} * c.nics_per_node > std::int64_t{2} * kMaxGpus) {
    add("nics_per_node",
        fmt::format("{} nodes of {} NICs are {} NICs, more than the {} modelled", c.nodes,
                    c.nics_per_node, std::int64_t{c.nodes} * c.nics_per_node, 2 * kMaxGpus));
  }
  if (c.nics_per_node > 0) {
    if (c.nic_bandwidth < BytesPerSecond(1)) {
      add("nic_bandwidth", fmt::format("must be at least 1 B/s with {} NICs", c.nics_per_node));
    }
    if (c.nics_per_node % c.gpus_per_node != 0 && c.gpus_per_node % c.nics_per_node != 0) {
      add("nics_per_node", fmt::format("{} NICs cannot be shared evenly by {} GPUs",
                                       c.nics_per_node, c.gpus_per_node));
    } else if (c.nics_per_node % c.sockets != 0) {
      add("nics_per_node",
          fmt::format("{} NICs cannot be shared evenly by {} sockets", c.nics_per_node, c.sockets));
    }
    const int rails = c.rails > 0 ? c.rails : c.nics_per_node;
    if (c.fabric == Fabric::kRailOptimized && (rails > kMaxRails || c.nics_per_node % rails != 0)) {
      add("rails", fmt::format("{} NICs cannot be spread evenly over {} rails (at most {})",
                               c.nics_per_node, rails, kMaxRails));
    }
  }
  if (c.nodes > 1 && (c.nics_per_node == 0 || c.fabric == Fabric::kNone)) {
    add("nodes", fmt::format("node 0 cannot reach nodes 1 to {}: {}", c.nodes - 1,
                             c.nics_per_node == 0 ? "nics_per_node is 0" : "fabric is none"));
  } else if (c.nodes > c.nodes_per_leaf && c.levels == 1 &&
             (c.fabric == Fabric::kRailOptimized || c.fabric == Fabric::kFatTree)) {
    add("levels",
        fmt::format("nodes 0 to {} cannot reach nodes {} to {}: one level of switches "
                    "joins {} nodes",
                    c.nodes_per_leaf - 1, c.nodes_per_leaf, c.nodes - 1, c.nodes_per_leaf));
  }
  return problems;
}

ClusterConfig FindCluster(std::string_view name) {
  if (const ClusterConfig* preset = FindPreset(name)) return *preset;
  std::vector<PresetName> names;
  std::string known;
  for (const ClusterPreset& preset : ClusterPresets()) {
    names.push_back({preset.config.name, preset.config.name});
    for (const std::string& alias : preset.aliases) names.push_back({alias, preset.config.name});
    known += (known.empty() ? "" : ", ") + preset.config.name;
  }
  const std::string_view nearest = NearestPreset(name, names);
  throw ConfigError(fmt::format(
      "unknown cluster \"{}\"{}; known: {}", Printable(name, kMostNameShown),
      nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest), known));
}

ClusterConfig LoadCluster(const std::string& name_or_path) {
  if (const ClusterConfig* preset = FindPreset(name_or_path)) return *preset;
  std::error_code ignored;
  const bool file = name_or_path.find('/') != std::string::npos ||
                    name_or_path.ends_with(".json") ||
                    std::filesystem::exists(name_or_path, ignored);
  if (!file) {
    try {
      return FindCluster(name_or_path);
    } catch (const ConfigError& error) {
      throw ConfigError(std::string(error.what()) + "; or give a JSON file");
    }
  }
  const std::string text = ReadTextFile(name_or_path);
  RefuseOtherKinds(name_or_path, text, FileKind::kCluster);
  ClusterConfig config;
  ReadConfig(name_or_path, text, [&](ConfigIo& io) { Fields(io, config); });
  if (config.name.empty()) {
    config.name = Printable(std::filesystem::path(name_or_path).stem().string(), kMostNameShown);
  }
  return config;
}

}  // namespace millwright
