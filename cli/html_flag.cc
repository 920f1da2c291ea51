// SPDX-License-Identifier: Apache-2.0
#include "cli/html_flag.h"

#include <fmt/format.h>

#include <filesystem>
#include <ostream>

#include "core/unit_text.h"
#include "report/page.h"

namespace millwright {

void CheckHtml(CommandLine& line, const std::optional<std::string>& html) {
  if (html && !HasPageLibrary()) line.Problem("--html", NoPageLibrary());
}

void CheckNotInput(CommandLine& line, const char* option, const std::optional<std::string>& file,
                   std::span<const std::string> inputs) {
  if (!file) return;
  for (const std::string& input : inputs) {
    std::error_code missing;  // a file that is not there yet is no input
    if (std::filesystem::equivalent(*file, input, missing)) {
      line.Problem(option, fmt::format("would overwrite its own input, {}", *file));
      return;
    }
  }
}

void SayWritten(const FileWriter& out, Console& console) {
  console.err << fmt::format("millwright: wrote {}, {}\n", out.file(),
                             FormatBytes(Bytes(double(out.bytes()))));
}

}  // namespace millwright
