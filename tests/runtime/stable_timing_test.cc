// SPDX-License-Identifier: Apache-2.0
#include "runtime/stable_timing.h"

#include <gtest/gtest.h>

#include <vector>

namespace millwright {
namespace {

// A machine whose repeats take what is listed, the last for ever, and whose clock they move on.
class FakeMachine {
 public:
  explicit FakeMachine(std::vector<double> times) : times_(std::move(times)) {}
  Timing Run(const TimingLimits& limits, int stop_after = 1 << 20) {
    return TimeUntilStable(
        limits,
        [&] {
          const std::size_t at = std::min(std::size_t(repeats_), times_.size() - 1);
          ++repeats_;
          now_ += Seconds(times_[at]);
          return Seconds(times_[at]);
        },
        [&] { return now_; }, [&] { return repeats_ >= stop_after; });
  }
  int repeats() const { return repeats_; }

 private:
  std::vector<double> times_;
  int repeats_ = 0;
  Seconds now_;
};

TEST(StableTiming, EqualRepeatsEndAtTheLeast) {
  FakeMachine machine({2});
  const Timing timing = machine.Run({.warm_up = 3, .least = 10, .longest = Seconds(1e9)});
  EXPECT_EQ(machine.repeats(), 3 + 10);
  EXPECT_EQ(timing, (Timing{.burst = Seconds(2),
                            .sustained = Seconds(2),
                            .spread = 0,
                            .repeats = 10,
                            .settled = true}));
}

TEST(StableTiming, WarmUpIsNotCounted) {
  FakeMachine machine({100, 100, 1});
  EXPECT_EQ(machine.Run({.warm_up = 2, .longest = Seconds(1e9)}).burst, Seconds(1));
}

// Five fast repeats at first, slower ones later: the later half of 20 is all slow.
TEST(StableTiming, FirstRepeatsAreATimeOfTheirOwn) {
  FakeMachine machine({1, 1, 1, 1, 1, 3});
  const Timing timing =
      machine.Run({.warm_up = 0, .burst = 5, .least = 20, .longest = Seconds(1e9)});
  EXPECT_EQ(timing.burst, Seconds(1));
  EXPECT_EQ(timing.sustained, Seconds(3));
  EXPECT_EQ(timing.repeats, 20);
  EXPECT_TRUE(timing.settled);
}

// Alternating 1 and 3: the quartiles are 1 and 3, the median 2 or an end of it, so that the
// half-width 1.57 x 2 / sqrt(n) stays above 1% of 2 for all n below 24,649: the cap ends it.
TEST(StableTiming, ASpreadThatDoesNotSettleEndsAtTheCap) {
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) times.push_back(i % 2 == 0 ? 1 : 3);
  FakeMachine machine(times);
  const Timing timing =
      machine.Run({.warm_up = 0, .most = 60, .longest = Seconds(1e9), .precision = 0.01});
  EXPECT_EQ(timing.repeats, 60);
  EXPECT_FALSE(timing.settled);
  EXPECT_EQ(timing.sustained, Seconds(2));
  EXPECT_DOUBLE_EQ(timing.spread, 1);  // (3 - 1) / 2
}

// Each repeat takes 5 of 7 seconds: the second is over time, but a median wants three.
TEST(StableTiming, TimeRunsOutButNotBeforeThreeRepeats) {
  FakeMachine machine({5});
  const Timing timing = machine.Run({.warm_up = 0, .longest = Seconds(7)});
  EXPECT_EQ(timing.repeats, 3);
  EXPECT_FALSE(timing.settled);
  EXPECT_EQ(timing.sustained, Seconds(5));
}

TEST(StableTiming, StopsWhenAsked) {
  FakeMachine machine({1});
  EXPECT_EQ(machine.Run({.warm_up = 1, .longest = Seconds(1e9)}, 5).repeats, 4);
  FakeMachine at_once({1});
  EXPECT_EQ(at_once.Run({}, 0), Timing{});
}

// One repeat in ten is ten times as long, as where another program gets the processor.
TEST(StableTiming, PreemptedRepeatsDoNotMoveTheMedian) {
  std::vector<double> times;
  for (int i = 0; i < 50; ++i) times.push_back(i % 10 == 7 ? 10 : 1);
  FakeMachine machine(times);
  const Timing timing = machine.Run({.warm_up = 0, .least = 40, .longest = Seconds(1e9)});
  EXPECT_EQ(timing.sustained, Seconds(1));
  EXPECT_EQ(timing.spread, 0);
  EXPECT_TRUE(timing.settled);
}

// Sorted 1 2 3 4: at 0.5 between the second and the third, at 0.25 three quarters of the way to 2.
TEST(StableTiming, QuantilesAreLinear) {
  const std::vector<Seconds> values{Seconds(4), Seconds(1), Seconds(3), Seconds(2)};
  EXPECT_EQ(Quantile(values, 0.5), Seconds(2.5));
  EXPECT_EQ(Quantile(values, 0.25), Seconds(1.75));
  EXPECT_EQ(Quantile(values, 1), Seconds(4));
}

}  // namespace
}  // namespace millwright
