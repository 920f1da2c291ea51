// SPDX-License-Identifier: Apache-2.0
//
// Which part of a device's memory a tensor gets: best fit in large chunks, neighbours joined again
// when they are given back.  Only addresses are handled, nothing is read or written.
//
// What is given back may be handed out again at once, so it must be used in the order of one
// stream.  Chunks are kept to the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

namespace millwright {

class Arena {
 public:
  // `take(bytes)` gets a chunk from the device, or throws.
  using Take = std::function<std::byte*(std::int64_t bytes)>;
  Arena(Take take, std::int64_t chunk_bytes);

  std::byte* Allocate(std::int64_t bytes);
  void Free(std::byte* data) noexcept;

  std::int64_t chunk_bytes() const { return chunks_; }  // taken from the device

 private:
  struct Block {
    std::int64_t bytes = 0;
    bool free = true;
    bool first = false;  // of its chunk
  };

  Take take_;
  std::int64_t chunk_bytes_, chunks_ = 0;
  std::map<std::byte*, Block> blocks_;            // by address
  std::multimap<std::int64_t, std::byte*> free_;  // by size
  void Remember(std::map<std::byte*, Block>::iterator block);
  void Forget(std::map<std::byte*, Block>::iterator block);
};

}  // namespace millwright
