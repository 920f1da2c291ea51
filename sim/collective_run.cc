// SPDX-License-Identifier: Apache-2.0
#include "sim/collective_run.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "sim/event_queue.h"
#include "sim/transfer_progress.h"

namespace millwright {
namespace {

constexpr Seconds kEver{std::numeric_limits<double>::infinity()};

class Run {
 public:
  Run(const TransferPlan& plan, std::span<const int> members, RouteTable& routes, TransferCost cost)
      : plan_(plan), routes_(routes), cost_(cost) {
    for (int position = 0; position < plan.ranks(); ++position) {
      endpoint_.push_back(members.empty() ? position : members[std::size_t(position)]);
    }
    for (int domain = 0; plan.ranks() + domain < plan.endpoints(); ++domain) {
      endpoint_.push_back(routes.SwitchOf(endpoint_[std::size_t(plan.FirstOf(domain))]));
    }
    last_.resize(endpoint_.size(), {-1, -1});
  }

  Seconds Rounds();
  // Infinity as soon as a link is shared.
  Seconds Transfers(std::int64_t* count);
  Seconds FairShare(std::int64_t* count);
  std::vector<LinkLoad> Loads(Seconds* least);

 private:
  // Routes by position in the group; most senders have one receiver.
  int RouteOf(int from, int to) {
    auto& [last_to, route] = last_[std::size_t(from)];
    if (last_to != to) {
      last_to = to;
      route = routes_.Find(endpoint_[std::size_t(from)], endpoint_[std::size_t(to)]);
    }
    return route;
  }
  Seconds LatencyOf(int route) const { return routes_.LatencyOf(route) + cost_.overhead; }

