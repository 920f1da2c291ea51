// SPDX-License-Identifier: Apache-2.0
//
// Collectives and transfers on a rank's buffers, and a list of what was called and sent.
//
// A collective is carried out by the transfers of sim/collectives, the same that full simulation
// sends over links: rings for all-reduce, reduce-scatter and all-gather, pairs for all-to-all, the
// group's ranks taken as one domain.  So the bytes that a rank sends are those of the plan to the
// element; where the elements do not divide by the ranks, blocks differ by one.  Sums are the same
// on every rank to the bit.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"
#include "runtime/communicator.h"
#include "sim/collectives.h"

namespace millwright {

// `ranks` ranks of all, `stride` apart from `first` on.
struct RankGroup {
  int first = 0;
  int stride = 1;
  int ranks = 1;
  int member(int index) const { return first + index * stride; }
};

// One call as this rank made it.  `elements` count as the payload of cost_models/collectives does:
// of an all-gather and a reduce-scatter the whole buffer, of a send-recv the message.
struct ExecutedCall {
  std::string_view name;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int stride = 1, ranks = 1;
  std::int64_t elements = 0;
  std::int64_t sent_bytes = 0;  // by this rank, as wide as the elements really are
};

class Exchange {
 public:
  explicit Exchange(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator() { return communicator_; }
  int rank() const { return communicator_.rank(); }

  enum class Reduction { kSum, kMaximum };
  // In place.
  template <class T>
  void AllReduce(std::string_view name, const RankGroup& group, std::span<T> data,
                 Reduction reduction = Reduction::kSum);
  // In place: what this rank's part of `data` (Part) then holds is right, and the rest is not.
  template <class T>
  void ReduceScatter(std::string_view name, const RankGroup& group, std::span<T> data);
  // In place: from this rank's part to the whole.
  template <class T>
  void AllGather(std::string_view name, const RankGroup& group, std::span<T> data);
  // Block i of `out` goes to member i, whose block comes to `in`.
  template <class T>
  void AllToAll(std::string_view name, const RankGroup& group, std::span<const T> out,
                std::span<T> in);
  // Messages of one tag between two ranks keep their order; collectives use tag 0.
  template <class T>
  void Send(std::string_view name, int to, int tag, std::span<const T> data);
  template <class T>
  void Receive(int from, int tag, std::span<T> data);

  // Elements [first, second) of a buffer of which each member has a part.
  std::pair<std::int64_t, std::int64_t> Part(const RankGroup& group, std::int64_t elements);

  const std::vector<ExecutedCall>& calls() const { return calls_; }
  void ForgetCalls() { calls_.clear(); }

 private:
  // What a member sends and gets in each round.
  struct Program {
    TransferPlan plan;
    std::vector<std::vector<Transfer>> sends, receives;
  };
  Program& ProgramOf(CollectiveKind kind, int ranks, int index);
  int IndexIn(const RankGroup& group) const;
  template <class T>
  void InPlace(CollectiveKind kind, std::string_view name, const RankGroup& group,
               std::span<T> data, Reduction reduction);

  Communicator& communicator_;
  std::map<std::array<int, 3>, Program> programs_;
  std::vector<ExecutedCall> calls_;
};

}  // namespace millwright
