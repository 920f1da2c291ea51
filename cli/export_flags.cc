// SPDX-License-Identifier: Apache-2.0
#include "cli/export_flags.h"

#include <fmt/format.h>

#include <ostream>

#include "cli/job_flags.h"
#include "core/mistakes.h"

namespace millwright {

void ExportFlags::AddTo(CommandLine& line) {
  line.Text("--export", "FORMAT,...", text_,
            "the plan for megatron, bridge, torchtitan, deepspeed, fsdp or slurm, into the folder "
            "that --out names");
}

void ExportFlags::Check(CommandLine& line, const std::optional<std::string>& out) {
  if (!text_) return;
  try {
    formats_ = ParseExportFormats(*text_);
  } catch (const ConfigError& error) {
    NoteError(line, "--export", error);
  }
  if (!out) {
    line.Problem("--export", "needs --out FOLDER");
    return;
  }
  try {
    CheckFolderWritable(*out);
  } catch (const ConfigError& error) {
    NoteError(line, "--out", error);
  }
}

Exported ExportFlags::Make(const Job& job, const std::optional<Substitute>& substitute) const {
  Exported exported = Export(job, formats_, substitute);
  exported.files.insert(exported.files.begin(), {"job.json", WriteJob(job)});
  return exported;
}

void ExportFlags::Write(const std::string& folder, const Exported& exported, Console& console) {
  try {
    WriteExported(folder, exported.files);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--out: {}", error.what()));
  }
  for (const Unexpressed& one : exported.unexpressed) {
    console.err << fmt::format("millwright: note: {}\n", UnexpressedLine(one));
  }
  std::string names;
  for (const ExportedFile& file : exported.files) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", file.name);
  }
  console.err << fmt::format("millwright: {}: wrote {}\n", Printable(folder, kMostNameShown),
                             names);
}

}  // namespace millwright
