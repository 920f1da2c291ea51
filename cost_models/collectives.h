// SPDX-License-Identifier: Apache-2.0
//
// How many bytes a collective puts on the wire and how long it takes.
//
// `payload` is nccl-tests' "size": all-reduce the buffer; all-gather and reduce-scatter the FULL
// buffer (ranks x shard); all-to-all a rank's whole send buffer; send-recv and broadcast the
// message.
//
// Model: for every algorithm that NCCL could choose, base + steps x latency + wire bytes over the
// achieved bandwidth of the slowest level + a square-root term (the envelope of the LL, LL128 and
// Simple protocols); the fastest algorithm wins.  Inside a domain: 1-3% median error from 16 MB,
// about 4% median and 16% p90 over all sizes; across domains 10% class (cost_models/presets).
// Nothing contends here: each group has its share of links to itself (PathProfile).
#pragma once

#include <span>
#include <string_view>

#include "core/path_profile.h"
#include "core/units.h"
#include "cost_models/calibration.h"
#include "cost_models/collective_curve.h"

namespace millwright {

enum class CollectiveAlgorithm {
  kNone,
  kRing,
  kTree,
  kNvls,
  kNvlsTree,
  kPairwise,
  kDirect,
  // Not NCCL's choice, and so never the outcome of CostOfCollective; sim/collectives has them.
  kOneShot,
  kHalvingDoubling,
  kHierarchical,
  kRailAligned,
};

std::string_view Name(CollectiveKind kind);
std::string_view Name(CollectiveAlgorithm algorithm);

// Bytes that each rank of a ring sends, over the payload: 2(n-1)/n for all-reduce, (n-1)/n for
// reduce-scatter, all-gather and all-to-all, 1 for send-recv and broadcast.  nccl-tests' bus
// factor.
double RingBytesSentFactor(CollectiveKind kind, int ranks);

struct CollectiveCost {
  Seconds time;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
};

// Zero for a group of one.
CollectiveCost CostOfCollective(CollectiveKind kind, Bytes payload, const PathProfile& path,
                                const CollectiveCalibration& calibration);

}  // namespace millwright
