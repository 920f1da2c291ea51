// SPDX-License-Identifier: Apache-2.0
#include "runtime/blockwise_attention.h"

#include <limits>

namespace millwright {

BlockwiseAttention::BlockwiseAttention(Backend& backend, const AttentionLayout& layout, ConstView q,
                                       ConstView query_positions)
    : backend_(backend),
      layout_(layout),
      q_(q),
      query_positions_(query_positions),
      accumulated_(Tensor::Zeros(backend, q.rows, q.cols, Element::kSum)),
      sum_(Tensor::Zeros(backend, q.rows, layout.heads, Element::kSum)),
      maximum_(backend, q.rows, layout.heads, Element::kSum) {
  backend_.Run(compute::Fill{.to = maximum_, .value = -std::numeric_limits<double>::infinity()});
}

void BlockwiseAttention::Add(ConstView k, ConstView v, ConstView key_positions) {
  backend_.Run(compute::AttendBlock{.layout = layout_,
                                    .q = q_,
                                    .k = k,
                                    .v = v,
                                    .query_positions = query_positions_,
                                    .key_positions = key_positions,
                                    .output = accumulated_,
                                    .maximum = maximum_,
                                    .sum = sum_});
}

void BlockwiseAttention::Finish(View output, View log_sum) {
  backend_.Run(compute::FinishAttention{.layout = layout_,
                                        .accumulated = accumulated_,
                                        .maximum = maximum_,
                                        .sum = sum_,
                                        .output = output,
                                        .log_sum = log_sum});
}

BlockwiseAttentionGradient::BlockwiseAttentionGradient(Backend& backend,
                                                       const compute::AttentionBackward& op)
    : backend_(backend), op_(op), row_sums_(backend, op.q.rows, op.layout.heads, Element::kSum) {
  backend_.Run(compute::AttentionRowSums{
      .layout = op.layout, .output = op.output, .doutput = op.doutput, .sums = row_sums_});
}

void BlockwiseAttentionGradient::Add(ConstView k, ConstView v, ConstView key_positions, View dk,
                                     View dv) {
  backend_.Run(compute::AttentionGradient{.layout = op_.layout,
                                          .q = op_.q,
                                          .k = k,
                                          .v = v,
                                          .query_positions = op_.positions,
                                          .key_positions = key_positions,
                                          .log_sum = op_.log_sum,
                                          .row_sums = row_sums_,
                                          .doutput = op_.doutput,
                                          .dq = op_.dq,
                                          .dk = dk,
                                          .dv = dv});
}

}  // namespace millwright
