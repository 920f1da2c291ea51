// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

// More than any kernel here reads at once, and what cudaMalloc aligns to at least (CUDA C++
// Programming Guide, "Device Memory Accesses": 256 bytes).
constexpr std::int64_t kAlignment = 512;

std::int64_t RoundUp(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Arena::Arena(Take take, std::int64_t chunk_bytes)
    : take_(std::move(take)), chunk_bytes_(RoundUp(chunk_bytes)) {}

std::byte* Arena::Allocate(std::int64_t bytes) {
  MILLWRIGHT_CHECK(bytes > 0);
  const std::int64_t rounded = RoundUp(bytes);
  auto fit = free_.lower_bound(rounded);
  if (fit == free_.end()) {
    const std::int64_t chunk = std::max(rounded, chunk_bytes_);
    std::byte* data = take_(chunk);
    chunks_ += chunk;
    Remember(blocks_.emplace(data, Block{.bytes = chunk, .free = true, .first = true}).first);
    fit = free_.lower_bound(rounded);
  }
  const auto block = blocks_.find(fit->second);
  free_.erase(fit);
  block->second.free = false;
  if (block->second.bytes > rounded) {
    const auto rest = blocks_.emplace(block->first + rounded,
                                      Block{.bytes = block->second.bytes - rounded, .free = true});
    block->second.bytes = rounded;
    Remember(rest.first);
  }
  return block->first;
}

void Arena::Free(std::byte* data) noexcept {
  auto block = blocks_.find(data);
  if (block == blocks_.end() || block->second.free) return;
  block->second.free = true;
  if (const auto next = std::next(block);
      next != blocks_.end() && next->second.free && !next->second.first) {
    Forget(next);
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (!block->second.first) {
    const auto before = std::prev(block);
    if (before->second.free) {
      Forget(before);
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = before;
    }
  }
  Remember(block);
}

void Arena::Remember(std::map<std::byte*, Block>::iterator block) {
  free_.emplace(block->second.bytes, block->first);
}

void Arena::Forget(std::map<std::byte*, Block>::iterator block) {
  auto [it, end] = free_.equal_range(block->second.bytes);
  while (it != end && it->second != block->first) ++it;
  if (it != end) free_.erase(it);
}

}  // namespace millwright
