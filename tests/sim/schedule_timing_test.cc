// SPDX-License-Identifier: Apache-2.0
//
// Times of schedules: against the golden orders and figures, closed forms, and a second
// implementation that knows nothing of ranks waiting.
#include "sim/schedule_timing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <tuple>

#include "core/check.h"
#include "sim/schedule_file.h"
#include "sim/v_shape.h"

namespace millwright {
namespace {

using Json = nlohmann::json;
using testing::Each;
using testing::ElementsAre;

struct Costs {
  double f, b, w, transfer = 0;
};

ScheduleTiming Time(const PipelineSchedule& schedule, const Costs& costs) {
  return TimeSchedule(schedule,
                      EvenCosts(schedule, {Seconds(costs.f), Seconds(costs.b), Seconds(costs.w)},
                                Seconds(costs.transfer)));
}

ScheduleTiming Time(const ScheduleChoice& choice, const Costs& costs) {
  return Time(BuildSchedule(choice), costs);
}

double Idle(const ScheduleChoice& choice, const Costs& costs) {
  return Time(choice, costs).idle[0].value;
}

std::vector<double> Values(const std::vector<Seconds>& quantities) {
  std::vector<double> values;
  for (const Seconds& quantity : quantities) values.push_back(quantity.value);
  return values;
}

double Longest(const std::vector<Seconds>& spans) {
  return std::max_element(spans.begin(), spans.end())->value;
}

// ---- golden figures ----

std::vector<Json> GoldenSchedules() {
  std::ifstream file("tests/data/schedules.json");
  return Json::parse(file).get<std::vector<Json>>();
}

// What of ours a golden line is compared with; `exact`: its order too, else only that ours is not
// worse where F, B and W cost the same.
struct Counterpart {
  ScheduleChoice choice;
  bool exact;
};
Counterpart CounterpartOf(const Json& line) {
  static const std::map<std::string, std::pair<std::string, bool>> kNames = {
      {"gpipe", {"gpipe", true}},
      {"1f1b", {"1f1b", true}},
      {"interleaved_v2", {"interleaved:2", true}},
      {"interleaved_v4", {"interleaved:4", true}},
      {"zb_h1", {"zb-h1", true}},
      {"zb_h2", {"zb-h2", true}},
      {"zbv_torch", {"zb-v", true}},
      {"zbv_sail_unit", {"v-zb", false}},
      {"v_half_sail", {"v-half", false}},
      {"v_min_sail", {"v-min", false}},
      {"dualpipe", {"dualpipe", true}},
      {"dualpipev", {"dualpipe-v", true}},
  };
  const auto& [name, exact] = kNames.at(line["schedule"]);
  ScheduleChoice choice = ParseScheduleChoice(name);
  choice.pipeline = line["p"];
  choice.micro_batches = line["m"];
  return {choice, exact};
}

std::string NameOfLine(const Json& line) {
  return fmt::format("{} p={} m={}", line["schedule"].get<std::string>(), line["p"].get<int>(),
                     line["m"].get<int>());
}

void ExpectFigures(const PipelineSchedule& schedule, const Json& figures) {
  const ScheduleTiming timing =
      Time(schedule, {figures["tF"], figures["tB"], figures["tW"], figures["comm"]});
  EXPECT_EQ(timing.makespan.value, figures["makespan"].get<double>()) << figures;
  EXPECT_EQ(Values(timing.idle), figures["idle"].get<std::vector<double>>()) << figures;
  EXPECT_EQ(Values(timing.span), figures["span"].get<std::vector<double>>()) << figures;
  EXPECT_EQ(timing.in_flight_until_w, figures["peak_act_until_W"].get<std::vector<int>>());
  EXPECT_EQ(timing.in_flight_until_b, figures["peak_act_until_B"].get<std::vector<int>>());
}

TEST(Golden, OrdersAreOurs) {
  int lines = 0;
  for (const Json& line : GoldenSchedules()) {
    const auto [choice, exact] = CounterpartOf(line);
    SCOPED_TRACE(NameOfLine(line));
    const PipelineSchedule schedule = BuildSchedule(choice);
    EXPECT_EQ(schedule.stages(), line["virtual_stages"].get<int>());
    EXPECT_EQ(schedule.rank_of_stage, line["rank_of_stage"].get<std::vector<int>>());
    EXPECT_EQ(schedule.chunk_cost_divisor, line["chunk_cost_divisor"].get<int>());
    if (!exact) continue;
    ++lines;
    for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
      EXPECT_EQ(OrderText(schedule.orders[r]), line["orders"][r].get<std::string>())
          << "rank " << r;
    }
  }
  EXPECT_EQ(lines, 33);
}

// The golden orders, read as a schedule file and timed.
TEST(Golden, TimesOfGoldenOrders) {
  int cases = 0;
  for (Json line : GoldenSchedules()) {
    SCOPED_TRACE(NameOfLine(line));
    if (line["schedule"] == "dualpipe") line["directions"] = 2;
    const PipelineSchedule schedule = ReadSchedule("golden.json", line.dump());
    for (const Json& figures : line["cases"]) ++cases, ExpectFigures(schedule, figures);
  }
  EXPECT_EQ(cases, 45 * 6);
}

TEST(Golden, TimesOfOurOrders) {
  for (const Json& line : GoldenSchedules()) {
    const auto [choice, exact] = CounterpartOf(line);
    SCOPED_TRACE(NameOfLine(line));
    const PipelineSchedule schedule = BuildSchedule(choice);
    for (const Json& figures : line["cases"]) {
      if (exact) {
        ExpectFigures(schedule, figures);
      } else if (figures["tF"] == 1 && figures["tB"] == 1 && figures["tW"] == 1) {
        const ScheduleTiming timing = Time(schedule, {1, 1, 1, figures["comm"]});
        EXPECT_LE(timing.makespan.value, figures["makespan"].get<double>());
        for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
          EXPECT_LE(timing.in_flight_until_w[r], figures["peak_act_until_W"][r].get<int>());
          EXPECT_LE(timing.in_flight_until_b[r], figures["peak_act_until_B"][r].get<int>());
        }
      }
    }
  }
}

