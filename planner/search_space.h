// SPDX-License-Identifier: Apache-2.0
//
// Which candidates does a search go through, and how many are they?
//
// Nothing is listed: a space is the lists that its candidates are made of.  A candidate is a cut of
// the layers (tp, sp, cp and its kind, ep, etp), a micro-batch, a pipeline with a schedule and its
// virtual stages, a ZeRO stage with its shard and a choice of recomputation that the checks of
// planner/feasibility and the filter pass.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"
#include "cost_models/operators.h"
#include "cost_models/pipeline.h"
#include "planner/findings.h"
#include "planner/plan_filter.h"
#include "topologies/cluster.h"

namespace millwright {

// Every choice of recomputation worth costing for this model, but those of some layers alone: none,
// sets of modules, full.
std::vector<Recompute> RecomputeChoices(const ModelConfig& model);
// Those that are searched with offloading: none, and each module by itself.
std::vector<Recompute> OffloadChoices(const ModelConfig& model);

// Pipeline splits that candidates share, and the schedules that lay stages out like that.
struct PipelineLayout {
  int virtual_stages = 1;
  bool divides = false;  // its layers may be divided otherwise at the end (CanSplit)
  std::vector<ScheduleKind> schedules;
  std::vector<int> rank_of_stage;
  std::vector<StageContent> stages;  // distinct
  // Choices of which some layers of a chunk are treated: so many of them, and what that is of each
  // stage (SomeLayers).
  struct OfChunk {
    int layers = 0;
    std::vector<int> some;
  };
  std::vector<OfChunk> full, offload;
};
using PipelineLayouts = std::map<int, std::vector<PipelineLayout>>;  // by pipeline degree

// How data-parallel ranks share out the state, and which GPUs they have.
struct Sharding {
  int zero = 0, shard = 0;
  RankOrder order = RankOrder::kDataInside;
};

// In ascending order, those up to `most`.
std::vector<int> Divisors(std::int64_t n, std::int64_t most);

// Whether DualPipe's pairs may hide communication under all compute.
bool Overlaps(ScheduleKind kind);
template <class Is>
bool AnySchedule(const PipelineLayouts& layouts, const Is& is) {
  for (const auto& [pipeline, of_degree] : layouts) {
    for (const PipelineLayout& layout : of_degree) {
      if (std::any_of(layout.schedules.begin(), layout.schedules.end(), is)) return true;
    }
  }
  return false;
}
// Whether the search takes this ZeRO stage with the schedule: 2 and 3 with 1F1B and interleaved,
// and with what the framework has besides.
bool ShardsUnder(Framework framework, ScheduleKind kind, int zero);

struct Space {
  const ModelConfig& model;
  const TrainingConfig& training;
  const Cluster& cluster;
  const PlanFilter& filter;
  Bytes memory_limit;
  std::vector<LayerShape> shapes;  // without micro-batches
  std::vector<int> micro_batches;
  PipelineLayouts layouts;
  std::vector<Recompute> choices;
  std::vector<int> zeros;
  std::vector<RankOrder> orders;
  bool overlapping = false;  // some schedule Overlaps
  bool partial_recompute = true;
  std::vector<Recompute> offloads;  // what an offloaded plan does beside offloading; empty: none is
  bool divide = false;              // the layers of the best are divided anew
  bool by_rank = false;  // plans are looked for that recompute by rank (Findings::by_rank)

  // What may be ruled out.  A plan slower than the table's limit is not in the table, of all plans
  // or of those that the framework runs; one slower than the front's, or no better than a plan that
  // is known, is not on the front.
  struct TableLimit {
    Seconds step{std::numeric_limits<double>::infinity()};
    Bytes peak{std::numeric_limits<double>::infinity()};  // where memory is the objective
  };
  Objective objective = Objective::kThroughput;  // of the table
  bool exhaustive = false;                       // nothing
  TableLimit table_limit, others_limit;          // of the framework's plans, and of those it is not
  Seconds front_limit{std::numeric_limits<double>::infinity()};
  ParetoFront known;
  // Whether no plan that takes this long and this much, or more, is of interest; of those that the
  // framework does not run, if `others`.
  bool Irrelevant(Seconds step, Bytes peak, bool others = false) const;
  // Whether any plan could be.
  bool limited() const { return std::isfinite(front_limit.value); }

  // A unit of work is a shape with a micro-batch.
  std::size_t units() const { return shapes.size() * micro_batches.size(); }
  // Of so many parts, the one that has the unit: micro-batches and shapes are dealt out alike.
  std::size_t PartOf(std::size_t unit, std::size_t parts) const {
    return (unit / micro_batches.size() + unit % micro_batches.size()) % parts;
  }
  LayerShape ShapeOf(std::size_t unit) const;
  ParallelConfig PlanOf(const LayerShape& shape) const;

  // The ways to shard `plan`'s state: over all data-parallel ranks, or HSDP's usual shard, those
  // inside a domain; or over what was asked for.  In each of the orders, where they differ.
  std::vector<Sharding> Shardings(const ParallelConfig& plan) const;
  // Of recomputation and offloading.
  std::int64_t Choices(const PipelineLayout& layout, ScheduleKind schedule) const;
  // `plan` has this layout: whether it can run under `schedule`.
  Verdict Check(ParallelConfig plan, ScheduleKind schedule) const;
};

// What of the space comes from tensor, context and expert cuts, the pipelines and the rest; what
// the checks and the filter take out of them is counted in `findings`.
Space SpaceOf(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster,
              const PlanFilter& filter, Bytes memory_limit, bool offload, Findings& findings);
// What coarse searches go through, one after the other, each within the limits that the ones before
// have found.  All leave out large micro-batches and all but a few ways to shard and recompute.
enum class CoarseStage {
  kFirst,   // the smallest micro-batch and each pipeline's first layout, all or nothing recomputed
  kOwn,     // 1F1B and interleaved, without many virtual stages
  kOthers,  // the first layout of each other schedule
};
Space CoarsePart(const Space& space, CoarseStage stage);

// Counts candidates without costing them; remembers what shapes share.
class CandidateCount {
 public:
  explicit CandidateCount(const Space& space) : space_(space) {}
  // Of one unit of work: `shape` with its micro-batch.
  std::int64_t Of(const LayerShape& shape);
  // Of the whole space.
  std::int64_t OfAll();
  // Of a schedule under a layout, for the shardings given.
  std::int64_t Of(const PipelineLayout& layout, ScheduleKind schedule,
                  const std::vector<Sharding>& shardings) const;

 private:
  // Choices of schedule, virtual stages and recomputation: of those schedules that go with every
  // ZeRO stage, and of those that go with 0 and 1 alone.
  struct OfPipeline {
    int pipeline = 1, data = 1;
    std::int64_t any_zero = 0, low_zero = 0;
  };
  std::int64_t Of(const LayerShape& shape, const std::vector<OfPipeline>& pipelines) const;
  const std::vector<OfPipeline>& OfCut(std::int64_t cut, int micro_batch);

  const Space& space_;
  std::map<std::pair<std::int64_t, int>, std::vector<OfPipeline>> cuts_;
};

}  // namespace millwright
