// SPDX-License-Identifier: Apache-2.0
#include "runtime/context_attention.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "runtime/blockwise_attention.h"

namespace millwright {
namespace {

constexpr double kActivationWidth = 2;  // bytes of an element in cost_models/operators' payloads

const Operator& RingExchangeOf(const Unit& unit) {
  const auto exchange = std::find(unit.codes.begin(), unit.codes.end(), OperatorCode::kRing);
  MILLWRIGHT_CHECK(exchange != unit.codes.end());
  return unit.operators[std::size_t(exchange - unit.codes.begin())];
}

}  // namespace

ContextAttention::ContextAttention(const Workload& workload, const RankGroups& groups,
                                   Backend& backend)
    : workload_(workload), groups_(groups), backend_(backend) {
  const auto on_device = [&](const std::vector<std::int32_t>& positions) {
    Tensor tensor(backend_, 1, std::int64_t(positions.size()), Element::kIndex);
    backend_.Upload(std::span<const std::int32_t>(positions), tensor);
    return tensor;
  };
  host_positions_ = PositionsOf(groups_.place.context);
  own_positions_ = on_device(host_positions_);
  const int ulysses = groups_.ulysses.ranks;
  for (int rank = 0; rank < groups_.ring.ranks; ++rank) {
    std::vector<std::int32_t> together;
    for (int i = 0; i < ulysses; ++i) {
      const std::vector<std::int32_t> of_one = PositionsOf(rank * ulysses + i);
      together.insert(together.end(), of_one.begin(), of_one.end());
    }
    positions_.push_back(on_device(together));
  }
}

// Whole, or a c-th; of a ring one block from the front and one from the back, so that all ranks
// have as much to do under the causal mask.
std::vector<std::int32_t> ContextAttention::PositionsOf(int context_rank) const {
  const std::int64_t sequence = workload_.training.seq_length, c = workload_.parallel.context;
  std::vector<std::int32_t> positions;
  const auto append = [&](std::int64_t block, std::int64_t blocks) {
    for (std::int64_t i = 0; i < sequence / blocks; ++i) {
      positions.push_back(std::int32_t(block * (sequence / blocks) + i));
    }
  };
  if (groups_.ring.ranks > 1) {
    append(context_rank, 2 * c);
    append(2 * c - 1 - context_rank, 2 * c);
  } else {
    append(context_rank, c);
  }
  return positions;
}

AttentionLayout ContextAttention::LayoutOf(const Unit& unit, const Tensor& q,
                                           const Tensor& k) const {
  const std::int64_t e = workload_.model.kv_channels;
  return {.sequences = workload_.parallel.micro_batch_size,
          .head_size = e,
          .heads = int(q.cols() / e),
          .groups = int(k.cols() / e),
          .scale = 1 / std::sqrt(double(e)),
          .window = workload_.model.layer(unit.layer).sliding_window};
}

ConstView ContextAttention::PositionsAfter(int step) const {
  const int r = groups_.ring.ranks;
  const int own = groups_.place.context / groups_.ulysses.ranks;
  return positions_[std::size_t((own + r - step) % r)];
}

// Sends two tensors of one shape, one after the other in `block`, to the next rank of the ring;
// what came from the one before.
Tensor ContextAttention::PassOn(const Operator& ring_exchange, ConstView block) {
  MILLWRIGHT_CHECK(double(block.size()) * kActivationWidth == ring_exchange.payload.value);
  Tensor arrived(backend_, block.rows, block.cols);
  backend_.Shift(ring_exchange.name, groups_.ring, block, arrived);
  return arrived;
}

Tensor ContextAttention::Attend(const Unit& unit, Saved& saved) {
  const AttentionLayout layout = LayoutOf(unit, saved.q, saved.k);
  const std::int64_t rows = saved.q.rows(), key_rows = saved.k.rows();
  const auto make_outputs = [&] {
    saved.log_sum = Tensor(backend_, rows, layout.heads, Element::kSum);
    return Tensor(backend_, rows, saved.q.cols());
  };
  if (groups_.ring.ranks == 1) {
    Tensor output = make_outputs();
    backend_.Attend({.layout = layout,
                     .q = saved.q,
                     .k = saved.k,
                     .v = saved.v,
                     .positions = PositionsAfter(0),
                     .output = output,
                     .log_sum = saved.log_sum});
    return output;
  }
  BlockwiseAttention blocks(backend_, layout, saved.q, PositionsAfter(0));
  blocks.Add(saved.k, saved.v, PositionsAfter(0));
  const Operator& exchange = RingExchangeOf(unit);
  Tensor block(backend_, 2 * key_rows, saved.k.cols());
  backend_.Run(compute::Copy{.from = saved.k, .to = block.view().Rows(0, key_rows)});
  backend_.Run(compute::Copy{.from = saved.v, .to = block.view().Rows(key_rows, key_rows)});
  for (int step = 1; step < groups_.ring.ranks; ++step) {
    block = PassOn(exchange, block);
    blocks.Add(block.view().Rows(0, key_rows), block.view().Rows(key_rows, key_rows),
               PositionsAfter(step));
  }
  Tensor output = make_outputs();
  blocks.Finish(output, saved.log_sum);
  return output;
}

void ContextAttention::AttendBackward(const Unit& unit, ConstView output, ConstView doutput,
                                      Saved& saved) {
  const std::int64_t key_rows = saved.k.rows();
  saved.dq = Tensor(backend_, saved.q.rows(), saved.q.cols());
  saved.dk = Tensor(backend_, key_rows, saved.k.cols());
  saved.dv = Tensor(backend_, key_rows, saved.v.cols());
  const compute::AttentionBackward op{.layout = LayoutOf(unit, saved.q, saved.k),
                                      .q = saved.q,
                                      .k = saved.k,
                                      .v = saved.v,
                                      .positions = PositionsAfter(0),
                                      .output = output,
                                      .log_sum = saved.log_sum,
                                      .doutput = doutput,
                                      .dq = saved.dq,
                                      .dk = saved.dk,
                                      .dv = saved.dv};
  if (groups_.ring.ranks == 1) {
    backend_.AttendBackward(op);
    return;
  }
  for (const View& to : {op.dq, op.dk, op.dv}) backend_.Run(compute::Fill{.to = to, .value = 0});
  BlockwiseAttentionGradient blocks(backend_, op);
  blocks.Add(saved.k, saved.v, PositionsAfter(0), saved.dk, saved.dv);
  const Operator& exchange = RingExchangeOf(unit);
  // The gradient of a block begins on the rank after its owner and goes around with it; the last
  // message brings this rank's own home.
  Tensor block(backend_, 2 * key_rows, saved.k.cols());
  backend_.Run(compute::Copy{.from = saved.k, .to = block.view().Rows(0, key_rows)});
  backend_.Run(compute::Copy{.from = saved.v, .to = block.view().Rows(key_rows, key_rows)});
  Tensor gradient = Tensor::Zeros(backend_, 2 * key_rows, saved.k.cols());
  for (int step = 1; step < groups_.ring.ranks; ++step) {
    block = PassOn(exchange, block);
    blocks.Add(block.view().Rows(0, key_rows), block.view().Rows(key_rows, key_rows),
               PositionsAfter(step), gradient.view().Rows(0, key_rows),
               gradient.view().Rows(key_rows, key_rows));
    gradient = PassOn(exchange, gradient);
  }
  backend_.Run(compute::Add{.from = gradient.view().Rows(0, key_rows), .to = saved.dk});
  backend_.Run(compute::Add{.from = gradient.view().Rows(key_rows, key_rows), .to = saved.dv});
}

Tensor ContextAttention::Spread(ConstView heads) {
  const std::int64_t e = workload_.model.kv_channels, count = heads.cols / e;
  const std::int64_t copies = std::max<std::int64_t>(1, groups_.ulysses.ranks / count);
  Tensor spread(backend_, heads.rows, heads.cols * copies);
  for (std::int64_t head = 0; head < count * copies; ++head) {
    const std::int64_t from = head / copies * e, to = head * e;
    backend_.Run(compute::CopyBlock{.from = heads.Part(from, heads.size() - from),
                                    .to = spread.view().Part(to, spread.size() - to),
                                    .rows = heads.rows,
                                    .cols = e,
                                    .from_stride = heads.cols,
                                    .to_stride = spread.cols()});
  }
  return spread;
}

Tensor ContextAttention::SumSpread(ConstView heads) {
  const std::int64_t e = workload_.model.kv_channels;
  const std::int64_t count =
      std::max<std::int64_t>(1, workload_.model.num_query_groups / groups_.tensor.ranks);
  const std::int64_t copies = heads.cols / e / count;
  Tensor sum = Tensor::Zeros(backend_, heads.rows, count * e);
  for (std::int64_t head = 0; head < count * copies; ++head) {
    const std::int64_t from = head * e, to = head / copies * e;
    backend_.Run(compute::CopyBlock{.from = heads.Part(from, heads.size() - from),
                                    .to = sum.view().Part(to, sum.size() - to),
                                    .rows = heads.rows,
                                    .cols = e,
                                    .from_stride = heads.cols,
                                    .to_stride = sum.cols(),
                                    .add = true});
  }
  return sum;
}

// Between them a block lies as all rows of one tensor's u-th of columns, tensor after tensor.

std::vector<Tensor> ContextAttention::TokensToHeads(const Operator& op,
                                                    std::span<const ConstView> tensors,
                                                    double payloads) {
  const std::int64_t u = groups_.ulysses.ranks, sequences = workload_.parallel.micro_batch_size;
  std::int64_t elements = 0, at = 0;
  for (const ConstView& rows : tensors) elements += rows.size();
  MILLWRIGHT_CHECK(double(elements) * kActivationWidth == payloads * op.payload.value);
  Tensor out(backend_, 1, elements), in(backend_, 1, elements);
  for (std::int64_t to = 0; to < u; ++to) {
    for (const ConstView& rows : tensors) {
      const std::int64_t width = rows.cols / u, first = to * width;
      backend_.Run(compute::CopyBlock{.from = rows.Part(first, rows.size() - first),
                                      .to = out.view().Part(at, rows.rows * width),
                                      .rows = rows.rows,
                                      .cols = width,
                                      .from_stride = rows.cols,
                                      .to_stride = width});
      at += rows.rows * width;
    }
  }
  backend_.AllToAll(op.name, groups_.ulysses, out, in);
  std::vector<Tensor> exchanged;
  for (const ConstView& rows : tensors)
    exchanged.emplace_back(backend_, rows.rows * u, rows.cols / u);
  at = 0;
  for (std::int64_t from = 0; from < u; ++from) {
    for (Tensor& rows : exchanged) {
      const std::int64_t tokens = rows.rows() / (u * sequences);  // of a sequence, of a rank
      for (std::int64_t s = 0; s < sequences; ++s) {
        const View to = rows.view().Rows((s * u + from) * tokens, tokens);
        backend_.Run(compute::Copy{.from = in.view().Part(at, to.size()), .to = to});
        at += to.size();
      }
    }
  }
  return exchanged;
}

std::vector<Tensor> ContextAttention::HeadsToTokens(const Operator& op,
                                                    std::span<const ConstView> tensors) {
  const std::int64_t u = groups_.ulysses.ranks, sequences = workload_.parallel.micro_batch_size;
  std::int64_t elements = 0, at = 0;
  for (const ConstView& rows : tensors) elements += rows.size();
  MILLWRIGHT_CHECK(double(elements) * kActivationWidth == op.payload.value);
  Tensor out(backend_, 1, elements), in(backend_, 1, elements);
  for (std::int64_t to = 0; to < u; ++to) {
    for (const ConstView& rows : tensors) {
      const std::int64_t tokens = rows.rows / (u * sequences);
      for (std::int64_t s = 0; s < sequences; ++s) {
        const ConstView from = rows.Rows((s * u + to) * tokens, tokens);
        backend_.Run(compute::Copy{.from = from, .to = out.view().Part(at, from.size())});
        at += from.size();
      }
    }
  }
  backend_.AllToAll(op.name, groups_.ulysses, out, in);
  std::vector<Tensor> exchanged;
  for (const ConstView& rows : tensors)
    exchanged.emplace_back(backend_, rows.rows / u, rows.cols * u);
  at = 0;
  for (std::int64_t from = 0; from < u; ++from) {
    for (Tensor& rows : exchanged) {
      const std::int64_t width = rows.cols() / u, first = from * width;
      backend_.Run(compute::CopyBlock{.from = in.view().Part(at, rows.rows() * width),
                                      .to = rows.view().Part(first, rows.size() - first),
                                      .rows = rows.rows(),
                                      .cols = width,
                                      .from_stride = width,
                                      .to_stride = rows.cols()});
      at += rows.rows() * width;
    }
  }
  return exchanged;
}

}  // namespace millwright
