// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as an executed run: refused with ConfigError, or read, and then it survives writing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "validate/executed_run.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool NamesFile(std::string_view text) {
  constexpr std::string_view kNone = "model_from\": \"\"";  // as it is written
  for (std::size_t at = 0; (at = text.find("model_from", at)) != text.npos; ++at) {
    if (!text.substr(at).starts_with(kNone)) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Which files lie about on this machine is not the input's business.
  if (NamesFile(text)) return 0;
  try {
    const ExecutedRun run = ParseExecutedRun("input", text);
    Require(run.measured.step > Seconds(0) && run.measured.ranks > 0);
    const std::string written = WriteExecutedRun(run);
    Require(WriteExecutedRun(ParseExecutedRun("written", written)) == written);
  } catch (const ConfigError&) {
  }
  return 0;
}
