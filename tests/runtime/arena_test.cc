// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace millwright {
namespace {

// Addresses alone: nothing is behind them.
class Chunks {
 public:
  Arena::Take Take() {
    return [this](std::int64_t bytes) {
      taken.push_back(bytes);
      next_ += std::int64_t{1} << 30;
      return reinterpret_cast<std::byte*>(next_);  // NOLINT(performance-no-int-to-ptr)
    };
  }
  std::vector<std::int64_t> taken;

 private:
  std::int64_t next_ = 0;
};

TEST(Arena, TakesTheSmallestThatFitsAndJoinsNeighbours) {
  Chunks chunks;
  Arena arena(chunks.Take(), 4096);
  std::byte* a = arena.Allocate(1024);
  std::byte* b = arena.Allocate(512);
  std::byte* c = arena.Allocate(1);  // 512 with its alignment
  std::byte* d = arena.Allocate(2048);
  EXPECT_EQ(b - a, 1024);
  EXPECT_EQ(c - b, 512);
  EXPECT_EQ(d - c, 512);
  EXPECT_EQ(chunks.taken, std::vector<std::int64_t>{4096});
  arena.Free(a);
  arena.Free(c);
  EXPECT_EQ(arena.Allocate(512), c);  // not the 1024 of a
  arena.Free(b);                      // a and b are one hole of 1536
  EXPECT_EQ(arena.Allocate(1536), a);
  // Larger than a chunk: a chunk of its own, and one that is as large as it must be.
  arena.Allocate(5000);
  EXPECT_EQ(chunks.taken, (std::vector<std::int64_t>{4096, 5120}));
  EXPECT_EQ(arena.chunk_bytes(), 9216);
}

TEST(Arena, ChunksAreNotJoined) {
  std::byte base[2048];
  std::int64_t taken = 0;
  // The second chunk begins where the first ends.
  Arena arena(
      [&](std::int64_t bytes) {
        taken += bytes;
        return base + taken - bytes;
      },
      1024);
  std::byte* a = arena.Allocate(1024);
  std::byte* b = arena.Allocate(1024);
  EXPECT_EQ(b - a, 1024);
  arena.Free(a);
  arena.Free(b);
  // Two holes of 1024: one of 2048 would fit here.
  arena.Allocate(1024);
  arena.Allocate(1024);
  EXPECT_EQ(taken, 2048);
}

// Nothing is handed out twice, and when all is back one block fills each chunk again.
TEST(Arena, RandomOrder) {
  Chunks chunks;
  Arena arena(chunks.Take(), 1 << 20);
  std::mt19937 random(1);
  std::map<std::byte*, std::int64_t> used;
  for (int i = 0; i < 20'000; ++i) {
    if (used.size() < 50 || random() % 2 == 0) {
      const std::int64_t bytes = 1 + std::int64_t(random() % 60'000);
      std::byte* data = arena.Allocate(bytes);
      const auto [it, fresh] = used.emplace(data, bytes);
      ASSERT_TRUE(fresh);
      if (const auto next = std::next(it); next != used.end()) {
        ASSERT_LE(data + bytes, next->first);
      }
      if (it != used.begin()) {
        const auto before = std::prev(it);
        ASSERT_LE(before->first + before->second, data);
      }
      if (used.size() < 200) continue;
    }
    auto it = used.begin();
    std::advance(it, random() % used.size());
    arena.Free(it->first);
    used.erase(it);
  }
  for (const auto& [data, bytes] : used) arena.Free(data);
  const std::size_t before = chunks.taken.size();
  for (std::size_t i = 0; i < before; ++i) arena.Allocate(chunks.taken[i]);
  EXPECT_EQ(chunks.taken.size(), before);
}

}  // namespace
}  // namespace millwright