// ---- a second implementation ----

// Longest paths by sweeping over all passes until nothing moves.  Orders, inputs and pairs are
// edges alike, so this does not depend on who runs when.
ScheduleTiming SlowlyTimed(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  struct Slot {
    std::vector<Pass> passes;
    int rank;
    double cost, start = 0;
  };
  std::vector<Slot> slots;
  using Key = std::tuple<int, int, int>;  // stage, micro-batch, 0: F, 1: B or BW, 2: W
  std::map<Key, std::size_t> slot_of;
  const auto kind = [](const Pass& pass) {
    return pass.kind == PassKind::kForward ? 0 : pass.kind == PassKind::kBackwardWeight ? 2 : 1;
  };
  const auto cost = [&](const Pass& pass) {
    PassCosts c = costs.stages[costs.stages.size() == 1
                                   ? 0
                                   : std::size_t(pass.stage % schedule.stages_per_direction())];
    const auto add = [&](const PassCosts& more) {
      c.forward += more.forward;
      c.backward_input += more.backward_input;
      c.backward_weight += more.backward_weight;
    };
    if (schedule.first_of_direction(pass.stage)) add(costs.first);
    if (schedule.last_of_direction(pass.stage)) add(costs.last);
    switch (pass.kind) {
      case PassKind::kForward:
        return c.forward.value;
      case PassKind::kBackward:
        return c.backward_input.value + c.backward_weight.value;
      case PassKind::kBackwardInput:
        return c.backward_input.value;
      case PassKind::kBackwardWeight:
        break;
    }
    return c.backward_weight.value;
  };
  for (int r = 0; r < schedule.pipeline; ++r) {
    bool joins = false;
    for (const Pass& pass : schedule.orders[std::size_t(r)]) {
      if (!joins) slots.push_back({{}, r, 0});
      slots.back().passes.push_back(pass);
      slots.back().cost += cost(pass);
      slot_of[{pass.stage, pass.micro_batch, kind(pass)}] = slots.size() - 1;
      joins = pass.overlaps_next;
    }
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      double start = 0;
      const auto after = [&](std::size_t j) {
        const bool elsewhere = slots[j].rank != slots[i].rank;
        start = std::max(start,
                         slots[j].start + slots[j].cost + (elsewhere ? costs.transfer.value : 0));
      };
      if (i > 0 && slots[i - 1].rank == slots[i].rank) after(i - 1);
      for (const Pass& pass : slots[i].passes) {
        const int s = pass.stage, mb = pass.micro_batch;
        if (kind(pass) == 0 && !schedule.first_of_direction(s)) after(slot_of.at({s - 1, mb, 0}));
        if (kind(pass) == 1) after(slot_of.at({s, mb, 0}));
        if (kind(pass) == 1 && !schedule.last_of_direction(s)) after(slot_of.at({s + 1, mb, 1}));
        if (kind(pass) == 2) after(slot_of.at({s, mb, 1}));
      }
      if (start > slots[i].start) {
        slots[i].start = start;
        moved = true;
      }
    }
  }
  ScheduleTiming timing;
  timing.passes.resize(schedule.orders.size());
  std::vector<double> work(schedule.orders.size());
  for (const Slot& slot : slots) {
    const double end = slot.start + slot.cost;
    timing.makespan = std::max(timing.makespan, Seconds(end));
    work[std::size_t(slot.rank)] += slot.cost;
    for (std::size_t i = 0; i < slot.passes.size(); ++i) {
      timing.passes[std::size_t(slot.rank)].push_back({Seconds(slot.start), Seconds(end)});
    }
  }
  for (const double w : work) timing.idle.push_back(timing.makespan - Seconds(w));
  return timing;
}

