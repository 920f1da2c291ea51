// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace millwright {
namespace {

using testing::ElementsAre;

std::string Complaint(std::string_view text) {
  try {
    ReadSchedule("s.json", text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(ScheduleFile, DerivesWhatIsLeftOut) {
  // A V over two ranks: rank 0 holds stages 0 and 3.
  const PipelineSchedule schedule = ReadSchedule(
      "s.json", R"({"orders": ["F0.0 F0.3 B0.3 B0.0 W0.3 W0.0", "F0.1 F0.2 BW0.2 BW0.1"]})");
  EXPECT_EQ(schedule.name, "custom");
  EXPECT_EQ(schedule.file, "s.json");
  EXPECT_EQ(schedule.pipeline, 2);
  EXPECT_EQ(schedule.micro_batches, 1);
  EXPECT_EQ(schedule.directions, 1);
  EXPECT_EQ(schedule.chunk_cost_divisor, 2);
  EXPECT_FALSE(schedule.forward_only);
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 1, 0));
}

TEST(ScheduleFile, ForwardsAloneAreInference) {
  const PipelineSchedule schedule =
      ReadSchedule("s.json", R"({"schedule": "mine", "orders": ["F0.0 F1.0"]})");
  EXPECT_TRUE(schedule.forward_only);
  EXPECT_EQ(schedule.name, "mine");
}

TEST(ScheduleFile, OrdersReadAsTheyAreWritten) {
  const std::string order = "F0.0 [F1.0&BW0.0] B1.0 W1.0";
  const PipelineSchedule schedule =
      ReadSchedule("s.json", fmt::format(R"({{"orders": [" {}\n"]}})", order));
  EXPECT_EQ(OrderText(schedule.orders[0]), order);
  EXPECT_THAT(schedule.orders[0],
              ElementsAre(Pass{0, 0, PassKind::kForward}, Pass{1, 0, PassKind::kForward, true},
                          Pass{0, 0, PassKind::kBackward}, Pass{1, 0, PassKind::kBackwardInput},
                          Pass{1, 0, PassKind::kBackwardWeight}));
}

TEST(ScheduleFile, EveryBadWordIsReported) {
  EXPECT_EQ(Complaint(R"({"orders": ["F0.0 G0.0 F1 [F2.0&B0.0] F-1.0 F0.70000", 5]})"),
            "s.json: at /orders/0: pass 2: expected F, B, W or BW with micro-batch and stage, as "
            "in F3.4, or a pair as in [F7.0&BW3.7], got \"G0.0\"\n"
            "s.json: at /orders/0: pass 3: expected F, B, W or BW with micro-batch and stage, as "
            "in F3.4, or a pair as in [F7.0&BW3.7], got \"F1\"\n"
            "s.json: at /orders/0: pass 4: expected F, B, W or BW with micro-batch and stage, as "
            "in F3.4, or a pair as in [F7.0&BW3.7], got \"[F2.0&B0.0]\"\n"
            "s.json: at /orders/0: pass 5: expected F, B, W or BW with micro-batch and stage, as "
            "in F3.4, or a pair as in [F7.0&BW3.7], got \"F-1.0\"\n"
            "s.json: at /orders/0: pass 6: expected F, B, W or BW with micro-batch and stage, as "
            "in F3.4, or a pair as in [F7.0&BW3.7], got \"F0.70000\"\n"
            "s.json: at /orders/1: expected a text, got 5");
}

TEST(ScheduleFile, EveryMissingOrExtraPassIsReported) {
  EXPECT_EQ(Complaint(R"({"orders": ["F0.0 F0.0 B0.0 F1.0 BW1.0 W1.0 F2.1", "F0.1 F2.1 W2.1"]})"),
            "s.json: at /orders/1: F0.1 is of a stage on rank 0\n"
            "s.json: at /orders/1: F2.1 is of a stage on rank 0\n"
            "s.json: at /orders/1: W2.1 is of a stage on rank 0\n"
            "s.json: at /orders/0: F0.0 stands twice, as passes 1 and 2\n"
            "s.json: at /orders/0: W0.0 is missing\n"
            "s.json: at /orders/0: BW1.0 stands beside W1.0\n"
            "s.json: at /orders/0: F2.0 is missing\n"
            "s.json: at /orders/0: BW2.0, or B2.0 and W2.0, is missing\n"
            "s.json: at /orders/0: BW0.1, or B0.1 and W0.1, is missing\n"
            "s.json: at /orders/0: F1.1 is missing\n"
            "s.json: at /orders/0: BW1.1, or B1.1 and W1.1, is missing\n"
            "s.json: at /orders/1: F2.1 stands on rank 0 as well\n"
            "s.json: at /orders/0: B2.1 is missing");
  EXPECT_EQ(Complaint(R"({"m": 1, "orders": ["F0.0 BW0.0 F1.0 BW1.0"]})"),
            "s.json: at /orders/0: F1.0 is outside of 1 stages and 1 micro-batches\n"
            "s.json: at /orders/0: BW1.0 is outside of 1 stages and 1 micro-batches");
}

TEST(ScheduleFile, EveryBadFieldIsReported) {
  EXPECT_EQ(Complaint(R"({"order": [], "schedule": 3, "p": 0, "m": "x", "directions": 3,
                          "rank_of_stage": [0, 5]})"),
            "s.json: at /order: unknown key, did you mean \"orders\"?\n"
            "s.json: at /schedule: expected a text, got 3\n"
            "s.json: at /orders: expected an array of texts, one a rank, as in [\"F0.0 BW0.0\"], "
            "got nothing\n"
            "s.json: at /p: expected an integer from 1 to 65536, got 0\n"
            "s.json: at /directions: expected an integer from 1 to 2, got 3\n"
            "s.json: at /m: expected an integer from 1 to 1073741823, got \"x\"\n"
            "s.json: at /rank_of_stage/1: expected an integer from 0 to 0, got 5");
  EXPECT_EQ(Complaint(R"({"p": 2, "virtual_stages": 4, "directions": 2, "m": 3,
                          "orders": ["F0.0 BW0.0"]})"),
            "s.json: at /p: expected 1, one for each of orders, got 2\n"
            "s.json: at /virtual_stages: expected 1, as many as stages have a rank, got 4\n"
            "s.json: at /directions: expected 1, since 1 stages do not divide by 2, got 2\n"
            "s.json: at /m: expected an even number for 2 directions, got 3");
  EXPECT_EQ(Complaint(R"({"orders": ["F0.0 BW0.0 F0.2 BW0.2"]})"),
            "s.json: at /orders: stage 1 of 0 to 2 has no pass");
  EXPECT_EQ(Complaint("[]"), "s.json: expected an object, got []");
}

