// SPDX-License-Identifier: Apache-2.0
//
// Which transfers of a collective can start now?  Follows a plan's rounds, endpoint by endpoint:
// one enters its next round when all it sends and all that reaches it in its round is through.
// A sender may be any number of rounds ahead of a receiver.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "sim/collectives.h"

namespace millwright {

class TransferProgress {
 public:
  // `plan` must outlive it.
  explicit TransferProgress(const TransferPlan& plan)
      : plan_(plan),
        state_(std::size_t(plan.endpoints())),
        early_(std::size_t(plan.endpoints()) * std::size_t(window_), 0) {}

  // Appends the first transfers.
  void Begin(std::vector<Transfer>* ready) {
    for (int e = 0; e < plan_.endpoints(); ++e) Advance(e, ready);
  }

  // A transfer is through; appends what can start for it.
  void Done(int from, int to, std::vector<Transfer>* ready) {
    const int round = state_[std::size_t(from)].round;  // it waits there for its sends
    State& receiver = state_[std::size_t(to)];
    if (receiver.round == round) {
      --receiver.receives;
    } else {
      NoteEarly(to, round);
    }
    --state_[std::size_t(from)].sends;
    Advance(from, ready);
    Advance(to, ready);
  }

  bool finished() const { return finished_ == plan_.endpoints(); }
  bool Through(int endpoint) const { return state_[std::size_t(endpoint)].round == plan_.rounds(); }

 private:
  struct State {
    int round = -1;
    int sends = 0, receives = 0;  // still to come in this round
  };

  void Advance(int endpoint, std::vector<Transfer>* ready) {
    State& s = state_[std::size_t(endpoint)];
    while (s.sends == 0 && s.receives == 0 && s.round < plan_.rounds()) {
      if (++s.round == plan_.rounds()) {
        ++finished_;
        return;
      }
      const std::size_t before = ready->size();
      plan_.Sends(endpoint, s.round, ready);
      s.sends = int(ready->size() - before);
      int& early = early_[Slot(endpoint, s.round)];
      s.receives = plan_.Receives(endpoint, s.round) - early;
      early = 0;
    }
  }

  std::size_t Slot(int endpoint, int round) const {
    return std::size_t(endpoint) * std::size_t(window_) + std::size_t(round & (window_ - 1));
  }

  void NoteEarly(int endpoint, int round) {
    const int ahead = round - state_[std::size_t(endpoint)].round;
    MILLWRIGHT_CHECK(ahead > 0);
    while (ahead >= window_) Widen();
    ++early_[Slot(endpoint, round)];
  }

  void Widen() {
    const int old = window_;
    std::vector<int> counts(2 * early_.size(), 0);
    counts.swap(early_);
    window_ = 2 * old;
    for (int e = 0; e < plan_.endpoints(); ++e) {
      const int round = std::max(0, state_[std::size_t(e)].round);
      for (int r = round; r < round + old; ++r) {
        early_[Slot(e, r)] = counts[std::size_t(e) * std::size_t(old) + std::size_t(r & (old - 1))];
      }
    }
  }

  const TransferPlan& plan_;
  std::vector<State> state_;
  int window_ = 4;  // rounds that are counted ahead: a power of two
  std::vector<int> early_;
  int finished_ = 0;
};

}  // namespace millwright
