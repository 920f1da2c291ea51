// SPDX-License-Identifier: Apache-2.0
//
// A text file read character by character, by readers that say in which line a mistake is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace millwright {

class TextReader {
 protected:
  TextReader(std::string file, std::string_view text) : file_(std::move(file)), text_(text) {}

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char Next() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  // ConfigError: "FILE: line N: what".
  [[noreturn]] void Fail(std::string_view what) const;

  std::string file_;
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace millwright
