// SPDX-License-Identifier: Apache-2.0
//
// How far a long search is.  Silent for two seconds; then one line that rewrites itself on a
// terminal, else a line every few seconds.  Erased at the end.
#pragma once

#include <chrono>
#include <iosfwd>
#include <optional>

#include "cli/commands.h"

namespace millwright {

class Progress {
 public:
  explicit Progress(const Console& console)
      : err_(console.err), terminal_(console.err_is_terminal), silent_(!console.progress) {}
  ~Progress() { Erase(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(const char* what, std::optional<double> share_done = {});
  void Erase();

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream& err_;
  const bool terminal_, silent_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
  bool shown_ = false;
};

}  // namespace millwright
