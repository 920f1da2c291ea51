// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "report/page.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kPipeline[] =
    " --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 2 --pp 4";

class Compare : public InFolder {
 protected:
  // A job with that plan.
  static void WriteJob(const std::string& file, const std::string& parallel) {
    Write(file, R"({"model_from": "llama-3.1-8b", "cluster": {"inherit": "dgx-h100"},)"
                R"("training": {"global_batch_size": 16, "seq_length": 8192}, "parallel": {)" +
                    parallel + "}}");
  }
  static std::string Of(const std::string& line) {
    const Outcome outcome = RunCommand(line);
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(outcome.out, "") << line;
    return outcome.err;
  }
};

constexpr char kTp2Pp4[] =
    R"("tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 4, "data_parallel": 1)";

TEST_F(Compare, SchedulesAreThoseOfSimulate) {
  const Outcome outcome =
      RunCommand("compare --json --schedules gpipe,1f1b,interleaved:4,zb-h1,zb-v,dualpipe" +
                 std::string(kPipeline));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["schedules"].size(), 6U);
  double best = 1e9;
  std::string best_name;
  for (const Json& row : json["schedules"]) {
    const std::string name = row["schedule"];
    const Json one =
        Json::parse(RunCommand("simulate --json --schedule " + name + std::string(kPipeline)).out);
    EXPECT_EQ(row["reason"], nullptr);
    for (const char* key : {"step_time_s", "estimate_step_time_s", "mfu", "bubble_share",
                            "peak_bytes", "fits", "tokens_per_s_per_gpu"}) {
      EXPECT_EQ(row[key], one[key]) << name << ' ' << key;
    }
    if (row["fits"] && row["step_time_s"] < best) {
      best = row["step_time_s"];
      best_name = name;
    }
  }
  EXPECT_EQ(json["best"], best_name);
  for (const Json& row : json["schedules"]) {
    EXPECT_DOUBLE_EQ(row["slower"].get<double>(), row["step_time_s"].get<double>() / best - 1);
  }
}

TEST_F(Compare, WhatCannotBeBuiltIsListedWithItsReason) {
  const Outcome outcome = RunCommand(
      "compare --schedules 1f1b,dualpipe,interleaved,interleaved:9 --model llama-3.1-8b --cluster "
      "dgx-h100 --global-batch 6 --seq 8192 --tp 2 --pp 4");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("Fastest schedule that fits is 1f1b: "));
  EXPECT_THAT(
      outcome.out,
      HasSubstr("\nNot simulated\n"
                "  dualpipe: schedule dualpipe: needs at least 8 micro-batches, two a pipeline "
                "rank, got 6\n"
                "  interleaved: schedule interleaved: needs at least 2 virtual stages a rank, got "
                "1\n"
                "  interleaved:9: schedule interleaved cuts the model into 36 stages, and "
                "llama-3.1-8b has 32 layers\n"));
}

TEST_F(Compare, ThePlansChunksAreForSchedulesThatLetOneChoose) {
  const Json json =
      Json::parse(RunCommand("compare --json --vpp 4 --schedules interleaved,zb-h1,zb-v,bfs" +
                             std::string(kPipeline))
                      .out);
  EXPECT_EQ(json["schedules"][0]["estimate_schedule"], "interleaved:4");
  for (const Json& row : json["schedules"]) EXPECT_EQ(row["reason"], nullptr) << row;
}

TEST_F(Compare, EveryScheduleByDefault) {
  WriteJob("a.json", kTp2Pp4);
  const Outcome outcome = RunCommand("compare a.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "bfs:2", "zb-h1", "zb-h2", "zb-v",
                           "v-half", "v-min", "v-zb", "dualpipe", "dualpipe-v"}) {
    EXPECT_THAT(outcome.out, HasSubstr("\n" + std::string(name) + " ")) << name;
  }
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(Compare, NothingFits) {
  const Outcome outcome = RunCommand("compare --schedules gpipe" + std::string(kPipeline));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, StartsWith("No schedule fits; fastest is gpipe: "));
  const Outcome none = RunCommand("compare --schedules interleaved:9" + std::string(kPipeline));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, StartsWith("No schedule can be simulated.\n"));
  EXPECT_EQ(
      Json::parse(RunCommand("compare --json --schedules interleaved:9" + std::string(kPipeline))
                      .out)["best"],
      nullptr);
}

