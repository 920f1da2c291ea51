// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a job file: read or refused with ConfigError; what is read survives writing; and
// where it holds a whole question and a plan that can run on a small cluster, the estimate is
// finite and adds up.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/job.h"

namespace {

using namespace millwright;

void Require(bool condition) {
  if (!condition) std::abort();
}

bool NamesFile(std::string_view text) {
  constexpr std::string_view kNone = "model_from\": \"\"";  // as WriteJob leaves it
  for (std::size_t at = 0; (at = text.find("model_from", at)) != text.npos; ++at) {
    if (!text.substr(at).starts_with(kNone)) return true;
  }
  return false;
}

void Try(const Job& job) {
  const Cluster cluster(job.cluster);
  if (CheckPlan(job.model, job.training, cluster.gpu(), cluster.gpus(), job.parallel)) return;
  const Estimate e = Estimator(job.model, job.training, cluster).Itemise(job.parallel);
  Require(std::isfinite(e.step.value) && e.step > Seconds(0));
  for (Seconds item : e.time.items) Require(std::isfinite(item.value));
  Require(e.memory.size() == std::size_t(job.parallel.pipeline));
  for (const StageMemory& stage : e.memory) {
    for (Bytes item : stage.items) Require(std::isfinite(item.value) && item >= Bytes(0));
    Require(stage.total() <= e.peak);
  }
  Require(e.peak_stage >= 0 && e.peak_stage < job.parallel.pipeline);
  Require(std::isfinite(e.mfu) && std::isfinite(e.hfu) && e.mfu > 0 && e.hfu >= e.mfu);
  Require(std::isfinite(e.tokens_per_second_per_gpu));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Which files lie about on this machine is not the input's business.
  if (NamesFile(text)) return 0;
  try {
    const Job job = ParseJob("input", text);
    const std::string written = WriteJob(job);
    Require(WriteJob(ParseJob("written", written)) == written);
    const bool whole = job.has_model && job.has_training && job.has_cluster && job.has_parallel &&
                       job.training.global_batch_size > 0 && job.training.seq_length > 0;
    constexpr int kMostGpus = 64, kMostFuzzedLayers = 64, kMostNics = 64;
    if (whole && job.cluster.gpus() <= kMostGpus && job.cluster.nics_per_node <= kMostNics &&
        job.model.num_layers <= kMostFuzzedLayers) {
      Try(job);
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
