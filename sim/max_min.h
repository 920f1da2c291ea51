// SPDX-License-Identifier: Apache-2.0
//
// How do flows share links?  Max-min fair rates: no flow can have more without one that has less
// or as much getting less still.
//
// Model: a flow stands for `lanes` equal streams on each of its links and has one rate, that of
// each stream; the rates on a link, times their lanes, add up to at most its capacity.  Progressive
// filling: all rates rise together; where a link is full, or a flow at its own cap, its flows are
// frozen and the rest rise on (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).
// A link's fair share only grows as other flows freeze, so links wait in a heap under shares that
// may be too small, and are put back when they turn out to be: no link is looked at for every
// freeze.  Cost: links and uses once, and a logarithm for each return to the heap.
//
// Adding or removing flows re-solves only what they can touch: the flows that share a contended
// link with them, directly or through others.  A link is contended where its flows, all at their
// caps, would need more than it has; the others decide nothing.  Flat arrays; nothing is allocated
// once they have grown.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"

namespace millwright {

struct LinkUse {
  int link = 0;
  double lanes = 1;
};

class MaxMin {
 public:
  explicit MaxMin(std::span<const BytesPerSecond> capacity);

  // A flow that takes no part yet.  `cap` may be infinite.  No link twice; at least one link.
  // Numbers are given again after Remove.
  int Prepare(std::span<const LinkUse> uses, BytesPerSecond cap);
  void Activate(int flow);
  int Add(std::span<const LinkUse> uses, BytesPerSecond cap) {
    const int flow = Prepare(uses, cap);
    Activate(flow);
    return flow;
  }
  void Remove(int flow);  // an active one

  // After any number of the above: the flows whose rates are not what they were, new ones among
  // them, in no particular order but always in the same.  Valid until the next call.
  std::span<const int> Solve();

  BytesPerSecond RateOf(int flow) const { return BytesPerSecond(flows_[std::size_t(flow)].rate); }
  BytesPerSecond LoadOf(int link) const;  // in all
  BytesPerSecond CapacityOf(int link) const {
    return BytesPerSecond(links_[std::size_t(link)].capacity);
  }
  template <class Visit>
  void ForEachUse(int flow, Visit visit) const {  // visit(link, lanes)
    const Flow& f = flows_[std::size_t(flow)];
    for (int i = f.first_use; i < f.first_use + f.count; ++i) {
      visit(uses_[std::size_t(i)].link, uses_[std::size_t(i)].lanes);
    }
  }
  int FlowsOn(int link) const { return links_[std::size_t(link)].flows; }

 private:
  struct Flow {
    double cap = 0;
    double rate = 0;
    int first_use = 0;  // in uses_
    int count = 0;
    std::uint32_t seen = 0;  // last solution that looked at it
    bool frozen = false;
    bool alive = false;
  };
  // Uses of one flow lie side by side; those of one link are a doubly linked list.
  struct Use {
    double lanes;
    int link, flow;
    int before, after;
  };
  struct Link {
    double capacity = 0;
    double demand = 0;  // of its flows at their caps, but for those without one,
    int uncapped = 0;   //   which are so many
    double left = 0;    // while solving
    double lanes = 0;   // unfrozen, while solving
    int open = 0;       // unfrozen flows, while solving
    int flows = 0;
    int first_use = -1;
    std::uint32_t seen = 0;
    bool touched = false;
  };
  struct Share {
    double share;
    int link;
    bool operator>(const Share& o) const {
      return share != o.share ? share > o.share : link > o.link;
    }
  };

  static bool Contended(const Link& link) {
    return link.uncapped > 0 || link.demand > link.capacity;
  }
  void Touch(int link);
  void Look(int link);
  void Gather();
  void Fill();
  void Freeze(int flow, double rate);
  bool SolveAlone(int flow);

  std::vector<Flow> flows_;
  std::vector<Use> uses_;
  std::vector<Link> links_;
  std::vector<int> free_flows_;
  std::vector<std::vector<int>> free_uses_;  // starts of runs in uses_, by their length
  std::vector<int> touched_, fresh_, changed_;
  std::vector<int> part_links_, part_flows_;  // what is being solved
  std::vector<Share> heap_;
  std::uint32_t solution_ = 0;
};

}  // namespace millwright
