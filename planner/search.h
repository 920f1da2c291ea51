// SPDX-License-Identifier: Apache-2.0
//
// Which plan is best?  Enumerates every plan of the space, costs it or rejects it with a reason.
//
// The space: tp, sp, cp (ring or Ulysses), ep, etp, micro-batch, pp, vpp, pipeline schedule, dp,
// ZeRO stage and its shard (all data-parallel ranks, or those of one domain), and recomputation
// (none, every set of modules that drops something, full for all or the first N layers of a chunk).
// Nothing about which degree belongs where is built in.  Schedules are 1F1B and interleaved, which
// every framework with pipelines has, or those that the filter requires.  ZeRO-2 and 3 go with 1F1B
// and interleaved alone: how much of their communication in every pass other schedules hide is not
// estimated well.
//
// Layers are divided as evenly as can be (LayersPerChunk); at the end those of the fastest plans,
// and of plans that are faster and next to fitting, are divided anew (planner/layer_split).  That
// changes no count.
//
// A layer's cost for a given cut is computed once; the rest is sums over the few distinct
// pipeline stages.  Branches are cut by bounds that change no answer: model state, or one layer,
// over the memory; and time.  For the last a coarse search of a fixed part of the space comes
// first; a branch whose work alone takes longer than everything that will be reported is too slow.
// Workers take layer shapes in turn and share nothing, and results merge in a total order, so
// neither the answer nor the counts depend on their number.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/plan_filter.h"

namespace millwright {

struct RankedPlan {
  ParallelConfig plan;
  Seconds step;
  Bytes peak;
};
// Faster first, then smaller, then by degrees: a total order.
bool Before(const RankedPlan& a, const RankedPlan& b);

struct SearchOptions {
  int top = 10;
  double memory_margin = 0.05;  // of the GPU's memory that a plan must leave free
  int threads = 0;              // 0: one a core
  bool split_layers = true;     // divide the layers of the best anew (planner/layer_split)
  PlanFilter filter;
  std::function<void(double share_done)> progress;  // from the calling thread, a few times a second
};

// Plans rejected for memory in which one item is the largest of the fullest stage; where what
// recomputation does not change is too large by itself, the largest of that.
struct OutOfMemory {
  std::int64_t count = 0;
  // The one that needs least, and its fullest stage.  Empty where the plans were too large by one
  // layer alone, which is counted and not costed.
  std::optional<RankedPlan> nearest;
  int stage = 0;
};

struct SearchResult {
  // The fastest of each layout (tp, cp and its kind, pp, ep, etp), fastest first, `top` at most.
  std::vector<RankedPlan> plans;
  // The same of the schedules that the question's framework runs.
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
};

inline constexpr double kParetoSpan = 1.5;

SearchResult Search(const ModelConfig& model, const TrainingConfig& training,
                    const Cluster& cluster, const SearchOptions& options);

// Every choice of recomputation worth costing for this model: none, sets of modules, full.
std::vector<Recompute> RecomputeChoices(const ModelConfig& model);

}  // namespace millwright
