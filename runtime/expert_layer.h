// SPDX-License-Identifier: Apache-2.0
//
// The routed experts of a MoE layer on this rank: where each token goes, the way there and back,
// and the experts' MLPs.
//
// A token goes to the experts with the largest logits, and its output is their outputs' sum by the
// softmax (arXiv:2401.04088, section 2.1).  As in Megatron-LM (TEGroupedMLP of
// megatron/core/transformer/moe/experts.py) that is applied where an expert's activation is: what a
// row counts goes the same way as the row ("expert weights", not charged: one number beside h), and
// no output needs to be kept.  No expert has a capacity and no token is dropped, so
// counts differ from rank to rank and step to step: a rank tells the others how many rows it has
// for each expert ("expert token counts", a small all-gather where the simulated step has the host
// wait), and then sends exactly these.  Rows of one expert lie together, and a product is one for
// each expert that has any.
//
// Payloads.  The operator list has those of balanced routing: own tokens x topk rows a rank, and
// etp times that of the expert-tensor ranks together.  What a rank sends in dispatch (and gets back
// in combine) is exactly that; what it receives in dispatch (and sends in combine) is `received`
// rows, and what expert-tensor ranks gather and scatter `gathered`, as RoutedRows counts them.
// So the charged payload x received / sent, or x gathered / (etp x sent), is what is executed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/backend.h"
#include "runtime/linear_products.h"
#include "runtime/unit.h"

namespace millwright {

// Rows of a layer and micro-batch when they were routed, or routed again for a recomputation.
struct RoutedRows {
  int layer = 0;
  int micro_batch = 0;
  bool again = false;
  std::int64_t sent = 0;      // copies of this rank's tokens
  std::int64_t away = 0;      // of these to other expert ranks
  std::int64_t received = 0;  // copies that came here, its own included
  std::int64_t gathered = 0;  // `received` of all expert-tensor ranks
};

class ExpertLayer {
 public:
  // All must outlive it.
  ExpertLayer(const Workload& workload, const RankGroups& groups, Backend& backend)
      : workload_(workload),
        groups_(groups),
        backend_(backend),
        linear_(MultipliesFp8(workload)
                    ? LinearProducts(backend, groups.stage, workload.model.moe.num_experts)
                    : LinearProducts(backend)) {}

  // From the normed tokens to logits, experts and weights, and back: to dlogits, and `dx` += its
  // part of the gradient; the router's own gradients.
  void Route(const Unit& unit, ConstView x, SavedExperts& saved);
  void RouteBackward(const Unit& unit, SavedExperts& saved, View dx);
  void RouterGradient(Unit& unit, ConstView x, const SavedExperts& saved);

  // From the normed tokens to a row for each token and expert of its; what they came to.
  Tensor Permute(ConstView x, SavedExperts& saved);
  Tensor PermuteBackward(ConstView drows, SavedExperts& saved);
  // From what the experts made of the rows to the tokens' sums; to the gradient of each row.
  Tensor Unpermute(ConstView rows, const SavedExperts& saved);
  Tensor UnpermuteBackward(ConstView dy, const SavedExperts& saved);

  // To the expert ranks, and back; to all expert-tensor ranks, and the sum back.
  Tensor Dispatch(std::string_view name, ConstView rows, const SavedExperts& saved);
  Tensor Combine(std::string_view name, ConstView rows, const SavedExperts& saved);
  Tensor Gather(std::string_view name, ConstView rows, const SavedExperts& saved);
  Tensor Scatter(std::string_view name, Tensor rows, const SavedExperts& saved);

  // What an expert's activation comes to by what each row counts; to the gradients of both.
  Tensor Weighted(ConstView activated, const SavedExperts& saved);
  Tensor WeightedBackward(ConstView dy, ConstView activated, SavedExperts& saved);

  // The MLPs; the weights' gradients after those of the inputs.
  void Fc1(const Unit& unit, Tensor rows, SavedExperts& saved);
  Tensor Fc1Backward(const Unit& unit, Tensor dy, SavedExperts& saved);
  void Fc1Weights(Unit& unit, const SavedExperts& saved);
  Tensor Fc2(const Unit& unit, const SavedExperts& saved);
  Tensor Fc2Backward(const Unit& unit, Tensor dy, SavedExperts& saved);
  void Fc2Weights(Unit& unit, const SavedExperts& saved);

  RoutedRows Count(const SavedExperts& saved) const;

 private:
  int local_experts() const { return workload_.model.moe.num_experts / groups_.expert.ranks; }
  int first_expert() const { return groups_.place.expert * local_experts(); }
  std::int64_t hidden() const { return workload_.model.hidden_size; }
  // Of every rank of the experts' group, rows for each expert.
  std::vector<std::int64_t> CountsOfAll(std::span<const std::int64_t> own);
  void PlanArrivals(std::span<const std::int64_t> counts, Routes& routes);
  // What each row counts, to the experts that it goes to; its gradient back to the tokens' choices.
  void SendWeights(SavedExperts& saved);
  void ReturnWeightGradients(SavedExperts& saved);
  Tensor Indices(std::span<const std::int32_t> values, std::int64_t cols = 1);
  Tensor Taken(Tensor rows, ConstView ids);
  Tensor Products(const Unit& unit, std::string_view weight, ConstView x, const Routes& routes);
  Tensor InputGradients(const Unit& unit, std::string_view weight, ConstView dy,
                        const Routes& routes);
  void WeightGradients(Unit& unit, std::string_view weight, std::string_view bias, ConstView dy,
                       ConstView x, const Routes& routes);
  void AddBiases(const Unit& unit, std::string_view bias, View y, const Routes& routes);
  // Of fc2, whose sum over expert-tensor ranks must have them once.
  bool adds_output_bias(const Unit& unit) const {
    return unit.has("expert_fc2_bias") && groups_.place.expert_tensor == 0;
  }
  Tensor OutputBiases(const Unit& unit, const SavedExperts& saved);  // of each row

  const Workload& workload_;
  const RankGroups& groups_;
  Backend& backend_;
  LinearProducts linear_;
};

}  // namespace millwright
