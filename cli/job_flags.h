// SPDX-License-Identifier: Apache-2.0
//
// The question that plan and estimate share: a job file, and flags over it.
//
// Flags override the file's fields one by one.  --gpus below one node's makes a smaller node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "planner/job.h"

namespace millwright {

inline constexpr int kMostThreads = 1024;  // of a search

class JobFlags {
 public:
  // Adds the options; this must outlive the command line.
  void AddTo(CommandLine& line, std::size_t most_files = 1);
  // The same, but that --nodes takes several sizes: 8..64, 8..64+8, 8|12.  TakeNodes gives them, in
  // ascending order, and leaves the largest as the cluster's; empty where there is one size at
  // most.
  void AddWithSizesTo(CommandLine& line);
  std::vector<int> TakeNodes(CommandLine& line);
  // --ranks for --gpus, of a cluster whose GPUs are CPU cores.
  void AddRanksTo(CommandLine& line);
  // The size and GPU of a cluster alone, for `describe`.
  void AddClusterSizeTo(CommandLine& line);

  // The whole question.  What is wrong, missing or doubtful goes to `line`; the job is to be used
  // only where it has no problems.
  Job Resolve(CommandLine& line) const;
  // The same over one of several files.
  Job Resolve(CommandLine& line, const std::string& file) const;
  // The same over a job that something else than a job file gives, on so many GPUs where no flag
  // says how many.
  Job Resolve(CommandLine& line, Job job, std::optional<std::int64_t> gpus) const;
  const std::vector<std::string>& files() const { return files_; }

  // The cluster of that name with the size and GPU given; ConfigError with every problem.
  ClusterConfig ResolveCluster(CommandLine& line, const std::string& name) const;

  // Of --gpus or --ranks, and --cluster.
  std::optional<std::int64_t> ranks() const { return gpus_; }
  const std::optional<std::string>& cluster() const { return cluster_; }

  // Whether the cluster's size was given here, not by the job file.
  bool sizes_cluster() const { return nodes_ || gpus_ || cluster_; }
  bool gives_model() const { return model_ || layers_ || hidden_ || heads_; }
  std::optional<std::int64_t> vocabulary() const { return vocab_; }

 private:
  Job Resolve(CommandLine& line, const std::string* file) const;
  void AddModelTo(CommandLine& line);
  void AddTrainingTo(CommandLine& line);
  void ResolveModel(CommandLine& line, Job& job) const;
  void ShortenModel(ModelConfig& model) const;
  void ResolveCluster(CommandLine& line, Job& job,
                      std::optional<std::int64_t> gpus = std::nullopt) const;
  void Resize(CommandLine& line, ClusterConfig& cluster,
              std::optional<std::int64_t> gpus = std::nullopt) const;
  void ResolveTraining(CommandLine& line, Job& job) const;
  void Warn(CommandLine& line, const Job& job) const;
  static void ResizeByGpus(CommandLine& line, ClusterConfig& cluster, std::int64_t gpus);

  bool several_sizes_ = false;
  std::optional<std::string> sizes_;
  std::vector<std::string> files_;
  std::optional<std::string> model_, cluster_, gpu_, calibration_, what_if_;

  // A GPT shape.
  std::optional<std::int64_t> layers_, hidden_, heads_, kv_heads_, head_dim_, ffn_, vocab_,
      max_positions_;
  bool swiglu_ = false, rms_norm_ = false, rope_ = false, untied_ = false;
  std::optional<bool> bias_, dropout_;

  std::optional<std::int64_t> nodes_, gpus_;

  std::optional<std::int64_t> global_batch_, seq_;
  std::optional<Precision> precision_;
  std::optional<Framework> framework_;
  std::optional<CudaGraph> cuda_graph_;
  std::optional<StateScheme> state_;
  std::optional<double> gradient_bytes_, moment_bytes_, moe_imbalance_;
  std::optional<bool> flash_attention_, fused_swiglu_, fp8_activation_store_, fused_cross_entropy_;
  std::optional<bool> overlap_grad_reduce_, overlap_param_gather_, overlap_p2p_, tp_comm_overlap_,
      cp_comm_overlap_, expert_overlap_;
  std::optional<MoeDispatcher> moe_dispatcher_;
  std::optional<MfuConvention> mfu_convention_;
};

// Each line of `error` as a problem, behind `option` where it does not say where it is.
void NoteError(CommandLine& line, std::string_view option, const ConfigError& error);

}  // namespace millwright
