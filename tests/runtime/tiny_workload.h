// SPDX-License-Identifier: Apache-2.0
//
// A model that a step of takes milliseconds, and plans for it.
#pragma once

#include <gtest/gtest.h>

#include "planner/feasibility.h"
#include "planner/step_spec.h"
#include "runtime/workload.h"

namespace millwright {

// Grouped queries (8 heads on 2 groups), a vocabulary that 2 and 4 ranks cut unevenly: padded to
// 512, the last of four ranks has nothing but padding.
inline ModelConfig TinyModel() {
  ModelConfig model{.name = "tiny",
                    .num_layers = 4,
                    .hidden_size = 16,
                    .num_attention_heads = 8,
                    .num_query_groups = 2,
                    .kv_channels = 4,
                    .ffn_hidden_size = 24,
                    .vocab_size = 301,
                    .max_position_embeddings = 64};
  FillDefaults(model);
  EXPECT_TRUE(Inconsistencies(model).empty());
  return model;
}

inline ModelConfig WithBiases(ModelConfig model) {
  model.add_qkv_bias = model.add_attention_output_bias = model.add_mlp_bias = true;
  return model;
}

inline ModelConfig WithLayers(ModelConfig model, int layers) {
  model.num_layers = layers;
  model.layers.clear();
  FillDefaults(model);
  return model;
}

// A dense layer, and then 8 experts of which a token has 2: one to four a rank.
inline ModelConfig TinyMoe(std::int64_t shared_experts = 0) {
  ModelConfig model = TinyModel();
  model.moe = {.num_experts = 8,
               .topk = 2,
               .ffn_hidden_size = 12,
               .shared_expert_ffn_hidden_size = shared_experts};
  model.layers = {{.count = 1, .kind = {}}, {.count = model.num_layers - 1, .kind = {.moe = true}}};
  EXPECT_TRUE(Inconsistencies(model).empty());
  return model;
}

inline ModelConfig WithMoeLayers(ModelConfig model, int dense, int moe) {
  model.num_layers = dense + moe;
  model.layers.clear();
  if (dense > 0) model.layers.push_back({.count = dense, .kind = {}});
  model.layers.push_back({.count = moe, .kind = {.moe = true}});
  return model;
}

// As openai-community/gpt2 has it, without dropout.
inline ModelConfig TinyGpt() {
  ModelConfig model = WithBiases(TinyModel());
  model.normalization = Normalization::kLayerNorm;
  model.position_embedding = PositionEmbedding::kLearned;
  model.activation = Activation::kGelu;
  model.gated_linear_unit = false;
  model.tied_embeddings = true;
  return model;
}

// The step of a workload as the simulator has it, on a machine with a rank for each of its.
inline StepSpec SpecOf(const Workload& workload) {
  ClusterConfig config = FindCluster("local-cpu");
  config.gpus_per_node = config.gpus_per_pcie_switch = workload.ranks();
  const Cluster cluster(config);
  const Estimator estimator(workload.model, workload.training, cluster);
  return StepSpecOf(estimator, workload.parallel, workload.schedule);
}

inline Workload WorkloadOf(const ModelConfig& model, const TrainingConfig& training,
                           const ParallelConfig& parallel) {
  const auto verdict =
      CheckPlan(model, training, FindGpu("H100"), std::int64_t(parallel.gpus()), parallel);
  EXPECT_FALSE(verdict) << verdict->detail;
  const std::int64_t together = std::int64_t{1} * parallel.data * parallel.micro_batch_size;
  Workload workload{
      .model = model,
      .training = training,
      .parallel = parallel,
      .schedule = BuildSchedule(ScheduleOf(parallel, training.global_batch_size / together))};
  workload.graph = BuildStepGraph(SpecOf(workload));
  return workload;
}

inline Workload TinyWorkload(const ModelConfig& model, const ParallelConfig& parallel,
                             std::int64_t global_batch = 4, std::int64_t sequence = 16) {
  return WorkloadOf(model, {.global_batch_size = global_batch, .seq_length = sequence}, parallel);
}

inline Workload InFp8(Workload workload) {
  workload.training.precision = Precision::kFp8;
  return workload;
}

}  // namespace millwright
