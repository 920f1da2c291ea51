// SPDX-License-Identifier: Apache-2.0
#include "sim/network.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

constexpr BytesPerSecond kUncapped{std::numeric_limits<double>::infinity()};

// A payload that costs latency alone.
constexpr Bytes kNextToNothing{1e-9};

// A flow's tag: the call, and for a transfer its ends.
constexpr int kEndBits = 20;
constexpr std::int64_t kEndMask = (std::int64_t{1} << kEndBits) - 1;
static_assert(2 * std::int64_t{kMaxGpus} <= kEndMask);

// Of the bandwidth of its links, what a collective has in its price.
double AchievedShare(CollectiveKind kind, CollectiveAlgorithm priced, bool fabric,
                     const PathProfile& p, const CollectiveCalibration& c) {
  const bool nvls =
      priced == CollectiveAlgorithm::kNvls || priced == CollectiveAlgorithm::kNvlsTree;
  const bool tree =
      priced == CollectiveAlgorithm::kTree || priced == CollectiveAlgorithm::kNvlsTree;
  if (fabric) return c.fabric_efficiency * (tree ? c.tree_efficiency : 1);
  if (kind == CollectiveKind::kAllToAll) return c.all_to_all_efficiency;
  // The calibration counts 2 (n - 1) / n bytes for a byte of payload, where 1 + 1 / n pass.
  const double n = p.max_ranks_per_domain;
  if (nvls) return std::min(1.0, c.nvls_efficiency * (n + 1) / (2 * (n - 1)));
  return c.domain_efficiency * (tree ? c.tree_efficiency : 1);
}

// An uneven all-to-all is priced as an even one in which all are as busy as the busiest.
Bytes PricedPayload(const CollectiveCall& call, int ranks) {
  if (call.loads.empty()) return call.payload;
  const auto n = std::size_t(ranks);
  MILLWRIGHT_CHECK(call.kind == CollectiveKind::kAllToAll && call.loads.size() == n * n);
  Bytes busiest;
  for (std::size_t a = 0; a < n; ++a) {
    Bytes sent, received;
    for (std::size_t b = 0; b < n; ++b) {
      if (a == b) continue;
      sent += call.loads[a * n + b];
      received += call.loads[b * n + a];
    }
    busiest = std::max({busiest, sent, received});
  }
  return ranks > 1 ? busiest * double(ranks) / double(ranks - 1) : Bytes(0);
}

}  // namespace

Seconds LeastTime(CollectiveKind kind, Bytes payload, const PathProfile& p) {
  if (p.ranks <= 1 || payload.value <= 0) return {};
  const bool fabric = p.domains > 1;
  // The fullest domain has most NICs; between domains, each of its members counts.
  const double members = fabric ? p.max_ranks_per_domain : 1;
  const BytesPerSecond one = fabric ? p.fabric_bandwidth : p.domain_bandwidth;
  const double outside = (p.ranks - members) / p.ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
      return payload / (members * one);
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return outside * payload / (members * one);
    case CollectiveKind::kAllToAll:
      return outside * payload / one;
    case CollectiveKind::kSendRecv:
      return payload / one;
  }
  return {};
}

Seconds PriceOf(const CollectiveCall& call, const PathProfile& profile,
                const CollectiveCalibration& calibration) {
  if (call.price.value >= 0) return call.price;
  const Bytes payload = PricedPayload(call, profile.ranks);
  const Seconds price = CostOfCollective(call.kind, payload, profile, calibration).time;
  MILLWRIGHT_CHECK(price.value >= LeastTime(call.kind, payload, profile).value * (1 - 1e-9));
  return price;
}

// --- Closed form
// ----------------------------------------------------------------------------------

int ClosedFormNetwork::AddGroup(std::span<const int> ranks) {
  groups_.push_back(cluster_.Profile(ranks));
  return int(groups_.size()) - 1;
}

Seconds ClosedFormNetwork::Alone(const CollectiveCall& call) {
  return PriceOf(call, groups_[std::size_t(call.group)], calibration_);
}

void ClosedFormNetwork::Start(Seconds now, const CollectiveCall& call, std::int64_t tag) {
  ends_.Push(now + Alone(call), tag);
}

