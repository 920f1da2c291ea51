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

enum class MfuConvention { kCausal, kFull };  // causal: attention-core FLOPs halved by the mask
std::span<const EnumName<MfuConvention>> MfuConventionNames();

struct TrainingConfig {
  std::int64_t global_batch_size = 0;  // sequences
  std::int64_t seq_length = 0;         // tokens
  Precision precision = Precision::kBf16;

  // Memory.
  StateScheme state = StateScheme::kMegatron;
  double gradient_bytes = 4;         // of the gradient that is kept: 4 (fp32 main grads) or 2
  double moment_bytes = 8;           // Adam's m and v together: 8 in fp32, 4 in BF16
  bool flash_attention = true;       // no T x T scores are kept
  bool fused_swiglu = false;         // fc2's input (gate x up) is recomputed, not kept
  bool fused_cross_entropy = false;  // no fp32 copy of the logits
  double moe_imbalance = 1.0;        // tokens of the fullest expert rank over the mean

  // Time.
  bool overlap_grad_reduce = true;   // DP reduction under the last backward, by bucket
  bool overlap_param_gather = true;  // ZeRO's parameter all-gather under the forward
  bool overlap_p2p = true;           // interleaved schedule only, as in Megatron
  bool tp_comm_overlap = false;      // collective matmul
  bool expert_overlap = false;       // MoE all-to-all under other micro-batches' compute
  MoeDispatcher moe_dispatcher = MoeDispatcher::kAllToAll;
  MfuConvention mfu_convention = MfuConvention::kCausal;

  bool operator==(const TrainingConfig&) const = default;
};

void Fields(ConfigIo& io, TrainingConfig& training);

}  // namespace millwright
