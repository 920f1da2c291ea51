// SPDX-License-Identifier: Apache-2.0
#include "runtime/exchange.h"

#include <algorithm>

#include "core/check.h"

namespace millwright {
namespace {

constexpr int kCollectiveTag = 0;

}  // namespace

Exchange::Program& Exchange::ProgramOf(CollectiveKind kind, int ranks, int index) {
  const std::array<int, 3> key{int(kind), ranks, index};
  const auto known = programs_.find(key);
  if (known != programs_.end()) return known->second;
  const auto algorithm = kind == CollectiveKind::kAllToAll ? CollectiveAlgorithm::kPairwise
                                                           : CollectiveAlgorithm::kRing;
  Program program{
      .plan = TransferPlan(
          {.kind = kind, .algorithm = algorithm, .payload = Bytes(1), .domain_sizes = {ranks}}),
      .sends = {},
      .receives = {}};
  for (int round = 0; round < program.plan.rounds(); ++round) {
    program.plan.Sends(index, round, &program.sends.emplace_back());
    std::vector<Transfer>& received = program.receives.emplace_back();
    for (int other = 0; other < ranks; ++other) {
      std::vector<Transfer> sent;
      program.plan.Sends(other, round, &sent);
      std::copy_if(sent.begin(), sent.end(), std::back_inserter(received),
                   [index](const Transfer& transfer) { return transfer.to == index; });
    }
    for (const auto* transfers : {&program.sends.back(), &received}) {
      for (const Transfer& transfer : *transfers) MILLWRIGHT_CHECK(transfer.count == 1);
    }
  }
  return programs_.emplace(key, std::move(program)).first->second;
}

template <class T>
std::int64_t Exchange::InPlace(CollectiveKind kind, const RankGroup& group, std::span<T> data,
                               Reduction reduction) {
  if (group.ranks == 1) return 0;
  const auto elements = std::int64_t(data.size());
  const Program& program = ProgramOf(kind, group.ranks, IndexIn(group, communicator_.rank()));
  const auto block = [&](const Transfer& transfer) {
    const auto [begin, end] = program.plan.RangeOf(transfer.first, elements);
    return data.subspan(std::size_t(begin), std::size_t(end - begin));
  };
  std::int64_t sent = 0;
  std::vector<T> arrived;
  for (std::size_t round = 0; round < program.sends.size(); ++round) {
    for (const Transfer& transfer : program.sends[round]) {
      const std::span<const std::byte> bytes = std::as_bytes(block(transfer));
      communicator_.Send(group.member(transfer.to), kCollectiveTag, bytes);
      sent += std::int64_t(bytes.size());
    }
    for (const Transfer& transfer : program.receives[round]) {
      const std::span<T> to = block(transfer);
      arrived.resize(to.size());
      communicator_.Receive(group.member(transfer.from), kCollectiveTag,
                            std::as_writable_bytes(std::span(arrived)));
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (!transfer.reduce) {
          to[i] = arrived[i];
        } else if (reduction == Reduction::kSum) {
          to[i] += arrived[i];
        } else {
          to[i] = std::max(to[i], arrived[i]);
        }
      }
    }
  }
  return sent;
}

template <class T>
std::int64_t Exchange::AllToAll(const RankGroup& group, std::span<const T> out, std::span<T> in) {
  const auto ranks = std::size_t(group.ranks);
  MILLWRIGHT_CHECK(out.size() == in.size() && out.size() % ranks == 0);
  const std::size_t block = out.size() / ranks;
  const int index = IndexIn(group, communicator_.rank());
  std::copy_n(out.begin() + std::ptrdiff_t(block) * index, block,
              in.begin() + std::ptrdiff_t(block) * index);
  if (group.ranks == 1) return 0;
  const Program& program = ProgramOf(CollectiveKind::kAllToAll, group.ranks, index);
  std::int64_t sent = 0;
  for (std::size_t round = 0; round < program.sends.size(); ++round) {
    for (const Transfer& transfer : program.sends[round]) {
      const auto bytes = std::as_bytes(out.subspan(block * std::size_t(transfer.to), block));
      communicator_.Send(group.member(transfer.to), kCollectiveTag, bytes);
      sent += std::int64_t(bytes.size());
    }
    for (const Transfer& transfer : program.receives[round]) {
      communicator_.Receive(
          group.member(transfer.from), kCollectiveTag,
          std::as_writable_bytes(in.subspan(block * std::size_t(transfer.from), block)));
    }
  }
  return sent;
}

template <class T>
void Exchange::Send(int to, int tag, std::span<const T> data) {
  communicator_.Send(to, tag, std::as_bytes(data));
}

template <class T>
void Exchange::Receive(int from, int tag, std::span<T> data) {
  communicator_.Receive(from, tag, std::as_writable_bytes(data));
}

#define MILLWRIGHT_EXCHANGE(T)                                                                  \
  template std::int64_t Exchange::InPlace(CollectiveKind, const RankGroup&, std::span<T>,       \
                                          Reduction);                                           \
  template std::int64_t Exchange::AllToAll(const RankGroup&, std::span<const T>, std::span<T>); \
  template void Exchange::Send(int, int, std::span<const T>);                                   \
  template void Exchange::Receive(int, int, std::span<T>);
MILLWRIGHT_EXCHANGE(float)
MILLWRIGHT_EXCHANGE(double)
#undef MILLWRIGHT_EXCHANGE

}  // namespace millwright
