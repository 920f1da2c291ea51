// SPDX-License-Identifier: Apache-2.0
#include "sim/flows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace millwright {
namespace {

// To 34 bits.
double Round(double duration) {
  int exponent = 0;
  const double fraction = std::frexp(duration, &exponent);
  constexpr double kScale = double(std::int64_t{1} << 34);
  return std::ldexp(std::nearbyint(fraction * kScale) / kScale, exponent);
}

}  // namespace

Flows::Flows(std::span<const BytesPerSecond> capacity)
    : max_min_(capacity), carried_(capacity.size(), 0), users_(capacity.size(), 0) {}

void Flows::Schedule(int flow, double time) {
  events_.Push(Seconds(time), {flow, ++flows_[std::size_t(flow)].stamp});
}

void Flows::Start(Seconds now, Seconds latency, Bytes lane_bytes, BytesPerSecond lane_cap,
                  std::span<const LinkUse> uses, std::int64_t tag) {
  MILLWRIGHT_CHECK(now.value >= now_ && latency.value >= 0 && lane_bytes.value >= 0);
  if (now.value > now_) {
    MILLWRIGHT_CHECK(NextEvent() >= now);
    now_ = now.value;
  }
  const int flow = max_min_.Prepare(uses, lane_cap);
  if (std::size_t(flow) >= flows_.size()) flows_.resize(std::size_t(flow) + 1);
  Flow& f = flows_[std::size_t(flow)];
  f = {.bytes = lane_bytes.value,
       .left = lane_bytes.value,
       .start = now_ + latency.value,
       .since = now_ + latency.value,
       .tag = tag,
       .order = started_++,
       .stamp = f.stamp,
       .waits = latency.value > 0};
  ++under_way_;
  for (const LinkUse& use : uses) ++users_[std::size_t(use.link)];
  if (f.waits) {
    Schedule(flow, f.start);
  } else {
    max_min_.Activate(flow);
    changed_ = true;
  }
}

void Flows::Share() {
  changed_ = false;
  for (const int flow : max_min_.Solve()) {
    Flow& f = flows_[std::size_t(flow)];
    f.left = std::max(0.0, f.left - f.rate * (now_ - f.since));
    f.since = now_;
    f.rate = max_min_.RateOf(flow).value;
    Schedule(flow, std::max(now_, f.start + Round(now_ - f.start + f.left / f.rate)));
  }
}

Seconds Flows::NextEvent() {
  if (changed_) Share();
  return events_.next_time();
}

void Flows::End(int flow) {
  const Flow& f = flows_[std::size_t(flow)];
  double least = 0;
  max_min_.ForEachUse(flow, [&](int link, double lanes) {
    const double bytes = f.bytes * lanes;
    carried_[std::size_t(link)] += bytes;
    --users_[std::size_t(link)];
    least = std::max(least, bytes / max_min_.CapacityOf(link).value);
  });
  // A time of day of 1,000 s is known to 1e-13 s.
  MILLWRIGHT_CHECK(now_ - f.start >= least * (1 - 1e-9) - 1e-15 * now_);
  max_min_.Remove(flow);
  // What is left then are events of rates that no longer hold.
  if (--under_way_ == 0) events_.Clear();
  ended_.push_back({f.order, {Seconds(now_), f.tag}});
}

void Flows::Advance(Seconds until, std::vector<Completion>* done) {
  for (Seconds next = NextEvent(); next <= until && !events_.empty(); next = NextEvent()) {
    now_ = next.value;
    ended_.clear();
    while (!events_.empty() && events_.next_time() == next) {
      const Event event = events_.Pop();
      Flow& f = flows_[std::size_t(event.flow)];
      if (f.stamp != event.stamp) continue;
      changed_ = true;
      if (f.waits) {
        f.waits = false;
        max_min_.Activate(event.flow);
      } else {
        ++f.stamp;
        End(event.flow);
      }
    }
    std::sort(ended_.begin(), ended_.end(),
              [](const Ended& a, const Ended& b) { return a.order < b.order; });
    for (const Ended& ended : ended_) done->push_back(ended.completion);
  }
  if (until.value < std::numeric_limits<double>::infinity()) now_ = std::max(now_, until.value);
}

bool Flows::InUse(std::span<const LinkUse> uses) const {
  return std::any_of(uses.begin(), uses.end(),
                     [&](const LinkUse& use) { return users_[std::size_t(use.link)] > 0; });
}

std::vector<LinkLoad> Flows::Loads(Seconds elapsed) const {
  std::vector<LinkLoad> loads;
  for (std::size_t link = 0; link < carried_.size(); ++link) {
    if (carried_[link] <= 0) continue;
    const double most = max_min_.CapacityOf(int(link)).value * elapsed.value;
    loads.push_back({int(link), Bytes(carried_[link]), most > 0 ? carried_[link] / most : 0});
  }
  return loads;
}

}  // namespace millwright
