// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "report/page.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kQuestion[] =
    " --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 2";
constexpr char kPipeline[] =
    " --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 2 --pp 4";

Json Simulated(const std::string& flags) {
  const Outcome outcome = RunCommand("simulate --json" + flags);
  EXPECT_THAT(outcome.code, testing::AnyOf(0, 1)) << outcome.err;
  return Json::parse(outcome.out);
}

double Sum(const Json& object) {
  double sum = 0;
  for (const auto& [key, value] : object.items()) sum += value.get<double>();
  return sum;
}

TEST(Simulate, EveryRankAddsUpToTheStep) {
  for (const char* schedule : {"1f1b", "gpipe", "interleaved:2", "zb-h1", "zb-v", "dualpipe"}) {
    const Json json = Simulated(std::string(kPipeline) + " --schedule " + schedule);
    EXPECT_EQ(json["schedule"], schedule);
    ASSERT_EQ(json["ranks"].size(), 4U);
    const double step = json["step_time_s"];
    double bubble = 0, peak = 0;
    for (const Json& rank : json["ranks"]) {
      EXPECT_NEAR(Sum(rank["busy"]) + Sum(rank["waiting"]) + rank["idle_s"].get<double>(), step,
                  1e-9 * step);
      bubble += (rank["waiting"]["pipeline"].get<double>() + rank["idle_s"].get<double>()) / step;
      peak = std::max(peak, rank["peak_bytes"].get<double>());
    }
    EXPECT_NEAR(json["bubble_share"].get<double>(), bubble / 4, 1e-12) << schedule;
    EXPECT_EQ(json["peak_bytes"].get<double>(), peak);
    EXPECT_EQ(json["fits"].get<bool>(), peak <= json["capacity_bytes"].get<double>());
    // Tokens: 16 x 8192 in a step on 8 GPUs.
    EXPECT_NEAR(json["tokens_per_s_per_gpu"].get<double>(), 16 * 8192 / step / 8, 1e-6);
  }
}

TEST(Simulate, WithoutAPipelineItIsTheEstimate) {
  const Json json = Simulated(kQuestion);
  ASSERT_EQ(json["ranks"].size(), 1U);
  EXPECT_EQ(json["estimate_schedule"], "1f1b");
  EXPECT_NEAR(json["step_time_s"].get<double>() / json["estimate_step_time_s"].get<double>(), 1,
              0.02);
}

TEST(Simulate, ScheduleFollowsThePlan) {
  EXPECT_EQ(Simulated(kPipeline)["schedule"], "1f1b");
  const Json plan = Simulated(std::string(kPipeline) + " --vpp 4");
  EXPECT_EQ(plan["schedule"], "interleaved:4");
  Json asked = Simulated(std::string(kPipeline) + " --schedule interleaved:4");
  EXPECT_EQ(asked["plan"]["vpp"], 4);
  EXPECT_EQ(asked["step_time_s"], plan["step_time_s"]);
  EXPECT_EQ(asked["estimate_schedule"], "interleaved:4");
  EXPECT_EQ(Simulated(std::string(kPipeline) + " --vpp 4 --schedule interleaved")["schedule"],
            "interleaved:4");
  asked = Simulated(std::string(kPipeline) + " --schedule zb-v");
  EXPECT_EQ(asked["estimate_schedule"], "zb-v");
  EXPECT_EQ(asked["plan"]["schedule"], "zb-v");
}

TEST(Simulate, MicroBatchesNeedNotBeAMultiple) {
  // Megatron-LM refuses 10 micro-batches over 4 ranks; the schedule itself does not.
  const Json json = Simulated(
      " --model llama-3.1-8b --cluster dgx-h100 --global-batch 10 --seq 8192 --tp 2 --pp 4 "
      "--schedule interleaved:2");
  EXPECT_EQ(json["schedule"], "interleaved:2");
  EXPECT_EQ(json["micro_batches"], 10);
  EXPECT_EQ(json["estimate_schedule"], "1f1b");
}

TEST(Simulate, SameQuestionSameBytes) {
  const auto bytes = [] {
    Json json = Simulated(std::string(kPipeline) + " --schedule v-half");
    json.erase("timing");
    return json.dump();
  };
  EXPECT_EQ(bytes(), bytes());
}

