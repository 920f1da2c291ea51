// SPDX-License-Identifier: Apache-2.0
//
// Flags for a step with every rank in it: fidelity, links, slow and failed parts, jitter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "planner/full_step.h"
#include "topologies/cluster.h"

namespace millwright {

class FullFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line
  // Before there is a cluster: what no cluster could make right.
  void Check(CommandLine& line, bool has_experts) const;
  // Where there are problems already: those with the parts named too, so that all are told at once.
  void NoteParts(CommandLine& line, const ClusterConfig& cluster) const;
  bool asks_for_full() const;
  // ConfigError with every part that the cluster does not have.
  FullAsked Resolve(const Cluster& cluster) const;

 private:
  enum class Fidelity { kFolded, kFull };
  enum class Links { kShared, kPriced };
  // As they were given, and whether: any of them asks for full fidelity.
  std::vector<std::string> slow_, link_down_;
  std::optional<double> jitter_, gpu_jitter_, routing_;
  std::optional<std::int64_t> seed_, steps_;
  std::optional<Fidelity> fidelity_;
  std::optional<Links> links_;
};

}  // namespace millwright
