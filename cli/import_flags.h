// SPDX-License-Identifier: Apache-2.0
//
// --from-megatron and its like: the question out of a framework's files in place of a job file.
#pragma once

#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/job_flags.h"
#include "planner/megatron_args.h"

namespace millwright {

class ImportFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line

  bool asked() const { return megatron_ || torchtitan_ || deepspeed_; }
  // The run's job on its GPUs, with `flags` over it.  What is wrong goes to `line`.
  Job Resolve(CommandLine& line, const JobFlags& flags);
  // How many options were left out, or with --verbose which.
  void ShowIgnored(Console& console) const;

 private:
  ImportedRun Read(const JobFlags& flags) const;
  const char* option() const;

  std::optional<std::string> megatron_, torchtitan_, deepspeed_;
  bool verbose_ = false;
  std::vector<std::string> ignored_;
};

}  // namespace millwright
