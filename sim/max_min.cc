// SPDX-License-Identifier: Apache-2.0
#include "sim/max_min.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/check.h"

namespace millwright {
namespace {

// Rates that differ by less are one: rounding, not sharing.
constexpr double kSameRate = 1e-12;

}  // namespace

MaxMin::MaxMin(std::span<const BytesPerSecond> capacity) {
  links_.reserve(capacity.size());
  for (const BytesPerSecond c : capacity) {
    MILLWRIGHT_CHECK(c.value > 0);
    links_.push_back({.capacity = c.value});
  }
}

int MaxMin::Prepare(std::span<const LinkUse> uses, BytesPerSecond cap) {
  MILLWRIGHT_CHECK(!uses.empty() && cap.value > 0);
  int flow = int(flows_.size());
  if (free_flows_.empty()) {
    flows_.emplace_back();
  } else {
    flow = free_flows_.back();
    free_flows_.pop_back();
  }
  const int count = int(uses.size());
  int first = int(uses_.size());
  if (free_uses_.size() <= uses.size()) free_uses_.resize(uses.size() + 1);
  std::vector<int>& runs = free_uses_[uses.size()];
  if (runs.empty()) {
    uses_.resize(uses_.size() + uses.size());
  } else {
    first = runs.back();
    runs.pop_back();
  }
  flows_[std::size_t(flow)] = {.cap = cap.value, .first_use = first, .count = count};
  for (int i = 0; i < count; ++i) {
    const LinkUse& use = uses[std::size_t(i)];
    uses_[std::size_t(first) + std::size_t(i)] = {use.lanes, use.link, flow, -1, -1};
  }
  return flow;
}

void MaxMin::Activate(int flow) {
  Flow& f = flows_[std::size_t(flow)];
  MILLWRIGHT_CHECK(!f.alive);
  f.alive = true;
  for (int i = f.first_use; i < f.first_use + f.count; ++i) {
    Use& use = uses_[std::size_t(i)];
    Link& link = links_[std::size_t(use.link)];
    use.after = link.first_use;
    if (use.after >= 0) uses_[std::size_t(use.after)].before = i;
    link.first_use = i;
    ++link.flows;
    if (std::isinf(f.cap)) {
      ++link.uncapped;
    } else {
      link.demand += use.lanes * f.cap;
    }
  }
  fresh_.push_back(flow);
}

void MaxMin::Remove(int flow) {
  Flow& f = flows_[std::size_t(flow)];
  MILLWRIGHT_CHECK(f.alive);
  f.alive = false;
  for (int i = f.first_use; i < f.first_use + f.count; ++i) {
    const Use& use = uses_[std::size_t(i)];
    Link& link = links_[std::size_t(use.link)];
    (use.before >= 0 ? uses_[std::size_t(use.before)].after : link.first_use) = use.after;
    if (use.after >= 0) uses_[std::size_t(use.after)].before = use.before;
    --link.flows;
    if (link.flows > 0 && Contended(link)) Touch(use.link);
    if (std::isinf(f.cap)) {
      --link.uncapped;
    } else {
      link.demand -= use.lanes * f.cap;
    }
    if (link.flows == 0) link.demand = 0;  // and not what rounding left
  }
  free_uses_[std::size_t(f.count)].push_back(f.first_use);
  free_flows_.push_back(flow);
}

BytesPerSecond MaxMin::LoadOf(int link) const {
  double load = 0;
  for (int i = links_[std::size_t(link)].first_use; i >= 0; i = uses_[std::size_t(i)].after) {
    const Use& use = uses_[std::size_t(i)];
    load += use.lanes * flows_[std::size_t(use.flow)].rate;
  }
  return BytesPerSecond(load);
}

void MaxMin::Touch(int link) {
  Link& l = links_[std::size_t(link)];
  if (l.touched) return;
  l.touched = true;
  touched_.push_back(link);
}

// A flow on links that decide nothing needs no filling.
bool MaxMin::SolveAlone(int flow) {
  Flow& f = flows_[std::size_t(flow)];
  double rate = f.cap;
  for (int i = f.first_use; i < f.first_use + f.count; ++i) {
    const Use& use = uses_[std::size_t(i)];
    const Link& link = links_[std::size_t(use.link)];
    if (link.touched || (link.flows > 1 && Contended(link))) return false;
    rate = std::min(rate, link.capacity / use.lanes);
  }
  f.rate = rate;
  f.seen = solution_;
  changed_.push_back(flow);
  return true;
}

std::span<const int> MaxMin::Solve() {
  changed_.clear();
  ++solution_;
  for (const int flow : fresh_) {
    const Flow& f = flows_[std::size_t(flow)];
    if (!f.alive || f.seen == solution_ || SolveAlone(flow)) continue;
    for (int i = f.first_use; i < f.first_use + f.count; ++i) {
      const int link = uses_[std::size_t(i)].link;
      if (Contended(links_[std::size_t(link)])) Touch(link);
    }
  }
  fresh_.clear();
  if (!touched_.empty()) {
    Gather();
    Fill();
  }
  return changed_;
}

void MaxMin::Look(int link) {
  Link& l = links_[std::size_t(link)];
  if (l.seen == solution_ || l.flows == 0) return;
  l.seen = solution_;
  l.left = l.capacity;
  l.lanes = 0;
  l.open = 0;
  part_links_.push_back(link);
}

// All that touched links reach through flows.
void MaxMin::Gather() {
  part_links_.clear();
  part_flows_.clear();
  for (const int link : touched_) {
    links_[std::size_t(link)].touched = false;
    Look(link);
  }
  touched_.clear();
  for (std::size_t next = 0; next < part_links_.size(); ++next) {
    const int link = part_links_[next];
    for (int i = links_[std::size_t(link)].first_use; i >= 0; i = uses_[std::size_t(i)].after) {
      const Use& use = uses_[std::size_t(i)];
      Link& l = links_[std::size_t(link)];
      l.lanes += use.lanes;
      ++l.open;
      Flow& f = flows_[std::size_t(use.flow)];
      if (f.seen == solution_) continue;
      f.seen = solution_;
      f.frozen = false;
      part_flows_.push_back(use.flow);
      for (int k = f.first_use; k < f.first_use + f.count; ++k) {
        const int other = uses_[std::size_t(k)].link;
        if (Contended(links_[std::size_t(other)])) Look(other);
      }
    }
  }
}

void MaxMin::Freeze(int flow, double rate) {
  Flow& f = flows_[std::size_t(flow)];
  f.frozen = true;
  for (int i = f.first_use; i < f.first_use + f.count; ++i) {
    const Use& use = uses_[std::size_t(i)];
    Link& link = links_[std::size_t(use.link)];
    link.left -= rate * use.lanes;
    link.lanes -= use.lanes;
    --link.open;
  }
  if (std::abs(rate - f.rate) <= kSameRate * f.rate) return;
  f.rate = rate;
  changed_.push_back(flow);
}

void MaxMin::Fill() {
  heap_.clear();
  for (const int link : part_links_) {
    const Link& l = links_[std::size_t(link)];
    heap_.push_back({l.capacity / l.lanes, link});
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const auto by_cap = [&](int a, int b) {
    const double cap_a = flows_[std::size_t(a)].cap, cap_b = flows_[std::size_t(b)].cap;
    return cap_a != cap_b ? cap_a < cap_b : a < b;
  };
  std::sort(part_flows_.begin(), part_flows_.end(), by_cap);
  auto next_capped = part_flows_.begin();
  double level = 0;  // rates so far; what rounding took from a link must not take it below
  while (!heap_.empty()) {
    const Share top = heap_.front();
    Link& link = links_[std::size_t(top.link)];
    if (link.open == 0) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      continue;
    }
    const double share = std::max(level, link.left / link.lanes);
    if (share > top.share) {  // others froze meanwhile
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.back().share = share;
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    while (next_capped != part_flows_.end() && flows_[std::size_t(*next_capped)].frozen) {
      ++next_capped;
    }
    if (next_capped != part_flows_.end() && flows_[std::size_t(*next_capped)].cap <= top.share) {
      level = std::max(level, flows_[std::size_t(*next_capped)].cap);
      Freeze(*next_capped, flows_[std::size_t(*next_capped)].cap);
      continue;
    }
    level = top.share;
    for (int i = link.first_use; i >= 0; i = uses_[std::size_t(i)].after) {
      const int flow = uses_[std::size_t(i)].flow;
      if (!flows_[std::size_t(flow)].frozen) Freeze(flow, level);
    }
  }
}

}  // namespace millwright
