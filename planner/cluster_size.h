// SPDX-License-Identifier: Apache-2.0
//
// How large a cluster?  The best plan of each size, and which size is the answer.
//
// With a deadline the smallest that meets it (or, asked for cost, the cheapest that does); without
// one the fastest, the cheapest a token or the one whose plan needs least memory.  GPUs cost their
// price for as long as they are held; nothing else costs anything, and no time is lost between
// steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/training.h"
#include "planner/contenders.h"

namespace millwright {

struct SizeQuestion {
  std::vector<int> nodes;           // ascending
  std::optional<double> tokens;     // to be trained in all
  std::optional<Seconds> deadline;  // for those
  std::optional<double> price;      // USD for a GPU and hour
  Objective objective = Objective::kThroughput;
};

struct ClusterSize {
  int nodes = 0;
  std::int64_t gpus = 0;
  std::optional<Contender> best;
  std::string reason;                // why there is none
  std::string options = {};          // of the training step, where they are searched
  std::optional<Seconds> high = {};  // by which the best was found, where that is not its step
  Seconds step() const { return high.value_or(best->step()); }  // that all below goes by
};

struct SizeAnswer {
  SizeQuestion question;
  double tokens_of_step = 0;
  std::vector<ClusterSize> sizes;
  std::size_t chosen = 0;
  bool met = true;  // a size has a plan, and the deadline is met

  double TokensPerSecond(const ClusterSize& size) const;
  double GpuHoursPerToken(const ClusterSize& size) const;
  // Whole steps, for the tokens asked for.
  Seconds TimeOf(const ClusterSize& size) const;
  double UsdOf(const ClusterSize& size) const;  // the same
  bool Meets(const ClusterSize& size) const;
};

// Fills in `chosen` and `met`.
void Choose(SizeAnswer& answer);

}  // namespace millwright
