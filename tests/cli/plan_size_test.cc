// SPDX-License-Identifier: Apache-2.0
//
// plan over cluster sizes, with prices, deadlines and other objectives, and with GPUs unlike each
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kSmall[] = " --model llama-3.1-8b --cluster dgx-h100 --global-batch 64 --seq 4096";

Json Parsed(const Outcome& outcome) { return Json::parse(outcome.out); }

TEST(PlanSize, TakesTheSmallestThatMeetsTheDeadline) {
  const std::string sizes =
      "plan --no-simulate --nodes 1..8 --tokens 100B --json" + std::string(kSmall);
  const Json fastest = Parsed(RunCommand(sizes));
  ASSERT_EQ(fastest["sizes"]["sizes"].size(), 4U);  // 1, 2, 4, 8
  EXPECT_EQ(fastest["sizes"]["chosen_nodes"], 8);
  EXPECT_EQ(fastest["question"]["cluster"]["nodes"], 8);
  const Json& two = fastest["sizes"]["sizes"][1];
  EXPECT_EQ(two["nodes"], 2);
  // 1e11 tokens in whole steps of 64 x 4,096.
  const double steps = std::ceil(1e11 / (64 * 4096));
  EXPECT_NEAR(two["time_s"].get<double>(), steps * two["step_time_s"].get<double>(), 1e-3);
  // Just enough time for two nodes.
  const std::string time = std::to_string(std::lround(two["time_s"].get<double>()) + 1) + "s";
  const Outcome met = RunCommand(sizes + " --deadline " + time);
  EXPECT_EQ(met.code, 0);
  EXPECT_EQ(Parsed(met)["sizes"]["chosen_nodes"], 2);
  EXPECT_EQ(Parsed(met)["step_time_s"], two["step_time_s"]);
  const Outcome late = RunCommand(sizes + " --deadline 1s");
  EXPECT_EQ(late.code, 1);
  EXPECT_EQ(Parsed(late)["sizes"]["chosen_nodes"], nullptr);
}

TEST(PlanSize, PriceTakesTheCheapest) {
  const Json json = Parsed(RunCommand(
      "plan --no-simulate --nodes 1|2|4 --tokens 1T --price 2.5 --json" + std::string(kSmall)));
  const Json& sizes = json["sizes"]["sizes"];
  double least = 1e300;
  int nodes = 0;
  for (const Json& size : sizes) {
    // 2.5 USD for each of 8 GPUs a node and hour.
    const double usd = 2.5 * 8 * size["nodes"].get<double>() * size["time_s"].get<double>() / 3600;
    EXPECT_NEAR(size["usd"].get<double>() / usd, 1, 1e-12);
    // Whole steps are a little more than the tokens asked for.
    EXPECT_NEAR(size["tokens_per_usd"].get<double>() * usd / 1e12, 1, 1e-6);
    if (usd < least) nodes = size["nodes"];
    least = std::min(least, usd);
  }
  EXPECT_EQ(json["sizes"]["chosen_nodes"], nodes);
  EXPECT_EQ(json["question"]["objective"], "cost");
}

TEST(PlanSize, OneSizeIsTheAnswerWithoutThem) {
  const std::string question = "plan --nodes 2 --json" + std::string(kSmall);
  Json priced = Parsed(RunCommand(question + " --price 2 --tokens 1T"));
  const Json plain = Parsed(RunCommand(question));
  ASSERT_EQ(priced["sizes"]["sizes"].size(), 1U);
  EXPECT_EQ(priced["sizes"]["chosen_nodes"], 2);
  EXPECT_EQ(priced["sizes"]["sizes"][0]["step_time_s"], plain["simulated_step_time_s"]);
  for (const char* key : {"plans", "pareto", "certificate", "in_framework"}) {
    EXPECT_EQ(priced[key], plain[key]) << key;
  }
  // Nothing fits: the reason is the answer's.
  const Json none = Parsed(RunCommand(
      "plan --no-simulate --gpus 8 --model llama-3.1-70b --cluster dgx-h100 --global-batch 64 "
      "--seq 4096 --price 2 --json"));
  EXPECT_EQ(none["sizes"]["chosen_nodes"], nullptr);
  EXPECT_EQ(none["sizes"]["sizes"][0]["reason"], none["reason"]);
}

TEST(PlanSize, TextSaysTheSizeFirst) {
  const Outcome outcome =
      RunCommand("plan --no-simulate --nodes 1..2 --tokens 1T --deadline 10000d --price 2" +
                 std::string(kSmall));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("The smallest of 2 cluster sizes that trains 1.00 T tokens "
                                      "within 10,000 days is 1 node: "));
  EXPECT_THAT(outcome.out, HasSubstr("\nBest: tp"));
}

TEST(PlanSize, ASizeWithoutAPlanSaysWhy) {
  // Llama 3.1 70B has 18 bytes a parameter of state, 1.3 TB: 8 GPUs have 0.64 TB.
  const Json json =
      Parsed(RunCommand("plan --no-simulate --nodes 1|4 --model llama-3.1-70b --cluster dgx-h100 "
                        "--global-batch 64 --seq 4096 --json"));
  EXPECT_EQ(json["sizes"]["sizes"][0]["fits"], false);
  EXPECT_THAT(json["sizes"]["sizes"][0]["reason"].get<std::string>(),
              HasSubstr("the plan that needs least memory is "));
  EXPECT_EQ(json["sizes"]["chosen_nodes"], 4);
}

