// SPDX-License-Identifier: Apache-2.0
//
// How long does communication take, and who else is on the links?
//
// One of the two places where the simulator can be given another implementation:
//   - ClosedFormNetwork: every collective takes what the cost model says for its group's path
//     profile (base + steps x latency + bytes over the achieved bandwidth + the protocol
//     envelope; cost_models/collectives), whatever else is under way.
//   - FairShareNetwork: the same price when alone, and max-min fair shares of the cluster's links
//     (GPU to PCIe switch, NVLink, NVSwitch, NIC, leaf, spine, core) where others use them too.
//
// Fair sharing.  A collective's price splits into a fixed part, what the kind costs with next to
// no payload, and the rest, X, in which its bytes flow.  In X it is one flow that has on
// each link as many lanes as the plan (sim/collectives) puts bytes there, in units of the largest
// amount between any two members; its rate is capped so that alone it takes X.  Where links give
// less, X grows.  So a collective is one event, whose rate its links decide: for rings, trees and
// all-to-alls, whose transfers all flow at once at one pace, that is what its transfers would do.
// Expansion::kWhereShared makes every transfer a flow of its own (with the fixed part spread over
// the rounds) where, at its start, a link it needs is in use; kAlways, everywhere.  Never before
// its price is a collective done.
//
// Footprints: NVLS as it is; across NVLink domains as hierarchical, with as many bytes between
// domains as NCCL's rings have there (the payload once, where a tree of two domains is priced),
// which leave by every member's NIC; direct on xGMI meshes; rings elsewhere; all-to-all by rails
// (PXN) between NVLink domains, direct otherwise.
//
// Slow and failed links.  A collective's rate is also what its slow links, and those on its ways
// around failed ones, give its lanes at the efficiency that software has on sound links.  Lanes
// move together: one NIC at half speed, or carrying two rails since another failed, halves a whole
// all-reduce over two nodes whose NICs were its limit.  That is right for NCCL's rings and trees,
// each of which has a fixed share of the payload and waits for its slowest hop in every round (no
// share is moved from a slow NIC to a sound one), and for an all-to-all, which ends with its
// slowest pair.  A detour's few microseconds of latency are left out.  Without a link to the
// NVSwitch there is no NVLS.
//
// Limits: fabric switches are non-blocking inside; no congestion spreading, no adaptive routing;
// a broadcast between xGMI meshes is a ring over single links of them, slower than its price; in
// its fixed part a collective uses no link; lanes move together, so that the part of a
// collective inside a domain waits for its part across.
//
// Always checked: a collective takes at least its bytes over the narrowest cut: of its path
// profile (closed form) and of each link it uses (fair share).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/path_profile.h"
#include "core/units.h"
#include "cost_models/calibration.h"
#include "cost_models/collectives.h"
#include "sim/collectives.h"
#include "sim/event_queue.h"
#include "sim/flows.h"
#include "sim/routes.h"
#include "sim/transfer_progress.h"
#include "topologies/cluster.h"

namespace millwright {

struct CollectiveCall {
  int group = 0;  // from AddGroup
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes payload;  // as in cost_models/collectives.h
  // All-to-all-v: bytes from x ranks + to, which then replace the payload.
  std::span<const Bytes> loads = {};
  // What it takes alone, where the caller has priced it; negative: by the cost model.
  Seconds price{-1};
};

class Network {
 public:
  virtual ~Network() = default;

  // Ranks of the cluster, those of a domain next to each other; send-recv goes from the first to
  // the last.  ConfigError for ranks that are not there.
  virtual int AddGroup(std::span<const int> ranks) = 0;

  // What a call takes while nothing else is under way.
  virtual Seconds Alone(const CollectiveCall& call) = 0;

  // All ranks are ready at `now`, which is at or after every time seen so far and not after
  // NextEvent().  `tag` comes back with the completion.
  virtual void Start(Seconds now, const CollectiveCall& call, std::int64_t tag) = 0;
  // No call ends before; infinity where none is under way.  It may be that none ends then either.
  virtual Seconds NextEvent() = 0;
  // Carries on up to and including `until`; appends completions in order of time and then of Start.
  virtual void Advance(Seconds until, std::vector<Completion>* done) = 0;

  // What links have carried; empty where the network knows of none.
  virtual std::vector<LinkLoad> Loads(Seconds elapsed) const = 0;
};

// The price of a call by a group's path profile.
Seconds PriceOf(const CollectiveCall& call, const PathProfile& profile,
                const CollectiveCalibration& calibration);
// What no network could beat: bytes over the narrowest cut of the profile.
Seconds LeastTime(CollectiveKind kind, Bytes payload, const PathProfile& profile);

class ClosedFormNetwork : public Network {
 public:
  // `cluster` and `calibration` must outlive it.
  ClosedFormNetwork(const Cluster& cluster, const CollectiveCalibration& calibration)
      : cluster_(cluster), calibration_(calibration) {}