TEST(Simulate, Text) {
  const Outcome outcome = RunCommand("simulate" + std::string(kPipeline));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("Simulated step "));
  EXPECT_THAT(outcome.out, HasSubstr(" under 1f1b (estimate "));
  EXPECT_THAT(outcome.out, HasSubstr("each standing for 2 GPUs\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nrank 0 |F"));
  EXPECT_THAT(outcome.out, HasSubstr("|\nF forward, B backward\n"));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST(Simulate, ManyPassesAreNotDrawn) {
  // 112 micro-batches, each with F and B.
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster dgx-h100 --global-batch 112 --seq 4096 --tp 2 "
      "--pp 4");
  EXPECT_THAT(
      outcome.out,
      HasSubstr("(Not drawn here: 4 ranks with 224 passes each are too many for a terminal; "
                "--trace FILE writes them\nfor Perfetto.)\n"));
  // And nothing is said without a pipeline.
  EXPECT_THAT(RunCommand("simulate" + std::string(kQuestion)).out, Not(HasSubstr("Not drawn")));
}

TEST(Simulate, DoesNotFit) {
  // GPipe holds all 16 micro-batches; the last rank those of the logits too.
  const Outcome outcome = RunCommand("simulate --schedule gpipe" + std::string(kPipeline));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("Does not fit: rank 3, the fullest, needs "));
  EXPECT_THAT(outcome.out, HasSubstr("more than H100-SXM's 79.6 GiB. If the"));
}

TEST(Simulate, PlanThatCannotRun) {
  const std::string rest =
      " --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 3";
  const Outcome outcome = RunCommand("simulate" + rest);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, StartsWith("tp3 pp1 dp2 mbs1 zero1 cannot run: tp 3 x cp 1 x pp 1 x dp "
                                      "2 is 6 GPUs, not 8.\n"));
  EXPECT_TRUE(Simulated(rest)["rejected"].contains("gpu_count")) << Simulated(rest);
}

// Whole messages.
class SimulateFiles : public InFolder {
 protected:
  static std::string Of(const std::string& line) {
    const Outcome outcome = RunCommand(line);
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(outcome.out, "") << line;
    return outcome.err;
  }
};

constexpr char kAll[] =
    "there are gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, v-zb, dualpipe, "
    "dualpipe-v, bfs, forward-only\n";

TEST_F(SimulateFiles, ScheduleThatThereIsNot) {
  const std::string line = "simulate" + std::string(kPipeline) + " --schedule ";
  EXPECT_EQ(Of(line + "zb-h3"),
            "millwright: --schedule: unknown schedule \"zb-h3\", did you mean \"zb-h1\"?; " +
                std::string(kAll));
  EXPECT_EQ(Of(line + "interleaved:x"),
            "millwright: --schedule: schedule \"interleaved:x\": expected a number of virtual "
            "stages of at least 1 behind the colon, as in interleaved:4, got \"x\"\n");
  EXPECT_EQ(Of(line + "own.json"), "millwright: --schedule: own.json: no such file\n");
  EXPECT_EQ(Of(line + "forward-only"),
            "millwright: --schedule: forward-only has no backward pass, and a training step is "
            "simulated\n");
}

TEST_F(SimulateFiles, AScheduleFileIsSimulatedAsTheBuiltInOneThatItHolds) {
  for (const std::string name : {"zb-h1", "dualpipe", "interleaved:2", "v-half"}) {
    SCOPED_TRACE(name);
    Write("own.json",
          RunCommand("describe schedule " + name + " --pp 4 --microbatches 16 --json").out);
    Json own = Simulated(std::string(kPipeline) + " --schedule own.json");
    const Json built_in = Simulated(std::string(kPipeline) + " --schedule " + name);
    EXPECT_EQ(own["schedule"], "own.json");
    for (const char* key : {"step_time_s", "peak_bytes", "ranks", "tasks", "bubble_share"}) {
      EXPECT_EQ(own[key], built_in[key]) << key;
    }
  }
}

