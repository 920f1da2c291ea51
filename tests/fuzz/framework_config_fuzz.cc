// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a torchtitan TOML and as a DeepSpeed JSON: read or refused with ConfigError; what is
// read is placed on some GPUs or says why not.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "planner/framework_config.h"

namespace {

template <class Read>
void Try(const Read& read, const std::string& text) {
  using namespace millwright;
  try {
    const ImportedRun run = read("fuzz/run", text);
    const ParallelConfig& p = run.job.parallel;
    MILLWRIGHT_CHECK(p.tensor > 0 && p.pipeline > 0 && p.virtual_stages > 0);
    MILLWRIGHT_CHECK(p.micro_batch_size > 0 && run.optimizer_instances > 0);
    std::vector<std::string> problems;
    const Job job = PlacedOn(run, run.gpus.value_or(64), problems);
    MILLWRIGHT_CHECK(!problems.empty() || job.training.global_batch_size > 0);
  } catch (const ConfigError& error) {
    MILLWRIGHT_CHECK(std::string_view(error.what()).size() < 200'000);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  Try(millwright::ReadTorchtitan, text);
  Try(millwright::ReadDeepSpeed, text);
  return 0;
}
