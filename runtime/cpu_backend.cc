// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/check.h"
#include "runtime/cpu_kernels.h"
#include "runtime/fp8.h"

namespace millwright {
namespace {

constexpr std::align_val_t kAlignment{64};

template <class T>
std::span<T> Values(View view) {
  MILLWRIGHT_CHECK(view.empty() || view.width == sizeof(T));
  return {reinterpret_cast<T*>(view.data), std::size_t(view.size())};
}
template <class T>
std::span<const T> Values(ConstView view) {
  MILLWRIGHT_CHECK(view.empty() || view.width == sizeof(T));
  return {reinterpret_cast<const T*>(view.data), std::size_t(view.size())};
}

}  // namespace

template <class T>
int CpuBackend<T>::WidthOf(Element element) const {
  switch (element) {
    case Element::kValue:
    case Element::kSum:
      return sizeof(T);
    case Element::kIndex:
      return sizeof(std::int32_t);
    case Element::kFp8:
    case Element::kFp8Gradient:
      return 1;
  }
  return 0;
}

template <class T>
void CpuBackend<T>::Run(const Operation& operation) {
  ComputeOnCpu<T>(operation);
}

template <class T>
void CpuBackend<T>::Upload(std::span<const double> from, View to) {
  if (IsFp8(to.element)) {
    const std::span<std::uint8_t> values = Values<std::uint8_t>(to);
    MILLWRIGHT_CHECK(from.size() == values.size());
    std::transform(from.begin(), from.end(), values.begin(),
                   [&](double value) { return ToFp8(FormatOf(to.element), value); });
    return;
  }
  const std::span<T> values = Values<T>(to);
  MILLWRIGHT_CHECK(from.size() == values.size());
  std::copy(from.begin(), from.end(), values.begin());
}

template <class T>
void CpuBackend<T>::Upload(std::span<const std::int32_t> from, View to) {
  const std::span<std::int32_t> values = Values<std::int32_t>(to);
  MILLWRIGHT_CHECK(from.size() == values.size());
  std::copy(from.begin(), from.end(), values.begin());
}

template <class T>
std::vector<double> CpuBackend<T>::Download(ConstView from) {
  if (from.element == Element::kIndex) {
    const std::span<const std::int32_t> indices = Values<std::int32_t>(from);
    return {indices.begin(), indices.end()};
  }
  if (IsFp8(from.element)) {
    std::vector<double> values;
    for (const std::uint8_t value : Values<std::uint8_t>(from)) {
      values.push_back(FromFp8(FormatOf(from.element), value));
    }
    return values;
  }
  const std::span<const T> values = Values<T>(from);
  return {values.begin(), values.end()};
}

template <class T>
void CpuBackend<T>::Receive(int from, int tag, View message) {
  exchange_.Receive(from, tag, Values<T>(message));
}

template <class T>
std::int64_t CpuBackend<T>::Carry(CollectiveKind kind, const RankGroup& group, View data,
                                  Reduction reduction) {
  return exchange_.InPlace(kind, group, Values<T>(data), reduction);
}

template <class T>
std::int64_t CpuBackend<T>::CarryAllToAll(const RankGroup& group, ConstView out, View in) {
  return exchange_.AllToAll(group, Values<T>(out), Values<T>(in));
}

template <class T>
void CpuBackend<T>::CarryShift(const RankGroup& group, ConstView out, View in) {
  const int n = group.ranks, own = IndexIn(group, rank());
  exchange_.Send(group.member((own + 1) % n), 0, Values<T>(out));
  exchange_.Receive(group.member((own + n - 1) % n), 0, Values<T>(in));
}

// Messages of collectives keep their order by their common tag.
template <class T>
void CpuBackend<T>::CarryBlocks(const RankGroup& group, std::span<const ConstView> out,
                                std::span<const View> in) {
  for (int member = 0; member < group.ranks; ++member) {
    const ConstView& block = out[std::size_t(member)];
    if (group.member(member) == rank() || block.empty()) continue;
    exchange_.Send(group.member(member), 0, Values<T>(block));
  }
  for (int member = 0; member < group.ranks; ++member) {
    const View& block = in[std::size_t(member)];
    if (group.member(member) == rank() || block.empty()) continue;
    exchange_.Receive(group.member(member), 0, Values<T>(block));
  }
}

template <class T>
void CpuBackend<T>::CarrySend(int to, int tag, Tensor message) {
  exchange_.Send(to, tag, Values<T>(ConstView(message)));
}

template <class T>
auto CpuBackend<T>::MarkTime() -> Mark {
  marks_.push_back(std::chrono::steady_clock::now());
  return marks_.size() - 1;
}

template <class T>
Seconds CpuBackend<T>::Between(Mark start, Mark end) const {
  return Seconds(std::chrono::duration<double>(marks_[end] - marks_[start]).count());
}

template <class T>
std::byte* CpuBackend<T>::Allocate(std::int64_t bytes) {
  void* data = ::operator new(std::size_t(bytes), kAlignment);
  std::memset(data, 0xff, std::size_t(bytes));
  return static_cast<std::byte*>(data);
}

template <class T>
void CpuBackend<T>::Free(std::byte* data, std::int64_t) noexcept {
  ::operator delete(data, kAlignment);
}

template class CpuBackend<float>;
template class CpuBackend<double>;

}  // namespace millwright
