// SPDX-License-Identifier: Apache-2.0
//
// The program's --export, --from-megatron, --what-if, --sensitivity and sweep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kSmall[] =
    " --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096";

class InFolder : public testing::Test {
 protected:
  InFolder()
      : folder_(std::filesystem::temp_directory_path() /
                (std::string("cli_export_test_") +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~InFolder() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Read(const std::string& name) const {
    std::ifstream in(folder_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const std::filesystem::path folder_;
};

TEST_F(InFolder, AnExportedPlanIsEstimatedAlike) {
  const Outcome planned = RunCommand("plan --no-simulate --json --export megatron,slurm --out " +
                                     Path("plans") + kSmall);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  EXPECT_THAT(plan["export"]["files"], ElementsAre("job.json", "megatron_args.sh", "run.sbatch"));
  EXPECT_EQ(plan["export"]["unexpressed"], Json::array());
  EXPECT_EQ(planned.err,
            "millwright: " + Path("plans") + ": wrote job.json, megatron_args.sh, run.sbatch\n");
  // The arguments alone give the same plan and the same step, but for the model's name; and so does
  // the job file.
  const Outcome imported = RunCommand("estimate --json --cluster dgx-h100 --from-megatron " +
                                      Path("plans/megatron_args.sh"));
  ASSERT_EQ(imported.code, 0) << imported.err;
  const Json again = Json::parse(imported.out);
  EXPECT_EQ(again["plan"], plan["plan"]);
  EXPECT_EQ(again["step_time_s"], plan["step_time_s"]);
  EXPECT_EQ(again["question"]["training"], plan["question"]["training"]);
  const Json job = Json::parse(RunCommand("estimate --json " + Path("plans/job.json")).out);
  EXPECT_EQ(job["step_time_s"], plan["step_time_s"]);
}

// ZeRO 2 under a pipeline is fastest, and Megatron-LM does not have it: its files are of the plan
// that it runs, and the job file is of the answer.
TEST_F(InFolder, TheFrameworksFilesAreOfAPlanThatItRuns) {
  const Outcome planned = RunCommand(
      "plan --json --no-simulate --model llama-3.1-70b --cluster dgx-h200 --nodes 8 --global-batch "
      "64 --seq 131072 --require pp=2,tp=2,cp=16 --export megatron,slurm --out " +
      Path("plans"));
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.err,
              HasSubstr("note: Megatron-LM cannot be told parallel: it has no ZeRO 2 or 3 with a "
                        "pipeline; written is the fastest plan that it runs, tp2 sp cp16"));
  const Json plan = Json::parse(planned.out);
  ASSERT_FALSE(plan["in_framework"].is_null());
  const Json imported =
      Json::parse(RunCommand("estimate --json --cluster dgx-h200 --from-megatron " +
                             Path("plans/megatron_args.sh"))
                      .out);
  EXPECT_EQ(imported["plan"], plan["in_framework"]["plan"]);
  EXPECT_EQ(imported["step_time_s"], plan["in_framework"]["step_time_s"]);
  const Json job = Json::parse(RunCommand("estimate --json " + Path("plans/job.json")).out);
  EXPECT_EQ(job["plan"], plan["plans"][0]["plan"]);
}

TEST_F(InFolder, WhatIsNotSaidIsSaid) {
  const Outcome outcome = RunCommand(
      "estimate --fused-swiglu --schedule zb-h1 --pp 2 --export "
      "megatron --out " +
      Path("x") + kSmall);
  EXPECT_THAT(outcome.err,
              HasSubstr("millwright: note: Megatron-LM cannot be told parallel.schedule: it has "
                        "1F1B and interleaved 1F1B only, not zb-h1\n"
                        "millwright: note: Megatron-LM cannot be told training.fused_swiglu: the "
                        "gated product is kept\n"));
  EXPECT_THAT(Read("x/megatron_args.sh"), HasSubstr("# - training.fused_swiglu: "));
}

TEST_F(InFolder, BadFoldersAndFormats) {
  std::ofstream(folder_ / "file") << "x";
  const Outcome outcome =
      RunCommand("estimate --export megatron,torchtitn --out " + Path("file") + kSmall);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "millwright: --export: expected some of megatron, bridge, torchtitan, deepspeed, fsdp, "
            "slurm, got \"torchtitn\"; did you mean \"torchtitan\"?\n"
            "millwright: --out: " +
                Path("file") + ": is a file; with --export a folder is expected\n");
  EXPECT_EQ(RunCommand("plan --export megatron" + std::string(kSmall)).err,
            "millwright: --export: needs --out FOLDER\n");
  EXPECT_EQ(RunCommand("estimate --out x" + std::string(kSmall)).err,
            "millwright: --out: needs --export\n");
}

TEST(FromMegatron, NeedsAClusterAndItsSize) {
  const std::string script = " --from-megatron tests/data/megatron/gpt_175b.sh";
  const Outcome outcome = RunCommand("estimate --cluster dgx-h100 --json" + script);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["question"]["cluster"]["gpus"], 128);
  EXPECT_EQ(json["plan"]["dp"], 1);  // 128 / (8 x 16)
  EXPECT_EQ(outcome.err,
            "millwright: warning: --from-megatron: line 41: what stands under a condition is read "
            "as if it were always run\n"
            "millwright: note: 10 options have no effect on time and memory (--verbose names "
            "them)\n");
  // Flags override: on twice the nodes there are two replicas.
  const Json twice =
      Json::parse(RunCommand("estimate --cluster dgx-h100 --nodes 32 --json" + script).out);
  EXPECT_EQ(twice["plan"]["dp"], 2);
  EXPECT_EQ(RunCommand("estimate --cluster dgx-h100 --nodes 3" + script).err,
            "millwright: --from-megatron: 24 GPUs are not a multiple of tp 8 x cp 1 x pp 16\n");
  // And plan says what could be done with the same GPUs: never worse.
  const Json best =
      Json::parse(RunCommand("plan --cluster dgx-h100 --json --no-simulate --top 1" + script).out);
  EXPECT_LT(best["step_time_s"], json["step_time_s"]);
  EXPECT_EQ(best["question"]["cluster"], json["question"]["cluster"]);
  EXPECT_EQ(RunCommand("estimate" + script).err,
            "millwright: --cluster: missing; give a preset or a JSON file\n");
  EXPECT_EQ(RunCommand("estimate --cluster dgx-h100 --from-megatron none.sh").code, 2);
}

TEST_F(InFolder, TorchtitanAndDeepSpeedAreReadBack) {
  const std::string plan =
      "estimate --json --state fsdp --framework fsdp-compiled --zero 3 "
      "--tp 2 --micro-batch 2 --recompute full" +
      std::string(kSmall);
  const Outcome exported = RunCommand(plan + " --export torchtitan,deepspeed --out " + Path("x"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  const Json before = Json::parse(exported.out);
  const Json titan = Json::parse(
      RunCommand("estimate --json --model llama-3.1-8b --cluster dgx-h100 --from-torchtitan " +
                 Path("x/torchtitan.toml"))
          .out);
  EXPECT_EQ(titan["plan"], before["plan"]);
  EXPECT_EQ(titan["question"], before["question"]);
  // DeepSpeed's file says nothing of the model's parallelism.
  const Json deepspeed = Json::parse(
      RunCommand("estimate --json --state fsdp --framework fsdp-compiled --tp 2 --seq 4096 "
                 "--recompute full --model llama-3.1-8b --cluster dgx-h100 --nodes 2 "
                 "--from-deepspeed " +
                 Path("x/deepspeed.json"))
          .out);
  EXPECT_EQ(deepspeed["plan"], before["plan"]);
  EXPECT_EQ(deepspeed["step_time_s"], before["step_time_s"]);
  EXPECT_EQ(RunCommand("estimate --from-deepspeed a --from-megatron b").err,
            "millwright: --from-megatron: another file of a framework is given too; give one of "
            "them\n");
}

TEST(WhatIfFlag, ChangesTheAnswer) {
  // A tenth of 989 TFLOP/s more peak makes the same plan faster, and its MFU of the higher peak.
  const std::string rest = " --tp 2 --json" + std::string(kSmall);
  const Json now = Json::parse(RunCommand("estimate" + rest).out);
  const Json more = Json::parse(RunCommand("estimate --what-if flops=+10%" + rest).out);
  EXPECT_LT(more["step_time_s"], now["step_time_s"]);
  EXPECT_EQ(more["question"]["cluster"]["name"], "dgx-h100 with flops=+10%");
  EXPECT_EQ(RunCommand("estimate --what-if nvlnk=1GB/s" + std::string(kSmall)).code, 2);
}

TEST(SensitivityFlag, IsATableAndJson) {
  const std::string rest = " --sensitivity --no-simulate --top 1" + std::string(kSmall);
  const Outcome text = RunCommand("plan" + rest);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out,
              HasSubstr("\nWhat a tenth more of each resource would buy (step of the best "
                        "plan, searched again; now "));
  EXPECT_THAT(text.out, AllOf(HasSubstr("\nWhat another option would buy\n"),
                              HasSubstr("\n--precision fp8 ")));
  const Json json = Json::parse(RunCommand("plan --json" + rest).out);
  EXPECT_LT(json["sensitivity"]["options"][0]["time_per_token_change"], -0.1);
  // The same sum in another order.
  EXPECT_DOUBLE_EQ(json["sensitivity"]["estimate_step_time_s"].get<double>(),
                   json["step_time_s"].get<double>());
  EXPECT_EQ(json["sensitivity"]["resources"].size(), 5U);
  EXPECT_LE(json["sensitivity"]["resources"][0]["more"]["step_time_s"], json["step_time_s"]);
}

TEST_F(InFolder, SweepsAreWhatPlanSays) {
  const Outcome outcome =
      RunCommand("sweep --json --vary nodes=1|2,tp=2|3 --csv " + Path("out.csv") +
                 " --model llama-3.1-8b --cluster dgx-h100 --global-batch 64 --seq 4096");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["points"].size(), 4U);
  EXPECT_EQ(json["points"][1]["fits"], false);
  EXPECT_EQ(json["points"][1]["reason"], "tp 3 does not divide the 8 GPUs");
  const Json plan = Json::parse(RunCommand("plan --require tp=2 --json" + std::string(kSmall)).out);
  EXPECT_EQ(json["points"][2]["at"], (Json{{"nodes", "2"}, {"tp", "2"}}));
  EXPECT_EQ(json["points"][2]["step_time_s"], plan["simulated_step_time_s"]);

  std::istringstream csv(Read("out.csv"));
  std::string line;
  std::getline(csv, line);
  const auto columns = std::count(line.begin(), line.end(), ',');
  EXPECT_THAT(line, StartsWith("nodes,tp,fits,step_time_s,"));
  for (int row = 0; row < 4; ++row) {
    ASSERT_TRUE(std::getline(csv, line));
    if (line.find('"') == std::string::npos) {
      EXPECT_EQ(std::count(line.begin(), line.end(), ','), columns) << line;
    }
  }
  EXPECT_FALSE(std::getline(csv, line));
}

TEST(Sweep, OfTheJobsOwnPlan) {
  const Json json = Json::parse(
      RunCommand("sweep --estimate --json --vary tp=1|2 --pp 2" + std::string(kSmall)).out);
  const Json two =
      Json::parse(RunCommand("estimate --json --tp 2 --pp 2" + std::string(kSmall)).out);
  EXPECT_EQ(json["points"][1]["step_time_s"], two["step_time_s"]);
  EXPECT_EQ(json["points"][1]["plan"]["dp"], 4);  // 16 / (2 x 2)
}

// A warning of several points is given once.
TEST(Sweep, WarnsOfLongSequences) {
  const Outcome outcome = RunCommand(
      "sweep --estimate --json --vary seq=4096|8192,micro-batch=1|2 --model llama-2-13b --cluster "
      "dgx-h100 --global-batch 8 --tp 8");
  constexpr const char* kWarning =
      "--seq: 8,192 tokens are more than the 4,096 positions of "
      "llama-2-13b";
  EXPECT_EQ(outcome.err, "millwright: warning: " + std::string(kWarning) + "\n");
  EXPECT_THAT(Json::parse(outcome.out)["warnings"], ElementsAre(kWarning));
}

TEST(Sweep, Mistakes) {
  // What is wrong at every point is wrong with the whole.
  const Outcome whole =
      RunCommand("sweep --vary seq=4096|8192 --model llama-3.1-8b --global-batch 8");
  EXPECT_EQ(whole.code, 2);
  EXPECT_EQ(whole.err, "millwright: --cluster: missing; give a preset or a JSON file\n");
  const Outcome options = RunCommand("sweep --vary tq=1 --tp 2" + std::string(kSmall));
  EXPECT_EQ(options.code, 2);
  EXPECT_THAT(options.err, StartsWith("millwright: unknown option \"--tp\""));
  EXPECT_THAT(options.err, HasSubstr("\nmillwright: --vary: unknown \"tq\", did you mean \"tp\"?"));
  EXPECT_THAT(RunCommand("sweep --vary seq=4096|8192 --seq=2048" + std::string(kSmall)).err,
              HasSubstr("--seq: varies (--vary); leave it out here\n"));
  EXPECT_EQ(RunCommand("sweep" + std::string(kSmall)).err,
            "millwright: --vary: missing; give what changes, such as seq=4096..131072\n");
  // Nothing fits anywhere: the answer is no.
  EXPECT_EQ(RunCommand("sweep --vary tp=1|2 --estimate --model llama-3.1-405b --cluster dgx-h100 "
                       "--global-batch 8 --seq 8192")
                .code,
            1);
}

}  // namespace
}  // namespace millwright
