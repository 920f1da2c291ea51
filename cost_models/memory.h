// SPDX-License-Identifier: Apache-2.0
//
// Bytes of model state a rank holds, and the fixed costs of running on a GPU.
//
// State: ZeRO (arXiv:1910.02054) over Adam with mixed precision.  Per parameter, Megatron's
// scheme is 2 (BF16 weight) + gradient_bytes + 4 (fp32 master) + moment_bytes: 16 with BF16
// gradients (ZeRO's count), 18 with fp32 main gradients, 6 + 12/d with the distributed optimizer.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "core/parameters.h"
#include "core/training.h"
#include "core/units.h"

namespace millwright {

// Parameters a rank holds before ZeRO shards anything: `dense` are sharded over D c ranks,
// `expert` over the expert-data-parallel ranks.
struct RankParameters {
  double dense = 0;
  double expert = 0;
  RankParameters& operator+=(const RankParameters& o) {
    dense += o.dense;
    expert += o.expert;
    return *this;
  }
  friend RankParameters operator*(double k, const RankParameters& p) {
    return {k * p.dense, k * p.expert};
  }
  double total() const { return dense + expert; }
};

RankParameters ParametersPerRank(const std::vector<Weight>& weights, const ModelConfig& model,
                                 int tensor, int expert, int expert_tensor);

struct ModelState {
  Bytes weights, gradients, optimizer;
  Bytes total() const { return weights + gradients + optimizer; }
};

// `dense_shard` and `expert_shard`: ranks over which ZeRO spreads a copy of each kind.
ModelState StateOf(const RankParameters& parameters, const TrainingConfig& training, int zero,
                   double dense_shard, double expert_shard);

// Quantised copies of the weights of linear layers, which Transformer Engine makes once a step and
// keeps for all micro-batches where weights stay BF16: one for the forward pass and one, transposed
// or scaled along the other side, for the input gradient.  (Per-tensor FP8 on Blackwell would need
// one only.)  Where weights are kept quantised, these two take the place of BF16's two bytes.
Bytes QuantisedWeights(const RankParameters& linear, const TrainingConfig& training);

// What a GPU gives up before and beside tensors; `allocated` figures leave these out, what the
// device must hold includes them.
struct DeviceOverheads {
  Bytes cuda_context;          // driver, kernels, library handles
  Bytes workspace;             // cuBLAS
  Bytes nccl_per_group;        // communicator buffers and channels
  Bytes buckets;               // allocated for communication whatever the model
  double allocator_slack = 0;  // of everything allocated: fragmentation, rounding
};
DeviceOverheads DeviceOverheadsOf(const TrainingConfig& training);

// Items of a stage's peak, in the order reports list them.
enum class MemoryItem {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,      // kept for backward, all micro-batches in flight
  kLogits,           // last stage: logits and cross-entropy
  kWorkingSet,       // recomputed activations and gradients of the layer in backward
  kGatherBuffers,    // ZeRO-3 / FSDP: gathered parameters of the layers in flight
  kGradientBuckets,  // ZeRO-2, 3: unsharded gradients before reduction
  kPipelineBuffers,  // received activations and gradients
  kWorkspace,        // cuBLAS
  kNccl,
  kCudaContext,
  kAllocatorSlack,
};
inline constexpr int kMemoryItems = 13;
std::string_view Name(MemoryItem item);     // "optimizer state"
std::string_view JsonKey(MemoryItem item);  // "optimizer"

struct StageMemory {
  int stage = 0;
  std::array<Bytes, kMemoryItems> items{};
  Bytes& operator[](MemoryItem i) { return items[static_cast<int>(i)]; }
  Bytes operator[](MemoryItem i) const { return items[static_cast<int>(i)]; }
  Bytes total() const;      // what the device must hold
  Bytes allocated() const;  // torch's max_allocated: no context, NCCL or slack
  MemoryItem largest() const;
};

}  // namespace millwright
