// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "sim/schedule_timing.h"

namespace millwright {
namespace {

double Walked(const PipelineSchedule& schedule, const RankPassCosts& c) {
  const PassCosts rank{.forward = c.forward,
                       .backward_input = c.backward_input,
                       .backward_weight = c.backward_weight,
                       .overlapped = c.overlapped};
  return TimeSchedule(schedule, EvenCosts(schedule, rank, c.transfer), PassTimes::kLeaveOut)
      .makespan.value;
}

constexpr ScheduleKind kKinds[] = {
    ScheduleKind::kGpipe,     ScheduleKind::k1F1B,        ScheduleKind::kZbH1,
    ScheduleKind::kZbH2,      ScheduleKind::kZbV,         ScheduleKind::kVHalf,
    ScheduleKind::kVMin,      ScheduleKind::kVZb,         ScheduleKind::kDualPipe,
    ScheduleKind::kDualPipeV, ScheduleKind::kBreadthFirst};

std::vector<ScheduleChoice> Choices(std::initializer_list<int> turns) {
  std::vector<ScheduleChoice> choices;
  for (const ScheduleKind kind : kKinds) {
    for (const int p : {2, 3, 4, 8, 16}) {
      for (const int turn : turns) {
        for (const int rest : {0, 1}) {
          ScheduleChoice choice{.kind = kind, .pipeline = p, .micro_batches = turn * p + rest};
          if (kind == ScheduleKind::kBreadthFirst) choice.virtual_stages = 3;
          if (Unmet(choice).empty()) choices.push_back(choice);
        }
      }
    }
  }
  return choices;
}

// How far the forms are from the walk, over ratios drawn at random.
struct Difference {
  double mean = 0, most_short = 0, most_long = 0;
};
Difference Compare(const std::vector<ScheduleChoice>& choices) {
  std::mt19937 random(7);
  const auto draw = [&](double low, double high) {
    return low + (high - low) * double(random() % 10'001) / 10'000;
  };
  Difference d;
  int compared = 0;
  for (const ScheduleChoice& choice : choices) {
    const ScheduleForms forms(choice);
    const PipelineSchedule schedule = BuildSchedule(choice);
    for (int i = 0; i < 12; ++i) {
      const double b = draw(0.8, 2.5), w = draw(0.4, 1.1);
      const RankPassCosts costs{.forward = Seconds(1),
                                .backward_input = Seconds(b),
                                .backward_weight = Seconds(w),
                                .overlapped = Seconds(draw(0.7, 1) * (1 + b + w)),
                                .transfer = Seconds(i % 3 == 0 ? 0 : draw(0, 0.2))};
      const double off =
          forms.Makespan(costs, choice.micro_batches).value / Walked(schedule, costs) - 1;
      d.mean += std::abs(off);
      d.most_short = std::min(d.most_short, off);
      d.most_long = std::max(d.most_long, off);
      ++compared;
    }
  }
  d.mean /= compared;
  return d;
}

// The longest of some paths is never longer than the longest of all.
TEST(ScheduleForms, AreNeverTooLongAndHardlyTooShort) {
  const Difference d = Compare(Choices({1, 2, 3}));
  EXPECT_LT(d.mean, 1e-4);
  EXPECT_GT(d.most_short, -0.025);
  EXPECT_LT(d.most_long, 1e-9);
}

TEST(ScheduleForms, ManyMicroBatchesAreTurnsOfAFew) {
  const Difference d = Compare(Choices({6, 11}));
  EXPECT_LT(d.mean, 1e-4);
  EXPECT_GT(d.most_short, -0.005);
  EXPECT_LT(d.most_long, 0.015);
}

// What a rank may hold is what the walk counts, and by the published counts (sim/schedule.h's
// sources): DualPipe p + 1 whole stages, ZB-H2 2 p - 1 on every rank, GPipe all.
TEST(ScheduleForms, HoldWhatTheWalkCounts) {
  for (const ScheduleChoice& choice : Choices({2, 3, 9})) {
    const PipelineSchedule schedule = BuildSchedule(choice);
    const ScheduleTiming timing =
        TimeSchedule(schedule, EvenCosts(schedule, {Seconds(1), Seconds(1), Seconds(1)}, {}));
    const ScheduleForms forms(choice);
    for (int rank = 0; rank < choice.pipeline; ++rank) {
      double most = 0;
      for (const ChunksHeld& held : forms.Held(rank)) {
        double sum = 0;
        for (const auto* chunks : {&held.chunks, &held.waiting}) {
          for (double chunk : *chunks) sum += forms.InFlight(chunk, choice.micro_batches);
        }
        most = std::max(most, sum);
      }
      EXPECT_EQ(most, timing.in_flight_until_w[std::size_t(rank)])
          << NameOf(choice.kind) << " of " << choice.pipeline << " ranks and "
          << choice.micro_batches << " micro-batches, rank " << rank;
    }
  }
  const auto of_first = [](ScheduleKind kind) {
    double most = 0;
    const ScheduleForms forms({.kind = kind, .pipeline = 4, .micro_batches = 8});
    for (const ChunksHeld& held : forms.Held(0)) {
      double sum = 0;
      for (const auto* chunks : {&held.chunks, &held.waiting}) {
        for (double chunk : *chunks) sum += chunk;
      }
      most = std::max(most, sum);
    }
    return most;
  };
  EXPECT_EQ(of_first(ScheduleKind::kDualPipe), 5);
  EXPECT_EQ(of_first(ScheduleKind::kZbH2), 7);
  EXPECT_EQ(of_first(ScheduleKind::kGpipe), 8);
}

// ZB-H1 with equal costs waits (p - 1)(F + B - W), the closed form of arXiv:2401.10241, on top of m
// micro-batches: of 3 and 7, 2, 1 with p = 4, m = 100: 100 x 10 + 3 x (7 + 2 - 1) = 1024.
TEST(ScheduleForms, EqualTheClosedForm) {
  const ScheduleForms forms({.kind = ScheduleKind::kZbH1, .pipeline = 4, .micro_batches = 100});
  const RankPassCosts costs{.forward = Seconds(7),
                            .backward_input = Seconds(2),
                            .backward_weight = Seconds(1),
                            .overlapped = Seconds(10)};
  EXPECT_NEAR(forms.Makespan(costs, 100).value, 1024, 1e-9);
}

// Asked for by threads at once, each is made once and is what it is when made alone.
TEST(KnownForms, AreMadeOnceForAllThreads) {
  KnownForms known;
  const std::vector<ScheduleChoice> choices = Choices({2});
  std::vector<std::vector<const ScheduleForms*>> seen(4);
  {
    std::vector<std::jthread> threads;
    for (auto& by_thread : seen) {
      threads.emplace_back([&] {
        for (const ScheduleChoice& choice : choices) by_thread.push_back(&known.Of(choice));
      });
    }
  }
  for (const auto& by_thread : seen) EXPECT_EQ(by_thread, seen.front());
  const RankPassCosts costs{.forward = Seconds(3),
                            .backward_input = Seconds(4),
                            .backward_weight = Seconds(2),
                            .overlapped = Seconds(7)};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const double m = choices[i].micro_batches;
    EXPECT_EQ(seen[0][i]->Makespan(costs, m), ScheduleForms(choices[i]).Makespan(costs, m));
  }
}

}  // namespace
}  // namespace millwright
