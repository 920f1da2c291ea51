// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/config_io.h"
#include "report/page.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kRuns[] = "tests/data/runs.json";

TEST(Validate, Json) {
  const Outcome outcome = RunCommand({"validate", "--runs", kRuns, "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["overall"]["n"], 7);  // the eighth ran out of memory
  EXPECT_EQ(json["rows"].size(), 8);
  EXPECT_EQ(json["unsupported"].size(), 0);
  EXPECT_EQ(json["groups"]["megatron"]["n"], 2);
  for (const Json& row : json["rows"]) {
    if (row["measured_step_s"].is_null()) continue;
    // The error is what it says it is.
    EXPECT_DOUBLE_EQ(
        row["error"].get<double>(),
        row["predicted_step_s"].get<double>() / row["measured_step_s"].get<double>() - 1);
  }
  // The same file, the same bytes.
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--json"}).out, outcome.out);
}

TEST(Validate, ExitCodeOneAboveTheErrorAllowed) {
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--max-error", "30"}).code, 0);
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--max-error", "0"}).code, 1);
}

TEST(Validate, Text) {
  const Outcome outcome = RunCommand({"validate", "--runs", kRuns});
  EXPECT_THAT(outcome.out, StartsWith("8 of 8 runs modelled; 7 step times are predicted with"));
  EXPECT_THAT(outcome.out, HasSubstr("Of 1 run that ran out of memory, 1 predicted not to fit."));
}

TEST(Validate, WrongInput) {
  EXPECT_EQ(RunCommand(std::string("validate")).err,
            "millwright: --runs: missing; give a file of measured training steps, --executed or "
            "--ops\n");
  const Outcome none = RunCommand({"validate", "--runs", "no_such_file.json"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, StartsWith("millwright: no_such_file.json: "));
}

class ValidateFile : public InFolder {};

TEST_F(ValidateFile, RunsThatCannotBeModelledAreListed) {
  Write("r.json", R"([{"id": "ours-1", "gpu": "TPU"}, {"id": "ours-2"}])");
  const Outcome outcome = RunCommand({"validate", "--runs", "r.json"});
  EXPECT_EQ(outcome.code, 1);  // nothing could be compared
  EXPECT_THAT(outcome.out, HasSubstr("Not modelled\n"
                                     "  1 no cluster preset with the GPU TPU: ours-1\n"
                                     "  1 the GPU is not given: ours-2\n"));
}

TEST_F(ValidateFile, PageNamesEveryRunAndHoldsNoMarkupOfTheirs) {
  if (!HasPageLibrary()) GTEST_SKIP() << NoPageLibrary();
  const std::string run = R"({"id": "ours-%", "gpu": "H100", "num_gpus": 8, "gbs": 8, "mbs": 1,
      "model": {"name": "</script><b>", "layers": 2, "hidden": 1024, "heads": 8, "vocab": 1000,
                "seq": 1024}, "measured": {"step_s": 1}})";
  std::string first = run, second = run;
  first.replace(first.find('%'), 1, "1");
  second.replace(second.find('%'), 1, "2");
  Write("r.json", "[" + first + "," + second + "]");
  const Outcome outcome = RunCommand("validate --runs r.json --html v.html");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, StartsWith("millwright: wrote v.html, "));
  const std::string page = Read("v.html");
  EXPECT_THAT(page, HasSubstr("\"id\":\"ours-1\""));
  EXPECT_THAT(page, HasSubstr("\"id\":\"ours-2\""));
  EXPECT_THAT(page, testing::Not(HasSubstr("</script><b>")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cb>"));
}

// A user's own runs, a tenth slower than published: calibrated to, they are predicted, and so is
// what comes after; other GPUs stay as they are.
TEST(CalibrateToRuns, ItsFileIsWhatEverythingElseGoesBy) {
  const std::string folder = testing::TempDir();
  auto runs = nlohmann::json::parse(ReadTextFile(kRuns));
  nlohmann::json slower = nlohmann::json::array();
  for (auto& run : runs) {
    if (run["id"] != "foundry-000" && run["id"] != "megatron-00") continue;
    for (int i = 0; i < 4; ++i) {
      run["id"] = "ours-" + std::to_string(slower.size());
      slower.push_back(run);
      slower.back()["measured"]["step_s"] = 1.2 * run["measured"]["step_s"].get<double>();
    }
  }
  ASSERT_EQ(slower.size(), 8U);
  const std::string file = folder + "own_runs.json", out = folder + "own_calibration.json";
  WriteTextFile(file, slower.dump());
  const Outcome made = RunCommand({"calibrate", "--runs", file, "--gpu", "H100", "--out", out});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("clock_h100"));
  EXPECT_THAT(made.out, HasSubstr("4 runs: on A100-80GB"));
  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"validate", "--runs", file, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    std::map<std::string, double> errors;
    const auto json = nlohmann::json::parse(RunCommand(words).out);
    for (const auto& row : json.at("rows")) {
      errors[row.at("gpu")] = std::abs(row.at("error").get<double>());
    }
    return errors;
  };
  auto before = error({}), after = error({"--calibration", out});
  ASSERT_EQ(before.size(), 2U);
  EXPECT_LT(after["H100-80GB"], 0.5 * before["H100-80GB"]);
  EXPECT_EQ(after["A100-80GB"], before["A100-80GB"]);

  const auto step = [](const std::string& more) {
    return nlohmann::json::parse(
               RunCommand("estimate --model llama-3.1-8b --cluster dgx-h100 --nodes 1 "
                          "--global-batch 16 --seq 4096 --tp 2 --json" +
                          more)
                   .out)["step_time_s"]
        .get<double>();
  };
  EXPECT_GT(step(" --calibration " + out), 1.03 * step(""));
  // The same bytes again, and as --json says.
  const std::string first = ReadTextFile(out);
  EXPECT_EQ(RunCommand({"calibrate", "--runs", file, "--gpu", "H100", "--out", out, "--json"}).out,
            first);
  EXPECT_EQ(ReadTextFile(out), first);
}

TEST(CalibrateToRuns, Mistakes) {
  const std::string out = testing::TempDir() + "never.json";
  const auto said = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"calibrate", "--runs", kRuns, "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = RunCommand(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_FALSE(std::filesystem::exists(out));
    return outcome.err;
  };
  EXPECT_THAT(said({"--gpu", "B300"}), HasSubstr("has no run on B300"));
  EXPECT_THAT(said({"--gpu", "H100", "--ops", kRuns}), HasSubstr("goes without --ops"));
  const std::string file = testing::TempDir() + "own_wrong.json";
  WriteTextFile(file,
                R"({"gpu": "H100-SXM", "end_to_end": {"runs": 3, "parameters": [
                  {"name": "clock_h100", "value": 0.9}, {"name": "luck", "value": 1},
                  {"name": "dp_exposed", "value": 2}]}})");
  const Outcome wrong = RunCommand(
      "estimate --model llama-3.1-8b --cluster dgx-h100 --nodes 1 --global-batch 16 --seq 4096 "
      "--calibration " +
      file);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("/end_to_end/parameters/1/name: is no end-to-end parameter"));
  EXPECT_THAT(wrong.err, HasSubstr("/end_to_end/parameters/2/value: dp_exposed is from 0.0041"));
}

}  // namespace
}  // namespace millwright
