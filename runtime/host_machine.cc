// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_machine.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

namespace millwright {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

std::string PlainCell(std::string_view text) {
  std::string plain;
  for (char c : text) {
    const bool keeps = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view(" ()-_.@/").find(c) != std::string_view::npos;
    plain += keeps ? c : ' ';
  }
  return plain;
}

HostMachine ParseCpuInfo(std::string_view text) {
  HostMachine machine;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t colon = line.find(':');
    if (colon == line.npos) continue;
    const std::string_view key = Trimmed(line.substr(0, colon));
    const std::string_view value = Trimmed(line.substr(colon + 1));
    if (key == "processor") ++machine.processors;
    if (key == "model name" && machine.model.empty()) machine.model = PlainCell(value);
    if (key == "cpu MHz" && machine.megahertz == 0) {
      double megahertz = 0;
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), megahertz);
      if (error == std::errc() && std::isfinite(megahertz) && megahertz > 0) {
        machine.megahertz = megahertz;
      }
    }
  }
  return machine;
}

HostMachine ThisMachine() {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  HostMachine machine = ParseCpuInfo(text.str());
  if (machine.processors == 0) machine.processors = int(std::thread::hardware_concurrency());
  return machine;
}

std::string HostMachine::Text() const {
  std::string text = model.empty() ? "a CPU without a name" : model;
  text += fmt::format(", {} processor{}", processors, processors == 1 ? "" : "s");
  if (megahertz > 0) text += fmt::format(" at {:.0f} MHz", megahertz);
  return text;
}

}  // namespace millwright
