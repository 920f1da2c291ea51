// SPDX-License-Identifier: Apache-2.0
#include "core/mistakes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/config_io.h"

namespace millwright {
namespace {

constexpr std::size_t kMostFile = 300;
constexpr std::size_t kMostKey = 60;
constexpr std::size_t kMostPointer = 300;

// Bytes of the well-formed UTF-8 sequence at the front of `s`, or 0.
std::size_t SequenceLength(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  const std::size_t n = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (n == 0 || n > s.size()) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates, and beyond U+10FFFF.
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return n;
}

}  // namespace

Mistakes::Mistakes(std::string_view file) : file_(Printable(file, kMostFile)) {}

void Mistakes::Add(std::string_view pointer, std::string_view what) {
  ++count_;
  if (full()) return;
  if (pointer.empty()) {
    lines_.push_back(fmt::format("{}: {}", file_, what));
  } else {
    // The end of a pointer says more than its beginning.
    const bool cut = pointer.size() > kMostPointer;
    if (cut) pointer.remove_prefix(pointer.size() - kMostPointer);
    if (cut) pointer.remove_prefix(std::min(pointer.find('/'), pointer.size()));
    lines_.push_back(fmt::format("{}: at {}{}: {}", file_, cut ? "..." : "", pointer, what));
  }
}

void Mistakes::ThrowIfAny() const {
  if (count_ == 0) return;
  std::string all = fmt::format("{}", fmt::join(lines_, "\n"));
  if (count_ > lines_.size())
    all += fmt::format("\n{}: and {} more mistakes", file_, count_ - lines_.size());
  throw ConfigError(all);
}

std::string Printable(std::string_view text, std::size_t most) {
  constexpr std::string_view kCut = "...";
  std::string out;
  std::size_t keep = 0;  // where to cut if it turns out too long
  while (!text.empty()) {
    std::size_t n = SequenceLength(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out += fmt::format("\\x{:02x}", lead);
      n = 1;
    } else if (lead < 0x20 || lead == 0x7F) {
      out += fmt::format("\\u{:04x}", lead);
    } else if (lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) {  // U+0080 to U+009F
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[1]));
    } else {
      out += text.substr(0, n);
    }
    if (out.size() > most) return out.substr(0, keep).append(kCut);
    if (out.size() + kCut.size() <= most) keep = out.size();
    text.remove_prefix(n);
  }
  return out;
}

bool IsPrintable(std::string_view text) {
  // An escaped byte takes at least four.
  return Printable(text, 6 * text.size() + 1).size() == text.size();
}

std::string PointerTo(std::string_view pointer, std::string_view key) {
  std::string step;
  for (char c : Printable(key, kMostKey)) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return fmt::format("{}/{}", pointer, step);
}

}  // namespace millwright
