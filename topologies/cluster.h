// SPDX-License-Identifier: Apache-2.0
//
// The machine as a graph, and what the links give a group of GPUs.
//
// Vertices are GPUs, NVSwitch planes, PCIe switches, sockets, NICs, leaf, spine and core
// switches; links are directed, with a bandwidth and a latency.  A GPU stripes every transfer
// over all NVSwitches of its domain, so these are one vertex; a leaf whose ports need several
// chassis is one vertex too.  Rank r is GPU r mod gpus_per_domain of domain r / gpus_per_domain.
//
// A path profile is the worst that a group meets:
//   - between two GPUs of a domain: the share each has of the narrowest level (bridged pair,
//     PCIe switch, socket) that the group crosses, when all GPUs below that level send out of
//     it at once: a cut of the graph over the GPUs behind it;
//   - between domains: the same for NICs, leaf uplinks and spine uplinks.  A member sends to
//     the member on its own rail where the other domain has one (NVLink carries it on, as
//     NCCL's PXN and hierarchical collectives do), and to all members there where it has none.
// Where no domain holds two members, domain_bandwidth is what a domain's nearest two GPUs get.
// Limits: a ring crosses an oversubscribed level once, not with all its members, and so does
// better than its profile; multi-path routing is perfect; nothing outside the job contends.
// Of unlike nodes each has the links of the slowest, and is joined to switches that were laid out
// for sound ones; sim/disturbance has each as it is. Profiles are of the sound machine: what a
// failed link costs a group depends on who else is on the way around it, which sim/network knows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/gpu.h"
#include "core/path_profile.h"
#include "core/units.h"
#include "topologies/cluster_config.h"

namespace millwright {

// All groups of `ranks` members, `stride` apart, into which ranks 0, 1, ... fall, as Megatron
// numbers them: outer x (stride x ranks) + i x stride + inner.  Ranks beyond the last whole
// block of stride x ranks are in no group.
struct StridedGroup {
  int stride = 1;
  int ranks = 1;
};

enum class VertexKind {
  kGpu,
  kNvswitch,
  kPcieSwitch,
  kSocket,
  kNic,
  kLeaf,
  kSpine,
  kCore,
};

struct Link {
  int from = 0;  // vertices
  int to = 0;
  BytesPerSecond bandwidth;
  Seconds latency;
};

class Cluster {
 public:
  // ConfigError with every inconsistency of `config`, one a line.
  explicit Cluster(ClusterConfig config);
  ~Cluster();
  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;

  const ClusterConfig& config() const;
  const GpuSpec& gpu() const;
  int gpus() const;
  int gpus_per_domain() const;
  int domains() const;

  // The worst of all groups of that shape, item by item.  ConfigError where not one fits.
  PathProfile Profile(StridedGroup group) const;
  // One group of distinct ranks, in any order.
  PathProfile Profile(std::span<const int> ranks) const;

  // The links from one rank to another, as indices into links(): fewest seconds, over the
  // sender's and the receiver's own NICs; among equal ways the destination's domain decides, as
  // in InfiniBand's destination-based routing.  Empty for a rank and itself.
  //
  // `failed` links, in increasing order, are not there.  Whose route crosses none of them keeps it.
  // The others go by another switch or another of their own NICs; else by another NIC of the two
  // domains, which other GPUs forward to, as NCCL does (PXN), or, within a domain, by PCIe; else by
  // whatever is left of the two domains and the fabric.  Each time over as few GPUs as may be, then
  // in fewest seconds.  ConfigError where there is no way.
  std::vector<int> Route(int from_rank, int to_rank, std::span<const int> failed = {}) const;

  // Largest flow from the first half of the domains to the rest; in a single domain, from the
  // first half of its GPUs, over the links that routes use.
  BytesPerSecond Bisection() const;

  int switch_levels() const;  // of the fabric; 0: no fabric
  int vertices() const;
  int CountOf(VertexKind kind) const;
  VertexKind KindOf(int vertex) const;
  std::string NameOf(int vertex) const;  // "node3/gpu5", "leaf0.4" (group.rail), "spine1.2"
  std::optional<int> VertexNamed(std::string_view name) const;
  std::string NameOfLink(int link) const;  // "node0/nic0->leaf0.0"
  int GpuVertex(int rank) const;
  std::span<const Link> links() const;  // by sender
  std::span<const Link> LinksFrom(int vertex) const;
  std::optional<int> LinkBetween(int from_vertex, int to_vertex) const;

 private:
  struct Graph;
  std::unique_ptr<const Graph> graph_;
};

}  // namespace millwright
