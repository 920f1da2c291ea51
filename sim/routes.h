// SPDX-License-Identifier: Apache-2.0
//
// Which links does a message between two endpoints cross?
//
// Endpoints are the GPUs of a cluster (0 to ranks() - 1) and, after them, the NVSwitch plane of
// each domain, which can add up what it is sent (NVLink SHARP).  Routes are Cluster::Route's, put
// together from parts: the way from a GPU to its leaf and back is the same in every domain, the
// way between two leaves depends on them and the destination's domain alone, and is walked by a
// table of distances for each leaf.  A route is found
// once and kept.  A route of which a link has failed is not made of parts: Cluster::Route finds the
// way around.
//
// Star() is the textbook network: one switch, each rank on a full-duplex link of its own.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/units.h"
#include "topologies/cluster.h"

namespace millwright {

class RouteTable {
 public:
  // `cluster` must outlive the table.
  explicit RouteTable(const Cluster& cluster);
  // Links 0 to ranks - 1 go up to the switch, endpoint `ranks`; the next `ranks` come down.
  static RouteTable Star(int ranks, BytesPerSecond bandwidth, Seconds link_latency);

  int ranks() const { return ranks_; }
  const Cluster* cluster() const { return cluster_; }  // null: a star
  // The endpoint that is the NVSwitch plane of a rank's domain.
  int SwitchOf(int rank) const;

  std::span<const BytesPerSecond> capacity() const { return capacity_; }  // by link
  // Before the first route is asked for: a link at `factor` of its bandwidth, or not there at all.
  void Slow(int link, double factor);
  void Fail(int link);
  // Whether any link is not as the cluster has it.
  bool disturbed() const { return disturbed_; }
  bool IsSlow(int link) const;
  // Whether a rank's links to and from its NVSwitch plane are there.
  bool ReachesSwitch(int rank);

  // Routes by number: from 0, in the order of asking.  ConfigError where no way is left.
  int Find(int from, int to);
  bool IsDetour(int route) const;  // around a link that has failed
  int ToOf(int route) const { return to_[std::size_t(route)]; }
  std::span<const int> LinksOf(int route) const;
  Seconds LatencyOf(int route) const { return latency_[std::size_t(route)]; }
  BytesPerSecond BandwidthOf(int route) const { return bandwidth_[std::size_t(route)]; }

 private:
  RouteTable() = default;

  int Add(std::uint64_t key);
  void Append(int from, int to);
  void AppendWithinDomain(int from, int to);
  void AppendBetweenDomains(int from, int to);
  bool AppendBetweenLeaves(int from, int to, int domain);  // false: no switch joins them
  const std::vector<std::uint8_t>& HopsTo(int leaf);
  int FirstLeaf() const { return cluster_->domains() * vertices_per_domain_; }
  void GoAround(int from, int to, std::size_t begin);
  int LinkToSwitch(int rank, bool gathers);
  std::span<const int> WithinFirstDomain(int from, int to);
  void Learn();
  int LeafLink(int rank) const;  // the link from the leaf down to the rank's NIC

  const Cluster* cluster_ = nullptr;
  int ranks_ = 0, per_domain_ = 1;
  int links_per_domain_ = 0, vertices_per_domain_ = 0;
  std::vector<BytesPerSecond> capacity_;
  std::vector<double> link_latency_;
  std::vector<int> failed_;  // in increasing order
  bool disturbed_ = false;

  // By GPU of domain 0; empty where routes cannot be put together from parts.
  std::vector<std::vector<int>> up_;    // to the leaf
  std::vector<std::vector<int>> down_;  // from the NIC
  std::vector<int> to_nic_;             // by NIC vertex: the link from its leaf
  // By leaf: how many links lie between it and each fabric switch.
  std::unordered_map<int, std::vector<std::uint8_t>> hops_;
  std::unordered_map<std::uint64_t, std::vector<int>> within_;  // domain 0, all links sound

  // Found routes: an open hash of pairs, and their links one after the other.
  std::vector<std::pair<std::uint64_t, int>> table_;
  std::vector<int> links_;
  std::vector<std::size_t> end_;  // in links_, by route
  std::vector<int> to_;
  std::vector<Seconds> latency_;
  std::vector<BytesPerSecond> bandwidth_;
  std::vector<int> detours_;  // in increasing order
};

}  // namespace millwright