TEST_F(SimulateFiles, ScheduleFileThatDoesNotServe) {
  const auto of = [](const std::string& schedule, const std::string& batch = "1") {
    Write("own.json", schedule);
    return Of(
        "simulate --model llama-3.1-8b --cluster dgx-h100 --seq 8192 --tp 4 --pp 2 "
        "--schedule own.json --global-batch " +
        batch);
  };
  EXPECT_EQ(of(R"({"orders": ["F0.0 BW0.0"]})"),
            "millwright: own.json: has 1 pipeline ranks, and 2 were asked for\n");
  EXPECT_EQ(of(R"({"orders": ["F0.0 F1.0 BW0.0 BW1.0", "F0.1 BW0.1 F1.1 BW1.1"]})"),
            "millwright: own.json: has 2 micro-batches, and 1 were asked for\n");
  EXPECT_EQ(of(R"({"orders": ["F0.0 BW0.0", "BW0.1 F0.1"]})"),
            "millwright: --schedule: own.json: the orders wait for each other without end: rank 1 "
            "at BW0.1 for F0.1 of its own\n");
  EXPECT_EQ(of(R"({"orders": ["F0.0", "F0.1"]})"),
            "millwright: --schedule: own.json has no backward pass, and a training step is "
            "simulated\n");
  EXPECT_EQ(of(R"({"orders": ["F0.0 F0.1 BW0.1 BW0.0", "F0.2 BW0.2"]})"),
            "millwright: own.json: some ranks hold more stages than others, and a step splits the "
            "layers evenly\n");
  EXPECT_EQ(of(R"({"p": 2, "m": 2, "directions": 2, "rank_of_stage": [0, 1],
                   "orders": ["F0.0 BW0.0", "F0.1 BW0.1"]})",
               "2"),
            "millwright: own.json: 1 stages in a direction are not a multiple of 2 ranks\n");
}

TEST_F(SimulateFiles, TheJobFilesScheduleIsSimulated) {
  const auto job = [](const std::string& schedule) {
    Write("job.json", R"({"model_from": "llama-3.1-8b", "cluster": {"inherit": "dgx-h100"},)"
                      R"("training": {"global_batch_size": 16, "seq_length": 8192}, "parallel": {)"
                      R"("tensor_parallel": 2, "sequence_parallel": true, "pipeline_parallel": 4,)"
                      R"("schedule": ")" +
                          schedule + "\"}}");
  };
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "zb-v", "v-min", "dualpipe", "bfs"}) {
    job(name);
    const Json of_job = Simulated(" job.json");
    EXPECT_EQ(of_job["schedule"], name);
    EXPECT_EQ(of_job["step_time_s"],
              Simulated(std::string(kPipeline) + " --schedule " + name)["step_time_s"]);
  }
  // The plan's chunks, where the schedule has none of its own.
  job("bfs\", \"virtual_stages\": 4, \"zero\": 1, \"context_parallel_kind\": \"ring");
  EXPECT_EQ(Simulated(" job.json")["schedule"], "bfs:4");

  job("zb-v\", \"virtual_stages\": 2, \"context_parallel_kind\": \"ring");
  Json json = Simulated(" job.json");
  EXPECT_EQ(json["rejected"]["virtual_stages"], "the zb-v schedule does not go with vpp 2");
  job("dualpipe");
  json = Simulated(" job.json --global-batch 6");
  EXPECT_EQ(json["rejected"]["schedule"],
            "schedule dualpipe needs at least 8 micro-batches, two a pipeline rank, got 6");
  job("forward-only");
  EXPECT_EQ(Of("simulate job.json"),
            "millwright: job.json: at /parallel/schedule: expected one of \"gpipe\", \"1f1b\", "
            "\"interleaved\", \"zb-h1\", \"zb-h2\", \"zb-v\", \"v-half\", \"v-min\", \"v-zb\", "
            "\"dualpipe\", \"dualpipe-v\", \"bfs\", got \"forward-only\"\n");
}

