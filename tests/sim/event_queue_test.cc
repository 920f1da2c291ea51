// SPDX-License-Identifier: Apache-2.0
#include "sim/event_queue.h"

#include <gtest/gtest.h>

#include <utility>

namespace millwright {
namespace {

using namespace literals;

constexpr Seconds kEver{std::numeric_limits<double>::infinity()};

TEST(EventQueue, ByTimeAndThenInOrderOfInsertion) {
  EventQueue<int> queue;
  queue.Push(3_s, 0);
  queue.Push(1_s, 1);
  queue.Push(3_s, 2);
  queue.Push(1_s, 3);
  EXPECT_EQ(queue.next_time(), 1_s);
  queue.Push(Seconds(0.5), 4);  // looking has not moved time on
  EXPECT_EQ(queue.next_time(), Seconds(0.5));
  std::vector<int> order;
  order.push_back(queue.Pop());
  queue.Push(1_s, 5);
  order.push_back(queue.Pop());
  queue.Push(1_s, 6);
  while (!queue.empty()) order.push_back(queue.Pop());
  EXPECT_EQ(order, (std::vector<int>{4, 1, 3, 5, 6, 0, 2}));
  EXPECT_EQ(queue.next_time(), kEver);
  EXPECT_THROW(queue.Push(2_s, 7), InternalError);
}

// Against a stable sort, with pushes between pops and many ties.
TEST(EventQueue, AgreesWithAStableSort) {
  std::uint64_t state = 1;
  const auto random = [&](std::uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int trial = 0; trial < 200; ++trial) {
    EventQueue<int> queue;
    std::vector<std::pair<double, int>> pending;
    double now = 0;
    for (int i = 0; i < 300; ++i) {
      if (pending.empty() || random(2) == 0) {
        const double time = now + double(random(8)) * (random(4) == 0 ? 1e6 : 1e-7);
        queue.Push(Seconds(time), i);
        pending.emplace_back(time, i);
        if (random(3) == 0) queue.next_time();
        continue;
      }
      const auto first = std::min_element(pending.begin(), pending.end());
      ASSERT_EQ(queue.next_time(), Seconds(first->first));
      ASSERT_EQ(queue.Pop(), first->second);
      now = first->first;
      pending.erase(first);
    }
  }
}

}  // namespace
}  // namespace millwright