  const TransferPlan& plan_;
  RouteTable& routes_;
  TransferCost cost_;
  std::vector<int> endpoint_;  // in routes_, by position
  std::vector<std::pair<int, int>> last_;
};

Seconds Run::Rounds() {
  Seconds total;
  std::vector<Transfer> transfers;
  std::vector<double> bytes(routes_.capacity().size(), 0);
  for (const TransferPlan::Phase& phase : plan_.Phases()) {
    transfers.clear();
    for (int e = 0; e < plan_.endpoints(); ++e) plan_.Sends(e, phase.first, &transfers);
    for (const Transfer& t : transfers) {
      for (const int link : routes_.LinksOf(RouteOf(t.from, t.to))) {
        bytes[std::size_t(link)] += plan_.BytesOf(t).value;
      }
    }
    Seconds slowest;
    for (const Transfer& t : transfers) {
      const int route = RouteOf(t.from, t.to);
      Seconds time = plan_.BytesOf(t) / cost_.cap;
      for (const int link : routes_.LinksOf(route)) {
        time =
            std::max(time, Bytes(bytes[std::size_t(link)]) / routes_.capacity()[std::size_t(link)]);
      }
      slowest = std::max(slowest, LatencyOf(route) + time);
    }
    for (const Transfer& t : transfers) {
      for (const int link : routes_.LinksOf(RouteOf(t.from, t.to))) bytes[std::size_t(link)] = 0;
    }
    total += phase.rounds * slowest;
  }
  return total;
}

Seconds Run::Transfers(std::int64_t* count) {
  struct Event {
    int from, to;
  };
  TransferProgress progress(plan_);
  EventQueue<Event> events;
  std::vector<int> busy(routes_.capacity().size(), 0);
  std::vector<Transfer> ready;
  progress.Begin(&ready);
  double now = 0;
  while (true) {
    for (const Transfer& t : ready) {
      const int route = RouteOf(t.from, t.to);
      for (const int link : routes_.LinksOf(route)) {
        if (busy[std::size_t(link)]++ > 0) return kEver;
      }
      const BytesPerSecond rate = std::min(routes_.BandwidthOf(route), cost_.cap);
      events.Push(Seconds(now) + LatencyOf(route) + plan_.BytesOf(t) / rate, {t.from, t.to});
    }
    *count += std::int64_t(ready.size());
    ready.clear();
    if (events.empty()) break;
    // All that ends now ends before anything starts: a link goes from one transfer to the next.
    const Seconds next = events.next_time();
    now = next.value;
    do {
      const Event event = events.Pop();
      for (const int link : routes_.LinksOf(RouteOf(event.from, event.to))) {
        --busy[std::size_t(link)];
      }
      progress.Done(event.from, event.to, &ready);
    } while (!events.empty() && events.next_time() == next);
  }
  MILLWRIGHT_CHECK(progress.finished());
  return Seconds(now);
}

Seconds Run::FairShare(std::int64_t* count) {
  TransferProgress progress(plan_);
  Flows flows(routes_.capacity());
  std::vector<Transfer> ready;
  std::vector<Completion> done;
  std::vector<LinkUse> uses;
  progress.Begin(&ready);
  Seconds now;
  *count = 0;
  while (!ready.empty()) {
    for (const Transfer& t : ready) {
      const int route = RouteOf(t.from, t.to);
      uses.clear();
      for (const int link : routes_.LinksOf(route)) uses.push_back({.link = link});
      flows.Start(now, LatencyOf(route), plan_.BytesOf(t), cost_.cap, uses,
                  std::int64_t(t.from) << 32 | t.to);
    }
    *count += std::int64_t(ready.size());
    ready.clear();
    while (ready.empty() && flows.NextEvent() < kEver) {
      now = flows.NextEvent();
      done.clear();
      flows.Advance(now, &done);
      for (const Completion& c : done) {
        progress.Done(int(c.tag >> 32), int(c.tag & 0xFFFFFFFF), &ready);
      }
    }
  }
  MILLWRIGHT_CHECK(progress.finished());
  return now;
}

std::vector<LinkLoad> Run::Loads(Seconds* least) {
  std::vector<Bytes> bytes(routes_.capacity().size());
  for (const TransferPlan::Edge& edge : plan_.Edges()) {
    for (const int link : routes_.LinksOf(RouteOf(edge.from, edge.to))) {
      bytes[std::size_t(link)] += edge.bytes;
    }
  }
  std::vector<LinkLoad> loads;
  for (std::size_t link = 0; link < bytes.size(); ++link) {
    if (bytes[link].value <= 0) continue;
    loads.push_back({.link = int(link), .bytes = bytes[link]});
    *least = std::max(*least, bytes[link] / routes_.capacity()[link]);
  }
  return loads;
}

}  // namespace

CollectiveRun RunCollective(const TransferPlan& plan, std::span<const int> members,
                            RouteTable& routes, RunMode mode, TransferCost cost) {
  Run run(plan, members, routes, cost);
  CollectiveRun result;
  switch (mode) {
    case RunMode::kRounds:
      result.time = run.Rounds();
      break;
    case RunMode::kTransfers:
      result.time = run.Transfers(&result.transfers);
      if (result.time == kEver) {
        result.shared = true;
        result.time = run.FairShare(&result.transfers);
      }
      break;
  }
  result.loads = run.Loads(&result.least);
  MILLWRIGHT_CHECK(result.time.value >= result.least.value * (1 - 1e-9));
  for (LinkLoad& load : result.loads) {
    load.utilisation = load.bytes / routes.capacity()[std::size_t(load.link)] / result.time;
  }
  return result;
}

void RingRecurrence(std::span<const Seconds> hop, int rounds, std::vector<Seconds>* start) {
  const std::size_t n = hop.size();
  MILLWRIGHT_CHECK(start->size() == n && n > 0);
  // Two arrays of plain doubles, so that the inner loop becomes vector instructions.
  std::vector<double> at(n), next(n), takes(n);
  for (std::size_t p = 0; p < n; ++p) {
    at[p] = (*start)[p].value;
    takes[p] = hop[p].value;
  }
  for (int round = 0; round < rounds; ++round) {
    next[0] = std::max(at[0] + takes[0], at[n - 1] + takes[n - 1]);
    for (std::size_t p = 1; p < n; ++p) {
      const double sent = at[p] + takes[p], received = at[p - 1] + takes[p - 1];
      next[p] = sent > received ? sent : received;
    }
    at.swap(next);
  }
  for (std::size_t p = 0; p < n; ++p) (*start)[p] = Seconds(at[p]);
}

}  // namespace millwright
