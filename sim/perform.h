// SPDX-License-Identifier: Apache-2.0
//
// What does a collective do to data?  Carries a plan's transfers out on buffers in one process.
//
// For tests of the plans, and for whoever executes a plan without a communication library.
// Rounds are taken one after the other, and all that is sent in a round is read before anything
// of it is written: what the rounds of sim/collectives promise.
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "sim/collectives.h"

namespace millwright {

// One buffer for each rank, of equal length; all-to-all: the n x n blocks of all ranks, by sender
// and then receiver.  A rank needs to fill only what it StartsWith.  Returns the elements that
// each endpoint sent.
template <class T>
std::vector<std::int64_t> Perform(const TransferPlan& plan, std::vector<std::vector<T>>& buffers) {
  MILLWRIGHT_CHECK(int(buffers.size()) == plan.ranks());
  const auto elements = std::int64_t(buffers.front().size());
  buffers.resize(std::size_t(plan.endpoints()), std::vector<T>(std::size_t(elements)));
  std::vector<std::int64_t> sent(std::size_t(plan.endpoints()), 0);
  std::vector<Transfer> transfers;
  std::vector<T> wire;
  const auto for_each_element = [&](const Transfer& transfer, auto&& visit) {
    for (int i = 0; i < transfer.count; ++i) {
      const auto [begin, end] = plan.RangeOf(transfer.first + i * transfer.stride, elements);
      for (std::int64_t e = begin; e < end; ++e) visit(std::size_t(e));
    }
  };
  for (int round = 0; round < plan.rounds(); ++round) {
    transfers.clear();
    for (int endpoint = 0; endpoint < plan.endpoints(); ++endpoint) {
      plan.Sends(endpoint, round, &transfers);
    }
    wire.clear();
    for (const Transfer& transfer : transfers) {
      const std::vector<T>& from = buffers[std::size_t(transfer.from)];
      for_each_element(transfer, [&](std::size_t e) {
        wire.push_back(from[e]);
        ++sent[std::size_t(transfer.from)];
      });
    }
    std::size_t next = 0;
    for (const Transfer& transfer : transfers) {
      std::vector<T>& to = buffers[std::size_t(transfer.to)];
      for_each_element(transfer, [&](std::size_t e) {
        to[e] = transfer.reduce ? T(to[e] + wire[next]) : wire[next];
        ++next;
      });
    }
  }
  buffers.resize(std::size_t(plan.ranks()));
  return sent;
}

}  // namespace millwright
