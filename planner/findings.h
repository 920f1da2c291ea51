// SPDX-License-Identifier: Apache-2.0
//
// What has a search found so far?  One a worker; they merge, in any order, to the same whole.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/config_io.h"
#include "core/parallel.h"
#include "core/training.h"
#include "core/units.h"
#include "cost_models/memory.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"

namespace millwright {

struct RankedPlan {
  ParallelConfig plan;
  Seconds step;
  Bytes peak;
};
// Faster first, then smaller, then by degrees: a total order.
bool Before(const RankedPlan& a, const RankedPlan& b);
// Smaller first, then faster, then by degrees.
bool Smaller(const RankedPlan& a, const RankedPlan& b);

// Whether `plan` is among them, whatever it costs.
bool Holds(std::span<const RankedPlan> plans, const RankedPlan& plan);

// What makes a plan the best.  On a given cluster the fastest plan is also the cheapest.
enum class Objective { kThroughput, kCost, kMemory };
std::span<const EnumName<Objective>> ObjectiveNames();
bool Better(Objective objective, const RankedPlan& a, const RankedPlan& b);

// Plans rejected for memory in which one item is the largest of the fullest stage; where what
// recomputation does not change is too large by itself, the largest of that.
struct OutOfMemory {
  std::int64_t count = 0;
  // The one that needs least, and its fullest stage.  Of plans whose state alone is too large those
  // with the smallest micro-batch are looked at, as the others need more.  Empty where the plans
  // were too large by one layer alone, which is counted and not costed.
  std::optional<RankedPlan> nearest;
  int stage = 0;
};

// By which bound a candidate is ruled out without being costed.
enum class Bound {
  kModelState,   // what recomputation does not change is over the memory
  kOneLayer,     // one layer in backward is over the memory
  kWork,         // all GPUs busy with the cut's work and nothing else: slower than what is reported
  kSlowestRank,  // the fullest pipeline rank busy with its layers and nothing else: the same
  kRecompute,    // as if every layer took the least time and the least memory of all choices of
                 //   recomputation: slower than what is reported
  kChoice,       // another choice of recomputation is no worse for every kind of layer
};
inline constexpr int kBounds = 6;
std::string_view Name(Bound bound);     // "model state over the memory"
std::string_view JsonKey(Bound bound);  // "model_state"

// The front of plans of which none is both faster and smaller, in order of time.
class ParetoFront {
 public:
  // Whether a plan with these costs would stand on the front.
  bool Admits(Seconds step, Bytes peak) const;
  void Add(const RankedPlan& plan);
  // Whether a plan of it is faster than `step` and no larger than `peak`.
  bool Beats(Seconds step, Bytes peak) const;
  const std::vector<RankedPlan>& plans() const { return plans_; }

 private:
  std::vector<RankedPlan> plans_;
};

// The degrees that tell layouts apart: tp, cp and its kind, pp, ep, etp; and whether the framework
// runs it.
using LayoutKey = std::array<int, 7>;
LayoutKey KeyOf(const ParallelConfig& plan, const TrainingConfig& training);

// The fastest plan of each layout, schedule and micro-batch, of those that are fastest: exact, and
// as large for any space.  Plans that come to their own when their layers are divided anew or when
// they are simulated need not be the fastest of their layout before.
class Leaders {
 public:
  enum class Apart {
    kMicroBatches,  // as said
    kShardings,     // and of each ZeRO stage, with offloaded layers or without
  };
  Leaders() = default;
  explicit Leaders(Apart apart) : apart_(apart) {}
  static constexpr std::size_t kMost = 128;
  using Key = std::array<int, 11>;
  // Whether a plan that takes this long may be one.
  bool Admits(Seconds step) const { return step <= limit_; }
  void Add(const RankedPlan& plan, const TrainingConfig& training);
  void Merge(const Leaders& other);
  std::vector<RankedPlan> Sorted() const;  // fastest first, kMost at most

 private:
  void Add(const Key& key, const RankedPlan& plan);

  Apart apart_ = Apart::kMicroBatches;
  std::map<Key, RankedPlan> plans_;
  Seconds limit_{std::numeric_limits<double>::infinity()};
};

struct Findings {
  Objective objective = Objective::kThroughput;
  std::map<LayoutKey, std::optional<RankedPlan>> best;  // of each layout, where one fits
  Leaders leaders;                                      // of all that fit
  // Plans whose layers may be divided otherwise, with what their steps would be then
  // (PipelineTerms::StepIfDivided) in the place of their own: those that fit as they are, and those
  // that nearly do.  Which shardings fit when they are divided is not known before.
  Leaders divisible{Leaders::Apart::kShardings}, near{Leaders::Apart::kShardings};
  // And the fastest where each stage has the fastest choice of recomputation with which it fits:
  // the plan without one, and its step with them.
  std::map<LayoutKey, std::optional<RankedPlan>> by_rank;
  // Where no limit to what is of interest is known yet: of the pipelines that do not fit the one
  // that needs least memory, which may fit with its layers divided otherwise.
  std::map<LayoutKey, std::optional<RankedPlan>> least;
  ParetoFront pareto;
  Seconds fastest{std::numeric_limits<double>::infinity()};  // candidate, its layers as they are
  std::int64_t searched = 0;                                 // costed, whether they fit or not
  std::array<std::int64_t, kBounds> ruled_out{};             // candidates
  std::array<std::int64_t, kRejectionReasons> rejected{};
  std::array<OutOfMemory, kMemoryItems> out_of_memory{};

  void Reject(const Rejection& r) { ++rejected[static_cast<int>(r.reason)]; }
  void RuleOut(Bound bound, std::int64_t candidates) {
    ruled_out[static_cast<int>(bound)] += candidates;
  }
  OutOfMemory& RejectForMemory(MemoryItem largest, std::int64_t plans);
  // The plan that needs least memory of those rejected for it.
  std::optional<RankedPlan> NearestMiss() const;
};

void Merge(Findings& into, const Findings& from);

// The best of each layout, `top` at most, best first; of `in_framework` alone those that the
// framework runs.
std::vector<RankedPlan> BestOfLayouts(const Findings& findings, int top, bool in_framework);

}  // namespace millwright