TEST(PlanSize, MemoryIsTheSmallestPlanOfAll) {
  const std::string question = "plan --no-simulate --nodes 2 --json" + std::string(kSmall);
  const Json fast = Parsed(RunCommand(question));
  const Json small = Parsed(RunCommand(question + " --objective memory"));
  const Json all = Parsed(RunCommand(question + " --objective memory --exact"));
  EXPECT_EQ(small["plans"], all["plans"]);
  EXPECT_LT(small["memory"]["peak_bytes"], fast["memory"]["peak_bytes"]);
  EXPECT_GT(small["step_time_s"], fast["step_time_s"]);
  for (const Json& plan : small["plans"]) {
    EXPECT_GE(plan["memory"]["peak_bytes"], small["memory"]["peak_bytes"]);
  }
  // The front's end is no smaller, and at most a hundredth of the memory larger where it is as
  // slow.
  EXPECT_LE(small["memory"]["peak_bytes"], small["pareto"].back()["memory"]["peak_bytes"]);
  // On one cluster the fastest is the cheapest.
  EXPECT_EQ(Parsed(RunCommand(question + " --objective cost"))["plans"], fast["plans"]);
}

TEST(PlanSize, RobustPlansComeInOrder) {
  const std::string question = "plan --nodes 2 --top 4 --json" + std::string(kSmall);
  const Json json =
      Parsed(RunCommand(question + " --robust --gpu-jitter 0.05 --slow gpu:3=0.9 --seed 7"));
  const Json& robust = json["robust"];
  EXPECT_EQ(robust["gpu_jitter"], 0.05);
  EXPECT_EQ(robust["slow"], Json::array({"gpu:3=0.9"}));
  EXPECT_EQ(robust["seed"], 7);
  ASSERT_EQ(robust["plans"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GT(robust["plans"][i]["p95_s"], json["plans"][i]["simulated_step_time_s"]);
    if (i > 0) {
      EXPECT_GE(robust["plans"][i]["high_s"], robust["plans"][i - 1]["high_s"]);
    }
  }
  // How many are listed does not change which are drawn.
  const std::string slow = " --robust --slow gpu:3=0.5";
  const Json of_one =
      Parsed(RunCommand("plan --nodes 2 --top 1 --json" + std::string(kSmall) + slow));
  const Json of_four = Parsed(RunCommand(question + slow));
  ASSERT_EQ(of_one["plans"].size(), 1U);
  ASSERT_EQ(of_one["robust"]["plans"].size(), 1U);
  EXPECT_EQ(of_one["plans"][0], of_four["plans"][0]);
  const std::string text = RunCommand("plan --nodes 2 --top 1" + std::string(kSmall) + slow).out;
  EXPECT_THAT(text, HasSubstr(" (--robust)."));
  EXPECT_THAT(text, HasSubstr("of these the best 8 ranked by draws"));
}

// A deadline that the undisturbed step of a node meets, and the one that --robust ranks by does
// not.
TEST(PlanSize, DeadlinesGoByTheRobustStep) {
  const std::string question =
      "plan --nodes 1..2 --top 2 --tokens 1B" + std::string(kSmall) + " --robust --deadline ";
  const Json any = Parsed(RunCommand(question + "30d --json"))["sizes"];
  EXPECT_EQ(any["chosen_nodes"], 1);
  const Json& one = any["sizes"][0];
  const double steps = std::ceil(1e9 / (64 * 4096));
  EXPECT_GT(one["high_s"], one["step_time_s"]);
  EXPECT_NEAR(one["time_s"].get<double>(), steps * one["high_s"].get<double>(), 1e-3);
  const std::string between =
      std::to_string(std::lround(steps * one["step_time_s"].get<double>()) + 1) + "s";
  EXPECT_EQ(Parsed(RunCommand(question + between + " --json"))["sizes"]["chosen_nodes"], 2);
  const std::string text = RunCommand(question + "30d").out;
  EXPECT_THAT(text, HasSubstr("(by the step that --robust ranks by)."));
  EXPECT_THAT(text, HasSubstr("95% and interval"));
}

TEST(PlanSize, AllMistakesAtOnce) {
  const Outcome outcome = RunCommand(
      "plan --nodes 8..x --tokens lots --deadline never --price -1 --objective speed --robust "
      "--no-simulate" +
      std::string(kSmall));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(
      outcome.err,
      "millwright: --objective: expected one of throughput, cost, memory, got \"speed\"\n"
      "millwright: --price: expected a number between 0.001 and 1000000, got \"-1\"\n"
      "millwright: --nodes: expected FIRST..LAST, FIRST..LAST+STEP or FIRST..LAST*FACTOR with at "
      "most 10000 values, got \"8..x\"\n"
      "millwright: --tokens: expected a number of tokens from 1 to 1e18, such as 15T, got "
      "\"lots\"\n"
      "millwright: --deadline: expected a time above 0 s and up to 10000 d, such as 30d, got "
      "\"never\"\n"
      "millwright: --robust: needs --simulate\n");
  EXPECT_EQ(RunCommand("plan --nodes 0 --deadline 5d --seed 1 --slow gpu:1=0.5 --gpu-jitter 0.1" +
                       std::string(kSmall))
                .err,
            "millwright: --nodes: expected an integer between 1 and 262144, got \"0\"\n"
            "millwright: --deadline: needs --tokens, which are to be trained by then\n"
            "millwright: --gpu-jitter: needs --robust\n"
            "millwright: --seed: needs --robust\n"
            "millwright: --slow: needs --robust\n");
  // Of a series the size that is too many is none that was typed.
  EXPECT_EQ(RunCommand("plan --nodes 1..1000000000" + std::string(kSmall)).err,
            "millwright: --nodes: expected an integer between 1 and 262144, got \"524288\" of "
            "\"1..1000000000\"\n");
}

}  // namespace
}  // namespace millwright
