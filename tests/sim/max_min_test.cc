// SPDX-License-Identifier: Apache-2.0
#include "sim/max_min.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace millwright {
namespace {

using namespace literals;

constexpr BytesPerSecond kUncapped{std::numeric_limits<double>::infinity()};

struct System {
  explicit System(std::vector<BytesPerSecond> capacity) : max_min(capacity) {}
  int Add(const std::vector<int>& links, BytesPerSecond cap = kUncapped) {
    std::vector<LinkUse> uses;
    for (const int link : links) uses.push_back({.link = link});
    return max_min.Add(uses, cap);
  }
  double Rate(int flow) {
    max_min.Solve();
    return max_min.RateOf(flow).value / 1e9;
  }
  MaxMin max_min;
};

TEST(MaxMin, OneFlowGetsItsNarrowestLink) {
  System s({10_GBps, 3_GBps, 5_GBps});
  EXPECT_EQ(s.Rate(s.Add({0, 1, 2})), 3);
}

TEST(MaxMin, TwoFlowsShareALink) {
  System s({10_GBps});
  const int a = s.Add({0}), b = s.Add({0});
  EXPECT_EQ(s.Rate(a), 5);
  EXPECT_EQ(s.Rate(b), 5);
  s.max_min.Remove(a);
  EXPECT_EQ(s.Rate(b), 10);
}

// Link 0: 10 for A and B, 5 each.  Link 1: 30, of which B takes 5, C the other 25.
TEST(MaxMin, ThreeFlowsOverTwoLinks) {
  System s({10_GBps, 30_GBps});
  const int a = s.Add({0}), b = s.Add({0, 1}), c = s.Add({1});
  EXPECT_EQ(s.Rate(a), 5);
  EXPECT_EQ(s.Rate(b), 5);
  EXPECT_EQ(s.Rate(c), 25);
}

// Both links 10: the long flow shares each with a short one, 5 everywhere.
TEST(MaxMin, ParkingLot) {
  System s({10_GBps, 10_GBps});
  const int a = s.Add({0}), b = s.Add({0, 1}), c = s.Add({1});
  for (const int flow : {a, b, c}) EXPECT_EQ(s.Rate(flow), 5);
}

// Bertsekas and Gallager, figure 6.13: links of capacity 1 in a row.  Three flows over link 3 get
// 1/3; a flow shared with one of them on link 2 gets the other 2/3; the one on link 1 with that
// one, 1/3.
TEST(MaxMin, Cascade) {
  System s({1_GBps, 1_GBps, 1_GBps});
  const int a = s.Add({2}), b = s.Add({2}), c = s.Add({1, 2}), d = s.Add({0, 1}), e = s.Add({0});
  for (const int flow : {a, b, c}) EXPECT_NEAR(s.Rate(flow), 1.0 / 3, 1e-12);
  EXPECT_NEAR(s.Rate(d), 0.5, 1e-12);  // link 0 halves before link 1 is full: 1/3 + 1/2 < 1
  EXPECT_NEAR(s.Rate(e), 0.5, 1e-12);
}

// A capped flow leaves the rest to others: 10 - 2 = 8 for the other; 4 flows of which two are
// capped at 1 and 3: (10 - 1 - 3) / 2 is not above 3, so 1 and then (10 - 1) / 3 = 3 each.
TEST(MaxMin, CapsLeaveTheRestToOthers) {
  System s({10_GBps});
  const int a = s.Add({0}, 2_GBps), b = s.Add({0});
  EXPECT_EQ(s.Rate(a), 2);
  EXPECT_EQ(s.Rate(b), 8);
  System t({10_GBps});
  const int c = t.Add({0}, 1_GBps), d = t.Add({0}, 3_GBps), e = t.Add({0}), f = t.Add({0});
  EXPECT_EQ(t.Rate(c), 1);
  EXPECT_EQ(t.Rate(d), 3);
  EXPECT_EQ(t.Rate(e), 3);
  EXPECT_EQ(t.Rate(f), 3);
}

// A flow of three streams over a link of 8 counts three times: 2 for each stream and 2 for the
// single one.
TEST(MaxMin, LanesCountAsFlows) {
  MaxMin s(std::vector{8_GBps, 100_GBps});
  const int wide = s.Add(std::vector<LinkUse>{{0, 3}, {1, 1}}, kUncapped);
  const int narrow = s.Add(std::vector<LinkUse>{{0, 1}}, kUncapped);
  s.Solve();
  EXPECT_EQ(s.RateOf(wide), 2_GBps);
  EXPECT_EQ(s.RateOf(narrow), 2_GBps);
  EXPECT_EQ(s.LoadOf(0), 8_GBps);
  EXPECT_EQ(s.LoadOf(1), 2_GBps);
}

TEST(MaxMin, OnlyWhatIsTouchedIsReported) {
  System s({10_GBps, 10_GBps, 10_GBps});
  const int a = s.Add({0}), b = s.Add({1}), c = s.Add({1, 2});
  EXPECT_EQ(s.max_min.Solve().size(), 3u);
  EXPECT_TRUE(s.max_min.Solve().empty());
  const int d = s.Add({0});
  const std::span<const int> changed = s.max_min.Solve();
  EXPECT_EQ(std::vector<int>(changed.begin(), changed.end()), (std::vector<int>{d, a}));
  EXPECT_EQ(s.Rate(a), 5);
  EXPECT_EQ(s.Rate(d), 5);
  EXPECT_EQ(s.Rate(b), 5);
  s.max_min.Remove(b);
  const std::span<const int> now = s.max_min.Solve();
  EXPECT_EQ(std::vector<int>(now.begin(), now.end()), std::vector<int>{c});
  EXPECT_EQ(s.Rate(c), 10);
}

// On random systems, flows coming and going: no link above its capacity, and every flow at its cap
// or on a full link where none has a higher rate.  That is what max-min fairness means.
TEST(MaxMin, RandomSystemsAreFair) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int links = 1 + int(random() % 30);
    std::vector<BytesPerSecond> capacity;
    for (int l = 0; l < links; ++l) capacity.emplace_back(double(1 + random() % 50));
    MaxMin s(capacity);
    struct Flow {
      int id;
      std::vector<LinkUse> uses;
      double cap;
    };
    std::vector<Flow> flows;
    for (int step = 0; step < 60; ++step) {
      for (int k = 0; k < 3; ++k) {
        if (!flows.empty() && random() % 3 == 0) {
          const std::size_t victim = random() % flows.size();
          s.Remove(flows[victim].id);
          flows.erase(flows.begin() + std::ptrdiff_t(victim));
          continue;
        }
        Flow flow;
        for (int l = 0; l < links; ++l) {
          if (random() % 6 == 0) flow.uses.push_back({l, double(1 + random() % 4) / 2});
        }
        if (flow.uses.empty()) flow.uses.push_back({int(random() % unsigned(links)), 1});
        flow.cap = random() % 3 == 0 ? double(1 + random() % 20) : kUncapped.value;
        flow.id = s.Add(flow.uses, BytesPerSecond(flow.cap));
        flows.push_back(flow);
      }
      s.Solve();
      std::vector<double> load(std::size_t(links), 0), fastest(std::size_t(links), 0);
      for (const Flow& flow : flows) {
        for (const LinkUse& use : flow.uses) {
          const double rate = s.RateOf(flow.id).value;
          load[std::size_t(use.link)] += use.lanes * rate;
          fastest[std::size_t(use.link)] = std::max(fastest[std::size_t(use.link)], rate);
        }
      }
      for (int l = 0; l < links; ++l) {
        ASSERT_LE(load[std::size_t(l)], capacity[std::size_t(l)].value * (1 + 1e-9));
        ASSERT_NEAR(s.LoadOf(l).value, load[std::size_t(l)], 1e-9);
      }
      for (const Flow& flow : flows) {
        const double rate = s.RateOf(flow.id).value;
        ASSERT_LE(rate, flow.cap);
        ASSERT_GT(rate, 0);
        if (rate >= flow.cap * (1 - 1e-9)) continue;
        ASSERT_TRUE(std::any_of(flow.uses.begin(), flow.uses.end(),
                                [&](const LinkUse& use) {
                                  const auto l = std::size_t(use.link);
                                  return load[l] >= capacity[l].value * (1 - 1e-9) &&
                                         fastest[l] <= rate * (1 + 1e-9);
                                }))
            << "seed " << seed << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace millwright
