// SPDX-License-Identifier: Apache-2.0
//
// --export: the plan in the words of frameworks, into a folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "report/export.h"

namespace millwright {

class ExportFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line

  bool asked() const { return text_.has_value(); }
  // Notes what is wrong; `out` is the --out of the command, which then names a folder.
  void Check(CommandLine& line, const std::optional<std::string>& out);
  // The files of a job with its plan, job.json first, and what they cannot say.
  Exported Make(const Job& job, const std::optional<Substitute>& substitute = {}) const;
  // Writes them, and says on `err` what was written and what was not said.
  static void Write(const std::string& folder, const Exported& exported, Console& console);

 private:
  std::optional<std::string> text_;
  std::vector<ExportFormat> formats_;
};

}  // namespace millwright
