// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ostream>
#include <vector>

#include "cli/rank_program.h"
#include "planner/step_spec.h"
#include "runtime/cuda/gpu_calls.h"
#include "runtime/launch.h"
#include "runtime/tcp_communicator.h"

namespace millwright {
namespace {

constexpr Seconds kMeeting{120};  // within which all ranks that torchrun starts are there

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

std::optional<MeetingPlace> TorchrunPlace(const RankedCommand& command) {
  if (command.backend != RunBackend::kCuda) return std::nullopt;
  return PlaceOfTorchrun(std::getenv);
}

int StartProcesses(const RankedCommand& command, Console& console) {
  const std::string program = RankProgram();
  std::vector<std::string> words{std::string(command.name)};
  words.insert(words.end(), command.args.begin(), command.args.end());
  if (access(program.c_str(), X_OK) != 0) {
    throw ConfigError(
        "this program was built without MPI (Debian: libopenmpi-dev); --backend threads runs the "
        "ranks as threads of one process");
  }
  if (UnderMpirun()) {
    BecomeRank(program, std::move(words));  // is one already
  }
  setenv("COLUMNS", std::to_string(console.style.width).c_str(), 1);
  const LaunchOutcome outcome = LaunchRanks(program, words, command.ranks);
  console.out << outcome.out;
  for (const std::string& message : outcome.messages) {
    console.err << "millwright: " << message << '\n';
  }
  return outcome.code;
}

}  // namespace

ElementType ElementTypeOn(RunBackend backend, std::optional<ElementType> asked) {
  const bool on_gpus = backend == RunBackend::kCuda;
  const ElementType type = asked.value_or(on_gpus ? ElementType::kBf16 : ElementType::kFp64);
  if (type == ElementType::kBf16 && !on_gpus) {
    throw ConfigError(
        "--dtype bf16: CPUs compute in fp64 and fp32 here; bf16 is for --backend cuda");
  }
  if (on_gpus && !RealGpuCalls()) {
    throw ConfigError(
        "--backend cuda: this program was built without CUDA (nvcc and NCCL's nccl.h were not "
        "found); --backend mpi and threads are there");
  }
  return type;
}

std::variant<Workload, Rejection> WorkloadOf(const Job& job, std::uint64_t seed,
                                             RunBackend backend) {
  const bool on_gpus = backend == RunBackend::kCuda;
  const double ranks = job.parallel.gpus();
  Job as_checked = job;
  if (!on_gpus) as_checked.training = TrainingWithPrice(job);
  if (const Verdict verdict = CheckPlanOf(as_checked)) return *verdict;
  if (!on_gpus && ranks > kMostRanks) {
    throw ConfigError(
        fmt::format("{:.0f} ranks on one machine: at most {}, with --ranks and "
                    "smaller degrees",
                    ranks, kMostRanks));
  }
  Workload workload = ExecutableWorkload(job, seed);
  if (on_gpus && job.model.kv_channels > kMostGpuHeadSize) {
    throw ConfigError(
        fmt::format("--backend cuda has attention kernels for heads of at most {} "
                    "elements, and this model's have {}",
                    kMostGpuHeadSize, job.model.kv_channels));
  }
  return workload;
}

bool HasRanksHere(const RankedCommand& command) {
  if (command.backend == RunBackend::kThreads || TorchrunPlace(command)) return true;
  return command.ranks == 1 && !UnderMpirun();
}

int OnRanks(const RankedCommand& command, Console& console,
            const std::function<RankAnswer(Communicator&)>& rank) {
  if (const std::optional<MeetingPlace> place = TorchrunPlace(command)) {
    const auto communicator = MakeTcpCommunicator(*place, kMeeting);
    const RankAnswer answer = rank(*communicator);
    return place->rank == 0 ? answer() : 0;
  }
  if (command.backend == RunBackend::kCuda && !UnderMpirun()) CheckGpus(command.ranks);
  if (!HasRanksHere(command)) return StartProcesses(command, console);
  RankAnswer answer;
  RunThreads(command.ranks, [&](Communicator& communicator) {
    RankAnswer own = rank(communicator);
    if (communicator.rank() == 0) answer = std::move(own);
  });
  return answer();
}

int LocalRank() {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  }
  return 0;
}

}  // namespace millwright
