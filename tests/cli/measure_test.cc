// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/config_io.h"
#include "tests/cli/run_command.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

class Measure : public testing::Test {
 protected:
  // Tests run at the same time.
  Measure()
      : folder_((fs::path(testing::TempDir()) /
                 fmt::format("millwright-measure-{}",
                             testing::UnitTest::GetInstance()->current_test_info()->name()))
                    .string()) {
    fs::remove_all(folder_);
  }
  ~Measure() override { fs::remove_all(folder_); }
  std::string folder_;
};

const std::string kShape =
    "--layers 2 --hidden 16 --heads 4 --kv-heads 2 --ffn 24 --vocab 301 --swiglu --rms-norm "
    "--rope --untied --no-bias --no-dropout --cluster local-cpu --global-batch 4 --seq 32 ";

// The whole way: measured, calibrated, simulated and executed.  How near they come to each other is
// the machine's business.
TEST_F(Measure, IsReadByCalibrateAndPricesARun) {
  const std::string job = kShape + "--ranks 2 --tp 2 --backend threads ";
  const Outcome measured =
      RunCommand("measure " + job + "--out " + folder_ + " --budget 60s --json");
  ASSERT_EQ(measured.code, 0) << measured.err;
  const Json answer = Json::parse(measured.out);
  EXPECT_EQ(answer["ranks"], 2);
  EXPECT_EQ(answer["dtype"], "float64");
  EXPECT_LE(answer["timing"]["rows"].size(), answer["cases"].get<std::size_t>());

  const std::string curves = folder_ + "/cpu.json";
  const Outcome calibrated =
      RunCommand("calibrate --ops " + folder_ + " --gpu local-cpu --out " + curves);
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  EXPECT_THAT(calibrated.out, HasSubstr("millwright-threads-fp64"));

  const std::string trace = folder_ + "/trace.json";
  const Outcome run =
      RunCommand("run " + job + "--calibration " + curves + " --compare --json --trace " + trace);
  ASSERT_EQ(run.code, 0) << run.err;
  const Json simulated = Json::parse(run.out)["timing"]["simulated"];
  EXPECT_GT(simulated["predicted_s"], 0.0);
  // Its streams are the step.
  for (const char* kind : {"predicted_s", "measured_s"}) {
    double sum = 0;
    for (const Json& stream : simulated["streams"]) sum += stream[kind].get<double>();
    EXPECT_NEAR(sum / simulated[kind].get<double>(), 1, 1e-9) << kind;
  }
  // Both steps of both ranks in one trace.
  std::set<std::string> processes;
  const Json both = Json::parse(ReadTextFile(trace));
  for (const Json& event : both["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
  }
  EXPECT_EQ(processes, (std::set<std::string>{"simulated rank 0", "executed rank 0",
                                              "simulated rank 1", "executed rank 1"}));
  // The rates that were measured take the place of the preset's.
  EXPECT_EQ(RunCommand(
                "estimate --model tiny-llama --cluster dgx-h100 --gpus 1 --seq 64 --global-batch 1 "
                "--calibration " +
                curves)
                .err,
            "millwright: --calibration: is of local-cpu, whose curves say nothing of an "
            "H100-SXM\n");
  EXPECT_NE(RunCommand("estimate " + kShape + "--gpus 1 --json --calibration " + curves).out,
            RunCommand("estimate " + kShape + "--gpus 1 --json").out);
}

TEST_F(Measure, SaysWhatIsWrong) {
  EXPECT_EQ(RunCommand("measure --budget soon").err,
            "millwright: --out: expected a folder for the tables\n"
            "millwright: --budget: expected a time up to a day such as 60s, got \"soon\"\n");
  EXPECT_EQ(RunCommand("measure --backend cuda --processor-time --out " + folder_).err,
            "millwright: --processor-time: a GPU's work is no processor's\n"
            "millwright: --cluster: expected the cluster preset whose GPUs are to be measured\n");
  EXPECT_EQ(RunCommand("measure --dtype bf16 --out " + folder_).err,
            "millwright: --dtype bf16: CPUs compute in fp64 and fp32 here; bf16 is for --backend "
            "cuda\n");
  EXPECT_EQ(RunCommand("measure --fp8 --out " + folder_).err,
            "millwright: --fp8: CPUs have none; give --backend cuda\n");
  EXPECT_EQ(RunCommand("measure --ranks 2000 --out " + folder_).err,
            "millwright: --ranks: 2000 ranks on one machine: at most 1024\n");
  // Built without CUDA 2, without a GPU 4, and one message.
  if (!fs::exists("/dev/nvidiactl")) {
    const Outcome cuda = RunCommand("measure --backend cuda --cluster dgx-h100 --out " + folder_);
    EXPECT_THAT(cuda.code, testing::AnyOf(2, 4));
    EXPECT_EQ(std::count(cuda.err.begin(), cuda.err.end(), '\n'), 1) << cuda.err;
  }
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(RunCommand("run " + kShape + "--ranks 1 --backend threads --compare --verify").err,
            "millwright: --compare: --verify makes rank 0 compute the reference between steps; "
            "leave out one\n"
            "millwright: --calibration: missing; --compare needs what measure and calibrate found "
            "here\n");
  EXPECT_EQ(RunCommand("run " + kShape + "--ranks 1 --trace a.json --steps 5000").err,
            "millwright: --trace: goes with --compare\n");
  EXPECT_EQ(RunCommand("run " + kShape + "--ranks 1 --compare --steps 5000").err,
            "millwright: --steps: with --compare at most 1000\n"
            "millwright: --calibration: missing; --compare needs what measure and calibrate found "
            "here\n");
}

}  // namespace
}  // namespace millwright