TEST_F(SimulateFiles, AnEstimateIsOfTheScheduleAskedFor) {
  const auto of = [](const char* schedule) {
    const Outcome outcome =
        RunCommand(std::string("estimate --json --schedule ") + schedule + std::string(kPipeline));
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out);
  };
  // GPipe waits no longer than 1F1B, and holds every micro-batch at once.
  const Json plain = of("1f1b"), gpipe = of("gpipe"), zero_bubble = of("zb-h2");
  EXPECT_EQ(gpipe["plan"]["schedule"], "gpipe");
  EXPECT_NEAR(double(gpipe["time"]["bubble"]) / double(plain["time"]["bubble"]), 1, 0.01);
  EXPECT_LT(double(zero_bubble["time"]["bubble"]), 0.6 * double(plain["time"]["bubble"]));
  EXPECT_GT(gpipe["memory"], plain["memory"]);
}

TEST_F(SimulateFiles, ScheduleThatThePlanDoesNotServe) {
  const auto of = [](const std::string& rest) {
    return Of("simulate --model llama-3.1-8b --cluster dgx-h100 --seq 8192 --tp 2 " + rest);
  };
  EXPECT_EQ(of("--pp 4 --global-batch 6 --schedule dualpipe"),
            "millwright: schedule dualpipe: needs at least 8 micro-batches, two a pipeline rank, "
            "got 6\n");
  EXPECT_EQ(of("--nodes 3 --pp 3 --dp 4 --global-batch 28 --schedule dualpipe"),
            "millwright: schedule dualpipe: needs an even number of pipeline ranks, got 3\n"
            "millwright: schedule dualpipe: needs an even number of micro-batches, got 7\n");
  EXPECT_EQ(of("--pp 4 --global-batch 3 --schedule interleaved:2"),
            "millwright: schedule interleaved: needs at least 4 micro-batches, one a pipeline "
            "rank, got 3\n");
  EXPECT_EQ(of("--pp 4 --global-batch 8 --schedule interleaved"),
            "millwright: schedule interleaved: needs at least 2 virtual stages a rank, got 1\n");
  EXPECT_EQ(of("--pp 4 --global-batch 8 --schedule interleaved:9"),
            "millwright: schedule interleaved cuts the model into 36 stages, and llama-3.1-8b has "
            "32 layers\n");
  EXPECT_EQ(of("--pp 4 --global-batch 8 --schedule interleaved:4 --vpp 2"),
            "millwright: --schedule: interleaved:4 has 4 virtual stages a rank, and the plan has "
            "2 (--vpp)\n");
  EXPECT_EQ(of("--pp 4 --global-batch 8 --schedule zb-h1 --vpp 2"),
            "millwright: schedule zb-h1: has 1 virtual stage a rank, got 2\n");
  EXPECT_EQ(of("--pp 4 --global-batch 8 --schedule zb-v:3"),
            "millwright: schedule zb-v: has 2 virtual stages a rank, got 3\n");
  EXPECT_EQ(of("--pp 4 --global-batch 1073741824"),
            "millwright: schedule 1f1b: can have at most 134217728 passes, got 12884901888\n");
}

TEST_F(SimulateFiles, TooLargeForThisMachine) {
  // 10^7 micro-batches over 32 layers of about 24 tasks: 100 B each are more than anyone has.
  EXPECT_THAT(Of("simulate --model llama-3.1-8b --cluster dgx-h100 --global-batch 10000000 --seq "
                 "1024 --tp 2 --pp 4"),
              testing::MatchesRegex("millwright: a step of 10,000,000 micro-batches is about .* "
                                    "tasks, which need .* of this machine's .*; estimate answers "
                                    "it without a graph, and a larger --micro-batch has fewer "
                                    "tasks\n"));
}

TEST_F(SimulateFiles, TraceThatCannotBeWritten) {
  const std::string line = "simulate" + std::string(kPipeline);
  EXPECT_EQ(Of(line + " --trace missing/step.json"),
            "millwright: missing/step.json: cannot be written: No such file or directory\n");
  EXPECT_EQ(Of(line + " --trace ."), "millwright: .: cannot be written: Is a directory\n");
  EXPECT_EQ(Of(line + " --trace-ranks 0"), "millwright: --trace-ranks: needs --trace\n");
  EXPECT_EQ(Of(line + " --trace step.json --trace-ranks 0,4,,1-2"),
            "millwright: --trace-ranks: expected pipeline ranks from 0 to 3, got \"4\"\n"
            "millwright: --trace-ranks: expected pipeline ranks from 0 to 3, got \"\"\n"
            "millwright: --trace-ranks: expected pipeline ranks from 0 to 3, got \"1-2\"\n");
  EXPECT_EQ(Files(), 0);
  // A plan that cannot run leaves what was there.
  Write("step.json", "before");
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 3 "
      "--trace step.json");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "millwright: no step, so step.json is not written\n");
  EXPECT_EQ(Read("step.json"), "before");
  EXPECT_EQ(Files(), 1);
}

