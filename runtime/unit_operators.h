// SPDX-License-Identifier: Apache-2.0
//
// What one operator of a pass does on this rank: forward, again where it is recomputed, and
// backward, as backend operations and the tensor ranks' collectives.  The embedding and the loss
// are here too; attention is in runtime/context_attention, routed experts in runtime/expert_layer.
// A payload that is not the operator list's is our bug and ends the run.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/backend.h"
#include "runtime/context_attention.h"
#include "runtime/expert_layer.h"
#include "runtime/linear_products.h"
#include "runtime/unit.h"

namespace millwright {

// A pass in progress.
struct PassState {
  Pass pass;
  // What goes from operator to operator: activations or their gradient.  Empty where the next
  // operator works on what the last has saved.
  Tensor flow;
  Tensor residual;    // the gradient beside it
  Tensor routed;      // that of the routed experts, while the shared ones' comes together
  Tensor again;       // activations that are computed again
  Tensor regathered;  // input of a GEMM, for its weight gradient
  Tensor exchanged;   // attention's output by heads, under Ulysses
};

// What of a backward pass is done: the gradients of inputs and norms, those of matrices, or both.
enum class BackwardPart : std::uint8_t { kBoth, kInput, kWeight };

class UnitOperators {
 public:
  // All must outlive it.
  UnitOperators(const Workload& workload, const RankGroups& groups, Backend& backend);

  // Before the passes of a step.
  void StartStep(int step);
  // Sum over this rank's tokens, on the first of tensor ranks that have the same.
  double Loss() const;
  std::int64_t tokens() const {  // of a micro-batch on this rank
    return std::int64_t(attention_.positions().size()) * workload_.parallel.micro_batch_size;
  }

  // Of every MoE layer and micro-batch of the step, in order.
  const std::vector<RoutedRows>& routed() const { return routed_; }

  void Forward(const Unit& unit, std::size_t op, PassState& state, Saved& saved) {
    Forward(unit, op, state.pass, saved, state.flow);
  }
  void Recompute(const Unit& unit, std::size_t op, PassState& state, Saved& saved);
  void Backward(Unit& unit, std::size_t op, BackwardPart part, PassState& state, Saved& saved);
  // Gives back what is computed again, after a forward pass, and what weight gradients do not need,
  // after the input gradients.
  void DropComputedAgain(const Unit& unit, Saved& saved) const;
  void DropAllButForWeights(Saved& saved) const;

 private:
  void Forward(const Unit& unit, std::size_t op, const Pass& pass, Saved& saved, Tensor& flow);
  // Of a layer's matrix products, as wide as the operator list has them.
  LinearProducts& ProductsOf(const Operator& op) { return op.low_precision ? linear_ : plain_; }
  Tensor Linear(const Unit& unit, const Operator& op, std::string_view weight,
                std::string_view bias, ConstView x);
  void AddBias(ConstView bias, View x);
  void Norm(const Unit& unit, std::string_view gain, ConstView x, std::size_t which, Saved& saved);
  void Normalize(ConstView weights, ConstView x, View y, Tensor& statistics);
  void HeadNorm(const Unit& unit, std::string_view weights, Tensor& heads, Tensor& input,
                Tensor& statistics);
  Tensor Activated(ConstView x);
  Tensor ActivationBackward(ConstView dy, ConstView x);
  void CheckRouted(const Operator& op, std::int64_t elements) const;
  void LinearBackward(Unit& unit, const Operator& op, std::string_view weight, ConstView x,
                      Tensor& kept, BackwardPart part, Tensor& flow);
  void QkvBackward(Unit& unit, const Operator& op, ConstView x, BackwardPart part, Saved& saved,
                   Tensor& flow);
  void NormBackward(Unit& unit, std::string_view weights, ConstView x, ConstView statistics,
                    ConstView dy, View dx);
  void HeadNormBackward(Unit& unit, std::string_view weights, ConstView input, ConstView statistics,
                        Tensor& gradient);
  void BiasBackward(Unit& unit, std::string_view bias, ConstView dy);
  Tensor GatherRows(const Operator& op, ConstView rows);
  Tensor ScatterRows(const Operator& op, Tensor rows);
  void ReduceRows(const Operator& op, View rows);
  void CrossEntropy(const Operator* reduce, const Pass& pass, Saved& saved);
  // Tokens of a pass's rows, `ahead` of them in their sequences, less `first`; negative where not
  // below `count` then.
  Tensor Ids(const Pass& pass, int ahead, std::int64_t first, std::int64_t count);
  Tensor RowPositions();
  std::string_view HeadTable() const {
    return workload_.model.tied_embeddings ? "token_embedding" : "output_head";
  }
  // Of the logits' columns those that are no padding.
  std::int64_t WordsOf(ConstView logits) const;

  const Workload& workload_;
  const RankGroups& groups_;
  Backend& backend_;
  LinearProducts plain_, linear_;
  ContextAttention attention_;
  ExpertLayer experts_;
  std::vector<RoutedRows> routed_;
  Tensor losses_;             // of each token that has a head here
  std::int64_t counted_ = 0;  // of these are there
  int step_ = 0;
};

}  // namespace millwright
