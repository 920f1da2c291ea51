// SPDX-License-Identifier: Apache-2.0
//
// Runs the program in this process and keeps what it wrote.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace millwright {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome RunCommand(const std::vector<std::string>& args, const Style& style = {}) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err, .style = style, .progress = false};
  const int code = Run(args, console);
  return {code, out.str(), err.str()};
}

// Words apart at blanks.
inline std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}
inline Outcome RunCommand(const std::string& line, const Style& style = {}) {
  return RunCommand(Words(line), style);
}

}  // namespace millwright
