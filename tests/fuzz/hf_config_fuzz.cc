// SPDX-License-Identifier: Apache-2.0
//
// A Hugging Face config.json of any bytes either reads into a model that is sound, countable and
// survives being written and read, or is refused with ConfigError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/hf_config.h"
#include "core/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    std::vector<std::string> ignored;
    ModelConfig model = ReadHfConfig("fuzz/config.json", text, &ignored);
    if (!Inconsistencies(model).empty()) std::abort();
    const ParameterCount count = CountParameters(model);
    if (count.total <= 0 || count.active <= 0 || count.active > count.total) std::abort();
    const std::string written = WriteConfig([&](ConfigIo& io) { Fields(io, model); });
    ModelConfig back;
    ReadConfig("fuzz", written, [&](ConfigIo& io) { Fields(io, back); });
    if (back != model) std::abort();
  } catch (const ConfigError& e) {
    // A message is lines of printable text of a bearable length.
    if (std::string_view(e.what()).size() > 200'000) std::abort();
  }
  return 0;
}
