// SPDX-License-Identifier: Apache-2.0
//
// One plan by flags: its degrees, sharding and recomputation, over those of a job file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/job_flags.h"
#include "core/parallel.h"
#include "planner/job.h"

namespace millwright {

class PlanFlags {
 public:
  void AddTo(CommandLine& line);  // this must outlive the command line
  void AddWithoutScheduleTo(CommandLine& line);

  // The plan, over `job.parallel` where the job has one.  Left open: dp is what is left of the
  // GPUs, the schedule follows from vpp, sequence parallelism is on where model and sequence
  // allow it, ZeRO is 1.  What is wrong goes to `line`.
  ParallelConfig Resolve(CommandLine& line, const Job& job, bool cluster_resized) const;
  bool gives_virtual_stages() const { return vpp_.has_value(); }

 private:
  void ResolveRecompute(CommandLine& line, Recompute& recompute) const;
  void ResolveRankRecompute(CommandLine& line, ParallelConfig& plan) const;
  void WarnOfLayers(CommandLine& line, const Job& job, const ParallelConfig& plan) const;
  void ResolveStageLayers(CommandLine& line, ParallelConfig& plan) const;

  std::optional<std::int64_t> tp_, cp_, pp_, vpp_, dp_, ep_, etp_, micro_batch_, zero_, zero_shard_,
      recompute_layers_, offload_layers_, cp_ulysses_;
  std::optional<bool> sp_;
  std::optional<ContextParallelKind> cp_kind_;
  std::optional<ScheduleKind> schedule_;
  std::optional<RankOrder> order_;
  std::optional<std::string> recompute_, recompute_modules_, stage_layers_, rank_recompute_;
};

}  // namespace millwright
