// The one file format: a question (model, training, cluster) and, where it has been answered, the
// plan.  `plan --out` writes it; every command reads it.
#pragma once

#include <string>

#include "core/config_io.h"
#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"
#include "topologies/cluster_config.h"

namespace millwright {

struct Job {
  bool has_model = false;
  ModelConfig model;
  bool has_training = false;
  TrainingConfig training;
  bool has_cluster = false;
  ClusterConfig cluster;
  bool has_parallel = false;
  ParallelConfig parallel;
};

// Every part is optional in a file: what it leaves out flags must give.  `model_from` names a
// preset or a path instead of a whole `model`.
void Fields(ConfigIo& io, Job& job);

// ConfigError with every mistake of the file.
Job ReadJob(const std::string& file);
Job ParseJob(const std::string& file, std::string_view text);
std::string WriteJob(const Job& job);

}  // namespace millwright