void ClosedFormNetwork::Advance(Seconds until, std::vector<Completion>* done) {
  while (!ends_.empty() && ends_.next_time() <= until) {
    const Seconds time = ends_.next_time();
    done->push_back({time, ends_.Pop()});
  }
}

// --- Fair share
// -----------------------------------------------------------------------------------

FairShareNetwork::FairShareNetwork(const Cluster& cluster, const CollectiveCalibration& calibration,
                                   Expansion expansion)
    : cluster_(cluster),
      calibration_(calibration),
      no_envelope_(calibration),
      expansion_(expansion),
      routes_(cluster),
      link_bytes_(cluster.links().size(), 0) {
  no_envelope_.sqrt_coefficient = no_envelope_.fabric_sqrt_coefficient = 0;
}

void FairShareNetwork::Slow(int link, double factor) { routes_.Slow(link, factor); }
void FairShareNetwork::Fail(int link) { routes_.Fail(link); }

int FairShareNetwork::AddGroup(std::span<const int> ranks) {
  if (!flows_) flows_ = std::make_unique<Flows>(routes_.capacity());
  groups_.push_back({.ranks = {ranks.begin(), ranks.end()},
                     .domain_sizes = DomainSizes(ranks, cluster_.gpus_per_domain()),
                     .profile = cluster_.Profile(ranks),
                     .footprints = {}});
  PathProfile& profile = groups_.back().profile;
  profile.in_switch_reduction = profile.in_switch_reduction &&
                                std::all_of(ranks.begin(), ranks.end(),
                                            [&](int rank) { return routes_.ReachesSwitch(rank); });
  return int(groups_.size()) - 1;
}

FairShareNetwork::Price FairShareNetwork::PriceWhenAlone(Group& group, const CollectiveCall& call) {
  const PathProfile& p = group.profile;
  const Seconds sound = PriceOf(call, p, calibration_);
  const Seconds fixed = FixedPart(call, sound);
  Price price{.time = sound, .fixed = fixed, .flowing = sound - fixed};
  if (!routes_.disturbed() || sound.value <= 0) return price;
  const Footprint& footprint = FootprintOf(group, call);
  if (footprint.worn_domain == 0 && footprint.worn_fabric == 0) return price;
  const Bytes payload = PricedPayload(call, p.ranks);
  const auto cost = [&](double times) {
    return CostOfCollective(call.kind, payload * times, p, no_envelope_);
  };
  // What a little payload costs is bandwidth alone; on one side of it NCCL may begin to use NVLS.
  constexpr double kLittle = 1.0 / 1024;
  const Seconds by_bandwidth =
      std::max(cost(1 + kLittle).time - cost(1).time, cost(1).time - cost(1 - kLittle).time) /
      kLittle;
  const auto share = [&](bool fabric) {
    return AchievedShare(call.kind, cost(1).algorithm, fabric, p, calibration_);
  };
  const Seconds worn(LaneBytes(footprint, call) * std::max(footprint.worn_domain / share(false),
                                                           footprint.worn_fabric / share(true)));
  const Seconds modelled = CostOfCollective(call.kind, payload, p, calibration_).time;
  const Seconds flowing = modelled - FixedPart(call, modelled);
  if (worn > by_bandwidth && flowing.value > 0) {
    // As a share of what flows by the model, for a caller may have priced the call by other means.
    const Seconds longer = price.flowing * ((worn - by_bandwidth) / flowing);
    price.time += longer;
    price.flowing += longer;
  }
  return price;
}

Seconds FairShareNetwork::Alone(const CollectiveCall& call) {
  return PriceWhenAlone(groups_[std::size_t(call.group)], call).time;
}

