// SPDX-License-Identifier: Apache-2.0
#include "sim/v_shape.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

// The F and B passes of one micro-batch on one rank, in the order of their dependencies.
enum Step { kF0, kF1, kB1, kB0, kSteps };

// When the pattern runs a step of micro-batch 0.  A micro-batch goes down the ranks in F0 and B1
// and up in F1 and B0, `apart[step]` units a rank, and waits `pause[step]` units more than it must
// before it turns round into `step`.
struct Pattern {
  std::array<int, kSteps> apart;
  std::array<int, kSteps> pause;
};
constexpr int kPeriod = 6;  // F, B and W of two chunks

// Pauses keep the steps of a rank apart modulo the period: with one unit a rank F0 and F1 (B1 and
// B0) never meet, and B1 must not fall on F0; with 2 and 1 the distance of F0 and F1 is constant
// modulo 3.  Found by trying all pauses up to 5 for p up to 16.
Pattern PatternOf(ScheduleKind kind, int pipeline) {
  if (kind == ScheduleKind::kVMin) {
    const int pause = pipeline % 3 == 0 ? 2 : 0;
    return {{1, 1, 1, 1}, {0, pause, pause, pause}};
  }
  if (kind == ScheduleKind::kVHalf) {
    const int pause = pipeline % 2 == 0 ? 3 : 0;
    return {{1, 2, 1, 2}, {0, pause, pause, 1}};
  }
  return {{4, 2, 4, 2}, {0, 0, 0, 0}};
}

struct Rank {
  std::array<std::int64_t, kSteps> first;  // pattern time of micro-batch 0
  std::array<int, kSteps> begun{};         // micro-batches
  std::array<int, kSteps> done{};          // of them, before the current unit of time
  int in_flight = 0;
  std::size_t scan = 0;  // where in the order the next B without its W is looked for
};

struct Attempt {
  std::vector<std::vector<Pass>> orders;
  std::int64_t makespan = 0;
};

// Unit by unit, since all passes take one.  `ahead`: a rank that waits for its next pass of the
// pattern may take a later B instead, which needs no memory.
Attempt Run(const Pattern& pattern, int p, int m, int most, bool ahead) {
  std::vector<Rank> ranks(static_cast<std::size_t>(p));
  Attempt attempt;
  attempt.orders.resize(ranks.size());
  for (int r = 0; r < p; ++r) {
    std::int64_t turn = 0;  // when the micro-batch reaches the rank where the step begins
    for (int step = 0; step < kSteps; ++step) {
      turn += pattern.pause[std::size_t(step)];
      const bool down = step == kF0 || step == kB1;
      const std::int64_t apart = pattern.apart[std::size_t(step)];
      ranks[std::size_t(r)].first[std::size_t(step)] = turn + apart * (down ? r : p - 1 - r);
      turn += apart * (p - 1) + 1;
    }
    attempt.orders[std::size_t(r)].reserve(std::size_t(m) * kPeriod);
  }

  const auto stage = [p](int r, int step) {
    return static_cast<std::uint16_t>(step == kF0 || step == kB0 ? r : 2 * p - 1 - r);
  };
  const auto ready = [&](int r, int step) {
    const Rank& rank = ranks[std::size_t(r)];
    const int i = rank.begun[std::size_t(step)];
    if (i >= m) return false;
    const bool down = step == kF0 || step == kB1;
    const bool begins = r == (down ? 0 : p - 1);
    if (!begins && ranks[std::size_t(down ? r - 1 : r + 1)].done[std::size_t(step)] <= i) {
      return false;
    }
    if (step == kF0 || (step == kF1 && !begins)) return true;
    // The V turns round within a rank; and a backward pass needs its own forward.
    const int before = step == kB0 && !begins ? kF0 : step - 1;
    return rank.done[std::size_t(before)] > i;
  };

  std::int64_t left = std::int64_t{kPeriod} * p * m;
  while (left > 0) {
    const std::int64_t left_before = left;
    for (int r = 0; r < p; ++r) {
      Rank& rank = ranks[std::size_t(r)];
      std::vector<Pass>& order = attempt.orders[std::size_t(r)];
      const auto time = [&](int step) {
        return rank.first[std::size_t(step)] +
               std::int64_t{kPeriod} * rank.begun[std::size_t(step)];
      };
      int next = -1;
      for (int step = 0; step < kSteps; ++step) {
        if (rank.begun[std::size_t(step)] < m && (next < 0 || time(step) < time(next))) next = step;
      }
      const auto fits = [&](int step) {
        return ready(r, step) && (step == kB1 || step == kB0 || rank.in_flight < most);
      };
      if (next >= 0 && !fits(next)) {
        next = -1;
        if (ahead && fits(kB1)) next = kB1;
        if (ahead && fits(kB0) && (next < 0 || time(kB0) < time(kB1))) next = kB0;
      }
      if (next >= 0) {
        const bool forward = next == kF0 || next == kF1;
        order.push_back({rank.begun[std::size_t(next)]++, stage(r, next),
                         forward ? PassKind::kForward : PassKind::kBackwardInput});
        rank.in_flight += forward ? 1 : 0;
        --left;
        continue;
      }
      while (rank.scan < order.size() && order[rank.scan].kind != PassKind::kBackwardInput) {
        ++rank.scan;
      }
      if (rank.scan == order.size()) continue;
      Pass weight = order[rank.scan++];
      weight.kind = PassKind::kBackwardWeight;
      order.push_back(weight);
      --rank.in_flight;
      --left;
    }
    for (Rank& rank : ranks) rank.done = rank.begun;
    ++attempt.makespan;
    // What runs in a unit is known to the others in the next one, so one unit without any pass
    // means that there will be none.
    MILLWRIGHT_CHECK(left < left_before);
  }
  return attempt;
}

}  // namespace

int MostInFlight(ScheduleKind kind, int pipeline) {
  if (kind == ScheduleKind::kVMin) return 2 * ((pipeline + 4) / 3);
  if (kind == ScheduleKind::kVHalf) return pipeline + (pipeline % 2 == 0 ? 2 : 1);
  return 2 * pipeline;
}

std::vector<std::vector<Pass>> VShapeOrders(ScheduleKind kind, int pipeline, int micro_batches) {
  const int most = MostInFlight(kind, pipeline);
  Attempt best = Run(PatternOf(kind, pipeline), pipeline, micro_batches, most, false);
  const auto improve = [&](Attempt other) {
    if (other.makespan < best.makespan) best = std::move(other);
  };
  if (kind != ScheduleKind::kVZb) {
    improve(Run(PatternOf(kind, pipeline), pipeline, micro_batches, most, true));
    // So few that all of them fit: spreading them out only costs time.
    if (2 * micro_batches <= most) {
      improve(Run(PatternOf(ScheduleKind::kVZb, pipeline), pipeline, micro_batches, most, false));
    }
  }
  return std::move(best.orders);
}

}  // namespace millwright
