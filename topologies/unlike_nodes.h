// SPDX-License-Identifier: Apache-2.0
//
// Which nodes of a cluster are slower than the others, and by how much?
//
//   "unlike_nodes": [{"nodes": "3,8..15", "compute": 0.8, "nic": 0.5}]
//
// Nodes are numbered from 0, and each stands in at most one entry.  What is said of a node is a
// share of what the cluster's other fields say of all: the speed at which its GPUs compute (a lower
// power limit or clock), the bandwidth of each of its NICs, of its GPUs' NVLink.  Memory is alike
// everywhere.
//
// What takes all ranks of a place in the plan for equal (estimates, plans, path profiles, a folded
// simulation's communication) has every node as slow as the slowest is in each of the three; a
// folded simulation has each pipeline rank as slow as the slowest node of its own.  `simulate
// --fidelity full` has each node as it is (sim/disturbance).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config_io.h"

namespace millwright {

inline constexpr double kLeastNodeFactor = 1e-6;  // as for --slow: slower than that is down

struct NodeSpeed {
  double compute = 1;
  double nic = 1;
  double nvlink = 1;
  bool operator==(const NodeSpeed&) const = default;
};
// The worst of both in each.
NodeSpeed Slower(const NodeSpeed& a, const NodeSpeed& b);

struct UnlikeNodes {
  std::string nodes;  // "3,8..15"
  NodeSpeed speed;
  bool operator==(const UnlikeNodes&) const = default;
};
void Fields(ConfigIo& io, UnlikeNodes& unlike);

// First and last of each range, in the order given; empty for what is no such list.
std::vector<std::pair<int, int>> NodesNamed(std::string_view text);

// What is wrong with all of them together, in a cluster of so many nodes.
std::vector<std::string> ProblemsOf(std::span<const UnlikeNodes> unlike, int nodes);

// Of the nodes from `first` to `last`.
NodeSpeed SlowestOf(std::span<const UnlikeNodes> unlike, int first, int last);

// "nodes 3,8..15 at 0.8 of the compute, 0.5 of the NIC bandwidth; ..."
std::string TextOf(std::span<const UnlikeNodes> unlike);
std::string TextOf(const NodeSpeed& speed);

}  // namespace millwright
