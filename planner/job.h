// SPDX-License-Identifier: Apache-2.0
//
// The one file format: a question (model, training, cluster) and, where it has been answered, the
// plan.  `plan --out` writes it; every command reads it.
#pragma once

#include <string>
#include <vector>

#include "core/config_io.h"
#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"
#include "topologies/cluster_config.h"

namespace millwright {

// A plan that leaves no memory to use fits nothing.
inline constexpr double kMostMemoryMargin = 0.99;

// What of the plans a search may give, as its options say it.
struct SearchLimits {
  double memory_margin = 0.05;               // of the GPU's memory that a plan must leave free
  bool offload = false;                      // plans may move activations to the host
  bool recompute_by_rank = false;            // and recompute otherwise on each pipeline rank
  std::vector<std::string> require, forbid;  // see planner/plan_filter.h
  bool operator==(const SearchLimits&) const = default;
};

struct Job {
  bool has_model = false;
  ModelConfig model;
  bool has_training = false;
  TrainingConfig training;
  bool has_cluster = false;
  ClusterConfig cluster;
  bool has_parallel = false;
  ParallelConfig parallel;
  bool has_search = false;
  SearchLimits search;
};

// Every part is optional in a file: what it leaves out flags must give.  `model_from` names a
// preset or a path instead of a whole `model`.
void Fields(ConfigIo& io, Job& job);

// ConfigError with every mistake of the file.
Job ReadJob(const std::string& file);
Job ParseJob(const std::string& file, std::string_view text);
std::string WriteJob(const Job& job);

}  // namespace millwright