  int AddGroup(std::span<const int> ranks) override;
  Seconds Alone(const CollectiveCall& call) override;
  void Start(Seconds now, const CollectiveCall& call, std::int64_t tag) override;
  Seconds NextEvent() override { return ends_.next_time(); }
  void Advance(Seconds until, std::vector<Completion>* done) override;
  std::vector<LinkLoad> Loads(Seconds) const override { return {}; }

 private:
  const Cluster& cluster_;
  const CollectiveCalibration& calibration_;
  std::vector<PathProfile> groups_;
  EventQueue<std::int64_t> ends_;
};

enum class Expansion { kNever, kWhereShared, kAlways };

class FairShareNetwork : public Network {
 public:
  // `cluster` and `calibration` must outlive it.
  FairShareNetwork(const Cluster& cluster, const CollectiveCalibration& calibration,
                   Expansion expansion = Expansion::kNever);

  // A link, as in Cluster::links(), at `factor` of its bandwidth; before the first group.
  void Slow(int link, double factor);
  // It carries nothing: routes go around it, and where none is left Alone and Start are
  // ConfigErrors.
  void Fail(int link);

  int AddGroup(std::span<const int> ranks) override;
  Seconds Alone(const CollectiveCall& call) override;
  void Start(Seconds now, const CollectiveCall& call, std::int64_t tag) override;
  Seconds NextEvent() override;
  void Advance(Seconds until, std::vector<Completion>* done) override;
  std::vector<LinkLoad> Loads(Seconds elapsed) const override;

  // What a plan puts on links, for a payload of one byte.
  struct Footprint {
    CollectiveKind kind{};
    CollectiveAlgorithm algorithm{};
    bool tree_of_two = false;  // domains, between which the payload goes once
    double lane_bytes = 0;     // of the fullest lane
    std::vector<LinkUse> uses;
    // Of links that are slow or on a detour: a lane's seconds for a byte, inside domains and
    // beyond.
    double worn_domain = 0, worn_fabric = 0;
  };
  struct Price {
    Seconds time, fixed, flowing;  // the first is the sum
  };
  // Of an even call.  Valid until the group's next new kind of call.
  const Footprint& UsesOf(const CollectiveCall& call) {
    return FootprintOf(groups_[std::size_t(call.group)], call);
  }
  // What a call takes with its links to itself, over its price: more than 1 where links are slow,
  // others carry more since one failed, or its own transfers meet on them.
  double StretchAlone(const CollectiveCall& call);
  BytesPerSecond CapacityOf(int link) const { return routes_.capacity()[std::size_t(link)]; }

 private:
  struct Group {
    std::vector<int> ranks;
    std::vector<int> domain_sizes;
    PathProfile profile;
    std::vector<Footprint> footprints;
  };
  // A collective whose transfers are flows.
  struct Expanded {
    explicit Expanded(CollectiveSpec spec) : plan(std::move(spec)), progress(plan) {}
    TransferPlan plan;
    TransferProgress progress;
    int group = 0;
    Seconds latency;  // of each transfer
    BytesPerSecond cap;
  };
  struct Call {
    std::int64_t tag = 0;
    std::int64_t order = 0;
    Seconds not_before;
    std::unique_ptr<Expanded> expanded;
  };

  // The part of a call's price in which nothing flows yet.
  Seconds FixedPart(const CollectiveCall& call, Seconds price) const;
  CollectiveAlgorithm FootprintAlgorithm(const Group& group, const CollectiveCall& call) const;
  // Valid until the next call.
  const Footprint& FootprintOf(Group& group, const CollectiveCall& call);
  static double LaneBytes(const Footprint& footprint, const CollectiveCall& call);
  Price PriceWhenAlone(Group& group, const CollectiveCall& call);
  bool IsTreeOfTwo(const Group& group, const CollectiveCall& call) const;
  Footprint Measure(const Group& group, const TransferPlan& plan, bool tree_of_two);
  int RouteOf(const Group& group, const TransferPlan& plan, int from, int to);
  void Expand(Seconds now, int call, const CollectiveCall& what, Seconds fixed, Seconds flowing,
              double lane_bytes);
  void StartTransfers(Seconds now, int call, const std::vector<Transfer>& transfers);

  const Cluster& cluster_;
  const CollectiveCalibration& calibration_;
  CollectiveCalibration no_envelope_;  // the same without the square-root term
  Expansion expansion_;
  RouteTable routes_;
  std::unique_ptr<Flows> flows_;  // from the first group on
  std::vector<Group> groups_;
  Footprint uneven_;
  std::vector<Call> calls_;
  std::vector<int> free_calls_;
  EventQueue<int> held_;  // calls whose transfers are through before their price is
  std::vector<Completion> flow_ends_;
  std::vector<int> ended_;
  std::int64_t started_ = 0;
  std::vector<Transfer> ready_;
  std::vector<LinkUse> uses_;
  std::vector<double> link_bytes_;
  std::vector<int> worn_;
};

}  // namespace millwright
