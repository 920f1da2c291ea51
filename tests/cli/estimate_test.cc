// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kSmall[] =
    " --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096";

Json PlanOf(const std::string& flags) {
  return Json::parse(RunCommand("estimate --json" + flags).out)["plan"];
}

TEST(Estimate, Defaults) {
  const Json plan = PlanOf(" --tp 4 --pp 2" + std::string(kSmall));
  EXPECT_EQ(plan["sp"], true);
  EXPECT_EQ(plan["dp"], 2);  // 16 / (4 x 2)
  EXPECT_EQ(plan["zero"], 1);
  EXPECT_EQ(plan["schedule"], "1f1b");
  EXPECT_EQ(plan["recompute"], "none");
  EXPECT_EQ(PlanOf(std::string(kSmall))["sp"], false);  // tp 1 has nothing to shard over
  EXPECT_EQ(PlanOf(" --tp 4 --no-sp" + std::string(kSmall))["sp"], false);
  EXPECT_EQ(PlanOf(" --pp 4 --vpp 2" + std::string(kSmall))["schedule"], "interleaved");
}

TEST(Estimate, RecomputeIsWrittenInTwoWays) {
  const std::string rest = " --tp 2 --pp 2" + std::string(kSmall);
  EXPECT_EQ(PlanOf(" --recompute full(3)" + rest)["recompute"], "full(3)");
  EXPECT_EQ(PlanOf(" --recompute full --recompute-layers 3" + rest)["recompute"], "full(3)");
  EXPECT_EQ(PlanOf(" --offload-layers 3" + rest)["recompute"], "offload(3)");
  EXPECT_EQ(PlanOf(" --recompute selective(mlp) --offload-layers 3" + rest)["recompute"],
            "selective(mlp) offload(3)");
  EXPECT_EQ(PlanOf(" --recompute selective(layernorm,mlp)" + rest)["recompute"],
            "selective(mlp,layernorm)");
  EXPECT_EQ(PlanOf(" --recompute selective --recompute-modules mlp,layernorm" + rest)["recompute"],
            "selective(mlp,layernorm)");
}

TEST(Estimate, RecomputeOfEachRank) {
  const std::string rest = " --tp 2 --pp 4" + std::string(kSmall);
  EXPECT_EQ(PlanOf(" --rank-recompute full(3)|2xselective(layernorm,mlp)|none" + rest)["recompute"],
            "full(3)|2xselective(mlp,layernorm)|none");
  EXPECT_EQ(PlanOf(" --rank-recompute 2xoffload(3)|full|full" + rest)["recompute"],
            "2xoffload(3)|2xfull");
  const Outcome outcome = RunCommand("estimate --rank-recompute full(3)|3xnone" + rest);
  EXPECT_THAT(outcome.out, StartsWith("tp2 sp pp4 dp2 mbs1 zero1 full(3)|3xnone: "));
  EXPECT_THAT(outcome.out, HasSubstr("full(3)|3xnone, by pipeline rank\n"));
  // As the planner writes it, so the flag takes it, and a job's gives way to other flags.
  const std::string folder = testing::TempDir() + "/ranks";
  const Outcome exported = RunCommand(
      "estimate --rank-recompute full(3)|3xnone --export megatron "
      "--out " +
      folder + rest);
  EXPECT_THAT(exported.out + exported.err, HasSubstr("parallel.rank_recompute"));
  const auto of_job = [&](const std::string& flags) {
    return PlanOf(" " + folder + "/job.json" + flags)["recompute"];
  };
  EXPECT_EQ(of_job(""), "full(3)|3xnone");
  EXPECT_EQ(of_job(" --recompute full"), "full");
  EXPECT_EQ(of_job(" --pp 2"), "none");
  EXPECT_EQ(of_job(" --rank-recompute 3xnone|full"), "3xnone|full");
  EXPECT_EQ(
      RunCommand("estimate " + folder + "/job.json --pp 2").err,
      "millwright: warning: rank_recompute: the job's full(3)|3xnone is left out: flags change "
      "the ranks or what all of them recompute\n");
  // The same on all is what all recompute.
  EXPECT_EQ(RunCommand("estimate --json --rank-recompute 4xfull" + rest).out,
            RunCommand("estimate --json --recompute full" + rest).out);
}

