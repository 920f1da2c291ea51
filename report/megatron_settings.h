// SPDX-License-Identifier: Apache-2.0
//
// Which options of Megatron-LM make it run a plan?
//
// Option names and what they mean: NVIDIA/Megatron-LM, megatron/training/arguments.py at commits
// 000c4ac24f61 and 4393d2b91020 (late 2025) and c99881af1687 (2026), and the layout string's
// grammar in megatron/core/transformer/pipeline_parallel_layer_layout.py.  What their validation
// refuses, and that of transformer_config.py (commit 002526d81b81, 2026), is not written: where the
// plan has it, it is said instead.  planner/megatron_args reads the options back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/feasibility.h"
#include "planner/job.h"
#include "report/export_notes.h"

namespace millwright {

struct MegatronSetting {
  std::string_view topic;  // "model", "parallelism", ...; equal ones stand together
  std::string_view option;
  std::vector<std::string> values;  // none: a switch
};

// What has no option goes to `notes`, and so does what Megatron-Bridge, where they are its, says
// otherwise.
std::vector<MegatronSetting> MegatronSettings(const Job& job, ExportNotes& notes);

// Where the options start another plan: which, and what becomes of it.
void NoteWhatRuns(const Job& job, ExportNotes& notes);

// Whether gradients and weights are sharded by Megatron-FSDP.
inline bool WrittenAsFsdp(const ParallelConfig& plan) {
  return plan.zero >= 2 && ShardsIn(Framework::kMegatron, plan.pipeline, plan.zero);
}
// Whether all-to-alls of experts are written to run under other micro-batches' compute.
bool WrittenExpertOverlap(const ModelConfig& model, const TrainingConfig& training,
                          const ParallelConfig& plan);

// "Et*7|(t*8|)*14t*7L": embedding, layers, multi-token prediction and loss of each chunk.
std::string PipelineLayout(const std::vector<int>& layers, int mtp_layers);

inline constexpr std::string_view kMegatronSpelling =
    "NVIDIA/Megatron-LM, megatron/training/arguments.py at commits 4393d2b91020 (late 2025) and "
    "c99881af1687 (2026)";

}  // namespace millwright
