// SPDX-License-Identifier: Apache-2.0
#include "report/schedule_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sim/schedule_file.h"

namespace millwright {
namespace {

std::string CostsComplaint(std::string_view text) {
  try {
    ParseScheduleCosts(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(ScheduleCostsText, ReadsWhatItWrites) {
  for (const char* text :
       {"F=1,B=1,W=1,p2p=0", "F=10,B=12,W=8,p2p=1.5", "F=1,B=2,W=1,p2p=0,pair=3"}) {
    EXPECT_EQ(RankCostsText(ParseScheduleCosts(text)), text);
  }
  EXPECT_EQ(RankCostsText(ParseScheduleCosts("W=2")), "F=1,B=1,W=2,p2p=0");
}

TEST(ScheduleCostsText, EveryMistakeIsReported) {
  EXPECT_EQ(CostsComplaint("f=1,p2p=-1,F=2,F=3,xx,B=nan,W="),
            "costs: unknown cost \"f\", did you mean \"F\"?; there are F, B, W, p2p, pair\n"
            "costs: p2p: expected a number from 0 to 1e9, got \"-1\"\n"
            "costs: F is given twice\n"
            "costs: expected NAME=NUMBER, as in F=1,B=1,W=1,p2p=0, got \"xx\"\n"
            "costs: B: expected a number from 0 to 1e9, got \"nan\"\n"
            "costs: W: expected a number from 0 to 1e9, got \"\"");
  EXPECT_EQ(CostsComplaint(""), "costs: expected NAME=NUMBER, as in F=1,B=1,W=1,p2p=0, got \"\"");
}

// 1F1B on two ranks, F = 1, BW = 2, at four columns a unit.  Rank 1: F0 1-2, BW0 2-4, F1 4-5,
// BW1 5-7; rank 0: F0, F1, BW0 4-6, BW1 7-9.
TEST(ScheduleText, DrawsEachPassToScale) {
  EXPECT_EQ(DescribeSchedule({.schedule = "1f1b", .sizes = {.pipeline = 2, .micro_batches = 2}}),
            "1f1b: 2 pipeline ranks, 2 micro-batches; F=1,B=1,W=1,p2p=0 a rank\n"
            "\n"
            "rank 0 |F0--F1--        B0------    B1------|\n"
            "rank 1 |    F0--B0------F1--B1------        |\n"
            "F forward, B backward\n"
            "\n"
            "makespan 9\n"
            "\n"
            "rank  idle  span  in flight until W  until B\n"
            "   0     3     9                  2        2\n"
            "   1     3     6                  1        1\n"
            "In flight: micro-batches.\n");
}

// The same in 11 columns between the bars: one a unit, letters alone where two do not fit.
TEST(ScheduleText, ShrinksToTheWidth) {
  const PipelineSchedule schedule = BuildSchedule({ScheduleKind::k1F1B, 2, 2});
  const ScheduleTiming timing =
      TimeSchedule(schedule, EvenCosts(schedule, {Seconds(1), Seconds(1), Seconds(1)}, Seconds(0)));
  EXPECT_EQ(ScheduleGantt(schedule, timing, 20),
            "rank 0 |FF  B0 B1|\n"
            "rank 1 | FB0FB1  |\n");
}

// DualPipe on two ranks has no fill; rank 1's own direction is the reverse one.
TEST(ScheduleText, DrawsPairsAndTheReverseDirection) {
  const std::string text =
      DescribeSchedule({.schedule = "dualpipe", .sizes = {.pipeline = 2, .micro_batches = 4}});
  EXPECT_THAT(text, testing::HasSubstr("rank 0 |F0--f0--F1--b0------f1&B0-----"));
  EXPECT_THAT(text, testing::HasSubstr("rank 1 |f0--F0--f1--B0------F1&b0-----"));
  EXPECT_THAT(text, testing::HasSubstr("& overlapped; small letters: reverse direction\n"));
}

TEST(ScheduleText, NothingTakesTime) {
  EXPECT_THAT(DescribeSchedule({.schedule = "zb-v",
                                .sizes = {.pipeline = 1, .micro_batches = 1},
                                .costs = "F=0,B=0,W=0"}),
              testing::HasSubstr("makespan 0\n"));
}

// A thousand micro-batches take far less than a column each.
TEST(ScheduleText, KeepsToItsWidth) {
  const std::string text = DescribeSchedule(
      {.schedule = "zb-h2", .sizes = {.pipeline = 4, .micro_batches = 1000}, .width = 80});
  std::size_t begin = text.find("rank 0");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_LE(text.find('\n', begin) - begin, 80u);
}

TEST(ScheduleJson, HasTheFiguresAndIsAScheduleFile) {
  const std::string text = DescribeSchedule(
      {.schedule = "zb-h1", .sizes = {.pipeline = 4, .micro_batches = 8}, .json = true});
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json["orders"][0],
            "F0.0 F1.0 F2.0 F3.0 B0.0 W0.0 F4.0 B1.0 W1.0 F5.0 B2.0 W2.0 F6.0 B3.0 W3.0 F7.0 B4.0 "
            "W4.0 B5.0 W5.0 B6.0 W6.0 B7.0 W7.0");
  EXPECT_EQ(json["makespan"], 27);  // 8 (1 + 1 + 1) + 3 (1 + 0)
  EXPECT_EQ(json["idle"], (std::vector<double>{3, 3, 3, 3}));
  EXPECT_EQ(json["span"], (std::vector<double>{27, 26, 25, 24}));
  EXPECT_EQ(json["peak_in_flight"]["until_w"], (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(json["peak_in_flight"]["until_b"], (std::vector<int>{4, 3, 2, 1}));

  for (const auto& name : ScheduleKindNames()) {
    ScheduleQuestion question{.schedule = std::string(name.name),
                              .sizes = {.pipeline = 2, .micro_batches = 4},
                              .json = true};
    if (name.value == ScheduleKind::kInterleaved) question.schedule += ":2";
    const PipelineSchedule back = ReadSchedule("answer.json", DescribeSchedule(question));
    EXPECT_EQ(back.name, name.name);
    EXPECT_EQ(back.orders, LoadSchedule(question.schedule, question.sizes).orders);
  }
}

}  // namespace
}  // namespace millwright
