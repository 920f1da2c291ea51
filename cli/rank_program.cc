// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "core/config_io.h"

namespace millwright {

std::string RankProgram() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string self(path.data(), std::size_t(std::max<ssize_t>(size, 0)));
  return self.substr(0, self.rfind('/') + 1) + "millwright-rank";
}

void BecomeRank(const std::string& program, std::vector<std::string> words) {
  words.insert(words.begin(), program);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  throw ConfigError(fmt::format("cannot start {}", program));
}

}  // namespace millwright
