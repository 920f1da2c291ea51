#include "planner/job.h"

#include "core/model_presets.h"

namespace millwright {

void Fields(ConfigIo& io, Job& job) {
  std::string model_from;
  io.Text("model_from", model_from,
          "a model preset or a path to a Hugging Face config.json, in place of \"model\"");
  if (io.reading() && !model_from.empty()) {
    try {
      job.model = LoadModel(model_from);
      job.has_model = true;
    } catch (const ConfigError& error) {
      io.Problem("model_from", error.what());
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
}

Job ParseJob(const std::string& file, std::string_view text) {
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
