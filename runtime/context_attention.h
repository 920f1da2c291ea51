// SPDX-License-Identifier: Apache-2.0
//
// Attention of a rank's queries, on one rank or over context ranks: by a ring, in which blocks of
// keys and values go around, or by Ulysses, which exchanges tokens for heads before and after.
// A payload that is not the operator list's is our bug and ends the run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/backend.h"
#include "runtime/unit.h"

namespace millwright {

class ContextAttention {
 public:
  // All must outlive it.
  ContextAttention(const Workload& workload, const RankGroups& groups, Backend& backend);

  bool ulysses() const { return groups_.context.ranks > 1 && !ring(); }
  // Of this rank's tokens of a sequence, on the host and on the device.
  const std::vector<std::int32_t>& positions() const { return host_positions_; }
  ConstView device_positions() const { return positions_[std::size_t(groups_.place.context)]; }

  // From q, k and v to the output and `log_sum`; from output and its gradient to dq, dk and dv.
  Tensor Attend(const Unit& unit, Saved& saved);
  void AttendBackward(const Unit& unit, ConstView output, ConstView doutput, Saved& saved);

  // Ulysses: a c-th of the tokens and all heads -> all tokens and a c-th of the heads, and back;
  // the tensors together are so many of the operator's payloads.
  std::vector<Tensor> TokensToHeads(const Operator& op, std::span<const ConstView> tensors,
                                    double payloads = 1);
  std::vector<Tensor> HeadsToTokens(const Operator& op, std::span<const ConstView> tensors);
  // Each KV head as often as context ranks need it, where there are fewer than ranks; and the sum
  // of the copies' gradients.
  Tensor Spread(ConstView heads);
  Tensor SumSpread(ConstView heads);

 private:
  bool ring() const {
    return groups_.context.ranks > 1 &&
           workload_.parallel.context_kind == ContextParallelKind::kRing;
  }
  std::vector<std::int32_t> PositionsOf(int context_rank) const;
  AttentionLayout LayoutOf(const Unit& unit, const Tensor& q, const Tensor& k) const;
  Tensor PassOn(const Operator& ring_exchange, ConstView block);
  // Of the keys that this rank has after so many steps of the ring.
  ConstView PositionsAfter(int step) const;

  const Workload& workload_;
  const RankGroups& groups_;
  Backend& backend_;
  std::vector<std::int32_t> host_positions_;
  std::vector<Tensor> positions_;  // of each context rank's tokens
  Tensor sequence_;                // 0, 1, ...
};

}  // namespace millwright