// Every schedule with random uneven stages, embedding, head and transfers.
TEST(ScheduleTiming, AgreesWithLongestPaths) {
  std::mt19937 random(7);
  const auto cost = [&] { return Seconds(double(random() % 16)); };  // whole: sums are exact
  const auto costs = [&] { return PassCosts{cost(), cost(), cost()}; };
  for (const auto& name : ScheduleKindNames()) {
    for (int round = 0; round < 30; ++round) {
      ScheduleChoice choice{name.value, 1 + int(random() % 6), 1 + int(random() % 16)};
      if (name.value == ScheduleKind::kInterleaved) choice.virtual_stages = 2 + int(random() % 3);
      if (!Unmet(choice).empty()) continue;
      SCOPED_TRACE(fmt::format("{} p={} m={}", name.name, choice.pipeline, choice.micro_batches));
      const PipelineSchedule schedule = BuildSchedule(choice);
      ScheduleCosts uneven{.transfer = cost(), .first = costs(), .last = costs()};
      for (int s = 0; s < schedule.stages_per_direction(); ++s) uneven.stages.push_back(costs());
      const ScheduleTiming timing = TimeSchedule(schedule, uneven);
      const ScheduleTiming expected = SlowlyTimed(schedule, uneven);
      ASSERT_EQ(timing.makespan, expected.makespan);
      ASSERT_EQ(timing.idle, expected.idle);
      for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
        for (std::size_t i = 0; i < schedule.orders[r].size(); ++i) {
          ASSERT_EQ(timing.passes[r][i].start, expected.passes[r][i].start);
          ASSERT_EQ(timing.passes[r][i].end, expected.passes[r][i].end);
        }
      }
      const ScheduleTiming without = TimeSchedule(schedule, uneven, PassTimes::kLeaveOut);
      ASSERT_EQ(without.makespan, timing.makespan);
      ASSERT_EQ(without.span, timing.span);
      ASSERT_TRUE(without.passes.empty());
    }
  }
}

// No step beats physics: a rank's work, and the way of one micro-batch through all stages and
// back, are lower bounds.
TEST(ScheduleTiming, IsNeverBelowItsLowerBounds) {
  for (const auto& name : ScheduleKindNames()) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 3 * p; ++m) {
        ScheduleChoice choice{name.value, p, m};
        if (name.value == ScheduleKind::kInterleaved) choice.virtual_stages = 2;
        if (!Unmet(choice).empty()) continue;
        const double back = name.value == ScheduleKind::kForwardOnly ? 0 : 1;
        const ScheduleTiming timing = Time(choice, {3, 4, 5, 2});
        EXPECT_THAT(Values(timing.idle), Each(testing::Ge(0)));
        EXPECT_LE(Longest(timing.span), timing.makespan.value);
        // Chunks times their cost are p 3 forward; p - 1 transfers are the fewest.
        EXPECT_GE(timing.makespan.value, p * 3 + (p - 1) * 2 + back * (p * 4 + (p - 1) * 2))
            << name.name;
      }
    }
  }
}