CollectiveAlgorithm FairShareNetwork::FootprintAlgorithm(const Group& group,
                                                         const CollectiveCall& call) const {
  const PathProfile& p = group.profile;
  const DomainLink link = cluster_.config().domain_link;
  const bool linked = link == DomainLink::kNvswitch || link == DomainLink::kXgmiMesh;
  const bool several = p.domains > 1 && p.max_ranks_per_domain > 1;
  switch (call.kind) {
    case CollectiveKind::kSendRecv:
      return CollectiveAlgorithm::kDirect;
    case CollectiveKind::kBroadcast:
      return link == DomainLink::kXgmiMesh && p.domains == 1 ? CollectiveAlgorithm::kDirect
                                                             : CollectiveAlgorithm::kRing;
    case CollectiveKind::kAllToAll:
      return linked && several ? CollectiveAlgorithm::kRailAligned : CollectiveAlgorithm::kDirect;
    case CollectiveKind::kAllReduce: {
      const CollectiveAlgorithm priced =
          CostOfCollective(call.kind, call.payload, p, calibration_).algorithm;
      if (priced == CollectiveAlgorithm::kNvls || priced == CollectiveAlgorithm::kNvlsTree) {
        return CollectiveAlgorithm::kNvls;
      }
      break;
    }
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      break;
  }
  if (linked && several) return CollectiveAlgorithm::kHierarchical;
  if (link == DomainLink::kXgmiMesh && p.domains == 1) return CollectiveAlgorithm::kDirect;
  return CollectiveAlgorithm::kRing;
}

int FairShareNetwork::RouteOf(const Group& group, const TransferPlan& plan, int from, int to) {
  const auto endpoint = [&](int position) {
    if (position < plan.ranks()) return group.ranks[std::size_t(position)];
    return routes_.SwitchOf(group.ranks[std::size_t(plan.FirstOf(position - plan.ranks()))]);
  };
  return routes_.Find(endpoint(from), endpoint(to));
}

bool FairShareNetwork::IsTreeOfTwo(const Group& group, const CollectiveCall& call) const {
  if (call.kind != CollectiveKind::kAllReduce || group.profile.domains != 2) return false;
  const CollectiveAlgorithm priced =
      CostOfCollective(call.kind, call.payload, group.profile, calibration_).algorithm;
  return priced == CollectiveAlgorithm::kTree || priced == CollectiveAlgorithm::kNvlsTree;
}

FairShareNetwork::Footprint FairShareNetwork::Measure(const Group& group, const TransferPlan& plan,
                                                      bool tree_of_two) {
  const CollectiveAlgorithm algorithm = plan.spec().algorithm;
  Footprint footprint{
      .kind = plan.spec().kind, .algorithm = algorithm, .tree_of_two = tree_of_two, .uses = {}};
  std::vector<TransferPlan::Edge> edges = plan.Edges();
  // Rings through all n members carry (n - 1) / n of a byte of payload from domain to domain, each
  // way around; rings of one member for each of D domains (D - 1) / D, and so do trees of two.
  if (plan.domains() > 1 && !tree_of_two &&
      (algorithm == CollectiveAlgorithm::kHierarchical ||
       algorithm == CollectiveAlgorithm::kNvls)) {
    const double n = plan.ranks(), d = plan.domains();
    for (TransferPlan::Edge& edge : edges) {
      const bool across = edge.from < plan.ranks() && edge.to < plan.ranks() &&
                          plan.DomainOf(edge.from) != plan.DomainOf(edge.to);
      if (across) edge.bytes = edge.bytes * ((n - 1) / n / ((d - 1) / d));
    }
  }
  std::sort(edges.begin(), edges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  Bytes pair;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const TransferPlan::Edge& edge = edges[i];
    if (edge.bytes.value <= 0) continue;
    const bool same = i > 0 && edges[i - 1].from == edge.from && edges[i - 1].to == edge.to;
    pair = same ? pair + edge.bytes : edge.bytes;
    footprint.lane_bytes = std::max(footprint.lane_bytes, pair.value);
    const int route = RouteOf(group, plan, edge.from, edge.to);
    for (const int link : routes_.LinksOf(route)) {
      if (routes_.disturbed() && (routes_.IsDetour(route) || routes_.IsSlow(link))) {
        worn_.push_back(link);
      }
      double& bytes = link_bytes_[std::size_t(link)];
      if (bytes == 0) footprint.uses.push_back({.link = link});
      bytes += edge.bytes.value;
    }
  }
  for (LinkUse& use : footprint.uses) {
    use.lanes = link_bytes_[std::size_t(use.link)] / footprint.lane_bytes;
  }
  const auto in_fabric = [&](int vertex) {
    return cluster_.KindOf(vertex) >= VertexKind::kNic;  // and leaf, spine, core
  };
  for (const int link : worn_) {
    const Link& l = cluster_.links()[std::size_t(link)];
    double& worn =
        in_fabric(l.from) && in_fabric(l.to) ? footprint.worn_fabric : footprint.worn_domain;
    const double lanes = link_bytes_[std::size_t(link)] / footprint.lane_bytes;
    worn = std::max(worn, lanes / routes_.capacity()[std::size_t(link)].value);
  }
  worn_.clear();
  for (const LinkUse& use : footprint.uses) link_bytes_[std::size_t(use.link)] = 0;
  return footprint;
}

