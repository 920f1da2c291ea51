// SPDX-License-Identifier: Apache-2.0
//
// How long a collective takes, as nccl-tests measured it: inside one NVLink domain, or across
// domains on one fabric.
//
//   t = base + steps x step + bus bytes / (bandwidth x efficiency) + passes x c sqrt(bytes)
//
// Steps are those of a ring, 2(n-1) for all-reduce, n-1 for reduce-scatter and all-gather, on which
// small messages' latency is exactly linear; log2 n for all-to-all.  The square root is the lower
// envelope of NCCL's protocols LL, LL128 and Simple (and NVLS, for large all-reduces among more
// than four or five ranks), which alpha-beta misses by 20-30% between 256 KB and 32 MB.  What is
// left, the switch points themselves, is a residual over bytes and ranks.  Reduce-scatter and
// all-gather share a curve, as they share rings and protocols; so do all-reduces with and without
// NVLS.  Beyond the sizes and ranks measured the residual of the nearest ones goes on.
//
// Across domains the link is the narrower of a GPU's NVLink and its domain's NICs, steps are those
// of a tree for an all-reduce, 2 log2(domains), and domains - 1 for the others, and the residual is
// over bytes, domains and ranks of a domain.  Such a curve is of one fabric as its source names it,
// and is measured for few sizes of group; the planner prices groups across domains by
// CostOfCollective's own formulas.
#pragma once

#include <array>
#include <string>

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

struct CollectiveCurve {
  std::string op;       // all_reduce; ring_pass (reduce-scatter, all-gather); alltoall; sendrecv
  std::string library;  // nccl-tests; torch; a custom kernel's name
  std::string fabric;   // IB, RoCE, EFA, ...; empty: inside a domain
  Fitted base, step;    // seconds
  Fitted efficiency;    // bus bandwidth over the GPU's link bandwidth; above 1 with NVLS
  Fitted sqrt_coefficient;  // seconds per square root of a byte
  ResidualGrid residual;    // over log2 bytes less half of log2 ranks, log2 ranks, variant
  FitRecord fit;
  CoveredRange range;  // log2 bytes, log2 ranks
  bool operator==(const CollectiveCurve&) const = default;
};
void Fields(ConfigIo& io, CollectiveCurve& curve);

struct CollectiveShape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double ranks = 0;
  Bytes bytes;
  bool in_switch = false;  // the switches may add up
  double domains = 1;
};

// Which curve a kind belongs to.
const char* CurveOp(CollectiveKind kind);
std::array<double, 3> ResidualCoordinates(const CollectiveShape& shape);
// log2 of bytes, ranks and domains.
std::array<double, 3> RangeCoordinates(const CollectiveShape& shape);

Seconds CollectiveFormula(const CollectiveCurve& curve, const CollectiveShape& shape,
                          BytesPerSecond link);
// Never less than what each GPU must send, over its link.
Seconds TimeOf(const CollectiveCurve& curve, const CollectiveShape& shape, BytesPerSecond link);

}  // namespace millwright
