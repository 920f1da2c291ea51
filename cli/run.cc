// SPDX-License-Identifier: Apache-2.0
//
// millwright run: a plan's training step really computed, on this machine's CPUs or on GPUs.

#include <fmt/format.h>

#include <array>
#include <climits>
#include <ostream>
#include <variant>

#include "cli/commands.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/ranks.h"
#include "core/machine_memory.h"
#include "core/unit_text.h"
#include "cost_models/operators.h"
#include "report/executed_report.h"
#include "report/file_writer.h"
#include "report/json.h"
#include "report/run_text.h"
#include "report/simulate_text.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/host_machine.h"
#include "runtime/verification.h"
#include "validate/executed_run.h"

namespace millwright {
namespace {

constexpr std::int64_t kMostStepsRecorded = 1000;

// What is to be run, or why it cannot be.
struct RunAsked {
  Job job;
  std::variant<Workload, Rejection> workload = Rejection{};
  RunOptions options{};
  RunBackend backend = RunBackend::kMpi;
  bool json = false;
  std::vector<std::string> warnings;
  // Compared with the simulated step, which on CPUs these price.
  std::optional<GpuCurves> curves{};
  std::string trace, record;  // files; empty: none

  bool on_gpus() const { return backend == RunBackend::kCuda; }
};

// On CPUs all ranks are on this machine; the reference is held by one of them.  A lower bound: of
// activations one micro-batch a pipeline rank.  What GPUs hold is not this machine's memory.
void CheckMemory(const Workload& workload, const RunOptions& options, bool on_gpus) {
  const double width = options.type == ElementType::kFp64 ? 8 : 4;
  const ParallelConfig& p = workload.parallel;
  const ModelConfig& model = workload.model;
  double parameters = 0;
  Bytes needed;
  for (int layer = -1; layer <= model.num_layers; ++layer) {
    for (const Weight& weight : WeightsOf(model, layer)) {
      const bool expert =
          weight.split == WeightSplit::kExpert || weight.split == WeightSplit::kExpertReplicated;
      const double stage = 1.0 * p.tensor * p.data * p.context;
      const double replicas =
          expert ? stage / (1.0 * p.expert * p.expert_tensor) : 1.0 * p.data * p.context;
      // Weights and gradients of a rank; its shares of gradients and two moments.
      const double copies =
          workload.schedule.directions * (p.zero == 0 ? 5 * replicas : 2 * replicas + 3);
      parameters += double(weight.elements());
      needed += Bytes(copies * double(weight.elements()) * width);
    }
  }
  const LayerShape shape = ShapeOf(p, workload.training);
  Bytes activations = SavedBytes(HeadOperators(model, shape, workload.training));
  if (p.Recomputes() == std::vector{Recompute{}}) {
    for (const LayerRun& run : model.layers) {
      activations +=
          double(run.count) * SavedBytes(LayerOperators(model, run.kind, shape, workload.training));
    }
  }
  // Two bytes an element there.
  needed += double(p.tensor) * p.context * p.data * width / 2 * activations;
  if (on_gpus) needed = Bytes(0);
  if (options.verify) needed += Bytes(4 * parameters * 8);  // weights, gradients, moments
  const Bytes memory = MachineMemory();
  if (needed <= memory) return;
  throw ConfigError(fmt::format(
      "the ranks' weights, gradients, optimizer states and activations are at least {} together, "
      "and this machine has {}: a run needs a model and a sequence small enough for it (--model "
      "tiny-llama, or fewer --layers)",
      FormatBytes(needed), FormatBytes(memory)));
}

// What a rank on CPUs is priced by is there; ConfigError where something was not measured.
void CheckMeasured(const RunAsked& asked, const Workload& workload) {
  ExecutedModelOf(workload, *asked.curves,
                  ExecutedOn(Name(asked.options.type), Name(asked.backend)),
                  asked.job.cluster.gpu.calibration_file);
}

// The executed step beside the simulated one; writes the trace of both, and what was measured.
ExecutedComparison Compare(const RunAsked& asked, const RecordedStep& recorded) {
  const auto& workload = std::get<Workload>(asked.workload);
  const ExecutedRun run{.job = asked.job,
                        .backend = asked.backend,
                        .type = asked.options.type,
                        .machine = ThisMachine().Text(),
                        .calibration = asked.curves ? asked.curves->provenance : "",
                        .seed = std::int64_t(workload.seed),
                        .steps = asked.options.steps,
                        .step = recorded.number + 1,
                        .measured = Measured(recorded)};
  PredictedRun predicted =
      PredictRun(run, workload, asked.curves, asked.job.cluster.gpu.calibration_file);
  if (!asked.trace.empty()) {
    FileWriter out(asked.trace);
    WriteExecutedTrace(asked.job, predicted.simulated, recorded, out);
    out.Commit();
  }
  if (!asked.record.empty()) WriteTextFile(asked.record, WriteExecutedRun(run));
  return std::move(predicted.comparison);
}

std::optional<RunAsked> Ask(std::span<const std::string> args, std::ostream& help) {
  CommandLine line(
      "run [JOB.json] [OPTIONS]",
      "Computes training steps of a plan for real, on this machine's CPUs or on GPUs: a "
      "process for each rank, the schedule's passes and the layers' operators and "
      "collectives as they are simulated. With --verify loss, every gradient and the weights are "
      "compared with a step on one rank without any parallelism; with --compare the times are with "
      "the simulated step's. Exit code 1 where they differ or the plan cannot run, 4 where a rank "
      "died or a GPU failed.");
  JobFlags flags;
  PlanFlags plan_flags;
  std::optional<std::int64_t> steps, seed;
  std::optional<ElementType> type;
  std::optional<RunBackend> backend;
  std::optional<std::string> trace, record;
  bool compare = false;
  RunAsked asked;
  flags.AddTo(line);
  flags.AddRanksTo(line);
  plan_flags.AddTo(line);
  static constexpr std::array<EnumName<RunBackend>, 3> kBackends{
      {{RunBackend::kMpi, "mpi"}, {RunBackend::kThreads, "threads"}, {RunBackend::kCuda, "cuda"}}};
  line.Section("Run");
  line.Flag("--verify", asked.options.verify, "compare with the dense reference");
  line.Int("--steps", steps, {1, 1'000'000}, "training steps (default: 3)");
  line.Int("--seed", seed, {0, INT_MAX}, "of weights and tokens (default: 1)");
  line.Enum("--dtype", type, ElementTypeNames(),
            "what is computed in (default: fp64; with cuda bf16, sums in fp32)");
  line.Enum(
      "--backend", backend, std::span<const EnumName<RunBackend>>(kBackends),
      "ranks are processes that Open MPI joins, threads, or processes with a GPU each, joined "
      "by NCCL and started by mpirun, srun or torchrun (default: mpi)");
  line.Section("Output");
  line.Flag("--compare", compare,
            "beside the simulated step, by operator and stream; on CPUs it is priced by what "
            "`measure` and `calibrate` found here (--calibration)");
  line.Text("--trace", "FILE", trace, "both steps for Perfetto (ui.perfetto.dev); with --compare");
  line.Text("--record", "FILE", record,
            "the job and what its step took, for `validate --executed`; with --compare");
  line.Flag("--json", asked.json, "the answer as JSON");
  line.Example(
      "run --model tiny-llama --cluster local-cpu --ranks 8 --tp 2 --pp 2 --dp 2 "
      "--global-batch 8 --seq 64 --verify");
  line.Example("run job.json --schedule zb-h1 --dtype fp32 --backend threads");
  line.Example("run job.json --calibration cpu.json --compare --trace both.json");
  line.Example("run job.json --calibration cpu.json --compare --record run.json");
  if (!line.Parse(args, help)) return std::nullopt;
  asked.job = flags.Resolve(line);
  asked.job.parallel = plan_flags.Resolve(line, asked.job, flags.sizes_cluster());
  asked.job.has_parallel = true;
  line.ThrowIfProblems();
  asked.backend = backend.value_or(RunBackend::kMpi);
  asked.options.steps = int(steps.value_or(3));
  const std::string& calibration = asked.job.cluster.gpu.calibration_file;
  if (trace && !compare) line.Problem("--trace", "goes with --compare");
  if (record && !compare) line.Problem("--record", "goes with --compare");
  if (compare && asked.options.verify) {
    line.Problem("--compare",
                 "--verify makes rank 0 compute the reference between steps; leave out one");
  }
  if (compare && asked.options.steps > kMostStepsRecorded) {
    line.Problem("--steps", fmt::format("with --compare at most {}", kMostStepsRecorded));
  }
  const bool fp8 = asked.job.training.precision == Precision::kFp8;
  if (compare && !asked.on_gpus() && calibration.empty() && !fp8) {
    line.Missing("--calibration", "missing; --compare needs what measure and calibrate found here");
  }
  line.ThrowIfProblems();
  asked.trace = trace.value_or("");
  asked.record = record.value_or("");
  for (const std::string& file : {asked.trace, asked.record}) {
    if (!file.empty()) CheckWritable(file);
  }
  asked.warnings = line.warnings();
  asked.options.type = ElementTypeOn(asked.backend, type);
  if (compare && asked.on_gpus() && asked.options.type != ElementType::kBf16) {
    throw ConfigError("--compare: a GPU's step is simulated in bf16, and this one is to run in " +
                      std::string(Name(asked.options.type)));
  }
  if (fp8) {
    if (compare && !asked.on_gpus()) {
      throw ConfigError(
          "--compare: CPUs compute products in FP8 from rounded operands, which `measure` does not "
          "time; without --precision fp8, or with --backend cuda");
    }
    if (asked.on_gpus() && asked.options.type == ElementType::kFp64) {
      throw ConfigError("--dtype fp64: products in FP8 come out in bf16 and fp32 on GPUs");
    }
  }
  asked.options.record = compare;
  if (compare && !asked.on_gpus())
    asked.curves = ParseCurves(calibration, ReadTextFile(calibration));
  asked.workload = WorkloadOf(asked.job, std::uint64_t(seed.value_or(1)), asked.backend);
  if (auto* workload = std::get_if<Workload>(&asked.workload)) {
    workload->graph = GraphOf(asked.job, workload->schedule);
    CheckMemory(*workload, asked.options, asked.on_gpus());
    // What was not measured is said before anything is run.
    if (asked.curves) CheckMeasured(asked, *workload);
  }
  return asked;
}

// What the run says, by the one process that knows.
int Answer(const RunAsked& asked, const RunOutcome& outcome, Console& console) {
  RunAnswer answer{.job = asked.job,
                   .options = asked.options,
                   .backend = asked.backend,
                   .outcome = outcome,
                   .warnings = asked.warnings};
  if (asked.options.record) answer.compared = Compare(asked, outcome.recorded);
  console.out << (asked.json ? RunJson(answer) : RunText(answer, console.style));
  return outcome.holds() ? 0 : 1;
}

RunOutcome RunRank(const RunAsked& asked, const Workload& workload, Communicator& processes) {
  if (processes.size() != workload.ranks()) {
    throw ConfigError(fmt::format("the plan has {} ranks, and {} were started", workload.ranks(),
                                  processes.size()));
  }
  PlacedCommunicator communicator(processes, workload.parallel);
  if (!asked.on_gpus()) return RunSteps(workload, asked.options, communicator);
  const GpuCalls calls = RealGpuCalls().value();
  CudaBackend backend(calls, workload, communicator,
                      {.type = asked.options.type, .local_rank = LocalRank()});
  return RunSteps(workload, asked.options, communicator, backend);
}

}  // namespace

int RunPlanCommand(std::span<const std::string> args, Console& console) {
  const std::optional<RunAsked> asked = Ask(args, console.out);
  if (!asked) return 0;
  for (const std::string& warning : asked->warnings) {
    console.err << "millwright: warning: " << warning << '\n';
  }
  if (const auto* rejection = std::get_if<Rejection>(&asked->workload)) {
    if (asked->json) {
      console.out << RejectedEstimateJson(asked->job, *rejection, asked->warnings);
    } else {
      console.out << CannotRunText(asked->job, *rejection, console.style);
    }
    return 1;
  }
  const Workload& workload = std::get<Workload>(asked->workload);
  const RankedCommand command{
      .name = "run", .args = args, .backend = asked->backend, .ranks = workload.ranks()};
  return OnRanks(command, console, [&](Communicator& communicator) -> RankAnswer {
    return [&, outcome = RunRank(*asked, workload, communicator)] {
      return Answer(*asked, outcome, console);
    };
  });
}

int RunRankCommand(std::span<const std::string> args, Console& console,
                   Communicator& communicator) {
  const std::optional<RunAsked> asked = Ask(args, console.out);
  if (!asked) return 0;
  const auto* workload = std::get_if<Workload>(&asked->workload);
  if (workload == nullptr) throw ConfigError(std::get<Rejection>(asked->workload).detail);
  const RunOutcome outcome = RunRank(*asked, *workload, communicator);
  return communicator.rank() == 0 ? Answer(*asked, outcome, console) : 0;
}

}  // namespace millwright
