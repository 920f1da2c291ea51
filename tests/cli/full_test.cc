// SPDX-License-Identifier: Apache-2.0
//
// `simulate` with every rank in the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kQuestion[] =
    " --model llama-3.1-8b --cluster dgx-h100 --nodes 4 --global-batch 64 --seq 4096 --tp 2 --pp 2";

Json Simulated(const std::string& flags) {
  const Outcome outcome = RunCommand("simulate --json" + std::string(kQuestion) + flags);
  EXPECT_THAT(outcome.code, testing::AnyOf(0, 1)) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(Full, PricedIsFolded) {
  const Json folded = Simulated("");
  EXPECT_FALSE(folded.contains("full"));
  const Json full = Simulated(" --fidelity full --links priced");
  EXPECT_DOUBLE_EQ(full["step_time_s"], folded["step_time_s"]);
  EXPECT_EQ(full["full"]["difference"], 0);
  EXPECT_EQ(full["full"]["ranks"], 32);
  // 16 ranks of each of 2 pipeline ranks do what the folded ones do.
  EXPECT_EQ(full["full"]["tasks"].get<int>(), 16 * folded["tasks"].get<int>());
  EXPECT_EQ(full["ranks"], folded["ranks"]);
  EXPECT_TRUE(full["full"]["links"].empty());
}

TEST(Full, LinksAreSharedAndNeverOverFull) {
  const Json full = Simulated(" --fidelity full")["full"];
  EXPECT_GT(full["difference"].get<double>(), 0);
  EXPECT_LT(full["difference"].get<double>(), 0.01);
  // Sends of the pipeline meet the gradients' reduce-scatter on the NICs.
  EXPECT_GT(full["contention"]["pipeline"]["delayed"].get<int>(), 0);
  EXPECT_GT(full["contention"]["pipeline"]["worst"].get<double>(), 1);
  ASSERT_FALSE(full["links"].empty());
  for (const Json& link : full["links"]) {
    EXPECT_LE(link["utilisation"].get<double>(), 1 + 1e-9);
    EXPECT_GT(link["bytes"].get<double>(), 0);
  }
}

TEST(Full, JitterGivesADistributionThatTheSeedDecides) {
  const Json a = Simulated(" --jitter 0.03 --gpu-jitter 0.02 --seed 1 --steps 8")["full"];
  ASSERT_EQ(a["steps_s"].size(), 8U);
  EXPECT_LE(a["p5_s"], a["p50_s"]);
  EXPECT_LE(a["p50_s"], a["p95_s"]);
  EXPECT_GT(a["p95_s"], a["p5_s"]);
  // All wait for the slowest, so jitter of mean 1 costs time.
  EXPECT_GT(a["mean_s"], a["folded_step_time_s"]);
  EXPECT_EQ(Simulated(" --jitter 0.03 --gpu-jitter 0.02 --seed 1 --steps 8")["full"], a);
  EXPECT_NE(Simulated(" --jitter 0.03 --gpu-jitter 0.02 --seed 2 --steps 8")["full"]["steps_s"],
            a["steps_s"]);
}

TEST(Full, UnevenRoutingIsOfModelsWithExperts) {
  EXPECT_EQ(Simulated(" --moe-routing 0.3")["full"]["difference"],
            Simulated(" --fidelity full")["full"]["difference"]);
  const auto step = [](const std::string& flags) {
    const Outcome outcome = RunCommand(
        "simulate --json --model mixtral-8x7b --cluster dgx-h100 --nodes 4 --global-batch 64 "
        "--seq 4096 --pp 4 --ep 8 --recompute full" +
        flags);
    return Json::parse(outcome.out)["step_time_s"].get<double>();
  };
  EXPECT_GT(step(" --moe-routing 0.3"), 1.1 * step(""));
}

TEST(Full, TheTextSaysWhatSharingAndTheSlowestCost) {
  const Outcome outcome =
      RunCommand("simulate" + std::string(kQuestion) + " --gpu-jitter 0.05 --seed 3 --steps 3");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"Every rank: ", " tasks on 32 GPUs. The step is ", " finishes last: its compute takes ",
        "\n3 steps", "\n  over folded ", "\nSharing links", "\n  data-parallel communication",
        "\nLinks", "\n  NIC to leaf", "for each of 16 GPUs at a place in the pipeline"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

TEST(Full, Mistakes) {
  const auto refused = [](const std::string& flags) {
    const Outcome outcome = RunCommand("simulate" + std::string(kQuestion) + flags);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_EQ(refused(" --fidelity folded --jitter 0.03 --steps 2"),
            "millwright: --jitter: needs --fidelity full\n"
            "millwright: --steps: needs --fidelity full\n");
  EXPECT_EQ(refused(" --steps 100"),
            "millwright: --steps: needs --jitter, --gpu-jitter or --moe-routing; without them "
            "every step is the same\n");
  EXPECT_EQ(refused(" --jitter 1e9"),
            "millwright: --jitter: expected a number between 0 and 1, got \"1e9\"\n");
  EXPECT_EQ(refused(" --jitter -0.1 --seed -1 --steps 0 --fidelity half"),
            "millwright: --fidelity: expected one of folded, full, got \"half\"\n"
            "millwright: --jitter: expected a number between 0 and 1, got \"-0.1\"\n"
            "millwright: --seed: expected an integer between 0 and 9007199254740992, got \"-1\"\n"
            "millwright: --steps: expected an integer between 1 and 100000, got \"0\"\n");
}

TEST(Full, WhatDoesNotGoIntoMemorySaysSoBeforeItStarts) {
  // 131,072 GPUs, 16,384 micro-batches: 2 M tasks a GPU.
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster dgx-h100 --nodes 16384 --tp 8 --pp 2 "
      "--global-batch 33554432 --seq 4096 --fidelity full");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("every rank of 2 pipeline ranks on 131,072 GPUs, with "));
  EXPECT_THAT(outcome.err,
              HasSubstr("; --fidelity folded simulates one GPU of each pipeline rank\n"));
}

}  // namespace
}  // namespace millwright
