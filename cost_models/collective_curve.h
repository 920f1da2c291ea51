// SPDX-License-Identifier: Apache-2.0
//
// How long a collective takes, as nccl-tests measured it: inside one NVLink domain, or across
// domains on one fabric.
//
//   t = base + steps x step + bus bytes x crowd / (bandwidth x efficiency)
//       + (own + reduced) x bytes / (ranks x bandwidth) + passes x c sqrt(bytes)
//
// Steps are those of a ring, 2(n-1) for all-reduce, n-1 for reduce-scatter and all-gather, on which
// small messages' latency is exactly linear; log2 n for all-to-all.  A rank's own share is copied,
// not sent, which is why the bus bandwidth of two ranks is 60-80% of that of eight; reduce-scatter
// also adds to it in that last step (`own_reduced`), where all-gather and all-reduce only receive:
// of two Blackwell GPUs its bandwidth is 8% below all-gather's.  Where there is no NVLink rings
// cross sockets and share PCIe: crowd = (ranks / 2)^crowding, an exponent of about 2 on eight L40S
// (20, 5 and 1.3 GB/s for 2, 4 and 8).  The square root is the lower envelope of NCCL's protocols
// LL, LL128 and Simple (and NVLS, for large all-reduces among more than four or five ranks), which
// alpha-beta misses by 20-30% between 256 KB and 32 MB.  What is left, the switch points
// themselves, is a residual over the bytes of a rank's share, by which NCCL's protocols change
// alike for all ranks and operations of a ring, ranks, operation, and NCCL's release. So
// all-reduce, reduce-scatter and all-gather inside a domain are one curve, "ring". Beyond the sizes
// and ranks measured the residual of the nearest ones goes on, where GPUs have links of their own
// after three octaves of the fit's own guess.
//
// Across domains the link is the narrower of a GPU's NVLink and its domain's NICs, all-reduces run
// trees and have a curve of their own, of 2 log2(domains) steps, the others take domains - 1, and
// the residual is over bytes, domains and ranks of a domain.  Such a curve is of one fabric as its
// source names it; a fabric that is not known takes the curve of all of them together, "any", which
// is also what each is fitted on top of.  They are measured for few sizes of group; the planner
// prices groups across domains by CostOfCollective's own formulas.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "core/path_profile.h"
#include "core/units.h"
#include "cost_models/fitted.h"

namespace millwright {

enum class CollectiveKind {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSendRecv,
  kBroadcast,
};

inline constexpr std::string_view kAnyFabric = "any";

struct CollectiveCurve {
  std::string op;           // as CurveOp has it
  std::string library;      // nccl-tests; torch; a custom kernel's name
  std::string fabric;       // IB, RoCE, EFA, ...; any; empty: inside a domain
  Fitted base, step;        // seconds
  Fitted efficiency;        // bus bandwidth over the GPU's link bandwidth; above 1 with NVLS
  Fitted sqrt_coefficient;  // seconds per square root of a byte
  Fitted own_share;         // time of a rank's own share, over that of sending it on the link
  Fitted own_reduced;       // beside it, where what is received last is added up: reduce-scatter
  Fitted crowding;          // exponent of the ranks; 0: each has its link to itself
  ResidualGrid residual;    // over ResidualCoordinates
  FitRecord fit;
  CoveredRange range;  // over RangeCoordinates
  bool operator==(const CollectiveCurve&) const = default;
};
void Fields(ConfigIo& io, CollectiveCurve& curve);

struct CollectiveShape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double ranks = 0;
  Bytes bytes;
  bool in_switch = false;  // the switches may add up
  double domains = 1;
  bool integers = false;  // sums integers, which takes the GPUs longer
  bool recent = true;     // NCCL 2.29 or later, whose switch points differ from its predecessors'
};

// Which curve a kind belongs to: ring, all_reduce (across domains), ring_pass (reduce-scatter and
// all-gather across domains), alltoall, sendrecv, broadcast.
const char* CurveOp(CollectiveKind kind, bool across_domains);
// Inside a domain: log2 of the bytes of a rank's share, log2 ranks, operation, release.  Across:
// log2 of bytes, domains, ranks of a domain, and 0.
std::array<double, 4> ResidualCoordinates(const CollectiveShape& shape);
// The shape that has these coordinates; `like` says of what kind, and whether across domains.
CollectiveShape ShapeAt(std::span<const double> coordinates, const CollectiveShape& like);
// log2 of bytes, ranks and domains.
std::array<double, 3> RangeCoordinates(const CollectiveShape& shape);

Seconds CollectiveFormula(const CollectiveCurve& curve, const CollectiveShape& shape,
                          BytesPerSecond link);
// Never less than what each GPU must send, over its link.
Seconds TimeOf(const CollectiveCurve& curve, const CollectiveShape& shape, BytesPerSecond link);

}  // namespace millwright
