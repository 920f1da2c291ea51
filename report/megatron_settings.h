// SPDX-License-Identifier: Apache-2.0
//
// Which options of Megatron-LM make it run a plan?
//
// Option names and what they mean: NVIDIA/Megatron-LM, megatron/training/arguments.py at commit
// 000c4ac24f61 (late 2025), and the layout string's grammar in
// megatron/core/transformer/pipeline_parallel_layer_layout.py.  planner/megatron_args reads them
// back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"
#include "report/export_notes.h"

namespace millwright {

struct MegatronSetting {
  std::string_view topic;  // "model", "parallelism", ...; equal ones stand together
  std::string_view option;
  std::vector<std::string> values;  // none: a switch
};

// What has no option goes to `notes`.
std::vector<MegatronSetting> MegatronSettings(const Job& job, ExportNotes& notes);

// "Et*7|(t*8|)*14t*7L": embedding, layers, multi-token prediction and loss of each chunk.
std::string PipelineLayout(const std::vector<int>& layers, int mtp_layers);

inline constexpr std::string_view kMegatronSpelling =
    "NVIDIA/Megatron-LM, megatron/training/arguments.py at commit 000c4ac24f61 (late 2025)";

}  // namespace millwright
