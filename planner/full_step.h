// SPDX-License-Identifier: Apache-2.0
//
// A simulated step with every rank in it, once or many times over: what contention, slow parts and
// jitter make of a plan.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "planner/step_spec.h"
#include "sim/full_simulation.h"

namespace millwright {

struct FullAsked {
  FullOptions options;  // but for `plane`, which the plan gives
  int steps = 1;        // each with jitter of its own
  std::function<void(double share_done)> progress{};
};

// The busiest links, and every kind of link by what its ends are.
struct LinkUseReport {
  std::string name;     // "node3/nic5->leaf0.5"; of a kind: "NIC to leaf"
  std::string busiest;  // of a kind
  Bytes bytes;          // of a kind: of its busiest link
  double utilisation = 0;
  double mean = 0;         // of a kind: over its links in use
  std::int64_t links = 1;  // in use
};

// The smallest of them that `share` of them do not exceed.
Seconds Percentile(std::vector<Seconds> values, double share);

struct FullReport {
  FullOptions options;
  // The same step with nothing shared, slowed or drawn; of unlike nodes as they are folded.
  Seconds folded;
  std::vector<Seconds> steps;
  int median =
      0;  // the step that half of them do not exceed: what is shown, and all below is of it
  std::array<Contention, kCauses> contention{};
  std::vector<LinkUseReport> link_kinds;  // busiest first
  std::vector<LinkUseReport> links;       // the busiest
  std::int64_t ranks = 0, tasks = 0;
  int slowest = 0;           // GPU whose compute is furthest above its pipeline rank's median
  Seconds slowest_computes;  // what its compute stream is busy
  Seconds median_computes;   // of all GPUs of its pipeline rank
  int shown = 0;  // the first GPU of the pipeline that the timeline is of: the slowest one's
  // Slowed or failed links that the step would not have used: no wonder that they cost nothing.
  bool disturbed_in_vain = false;

  double difference() const { return steps[std::size_t(median)] / folded - 1; }
  // Of the steps.
  Seconds Percentile(double share) const;
  Seconds mean() const;
};

// Runs every rank of a step that has been simulated folded, and puts what the members of one place
// in their planes did into its timeline, ranks and peaks.  Of a cluster with unlike nodes each is
// as it is; `step` has its prices from sound ones then.  ConfigError where it would not go into
// memory.
FullReport SimulateEveryRank(const Estimator& estimator, const ParallelConfig& plan,
                             const FullAsked& asked, SimulatedStep& step);

}  // namespace millwright