// ---- closed forms ----

const Costs kCostSets[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {10, 12, 8}};

template <class Check>
void ForPipelines(const Check& check) {
  for (int p = 2; p <= 16; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      for (const Costs& costs : kCostSets) {
        SCOPED_TRACE(fmt::format("p={} m={} F={} B={} W={}", p, m, costs.f, costs.b, costs.w));
        check(p, m, costs);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// The first micro-batch reaches the last stage after p-1 forwards, and the last one's backward
// comes back in p-1 more (arXiv:2104.04473 section 2.2.1).
TEST(ClosedForm, GpipeAnd1F1BIdleForOneWayThroughThePipeline) {
  ForPipelines([](int p, int m, const Costs& c) {
    const double expected = (p - 1) * (c.f + c.b + c.w);
    EXPECT_EQ(Idle({ScheduleKind::kGpipe, p, m}, c), expected);
    const ScheduleTiming timing = Time({ScheduleKind::k1F1B, p, m}, c);
    EXPECT_EQ(timing.makespan.value, (m + p - 1) * (c.f + c.b + c.w));
    for (int r = 0; r < p; ++r) {
      EXPECT_EQ(timing.in_flight_until_w[std::size_t(r)], std::min(p - r, m));
    }
  });
}

// With v chunks that way is v times shorter.  Rank r is 2 (p-1-r) + (v-1) p forwards ahead and one
// more is on its way.
TEST(ClosedForm, InterleavedDividesTheBubbleByItsChunks) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (m % p != 0) return;
    for (const int v : {2, 4}) {  // powers of two: costs divide exactly
      const ScheduleTiming timing = Time({ScheduleKind::kInterleaved, p, m, v}, c);
      EXPECT_EQ(timing.idle[0].value, (p - 1) * (c.f + c.b + c.w) / v);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(timing.in_flight_until_w[std::size_t(r)],
                  std::min(2 * (p - 1 - r) + (v - 1) * p + 1, m * v));
      }
    }
  });
}

// All forwards of all chunks before the first backward: the bubble of GPipe over v, where each
// chunk has micro-batches enough to keep the p ranks busy; everything is in flight.
TEST(ClosedForm, BreadthFirstHasTheBubbleOfInterleavedAndTheMemoryOfGpipe) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (m < p) return;
    const ScheduleTiming timing = Time({ScheduleKind::kBreadthFirst, p, m, 2}, c);
    EXPECT_EQ(timing.idle[0].value, (p - 1) * (c.f + c.b + c.w) / 2);
    EXPECT_THAT(timing.in_flight_until_w, Each(2 * m));
  });
}

TEST(ClosedForm, ForwardOnlyFillsThePipelineOnce) {
  ForPipelines([](int p, int m, const Costs& c) {
    const ScheduleTiming timing = Time({ScheduleKind::kForwardOnly, p, m}, c);
    EXPECT_EQ(timing.makespan.value, (m + p - 1) * c.f);
    EXPECT_THAT(timing.in_flight_until_w, Each(1));
    EXPECT_THAT(timing.in_flight_until_b, Each(1));
  });
}

// arXiv:2401.10241 table 1: (p-1)(tF + tB - tW), where W is no longer than B; a longer W fills no
// more than the gap.
TEST(ClosedForm, ZbH1FillsTheBackwardBubbleWithW) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (m < p) return;
    const ScheduleTiming timing = Time({ScheduleKind::kZbH1, p, m}, c);
    EXPECT_EQ(timing.idle[0].value, (p - 1) * (c.f + std::max(0.0, c.b - c.w)));
    EXPECT_THAT(timing.in_flight_until_w, Each(p));
    for (int r = 0; r < p; ++r) EXPECT_EQ(timing.in_flight_until_b[std::size_t(r)], p - r);
  });
}