TEST_F(SimulateFiles, Trace) {
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe", "interleaved:2"}) {
    const Outcome outcome = RunCommand("simulate --json --trace step.json --schedule " +
                                       std::string(schedule) + kPipeline);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("millwright: wrote step.json, "));
    EXPECT_EQ(Files(), 1);
    const Json answer = Json::parse(outcome.out);
    const Json trace = Json::parse(Read("step.json"));
    EXPECT_EQ(trace["otherData"]["schedule"], schedule);

    std::map<std::pair<int, int>, std::int64_t> end;  // of each thread, in ns
    std::map<int, double> peak;
    std::map<std::pair<int, int>, std::string> names;
    double last = 0;
    int passes = 0;
    for (const Json& event : trace["traceEvents"]) {
      const int rank = event["pid"];
      if (event["ph"] == "C" && event["name"] == "sent over links") {
        // Two streams at once, each as if it had NVLink's 450 GB/s alone: nothing is shared here.
        EXPECT_GE(event["args"]["GB/s"].get<double>(), -1e-3);
        EXPECT_LE(event["args"]["GB/s"].get<double>(), 900);
      } else if (event["ph"] == "C") {
        peak[rank] = std::max(peak[rank], event["args"]["GiB"].get<double>());
      } else if (event["ph"] == "M" && event["name"] == "thread_name") {
        names[{rank, event["tid"]}] = event["args"]["name"];
      } else if (event["ph"] == "X") {
        // Slices of a thread follow each other.
        const double ts = event["ts"], duration = event["dur"];
        std::int64_t& before = end[{rank, event["tid"]}];
        EXPECT_GE(std::llround(1000 * ts), before);
        before = std::llround(1000 * (ts + duration));
        last = std::max(last, ts + duration);
        if (event["cat"] == "pass") ++passes;
      }
    }
    // 4 ranks x 16 micro-batches x (F, BW) with one chunk; 2 chunks; F, B, W of 2 chunks.
    // DualPipe shows a pair as one.
    const std::map<std::string, int> expected{{"1f1b", 128}, {"interleaved:2", 256}, {"zb-v", 384}};
    if (expected.contains(schedule)) {
      EXPECT_EQ(passes, expected.at(schedule));
    }
    EXPECT_NEAR(last / 1e6, answer["step_time_s"].get<double>(), 2e-9);
    ASSERT_EQ(peak.size(), 4U);
    for (const auto& [rank, gib] : peak) {
      // The counter is without the allocator's slack, which is a few percent of the whole.
      const double with_slack = answer["ranks"][std::size_t(rank)]["peak_bytes"];
      EXPECT_LT(gib * 1073741824, with_slack) << rank;
      EXPECT_GT(gib * 1073741824, 0.9 * with_slack) << rank;
    }
    for (const auto& [thread, ignored] : end) EXPECT_TRUE(names.contains(thread));
    EXPECT_EQ((names[{0, 0}]), "passes");
    EXPECT_EQ((names[{0, 1}]), "compute");
  }
}

TEST_F(SimulateFiles, TraceOfSomeRanks) {
  ASSERT_EQ(
      RunCommand("simulate --trace step.json --trace-ranks 3,1,3" + std::string(kPipeline)).code,
      0);
  std::set<int> ranks;
  const Json trace = Json::parse(Read("step.json"));
  for (const Json& event : trace["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
  }
  EXPECT_EQ(ranks, (std::set<int>{1, 3}));
}

TEST_F(SimulateFiles, NamesAreEscapedInTheTrace) {
  Write("cluster.json", R"({"inherit": "dgx-h100", "name": "\"a\\b</script>"})");
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster cluster.json --global-batch 16 --seq 8192 --tp 2 "
      "--pp 4 --trace step.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(Read("step.json"))["otherData"]["cluster"], "\"a\\b</script>");
}