TEST_F(Compare, PlanThatCannotRun) {
  const Outcome outcome = RunCommand(
      "compare --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 3");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, StartsWith("tp3 pp1 dp2 mbs1 zero1 cannot run: tp 3 x cp 1 x pp 1 x dp "
                                      "2 is 6 GPUs, not 8.\n"));
}

TEST_F(Compare, Jobs) {
  WriteJob("a.json", kTp2Pp4);
  WriteJob("b.json", std::string(kTp2Pp4) + R"(, "virtual_stages": 4, "schedule": "interleaved")");
  WriteJob("c.json", R"("tensor_parallel": 3, "data_parallel": 2)");
  const Outcome outcome = RunCommand("compare --json a.json b.json c.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["jobs"].size(), 3U);
  EXPECT_EQ(json["best"], "b.json");  // a smaller bubble
  for (std::size_t i : {0, 1}) {
    const Json& row = json["jobs"][i];
    const Json one =
        Json::parse(RunCommand("simulate --json " + row["job"].get<std::string>()).out);
    EXPECT_EQ(row["plan"], one["plan"]);
    EXPECT_EQ(row["gpus"], 8);
    EXPECT_EQ(row["step_time_s"], one["step_time_s"]);
    EXPECT_EQ(row["schedule"], one["schedule"]);
    EXPECT_EQ(row["reason"], nullptr);
  }
  EXPECT_EQ(json["jobs"][2]["reason"], "tp 3 x cp 1 x pp 1 x dp 2 is 6 GPUs, not 8");
  EXPECT_EQ(json["jobs"][2]["fits"], false);
  const std::string text = RunCommand("compare a.json b.json c.json").out;
  EXPECT_THAT(text, StartsWith("Fastest job that fits is b.json: "));
  EXPECT_THAT(text, HasSubstr("\nb.json  tp2 sp pp4 vpp4 dp1 mbs1 zero1\n"));
  EXPECT_THAT(text, HasSubstr("\nNot simulated\n  c.json: tp 3 x cp 1 x pp 1 x dp 2 is 6 GPUs, "
                              "not 8\n"));
}

TEST_F(Compare, FlagsGoOverEveryJob) {
  WriteJob("a.json", kTp2Pp4);
  WriteJob("b.json", std::string(kTp2Pp4) + R"(, "virtual_stages": 4, "schedule": "interleaved")");
  const Json json = Json::parse(RunCommand("compare --json a.json b.json --recompute full").out);
  for (const Json& row : json["jobs"]) EXPECT_EQ(row["plan"]["recompute"], "full");
}

// What a page's scripts find as its data.
Json PageData(const std::string& page) {
  const std::string begin = "id=\"data\">", end = "</script>";
  const std::size_t from = page.find(begin) + begin.size();
  return Json::parse(page.substr(from, page.find(end, from) - from));
}

TEST_F(Compare, PageOfSchedules) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const std::string line =
      "compare --schedules gpipe,1f1b,zb-h1,interleaved:9 --html compared.html" +
      std::string(kPipeline);
  const Outcome outcome = RunCommand(line);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, StartsWith("millwright: wrote compared.html, "));
  EXPECT_EQ(Files(), 1);
  const Json json = Json::parse(RunCommand(line + " --json").out);
  const Json data = PageData(Read("compared.html"));
  EXPECT_EQ(data["kind"], "comparison");
  EXPECT_EQ(data["table"]["titles"][0], "Schedule");
  // The table is that of the text.
  ASSERT_EQ(data["table"]["rows"].size(), 4U);
  for (const Json& row : data["table"]["rows"]) {
    EXPECT_THAT(outcome.out, HasSubstr("\n" + row[0].get<std::string>() + " "));
    for (const Json& cell : row) {
      EXPECT_THAT(outcome.out, HasSubstr(cell.get<std::string>()));
    }
  }
  EXPECT_EQ(data["reasons"][0][0], "interleaved:9");
  EXPECT_EQ(data["reasons"][0][1], json["schedules"][3]["reason"]);
  ASSERT_EQ(data["rows"].size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& row = data["rows"][i];
    EXPECT_EQ(row["name"], json["schedules"][i]["schedule"]);
    EXPECT_EQ(row["fits"], json["schedules"][i]["fits"]);
    // 4 ranks x 16 micro-batches x (F, BW) or (F, B, W).
    EXPECT_EQ(row["step"]["passes"], i == 2 ? 192 : 128);
    EXPECT_NEAR(row["step"]["length"].get<double>() / 1e9,
                json["schedules"][i]["step_time_s"].get<double>(), 1e-9);
  }
  EXPECT_EQ(data["rows"][data["best"].get<std::size_t>()]["name"], json["best"]);
}