// arXiv:2401.10241 table 1: (p-1)(tF + tB - 2 tW) within a rank's span.  The step as a whole has
// p-1 forwards of fill besides.
TEST(ClosedForm, ZbH2IsFreeOfBubblesInItsSpan) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (m < 2 * p) return;
    const ScheduleTiming timing = Time({ScheduleKind::kZbH2, p, m}, c);
    EXPECT_EQ(Longest(timing.span) - m * (c.f + c.b + c.w),
              (p - 1) * std::max(0.0, c.f + c.b - 2 * c.w));
    EXPECT_THAT(timing.in_flight_until_w, Each(2 * p - 1));
    // As long as the longest span starts on the first rank and ends there.
    if (c.f + c.b <= 2 * c.w) {
      EXPECT_EQ(timing.idle[0].value, (p - 1) * c.f);
    }
  });
}

// A micro-batch passes the p ranks on the way down in half stages; p stages' worth in flight.
TEST(ClosedForm, ZbVFillsInHalfStages) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (m < 2 * p - 1 || c.w > std::max(c.f, c.b)) return;
    const ScheduleTiming timing = Time({ScheduleKind::kZbV, p, m}, c);
    EXPECT_EQ(timing.idle[0].value, (p - 1) * std::max(c.f, c.b) / 2);
    EXPECT_THAT(timing.in_flight_until_w, Each(2 * p));
    if (c.f == c.b && c.b == c.w) {
      EXPECT_EQ(Longest(timing.span), m * (c.f + c.b + c.w));
    }
  });
}

// arXiv:2412.19437 table 2: (p/2 - 1)(F&B + B - 3 W), with F&B = F + BW and B the whole backward;
// exact where F = B.
TEST(ClosedForm, DualPipe) {
  ForPipelines([](int p, int m, const Costs& c) {
    if (c.f != c.b || c.w > c.f) return;
    const double both = c.f + c.b + c.w, whole = c.b + c.w;
    if (p % 2 == 0 && m % 2 == 0 && m >= 2 * p) {
      const ScheduleTiming timing = Time({ScheduleKind::kDualPipe, p, m}, c);
      EXPECT_EQ(timing.idle[0].value, (p / 2.0 - 1) * (both + whole - 3 * c.w));
      EXPECT_THAT(timing.in_flight_until_w, Each(p + 1));
    }
    if (m >= 2 * p) {
      const ScheduleTiming timing = Time({ScheduleKind::kDualPipeV, p, m}, c);
      EXPECT_EQ(timing.idle[0].value, (p - 1) * (both + whole - 3 * c.w) / 2);
      EXPECT_THAT(timing.in_flight_until_w, Each(2 * p + 1));
    }
  });
}

// 8 ranks, F = B = W = 1, pairs at 0.8 of their sum of 3: each rank idles differently, and the
// formula's 3 (2.4 + 2 - 3) = 4.2 holds in the middle alone (figures of an independent simulation).
TEST(ScheduleTiming, DualPipeRanksDifferWherePairsAreCheaper) {
  const PipelineSchedule schedule = BuildSchedule({ScheduleKind::kDualPipe, 8, 20});
  const ScheduleTiming timing = TimeSchedule(
      schedule,
      EvenCosts(schedule, {Seconds(1), Seconds(1), Seconds(1), Seconds(0.8 * 3)}, Seconds(0)));
  const std::vector<double> expected = {3.0, 3.6, 4.2, 4.2, 4.2, 4.2, 3.6, 3.0};
  for (std::size_t r = 0; r < expected.size(); ++r) {
    EXPECT_NEAR(timing.idle[r].value, expected[r], 1e-9) << r;
  }
}

// What sail-sg/zero-bubble's greedy idles at F = B = W = 1 and m >= 2p: V-Half (3p - 7) / 2, but
// 1/2 for p = 2, and for odd p (3p - 4) / 2; V-Min (4p - 5) / 2, where 3 divides p (4p - 7) / 2.
TEST(ClosedForm, VHalfAndVMinAreNoWorseThanThePublishedGreedy) {
  for (int p = 2; p <= 16; ++p) {
    for (int m = 2 * p; m <= 4 * p; ++m) {
      SCOPED_TRACE(fmt::format("p={} m={}", p, m));
      EXPECT_LE(Idle({ScheduleKind::kVHalf, p, m}, {1, 1, 1}),
                std::max(1, 3 * p - (p % 2 == 0 ? 7 : 4)) / 2.0);
      EXPECT_LE(Idle({ScheduleKind::kVMin, p, m}, {1, 1, 1}), (4 * p - (p % 3 == 0 ? 7 : 5)) / 2.0);
    }
  }
}

