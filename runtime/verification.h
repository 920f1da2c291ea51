// SPDX-License-Identifier: Apache-2.0
//
// A few training steps executed, and held against the dense reference.
//
// Every rank computes its part; rank 0 runs runtime/reference on the same workload, gets every
// rank's gradients of the first step and weights after the last, and compares element by element:
// of each tensor max|a - b| / max|b|, b being the reference.  An element that no rank sent, or that
// is not a number, is an error of infinity.  Weights may be off by what Adam makes of what their
// gradients were off, too: rate / epsilon times it at most, a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/workload.h"
#include "sim/schedule.h"
#include "sim/task_graph.h"

namespace millwright {

// Ranks are processes that MPI joins, threads, or processes with a GPU each.
enum class RunBackend : std::uint8_t { kMpi, kThreads, kCuda };
std::string_view Name(RunBackend backend);  // "mpi"
inline constexpr int kMostRanks = 1024;     // processes or threads of one machine

struct RunOptions {
  ElementType type = ElementType::kFp64;
  int steps = 1;
  bool verify = false;
  bool record = false;  // what each rank did, with its times
  Adam adam{};
};

// An ExecutedOperator of a rank, as rank 0 has heard of it.
struct RecordedOperator {
  std::string name;
  Stream stream = Stream::kCompute;
  PassKind pass = PassKind::kForward;
  bool recomputed = false;
  int stage = 0, micro_batch = -1;
  Seconds start, end;  // since the rank's step began
  Seconds processor;   // that the rank had of it
};

// The step of median length, the first, which is not like the others, left out where there are
// more.
struct RecordedStep {
  std::vector<std::vector<RecordedOperator>> ranks;
  Seconds step;    // of the slowest rank
  int number = 0;  // from 0
};

// Of one kind of quantity, the tensor that is furthest off for its limit.
struct Agreement {
  std::string what;   // "loss", "gradients", "weights"
  std::string worst;  // tensor, or step of the loss
  int compared = 0;   // tensors or losses
  std::int64_t elements = 0;
  double error = 0;
  double limit = 0;
  bool holds() const { return error <= limit; }
};

// Bytes that a rank sent in a step, by what the program calls them in its lists.
struct SentBytes {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int calls = 0;
  std::int64_t bytes = 0;
};

struct RankOfRun {
  int rank = 0;
  std::int64_t sent = 0;  // bytes of the last step
  std::int64_t peak = 0;  // bytes of all tensors at once
  // Bytes of memory that the rank's process had at once, programs and libraries included: of ranks
  // that are threads all of them together.  0: not known.
  std::int64_t resident = 0;
  Seconds busy;  // in operators, collectives and their waiting included
  Seconds step;  // the last
};

// What rank 0 knows at the end; on other ranks only `losses` is filled in.
struct RunOutcome {
  std::vector<double> losses;
  std::vector<Seconds> seconds;  // of each step, on the slowest rank
  std::vector<SentBytes> sent;   // by all ranks in the last step
  std::vector<RankOfRun> ranks;
  std::vector<Agreement> agreements;
  RecordedStep recorded;
  std::string attention_by;  // Backend::AttentionBy, of rank 0
  bool holds() const {
    return std::all_of(agreements.begin(), agreements.end(),
                       [](const Agreement& agreement) { return agreement.holds(); });
  }
};

// Every rank calls it with the same workload and options; ConfigError where they differ.
// Messages beside the steps themselves go over the communicator, of the backend's ranks.
RunOutcome RunSteps(const Workload& workload, const RunOptions& options, Communicator& communicator,
                    Backend& backend);
// On the CPU backend.
RunOutcome RunSteps(const Workload& workload, const RunOptions& options,
                    Communicator& communicator);

}  // namespace millwright
