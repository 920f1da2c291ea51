// SPDX-License-Identifier: Apache-2.0
//
// Collectives and transfers on a rank's buffers in host memory.
//
// A collective is carried out by the transfers of sim/collectives, the same that full simulation
// sends over links: rings for all-reduce, reduce-scatter and all-gather, pairs for all-to-all, the
// group's ranks taken as one domain.  So the bytes that a rank sends, which each of these returns,
// are those of the plan to the element; where the elements do not divide by the ranks, blocks
// differ by one.  Sums are the same on every rank to the bit.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/rank_group.h"
#include "sim/collectives.h"

namespace millwright {

class Exchange {
 public:
  explicit Exchange(Communicator& communicator) : communicator_(communicator) {}

  // All-reduce; reduce-scatter: what this rank's part of `data` (PartOf) then holds is right, and
  // the rest is not; or all-gather: from this rank's part to the whole.
  template <class T>
  std::int64_t InPlace(CollectiveKind kind, const RankGroup& group, std::span<T> data,
                       Reduction reduction = Reduction::kSum);
  // Block i of `out` goes to member i, whose block comes to `in`.
  template <class T>
  std::int64_t AllToAll(const RankGroup& group, std::span<const T> out, std::span<T> in);
  // Messages of one tag between two ranks keep their order; collectives use tag 0.
  template <class T>
  void Send(int to, int tag, std::span<const T> data);
  template <class T>
  void Receive(int from, int tag, std::span<T> data);

 private:
  // What a member sends and gets in each round.
  struct Program {
    TransferPlan plan;
    std::vector<std::vector<Transfer>> sends, receives;
  };
  Program& ProgramOf(CollectiveKind kind, int ranks, int index);

  Communicator& communicator_;
  std::map<std::array<int, 3>, Program> programs_;
};

}  // namespace millwright
