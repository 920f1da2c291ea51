// SPDX-License-Identifier: Apache-2.0
//
// What the cost models need to know of the links between the members of a process group.
//
// topologies/ makes these from the cluster graph; cost_models/ takes them by value.
#pragma once

#include "core/units.h"

namespace millwright {

// A domain is one NVLink (or PCIe) island: a DGX, an NVL72 rack, a PCIe box.
struct PathProfile {
  int ranks = 1;
  int domains = 1;               // that the group touches
  int min_ranks_per_domain = 1;  // fewest members of the group in a domain it touches
  int max_ranks_per_domain = 1;
  // Between two members in one domain, per GPU and direction.
  BytesPerSecond domain_bandwidth;
  Seconds domain_latency;
  // Between domains: a GPU's share, per direction, of NICs and of every switch level that the
  // group crosses, when all GPUs of the cluster send at once.  Zero where domains == 1.
  BytesPerSecond fabric_bandwidth;
  Seconds fabric_latency;
  bool in_switch_reduction = false;  // NVLS: the domain's switches add up (NVLink SHARP)
  bool operator==(const PathProfile&) const = default;
};

}  // namespace millwright
