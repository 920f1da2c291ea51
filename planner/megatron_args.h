// SPDX-License-Identifier: Apache-2.0
//
// What does a Megatron-LM run train, and by which plan?
//
// Reads a launch script, a shell line or a file of arguments, as core/shell_words understands them,
// and turns the options that matter to time and memory into a job.  Option names and defaults:
// NVIDIA/Megatron-LM, megatron/training/arguments.py at commit 000c4ac24f61 (late 2025), and the
// deprecated spellings that it still takes.  Options that matter to neither are counted; options
// that it does not have are warned of.
//
// Not followed: other files that a script reads, --yaml-cfg, --use-checkpoint-args, heterogeneous
// and hybrid (Mamba) layers, which are mistakes here; layers per stage other than Millwright's own
// split, which are warned of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/job.h"

namespace millwright {

// A run as its options say it, before it is known how many GPUs it has.
struct ImportedRun {
  Job job;  // model (unless it was not asked for), training and plan; data parallel is open
  std::optional<std::int64_t> gpus;      // as its launcher says
  std::int64_t optimizer_instances = 1;  // copies of the sharded optimizer
  // Sequences of a replica in a step, where the global batch is left open; 0: a micro-batch.
  std::int64_t batch_per_replica = 0;
  std::vector<std::string> warnings;
  std::vector<std::string> ignored;  // options without effect here, in their order
};

struct MegatronReading {
  bool model = true;                  // false: the model comes from elsewhere
  std::optional<std::int64_t> vocab;  // padded; in place of what the script says
};

// `text` is the contents of `file`.  ConfigError with every mistake, each with its line.
ImportedRun ReadMegatronArgs(const std::string& file, std::string_view text,
                             const MegatronReading& reading = {});

// The job of that run on so many GPUs.  What does not divide is returned, one sentence each, and
// the job is then not to be used.
Job PlacedOn(const ImportedRun& run, std::int64_t gpus, std::vector<std::string>& problems);

// A stage of --pipeline-model-parallel-layout: layers, multi-token-prediction modules, and whether
// embedding and loss are there.  ConfigError where `layout` is none.
struct LayoutStage {
  int layers = 0, mtp_layers = 0;
  bool embedding = false, loss = false;
  bool operator==(const LayoutStage&) const = default;
};
std::vector<LayoutStage> ParsePipelineLayout(std::string_view layout);

// Why Transformer Engine refuses to exchange the heads of the plan's context ranks; empty where it
// does not.  AttnFuncWithCPAndQKVOA2A of its context_parallel.py asserts that heads and KV heads of
// a rank divide by the ranks of an all-to-all, where Millwright's Ulysses copies KV heads that are
// fewer.
std::string RefusedExchange(const ModelConfig& model, const ParallelConfig& plan);

}  // namespace millwright
