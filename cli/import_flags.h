// SPDX-License-Identifier: Apache-2.0
//
// --from-megatron: the question out of a launch script in place of a job file.
#pragma once

#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/job_flags.h"

namespace millwright {

class ImportFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line

  bool asked() const { return megatron_.has_value(); }
  // The run's job on its GPUs, with `flags` over it.  What is wrong goes to `line`.
  Job Resolve(CommandLine& line, const JobFlags& flags);
  // How many options were left out, or with --verbose which.
  void ShowIgnored(Console& console) const;

 private:
  std::optional<std::string> megatron_;
  bool verbose_ = false;
  std::vector<std::string> ignored_;
};

}  // namespace millwright
