// SPDX-License-Identifier: Apache-2.0
#include "cli/html_flag.h"

#include <fmt/format.h>

#include <ostream>

#include "core/unit_text.h"
#include "report/page.h"

namespace millwright {

void CheckHtml(CommandLine& line, const std::optional<std::string>& html) {
  if (html && !HasPageLibrary()) line.Problem("--html", NoPageLibrary());
}

void SayWritten(const FileWriter& out, Console& console) {
  console.err << fmt::format("millwright: wrote {}, {}\n", out.file(),
                             FormatBytes(Bytes(double(out.bytes()))));
}

}  // namespace millwright
