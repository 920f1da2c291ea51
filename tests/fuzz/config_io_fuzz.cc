// SPDX-License-Identifier: Apache-2.0
//
// Any bytes read as one of our own configs either fill structs that survive being written and
// read, or are refused with ConfigError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_io.h"
#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"

namespace millwright {
namespace {

struct Everything {
  ModelConfig model;
  bool has_model = false;
  TrainingConfig training;
  ParallelConfig parallel;
  double number = 0;
  Bytes size;
  Seconds delay;
  BytesPerSecond bandwidth;
  Flops work;
  FlopsPerSecond rate;
  std::string text;
  std::vector<std::string> texts;
  bool operator==(const Everything&) const = default;
};

void Fields(ConfigIo& io, Everything& e) {
  io.OptionalObject("model", e.has_model, "", [&] { Fields(io, e.model); });
  io.Object(
      "training", "", [&] { Fields(io, e.training); }, Presence::kRequired);
  io.Object("parallel", "", [&] { Fields(io, e.parallel); });
  io.Number("number", e.number, {}, "");
  io.Quantity("size", e.size, {}, "");
  io.Quantity("delay", e.delay, kNotNegative, "");
  io.Quantity("bandwidth", e.bandwidth, {}, "");
  io.Quantity("work", e.work, {}, "");
  io.Quantity("rate", e.rate, {}, "");
  io.Text("text", e.text, "");
  io.Texts("texts", e.texts, "");
}

}  // namespace
}  // namespace millwright

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    Everything read;
    read.training.global_batch_size = read.training.seq_length = 1;
    ReadConfig("fuzz.json", text, [&](ConfigIo& io) { Fields(io, read); });
    Everything copy = read;
    const std::string written = WriteConfig([&](ConfigIo& io) { Fields(io, copy); });
    Everything back;
    ReadConfig("fuzz.json", written, [&](ConfigIo& io) { Fields(io, back); });
    if (back != read) std::abort();
  } catch (const ConfigError& e) {
    if (std::string_view(e.what()).size() > 200'000) std::abort();
  }
  return 0;
}
