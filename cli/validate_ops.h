// SPDX-License-Identifier: Apache-2.0
//
// `validate --ops`: its flags, and what it prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace millwright {

struct OpsFlags {
  std::vector<std::string> paths;
  std::optional<std::string> calibration;
  bool left_out = false;

  void AddTo(CommandLine& line);
  // Of the others where --ops is not given.
  void Refuse(CommandLine& line) const;
  bool given() const { return !paths.empty(); }
};

// Exit code 0: an answer.
int ValidateMeasuredOps(const OpsFlags& flags, bool json, Console& console);

}  // namespace millwright
