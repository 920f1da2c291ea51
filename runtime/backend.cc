// SPDX-License-Identifier: Apache-2.0
#include "runtime/backend.h"

#include <algorithm>

#include "core/check.h"

namespace millwright {

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
