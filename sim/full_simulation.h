// SPDX-License-Identifier: Apache-2.0
//
// A step with every rank in it: what does contention cost, and what a slow part?
//
// A rank of the step graph stands for a plane of ranks that do the same; here all of them run.
// Rank r is member r mod plane of pipeline rank r / plane, on the GPU of that number unless the
// options say otherwise.  They share one program, and only their state is kept for each: when each
// task ended.  A collective begins when the last of its members is ready and ends for all of them
// at once, as NCCL's rings do to within a step.
//
// Prices are those of the graph, so that this and sim/simulate differ in nothing but what they are
// asked about: where every rank is as fast as the others and no link is shared, both give the same
// times (tests/sim/full_simulation_test.cc: to 1e-9).
//   links    What a group of ranks does on links that no other group uses, and which are as fast
//            as they should be, takes its price.  All else is flows over the cluster's links
//            (FairShareNetwork): its price alone, more where links are shared.
//   disturbance  A slow rank computes at its share of the speed; what crosses slow and failed links
//            goes through the network (without share_links they change nothing).
//   jitter   The time of every compute task is multiplied by a log-normal of that sigma and mean
//            1, drawn anew for each task; of every rank, likewise, once a step.  No draw, and no
//            product of them, is below `fastest`: what the peak allows.
//   routing  What the router sends to an expert rank is a log-normal of that sigma and mean 1,
//            drawn for each piece of work on it; an exchange takes as long as the fullest of its
//            members asks for.  On top of TrainingConfig::moe_imbalance, which is in the prices.
//            (A rank's load is not the same in the exchange and the compute of one layer.)
//
// No queue of events where times follow from program order: streams are worked off in turn, each
// until it waits for something unknown.  What goes to the network is put in order of time: once
// nothing else can move, nothing can come before the earliest of its start and the network's next
// event.  Linear in tasks; a logarithm for each collective that shares links.  8 bytes a task.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/units.h"
#include "cost_models/calibration.h"
#include "sim/disturbance.h"
#include "sim/network.h"
#include "sim/simulate.h"
#include "sim/task_graph.h"
#include "topologies/cluster.h"

namespace millwright {

struct FullOptions {
  int plane = 1;                   // ranks that a rank of the graph stands for
  std::vector<int> gpu_of_rank{};  // of the cluster; empty: each rank's own number
  bool share_links = true;         // false: every collective takes its price
  Disturbance disturbance{};
  double jitter = 0;       // sigma of a task
  double routing = 0;      // sigma of an expert rank's load
  double rank_jitter = 0;  // sigma of a rank, for a whole step
  std::uint64_t seed = 0;
  double fastest = 0;  // share of its time that a task takes at the peak of the GPU
};

// What sharing links cost, by the cause of the collectives.
struct Contention {
  std::int64_t collectives = 0;  // that went over links which others use, or slowed ones
  std::int64_t delayed = 0;      // of them, that took longer than alone: by over 1e-6
  Seconds delay;                 // of all of those, together
  double worst = 1;              // the longest, over its price
};

struct FullStep {
  Seconds makespan;
  std::vector<RankTime> ranks;  // of each rank of the cluster
  std::vector<Seconds> finish;  // of each rank
  std::array<Contention, kCauses> contention{};
  std::vector<LinkLoad> links;  // that carried anything; empty without share_links
  std::int64_t tasks = 0;       // of all ranks
  std::vector<double> ends;     // [member][task of the graph]
  int latest() const;           // rank that finishes last; the first of those within 1e-9
};

class FullSimulation {
 public:
  // `graph`, `cluster` and `calibration` must outlive it; the cluster has plane x graph.ranks()
  // ranks or more.
  FullSimulation(const TaskGraph& graph, const Cluster& cluster,
                 const CollectiveCalibration& calibration, FullOptions options);
  ~FullSimulation();

  // Step number `step` of those that the seed gives.  From any number of threads.
  FullStep Run(std::int64_t step = 0,
               const std::function<void(double share_done)>& progress = {}) const;

  // Links are slowed or down that no collective of the step crosses while all are sound.
  bool disturbed_in_vain() const;

  // What the members of one place in their planes did: a Timeline of the graph.
  Timeline TimelineOf(const FullStep& result, int member) const;

  // That Run() needs for a step of `tasks` on a plane.
  static Bytes MemoryFor(std::size_t tasks, int ranks_of_graph, int plane);

 private:
  class Running;
  struct Prepared;
  struct Group {
    int first = 0, stride = 1, ranks = 1;
    int network = kAlone;  // its number there; kAlone: has its links to itself
  };
  static constexpr int kAlone = -1;
  std::unique_ptr<const Prepared> Prepare() const;
  std::unique_ptr<FairShareNetwork> MakeNetwork() const;  // without groups
  int GpuOf(int rank) const;
  std::vector<int> GpusOf(const Group& group) const;

  const TaskGraph& graph_;
  const Cluster& cluster_;
  const CollectiveCalibration& calibration_;
  FullOptions options_;
  std::unique_ptr<const Prepared> prepared_;
};

}  // namespace millwright
