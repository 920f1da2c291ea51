// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>

#include <ostream>

namespace millwright {

void Progress::Show(const char* what, std::optional<double> share_done) {
  using namespace std::chrono_literals;
  if (silent_) return;
  const auto now = Clock::now();
  if (now - start_ < 2s) return;
  if (shown_ && now - last_ < (terminal_ ? 250ms : 5000ms)) return;
  last_ = now;
  shown_ = true;
  const std::string text = fmt::format(
      "{}: {}{:.0f} s", what, share_done ? fmt::format("{:.0f}%, ", 100 * *share_done) : "",
      std::chrono::duration<double>(now - start_).count());
  if (terminal_) {
    err_ << "\r\x1b[K" << text;
  } else {
    err_ << "millwright: " << text << '\n';
  }
  err_.flush();
}

void Progress::Erase() {
  if (shown_ && terminal_) {
    err_ << "\r\x1b[K";
    err_.flush();
  }
  shown_ = false;
}

}  // namespace millwright
