// SPDX-License-Identifier: Apache-2.0
#include "cost_models/memory.h"

#include <algorithm>

#include "cost_models/operators.h"

namespace millwright {

RankParameters ParametersPerRank(const std::vector<Weight>& weights, const ModelConfig& model,
                                 int tensor, int expert, int expert_tensor) {
  RankParameters p;
  for (const Weight& w : weights) {
    const double elements = double(w.elements());
    switch (w.split) {
      case WeightSplit::kReplicated:
        p.dense += elements;
        break;
      case WeightSplit::kTensor:
        p.dense += elements / tensor;
        break;
      case WeightSplit::kQueryGroups:
        p.dense += elements / std::min(tensor, model.num_query_groups);
        break;
      case WeightSplit::kVocabulary:
        p.dense += elements / double(model.vocab_size) *
                   double(PaddedVocabulary(model.vocab_size, tensor)) / tensor;
        break;
      case WeightSplit::kExpert:
        p.expert += elements / expert / expert_tensor;
        break;
      case WeightSplit::kExpertReplicated:
        p.expert += elements / expert;
        break;
    }
  }
  return p;
}

ModelState StateOf(const RankParameters& parameters, const TrainingConfig& training, int zero,
                   double dense_shard, double expert_shard) {
  const auto spread = [&](double bytes, bool sharded) {
    return Bytes(bytes * (parameters.dense / (sharded ? dense_shard : 1) +
                          parameters.expert / (sharded ? expert_shard : 1)));
  };
  // DeepSpeed's BF16 optimizer adds gradients up in fp32 beside BF16 ones.
  const bool twice = training.framework == Framework::kMegatronDeepSpeed &&
                     training.precision == Precision::kBf16 && training.gradient_bytes > 2;
  ModelState state{.weights = spread(2, zero >= 3),
                   .gradients = spread(training.gradient_bytes + (twice ? 2 : 0), zero >= 2),
                   .optimizer = spread(4 + training.moment_bytes, zero >= 1)};
  if (training.state == StateScheme::kFsdp) {
    // The fp32 shard is the weight; below ZeRO-3 a BF16 copy of all of them stays beside it.
    state.weights = spread(4, zero >= 1) + (zero < 3 ? spread(2, false) : Bytes(0));
    state.optimizer = spread(training.moment_bytes, zero >= 1);
  }
  return state;
}

Bytes QuantisedWeights(const RankParameters& linear, const TrainingConfig& training) {
  if (!training.bf16_weights || training.framework != Framework::kMegatron) return Bytes(0);
  const auto two_copies = [&](double width) { return Bytes(2 * width * linear.total()); };
  switch (training.precision) {
    case Precision::kFp16:
    case Precision::kBf16:
      return Bytes(0);
    case Precision::kFp8:
      return two_copies(1);
    case Precision::kMxfp8:
      return two_copies(1 + 1.0 / 32);  // a scale for each 32
    case Precision::kNvfp4:
      return two_copies(0.5 + 1.0 / 16);  // and for each 16
  }
  return Bytes(0);
}

DeviceOverheads DeviceOverheadsOf(const TrainingConfig& training) {
  DeviceOverheads overheads{
      // About 0.5 GiB: CUDA 12 context, cuBLAS and cuDNN handles on an H100.
      .cuda_context = 0.5_GiB,
      // PyTorch's default on Hopper (CUBLAS_WORKSPACE_CONFIG): 32 MiB.
      .workspace = 32_MiB,
      // NCCL_BUFFSIZE 4 MiB (Simple) and the LL128 and LL buffers beside it, about 9.6 MiB a
      // channel and direction over 16 channels: an estimate, good to a factor of two.
      .nccl_per_group = 300_MiB,
      // Rounding and fragmentation of the caching allocator: reserved over allocated memory of 43
      // runs of Megatron-LM on B200 (SimuMax's release), median 4.0%, from 2.8 to 9.3%.
      .allocator_slack = 0.04,
  };
  if (training.framework == Framework::kMegatronDeepSpeed) {
    overheads.cuda_context = 1.5_GiB;  // BLOOM's chronicles: "includes ~1.5 GB CUDA context"
    // Two buckets of 5e8 elements to reduce into and to gather from, DeepSpeed's defaults
    // (reduce_bucket_size, allgather_bucket_size) in FP16, each with one in flight.
    overheads.buckets = Bytes(4 * 5e8 * 2);
    overheads.allocator_slack = 0.07;  // fitted on 39 nvidia-smi figures of BLOOM's trials
  }
  return overheads;
}

std::string_view Name(MemoryItem item) {
  switch (item) {
    case MemoryItem::kWeights:
      return "weights";
    case MemoryItem::kGradients:
      return "gradients";
    case MemoryItem::kOptimizer:
      return "optimizer state";
    case MemoryItem::kActivations:
      return "activations";
    case MemoryItem::kLogits:
      return "logits and loss";
    case MemoryItem::kWorkingSet:
      return "backward working set";
    case MemoryItem::kGatherBuffers:
      return "gathered parameters";
    case MemoryItem::kGradientBuckets:
      return "gradient buckets";
    case MemoryItem::kPipelineBuffers:
      return "pipeline buffers";
    case MemoryItem::kWorkspace:
      return "cuBLAS workspace";
    case MemoryItem::kNccl:
      return "NCCL buffers";
    case MemoryItem::kCudaContext:
      return "CUDA context";
    case MemoryItem::kAllocatorSlack:
      return "allocator slack";
  }
  return {};
}

std::string_view JsonKey(MemoryItem item) {
  switch (item) {
    case MemoryItem::kWeights:
      return "weights";
    case MemoryItem::kGradients:
      return "gradients";
    case MemoryItem::kOptimizer:
      return "optimizer";
    case MemoryItem::kActivations:
      return "activations";
    case MemoryItem::kLogits:
      return "logits";
    case MemoryItem::kWorkingSet:
      return "working_set";
    case MemoryItem::kGatherBuffers:
      return "gather_buffers";
    case MemoryItem::kGradientBuckets:
      return "gradient_buckets";
    case MemoryItem::kPipelineBuffers:
      return "pipeline_buffers";
    case MemoryItem::kWorkspace:
      return "workspace";
    case MemoryItem::kNccl:
      return "nccl";
    case MemoryItem::kCudaContext:
      return "cuda_context";
    case MemoryItem::kAllocatorSlack:
      return "allocator_slack";
  }
  return {};
}

Bytes StageMemory::total() const {
  Bytes sum;
  for (Bytes b : items) sum += b;
  return sum;
}

Bytes StageMemory::allocated() const {
  return total() - (*this)[MemoryItem::kNccl] - (*this)[MemoryItem::kCudaContext] -
         (*this)[MemoryItem::kAllocatorSlack];
}

MemoryItem StageMemory::largest() const {
  return static_cast<MemoryItem>(std::max_element(items.begin(), items.end()) - items.begin());
}

}  // namespace millwright
