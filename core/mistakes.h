// SPDX-License-Identifier: Apache-2.0
//
// Every mistake of one input, gathered before anything is thrown.
//
// Text that came from the input is shortened and escaped before it goes into a message, so
// that a message is a line of at most a few hundred bytes, whatever the input holds.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millwright {

class Mistakes {
 public:
  explicit Mistakes(std::string_view file);

  // "FILE: at POINTER: WHAT"; the document itself has the empty pointer and no "at".
  void Add(std::string_view pointer, std::string_view what);

  std::size_t count() const { return count_; }
  // Past this, mistakes are only counted; a caller can save the work of wording them.
  bool full() const { return lines_.size() >= kMostShown; }
  // Throws ConfigError with all of them, one a line.
  void ThrowIfAny() const;

 private:
  static constexpr std::size_t kMostShown = 100;
  std::string file_;
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

// A name in a message is cut to so many bytes.
inline constexpr std::size_t kMostNameShown = 100;

// `text` with control characters and ill-formed UTF-8 escaped, cut with "..." to at most `most`
// bytes.
std::string Printable(std::string_view text, std::size_t most);
// Whether nothing of `text` would be escaped.
bool IsPrintable(std::string_view text);

// `pointer` with one more step, '~' and '/' escaped as RFC 6901 says and the key made printable.
std::string PointerTo(std::string_view pointer, std::string_view key);

}  // namespace millwright
