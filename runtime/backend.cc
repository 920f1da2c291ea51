// SPDX-License-Identifier: Apache-2.0
#include "runtime/backend.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "runtime/blockwise_attention.h"

namespace millwright {

namespace {

// One after the other, and together the whole.
template <class Byte>
std::vector<BasicView<Byte>> PartsOfSizes(const BasicView<Byte>& whole,
                                          std::span<const std::int64_t> sizes) {
  std::vector<BasicView<Byte>> parts;
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(whole.Part(at, size));
    at += size;
  }
  MILLWRIGHT_CHECK(at == whole.size());
  return parts;
}

}  // namespace

std::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kFp64:
      return "fp64";
    case ElementType::kFp32:
      return "fp32";
    case ElementType::kBf16:
      return "bf16";
  }
  return "";
}

std::span<const EnumName<ElementType>> ElementTypeNames() {
  static constexpr std::array<EnumName<ElementType>, 3> names{
      {{ElementType::kFp64, "fp64"}, {ElementType::kFp32, "fp32"}, {ElementType::kBf16, "bf16"}}};
  return names;
}

void Backend::Attend(const compute::Attention& attention) {
  BlockwiseAttention blocks(*this, attention.layout, attention.q, attention.positions);
  blocks.Add(attention.k, attention.v, attention.positions);
  blocks.Finish(attention.output, attention.log_sum);
}

void Backend::AttendBackward(const compute::AttentionBackward& attention) {
  BlockwiseAttentionGradient gradient(*this, attention);
  for (const View& to : {attention.dq, attention.dk, attention.dv}) {
    Run(compute::Fill{.to = to, .value = 0});
  }
  gradient.Add(attention.k, attention.v, attention.positions, attention.dk, attention.dv);
}

void Backend::Collective(std::string_view name, CollectiveKind kind, const RankGroup& group,
                         View data, Reduction reduction) {
  if (group.ranks == 1) return;
  const std::int64_t sent = Carry(kind, group, data, reduction);
  calls_.push_back({name, kind, group.stride, group.ranks, data.size(), sent});
}

void Backend::AllToAll(std::string_view name, const RankGroup& group, ConstView out, View in) {
  MILLWRIGHT_CHECK(out.size() == in.size() && out.size() % group.ranks == 0);
  if (group.ranks == 1) {
    Run(compute::Copy{.from = out, .to = in});
    return;
  }
  const std::int64_t sent = CarryAllToAll(group, out, in);
  calls_.push_back({name, CollectiveKind::kAllToAll, group.stride, group.ranks, out.size(), sent});
}

void Backend::Shift(std::string_view name, const RankGroup& group, ConstView out, View in) {
  MILLWRIGHT_CHECK(out.size() == in.size() && group.ranks > 1);
  CarryShift(group, out, in);
  calls_.push_back({name, CollectiveKind::kSendRecv, 1, 1, out.size(), out.bytes()});
}

void Backend::Collective(std::string_view name, CollectiveKind kind, const RankGroup& group,
                         View data, std::span<const std::int64_t> sizes) {
  MILLWRIGHT_CHECK(kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter);
  if (group.ranks == 1) return;
  const std::vector<View> parts = PartsOfSizes(data, sizes);
  const auto own = std::size_t(IndexIn(group, rank_));
  std::vector<ConstView> out;
  std::vector<View> in;
  std::vector<Tensor> arrived;  // of this rank's part, those of the others
  for (std::size_t member = 0; member < parts.size(); ++member) {
    if (kind == CollectiveKind::kAllGather) {
      out.push_back(parts[own]);
      in.push_back(parts[member]);
    } else {
      out.push_back(parts[member]);
      in.push_back(arrived.emplace_back(*this, 1, member == own ? 0 : sizes[own], data.element));
    }
  }
  const std::int64_t sent = ExchangeBlocks(group, out, in);
  for (const Tensor& part : arrived) {
    if (!part.empty()) Run(compute::Add{.from = part, .to = parts[own]});
  }
  calls_.push_back({name, kind, group.stride, group.ranks, data.size(), sent});
}

void Backend::AllToAll(std::string_view name, const RankGroup& group, ConstView out,
                       std::span<const std::int64_t> out_sizes, View in,
                       std::span<const std::int64_t> in_sizes) {
  const std::vector<ConstView> to = PartsOfSizes(out, out_sizes);
  const std::vector<View> from = PartsOfSizes(in, in_sizes);
  const auto own = std::size_t(IndexIn(group, rank_));
  Run(compute::Copy{.from = to[own], .to = from[own]});
  if (group.ranks == 1) return;
  const std::int64_t sent = ExchangeBlocks(group, to, from);
  calls_.push_back({name, CollectiveKind::kAllToAll, group.stride, group.ranks, out.size(), sent});
}

std::int64_t Backend::ExchangeBlocks(const RankGroup& group, std::span<const ConstView> out,
                                     std::span<const View> in) {
  MILLWRIGHT_CHECK(int(out.size()) == group.ranks && int(in.size()) == group.ranks);
  CarryBlocks(group, out, in);
  std::int64_t sent = 0;
  for (int member = 0; member < group.ranks; ++member) {
    if (group.member(member) != rank_) sent += out[std::size_t(member)].bytes();
  }
  return sent;
}

void Backend::Send(std::string_view name, int to, int tag, Tensor message) {
  const ConstView view = message;
  calls_.push_back({name, CollectiveKind::kSendRecv, 1, 1, view.size(), view.bytes()});
  CarrySend(to, tag, std::move(message));
}

Tensor::Tensor(Backend& backend, std::int64_t rows, std::int64_t cols, Element element)
    : view_{.rows = rows, .cols = cols, .element = element, .width = backend.WidthOf(element)} {
  if (view_.empty()) return;
  view_.data = backend.Allocate(view_.bytes());
  backend_ = &backend;
  backend.used_ += view_.bytes();
  backend.peak_ = std::max(backend.peak_, backend.used_);
}

Tensor Tensor::Zeros(Backend& backend, std::int64_t rows, std::int64_t cols, Element element) {
  Tensor tensor(backend, rows, cols, element);
  backend.Run(compute::Fill{.to = tensor, .value = 0});
  return tensor;
}

Tensor Tensor::CopyOf(Backend& backend, ConstView from) {
  Tensor tensor(backend, from.rows, from.cols, from.element);
  backend.Run(compute::Copy{.from = from, .to = tensor});
  return tensor;
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  Release();
  backend_ = std::exchange(other.backend_, nullptr);
  view_ = std::exchange(other.view_, View{});
  return *this;
}

void Tensor::Release() noexcept {
  if (backend_ == nullptr) return;
  backend_->used_ -= view_.bytes();
  backend_->Free(view_.data, view_.bytes());
  backend_ = nullptr;
  view_ = {};
}

}  // namespace millwright