// 32 layers are 16 on each of two ranks.
TEST(Estimate, MoreLayersThanAStageHas) {
  const auto warned = [](const std::string& flags) {
    return RunCommand("estimate --tp 2 --pp 2 " + flags + kSmall).err;
  };
  EXPECT_EQ(warned("--recompute full(16)"), "");
  EXPECT_EQ(
      warned("--recompute full --recompute-layers 17"),
      "millwright: warning: --recompute: full(17) is all of the 16 layers that a stage has at "
      "most\n");
  EXPECT_EQ(warned("--offload-layers 40"),
            "millwright: warning: --offload-layers: offload(40) is all of the 16 layers that a "
            "stage has at most\n");
  EXPECT_EQ(
      warned("--rank-recompute full(20)|full(30) --stage-layers 12,20"),
      "millwright: warning: --rank-recompute: rank 0: full(20) is all of the 12 layers that a "
      "stage has at most\n"
      "millwright: warning: --rank-recompute: rank 1: full(30) is all of the 20 layers that a "
      "stage has at most\n");
}

TEST(Estimate, FitsAndSaysSo) {
  const Outcome outcome = RunCommand("estimate --tp 2 --recompute full" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, StartsWith("tp2 sp pp1 dp8 mbs1 zero1 full: "));
  EXPECT_THAT(outcome.out, HasSubstr("\nThe plan\n"));
}

TEST(Estimate, DoesNotFitAndNamesTheItem) {
  // 70.6e9 parameters x 12 bytes / 8 GPUs = 98.6 GiB of optimizer state on 79.6 GiB.
  const Outcome outcome = RunCommand(
      "estimate --model llama-3.1-70b --cluster dgx-h100 --nodes 1 --global-batch 8 --seq 8192 "
      "--tp 8 --pp 1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("tp8 sp pp1 dp1 mbs1 zero1 does not fit: stage 0 needs "));
  EXPECT_THAT(outcome.out, HasSubstr("most of it is optimizer state (98.6 GiB)"));
  EXPECT_THAT(outcome.out, HasSubstr("\nThe plan, if the memory were there\n"));
}

TEST(Estimate, PlanThatCannotRun) {
  const Outcome outcome = RunCommand("estimate --tp 3" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out,
              StartsWith("tp3 pp1 dp5 mbs1 zero1 cannot run: tp 3 x cp 1 x pp 1 x dp 5 is "
                         "15 GPUs, not 16.\n"));
  const Json json = Json::parse(
      RunCommand("estimate --json --tp 8 --dp 2 --zero-shard 5" + std::string(kSmall)).out);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["rejected"]["zero_shard"],
            "zero_shard 5 does not divide the 2 data-parallel ranks (dp x cp)");
}

TEST(Estimate, Warnings) {
  // llama-3.1 has 131,072 positions; a dense model has no use for what concerns experts.
  const std::string flags =
      " --model llama-3.1-8b --cluster dgx-h100 --global-batch 8 --seq 262144 --tp 8 "
      "--moe-imbalance 2 --recompute full";
  // Up to 32,768 rows were measured.
  const std::string outside =
      "output head, qkv, attention output, fc1, fc2: GEMMs far outside the shapes measured on "
      "H100-SXM (such as 262144 x 16128 x 4096); their time is extrapolated";
  const Outcome text = RunCommand("estimate" + flags);
  EXPECT_EQ(text.err,
            "millwright: warning: --seq: 262,144 tokens are more than the 131,072 positions of "
            "llama-3.1-8b\n"
            "millwright: warning: --moe-imbalance: changes nothing: llama-3.1-8b has no experts\n"
            "millwright: warning: " +
                outside + "\n");
  const Json json = Json::parse(RunCommand("estimate --json" + flags).out);
  EXPECT_EQ(
      json["warnings"],
      Json::array({"--seq: 262,144 tokens are more than the 131,072 positions of llama-3.1-8b",
                   "--moe-imbalance: changes nothing: llama-3.1-8b has no experts", outside}));
  EXPECT_EQ(Json::parse(RunCommand("estimate --json --tp 2" + std::string(kSmall)).out)["warnings"],
            Json::array());
}

