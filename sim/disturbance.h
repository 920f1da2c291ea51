// SPDX-License-Identifier: Apache-2.0
//
// Which parts of a cluster are slow or down, as a user names them?
//
//   --slow gpu:17=0.8              GPU 17, by rank, computes at 0.8 of its speed
//   --slow node:3=0.8              every GPU of node 3
//   --slow nic:17=0.5              NIC 17 of the cluster, counted node by node: its link to the
//                                  leaf switch, both ways
//   --slow link:leaf0.3-spine0.1=0.5        both ways; A->B is one way
//   --slow link:spine0.1=0.5                every link of that part
//   --link-down nic:17, --link-down leaf0.3-spine0.1, ...   the same links, carrying nothing
//
// Parts are named as Cluster::NameOf does, and links are those of the cluster's graph.  A factor is
// a share of the sound speed, from 1e-6 (a thing slower than that is down, and times stay far from
// what a double can hold) to 1: a faster part would be another GPU or cluster.  Where several
// factors meet on one GPU or link they multiply, so that their order does not matter; the same part
// named twice is a mistake.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "topologies/cluster.h"
#include "topologies/unlike_nodes.h"

namespace millwright {

struct Disturbance {
  std::vector<double> gpu_speed;                   // by rank, of the sound speed; empty: all 1
  std::vector<std::pair<int, double>> slow_links;  // link and share of its bandwidth, by link
  std::vector<int> failed_links;                   // in increasing order, each once
  bool operator==(const Disturbance&) const = default;

  bool empty() const { return gpu_speed.empty() && slow_links.empty() && failed_links.empty(); }
};

// What stood behind each --slow and each --link-down.  ConfigError with every mistake, one a line.
Disturbance ReadDisturbance(std::span<const std::string> slow,
                            std::span<const std::string> link_down, const Cluster& cluster);

// And nodes that are slower than the others, on top.  `cluster` is of sound nodes.
void Disturb(std::span<const UnlikeNodes> unlike, const Cluster& cluster, Disturbance* disturbance);

}  // namespace millwright
