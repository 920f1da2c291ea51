// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/communicator.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"
#include "tests/validate/made_up_curves.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// 2 layers of 16 hidden elements on 4 heads; threads, so that nothing outside this process is
// asked.
const std::string kShape =
    "run --layers 2 --hidden 16 --heads 4 --kv-heads 2 --ffn 24 --vocab 301 --swiglu --rms-norm "
    "--rope --untied --no-bias --no-dropout --cluster local-cpu --global-batch 4 --seq 16 "
    "--backend threads ";

TEST(Run, SaysWhatItComparedAndSent) {
  const Outcome outcome = RunCommand(kShape + "--ranks 4 --tp 2 --pp 2 --verify");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out,
              HasSubstr("Executed tp2 sp cp1 pp2 vpp1 dp1 mbs1 zero1 under 1f1b on 4 ranks "
                        "(threads) in fp64:"));
  EXPECT_THAT(outcome.out, HasSubstr("Equal to the dense reference on one rank."));
  for (const char* row : {"\nloss ", "\ngradients ", "\nweights ", "\nqkv gather ", "\nsend "}) {
    EXPECT_THAT(outcome.out, HasSubstr(row));
  }
}

TEST(Run, JsonHasTheSameBytesButForTiming) {
  const std::string line = kShape + "--ranks 4 --tp 2 --dp 2 --zero 2 --verify --json --steps 2";
  const Outcome first = RunCommand(line), second = RunCommand(line);
  ASSERT_EQ(first.code, 0) << first.err;
  Json a = Json::parse(first.out), b = Json::parse(second.out);
  EXPECT_EQ(a["timing"]["step_s"].size(), 2U);
  EXPECT_EQ(a["timing"]["ranks"].size(), 4U);
  a.erase("timing");
  b.erase("timing");
  EXPECT_EQ(a.dump(), b.dump());
  EXPECT_EQ(a["holds"], true);
  EXPECT_EQ(a["losses"].size(), 2U);
  ASSERT_EQ(a["compared"].size(), 3U);
  // Embedding, two layers of 7 weights, final norm, head.
  EXPECT_EQ(a["compared"][1]["tensors"], 17);
  // Every rank gathers a layer's input for q, k and v once a micro-batch: 2 layers, 2 micro-batches
  // of each of 2 data ranks, 4 ranks.  A gather sends the half of 16 x 16 doubles: 1 KiB.
  for (const Json& sent : a["sent"]) {
    if (sent["call"] != "qkv gather" || sent["kind"] != "all-gather") continue;
    EXPECT_EQ(sent["calls"], 16);
    EXPECT_EQ(sent["bytes"], 16 * 1024);
  }
}

TEST(Run, OneSeedIsOneRun) {
  const auto loss = [](const std::string& flags) {
    return Json::parse(RunCommand(kShape + "--ranks 1 --json --steps 1 " + flags).out)["losses"][0];
  };
  EXPECT_EQ(loss("--seed 7"), loss("--seed 7"));
  EXPECT_NE(loss("--seed 7"), loss("--seed 8"));
}

TEST(Run, RefusesByNameWhatItCannotExecute) {
  const Outcome outcome = RunCommand(
      "run --layers 2 --hidden 16 --heads 4 --cluster local-cpu --ranks 1 --global-batch 4 "
      "--seq 16 --backend threads");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "millwright: run does not execute dropout yet\n");
  EXPECT_EQ(outcome.out, "");
}

class RunFiles : public InFolder {};

TEST_F(RunFiles, DoesNotCompareInFp8OnCpus) {
  Write("cpu.json", WriteCurves(MadeUpCurves()));
  const Outcome outcome =
      RunCommand(kShape + "--ranks 1 --precision fp8 --compare --calibration cpu.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "millwright: --compare: CPUs compute products in FP8 from rounded operands, which "
            "`measure` does not time; without --precision fp8, or with --backend cuda\n");
}

