// SPDX-License-Identifier: Apache-2.0
#include "planner/job.h"

#include <sstream>

#include "core/file_kind.h"
#include "core/model_presets.h"
#include "planner/plan_filter.h"

namespace millwright {
namespace {

void SearchFields(ConfigIo& io, SearchLimits& search) {
  io.Number("memory_margin", search.memory_margin, {.min = 0, .max = kMostMemoryMargin},
            "share of the GPU's memory that a plan must leave free");
  io.Bool("offload", search.offload,
          "whether plans may move activations to the host's memory and back");
  io.Bool("recompute_by_rank", search.recompute_by_rank,
          "whether plans may recompute otherwise on each pipeline rank");
  io.Texts("require", search.require,
           "only such plans: each KNOB=VALUE|VALUE,... (see: describe filters)");
  io.Texts("forbid", search.forbid, "no such plans, written alike");
  const auto check = [&](const char* key, const std::vector<std::string>& filters) {
    for (const std::string& text : filters) {
      try {
        PlanFilter().Require(text, "");
      } catch (const ConfigError& error) {
        std::istringstream lines(error.what());
        for (std::string one; std::getline(lines, one);) io.Mistake(key, one);
      }
    }
  };
  check("require", search.require);
  check("forbid", search.forbid);
}

}  // namespace

void Fields(ConfigIo& io, Job& job) {
  std::string model_from;
  io.Text("model_from", model_from,
          "a model preset or a path to a Hugging Face config.json, in place of \"model\"");
  if (io.reading() && !model_from.empty()) {
    try {
      job.model = LoadModel(model_from);
      job.has_model = true;
    } catch (const ConfigError& error) {
      io.Mistake("model_from", error.what());
    }
  }
  bool inlined = job.has_model && !io.reading();
  io.OptionalObject("model", inlined, "what is trained", [&] { Fields(io, job.model); });
  if (inlined && !model_from.empty()) {
    io.Problem("model_from", "expected \"model\" or \"model_from\", got both");
  }
  job.has_model = job.has_model || inlined;
  io.OptionalObject("training", job.has_training, "how a step is to be trained",
                    [&] { Fields(io, job.training); });
  io.OptionalObject("cluster", job.has_cluster, "on which machine",
                    [&] { Fields(io, job.cluster); });
  io.OptionalObject("parallel", job.has_parallel, "the plan", [&] { Fields(io, job.parallel); });
  io.OptionalObject("search", job.has_search, "which plans a search may give",
                    [&] { SearchFields(io, job.search); });
}

Job ParseJob(const std::string& file, std::string_view text) {
  RefuseOtherKinds(file, text, FileKind::kJob);
  Job job;
  ReadConfig(file, text, [&](ConfigIo& io) { Fields(io, job); });
  return job;
}

Job ReadJob(const std::string& file) { return ParseJob(file, ReadTextFile(file)); }

std::string WriteJob(const Job& job) {
  Job copy = job;
  return WriteConfig([&](ConfigIo& io) { Fields(io, copy); });
}

}  // namespace millwright