TEST(Estimate, DeepSeekV3AsPublished) {
  // arXiv:2412.19437, section 3.2: PP16, EP64, ZeRO-1, no TP, on 2,048 H800; 61 layers over 16
  // stages are not equal.
  const Outcome outcome = RunCommand(
      "estimate --json --model deepseek-v3 --cluster dgx-h800 --nodes 256 --global-batch 15360 "
      "--seq 4096 --precision fp8 --pp 16 --ep 64 --recompute full");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["plan"]["dp"], 128);
  EXPECT_EQ(json["memory"]["stages"].size(), 16U);
  EXPECT_GT(json["time"]["exposed_ep"].get<double>(), 0);
}

// Embedding and head of 128,256 x 4,096 each, the last norm, and of 32 layers two, 218,112,000
// each; of more layers than a model has the last kind is repeated.
TEST(Estimate, LayersAloneAreOfTheModelThatIsNamed) {
  const auto total = [](int layers) {
    return Json::parse(
               RunCommand(fmt::format("estimate --json --model llama-3.1-8b --cluster dgx-h100 "
                                      "--global-batch 8 --seq 4096 --layers {}",
                                      layers))
                   .out)["question"]["model"]["parameters"]["total"]
        .get<std::int64_t>();
  };
  const std::int64_t hidden = 4096, layer = 218112000;
  EXPECT_EQ(total(2), hidden * 2 * 128256 + hidden + 2 * layer);
  EXPECT_EQ(total(40), hidden * 2 * 128256 + hidden + 40 * layer);
}

TEST(Estimate, EveryTrainingSwitchReachesTheQuestion) {
  const Json json = Json::parse(
      RunCommand("estimate --json --tp 2 --precision fp8 --gradient-dtype bf16 --moment-dtype bf16 "
                 "--state fsdp --no-flash-attention --fused-swiglu --fp8-activation-store "
                 "--fused-cross-entropy "
                 "--moe-imbalance 1.5 --expert-overlap --tp-comm-overlap --no-overlap-grad-reduce "
                 "--no-overlap-param-gather --no-overlap-p2p --moe-dispatcher deepep "
                 "--mfu-convention full" +
                 std::string(kSmall))
          .out);
  const Json& t = json["question"]["training"];
  EXPECT_EQ(t["precision"], "fp8");
  EXPECT_EQ(t["gradient_bytes"], 2);
  EXPECT_EQ(t["moment_bytes"], 4);
  EXPECT_EQ(t["state"], "fsdp");
  EXPECT_EQ(t["flash_attention"], false);
  EXPECT_EQ(t["fused_swiglu"], true);
  EXPECT_EQ(t["fp8_activation_store"], true);
  EXPECT_EQ(t["fused_cross_entropy"], true);
  EXPECT_EQ(t["moe_imbalance"], 1.5);
  EXPECT_EQ(t["expert_overlap"], true);
  EXPECT_EQ(t["tp_comm_overlap"], true);
  EXPECT_EQ(t["overlap_grad_reduce"], false);
  EXPECT_EQ(t["overlap_param_gather"], false);
  EXPECT_EQ(t["overlap_p2p"], false);
  EXPECT_EQ(t["moe_dispatcher"], "deepep");
  EXPECT_EQ(t["mfu_convention"], "full");
  EXPECT_EQ(json["mfu_convention"], "full");
}

}  // namespace
}  // namespace millwright
