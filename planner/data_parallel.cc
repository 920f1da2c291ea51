// SPDX-License-Identifier: Apache-2.0
#include "planner/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cost_models/collectives.h"

namespace millwright {
namespace {

Seconds BucketedCost(CollectiveKind kind, double parameters, double width, const PathProfile& path,
                     const CollectiveCalibration& c) {
  if (path.ranks <= 1 || parameters <= 0) return Seconds(0);
  const double buckets = std::ceil(parameters / BucketParameters(path.ranks));
  return buckets * CostOfCollective(kind, Bytes(parameters * width / buckets), path, c).time;
}

}  // namespace

DataRanks DataRanksOf(const ParallelConfig& plan) {
  DataRanks r;
  r.dense_ranks = std::int64_t{1} * plan.data * plan.context;
  r.expert_ranks =
      r.dense_ranks * plan.tensor / (std::int64_t{1} * plan.expert * plan.expert_tensor);
  r.dense_shard = plan.zero_shard > 0 ? plan.zero_shard : r.dense_ranks;
  r.expert_shard = plan.zero_shard > 0 ? std::gcd(r.expert_ranks, r.dense_shard) : r.expert_ranks;
  return r;
}

DataGroups DataGroupsOf(
    const ParallelConfig& plan,
    const std::function<const PathProfile&(std::int64_t stride, std::int64_t ranks)>& profile) {
  DataGroups g{DataRanksOf(plan)};
  const std::int64_t expert_ranks_of_copy = std::int64_t{1} * plan.expert * plan.expert_tensor;
  g.dense = profile(plan.tensor, g.dense_shard);
  g.dense_replicas = profile(plan.tensor * g.dense_shard, g.dense_ranks / g.dense_shard);
  g.expert = profile(expert_ranks_of_copy, g.expert_shard);
  g.expert_replicas =
      profile(expert_ranks_of_copy * g.expert_shard, g.expert_ranks / g.expert_shard);
  return g;
}

double BucketParameters(double ranks) { return std::max(40e6, 1e6 * ranks); }

DataSync SyncOf(const RankParameters& parameters, int zero, const DataGroups& groups,
                const TrainingConfig& training, const Calibration& calibration) {
  const CollectiveCalibration& c = calibration.collective;
  const double width = training.gradient_bytes;
  const auto over_shard = [&](CollectiveKind kind, double bytes_per_parameter) {
    return BucketedCost(kind, parameters.dense, bytes_per_parameter, groups.dense, c) +
           BucketedCost(kind, parameters.expert, bytes_per_parameter, groups.expert, c);
  };
  DataSync sync;
  if (zero == 0) {
    sync.gradients = over_shard(CollectiveKind::kAllReduce, width);
    return sync;
  }
  sync.replicas =
      BucketedCost(CollectiveKind::kAllReduce, parameters.dense / double(groups.dense_shard), width,
                   groups.dense_replicas, c) +
      BucketedCost(CollectiveKind::kAllReduce, parameters.expert / double(groups.expert_shard),
                   width, groups.expert_replicas, c);
  if (zero < 3) {
    sync.gradients = over_shard(CollectiveKind::kReduceScatter, width);
    sync.parameters = over_shard(CollectiveKind::kAllGather, kParameterWidth) +
                      (parameters.dense > 0 ? double(groups.dense_shard) : 0) *
                          calibration.host.broadcast_per_rank;
  }
  return sync;
}

ShardPass ShardPassOf(const RankParameters& unit, const DataGroups& groups,
                      const TrainingConfig& training, const CollectiveCalibration& c) {
  const auto both = [&](CollectiveKind kind, double width) {
    return CostOfCollective(kind, Bytes(unit.dense * width), groups.dense, c).time +
           CostOfCollective(kind, Bytes(unit.expert * width), groups.expert, c).time;
  };
  return {.gather = both(CollectiveKind::kAllGather, kParameterWidth),
          .reduce = both(CollectiveKind::kReduceScatter, training.gradient_bytes)};
}

PartialGradients PartialGradientsOf(const std::vector<Weight>& weights, const ModelConfig& model,
                                    int tensor, bool sequence_parallel) {
  PartialGradients partial;
  if (tensor == 1) return partial;
  for (const Weight& weight : weights) {
    switch (weight.split) {
      case WeightSplit::kReplicated: {
        const bool of_heads = weight.name == "q_norm" || weight.name == "k_norm";
        // Positions are added before tokens are split, so that all ranks have their whole gradient.
        const bool of_tokens = sequence_parallel && weight.name != "position_embedding";
        if (of_heads || of_tokens) partial.replicated += double(weight.elements());
        break;
      }
      case WeightSplit::kQueryGroups:
        if (CopiesOfKeyValue(model, tensor) > 1) {
          partial.key_value += double(weight.elements()) / model.num_query_groups;
        }
        break;
      case WeightSplit::kTensor:
      case WeightSplit::kVocabulary:
      case WeightSplit::kExpert:
      case WeightSplit::kExpertReplicated:
        break;
    }
  }
  return partial;
}

int CopiesOfKeyValue(const ModelConfig& model, int tensor) {
  return std::max(1, int(tensor / model.num_query_groups));
}

TensorSums TensorSumsOf(
    const PartialGradients& partial, const ModelConfig& model, const ParallelConfig& plan,
    const DataGroups& groups, const TrainingConfig& training, const CollectiveCalibration& c,
    const std::function<const PathProfile&(std::int64_t stride, std::int64_t ranks)>& profile) {
  const double width = training.gradient_bytes / (plan.zero >= 1 ? double(groups.dense_shard) : 1);
  TensorSums sums{.replicated_payload = Bytes(partial.replicated * width),
                  .key_value_payload = Bytes(partial.key_value * width)};
  sums.replicated = CostOfCollective(CollectiveKind::kAllReduce, sums.replicated_payload,
                                     profile(1, plan.tensor), c)
                        .time;
  sums.key_value = CostOfCollective(CollectiveKind::kAllReduce, sums.key_value_payload,
                                    profile(1, CopiesOfKeyValue(model, plan.tensor)), c)
                       .time;
  return sums;
}

CopiesExchange CopiesExchangeOf(const RankParameters& held, const ParallelConfig& plan,
                                const DataGroups& groups, const TrainingConfig& training,
                                const CollectiveCalibration& c, const PathProfile& path) {
  const double dense = plan.zero >= 1 ? held.dense / double(groups.dense_shard) : held.dense;
  const double expert = plan.zero >= 1 ? held.expert / double(groups.expert_shard) : held.expert;
  const Bytes payload(training.gradient_bytes * (dense + expert));
  return {.payload = payload,
          .time = CostOfCollective(CollectiveKind::kSendRecv, payload, path, c).time};
}

Seconds OptimizerTime(const RankParameters& parameters, int zero, const DataGroups& groups,
                      const GpuSpec& gpu, const Calibration& calibration) {
  const double stepped = zero >= 1 ? parameters.dense / double(groups.dense_shard) +
                                         parameters.expert / double(groups.expert_shard)
                                   : parameters.total();
  if (calibration.executed) {
    return ExecutedOptimizerTime(parameters.total(), stepped, *calibration.executed, gpu) /
           calibration.compute_speed;
  }
  return Bytes(stepped * calibration.optimizer_bytes_per_parameter) /
         (calibration.compute_speed * gpu.hbm_bandwidth);
}

}  // namespace millwright