// What a page's scripts find as its data.
Json PageData(const std::string& page) {
  const std::string begin = "id=\"data\">", end = "</script>";
  const std::size_t from = page.find(begin) + begin.size();
  return Json::parse(page.substr(from, page.find(end, from) - from));
}

TEST_F(SimulateFiles, Page) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe", "interleaved:2"}) {
    const Outcome outcome = RunCommand("simulate --json --html step.html --schedule " +
                                       std::string(schedule) + kPipeline);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("millwright: wrote step.html, "));
    EXPECT_EQ(Files(), 1);
    const Json answer = Json::parse(outcome.out);
    const std::string page = Read("step.html");
    const Json data = PageData(page);
    EXPECT_EQ(data["kind"], "step");
    EXPECT_EQ(data["heading"], "llama-3.1-8b");
    EXPECT_EQ(data["schedule"], schedule);
    EXPECT_EQ(data["fits"], answer["fits"]);
    EXPECT_EQ(data["capacity"], answer["capacity_bytes"]);
    // As in the trace: 4 ranks x 16 micro-batches x (F, BW); 2 chunks; F, B and W of 2 chunks.
    const std::map<std::string, int> expected{{"1f1b", 128}, {"interleaved:2", 256}, {"zb-v", 384}};
    if (expected.contains(schedule)) {
      EXPECT_EQ(data["step"]["passes"], expected.at(schedule));
    }
    EXPECT_NEAR(data["step"]["length"].get<double>() / 1e9, answer["step_time_s"].get<double>(),
                1e-9);
    ASSERT_EQ(data["step"]["ranks"].size(), 4U);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(data["step"]["ranks"][rank]["peak"], answer["ranks"][rank]["peak_bytes"]);
    }
    EXPECT_TRUE(data["full"].is_null());
    // Same question, same bytes.
    RunCommand("simulate --html again.html --schedule " + std::string(schedule) + kPipeline);
    EXPECT_TRUE(Read("again.html") == page);
    std::filesystem::remove("again.html");
  }
}

TEST_F(SimulateFiles, PageOfOneRank) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  ASSERT_EQ(RunCommand("simulate --html step.html" + std::string(kQuestion)).code, 0);
  const Json data = PageData(Read("step.html"));
  ASSERT_EQ(data["step"]["ranks"].size(), 1U);
  // 16 sequences over a data-parallel degree of 4, forward and backward.
  EXPECT_EQ(data["step"]["passes"], 8);
}

TEST_F(SimulateFiles, PageOfEveryRank) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const Outcome outcome = RunCommand(
      "simulate --json --html step.html --jitter 0.05 --seed 1 --steps 5" + std::string(kPipeline));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json full = Json::parse(outcome.out)["full"], data = PageData(Read("step.html"));
  EXPECT_EQ(data["full"]["steps"], full["steps_s"]);
  EXPECT_EQ(data["full"]["folded"], full["folded_step_time_s"]);
  EXPECT_THAT(data["full"]["sentence"].get<std::string>(), StartsWith("Every rank: "));
  ASSERT_EQ(data["full"]["links"].size(), full["links"].size());
  EXPECT_FALSE(full["links"].empty());
  for (std::size_t i = 0; i < full["links"].size(); ++i) {
    for (const char* key : {"name", "bytes", "utilisation"}) {
      EXPECT_EQ(data["full"]["links"][i][key], full["links"][i][key]);
    }
  }
  EXPECT_EQ(data["full"]["link_kinds"].size(), full["link_kinds"].size());
  // The timeline is of the median step, of which no two passes are alike.
  EXPECT_NEAR(data["step"]["length"].get<double>() / 1e9, full["p50_s"].get<double>(), 1e-9);
  EXPECT_EQ(data["step"]["passes"], 128);
  EXPECT_EQ(data["step"]["shapes"].size(), 128U);
}

