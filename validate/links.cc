// SPDX-License-Identifier: Apache-2.0
#include "validate/links.h"

#include <algorithm>
#include <charconv>

namespace millwright {
namespace {

bool Digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

const ClusterConfig* PresetWithGpu(const GpuSpec& gpu) {
  for (const ClusterPreset& preset : ClusterPresets()) {
    if (preset.config.gpu.name == gpu.name) return &preset.config;
  }
  return nullptr;
}

std::optional<BytesPerSecond> NicBandwidth(std::string_view topology) {
  for (std::size_t x = topology.find('x'); x != topology.npos; x = topology.find('x', x + 1)) {
    std::size_t start = x, end = x + 1;
    while (start > 0 && Digit(topology[start - 1])) --start;
    while (end < topology.size() && Digit(topology[end])) ++end;
    if (start == x || end == x + 1 || end >= topology.size() || topology[end] != 'G') continue;
    double nics = 0, gigabits = 0;
    std::from_chars(topology.data() + start, topology.data() + x, nics);
    std::from_chars(topology.data() + x + 1, topology.data() + end, gigabits);
    if (nics > 0 && gigabits > 0) return BytesPerSecond(nics * gigabits * 1e9 / 8);
  }
  return std::nullopt;
}

BytesPerSecond NarrowestLink(const PathProfile& path) {
  if (path.domains == 1) return path.domain_bandwidth;
  const BytesPerSecond nics = path.min_ranks_per_domain * path.fabric_bandwidth;
  return path.max_ranks_per_domain == 1 ? nics : std::min(nics, path.domain_bandwidth);
}

std::optional<PathProfile> PathOf(const MeasuredCollective& collective, const GpuSpec& gpu) {
  const ClusterConfig* preset = PresetWithGpu(gpu);
  if (preset == nullptr) return std::nullopt;
  const int per_domain =
      static_cast<int>((collective.gpus + collective.nodes - 1) / collective.nodes);
  PathProfile path;
  path.ranks = static_cast<int>(collective.gpus);
  path.domains = static_cast<int>(collective.nodes);
  path.max_ranks_per_domain = per_domain;
  path.min_ranks_per_domain = static_cast<int>(collective.gpus / collective.nodes);
  const bool pairs = collective.topology.find("pairwise") != std::string::npos;
  const bool bridged = preset->nvlink_bandwidth.value > 0 && !(pairs && per_domain > 2);
  path.domain_bandwidth = bridged ? preset->nvlink_bandwidth : preset->pcie_bandwidth;
  path.domain_latency = bridged ? preset->nvlink_latency : preset->pcie_latency;
  path.in_switch_reduction = preset->in_switch_reduction && !pairs;
  if (path.domains > 1) {
    // NICs belong to the node, whose GPUs may not all take part: a GPU has its own share.
    const bool lone = collective.topology.find("1 GPU/node,") != std::string::npos;
    const int sharing = lone ? 1 : std::max(per_domain, preset->gpus_per_node);
    path.fabric_bandwidth = preset->nics_per_node * preset->nic_bandwidth / preset->gpus_per_node;
    if (const auto nics = NicBandwidth(collective.topology)) {
      path.fabric_bandwidth = *nics / sharing;
    }
    path.fabric_latency = 2 * preset->nic_latency + preset->switch_latency;
  }
  return path;
}

}  // namespace millwright
