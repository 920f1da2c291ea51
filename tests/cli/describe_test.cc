// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

Json Described(const std::string& what) {
  const Outcome outcome = RunCommand("describe --json " + what);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(Describe, EveryTopicInBothForms) {
  for (const char* topic :
       {"", "models", "clusters", "gpus", "model tiny-llama", "cluster gb200-nvl72 --nodes 2",
        "gpu mi300x", "schedules", "schedule zb-v", "job", "training", "parallel", "filters",
        "plan", "estimate"}) {
    const Outcome text = RunCommand("describe " + std::string(topic));
    EXPECT_EQ(text.code, 0) << topic;
    EXPECT_EQ(text.err, "") << topic;
    EXPECT_FALSE(text.out.empty()) << topic;
    std::istringstream lines(text.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    if (*topic == '\0') continue;
    EXPECT_TRUE(Described(topic).is_object()) << topic;
  }
}

TEST(Describe, ShapesOfAModelAddUpToItsParameters) {
  // MTP modules are left out of the count, as model cards do.
  for (const char* model : {"llama-3.1-70b", "deepseek-v3", "gpt-oss-20b", "gemma-2-9b", "gpt2"}) {
    const Json json = Described("model " + std::string(model));
    std::int64_t sum = 0;
    for (const Json& part : json["shapes"]) {
      if (part["part"].get<std::string>().starts_with("MTP")) continue;
      for (const Json& w : part["weights"]) {
        const auto elements = w["rows"].get<std::int64_t>() * w["cols"].get<std::int64_t>() *
                              w["count"].get<std::int64_t>();
        EXPECT_EQ(w["elements"], elements);
        sum += part["repeated"].get<std::int64_t>() * elements;
      }
    }
    EXPECT_EQ(json["parameters"]["total"], sum) << model;
  }
}

TEST(Describe, ModelFromAFile) {
  const std::string file = "../shared/hf_configs/DeepSeek-V3.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not here";
  // arXiv:2412.19437: 671B in all, 37B active.
  EXPECT_EQ(Described("model " + file)["parameters"]["total"], 671'026'419'200);
}

TEST(Describe, ClusterInNumbers) {
  const Json json = Described("cluster dgx-h100 --nodes 16");
  EXPECT_EQ(json["gpus"], 128);
  EXPECT_EQ(json["vertices"]["nics"], 128);
  // Non-blocking: 8 domains x 8 NICs x 50 GB/s leave each half.
  EXPECT_DOUBLE_EQ(json["bisection_bytes_per_s"].get<double>(), 8 * 8 * 50e9);
  EXPECT_EQ(json["config"]["nodes"], 16);
}

TEST(Describe, GpuNamesItsCalibration) {
  const Json json = Described("gpu h200");
  EXPECT_EQ(json["name"], "H200");
  EXPECT_EQ(json["calibration_used"]["name"], "H100");
  EXPECT_THAT(RunCommand("describe gpu h200").out, HasSubstr("\nEfficiency curves: H100, from "));
}

TEST(Describe, EveryFieldHasAMeaning) {
  for (const char* topic : {"job", "training", "parallel"}) {
    const Json json = Described(topic);
    ASSERT_GT(json["fields"].size(), 5U);
    for (const Json& field : json["fields"]) {
      EXPECT_THAT(field["pointer"].get<std::string>(), StartsWith("/"));
      EXPECT_NE(field["type"], "");
      EXPECT_NE(field["meaning"], "") << field["pointer"];
    }
  }
}

TEST(Describe, EveryKnobIsAFlagOfEstimate) {
  const std::string help = RunCommand("estimate --help").out;
  const Json json = Described("filters");
  ASSERT_EQ(json["filters"].size(), 17U);
  for (const Json& knob : json["filters"]) {
    const std::string flag = knob["flag"];
    const std::string name = flag == "--sp, --no-sp" ? "--[no-]sp" : flag;
    EXPECT_THAT(help, HasSubstr("  " + name + " ")) << flag;
  }
}

TEST(Describe, ScheduleInNumbers) {
  // ZB-H1 idles (p - 1)(F + B - W) = 3 on each of 4 ranks: 8 x (F + B + W) + 3 = 27.
  const Json json = Described("schedule zb-h1 --pp 4 --microbatches 8 --costs F=1,B=1,W=1,p2p=0");
  EXPECT_EQ(json["makespan"], 27);
  EXPECT_EQ(json["idle"], Json({3, 3, 3, 3}));
  EXPECT_EQ(json["orders"].size(), 4U);
  EXPECT_THAT(json["orders"][3].get<std::string>(), StartsWith("F0.3 B0.3 F1.3 B1.3 "));
  EXPECT_EQ(json["peak_in_flight"]["until_b"], Json({4, 3, 2, 1}));
  // 1F1B: (m + p - 1)(F + B + W) = 11 x 3, with two micro-batches a rank where none are given.
  EXPECT_EQ(Described("schedule 1f1b --pp 4")["makespan"], 33);
  // Interleaved by two: bubble (p - 1)(F + B + W)/v = 4.5.
  EXPECT_EQ(Described("schedule interleaved:2 --pp 4")["makespan"], 28.5);
  EXPECT_EQ(Described("schedule interleaved --vpp 2 --pp 4"),
            Described("schedule interleaved:2 --pp 4"));
}

TEST(Describe, EveryScheduleCanBeDrawn) {
  const Json json = Described("schedules");
  EXPECT_EQ(json["schedules"].size(), 13U);
  for (const Json& schedule : json["schedules"]) {
    const std::string name = schedule["name"];
    EXPECT_NE(schedule["meaning"], "") << name;
    const Outcome drawn = RunCommand("describe schedule " + name + " --vpp " +
                                     (name == "interleaved" || name == "bfs" ? "2" : "1"));
    EXPECT_EQ(drawn.code, 0) << drawn.err;
    EXPECT_THAT(drawn.out, StartsWith(name + ": 4 pipeline ranks, 8 micro-batches"));
  }
}

TEST(Describe, NearestNames) {
  const Outcome cluster = RunCommand("describe cluster dgx-h10");
  EXPECT_EQ(cluster.code, 2);
  EXPECT_THAT(cluster.err, StartsWith("millwright: unknown cluster \"dgx-h10\", did you mean "
                                      "\"dgx-h100\"?"));
  const Outcome gpu = RunCommand("describe gpu h10");
  EXPECT_EQ(gpu.code, 2);
  EXPECT_THAT(gpu.err, StartsWith("millwright: unknown GPU \"h10\", did you mean \"H100-SXM\"?"));
}

TEST(Help, OfEachCommand) {
  for (const char* command : {"plan", "estimate", "simulate", "compare", "describe"}) {
    const Outcome outcome = RunCommand(std::string(command) + " --nodes x --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, StartsWith("Usage: millwright " + std::string(command)));
    EXPECT_THAT(outcome.out, HasSubstr("\nExamples:\n"));
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
  }
  EXPECT_EQ(RunCommand("--help").code, 0);
  EXPECT_EQ(RunCommand("--version").out, "millwright 0.1.0\n");
}

}  // namespace
}  // namespace millwright
