// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a file of measured runs: refused with ConfigError, or every run is predicted with
// finite numbers or left out with a reason, and both reports can be written.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/config_io.h"
#include "report/runs_report.h"
#include "validate/runs.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    PublishedRuns published = ParsePublishedRuns("input", text);
    // Large clusters only cost time.
    constexpr std::int64_t kGpus = 256, kLayers = 64;
    std::erase_if(published.runs, [&](const PublishedRun& run) {
      return run.num_gpus.value_or(0) > kGpus || run.model.layers.value_or(0) > kLayers;
    });
    const RunsReport report = CompareWithRuns(RunSet(published.runs));
    Require(report.results.size() + report.unsupported.size() == published.runs.size());
    for (const RunResult& r : report.results) {
      Require(std::isfinite(r.predicted.value) && r.predicted > Seconds(0));
      Require(std::isfinite(r.predicted_memory.value) && r.predicted_memory > Bytes(0));
    }
    for (const UnsupportedRun& u : report.unsupported) Require(!u.reason.empty());
    Require(!RunsText(report, {}).empty() && !RunsJson(report).empty());
  } catch (const ConfigError&) {
  }
  return 0;
}
