// SPDX-License-Identifier: Apache-2.0
//
// Attention of a rank's queries, on one rank or over context ranks: by a ring, in which blocks of
// keys and values go around, by Ulysses, which exchanges tokens for heads before and after, or by
// both: a ring of groups within which heads are exchanged. A payload that is not the operator
// list's is our bug and ends the run.
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

  bool ulysses() const { return groups_.ulysses.ranks > 1; }
  // Of this rank's tokens of a sequence, on the host and on the device.
  const std::vector<std::int32_t>& positions() const { return host_positions_; }
  ConstView device_positions() const { return own_positions_; }

  // From q, k and v to the output and `log_sum`; from output and its gradient to dq, dk and dv.
  Tensor Attend(const Unit& unit, Saved& saved);
  void AttendBackward(const Unit& unit, ConstView output, ConstView doutput, Saved& saved);

  // Ulysses: a rank's tokens and all heads -> the tokens of all of the group and their share of the
  // heads, and back; the tensors together are so many of the operator's payloads.
  std::vector<Tensor> TokensToHeads(const Operator& op, std::span<const ConstView> tensors,
                                    double payloads = 1);
  std::vector<Tensor> HeadsToTokens(const Operator& op, std::span<const ConstView> tensors);
  // Each KV head as often as ranks of the group need it, where there are fewer than ranks; and the
  // sum of the copies' gradients.
  Tensor Spread(ConstView heads);
  Tensor SumSpread(ConstView heads);

 private:
  std::vector<std::int32_t> PositionsOf(int context_rank) const;
  AttentionLayout LayoutOf(const Unit& unit, const Tensor& q, const Tensor& k) const;
  Tensor PassOn(const Operator& ring_exchange, ConstView block);
  // Of the keys that this rank has after so many steps of the ring; its queries' are those at 0.
  ConstView PositionsAfter(int step) const;

  const Workload& workload_;
  const RankGroups& groups_;
  Backend& backend_;
  std::vector<std::int32_t> host_positions_;
  Tensor own_positions_;
  std::vector<Tensor> positions_;  // of each ring rank's tokens, after an exchange of heads
};

}  // namespace millwright
