// SPDX-License-Identifier: Apache-2.0
//
// What commands that write files beside their answer share.
#pragma once

#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "report/file_writer.h"

namespace millwright {

// A problem where a page is asked for that this program cannot draw.
void CheckHtml(CommandLine& line, const std::optional<std::string>& html);

// "millwright: wrote step.html, 1.2 MiB", to stderr.
void SayWritten(const FileWriter& out, Console& console);

}  // namespace millwright
