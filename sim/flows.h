// SPDX-License-Identifier: Apache-2.0
//
// When do flows over shared links end?  A fluid simulation with max-min fair rates.
//
// Model: a flow waits its latency, in which it uses no link, then sends `lane_bytes` on each of
// its lanes (sim/max_min) at the rate that sharing leaves it, up to its cap.  Rates change only
// where a flow starts or ends, and only for flows that are joined to it by shared links.  A
// duration is rounded to 34 bits (3e-11), so that flows which end together but for rounding end
// at one instant and are shared out anew once; flows that end at one instant are reported in the
// order in which they were started.
//
// Always checked: no flow ends before its bytes are through the narrowest of its links.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"
#include "sim/event_queue.h"
#include "sim/max_min.h"

namespace millwright {

struct Completion {
  Seconds time;
  std::int64_t tag = 0;
};

// What a link has carried, and the share of its capacity over the time simulated.
struct LinkLoad {
  int link = 0;
  Bytes bytes;
  double utilisation = 0;
};

class Flows {
 public:
  explicit Flows(std::span<const BytesPerSecond> capacity);

  // `now` is at or after all times seen, and not after NextEvent().
  void Start(Seconds now, Seconds latency, Bytes lane_bytes, BytesPerSecond lane_cap,
             std::span<const LinkUse> uses, std::int64_t tag);

  // Until then nothing happens by itself, and it may be that nothing happens then either; infinity
  // where no flow is left.
  Seconds NextEvent();
  // Carries on up to and including `until`, and appends the flows that have ended.
  void Advance(Seconds until, std::vector<Completion>* done);

  // Does any flow use one of these links now, or wait out its latency to do so?
  bool InUse(std::span<const LinkUse> uses) const;

  // Of completed flows.
  Bytes CarriedBy(int link) const { return Bytes(carried_[std::size_t(link)]); }
  std::vector<LinkLoad> Loads(Seconds elapsed) const;  // of links that carried anything

 private:
  struct Flow {
    double bytes = 0, left = 0;
    double rate = 0;
    double start = 0;  // when the latency was over
    double since = 0;  // `left` is of this time
    std::int64_t tag = 0;
    std::int64_t order = 0;
    std::uint32_t stamp = 0;  // of the event that counts
    bool waits = false;
  };
  struct Event {
    int flow;
    std::uint32_t stamp;
  };
  struct Ended {
    std::int64_t order;
    Completion completion;
  };

  void Share();
  void End(int flow);
  void Schedule(int flow, double time);

  MaxMin max_min_;
  std::vector<Flow> flows_;  // by the number that max_min_ gave
  EventQueue<Event> events_;
  std::vector<double> carried_;
  std::vector<int> users_;  // flows on each link, waiting ones too
  std::vector<Ended> ended_;
  double now_ = 0;
  std::int64_t started_ = 0;
  int under_way_ = 0;
  bool changed_ = false;  // flows have come or gone since rates were shared out
};

}  // namespace millwright
