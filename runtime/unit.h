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
  kQkNorm,
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
  kRouter,
  kPermute,
  kDispatch,
  kExpertGather,
  kExpertFc1,
  kExpertActivation,
  kExpertFc2,
  kExpertScatter,
  kCombine,
  kUnpermute,
  kOutputHead,
  kCrossEntropy,
  kCrossEntropyReduce,
};

struct Bucket {
  RankGroup group;                   // that has the same, and shares it out under ZeRO
  Tensor weights, gradients;         // flat, in the order of the parts
  std::int64_t first = 0, last = 0;  // the elements that this rank updates
  Tensor master;                     // of these, where a kValue is narrower than a kSum
  Tensor shard_gradients, moment1, moment2;
  std::vector<TensorPart> parts;
  int users = 0;                // ZeRO-3: passes that need the parameters
  Backend::Fork gathering = 0;  // in which parameters come,
  Backend::Fork reducing = 0;   //   and gradients go
};

struct Unit {
  int stage = 0, layer = 0;
  std::vector<Operator> operators;
  std::vector<OperatorCode> codes;
  std::vector<int> numbers;     // in the list, which has some that are not executed (Task::through)
  bool recomputed = false;      // all of it, from its input
  ModuleMask recomputes = 0;    // or these modules
  std::vector<Bucket> buckets;  // dense, experts, the token table: those that it has
  Unit* table = nullptr;        // of a tied head, who has the token table if it has not itself

  bool is_moe() const { return has("router"); }
  bool has(std::string_view name) const { return BucketOf(name) != nullptr; }
  const TensorPart& part(std::string_view name) const;
  // Empty where the model has no such weight.
  ConstView weight(std::string_view name) const;
  View gradient(std::string_view name);

 private:
  const Bucket* BucketOf(std::string_view name) const;
};

// With its part of the weights at the start of the run; without the token table where
// `without_table`.
Unit MakeUnit(const Workload& workload, const RankGroups& groups, Backend& backend, int stage,
              int layer, std::span<const Operator> operators, bool without_table = false);

// Where the rows that a rank's tokens are copied to for their experts go, and those of others that
// come here.  Rows are sent in order of expert, of one expert in order of token.
struct Routes {
  std::vector<std::int64_t> sent, received;  // rows to and from each expert rank
  std::vector<std::int64_t> gathered;        // rows of each expert-tensor rank
  std::vector<std::int64_t> of_expert;       // of `gathered`, of each expert of this rank
  Tensor chosen, weights;  // of each token, its experts and what their outputs count
  Tensor tokens;           // of each row sent, whose it is
  Tensor slots;            // of each token, the rows that are its copies
  Tensor copies;           // of each row sent, which of all tokens' choices it is
  // Between rows as they arrive and in order of expert, empty where that is the same.
  Tensor sorted, unsorted;
};

struct SavedExperts {
  Tensor logits;  // the router's
  Routes routes;
  Tensor shared;  // output of the shared experts
  Tensor input, fc1, fc2_input;
  Tensor row_weights, row_numbers;  // of each of the experts' rows what it counts, and 0, 1, ...
  // Gradients of outputs, until the weights' are computed.
  Tensor dlogits, dweights, drow_weights, dshared, dfc1, dfc2;
};

// What a forward pass leaves for the backward pass of one micro-batch and unit, and of that an
// input gradient for the weights'.  tests/runtime/kept_test.cc holds it to what the memory model
// charges. `normed` is the input of the GEMM after a norm: of attention [0] (or the head) and of
// the MLP [1].
struct Saved {
  Tensor input, middle;
  std::array<Tensor, 2> normed, statistics;
  Tensor q_input, k_input, q_statistics, k_statistics;  // of norms on queries and keys
  Tensor q, k, v, log_sum;
  Tensor attended;  // as the product after attention works on it: under Ulysses exchanged back
  Tensor fc1, fc2_input;
  Tensor logits, labels, maximum, sum;
  SavedExperts experts;  // `fc1` and `fc2_input` are the shared experts' then
  // Gradients of outputs, until the weights' are computed.
  Tensor dq, dk, dv, dattention, dfc1, dfc2, dlogits;
};

}  // namespace millwright