double FairShareNetwork::LaneBytes(const Footprint& footprint, const CollectiveCall& call) {
  return footprint.lane_bytes * (call.loads.empty() ? call.payload.value : 1);
}

const FairShareNetwork::Footprint& FairShareNetwork::FootprintOf(Group& group,
                                                                 const CollectiveCall& call) {
  const CollectiveAlgorithm algorithm = FootprintAlgorithm(group, call);
  const bool tree_of_two = IsTreeOfTwo(group, call);
  if (!call.loads.empty()) {
    uneven_ = Measure(group,
                      TransferPlan({.kind = call.kind,
                                    .algorithm = algorithm,
                                    .domain_sizes = group.domain_sizes,
                                    .loads = {call.loads.begin(), call.loads.end()}}),
                      tree_of_two);
    return uneven_;
  }
  for (const Footprint& known : group.footprints) {
    if (known.kind == call.kind && known.algorithm == algorithm &&
        known.tree_of_two == tree_of_two) {
      return known;
    }
  }
  group.footprints.push_back(Measure(group,
                                     TransferPlan({.kind = call.kind,
                                                   .algorithm = algorithm,
                                                   .payload = Bytes(1),
                                                   .domain_sizes = group.domain_sizes,
                                                   .loads = {}}),
                                     tree_of_two));
  return group.footprints.back();
}

Seconds FairShareNetwork::FixedPart(const CollectiveCall& call, Seconds price) const {
  const PathProfile& profile = groups_[std::size_t(call.group)].profile;
  return std::min(price, CostOfCollective(call.kind, kNextToNothing, profile, calibration_).time);
}

double FairShareNetwork::StretchAlone(const CollectiveCall& call) {
  Group& group = groups_[std::size_t(call.group)];
  const Seconds sound = PriceOf(call, group.profile, calibration_);
  if (sound.value <= 0) return 1;
  const Price price = PriceWhenAlone(group, call);
  const Footprint& footprint = FootprintOf(group, call);
  double flowing = 0;
  for (const LinkUse& use : footprint.uses) {
    flowing = std::max(flowing, use.lanes / CapacityOf(use.link).value);
  }
  flowing *= LaneBytes(footprint, call);
  return std::max(price.time.value, price.fixed.value + flowing) / sound.value;
}

void FairShareNetwork::Start(Seconds now, const CollectiveCall& call, std::int64_t tag) {
  Group& group = groups_[std::size_t(call.group)];
  const Price price = PriceWhenAlone(group, call);
  int id = int(calls_.size());
  if (free_calls_.empty()) {
    calls_.emplace_back();
  } else {
    id = free_calls_.back();
    free_calls_.pop_back();
  }
  Call& slot = calls_[std::size_t(id)];
  slot.tag = tag;
  slot.order = started_++;
  slot.not_before = now + price.time;
  if (price.time.value <= 0) {  // a group of one, or nothing to send
    held_.Push(now, id);
    return;
  }
  const Footprint& footprint = FootprintOf(group, call);
  const double lane_bytes = LaneBytes(footprint, call);
  if (expansion_ == Expansion::kAlways ||
      (expansion_ == Expansion::kWhereShared && flows_->InUse(footprint.uses))) {
    Expand(now, id, call, price.fixed, price.flowing, lane_bytes);
    return;
  }
  const BytesPerSecond cap =
      price.flowing.value > 0 ? Bytes(lane_bytes) / price.flowing : kUncapped;
  flows_->Start(now, price.fixed, Bytes(lane_bytes), cap, footprint.uses,
                std::int64_t(id) << (2 * kEndBits));
}

