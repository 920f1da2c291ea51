// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a launch script: read or refused with ConfigError; a run that is read has a sound
// model and a plan whose degrees are positive, and is placed on some GPUs or says why not.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "planner/megatron_args.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    const ImportedRun run = ReadMegatronArgs("fuzz/run.sh", text);
    MILLWRIGHT_CHECK(Inconsistencies(run.job.model).empty());
    MILLWRIGHT_CHECK(run.job.training.seq_length > 0);
    MILLWRIGHT_CHECK(run.job.parallel.tensor > 0 && run.job.parallel.virtual_stages > 0);
    std::vector<std::string> problems;
    const Job job = PlacedOn(run, run.gpus.value_or(64), problems);
    MILLWRIGHT_CHECK(!problems.empty() || job.training.global_batch_size > 0);
    for (const std::string& warning : run.warnings) MILLWRIGHT_CHECK(warning.size() < 2000);
  } catch (const ConfigError& error) {
    MILLWRIGHT_CHECK(std::string_view(error.what()).size() < 200'000);
  }
  return 0;
}
