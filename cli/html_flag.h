// SPDX-License-Identifier: Apache-2.0
//
// What commands that write files beside their answer share.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "report/file_writer.h"

namespace millwright {

// A problem where a page is asked for that this program cannot draw.
void CheckHtml(CommandLine& line, const std::optional<std::string>& html);

// A problem where `file`, what `option` asks to be written, is one of the files that are read.
void CheckNotInput(CommandLine& line, const char* option, const std::optional<std::string>& file,
                   std::span<const std::string> inputs);

// "millwright: wrote step.html, 1.2 MiB", to stderr.
void SayWritten(const FileWriter& out, Console& console);

}  // namespace millwright
