// SPDX-License-Identifier: Apache-2.0
//
// A cluster with something better or worse: "hbm=141GiB,ib=800Gb/s,nvlink=+10%".
//
// What changes are the fields of the recipe.  Efficiencies stay those of the GPU's family: a GPU
// with twice the FLOP/s is taken to reach the same share of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/cluster_config.h"

namespace millwright {

// One that can be asked for, with its current value in `cluster`.
struct WhatIfName {
  std::string_view name;     // "hbm"
  std::string_view meaning;  // "GPU memory"
};
std::span<const WhatIfName> WhatIfNames();

// Each item NAME=VALUE or NAME=+-X%.  ConfigError with every mistake.  The name of the cluster
// becomes "dgx-h100 with hbm=141GiB".
void ApplyWhatIf(ClusterConfig& cluster, std::string_view text);

// The field of that name times `factor`; false where the cluster does not have it.
bool Scale(ClusterConfig& cluster, std::string_view name, double factor);
// The field as text, "3350 GB/s"; empty where the cluster does not have it.
std::string WhatIfValue(const ClusterConfig& cluster, std::string_view name);

}  // namespace millwright
