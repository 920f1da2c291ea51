// SPDX-License-Identifier: Apache-2.0
//
// millwright run: a plan's training step really computed, on this machine's CPUs or on GPUs.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ostream>
#include <variant>

#include "cli/commands.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/rank_program.h"
#include "core/machine_memory.h"
#include "core/unit_text.h"
#include "cost_models/layer_cost.h"
#include "cost_models/operators.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/step_spec.h"
#include "report/json.h"
#include "report/run_text.h"
#include "report/simulate_text.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/launch.h"
#include "runtime/tcp_communicator.h"
#include "runtime/verification.h"

namespace millwright {

#if !MILLWRIGHT_HAS_RUNTIME

int RunPlanCommand(std::span<const std::string>, Console&) {
  throw ConfigError(
      "this program was built without Eigen (Debian: libeigen3-dev), which run computes with");
}

#else

namespace {

constexpr int kMostRanks = 1024;  // processes of one machine
constexpr Seconds kMeeting{120};  // within which all ranks that torchrun starts are there

// What is to be run, or why it cannot be.
struct RunAsked {
  Job job;
  std::variant<Workload, Rejection> workload = Rejection{};
  RunOptions options{};
  RunBackend backend = RunBackend::kMpi;
  bool json = false;
  std::vector<std::string> warnings;
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
  if (p.recompute.granularity == RecomputeGranularity::kNone) {
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

std::optional<RunAsked> Ask(std::span<const std::string> args, std::ostream& help) {
  CommandLine line(
      "run [JOB.json] [OPTIONS]",
      "Computes training steps of a plan for real, on this machine's CPUs or on GPUs: a "
      "process for each rank, the schedule's passes and the layers' operators and "
      "collectives as they are simulated. With --verify loss, every gradient and the weights are "
      "compared with a step on one rank without any parallelism. Exit code 1 where "
      "they differ or the plan cannot run, 4 where a rank died or a GPU failed.");
  JobFlags flags;
  PlanFlags plan_flags;
  std::optional<std::int64_t> steps, seed;
  std::optional<ElementType> type;
  std::optional<RunBackend> backend;
  RunAsked asked;
  flags.AddTo(line);
  flags.AddRanksTo(line);
  plan_flags.AddTo(line);
  static constexpr std::array<EnumName<ElementType>, 3> kTypes{
      {{ElementType::kFp64, "fp64"}, {ElementType::kFp32, "fp32"}, {ElementType::kBf16, "bf16"}}};
  static constexpr std::array<EnumName<RunBackend>, 3> kBackends{
      {{RunBackend::kMpi, "mpi"}, {RunBackend::kThreads, "threads"}, {RunBackend::kCuda, "cuda"}}};
  line.Section("Run");
  line.Flag("--verify", asked.options.verify, "compare with the dense reference");
  line.Int("--steps", steps, {1, 1'000'000}, "training steps (default: 3)");
  line.Int("--seed", seed, {0, INT_MAX}, "of weights and tokens (default: 1)");
  line.Enum("--dtype", type, std::span<const EnumName<ElementType>>(kTypes),
            "what is computed in (default: fp64; with cuda bf16, sums in fp32)");
  line.Enum(
      "--backend", backend, std::span<const EnumName<RunBackend>>(kBackends),
      "ranks are processes that Open MPI joins, threads, or processes with a GPU each, joined "
      "by NCCL and started by mpirun, srun or torchrun (default: mpi)");
  line.Section("Output");
  line.Flag("--json", asked.json, "the answer as JSON");
  line.Example(
      "run --model tiny-llama --cluster local-cpu --ranks 8 --tp 2 --pp 2 --dp 2 "
      "--global-batch 8 --seq 64 --verify");
  line.Example("run job.json --schedule zb-h1 --dtype fp32 --backend threads");
  if (!line.Parse(args, help)) return std::nullopt;
  asked.job = flags.Resolve(line);
  asked.job.parallel = plan_flags.Resolve(line, asked.job, flags.sizes_cluster());
  asked.job.has_parallel = true;
  line.ThrowIfProblems();
  asked.warnings = line.warnings();
  asked.options.steps = int(steps.value_or(3));
  asked.backend = backend.value_or(RunBackend::kMpi);
  const bool on_gpus = asked.backend == RunBackend::kCuda;
  asked.options.type = type.value_or(on_gpus ? ElementType::kBf16 : ElementType::kFp64);
  if (asked.options.type == ElementType::kBf16 && !on_gpus) {
    throw ConfigError(
        "--dtype bf16: CPUs compute in fp64 and fp32 here; bf16 is for --backend cuda");
  }
  if (on_gpus && !RealGpuCalls()) {
    throw ConfigError(
        "--backend cuda: this program was built without CUDA (nvcc and NCCL's nccl.h were not "
        "found); --backend mpi and threads are there");
  }

  const Job& job = asked.job;
  const ParallelConfig& plan = job.parallel;
  if (const Verdict verdict =
          CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), plan)) {
    asked.workload = *verdict;
    return asked;
  }
  if (!on_gpus && plan.gpus() > kMostRanks) {
    throw ConfigError(
        fmt::format("{:.0f} ranks on one machine: at most {}, with --ranks and "
                    "smaller degrees",
                    plan.gpus(), kMostRanks));
  }
  const std::int64_t micro_batches =
      job.training.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
  Workload workload{.model = job.model,
                    .training = job.training,
                    .parallel = plan,
                    .schedule = BuildSchedule(ScheduleOf(plan, micro_batches)),
                    .seed = std::uint64_t(seed.value_or(1))};
  std::string refused;
  for (const std::string& why : WhyNotExecutable(workload)) {
    refused += (refused.empty() ? "" : "\n") + why;
  }
  if (!refused.empty()) throw ConfigError(refused);
  if (on_gpus && job.model.kv_channels > kMostGpuHeadSize) {
    throw ConfigError(
        fmt::format("--backend cuda has attention kernels for heads of at most {} "
                    "elements, and this model's have {}",
                    kMostGpuHeadSize, job.model.kv_channels));
  }
  CheckMemory(workload, asked.options, on_gpus);
  asked.workload = std::move(workload);
  return asked;
}

// Of one micro-batch; what GPUs are expected to need, CPUs have no measurements for.
std::vector<PredictedOperator> Predicted(const RunAsked& asked) {
  std::vector<PredictedOperator> predicted;
  if (asked.backend != RunBackend::kCuda) return predicted;
  const Job& job = asked.job;
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  const LayerShape shape = ShapeOf(job.parallel, job.training);
  const LayerPaths paths = estimator.PathsOf(shape);
  for (const auto& operators : {EmbeddingOperators(job.model, shape, job.training),
                                LayerOperators(job.model, job.model.layer(0), shape, job.training),
                                HeadOperators(job.model, shape, job.training)}) {
    for (const Operator& op : operators) {
      const OperatorCost cost = CostOfOperator(op, paths, estimator.context());
      predicted.push_back({.name = std::string(op.name),
                           .forward = cost.forward.total(),
                           .backward = cost.backward.total()});
    }
  }
  return predicted;
}

// What the run says, by the one process that knows.
int Answer(const RunAsked& asked, const RunOutcome& outcome, Console& console) {
  const RunAnswer answer{.job = asked.job,
                         .options = asked.options,
                         .backend = asked.backend,
                         .outcome = outcome,
                         .predicted = Predicted(asked),
                         .warnings = asked.warnings};
  console.out << (asked.json ? RunJson(answer) : RunText(answer, console.style));
  return outcome.holds() ? 0 : 1;
}

// Which of this machine's ranks this one is, as what started it says.
int LocalRank() {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  }
  return 0;
}

RunOutcome RunRank(const RunAsked& asked, const Workload& workload, Communicator& communicator) {
  if (communicator.size() != workload.ranks()) {
    throw ConfigError(fmt::format("the plan has {} ranks, and {} were started", workload.ranks(),
                                  communicator.size()));
  }
  if (asked.backend != RunBackend::kCuda) return RunSteps(workload, asked.options, communicator);
  const GpuCalls calls = RealGpuCalls().value();
  CudaBackend backend(calls, workload, communicator,
                      {.type = asked.options.type, .local_rank = LocalRank()});
  return RunSteps(workload, asked.options, communicator, backend);
}

// Before ranks are started on this machine: one message, and not one of each rank.
void CheckGpus(int ranks) {
  int count = 0;
  const GpuCalls calls = RealGpuCalls().value();
  if (const std::string status = calls.device_count(count); !status.empty()) {
    throw GpuError("cudaGetDeviceCount: " + status);
  }
  if (count < ranks) {
    throw GpuError(fmt::format("{} ranks need a GPU each, and this machine has {}", ranks, count));
  }
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
  if (asked->backend == RunBackend::kCuda) {
    if (const std::optional<MeetingPlace> place = PlaceOfTorchrun(std::getenv)) {
      const auto communicator = MakeTcpCommunicator(*place, kMeeting);
      const RunOutcome outcome = RunRank(*asked, workload, *communicator);
      return place->rank == 0 ? Answer(*asked, outcome, console) : 0;
    }
    if (!UnderMpirun()) CheckGpus(workload.ranks());
  }
  if (asked->backend == RunBackend::kThreads ||
      (asked->backend == RunBackend::kCuda && workload.ranks() == 1 && !UnderMpirun())) {
    RunOutcome outcome;
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      RunOutcome own = RunRank(*asked, workload, communicator);
      if (communicator.rank() == 0) outcome = std::move(own);
    });
    return Answer(*asked, outcome, console);
  }
  const std::string program = RankProgram();
  std::vector<std::string> words(args.begin(), args.end());
  if (access(program.c_str(), X_OK) != 0) {
    throw ConfigError(
        "this program was built without MPI (Debian: libopenmpi-dev); --backend threads runs the "
        "ranks as threads of one process");
  }
  if (UnderMpirun()) {
    BecomeRank(program, std::move(words));  // is one already
  }
  setenv("COLUMNS", std::to_string(console.style.width).c_str(), 1);
  const LaunchOutcome outcome = LaunchRanks(program, words, workload.ranks());
  console.out << outcome.out;
  for (const std::string& message : outcome.messages) {
    console.err << "millwright: " << message << '\n';
  }
  return outcome.code;
}

int RankCommand(std::span<const std::string> args, Console& console, Communicator& communicator) {
  const std::optional<RunAsked> asked = Ask(args, console.out);
  if (!asked) return 0;
  const auto* workload = std::get_if<Workload>(&asked->workload);
  if (workload == nullptr) throw ConfigError(std::get<Rejection>(asked->workload).detail);
  const RunOutcome outcome = RunRank(*asked, *workload, communicator);
  return communicator.rank() == 0 ? Answer(*asked, outcome, console) : 0;
}
#endif

}  // namespace millwright
