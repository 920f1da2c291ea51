// SPDX-License-Identifier: Apache-2.0
//
// Nothing fits: what would?  Each remedy is found by searching again with one thing changed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/search.h"
#include "topologies/cluster_config.h"

namespace millwright {

struct Remedy {
  std::string change;  // "32 nodes instead of 16", "--gradient-dtype bf16"
  RankedPlan plan;     // the fastest plan with it
};

// More nodes (of up to 64 times as many, by doubling and then halving what is between too few and
// enough, to a tenth of them), and each
// memory choice of TrainingConfig that frameworks offer.  Empty where none of them helps.
std::vector<Remedy> Remedies(const ModelConfig& model, const TrainingConfig& training,
                             const ClusterConfig& cluster, const SearchOptions& options);

}  // namespace millwright
