// SPDX-License-Identifier: Apache-2.0
#include "cost_models/collectives.h"

#include <algorithm>
#include <cmath>

namespace millwright {
namespace {

// A ring over n ranks in d domains.  Where several members share a domain, NCCL builds one ring
// per NIC, so the ring's cut between two domains is q NIC shares wide (q the fewest members in a
// domain), while inside a domain each GPU carries all of it.
BytesPerSecond RingBandwidth(const PathProfile& path, const CollectiveCalibration& c) {
  BytesPerSecond bandwidth = path.domain_bandwidth * c.domain_efficiency;
  if (path.max_ranks_per_domain == 1) bandwidth = path.fabric_bandwidth * c.fabric_efficiency;
  if (path.domains > 1) {
    bandwidth = std::min(bandwidth,
                         path.min_ranks_per_domain * path.fabric_bandwidth * c.fabric_efficiency);
  }
  return bandwidth;
}

Seconds SquareRootTerm(double wire_factor, Bytes payload, const PathProfile& path,
                       const CollectiveCalibration& c) {
  const double coefficient = path.domains > 1 ? c.fabric_sqrt_coefficient : c.sqrt_coefficient;
  return Seconds(coefficient * wire_factor * std::sqrt(payload.value));
}

// One pass around the ring: reduce-scatter, all-gather, or a broadcast that flows through.
Seconds RingPass(double wire_factor, Bytes payload, const PathProfile& path,
                 const CollectiveCalibration& c) {
  const int fabric_hops = path.domains > 1 ? path.domains - 1 : 0;
  const int domain_hops = path.ranks - 1 - fabric_hops;
  return domain_hops * c.domain_step + fabric_hops * c.fabric_step +
         payload * wire_factor / RingBandwidth(path, c) + SquareRootTerm(1, payload, path, c);
}
Seconds RingPass(Bytes payload, const PathProfile& path, const CollectiveCalibration& c) {
  return RingPass(double(path.ranks - 1) / path.ranks, payload, path, c);
}

bool SwitchesAddUp(Bytes payload, const PathProfile& path, const CollectiveCalibration& c) {
  return path.in_switch_reduction && c.nvls_efficiency > 0 &&
         path.min_ranks_per_domain >= c.nvls_min_ranks && payload >= c.nvls_threshold;
}

CollectiveCost AllReduce(Bytes payload, const PathProfile& path, const CollectiveCalibration& c) {
  CollectiveCost best{c.base + 2 * RingPass(payload, path, c), CollectiveAlgorithm::kRing};
  const auto consider = [&](Seconds time, CollectiveAlgorithm algorithm) {
    if (time < best.time) best = {time, algorithm};
  };
  const bool nvls = SwitchesAddUp(payload, path, c);
  // The switch adds up: a GPU sends the payload once and receives it once; the measured bus
  // bandwidth already counts that as 2(n-1)/n of the payload.
  const Bytes bus_bytes = payload * RingBytesSentFactor(CollectiveKind::kAllReduce, path.ranks);
  const Seconds nvls_transfer =
      nvls ? bus_bytes / (path.domain_bandwidth * c.nvls_efficiency) : Seconds(0);
  if (nvls && path.domains == 1) {
    consider(c.base + 2 * (path.ranks - 1) * c.domain_step + nvls_transfer +
                 SquareRootTerm(2, payload, path, c),
             CollectiveAlgorithm::kNvls);
  }
  if (path.domains > 1) {
    const Seconds levels = std::ceil(std::log2(path.domains)) * c.tree_level;
    const Seconds inside =
        2 * (path.max_ranks_per_domain - 1) * c.domain_step + SquareRootTerm(2, payload, path, c);
    // Of two domains each sends its half of the sums and of the results: the payload once.  A
    // domain in the middle of a tree has a parent and children, and sends as much as in a ring.
    const Bytes sent = path.domains == 2 ? payload : bus_bytes;
    const Seconds trunk = sent / (path.min_ranks_per_domain * path.fabric_bandwidth *
                                  c.fabric_efficiency * c.tree_efficiency);
    const BytesPerSecond own_links =
        path.domain_bandwidth * c.domain_efficiency * c.tree_efficiency;
    const Seconds chain = path.max_ranks_per_domain > 1 ? bus_bytes / own_links : Seconds(0);
    consider(c.base + levels + inside + std::max(chain, trunk), CollectiveAlgorithm::kTree);
    if (nvls) {
      consider(c.base + levels + inside + std::max(nvls_transfer / c.tree_efficiency, trunk),
               CollectiveAlgorithm::kNvlsTree);
    }
  }
  return best;
}

CollectiveCost AllToAll(Bytes payload, const PathProfile& path, const CollectiveCalibration& c) {
  // The fullest domain keeps most at home, the emptiest sends most away.
  const double away = double(path.ranks - path.min_ranks_per_domain) / path.ranks;
  const double home = double(path.max_ranks_per_domain - 1) / path.ranks;
  Seconds transfer;
  if (path.max_ranks_per_domain > 1) {
    transfer = payload * home / (path.domain_bandwidth * c.all_to_all_efficiency);
  }
  Seconds base = c.all_to_all_base;
  if (path.domains > 1) {
    transfer = std::max(transfer, payload * away / (path.fabric_bandwidth * c.fabric_efficiency));
    base += c.fabric_step;
  }
  return {base + transfer + SquareRootTerm(1, payload, path, c), CollectiveAlgorithm::kPairwise};
}

// Measured inside a domain; nullptr: not measured.
const CollectiveCurve* CurveOf(CollectiveKind kind, const CollectiveCalibration& c) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return c.ring_curve;
    case CollectiveKind::kAllToAll:
      return c.all_to_all_curve;
    case CollectiveKind::kSendRecv:
      return c.send_recv_curve;
    case CollectiveKind::kBroadcast:
      return nullptr;
  }
  return nullptr;
}

