// SPDX-License-Identifier: Apache-2.0
//
// What a rank computes with: memory, operations and collectives of one device.
//
// An execution knows of tensors only their shape; what is in them is the backend's.  Operations,
// collectives and messages take effect in the order in which they are called, and may do so later:
// Download waits for all before it.  A message does not wait for its receiver.
//
// The two backends are runtime/cpu_backend (host memory, Eigen, messages of a Communicator) and
// runtime/cuda (cuBLASLt, own kernels, NCCL).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config_io.h"
#include "core/units.h"
#include "cost_models/collective_curve.h"
#include "runtime/operation.h"
#include "runtime/rank_group.h"

namespace millwright {

std::span<const EnumName<ElementType>> ElementTypeNames();

// A device failed: the call, and what its library says of it.  Exit code 4.
struct GpuError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One call as this rank made it.  `elements` count as the payload of cost_models/collectives does:
// of an all-gather and a reduce-scatter the whole buffer, of an all-to-all what this rank has for
// others and itself, of a send-recv the message.
struct ExecutedCall {
  std::string_view name;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int stride = 1, ranks = 1;
  std::int64_t elements = 0;
  std::int64_t sent_bytes = 0;  // by this rank, as wide as the elements really are
};

enum class Reduction : std::uint8_t { kSum, kMaximum };

class Tensor;

class Backend {
 public:
  Backend(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  virtual int WidthOf(Element element) const = 0;
  virtual void Run(const Operation& operation) = 0;
  // Attention to keys that are all here; its outputs are set.
  virtual void Attend(const compute::Attention& attention);
  virtual void AttendBackward(const compute::AttentionBackward& attention);
  // Whose kernels they were so far, of a device that has several: "cuDNN 9.19.0"; "" on CPUs.
  virtual std::string AttentionBy() const { return {}; }
  virtual void Upload(std::span<const double> from, View to) = 0;
  virtual void Upload(std::span<const std::int32_t> from, View to) = 0;
  virtual std::vector<double> Download(ConstView from) = 0;  // of any Element

  // In place.  Of a reduce-scatter only this rank's part (PartOf) is right afterwards; of an
  // all-gather only that is read.
  void Collective(std::string_view name, CollectiveKind kind, const RankGroup& group, View data,
                  Reduction reduction = Reduction::kSum);
  // Block i of `out` goes to member i, whose block comes to `in`.
  void AllToAll(std::string_view name, const RankGroup& group, ConstView out, View in);
  // The same where members have blocks of their own sizes, in elements: in place, the parts of
  // `data` one after the other; of an all-to-all the blocks of `out` and of `in`.  A rank sends to
  // each other what it has for it, and no padding.
  void Collective(std::string_view name, CollectiveKind kind, const RankGroup& group, View data,
                  std::span<const std::int64_t> sizes);
  void AllToAll(std::string_view name, const RankGroup& group, ConstView out,
                std::span<const std::int64_t> out_sizes, View in,
                std::span<const std::int64_t> in_sizes);
  // `out` goes to the next member, the last one's to the first, and `in` comes from the one before.
  void Shift(std::string_view name, const RankGroup& group, ConstView out, View in);
  // Messages of one tag between two ranks keep their order.
  void Send(std::string_view name, int to, int tag, Tensor message);
  virtual void Receive(int from, int tag, View message) = 0;
  // Before a step: the tags of the messages that a rank will send to this one, in its order.  They
  // are equally long; more may come after them.
  virtual void Expect(int from, std::vector<int> tags) = 0;

  // What is called between Fork and Rejoin goes beside what is called after it, where the device
  // can: it begins when all that was called before is done, and until Join of what Rejoin gave,
  // or of a later one's, nobody may count on it.  No tensor is made or ends in between.
  using Fork = std::uint64_t;
  virtual void StartFork() {}
  virtual Fork Rejoin() { return 0; }
  virtual void Join(Fork) {}

  // Waits until everything is done.
  virtual void Synchronize() = 0;
  // A moment between what was called before and after, and when it was; once all is done.
  using Mark = std::size_t;
  virtual Mark MarkTime() = 0;
  virtual Seconds Between(Mark start, Mark end) const = 0;
  virtual void ForgetMarks() = 0;

  const std::vector<ExecutedCall>& calls() const { return calls_; }
  void ForgetCalls() { calls_.clear(); }
  // Bytes of all tensors together, now and at most so far.
  std::int64_t used_bytes() const { return used_; }
  std::int64_t peak_bytes() const { return peak_; }

 protected:
  // What the rank sent, in bytes.
  virtual std::int64_t Carry(CollectiveKind kind, const RankGroup& group, View data,
                             Reduction reduction) = 0;
  virtual std::int64_t CarryAllToAll(const RankGroup& group, ConstView out, View in) = 0;
  // Block i of `out` to member i, and of `in` from it, but this rank's own; some may be empty.
  virtual void CarryBlocks(const RankGroup& group, std::span<const ConstView> out,
                           std::span<const View> in) = 0;
  virtual void CarryShift(const RankGroup& group, ConstView out, View in) = 0;
  virtual void CarrySend(int to, int tag, Tensor message) = 0;
  // Never of zero bytes.  What is in it is undefined.
  virtual std::byte* Allocate(std::int64_t bytes) = 0;
  virtual void Free(std::byte* data, std::int64_t bytes) noexcept = 0;

 private:
  friend class Tensor;

  // What the rank sent, in bytes.
  std::int64_t ExchangeBlocks(const RankGroup& group, std::span<const ConstView> out,
                              std::span<const View> in);

  int rank_, ranks_;
  std::vector<ExecutedCall> calls_;
  std::int64_t used_ = 0, peak_ = 0;
};

// A device buffer of rows x cols elements, owned.  Its backend must outlive it.
class Tensor {
 public:
  Tensor() = default;
  // What is in it is undefined.
  Tensor(Backend& backend, std::int64_t rows, std::int64_t cols, Element element = Element::kValue);
  static Tensor Zeros(Backend& backend, std::int64_t rows, std::int64_t cols,
                      Element element = Element::kValue);
  static Tensor CopyOf(Backend& backend, ConstView from);
  ~Tensor() { Release(); }
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;

  std::int64_t rows() const { return view_.rows; }
  std::int64_t cols() const { return view_.cols; }
  std::int64_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  View view() { return view_; }
  ConstView view() const { return view_; }
  // NOLINTNEXTLINE(google-explicit-constructor): an operand of an Operation
  operator View() { return view_; }
  // NOLINTNEXTLINE(google-explicit-constructor): an operand of an Operation
  operator ConstView() const { return view_; }

 private:
  void Release() noexcept;

  Backend* backend_ = nullptr;
  View view_;
};

}  // namespace millwright
