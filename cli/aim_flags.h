// SPDX-License-Identifier: Apache-2.0
//
// What is wanted of a plan, and of the cluster's size: flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "planner/cluster_size.h"

namespace millwright {

class AimFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line
  // `nodes` are the sizes asked for, empty where there is one.  What is wrong goes to `line`.
  SizeQuestion Resolve(CommandLine& line, const std::vector<int>& nodes) const;
  bool given() const { return deadline_ || tokens_ || price_; }

 private:
  std::optional<Objective> objective_;
  std::optional<std::string> deadline_, tokens_;
  std::optional<double> price_;
};

}  // namespace millwright