TEST(ClosedForm, VShapesKeepToTheirMemory) {
  for (const ScheduleKind kind : {ScheduleKind::kVHalf, ScheduleKind::kVMin, ScheduleKind::kVZb}) {
    for (int p = 1; p <= 16; ++p) {
      for (int m = 1; m <= 4 * p; ++m) {
        const ScheduleTiming timing = Time({kind, p, m}, {1, 1, 1});
        EXPECT_THAT(timing.in_flight_until_w, Each(testing::Le(MostInFlight(kind, p))))
            << NameOf(kind) << " p=" << p << " m=" << m;
      }
    }
  }
  // Stages: p/2 + 1 and ceil((p+2)/3), in chunks twice that; all of p.
  for (const int p : {4, 8, 12, 16, 24}) {
    EXPECT_EQ(MostInFlight(ScheduleKind::kVHalf, p), p + 2);
    EXPECT_EQ(MostInFlight(ScheduleKind::kVMin, p), 2 * int(std::ceil((p + 2) / 3.0)));
    EXPECT_EQ(MostInFlight(ScheduleKind::kVZb, p), 2 * p);
  }
}

// The fill takes p-1 half forwards, and nothing else is idle once m >= p.
TEST(ClosedForm, VZbIdlesForItsFillAlone) {
  for (int p = 2; p <= 16; ++p) {
    for (int m = p; m <= 4 * p; ++m) {
      EXPECT_EQ(Idle({ScheduleKind::kVZb, p, m}, {1, 1, 1}), (p - 1) / 2.0) << p << " " << m;
    }
  }
}

// m = 4 is fewer than 2p - 1 = 7, so ZB-H2 and ZB-V lose their advantage.
TEST(ScheduleTiming, ZeroBubbleNeedsMicroBatches) {
  EXPECT_EQ(Idle({ScheduleKind::kZbH2, 4, 4}, {1, 1, 1}), 4);
  EXPECT_EQ(Idle({ScheduleKind::kZbV, 4, 4}, {1, 1, 1}), 3);
}

// ---- by hand ----

// Two ranks, one micro-batch, F = 2, B = 3, W = 4, transfer 1:
// rank 1's F from 2 + 1 to 5, BW to 12; rank 0's BW from 13 to 20.
TEST(ScheduleTiming, OneMicroBatchByHand) {
  const ScheduleTiming timing = Time({ScheduleKind::kGpipe, 2, 1}, {2, 3, 4, 1});
  EXPECT_EQ(timing.makespan, Seconds(20));
  EXPECT_THAT(Values(timing.idle), ElementsAre(11, 11));
  EXPECT_THAT(Values(timing.span), ElementsAre(20, 9));
  EXPECT_EQ(timing.passes[1][0].start, Seconds(3));
  EXPECT_EQ(timing.passes[1][1].end, Seconds(12));
}

// Stage costs F 1 and 5, BW 2 and 6, one micro-batch; embedding F 0.5, BW 1, head F 2, BW 3:
// (1 + 0.5) + (5 + 2) + (6 + 3) + (2 + 1) = 20.5.
TEST(ScheduleTiming, UnevenStagesWithEmbeddingAndHead) {
  const PipelineSchedule schedule = BuildSchedule({ScheduleKind::k1F1B, 2, 1});
  const ScheduleTiming timing = TimeSchedule(
      schedule,
      {.stages = {{Seconds(1), Seconds(1), Seconds(1)}, {Seconds(5), Seconds(3), Seconds(3)}},
       .first = {Seconds(0.5), Seconds(0), Seconds(1)},
       .last = {Seconds(2), Seconds(1), Seconds(2)}});
  EXPECT_EQ(timing.makespan, Seconds(20.5));
}

