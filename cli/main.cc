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

millwright::Style StyleOfOutput() {
  millwright::Style style;
  if (isatty(STDOUT_FILENO) == 0) return style;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  style.color = (no_color == nullptr || *no_color == '\0') &&
                (term == nullptr || std::strcmp(term, "dumb") != 0);
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    style.width = std::max(style.width, int(size.ws_col));
  }
  return style;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  std::ostringstream out;  // written below, where a failure still has its reason
  millwright::Console console{.out = out,
                              .err = std::cerr,
                              .style = StyleOfOutput(),
                              .err_is_terminal = isatty(STDERR_FILENO) != 0};
  const int code = millwright::Run(args, console);
  const std::string text = out.str();
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t n = write(STDOUT_FILENO, text.data() + written, text.size() - written);
    if (n >= 0) {
      written += std::size_t(n);
    } else if (errno == EPIPE) {
      break;  // a reader that has seen enough (| head) is no mistake
    } else if (errno != EINTR) {
      std::cerr << "millwright: cannot write the output: " << std::strerror(errno) << '\n';
      return 2;
    }
  }
  return code;
}
