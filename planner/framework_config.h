// SPDX-License-Identifier: Apache-2.0
//
// Which plan does a torchtitan TOML or a DeepSpeed JSON describe?
//
// Both leave the model to a program, so that it comes from elsewhere.  Keys: pytorch/torchtitan,
// torchtitan/config/job_config.py at commit 6404b932421f (August 2025); microsoft/DeepSpeed,
// docs/_pages/config-json.md at commit 01f31a835dec.  Sections without effect on time and memory
// are counted, as are keys that nobody here knows: their programs refuse those themselves.
#pragma once

#include <string>
#include <string_view>

#include "planner/megatron_args.h"

namespace millwright {

// torchtitan's selective recomputation by operator, or of every n-th layer, is not Megatron's by
// module: the nearest is taken, with a warning.
ImportedRun ReadTorchtitan(const std::string& file, std::string_view text);

// Data parallelism, batch and precision alone; the sequence length and all else flags give.
ImportedRun ReadDeepSpeed(const std::string& file, std::string_view text);

}  // namespace millwright
