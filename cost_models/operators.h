// SPDX-License-Identifier: Apache-2.0
//
// What one rank does for one layer and one micro-batch: the operators in program order, each with
// the tensors it keeps for backward.
//
// One list is the source of time (cost_models/layer_cost), activation memory and model FLOPs, so
// that the three cannot disagree.  Shapes follow Megatron-LM's layers: column- then row-parallel
// linear layers, sequence parallelism around norms, grouped experts behind an all-to-all.
// Per token, 2-byte activations; b micro-batch, T sequence, c context and t tensor degree:
// N = b T / c tokens a rank works on, Ns = N / t of them outside tensor-parallel blocks where
// sequence parallelism is on (else Ns = N).
//
// Limits: MoE tokens are balanced up to TrainingConfig::moe_imbalance; dropless; the router's
// auxiliary loss and the permutation's index tensors are left out (under 0.1% of a layer's bytes).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"
#include "core/units.h"
#include "cost_models/collectives.h"

namespace millwright {

// How a layer is cut, and what is put through it.
struct LayerShape {
  int tensor = 1;
  bool sequence_parallel = false;
  int context = 1;
  ContextParallelKind context_kind = ContextParallelKind::kRing;
  int expert = 1;
  int expert_tensor = 1;
  int micro_batch_size = 1;
  std::int64_t seq_length = 0;
  int context_ulysses = 0;  // nested: ranks of an all-to-all
  int ulysses_ranks() const { return UlyssesRanks(context_kind, context, context_ulysses); }
  int ring_ranks() const { return context / ulysses_ranks(); }
  bool operator==(const LayerShape&) const = default;
};
LayerShape ShapeOf(const ParallelConfig& parallel, const TrainingConfig& training);

// Megatron-LM's recompute modules name parts of a layer; an operator belongs to at most two
// (an expert activation to moe_act and moe), hence a mask.
using ModuleMask = std::uint8_t;
constexpr ModuleMask Mask(RecomputeModule m) { return ModuleMask(1u << static_cast<int>(m)); }
ModuleMask MaskOf(const std::vector<RecomputeModule>& modules);

// A tensor kept from forward to backward.
struct SavedTensor {
  std::string_view name;
  Bytes bytes;
  ModuleMask modules = 0;    // recomputing any of these drops it
  bool statistic = false;    // an fp32 row statistic (rstd, log-sum-exp): the published activation
                             // formulas leave these out, memory does not
  bool layer_input = false;  // what full recomputation keeps
};

enum class OperatorKind { kGemm, kGroupedGemm, kAttention, kMemoryBound, kCollective, kHost };
// Of context ranks: neighbours that exchange heads for tokens (Ulysses), and those, one of each
// such group, among which keys and values go around.
enum class GroupKind { kTensor, kRing, kExpert, kExpertTensor, kUlysses };

struct Operator {
  std::string_view name;
  OperatorKind kind = OperatorKind::kMemoryBound;
  ModuleMask modules = 0;  // recomputing any of these runs its forward again
  std::vector<SavedTensor> saved;

  // GEMMs: forward m x n x k, `groups` of them; low_precision ones run in the training precision.
  double m = 0, n = 0, k = 0, groups = 1;
  bool low_precision = true;
  // What its weight gradient needs where that comes later: of its input what no operator before it
  // holds too, as it is kept, and the gradient of its output.
  Bytes held_for_weight;

  // Attention core.  Score elements a rank computes, causal mask and window honoured, summed over
  // heads; head sizes of the two products; the whole rectangle for the "full" FLOP convention.
  double scores = 0, scores_full = 0;
  double qk_head = 0, v_head = 0;
  double attention_tokens = 0;  // tokens of one sequence on this rank (efficiency rolls off)
  bool fused = true;
  int kernels = 1;  // a ring runs one a step

  double scores_square = 0;  // of the whole square, which unfused attention works on and keeps

  // Memory-bound: HBM bytes of the forward pass.
  Bytes bytes;
  bool backward_as_forward = false;  // backward moves the same bytes, not the usual 1.6 x

  // Collectives: payload (nccl-tests' size) and kind, forward and backward.
  GroupKind group = GroupKind::kTensor;
  bool forward = true;  // runs in forward
  bool backward = true;
  CollectiveKind forward_collective = CollectiveKind::kAllReduce;
  CollectiveKind backward_collective = CollectiveKind::kAllReduce;
  Bytes payload;
  int repeats = 1;              // ring exchanges: one fewer than ranks
  double backward_repeats = 1;  // of each forward transfer; of an exchange, tensors as large
  bool beside_gemm = true;      // can be split and overlapped with a GEMM (tp_comm_overlap)
  int hidden_under = -1;  // index of the GEMM whose dgrad or the attention whose passes hide it

  // Host: the GPU waits.  Gaps between kernels, or for the token counts of this many experts.
  double waits_for_experts = 0;

  Flops forward_flops(MfuConvention convention) const;  // of the model: causal or full attention
};

// One transformer layer of `kind`.
std::vector<Operator> LayerOperators(const ModelConfig& model, LayerKind kind,
                                     const LayerShape& shape, const TrainingConfig& training);
// Token embedding, vocabulary-parallel, with its reduction.
std::vector<Operator> EmbeddingOperators(const ModelConfig& model, const LayerShape& shape,
                                         const TrainingConfig& training);
// Final norm, output head, vocabulary-parallel cross-entropy.
std::vector<Operator> HeadOperators(const ModelConfig& model, const LayerShape& shape,
                                    const TrainingConfig& training);
// What one multi-token-prediction module adds to a layer and a head: two norms and a 2h x h
// product.
std::vector<Operator> MtpOperators(const ModelConfig& model, const LayerShape& shape,
                                   const TrainingConfig& training);

// Vocabulary padded to a multiple of 128 t, as Megatron does.
std::int64_t PaddedVocabulary(std::int64_t vocab_size, int tensor);

// Bytes kept for backward, with the given modules recomputed.
Bytes SavedBytes(const std::vector<Operator>& operators, ModuleMask recomputed = 0,
                 bool with_statistics = true);
Bytes LayerInputBytes(const std::vector<Operator>& operators);
// Bytes kept between the two passes of a split backward, whatever is recomputed: what the products'
// weight gradients need.
Bytes HeldForWeights(const std::vector<Operator>& operators);

struct StepFlops {
  Flops model;     // forward and backward of every layer, head
  Flops hardware;  // and what recomputation adds
};
// Of one whole step (global batch).  Full recompute repeats the forward of `full_share` of the
// layers, not the head's.
StepFlops FlopsOfStep(const ModelConfig& model, const TrainingConfig& training,
                      const Recompute& recompute, double full_share = 1);

}  // namespace millwright
