// SPDX-License-Identifier: Apache-2.0
//
// The question besides model and cluster: how the step is to be trained.
//
// Every memory choice in which frameworks differ is a field here, with Megatron-LM's choice as
// the default.
#pragma once

#include <cstdint>
#include <span>

#include "core/config_io.h"
#include "core/gpu.h"

namespace millwright {

// Where master weights live and how wide the stored weight is.
enum class StateScheme {
  kMegatron,  // a BF16 copy to compute with and an fp32 master: 2 + gradient + 4 + moments
  kFsdp,      // PyTorch FSDP mixed precision: the fp32 shard is the master, 4 + gradient +
              // moments, and a BF16 copy of the gathered layers comes on top
};
std::span<const EnumName<StateScheme>> StateSchemeNames();

enum class MoeDispatcher {
  kAllToAll,  // topk copies of every token
  kDeepEp,    // one copy per destination GPU, and across domains one per destination domain
};
std::span<const EnumName<MoeDispatcher>> MoeDispatcherNames();

// Whose software runs the step.  It decides what the host costs, how much is fused and how
// communication is arranged where the other fields do not say (cost_models/end_to_end.h).
enum class Framework {
  kMegatron,           // Megatron-Core with Transformer Engine, 2023 on: NeMo, Megatron-Bridge
  kMegatron2021,       // Megatron-LM of 2021-22, nothing of the above
  kMegatronDeepSpeed,  // Megatron-DeepSpeed of that time
  kFsdp,               // eager PyTorch FSDP1: Composer, 2023
  kFsdpCompiled,       // FSDP with torch.compile: torchtitan
  kInternEvo,          // eager PyTorch; parameters of each shard broadcast after the step
};
std::span<const EnumName<Framework>> FrameworkNames();
constexpr bool Of2021(Framework f) {
  return f == Framework::kMegatron2021 || f == Framework::kMegatronDeepSpeed;
}

enum class CudaGraph { kNone, kPartial, kFull };  // full: a whole iteration
std::span<const EnumName<CudaGraph>> CudaGraphNames();

// Generations of fused attention kernels.
enum class FlashKernel {
  kTriton,  // the Triton kernel of 2022-23, FlashAttention 1's algorithm
  kFlash2,  // FlashAttention-2: what an A100 runs today, and an H100 ran in 2023
  kNewest,  // what the GPU's own generation has: FlashAttention-3 or cuDNN
};
std::span<const EnumName<FlashKernel>> FlashKernelNames();

enum class MfuConvention { kCausal, kFull };  // causal: attention-core FLOPs halved by the mask
std::span<const EnumName<MfuConvention>> MfuConventionNames();

struct TrainingConfig {
  std::int64_t global_batch_size = 0;  // sequences
  std::int64_t seq_length = 0;         // tokens
  Precision precision = Precision::kBf16;

  // Memory.
  StateScheme state = StateScheme::kMegatron;
  double gradient_bytes = 4;          // of the gradient that is kept: 4 (fp32 main grads) or 2
  double moment_bytes = 8;            // Adam's m and v together: 8 in fp32, 4 in BF16
  bool bf16_weights = false;          // beside the quantised ones, in low precision
  bool flash_attention = true;        // no T x T scores are kept
  bool fused_swiglu = false;          // fc2's input (gate x up) is recomputed, not kept
  bool fp8_activation_store = false;  // the MLP activation's input is kept in FP8
  bool fused_cross_entropy = false;   // no fp32 copy of the logits
  double moe_imbalance = 1.0;         // tokens of the fullest expert rank over the mean

  // Time.
  Framework framework = Framework::kMegatron;
  CudaGraph cuda_graph = CudaGraph::kNone;
  FlashKernel flash_kernel = FlashKernel::kNewest;
  bool launch_blocking = false;      // CUDA_LAUNCH_BLOCKING=1
  bool moe_token_drop = false;       // experts take a fixed number of tokens
  bool overlap_grad_reduce = true;   // DP reduction under the last backward, by bucket
  bool overlap_param_gather = true;  // ZeRO's parameter all-gather under the forward
  bool overlap_p2p = true;           // interleaved schedule only, as in Megatron
  bool tp_comm_overlap = false;      // collective matmul
  bool cp_comm_overlap = true;       // ring attention's exchange under attention
  bool expert_overlap = false;       // MoE all-to-all under other micro-batches' compute
  MoeDispatcher moe_dispatcher = MoeDispatcher::kAllToAll;
  MfuConvention mfu_convention = MfuConvention::kCausal;

  bool operator==(const TrainingConfig&) const = default;
};

void Fields(ConfigIo& io, TrainingConfig& training);

}  // namespace millwright