TEST_F(SimulateFiles, PageAndTraceTogether) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const Outcome outcome =
      RunCommand("simulate --trace step.json --html step.html" + std::string(kPipeline));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, testing::MatchesRegex("millwright: wrote step.json, .*\n"
                                                 "millwright: wrote step.html, .*\n"));
  EXPECT_EQ(Files(), 2);
  EXPECT_EQ(Of("simulate --trace a --html a" + std::string(kPipeline)),
            "millwright: --html: is the file of --trace\n");
}

TEST_F(SimulateFiles, PageThatCannotBeWritten) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const std::string line = "simulate" + std::string(kPipeline);
  EXPECT_EQ(Of(line + " --html missing/step.html"),
            "millwright: missing/step.html: cannot be written: No such file or directory\n");
  EXPECT_EQ(Of(line + " --html ."), "millwright: .: cannot be written: Is a directory\n");
  // Neither of two is written where one cannot be.
  EXPECT_EQ(Of(line + " --trace step.json --html missing/step.html"),
            "millwright: missing/step.html: cannot be written: No such file or directory\n");
  EXPECT_EQ(Files(), 0);
  Write("step.html", "before");
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster dgx-h100 --global-batch 16 --seq 8192 --tp 3 "
      "--html step.html");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "millwright: no step, so step.html is not written\n");
  EXPECT_EQ(Read("step.html"), "before");
  EXPECT_EQ(Files(), 1);
}

TEST_F(SimulateFiles, PageNeedsTheLibrary) {
  const std::string line = "simulate --html step.html" + std::string(kPipeline);
  if (HasPageLibrary()) {
    EXPECT_EQ(RunCommand(line).code, 0);
    EXPECT_EQ(Files(), 1);
    return;
  }
  EXPECT_EQ(Of(line),
            "millwright: --html: this program was built without D3, which draws pages; install it "
            "(Debian: node-d3), configure and build again\n");
  EXPECT_EQ(Files(), 0);
}

TEST_F(SimulateFiles, NamesStayTextInThePage) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const std::string name = "</script><script>alert(1)</script><!-- \"x\" 'y' & \\";
  Write("cluster.json", R"({"inherit": "dgx-h100", "name": )" + Json(name).dump() + "}");
  const Outcome outcome = RunCommand(
      "simulate --model llama-3.1-8b --cluster cluster.json --global-batch 16 --seq 8192 --tp 2 "
      "--pp 4 --html step.html");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = Read("step.html");
  EXPECT_EQ(PageData(page)["cluster"], name);
  EXPECT_EQ(page.find("<script>alert"), page.npos);
  EXPECT_EQ(page.find("</script><!--"), page.npos);
}

TEST_F(SimulateFiles, ScheduleFileThatDeadlocks) {
  // Rank 1 wants the backward pass before the forward one.
  Write("own.json", R"({"orders": ["F0.0 BW0.0", "BW0.1 F0.1"]})");
  EXPECT_EQ(Of("describe schedule own.json"),
            "millwright: own.json: the orders wait for each other without end: rank 1 at BW0.1 for "
            "F0.1 of its own\n");
  EXPECT_EQ(Of("describe schedule own.json --pp 4"),
            "millwright: own.json: has 2 pipeline ranks, and 4 were asked for\n");
  EXPECT_EQ(Of("describe schedule own.json --vpp 2"),
            "millwright: --vpp: the file says it already\n");
  EXPECT_EQ(
      Of("describe schedule dualpip"),
      "millwright: unknown schedule \"dualpip\", did you mean \"dualpipe\"?; " + std::string(kAll));
  EXPECT_EQ(Of("describe schedule dualpipe --pp 3"),
            "millwright: schedule dualpipe: needs an even number of pipeline ranks, got 3\n");
  EXPECT_EQ(Of("describe schedule zb-h1 --costs F=x"),
            "millwright: costs: F: expected a number from 0 to 1e9, got \"x\"\n");
}

TEST_F(SimulateFiles, DescribedScheduleIsAScheduleFile) {
  const std::string told = RunCommand("describe schedule zb-v --pp 4 --json").out;
  Write("own.json", told);
  EXPECT_EQ(RunCommand("describe schedule own.json --json").out, told);
}

}  // namespace
}  // namespace millwright
