// SPDX-License-Identifier: Apache-2.0
#include "cli/import_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "planner/framework_config.h"
#include "report/text.h"

namespace millwright {

void ImportFlags::AddTo(CommandLine& line) {
  line.Section("Existing run");
  line.Text("--from-megatron", "FILE", megatron_,
            "a launch script or arguments of Megatron-LM, in place of a job file; flags override "
            "them");
  line.Text("--from-torchtitan", "FILE", torchtitan_,
            "a TOML of torchtitan; the model comes from --model");
  line.Text("--from-deepspeed", "FILE", deepspeed_,
            "a JSON of DeepSpeed; model, --seq and all but data parallelism come from flags");
  line.Flag("--verbose", verbose_, "name the options that change neither time nor memory");
}

const char* ImportFlags::option() const {
  return megatron_ ? "--from-megatron" : torchtitan_ ? "--from-torchtitan" : "--from-deepspeed";
}

ImportedRun ImportFlags::Read(const JobFlags& flags) const {
  if (megatron_) {
    return ReadMegatronArgs(*megatron_, ReadTextFile(*megatron_),
                            {.model = !flags.gives_model(), .vocab = flags.vocabulary()});
  }
  if (torchtitan_) return ReadTorchtitan(*torchtitan_, ReadTextFile(*torchtitan_));
  return ReadDeepSpeed(*deepspeed_, ReadTextFile(*deepspeed_));
}

Job ImportFlags::Resolve(CommandLine& line, const JobFlags& flags) {
  if (!flags.files().empty()) {
    line.Problem(option(), "a job file is given too; give one of them");
  }
  if (int(megatron_.has_value()) + int(torchtitan_.has_value()) + int(deepspeed_.has_value()) > 1) {
    line.Problem(option(), "another file of a framework is given too; give one of them");
    return {};
  }
  ImportedRun run;
  try {
    run = Read(flags);
  } catch (const ConfigError& error) {
    NoteError(line, "", error);
    return {};
  }
  for (const std::string& warning : run.warnings) line.Warning(option(), warning);
  ignored_ = std::move(run.ignored);
  const std::int64_t batch = run.job.training.global_batch_size;
  // Until the cluster is known; Megatron's own default is a micro-batch on each replica.
  if (batch == 0) run.job.training.global_batch_size = 1;
  Job job = flags.Resolve(line, run.job, run.gpus);
  if (line.HasProblems()) return job;
  const bool given = batch != 0 || job.training.global_batch_size != 1;
  run.job = job;
  if (!given) run.job.training.global_batch_size = 0;
  std::vector<std::string> problems;
  job = PlacedOn(run, job.cluster.gpus(), problems);
  for (const std::string& problem : problems) {
    line.Problem(option(), fmt::format("{}{}", problem,
                                       run.gpus ? ""
                                                : "; it does not say how many it has: give "
                                                  "--nodes or --gpus"));
  }
  return job;
}

void ImportFlags::ShowIgnored(Console& console) const {
  if (ignored_.empty()) return;
  if (verbose_) {
    console.err << fmt::format("millwright: note: no effect on time and memory: {}\n",
                               fmt::join(ignored_, " "));
  } else {
    console.err << fmt::format(
        "millwright: note: {} no effect on time and memory (--verbose names {})\n",
        ignored_.size() == 1 ? "1 option has" : fmt::format("{} options have", ignored_.size()),
        ignored_.size() == 1 ? "it" : "them");
  }
}

}  // namespace millwright