void FairShareNetwork::Expand(Seconds now, int call, const CollectiveCall& what, Seconds fixed,
                              Seconds flowing, double lane_bytes) {
  const Group& group = groups_[std::size_t(what.group)];
  auto expanded =
      std::make_unique<Expanded>(CollectiveSpec{.kind = what.kind,
                                                .algorithm = FootprintAlgorithm(group, what),
                                                .payload = what.payload,
                                                .domain_sizes = group.domain_sizes,
                                                .loads = {what.loads.begin(), what.loads.end()}});
  // Where all transfers flow at once, each is capped as in the single flow; where they come in
  // stages, links decide, and the price holds the end.
  const bool at_once = expanded->plan.spec().algorithm == CollectiveAlgorithm::kRing ||
                       expanded->plan.spec().algorithm == CollectiveAlgorithm::kDirect;
  expanded->group = what.group;
  expanded->latency = fixed / expanded->plan.rounds();
  expanded->cap = at_once && flowing.value > 0 ? Bytes(lane_bytes) / flowing : kUncapped;
  ready_.clear();
  expanded->progress.Begin(&ready_);
  calls_[std::size_t(call)].expanded = std::move(expanded);
  StartTransfers(now, call, ready_);
}

void FairShareNetwork::StartTransfers(Seconds now, int call,
                                      const std::vector<Transfer>& transfers) {
  const Expanded& e = *calls_[std::size_t(call)].expanded;
  for (const Transfer& t : transfers) {
    uses_.clear();
    const int route = RouteOf(groups_[std::size_t(e.group)], e.plan, t.from, t.to);
    for (const int link : routes_.LinksOf(route)) uses_.push_back({.link = link});
    flows_->Start(now, e.latency, e.plan.BytesOf(t), e.cap, uses_,
                  std::int64_t(call) << (2 * kEndBits) | std::int64_t(t.from) << kEndBits | t.to);
  }
}

Seconds FairShareNetwork::NextEvent() {
  const Seconds held = held_.next_time();
  return flows_ ? std::min(held, flows_->NextEvent()) : held;
}

void FairShareNetwork::Advance(Seconds until, std::vector<Completion>* done) {
  for (Seconds next = NextEvent();
       next <= until && next.value < std::numeric_limits<double>::infinity(); next = NextEvent()) {
    ended_.clear();
    while (!held_.empty() && held_.next_time() <= next) ended_.push_back(held_.Pop());
    flow_ends_.clear();
    flows_->Advance(next, &flow_ends_);
    for (const Completion& end : flow_ends_) {
      const int call = int(end.tag >> (2 * kEndBits));
      Call& slot = calls_[std::size_t(call)];
      if (slot.expanded) {
        ready_.clear();
        slot.expanded->progress.Done(int(end.tag >> kEndBits & kEndMask), int(end.tag & kEndMask),
                                     &ready_);
        StartTransfers(next, call, ready_);
        if (!slot.expanded->progress.finished()) continue;
        if (slot.not_before > next) {
          held_.Push(slot.not_before, call);
          continue;
        }
      }
      ended_.push_back(call);
    }
    std::sort(ended_.begin(), ended_.end(), [&](int a, int b) {
      return calls_[std::size_t(a)].order < calls_[std::size_t(b)].order;
    });
    for (const int call : ended_) {
      Call& slot = calls_[std::size_t(call)];
      done->push_back({next, slot.tag});
      slot.expanded.reset();
      free_calls_.push_back(call);
    }
  }
  if (flows_ && until.value < std::numeric_limits<double>::infinity()) {
    flow_ends_.clear();
    flows_->Advance(until, &flow_ends_);
  }
}

std::vector<LinkLoad> FairShareNetwork::Loads(Seconds elapsed) const {
  return flows_ ? flows_->Loads(elapsed) : std::vector<LinkLoad>{};
}

}  // namespace millwright
