// SPDX-License-Identifier: Apache-2.0
#include "validate/executed_run.h"

#include <fmt/format.h>

#include <array>
#include <climits>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/file_kind.h"
#include "core/json_value.h"
#include "core/mistakes.h"
#include "planner/estimator.h"

namespace millwright {
namespace {

constexpr double kMostSeconds = 1e6;  // of a step, or of what its ranks did together
constexpr NumberRange kStepRange{.min = 0, .max = kMostSeconds, .min_open = true};
constexpr NumberRange kTimeRange{.min = 0, .max = kMostSeconds * kMostRanks};

std::span<const EnumName<RunBackend>> BackendNames() {
  static constexpr std::array<EnumName<RunBackend>, 3> names{
      {{RunBackend::kMpi, "mpi"}, {RunBackend::kThreads, "threads"}, {RunBackend::kCuda, "cuda"}}};
  return names;
}

std::span<const EnumName<bool>> PassNames() {
  static constexpr std::array<EnumName<bool>, 2> names{{{false, "forward"}, {true, "backward"}}};
  return names;
}

std::span<const EnumName<Stream>> StreamNames() {
  static const std::vector<EnumName<Stream>> names = [] {
    std::vector<EnumName<Stream>> all;
    for (int s = 0; s < kStreams; ++s) {
      all.push_back({static_cast<Stream>(s), Name(static_cast<Stream>(s))});
    }
    return all;
  }();
  return names;
}

void Fields(ConfigIo& io, MeasuredOperator& op) {
  io.Text("operator", op.name, "of the step's lists", Presence::kRequired);
  io.Enum("pass", op.backward, PassNames(), "what of it", Presence::kRequired);
  io.Int("calls", op.calls, {.min = 1}, "by all ranks", Presence::kRequired);
  io.Number("measured_s", op.measured.value, kTimeRange, "of all calls", Presence::kRequired);
  io.Number("processor_s", op.processor.value, kTimeRange, "that ranks had a processor of it",
            Presence::kRequired);
}

struct NamedStream {
  Stream stream = Stream::kCompute;
  MeasuredStream time;
};
void Fields(ConfigIo& io, NamedStream& one) {
  io.Enum("stream", one.stream, StreamNames(), "as the simulation has it", Presence::kRequired);
  io.Number("measured_s", one.time.measured.value, kTimeRange, "of all ranks", Presence::kRequired);
  io.Number("processor_s", one.time.processor.value, kTimeRange, "that ranks had a processor of it",
            Presence::kRequired);
}

void ExecutedFields(ConfigIo& io, ExecutedRun& run) {
  io.Enum("backend", run.backend, BackendNames(), "what the ranks were", Presence::kRequired);
  io.Enum("dtype", run.type, ElementTypeNames(), "what was computed in", Presence::kRequired);
  io.Text("machine", run.machine, "which one it was");
  io.Text("calibration", run.calibration, "provenance of the curves it was compared by");
  io.Int("seed", run.seed, {.min = 0, .max = INT_MAX}, "of weights and tokens");
  io.Int("steps", run.steps, {.min = 1, .max = 1'000'000}, "executed");
  io.Int("step", run.step, {.min = 1, .max = 1'000'000}, "of these the one recorded: the median");
  io.Number("step_s", run.measured.step.value, kStepRange, "of the slowest rank",
            Presence::kRequired);
  io.Array<MeasuredOperator>("operators", run.measured.operators, "of all ranks",
                             [&](MeasuredOperator& op) { Fields(io, op); });
  std::vector<NamedStream> streams;
  for (int s = 0; s < kStreams; ++s) {
    const MeasuredStream& time = run.measured.streams[std::size_t(s)];
    if (time != MeasuredStream{}) streams.push_back({static_cast<Stream>(s), time});
  }
  io.Array<NamedStream>("streams", streams, "of all ranks",
                        [&](NamedStream& one) { Fields(io, one); });
  if (!io.reading()) return;
  if (run.step > run.steps) {
    io.Problem("step", fmt::format("expected one of {} steps, got {}", run.steps, run.step));
  }
  if (run.type == ElementType::kBf16 && !run.on_gpus()) {
    io.Problem("dtype", "expected fp64 or fp32, which CPUs compute in, got \"bf16\"");
  }
  std::set<std::pair<std::string, bool>> operators;
  for (const MeasuredOperator& op : run.measured.operators) {
    if (operators.insert({op.name, op.backward}).second) continue;
    io.Problem("operators", fmt::format("expected each operator and pass once, got {} {} twice",
                                        NameIn(PassNames(), op.backward),
                                        JsonText(Printable(op.name, kMostNameShown))));
  }
  std::set<Stream> seen;
  for (const NamedStream& one : streams) {
    if (!seen.insert(one.stream).second) {
      io.Problem("streams",
                 fmt::format("expected each stream once, got {} twice", Name(one.stream)));
    }
    run.measured.streams[std::size_t(one.stream)] = one.time;
  }
}

void Fields(ConfigIo& io, ExecutedRun& run) {
  io.Object(
      "executed", "what was measured", [&] { ExecutedFields(io, run); }, Presence::kRequired);
  io.Object(
      "job", "what was executed", [&] { Fields(io, run.job); }, Presence::kRequired);
  const Job& job = run.job;
  if (!job.has_model || !job.has_training || !job.has_cluster || !job.has_parallel) {
    io.Problem("job", "expected model, training, cluster and parallel, of which some are missing");
  }
}

// What WhyNotExecutable looks at.
Workload WithoutSchedule(const Job& job) {
  Workload workload{
      .model = job.model, .training = job.training, .parallel = job.parallel, .schedule = {}};
  workload.schedule.forward_only = job.parallel.schedule == ScheduleKind::kForwardOnly;
  return workload;
}

}  // namespace

ExecutedRun ParseExecutedRun(const std::string& file, std::string_view text) {
  RefuseOtherKinds(file, text, FileKind::kExecuted);
  ExecutedRun run;
  ReadConfig(file, text, [&](ConfigIo& io) { Fields(io, run); });
  // Sound by itself; is it a job that can have been executed?
  Mistakes mistakes(file);
  if (const Verdict verdict = CheckPlanOf(run.job)) {
    mistakes.Add("/job/parallel", "expected a plan that can run: " + verdict->detail);
  } else {
    for (const std::string& why : WhyNotExecutable(WithoutSchedule(run.job))) {
      mistakes.Add("/job", why);
    }
  }
  mistakes.ThrowIfAny();
  run.measured.ranks = int(run.job.parallel.gpus());
  return run;
}

std::string WriteExecutedRun(const ExecutedRun& run) {
  ExecutedRun copy = run;
  return WriteConfig([&](ConfigIo& io) { Fields(io, copy); });
}

Verdict CheckPlanOf(const Job& job) {
  return CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), job.parallel);
}

