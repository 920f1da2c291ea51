// SPDX-License-Identifier: Apache-2.0
//
// What data parallelism costs a rank: groups, gradient and parameter communication, optimizer.
#pragma once

#include <cstdint>
#include <functional>

#include "core/gpu.h"
#include "core/parallel.h"
#include "core/parameters.h"
#include "core/path_profile.h"
#include "core/training.h"
#include "cost_models/calibration.h"
#include "cost_models/memory.h"

namespace millwright {

// Bytes of a parameter as it is computed with and gathered: BF16.
inline constexpr double kParameterWidth = 2;

// Ranks that hold the same dense weights, and the same experts.
struct DataRanks {
  std::int64_t dense_ranks = 1, expert_ranks = 1;
  std::int64_t dense_shard = 1, expert_shard = 1;  // ranks that one copy of the ZeRO state spans
};
DataRanks DataRanksOf(const ParallelConfig& plan);

// And how they lie.
struct DataGroups : DataRanks {
  PathProfile dense, expert;                    // the shards' groups
  PathProfile dense_replicas, expert_replicas;  // HSDP: ranks with the same shard
};
DataGroups DataGroupsOf(
    const ParallelConfig& plan,
    const std::function<const PathProfile&(std::int64_t stride, std::int64_t ranks)>& profile);

// Megatron reduces gradients by buckets of max(40 M, 1 M x ranks) parameters.
double BucketParameters(double ranks);

// Communication of a rank's parameters once a step, none of it hidden.
struct DataSync {
  Seconds gradients;   // all-reduce (ZeRO 0) or reduce-scatter; of one micro-batch for ZeRO-2
  Seconds parameters;  // all-gather (ZeRO 1, 2)
  Seconds replicas;    // HSDP: the sharded gradients over the copies of the state
};
DataSync SyncOf(const RankParameters& parameters, int zero, const DataGroups& groups,
                const TrainingConfig& training, const Calibration& calibration);

// ZeRO-3: one unit (a layer) gathered, its gradients scattered, in one collective each.
struct ShardPass {
  Seconds gather, reduce;
};
ShardPass ShardPassOf(const RankParameters& unit, const DataGroups& groups,
                      const TrainingConfig& training, const CollectiveCalibration& calibration);

// Gradients that several tensor ranks hold, each from its own tokens or heads alone: norms,
// routers, latent down-projections and biases of row-parallel layers under sequence parallelism,
// norms of queries and keys always; key and value weights where KV heads are fewer than tensor
// ranks.  Of experts' biases, which expert-tensor ranks hold alike, nothing is counted.
struct PartialGradients {
  double replicated = 0, key_value = 0;  // parameters of a rank
  PartialGradients& operator+=(const PartialGradients& o) {
    replicated += o.replicated;
    key_value += o.key_value;
    return *this;
  }
  friend PartialGradients operator*(double k, const PartialGradients& p) {
    return {k * p.replicated, k * p.key_value};
  }
};
PartialGradients PartialGradientsOf(const std::vector<Weight>& weights, const ModelConfig& model,
                                    int tensor, bool sequence_parallel);
// Tensor ranks in a row that hold the same KV heads.
int CopiesOfKeyValue(const ModelConfig& model, int tensor);

// Their sums over tensor ranks once a step, of what ZeRO leaves a rank.  (Megatron-LM sums them
// whole; norms are so few that both are launch and latency.)
struct TensorSums {
  Bytes replicated_payload, key_value_payload;
  Seconds replicated, key_value;
};
TensorSums TensorSumsOf(
    const PartialGradients& partial, const ModelConfig& model, const ParallelConfig& plan,
    const DataGroups& groups, const TrainingConfig& training,
    const CollectiveCalibration& calibration,
    const std::function<const PathProfile&(std::int64_t stride, std::int64_t ranks)>& profile);

// DualPipe's two copies of a stage exchange what each has of its gradients, of what ZeRO leaves a
// rank: `held` is all that it has of both copies, `path` that between pipeline ranks.
struct CopiesExchange {
  Bytes payload;
  Seconds time;
};
CopiesExchange CopiesExchangeOf(const RankParameters& held, const ParallelConfig& plan,
                                const DataGroups& groups, const TrainingConfig& training,
                                const CollectiveCalibration& calibration, const PathProfile& path);

Seconds OptimizerTime(const RankParameters& parameters, int zero, const DataGroups& groups,
                      const GpuSpec& gpu, const Calibration& calibration);

}  // namespace millwright
