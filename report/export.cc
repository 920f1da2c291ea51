// SPDX-License-Identifier: Apache-2.0
#include "report/export.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>

#include "core/mistakes.h"
#include "report/export_notes.h"
#include "report/file_writer.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void FolderError(const std::string& folder, std::string_view what) {
  throw ConfigError(fmt::format("{}: {}", Printable(folder, kMostNameShown), what));
}

void ExportOne(ExportFormat format, const Job& job, Exported& exported) {
  switch (format) {
    case ExportFormat::kMegatron:
      return ExportMegatron(job, exported);
    case ExportFormat::kBridge:
      return ExportBridge(job, exported);
    case ExportFormat::kTorchtitan:
      return ExportTorchtitan(job, exported);
    case ExportFormat::kDeepSpeed:
      return ExportDeepSpeed(job, exported);
    case ExportFormat::kFsdp:
      return ExportFsdp(job, exported);
    case ExportFormat::kSlurm:
      return ExportSlurm(job, exported);
  }
}

// Whether the framework reads it, and runs it as the estimates of the framework have it.
bool IsOf(ExportFormat format, Framework framework) {
  switch (format) {
    case ExportFormat::kMegatron:
    case ExportFormat::kBridge:
    case ExportFormat::kSlurm:  // which starts Megatron-LM
      return framework == Framework::kMegatron;
    case ExportFormat::kTorchtitan:
      return framework == Framework::kFsdpCompiled;
    case ExportFormat::kDeepSpeed:
    case ExportFormat::kFsdp:  // the program that they are given to divides the model
      return false;
  }
  return false;
}

std::string_view Title(ExportFormat format) {
  switch (format) {
    case ExportFormat::kMegatron:
      return "Megatron-LM";
    case ExportFormat::kBridge:
      return "Megatron-Bridge";
    case ExportFormat::kTorchtitan:
      return "torchtitan";
    case ExportFormat::kDeepSpeed:
      return "DeepSpeed";
    case ExportFormat::kFsdp:
      return "FSDP by accelerate";
    case ExportFormat::kSlurm:
      return "Slurm";
  }
  return {};
}

}  // namespace

std::span<const EnumName<ExportFormat>> ExportFormatNames() {
  static constexpr std::array<EnumName<ExportFormat>, 6> names{{
      {ExportFormat::kMegatron, "megatron"},
      {ExportFormat::kBridge, "bridge"},
      {ExportFormat::kTorchtitan, "torchtitan"},
      {ExportFormat::kDeepSpeed, "deepspeed"},
      {ExportFormat::kFsdp, "fsdp"},
      {ExportFormat::kSlurm, "slurm"},
  }};
  return names;
}

Exported Export(const Job& job, std::span<const ExportFormat> formats,
                const std::optional<Substitute>& substitute) {
  Exported exported;
  for (const ExportFormat format : formats) {
    if (substitute && IsOf(format, job.training.framework)) {
      Job other = job;
      other.parallel = substitute->plan;
      exported.unexpressed.push_back({format, "parallel", substitute->why});
      ExportOne(format, other, exported);
    } else {
      ExportOne(format, job, exported);
    }
  }
  return exported;
}

std::vector<ExportFormat> ParseExportFormats(std::string_view text) {
  std::vector<ExportFormat> formats;
  std::vector<std::string_view> words;
  for (const auto& n : ExportFormatNames()) words.push_back(n.name);
  std::string mistakes;
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    const auto names = ExportFormatNames();
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.name == word; });
    if (found == names.end()) {
      const std::string_view nearest = NearestName(word, words);
      mistakes += fmt::format(
          "{}expected some of megatron, bridge, torchtitan, deepspeed, fsdp, slurm, got "
          "\"{}\"{}",
          mistakes.empty() ? "" : "\n", Printable(word, kMostNameShown),
          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest));
    } else if (std::find(formats.begin(), formats.end(), found->value) == formats.end()) {
      formats.push_back(found->value);
    }
    if (word.size() == text.size()) break;
    text.remove_prefix(word.size() + 1);
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
  return formats;
}

std::string UnexpressedLine(const Unexpressed& u) {
  return fmt::format("{} cannot be told {}: {}", Title(u.format), u.field, u.why);
}

void CheckFolderWritable(const std::string& folder) {
  std::error_code error;
  fs::path existing = fs::path(folder).lexically_normal();
  while (!existing.empty() && !fs::exists(existing, error)) {
    if (error) FolderError(folder, fmt::format("cannot be a folder: {}", error.message()));
    const fs::path above = existing.parent_path();
    if (above == existing) break;
    existing = above;
  }
  if (existing.empty()) existing = ".";
  if (!fs::is_directory(existing, error)) {
    FolderError(folder, existing == fs::path(folder)
                            ? std::string("is a file; with --export a folder is expected")
                            : fmt::format("cannot be made: {} is a file",
                                          Printable(existing.string(), kMostNameShown)));
  }
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    FolderError(folder, fmt::format("cannot be written to: {}", std::strerror(errno)));
  }
}

void WriteExported(const std::string& folder, std::span<const ExportedFile> files) {
  CheckFolderWritable(folder);
  std::error_code error;
  // What this call makes it takes away again if the files cannot follow.
  std::vector<fs::path> made;
  for (fs::path one = fs::path(folder).lexically_normal(); !one.empty() && !fs::exists(one, error);
       one = one.parent_path()) {
    made.push_back(one);
  }
  fs::create_directories(folder, error);
  if (error) FolderError(folder, fmt::format("cannot be made: {}", error.message()));
  try {
    std::deque<FileWriter> writers;
    for (const ExportedFile& file : files) {
      writers.emplace_back((fs::path(folder) / file.name).string()).Write(file.text);
      writers.back().Flush();
    }
    for (FileWriter& writer : writers) writer.Commit();
  } catch (const ConfigError&) {
    for (const fs::path& one : made) fs::remove(one, error);
    throw;
  }
}

}  // namespace millwright