Workload ExecutableWorkload(const Job& job, std::uint64_t seed) {
  Workload workload = WithoutSchedule(job);
  std::string refused;
  for (const std::string& why : WhyNotExecutable(workload)) {
    refused += (refused.empty() ? "" : "\n") + why;
  }
  if (!refused.empty()) throw ConfigError(refused);
  const ParallelConfig& plan = job.parallel;
  const std::int64_t micro_batches =
      job.training.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
  workload.schedule = BuildSchedule(ScheduleOf(plan, micro_batches));
  workload.seed = seed;
  return workload;
}

TrainingConfig TrainingWithPrice(const Job& job) {
  TrainingConfig training = job.training;
  if (job.cluster.gpu.placeholder) training.precision = Precision::kBf16;
  return training;
}

TaskGraph GraphOf(const Job& job, const PipelineSchedule& schedule) {
  ClusterConfig machine = job.cluster;
  machine.gpu.calibration_file.clear();
  const Cluster cluster(machine);
  const StepSpec spec =
      StepSpecOf(Estimator(job.model, TrainingWithPrice(job), cluster), job.parallel, schedule);
  CheckSize(spec);
  return BuildStepGraph(spec);
}

namespace {

PredictedRun PredictBy(const Estimator& estimator, const ExecutedRun& run,
                       const Workload& workload) {
  StepSpec spec = StepSpecOf(estimator, workload.parallel, workload.schedule);
  CheckSize(spec);
  PredictedRun predicted{.simulated = SimulateStep(estimator, workload.parallel, std::move(spec)),
                         .comparison = {}};
  predicted.comparison = CompareExecuted(estimator, workload, predicted.simulated, run.measured);
  // A GPU's rank has a processor for nothing but asking.
  if (run.on_gpus()) predicted.comparison.processor = Seconds(0);
  return predicted;
}

}  // namespace

PredictedRun PredictRun(const ExecutedRun& run, const Workload& workload,
                        const std::optional<GpuCurves>& curves, const std::string& file) {
  if (run.on_gpus()) {
    const Cluster cluster(run.job.cluster);
    return PredictBy(Estimator(workload.model, workload.training, cluster), run, workload);
  }
  MILLWRIGHT_CHECK(curves.has_value());
  const ExecutedModel model =
      ExecutedModelOf(workload, *curves, ExecutedOn(Name(run.type), Name(run.backend)), file);
  return PredictBy(Estimator(workload.model, model.training, model.cluster, model.calibration), run,
                   workload);
}

}  // namespace millwright