// One pass of a far micro-batch asks for a billion others; neither time nor memory may follow.
TEST(ScheduleFile, AHoleOfABillionMicroBatchesIsCheap) {
  const std::string complaint = Complaint(R"({"orders": ["F500000000.60000"]})");
  EXPECT_THAT(complaint,
              testing::StartsWith("s.json: at /orders: stage 0 of 0 to 60000 has no pass\n"));
  EXPECT_THAT(Complaint(R"({"orders": ["F500000000.0"]})"),
              testing::StartsWith("s.json: at /orders/0: F0.0 is missing\n"));
}

TEST(ScheduleFile, BuiltInSchedulesSurviveTheirNotation) {
  for (const auto& name : ScheduleKindNames()) {
    ScheduleChoice choice{name.value, 4, 8};
    if (name.value == ScheduleKind::kInterleaved) choice.virtual_stages = 3;
    const PipelineSchedule schedule = BuildSchedule(choice);
    std::string orders;
    for (const auto& order : schedule.orders) {
      orders += fmt::format("{}\"{}\"", orders.empty() ? "" : ", ", OrderText(order));
    }
    const PipelineSchedule back = ReadSchedule(
        "s.json",
        fmt::format(R"({{"directions": {}, "orders": [{}]}})", schedule.directions, orders));
    EXPECT_EQ(back.orders, schedule.orders) << name.name;
    EXPECT_EQ(back.rank_of_stage, schedule.rank_of_stage) << name.name;
    EXPECT_EQ(back.micro_batches, schedule.micro_batches) << name.name;
    EXPECT_EQ(back.chunk_cost_divisor, schedule.chunk_cost_divisor) << name.name;
    EXPECT_EQ(back.forward_only, schedule.forward_only) << name.name;
  }
}

TEST(ScheduleFile, LoadsANameOrAFile) {
  EXPECT_EQ(LoadSchedule("interleaved:2", {.pipeline = 2, .micro_batches = 4}).stages(), 4);
  const std::string file =
      (std::filesystem::path(testing::TempDir()) / "millwright_schedule.json").string();
  WriteTextFile(file, R"({"orders": ["F0.0 BW0.0"]})");
  EXPECT_EQ(LoadSchedule(file, {.pipeline = 0, .micro_batches = 0}).pipeline, 1);
  try {
    LoadSchedule(file, {.pipeline = 2, .micro_batches = 8});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.what(), file + ": has 1 pipeline ranks, and 2 were asked for\n" + file +
                            ": has 1 micro-batches, and 8 were asked for");
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace millwright
