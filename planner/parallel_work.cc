// SPDX-License-Identifier: Apache-2.0
#include "planner/parallel_work.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

namespace millwright {

int Cores() { return std::max(1, int(std::thread::hardware_concurrency())); }

void ForEachInParallel(std::size_t items, int threads,
                       const std::function<void(int, std::size_t)>& work,
                       const std::function<void(double)>& progress) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  const auto run = [&](int thread) {
    try {
      for (std::size_t i = next++; i < items; i = next++) work(thread, i);
    } catch (...) {
      failures[std::size_t(thread)] = std::current_exception();
      next = items;  // the others stop at their next item
    }
  };
  if (threads == 1 && !progress) {
    run(0);
  } else {
    std::atomic<int> running = threads;
    std::vector<std::jthread> pool;
    for (int thread = 0; thread < threads; ++thread) {
      pool.emplace_back([&, thread] {
        run(thread);
        --running;
      });
    }
    while (progress && running > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      try {
        progress(std::min(1.0, double(next) / double(std::max<std::size_t>(1, items))));
      } catch (...) {
        next = items;
        throw;  // when the threads have ended
      }
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace millwright
