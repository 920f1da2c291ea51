// SPDX-License-Identifier: Apache-2.0
//
// The embedding, a layer or the head, as a rank holds it, and what its forward pass leaves.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cost_models/operators.h"
#include "runtime/backend.h"
#include "runtime/rank_group.h"
#include "runtime/workload.h"
#include "sim/schedule.h"

namespace millwright {

// The operators of cost_models/operators that can be executed.
enum class OperatorCode : std::uint8_t {
  kEmbedding,
  kInputNorm,
  kPreMlpNorm,
  kFinalNorm,
  kGather,
  kRegather,
  kReduce,
  kQkv,
  kRope,
  kUlyssesIn,
  kAttention,
  kRing,
  kRingMerge,
  kUlyssesOut,
  kAttentionOutput,
  kAttentionResidual,
  kFc1,
  kActivation,
  kFc2,
  kMlpResidual,
  kOutputHead,
  kCrossEntropy,
  kCrossEntropyReduce,
};

struct Unit {
  int stage = 0, layer = 0;
  std::vector<Operator> operators;
  std::vector<OperatorCode> codes;
  bool recomputed = false;    // all of it, from its input
  ModuleMask recomputes = 0;  // or these modules
  std::vector<TensorPart> parts;
  Tensor weights, gradients;         // flat, in the order of `parts`
  std::int64_t first = 0, last = 0;  // the elements that this rank updates
  Tensor master;                     // of these, where a kValue is narrower than a kSum
  Tensor shard_gradients, moment1, moment2;
  int users = 0;  // ZeRO-3: passes that need the parameters

  bool has(std::string_view name) const;
  const TensorPart& part(std::string_view name) const;
  // Empty where the model has no such weight.
  ConstView weight(std::string_view name) const;
  View gradient(std::string_view name);
};

// With its part of the weights at the start of the run.
Unit MakeUnit(const Workload& workload, const RankGroups& groups, Backend& backend, int stage,
              int layer, std::span<const Operator> operators);

// What a forward pass leaves for the backward pass of one micro-batch and unit.  `normed` is the
// input of the GEMM after a norm: of attention [0] (or the head) and of the MLP [1].
struct Saved {
  Tensor input, middle;
  std::array<Tensor, 2> normed, rstd;
  Tensor q, k, v, attended, log_sum;
  Tensor attention_rows;  // of `attended` those that attention's output works on, under Ulysses
  Tensor fc1, fc2_input;
  Tensor logits, labels, maximum, sum;
  // Gradients of outputs, until the weights' are computed.
  Tensor dq, dk, dv, dattention, dfc1, dfc2, dlogits;
};

}  // namespace millwright
