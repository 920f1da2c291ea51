// SPDX-License-Identifier: Apache-2.0
#include "cli/simulated_plan.h"

#include <fmt/format.h>

#include <chrono>

#include "core/mistakes.h"
#include "sim/schedule_file.h"
#include "sim/schedule_timing.h"

namespace millwright {
namespace {

// As one would ask for it: "1f1b", "interleaved:4".
std::string ShortName(const ScheduleChoice& choice) {
  std::string name(NameOf(choice.kind));
  if (choice.virtual_stages > 1) name += fmt::format(":{}", choice.virtual_stages);
  return name;
}

// Frameworks' own two schedules are not all that there are: what they ask for is left out.
ParallelConfig WithoutSchedule(ParallelConfig plan) {
  plan.virtual_stages = 1;
  plan.schedule = ScheduleKind::k1F1B;
  DropOtherSplit(plan);
  return plan;
}

Verdict Check(const Job& job, const ParallelConfig& plan) {
  return CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), plan);
}

}  // namespace

ScheduleAsked ParseScheduleAsked(std::string_view text) {
  if (NamesScheduleFile(text)) {
    ScheduleAsked asked{
        .text = std::string(text),
        .file = LoadSchedule(std::string(text), {.pipeline = 0, .micro_batches = 0})};
    if (asked.file->forward_only) {
      throw ConfigError(fmt::format("{} has no backward pass, and a training step is simulated",
                                    Printable(text, kMostNameShown)));
    }
    TimeSchedule(*asked.file, EvenCosts(*asked.file, {Seconds(1), Seconds(1), Seconds(1)}, {}),
                 PassTimes::kLeaveOut);
    return asked;
  }
  const ScheduleChoice choice = ParseScheduleChoice(text);
  if (choice.kind == ScheduleKind::kForwardOnly) {
    throw ConfigError("forward-only has no backward pass, and a training step is simulated");
  }
  ScheduleAsked asked{.text = std::string(text), .kind = choice.kind};
  if (text.find(':') != std::string_view::npos) asked.chunks = choice.virtual_stages;
  return asked;
}

Verdict CheckWithoutSchedule(const Job& job) { return Check(job, WithoutSchedule(job.parallel)); }

std::variant<Simulation, Rejection> SimulatePlan(const Job& job, const Estimator& estimator,
                                                 const std::optional<ScheduleAsked>& asked) {
  const auto start = std::chrono::steady_clock::now();
  ParallelConfig plan = asked ? WithoutSchedule(job.parallel) : job.parallel;
  if (const Verdict verdict = Check(job, plan)) return *verdict;
  const std::int64_t micro_batches =
      job.training.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
  ScheduleChoice choice = ScheduleOf(plan, micro_batches);
  if (asked && asked->file) {
    CheckSizes(*asked->file, plan.pipeline, int(micro_batches));
  } else if (asked) {
    choice.kind = asked->kind;
    choice.virtual_stages = asked->chunks.value_or(job.parallel.virtual_stages);
    // Where the schedule is one that plans have, the estimate is of it.
    ParallelConfig asked_plan = plan;
    asked_plan.schedule = choice.kind;
    if (ChoosesChunks(choice.kind)) asked_plan.virtual_stages = choice.virtual_stages;
    asked_plan.stage_layers = job.parallel.stage_layers;
    DropOtherSplit(asked_plan);
    if (!Check(job, asked_plan)) plan = asked_plan;
  }

  const bool from_file = asked && asked->file;
  Simulation simulation{.schedule = from_file ? asked->text : ShortName(choice),
                        .estimate = estimator.Itemise(plan),
                        .estimated_schedule = ShortName(ScheduleOf(plan, micro_batches))};
  StepSpec spec = StepSpecOf(estimator, plan, from_file ? *asked->file : BuildSchedule(choice));
  CheckSize(spec);
  simulation.step = SimulateStep(estimator, plan, std::move(spec));
  simulation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return simulation;
}

}  // namespace millwright
