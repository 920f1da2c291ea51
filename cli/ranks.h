// SPDX-License-Identifier: Apache-2.0
//
// What `run` and `measure` share: a job as the runtime executes it, and how its ranks come to be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cli/commands.h"
#include "planner/feasibility.h"
#include "planner/job.h"
#include "report/run_text.h"
#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/workload.h"
#include "validate/executed_run.h"

namespace millwright {

// What is computed in where `asked` says nothing; ConfigError for what the backend does not do, or
// where this program was built without it.
ElementType ElementTypeOn(RunBackend backend, std::optional<ElementType> asked);

// `job.parallel` as it is executed; ConfigError for what the runtime does not do.
std::variant<Workload, Rejection> WorkloadOf(const Job& job, std::uint64_t seed,
                                             RunBackend backend);

// A command whose ranks are to be: `args` are its own.
struct RankedCommand {
  std::string_view name;
  std::span<const std::string> args;
  RunBackend backend = RunBackend::kMpi;
  int ranks = 1;
};
// Whether OnRanks will have the ranks, or one of torchrun's, in this process.
bool HasRanksHere(const RankedCommand& command);

// Calls `rank` on each rank of this process; what rank 0 returns is called when all are done, says
// what there is to say, and has the exit code.  Else starts processes of the program that one rank
// is, and passes on what they say and their exit code; or, under somebody else's mpirun, becomes
// one of them.
using RankAnswer = std::function<int()>;
int OnRanks(const RankedCommand& command, Console& console,
            const std::function<RankAnswer(Communicator&)>& rank);

// Which of this machine's ranks this one is, as what started it says.
int LocalRank();

}  // namespace millwright
