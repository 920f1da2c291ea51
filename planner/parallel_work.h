// SPDX-License-Identifier: Apache-2.0
//
// Independent pieces of work, shared out among threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>

namespace millwright {

int Cores();

// When to give up: at a time, or when told to.
struct Limit {
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const std::atomic<bool>* stop = nullptr;
  bool Reached() const {
    return (stop != nullptr && *stop) ||
           (deadline && std::chrono::steady_clock::now() >= *deadline);
  }
};

// work(thread, item) for every item, `thread` from 0 up; each thread takes the next item that none
// has.  The first exception of the lowest thread is rethrown here when all have stopped.
// `progress`, where given, is called from this thread many times a second, with the share of the
// items that are begun.  Where it throws, no item is begun any more, and that is rethrown.
void ForEachInParallel(std::size_t items, int threads,
                       const std::function<void(int thread, std::size_t item)>& work,
                       const std::function<void(double share)>& progress);

}  // namespace millwright
