// SPDX-License-Identifier: Apache-2.0
//
// What a terminal is and how the program ends; everything else is in commands.cc.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace {

// COLUMNS where it is set, else the terminal's.
int Width(int otherwise) {
  constexpr int kLeast = 60, kMost = 1000;
  int width = otherwise;
  winsize size{};
  if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0) {
    width = size.ws_col;
  }
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    if (const int given = std::atoi(columns); given > 0) width = given;
  }
  return std::clamp(width, kLeast, kMost);
}

millwright::Style StyleOfOutput() {
  millwright::Style style;
  style.width = Width(style.width);
  if (isatty(STDOUT_FILENO) == 0) return style;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  style.color = (no_color == nullptr || *no_color == '\0') &&
                (term == nullptr || std::strcmp(term, "dumb") != 0);
  return style;
}

// Standard output, written where it is flushed, so that what comes on standard error behind it
// comes behind it; a failure keeps its reason.
class Output : public std::stringbuf {
 public:
  int error() const { return error_; }

 protected:
  int sync() override {
    const std::string text = str();
    str("");
    for (std::size_t written = 0; written < text.size() && error_ == 0;) {
      const ssize_t n = write(STDOUT_FILENO, text.data() + written, text.size() - written);
      if (n >= 0) {
        written += std::size_t(n);
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    return error_ == 0 ? 0 : -1;
  }

 private:
  int error_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  Output output;
  std::ostream out(&output);
  millwright::Console console{.out = out,
                              .err = std::cerr,
                              .style = StyleOfOutput(),
                              .err_is_terminal = isatty(STDERR_FILENO) != 0};
  const int code = millwright::Run(args, console);
  out.flush();
  // A reader that has seen enough (| head) is no mistake.
  if (output.error() != 0 && output.error() != EPIPE) {
    std::cerr << "millwright: cannot write the output: " << std::strerror(output.error()) << '\n';
    return 2;
  }
  return code;
}