TEST_F(Compare, PageOfJobs) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  WriteJob("a<b>&.json", kTp2Pp4);
  WriteJob("c.json", R"("tensor_parallel": 3, "data_parallel": 2)");
  EXPECT_EQ(RunCommand("compare a<b>&.json c.json --html page.html").code, 0);
  const Json data = PageData(Read("page.html"));
  ASSERT_EQ(data["rows"].size(), 1U);
  EXPECT_EQ(data["rows"][0]["name"], "a<b>&.json");
  EXPECT_EQ(data["rows"][0]["plan"], "tp2 sp pp4 dp1 mbs1 zero1");
  EXPECT_EQ(data["reasons"][0][1], "tp 3 x cp 1 x pp 1 x dp 2 is 6 GPUs, not 8");
}

TEST_F(Compare, PageOfManyDrawsTheFastest) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  // 26 rows, 24 of which are drawn: GPipe does not fit here, so it goes first.
  std::string schedules = "gpipe,gpipe";
  for (int i = 0; i < 24; ++i) schedules += ",1f1b";
  EXPECT_EQ(
      RunCommand("compare --html page.html --schedules " + schedules + std::string(kPipeline)).code,
      0);
  const Json data = PageData(Read("page.html"));
  EXPECT_EQ(data["table"]["rows"].size(), 26U);
  ASSERT_EQ(data["rows"].size(), 24U);
  for (const Json& row : data["rows"]) EXPECT_EQ(row["name"], "1f1b");
  EXPECT_EQ(data["notes"][0],
            "The 24 fastest of 26 are drawn, those that fit first; the table has all.");
}

TEST_F(Compare, PageThatCannotBeWritten) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  WriteJob("a.json", kTp2Pp4);
  EXPECT_EQ(Of("compare a.json --html missing/page.html"),
            "millwright: missing/page.html: cannot be written: No such file or directory\n");
  EXPECT_EQ(Of("compare a.json a.json --html ."),
            "millwright: .: cannot be written: Is a directory\n");
  const Outcome outcome = RunCommand(
      "compare --html page.html --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq "
      "8192 --tp 3");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "millwright: no step, so page.html is not written\n");
  EXPECT_EQ(Files(), 1);
}

TEST_F(Compare, BadInput) {
  WriteJob("a.json", kTp2Pp4);
  Write("b.json", R"({"model_from": "llama-3.1-8b"})");
  EXPECT_EQ(Of("compare a.json b.json missing.json"),
            "millwright: b.json: --cluster: missing; give a preset or a JSON file\n"
            "millwright: b.json: --global-batch: missing; give the sequences of one optimizer "
            "step\n"
            "millwright: b.json: --seq: missing; give the tokens of a sequence\n"
            "millwright: missing.json: no such file\n");
  EXPECT_EQ(Of("compare a.json a.json --schedules 1f1b"),
            "millwright: --schedules: compares schedules of one job, and several are given\n");
  const std::string all =
      "there are gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, v-zb, dualpipe, "
      "dualpipe-v, bfs, forward-only\n";
  EXPECT_EQ(Of("compare a.json --schedules 1f1b,zb-q,"),
            "millwright: --schedules: unknown schedule \"zb-q\", did you mean \"zb-v\"?; " + all +
                "millwright: --schedules: unknown schedule \"\"; " + all);
  EXPECT_EQ(Of("compare a.json --schedule 1f1b"),
            "millwright: unknown option \"--schedule\", did you mean \"--schedules\"?\n");
}

}  // namespace
}  // namespace millwright
