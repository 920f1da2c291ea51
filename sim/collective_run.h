// SPDX-License-Identifier: Apache-2.0
//
// How long does one collective take on given links, alone?
//
// Two answers to the same question, from one plan (sim/collectives):
//   - kRounds: in closed form.  Synchronous rounds, each as long as its slowest transfer: latency
//     of the route + what its fullest link carries in that round over the link's bandwidth.  A
//     ring over n ranks is one round times 2(n-1), so 2(n-1)(alpha + S/(n B)) on equal links.
//   - kTransfers: every transfer an event, endpoints going their own pace.  While no link carries
//   two
//     transfers at once each takes its route's latency + bytes over its narrowest link; where
//     one does, the run is started over with max-min fair rates (sim/flows).
// The two agree where rounds are alike for all.  Where they are not, events are faster, for rounds
// overlap (trees and NVLS, by up to a half), or slower, for ranks that run ahead get in the way of
// others (halving-doubling over an odd number of domains, by up to a third).
//
// Limits: cut-through (a message is on all its links at once; ASTRA-sim's congestion-aware network
// stores and forwards, and so doubles the bandwidth term behind a switch), no congestion control,
// no protocol overheads: what software achieves comes in as `cap` and `overhead`.
//
// Always checked: a collective takes at least, on every link, its bytes over the bandwidth.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/units.h"
#include "sim/collectives.h"
#include "sim/flows.h"
#include "sim/routes.h"

namespace millwright {

enum class RunMode { kRounds, kTransfers };

// Of each transfer, beyond its links.
struct TransferCost {
  Seconds overhead;
  BytesPerSecond cap{std::numeric_limits<double>::infinity()};
};

struct CollectiveRun {
  Seconds time;
  Seconds least;                // bytes over bandwidth of the fullest link
  std::int64_t transfers = 0;   // that were events
  bool shared = false;          // some link carried two transfers at once
  std::vector<LinkLoad> loads;  // over `time`
};

// `members` are cluster ranks by position in the group; empty: position is rank.
CollectiveRun RunCollective(const TransferPlan& plan, std::span<const int> members,
                            RouteTable& routes, RunMode mode, TransferCost cost = {});

// When each rank of a ring is through: rank p starts at `start[p]`, its sends take `hop[p]`, and it
// is in its next round when its send and what it receives are through.  A max-plus recurrence,
// exact for rings whose links nobody else uses; `start` is overwritten with the result.
void RingRecurrence(std::span<const Seconds> hop, int rounds, std::vector<Seconds>* start);

}  // namespace millwright
