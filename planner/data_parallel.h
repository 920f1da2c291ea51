// SPDX-License-Identifier: Apache-2.0
//
// What data parallelism costs a rank: groups, gradient and parameter communication, optimizer.
#pragma once

#include <cstdint>
#include <functional>

#include "core/gpu.h"
#include "core/parallel.h"
#include "core/path_profile.h"
#include "core/training.h"
#include "cost_models/calibration.h"
#include "cost_models/memory.h"

namespace millwright {

// Bytes of a parameter as it is computed with and gathered: BF16.
inline constexpr double kParameterWidth = 2;

// Ranks that hold the same dense weights, and the same experts.
struct DataGroups {
  std::int64_t dense_ranks = 1, expert_ranks = 1;
  std::int64_t dense_shard = 1, expert_shard = 1;  // ranks that one copy of the ZeRO state spans
  PathProfile dense, expert;                       // the shards' groups
  PathProfile dense_replicas, expert_replicas;     // HSDP: ranks with the same shard
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

Seconds OptimizerTime(const RankParameters& parameters, int zero, const DataGroups& groups,
                      const GpuSpec& gpu, const Calibration& calibration);

}  // namespace millwright