// One rank of a V, two chunks, two micro-batches, by hand: F F F, then the pair [F1.1&BW0.0]
// which is given 7, with a head that adds F 1 and BW 2 to stage 1 only.
// F0.0 0-1, F0.1 1-3 (head), BW0.1 3-7 (2 + 2), F1.0 7-8, [F1.1&BW0.0] 8 + 7 + 1 (head's F) = 16,
// BW1.1 16-20, BW1.0 20-22.
TEST(ScheduleTiming, AGivenPairStillPaysForTheHead) {
  const PipelineSchedule schedule =
      ReadSchedule("pair.json", R"({"orders": ["F0.0 F0.1 BW0.1 F1.0 [F1.1&BW0.0] BW1.1 BW1.0"]})");
  const ScheduleTiming timing =
      TimeSchedule(schedule, {.stages = {{Seconds(1), Seconds(1), Seconds(1), Seconds(7)}},
                              .last = {Seconds(1), Seconds(1), Seconds(1)}});
  EXPECT_EQ(timing.makespan, Seconds(22));
  EXPECT_EQ(timing.passes[0][4].start, Seconds(8));
  EXPECT_EQ(timing.passes[0][5].end, Seconds(16));
}

// ---- deadlocks ----

std::string DeadlockOf(const std::string& text) {
  const PipelineSchedule schedule = ReadSchedule("mine.json", text);
  try {
    Time(schedule, {1, 1, 1});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(Deadlock, NamesWhoWaitsForWhom) {
  // Rank 0 wants the first micro-batch back before it sends the second; rank 1 wants both first.
  EXPECT_EQ(DeadlockOf(R"({"orders": ["F0.0 BW0.0 F1.0 BW1.0", "F0.1 F1.1 BW0.1 BW1.1"]})"),
            "mine.json: the orders wait for each other without end: rank 0 at BW0.0 for BW0.1 of "
            "rank 1, rank 1 at F1.1 for F1.0 of rank 0");
}

TEST(Deadlock, OfARankWithItself) {
  EXPECT_EQ(DeadlockOf(R"({"orders": ["BW0.0 F0.0"]})"),
            "mine.json: the orders wait for each other without end: rank 0 at BW0.0 for F0.0 of "
            "its own");
  // Rank 0 waits for rank 1, but the circle is rank 1's alone.
  EXPECT_EQ(DeadlockOf(R"({"orders": ["F0.0 BW0.0", "BW0.1 F0.1"]})"),
            "mine.json: the orders wait for each other without end: rank 1 at BW0.1 for F0.1 of "
            "its own");
}

TEST(Deadlock, OfABuiltInScheduleIsOurBug) {
  PipelineSchedule schedule = BuildSchedule({ScheduleKind::kZbH1, 2, 2});
  std::swap(schedule.orders[0][0], schedule.orders[0][2]);
  try {
    Time(schedule, {1, 1, 1});
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_STREQ(e.what(),
                 "this is a bug in Millwright: schedule zb-h1 of 2 ranks and 2 micro-batches: the "
                 "orders wait for each other without end: rank 0 at B0.0 for F0.0 of its own");
  }
}

// Orders shuffled at random, with all passes there, either run or are reported; the slow
// implementation would not end on the latter, so it is asked only about the former.
TEST(Deadlock, ShuffledOrdersRunOrAreReported) {
  std::mt19937 random(11);
  int ran = 0, reported = 0;
  for (int round = 0; round < 3000; ++round) {
    PipelineSchedule schedule =
        BuildSchedule({round % 2 == 0 ? ScheduleKind::kZbH1 : ScheduleKind::kZbV,
                       1 + int(random() % 3), 1 + int(random() % 4)});
    schedule.file = "shuffled.json";
    for (auto& order : schedule.orders) {
      for (std::size_t swaps = random() % 3; swaps > 0; --swaps) {
        const std::size_t i = random() % (order.size() - 1);
        std::swap(order[i], order[i + 1]);
      }
    }
    const ScheduleCosts costs =
        EvenCosts(schedule, {Seconds(2), Seconds(2), Seconds(4)}, Seconds(1));
    try {
      const ScheduleTiming timing = TimeSchedule(schedule, costs);
      ASSERT_EQ(timing.makespan, SlowlyTimed(schedule, costs).makespan);
      ++ran;
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), testing::StartsWith("shuffled.json: the orders wait"));
      ++reported;
    }
  }
  EXPECT_GT(ran, 500);
  EXPECT_GT(reported, 100);
}

}  // namespace
}  // namespace millwright
