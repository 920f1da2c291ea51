// SPDX-License-Identifier: Apache-2.0
//
// A plan in the words of the framework that is to run it.
//
// Files are made in memory; nothing is written here.  What a framework has no option for is
// returned by name, and said in the file's own comments.  Model shape, batch, precision and plan
// are written; data, tokenizer, learning rate and checkpoints are the user's.  The spelling of
// options is that of the release named in each file's head.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config_io.h"
#include "planner/job.h"

namespace millwright {

enum class ExportFormat {
  kMegatron,    // Megatron-LM's arguments as a shell array
  kBridge,      // Megatron-Bridge's overrides as YAML
  kTorchtitan,  // TOML, and its pipeline schedule as CSV
  kDeepSpeed,   // JSON
  kFsdp,        // Hugging Face accelerate's YAML for FSDP2
  kSlurm,       // an sbatch script
};
std::span<const EnumName<ExportFormat>> ExportFormatNames();

struct ExportedFile {
  std::string name, text;
};

// What the framework cannot be told, or does another way.
struct Unexpressed {
  ExportFormat format = ExportFormat::kMegatron;
  std::string field;  // as a job file names it: "training.fused_swiglu"
  std::string why;
};

struct Exported {
  std::vector<ExportedFile> files;
  std::vector<Unexpressed> unexpressed;
};

// In place of a plan that the question's framework does not run.
struct Substitute {
  ParallelConfig plan;
  std::string why;  // "has no dualpipe; written is ..."
};

// The job has a model, a training step, a cluster and a plan that passed CheckPlan; so has passed
// what takes its place in the files of the question's own framework.
Exported Export(const Job& job, std::span<const ExportFormat> formats,
                const std::optional<Substitute>& substitute = {});

// "megatron,torchtitan"; ConfigError with a did-you-mean for each that does not exist.
std::vector<ExportFormat> ParseExportFormats(std::string_view text);

// "torchtitan has no way to say training.fused_swiglu: ..."
std::string UnexpressedLine(const Unexpressed& unexpressed);

// Creates the folder where there is none and puts the files there; each replaces what had its name,
// and none does before all are on the disk.  ConfigError where that cannot be done.
void WriteExported(const std::string& folder, std::span<const ExportedFile> files);
// ConfigError where it is plain beforehand that WriteExported would fail; writes nothing.
void CheckFolderWritable(const std::string& folder);

}  // namespace millwright