// What a run says of its step is what validate says of its record, by the same curves.
TEST_F(RunFiles, RecordsWhatValidateReads) {
  Write("cpu.json", WriteCurves(MadeUpCurves()));
  const Outcome ran = RunCommand(kShape +
                                 "--ranks 2 --tp 2 --steps 3 --calibration cpu.json --compare "
                                 "--record run.json --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json simulated = Json::parse(ran.out)["timing"]["simulated"];
  const Outcome outcome = RunCommand("validate --executed run.json --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 1U);
  const Json& row = json["rows"][0];
  for (const char* key : {"predicted_s", "measured_s", "error"}) {
    EXPECT_EQ(row[key], simulated[key]) << key;
  }
  EXPECT_NEAR(row["processor_s"].get<double>(), simulated["processor_s"].get<double>(), 1e-12);
  EXPECT_EQ(row["operators"].size(), simulated["operators"].size());
  EXPECT_EQ(row["ranks"], 2);
  EXPECT_EQ(json["overall"]["n"], 1);
  EXPECT_DOUBLE_EQ(json["overall"]["median_ape"].get<double>(),
                   std::abs(row["error"].get<double>()));
  // Two of them, as text; and an answer of no.
  ASSERT_EQ(RunCommand(kShape + "--ranks 2 --tp 2 --steps 3 --calibration cpu.json --compare "
                                "--record again.json")
                .code,
            0);
  const Outcome twice =
      RunCommand("validate --executed run.json --executed again.json --calibration cpu.json");
  EXPECT_EQ(twice.code, 0) << twice.err;
  EXPECT_THAT(twice.out, HasSubstr("2 executed steps are predicted with a median error of "));
  EXPECT_THAT(twice.out, HasSubstr("Operator, furthest off first"));
  EXPECT_EQ(RunCommand("validate --executed run.json --max-error 0").code, 1);
}

TEST_F(RunFiles, SaysWhatGoesWithARecord) {
  EXPECT_EQ(RunCommand(kShape + "--ranks 1 --record run.json").err,
            "millwright: --record: goes with --compare\n");
  EXPECT_EQ(RunCommand("validate --executed run.json --runs runs.json").err,
            "millwright: --executed: goes without --runs: one kind at a time\n");
  EXPECT_EQ(RunCommand("validate --executed run.json --html page.html --left-out").err,
            "millwright: --left-out: goes with --ops\n"
            "millwright: --html: goes with --runs\n");
  EXPECT_EQ(RunCommand("validate --executed run.json").err, "millwright: run.json: no such file\n");
}

// One step on threads, from the command line to the verdict.
std::string Verified(const std::string& flags) {
  const Outcome outcome = RunCommand("run --cluster local-cpu --steps 1 --verify " +
                                     std::string("--backend threads ") + flags);
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("Equal to the dense reference"));
  return outcome.out;
}

TEST(Run, ExecutesExperts) {
  EXPECT_THAT(Verified("--model tiny-moe --ranks 4 --dp 4 --ep 2 --etp 2 --global-batch 4 --seq 8"),
              HasSubstr("expert dispatch"));
}

TEST(Run, ExecutesNestedContextParallelism) {
  const std::string out = Verified(
      "--model tiny-llama --ranks 4 --cp 4 --cp-kind nested --cp-ulysses 2 --global-batch 2 --seq "
      "16");
  EXPECT_THAT(out, HasSubstr("cp4 nested(2)"));
  EXPECT_THAT(out, HasSubstr("ulysses qkv all-to-all"));
  EXPECT_THAT(out, HasSubstr("ring kv exchange"));
}

TEST(Run, ExecutesProductsInFp8) {
  const std::string out =
      Verified("--model tiny-moe --ranks 4 --tp 2 --pp 2 --global-batch 4 --seq 8 --precision fp8");
  EXPECT_THAT(out, HasSubstr("in fp64, linear layers\nin fp8: 1 step"));
  EXPECT_THAT(out, HasSubstr("fp8 scales"));
  const Json json =
      Json::parse(RunCommand(kShape + "--ranks 1 --json --steps 1 --verify --precision fp8").out);
  EXPECT_EQ(json["linear_layers"], "fp8");
  EXPECT_EQ(json["holds"], true);
}

TEST(Run, RefusesMoreTensorRanksThanKvHeadsInFp8) {
  const Outcome outcome = RunCommand(kShape + "--ranks 4 --tp 4 --precision fp8");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "millwright: run does not execute products in FP8 on more tensor ranks than KV heads "
            "yet\n");
}

// Process 2 is the second stage of the first pipeline, and not the first stage of the second.
TEST(Run, RanksLieInThePlansOrder) {
  EXPECT_THAT(Verified("--model tiny-llama --ranks 8 --tp 2 --pp 2 --dp 2 --order tp-cp-ep-pp-dp "
                       "--global-batch 4 --seq 8"),
              HasSubstr("pp-dp"));
  RunThreads(8, [](Communicator& processes) {
    ParallelConfig plan{.tensor = 2, .pipeline = 2, .data = 2};
    plan.order = RankOrder::kPipelineInside;
    const PlacedCommunicator ranks(processes, plan);
    if (processes.rank() == 2) {
      EXPECT_EQ(ranks.rank(), 4);  // tensor 0, data 0, stage 1
    }
    if (processes.rank() == 5) {
      EXPECT_EQ(ranks.rank(), 3);  // tensor 1, data 1, stage 0
    }
  });
}

TEST(Run, APlanThatCannotRunIsAnAnswer) {
  const Outcome outcome = RunCommand(kShape + "--ranks 8 --tp 8");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("cannot run: 4 attention heads are not divisible by tp 8."));
}

TEST(Run, AModelThatDoesNotFitTheMachineIsRefused) {
  const Outcome outcome = RunCommand(
      "run --model llama-3.1-405b --cluster dgx-h100 --nodes 2 --global-batch 16 --seq 64 --tp 8 "
      "--backend threads");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the ranks' weights, gradients, optimizer states and "
                                     "activations are at least "));
  // And a sequence that does not.
  EXPECT_EQ(RunCommand("run --model tiny-llama --cluster local-cpu --ranks 1 --global-batch 1 "
                       "--seq 900000000 --backend threads")
                .code,
            2);
}

}  // namespace
}  // namespace millwright
