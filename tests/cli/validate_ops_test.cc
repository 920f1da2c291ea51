// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

class ValidateOps : public InFolder {};

TEST_F(ValidateOps, OpsAsJson) {
  Write("gemm.csv",
        "gpu,dtype,m,n,k,time_us,source\n"
        "H100,bfloat16,4096,4096,4096,190,x\n"
        "H100,bfloat16,8192,4096,4096,380,x\n");
  const Outcome outcome = RunCommand("validate --ops gemm.csv --json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  const auto& group = json.at("tables").at("gemm").at("H100/bfloat16");
  EXPECT_EQ(group.at("n"), 2);
  for (const char* key : {"median_ape", "p90_ape", "bias"}) {
    EXPECT_TRUE(group.at(key).is_number()) << key;
  }
  EXPECT_EQ(json.at("overall").at("gemm").at("n"), 2);
  EXPECT_EQ(outcome.out, RunCommand("validate --ops gemm.csv --json").out);
  EXPECT_NE(RunCommand("validate --ops gemm.csv").out.find("H100/bfloat16"), std::string::npos);
}

TEST_F(ValidateOps, ACalibrationFitsWhatItWasMadeFrom) {
  // 20 us and 300 TFLOP/s, which no built-in curve has.
  std::string rows = "gpu,dtype,m,n,k,time_us,source\n";
  for (int m = 256; m <= 4096; m *= 2) {
    for (int n = 256; n <= 4096; n *= 2) {
      rows += "H100,bfloat16," + std::to_string(m) + "," + std::to_string(n) + ",4096," +
              std::to_string(20 + 2e-9 * m * n * 4096 / 0.3) + ",mine\n";
    }
  }
  Write("gemm.csv", rows);
  const Outcome made = RunCommand("calibrate --ops gemm.csv --gpu H100 --out ours.json");
  ASSERT_EQ(made.code, 0) << made.err;
  const auto error = [](const std::string& more) {
    const Outcome outcome = RunCommand("validate --ops gemm.csv --json" + more);
    return nlohmann::json::parse(outcome.out)["overall"]["gemm"]["median_ape"].get<double>();
  };
  EXPECT_LT(error(" --calibration ours.json"), 0.05);
  EXPECT_GT(error(""), 0.3);
  EXPECT_LT(error(" --left-out"), 0.1);
  const std::string first = Read("ours.json");
  RunCommand("calibrate --ops gemm.csv --gpu H100 --out ours.json");
  EXPECT_EQ(Read("ours.json"), first);
}

TEST_F(ValidateOps, MistakesAreExitCode2) {
  EXPECT_EQ(RunCommand("calibrate").err,
            "millwright: --ops: expected a folder or files of measurements, or --runs\n"
            "millwright: --gpu: expected the GPU whose rows to fit\n"
            "millwright: --out: expected a file to write\n");
  EXPECT_EQ(RunCommand("validate").err,
            "millwright: --runs: missing; give a file of measured training steps, --executed or "
            "--ops\n");
  const Outcome outcome = RunCommand("validate --ops none.csv");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "millwright: none.csv: no such file\n");
}

TEST(ValidateOpsShared, EveryRowIsComparedOrAccountedFor) {
  const std::string folder = "../shared/data/ops";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  const Outcome outcome = RunCommand("validate --json --ops " + folder);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  int rows = 0;
  for (const char* table :
       {"gemm", "attention", "collective", "moe", "grouped_gemm", "memory_bound"}) {
    if (json.at("overall").contains(table)) {
      rows += json.at("overall").at(table).at("n").get<int>();
    }
  }
  for (const auto& u : json.at("unsupported")) rows += u.at("n").get<int>();
  EXPECT_EQ(rows, json.at("rows"));
}

}  // namespace
}  // namespace millwright
