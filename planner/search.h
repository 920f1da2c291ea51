// SPDX-License-Identifier: Apache-2.0
//
// Which plan is best?  Enumerates every plan of the space, costs it or rules it out with a reason.
//
// The space: tp, sp, cp (ring, Ulysses or both nested), ep, etp, micro-batch, pp, vpp, pipeline
// schedule, dp, ZeRO stage and its shard (all data-parallel ranks, or those of one domain), and
// recomputation (none, every set of modules that drops something, full for all or the first N
// layers of a chunk); where it is asked for, N layers of a chunk offloaded over none or one module
// of these. Nothing about which degree belongs where is built in.  Schedules are 1F1B and
// interleaved, which every framework with pipelines has, or those that the filter requires.  ZeRO-2
// and 3 go with 1F1B and interleaved, and with other schedules where the framework has both: there
// the estimate is up to 8% from the simulation, of how much of their communication in every pass is
// hidden (tests/planner).
//
// Layers are divided as evenly as can be (LayersPerChunk).  Those of plans that could be their
// layout's fastest if they were divided best, fit or nearly fit, are divided anew
// (planner/layer_split): such plans are ruled out and ranked by what their step would be then
// (PipelineTerms::StepIfDivided).  Where it is asked for, each pipeline rank of the best gets the
// recomputation that is best for it.
//
// A layer's cost for a given cut is computed once; the rest is sums over the few distinct
// pipeline stages.  What need not be costed is ruled out by a bound (findings.h) that changes
// neither the table nor the front: coarse searches of fixed parts of the space come first, and a
// branch that cannot be faster than what they have for the table, nor faster or smaller than their
// front, is of no interest.  Every candidate is costed or counted under its bound, which the
// certificate adds up. Rejections for memory are counted of what was looked at, and less of it
// where more is ruled out. Workers take units of work in turn and share nothing, and results merge
// in a total order, so neither the answer nor the counts depend on their number.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/findings.h"
#include "planner/plan_filter.h"

namespace millwright {

// Which share of the units of work this process has, where several search together: a fixed one,
// and in the end all have the findings of all.  The coarse searches, a fifth of the work where
// there is much of it, each does by itself, so that all have the same limits.
struct SearchPart {
  int index = 0, count = 1;
  // Own text to all, theirs to here, in their order.  Called by all alike, once a search.
  std::function<std::vector<std::string>(const std::string& own)> gather;
};

struct SearchOptions {
  int top = 10;
  double memory_margin = 0.05;  // of the GPU's memory that a plan must leave free
  int threads = 0;              // 0: one a core
  bool split_layers = true;     // divide the layers of the best anew (planner/layer_split)
  bool offload = false;  // activations to the host too; so it is where the filter asks for it
  bool recompute_by_rank = false;  // of the best; where layers may be divided (planner/layer_split)
  PlanFilter filter;
  // Stop looking then, with the best so far.  What is looked at first depends on it: branches whose
  // work alone takes least.  A share of the time is kept for dividing layers, and recomputation by
  // rank, of the best that were found.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Set, by whom it may be: as if the deadline had come.
  const std::atomic<bool>* stop = nullptr;
  Objective objective = Objective::kThroughput;
  SearchPart part;
  bool exhaustive = false;  // cost every candidate: the same plans and front, for the proof of it
  // From the calling thread, many times a second; the search ends where it throws.
  std::function<void(double share_done)> progress;
};

// What the search can promise of its answer, by the estimate.
struct Certificate {
  std::int64_t space = 0;   // candidates
  std::int64_t costed = 0;  // of them
  std::array<std::int64_t, kBounds> ruled_out{};
  std::int64_t unvisited = 0;  // at the deadline
  // No candidate is faster than this: the best plan's own time, or the floor of a branch that was
  // not visited.  Infinite where nothing fits and nothing is left.
  Seconds best_bound;
  double gap = 0;  // of the best plan over the bound, as a share of the bound
  // Plans for which recomputation was chosen by rank, and those of them that are faster than their
  // layout without; no candidates, and under no bound.
  std::int64_t by_rank = 0, faster_by_rank = 0;
  // For which there was no time before the deadline: plans whose layers would have been divided
  // anew, and such whose recomputation would have been chosen by rank.
  std::int64_t undivided = 0, not_by_rank = 0;
  bool exact() const { return unvisited == 0; }
};

struct SearchResult {
  // The best of each layout (tp, cp and its kind, pp, ep, etp), best first, `top` at most.
  std::vector<RankedPlan> plans;
  // The same as they are without recomputation by rank, where that was asked for: of schedules
  // whose estimate is not exact either may turn out faster.
  std::vector<RankedPlan> without_by_rank;
  // Plans of the same layouts or others, with other schedules or micro-batches, that are next to as
  // fast as the last of `plans`, fastest first: where the estimate is not exact, simulation may
  // prefer them.
  std::vector<RankedPlan> others;
  // As `plans`, of those that the question's framework runs.
  std::vector<RankedPlan> in_framework;
  // No plan is both faster and smaller: up to kParetoSpan times the fastest plan's time, a point
  // at most every 1% of the GPU's memory.
  std::vector<RankedPlan> pareto;
  std::int64_t searched = 0;  // plans costed, whether they fit or not
  // Plans rejected for memory, and branches cut for the other reasons (a branch counts once).
  std::array<std::int64_t, kRejectionReasons> rejected{};
  std::array<OutOfMemory, kMemoryItems> out_of_memory{};
  std::optional<RankedPlan> nearest_miss;  // where nothing fits: the plan that needs least memory
  Bytes memory_limit;                      // capacity less the margin
  Certificate certificate;
};

inline constexpr double kParetoSpan = 1.5;

SearchResult Search(const ModelConfig& model, const TrainingConfig& training,
                    const Cluster& cluster, const SearchOptions& options);

}  // namespace millwright