// What NCCL runs inside a domain.
CollectiveAlgorithm Chosen(CollectiveKind kind, Bytes payload, const PathProfile& path,
                           const CollectiveCalibration& c) {
  if (kind == CollectiveKind::kAllToAll) return CollectiveAlgorithm::kPairwise;
  if (kind == CollectiveKind::kSendRecv) return CollectiveAlgorithm::kDirect;
  const bool nvls = kind == CollectiveKind::kAllReduce && SwitchesAddUp(payload, path, c);
  return nvls ? CollectiveAlgorithm::kNvls : CollectiveAlgorithm::kRing;
}

}  // namespace

std::string_view Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kSendRecv:
      return "send-recv";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return {};
}

std::string_view Name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kNone:
      return "none";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kTree:
      return "tree";
    case CollectiveAlgorithm::kNvls:
      return "nvls";
    case CollectiveAlgorithm::kNvlsTree:
      return "nvls-tree";
    case CollectiveAlgorithm::kPairwise:
      return "pairwise";
    case CollectiveAlgorithm::kDirect:
      return "direct";
    case CollectiveAlgorithm::kOneShot:
      return "one-shot";
    case CollectiveAlgorithm::kHalvingDoubling:
      return "halving-doubling";
    case CollectiveAlgorithm::kHierarchical:
      return "hierarchical";
    case CollectiveAlgorithm::kRailAligned:
      return "rail-aligned";
  }
  return {};
}

double RingBytesSentFactor(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return (n - 1) / n;
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBroadcast:
      return 1;
  }
  return 0;
}

CollectiveCost CostOfCollective(CollectiveKind kind, Bytes payload, const PathProfile& path,
                                const CollectiveCalibration& c) {
  if (path.ranks <= 1 || payload.value <= 0) return {};
  payload = c.bytes_factor * payload;
  if (const CollectiveCurve* curve = CurveOf(kind, c); curve != nullptr && path.domains == 1) {
    const CollectiveShape shape{.kind = kind,
                                .ranks = kind == CollectiveKind::kSendRecv ? 2 : double(path.ranks),
                                .bytes = payload,
                                .in_switch = path.in_switch_reduction};
    const bool exchange = kind == CollectiveKind::kAllToAll;
    const BytesPerSecond link =
        path.domain_bandwidth * (exchange ? c.all_to_all_curve_rate : c.curve_rate);
    CollectiveCost cost{TimeOf(*curve, shape, link), Chosen(kind, payload, path, c)};
    if (cost.algorithm != CollectiveAlgorithm::kNvls) {
      // For many more ranks than were measured: latency first, then the wire at its full rate.
      CollectiveShape nothing = shape;
      nothing.bytes = 1_B;
      const Seconds wire = payload * RingBytesSentFactor(kind, path.ranks) / path.domain_bandwidth;
      cost.time = std::max(cost.time, TimeOf(*curve, nothing, link) + wire);
    }
    return cost;
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(payload, path, c);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return {c.base + RingPass(payload, path, c), CollectiveAlgorithm::kRing};
    case CollectiveKind::kBroadcast:
      return {c.base + RingPass(1, payload, path, c), CollectiveAlgorithm::kRing};
    case CollectiveKind::kAllToAll:
      return AllToAll(payload, path, c);
    case CollectiveKind::kSendRecv: {
      const bool fabric = path.domains > 1;
      const BytesPerSecond rate = fabric ? path.fabric_bandwidth * c.fabric_efficiency
                                         : path.domain_bandwidth * c.domain_efficiency;
      return {(fabric ? c.p2p_fabric_base : c.p2p_base) + payload / rate,
              CollectiveAlgorithm::kDirect};
    }
  }
  return {};
}

}  // namespace millwright
