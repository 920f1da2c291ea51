// SPDX-License-Identifier: Apache-2.0
//
// Attention of queries to blocks of keys and values that arrive one after the other, by the
// operations of runtime/operation, and its gradients.
#pragma once

#include "runtime/backend.h"

namespace millwright {

class BlockwiseAttention {
 public:
  // What is viewed must outlive it.
  BlockwiseAttention(Backend& backend, const AttentionLayout& layout, ConstView q,
                     ConstView query_positions);
  void Add(ConstView k, ConstView v, ConstView key_positions);
  // After the last block.
  void Finish(View output, View log_sum);

 private:
  Backend& backend_;
  AttentionLayout layout_;
  ConstView q_, query_positions_;
  Tensor accumulated_, sum_, maximum_;
};

class BlockwiseAttentionGradient {
 public:
  // `op` has all but the keys and what is of them.
  BlockwiseAttentionGradient(Backend& backend, const compute::AttentionBackward& op);
  // Adds a block's part to op.dq, dk and dv.
  void Add(ConstView k, ConstView v, ConstView key_positions, View dk, View dv);

 private:
  Backend& backend_;
  compute::AttentionBackward op_;
  Tensor row_sums_;
};

}  // namespace millwright
