// SPDX-License-Identifier: Apache-2.0
//
// plan --choose: options of the training step searched with the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "planner/training_options.h"
#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kSmall[] =
    " --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096";

Json Answer(const std::string& options) {
  return Json::parse(RunCommand("plan --json" + std::string(kSmall) + options).out);
}

// Each choice is the answer of the question with those flags, and the best of them the answer.
TEST(PlanOptions, IsTheBestOfAsManyPlans) {
  const Json json = Answer(" --choose precision=bf16|fp8|nvfp4,tp-comm-overlap=off|on");
  const Json& choices = json["options"]["choices"];
  ASSERT_EQ(choices.size(), 6U);
  double least = 1e300;
  std::size_t best = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Json& choice = choices[i];
    const std::string precision = choice["options"]["precision"];
    const bool overlap = choice["options"]["tp-comm-overlap"] == "on";
    SCOPED_TRACE(precision);
    EXPECT_EQ(precision, i < 2 ? "bf16" : i < 4 ? "fp8" : "nvfp4");
    EXPECT_EQ(overlap, i % 2 == 1);
    const Json alone = Answer(" --precision " + precision + (overlap ? " --tp-comm-overlap" : ""));
    EXPECT_EQ(choice["fits"], alone["fits"]);
    if (!choice["fits"]) {
      EXPECT_EQ(choice["reason"], "H100-SXM has no nvfp4");
      continue;
    }
    EXPECT_EQ(choice["step_time_s"], alone["simulated_step_time_s"]);
    EXPECT_EQ(choice["plan"], alone["plan"]);
    if (choice["step_time_s"] < least) {
      least = choice["step_time_s"];
      best = i;
    }
  }
  EXPECT_EQ(json["options"]["chosen"], best);
  EXPECT_EQ(json["simulated_step_time_s"], least);
  EXPECT_EQ(json["question"]["training"]["precision"], "fp8");
}

TEST(PlanOptions, WithSizesTheBestOfEach) {
  const std::string common = " --no-simulate --nodes 1..4 --choose precision=bf16|fp8";
  const Json json = Json::parse(
      RunCommand(
          "plan --json --model llama-3.1-8b --cluster dgx-h100 --global-batch 64 --seq 4096" +
          common)
          .out);
  ASSERT_EQ(json["sizes"]["sizes"].size(), 3U);
  for (const Json& size : json["sizes"]["sizes"]) EXPECT_EQ(size["options"], "precision=fp8");
  EXPECT_EQ(json["sizes"]["chosen_nodes"], 4);
  EXPECT_EQ(json["sizes"]["sizes"][2]["step_time_s"], json["step_time_s"]);
  EXPECT_EQ(json["question"]["cluster"]["nodes"], 4);
}

// What is chosen is what its row says, however plans are ranked and whenever they must be found.
TEST(PlanOptions, TheAnswerIsTheRowThatWasChosen) {
  for (const char* how : {" --robust --slow node:1=0.5", " --budget 300ms", " --objective memory",
                          " --robust --tokens 1B --price 2", " --offload"}) {
    SCOPED_TRACE(how);
    const Json json =
        Answer(std::string(how) + " --choose precision=bf16|fp8,cuda-graph=none|full");
    const Json& row = json["options"]["choices"][json["options"]["chosen"].get<std::size_t>()];
    EXPECT_EQ(row["plan"], json["plan"]);
    // The budget may be over before anything is simulated.
    const Json& simulated = json["simulated_step_time_s"];
    EXPECT_EQ(row["step_time_s"], simulated.is_null() ? json["step_time_s"] : simulated);
    const bool robust = json.contains("robust");
    EXPECT_EQ(row["high_s"], robust ? json["robust"]["plans"][0]["high_s"] : Json(nullptr));
    for (const Json& other : json["options"]["choices"]) {
      EXPECT_TRUE(!robust || row["high_s"] <= other["high_s"]);
    }
  }
}

TEST(PlanOptions, SaysSoInASentence) {
  const Outcome outcome = RunCommand("plan" + std::string(kSmall) + " --choose precision=bf16|fp8");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("The fastest of 2 choices of options is precision=fp8: "));
  EXPECT_THAT(outcome.out, HasSubstr("\nBest: tp"));
  const Outcome none = RunCommand("plan" + std::string(kSmall) + " --choose precision=nvfp4|mxfp8");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, StartsWith("None of 2 choices of options has a plan that fits."));
  EXPECT_THAT(RunCommand("plan" + std::string(kSmall) + " --choose precision=nvfp4").out,
              StartsWith("No plan with precision=nvfp4 fits."));
  const Outcome wrong = RunCommand("plan" + std::string(kSmall) + " --choose precision=fp9");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(
      wrong.err,
      "millwright: --choose: precision: expected fp16, bf16, fp8, mxfp8, nvfp4, got \"fp9\"\n");
}

TEST(PlanOptions, EveryOneIsAFlag) {
  const std::string help = RunCommand("plan --help").out;
  for (const TrainingOption& option : TrainingOptions()) {
    EXPECT_THAT(
        help, HasSubstr((option.is_switch() ? "--[no-]" : "--") + std::string(option.name) + ' '));
  }
}

}  // namespace
}  // namespace millwright
