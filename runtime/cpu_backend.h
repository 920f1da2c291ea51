// SPDX-License-Identifier: Apache-2.0
//
// The backend in host memory: cpu_kernels on T, collectives by runtime/exchange over a
// Communicator.  T is double or float, for every element but indices and FP8.
//
// Everything is done when the call returns.  Fresh memory holds no numbers (every bit is set, which
// is a NaN), so that what reads before it writes is found by what comes out.
#pragma once

#include <chrono>

#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/exchange.h"

namespace millwright {

template <class T>
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(Communicator& communicator)
      : Backend(communicator.rank(), communicator.size()), exchange_(communicator) {}

  int WidthOf(Element element) const override;
  void Run(const Operation& operation) override;
  void Upload(std::span<const double> from, View to) override;
  void Upload(std::span<const std::int32_t> from, View to) override;
  std::vector<double> Download(ConstView from) override;
  void Receive(int from, int tag, View message) override;
  void Expect(int, std::vector<int>) override {}  // messages are found by their tags
  void Synchronize() override {}
  Mark MarkTime() override;
  Seconds Between(Mark start, Mark end) const override;
  void ForgetMarks() override { marks_.clear(); }

 protected:
  std::int64_t Carry(CollectiveKind kind, const RankGroup& group, View data,
                     Reduction reduction) override;
  std::int64_t CarryAllToAll(const RankGroup& group, ConstView out, View in) override;
  void CarryBlocks(const RankGroup& group, std::span<const ConstView> out,
                   std::span<const View> in) override;
  void CarryShift(const RankGroup& group, ConstView out, View in) override;
  void CarrySend(int to, int tag, Tensor message) override;
  std::byte* Allocate(std::int64_t bytes) override;
  void Free(std::byte* data, std::int64_t bytes) noexcept override;

 private:
  Exchange exchange_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace millwright
