// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "report/page.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kSmall[] =
    " --model llama-3.1-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096";
constexpr char kMoe[] =
    " --model mixtral-8x7b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096";
// GPT-3 175B needs 18 bytes x 175e9 = 3.15 TB of state with fp32 gradients; 8 A100s have 0.69 TB.
constexpr char kImpossible[] =
    " --model gpt3-175b --cluster dgx-a100 --nodes 1 --global-batch 8 --seq 2048";

Json Parsed(const Outcome& outcome) { return Json::parse(outcome.out); }

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

using PlanFile = InFolder;  // job.json in a folder of its own

TEST(Plan, AnswersFirst) {
  const Outcome outcome = RunCommand("plan" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("Best: tp"));
  for (const char* part :
       {"\nModel       llama-3.1-8b, 8.03 B parameters, 32 layers\n",
        "\nCluster     2 nodes of dgx-h100, 16 GPUs (H100-SXM, 79.6 GiB)\n",
        // 64 x 4,096 = 262,144 tokens.
        "\nStep        64 sequences of 4,096 tokens, 262 k tokens in all\n",
        "\nSearch      at least 5% of the memory left free\n", "\nThe 10 fastest layouts, ",
        "\nTime of a step ", "\nMemory of ", "\n  Proven best of ",
        "\nWhat less memory costs: ", " plans costed; what was rejected\n"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

TEST(Plan, NoLineIsWiderThanTheTerminal) {
  for (const char* question : {kSmall, kMoe, kImpossible}) {
    for (int width : {100, 70}) {
      std::istringstream lines(RunCommand("plan" + std::string(question), {.width = width}).out);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), std::size_t(width)) << line;
      }
    }
  }
}

// What bounds rule out changes no answer, and every candidate is accounted for.
TEST(Plan, CertificateEqualsCostingAll) {
  const std::string question = "plan --json --no-simulate" + std::string(kSmall);
  const Json bounded = Parsed(RunCommand(question));
  const Json all = Parsed(RunCommand(question + " --exact"));
  for (const char* key : {"plans", "pareto", "in_framework", "nearest_miss"}) {
    EXPECT_EQ(bounded[key], all[key]) << key;
  }
  const Json &proof = bounded["certificate"], &every = all["certificate"];
  EXPECT_THAT(Keys(proof), testing::ElementsAre("exact", "best_bound_s", "gap", "space", "costed",
                                                "unvisited", "pruned"));
  EXPECT_EQ(proof["exact"], true);
  EXPECT_EQ(proof["gap"], 0);
  // Layers divided unevenly may do better than any candidate; but for rounding.
  EXPECT_GE(proof["best_bound_s"].get<double>() * (1 + 1e-12),
            bounded["step_time_s"].get<double>());
  std::int64_t sum = proof["costed"];
  for (const auto& [bound, count] : proof["pruned"].items()) sum += count.get<std::int64_t>();
  EXPECT_EQ(proof["space"], sum);
  EXPECT_EQ(every["space"], sum);
  EXPECT_EQ(every["costed"], sum);
  EXPECT_EQ(every["pruned"], Json::object());
  EXPECT_LT(proof["costed"], every["costed"]);
}

TEST(Plan, BudgetAnswersWithTheBestSoFar) {
  const std::string question = "plan --json --no-simulate" + std::string(kSmall);
  const Json whole = Parsed(RunCommand(question));
  const Json ample = Parsed(RunCommand(question + " --budget 1h"));
  EXPECT_EQ(ample["plans"], whole["plans"]);
  EXPECT_EQ(ample["certificate"]["exact"], true);
  EXPECT_EQ(ample["certificate"]["unvisited"], 0);

  // A large cluster, and a batch of many divisors: hours, if all of it were visited.
  const std::string vast =
      "plan --model deepseek-v3 --cluster dgx-h100 --nodes 16384 --global-batch 7207200 --seq "
      "16384 --schedules all --no-simulate --budget ";
  const std::string large = vast + "300ms";
  const Json some = Parsed(RunCommand(large + " --json"));
  const Json& proof = some["certificate"];
  EXPECT_EQ(proof["exact"], false);
  EXPECT_GT(proof["unvisited"], 1'000'000'000);
  EXPECT_GT(proof["best_bound_s"], 0);
  EXPECT_THAT(RunCommand(large).out, HasSubstr(" were not visited "));

  // A share of the time goes to recomputation by rank of the best so far, and where it is over
  // before that is done this is said.
  const Json late = Parsed(RunCommand(large + " --recompute-by-rank --json"));
  const Json& by_rank = late["certificate"];
  EXPECT_GT(by_rank["unvisited"], 0);
  const std::int64_t done =
      by_rank.contains("by_rank") ? std::int64_t(by_rank["by_rank"]["plans"]) : 0;
  const std::int64_t left =
      by_rank.contains("no_time") ? std::int64_t(by_rank["no_time"]["by_rank"]) : 0;
  if (!late["plans"].empty()) {  // a machine may be too slow for any
    EXPECT_GT(done + left, 0);
  }
  const Outcome none = RunCommand(vast + "1us");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.out, StartsWith("No plan: none was costed in the time given (--budget).\n"));
  const Json ranks =
      Parsed(RunCommand(question + " --recompute-by-rank"))["certificate"]["by_rank"];
  const Json in_time = Parsed(RunCommand(question + " --recompute-by-rank --budget 1h"));
  EXPECT_EQ(in_time["certificate"]["by_rank"], ranks);
  EXPECT_FALSE(in_time["certificate"].contains("no_time"));
}

TEST(Plan, BadBudgets) {
  for (const char* time : {"0s", "-1s", "5", "31d", "soon", "1e400s"}) {
    const Outcome outcome = RunCommand("plan --budget " + std::string(time) + kSmall);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err,
              "millwright: --budget: expected a time above 0 s and up to 30 d, such as 5s, got \"" +
                  std::string(time) + "\"\n");
  }
  EXPECT_EQ(
      RunCommand("plan --budget 5s --exact --sensitivity --explain tp=1" + std::string(kSmall)).err,
      "millwright: --exact: costs every candidate, whatever --budget says\n"
      "millwright: --explain: searches again, whatever --budget says\n"
      "millwright: --sensitivity: searches again, whatever --budget says\n");
}

// A signal that is already there when the search begins.
TEST(Plan, InterruptsEndIt) {
  sigset_t held, before;
  sigemptyset(&held);
  sigaddset(&held, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &held, &before);
  raise(SIGTERM);
  const Outcome outcome = RunCommand("plan" + std::string(kSmall));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(outcome.code, 143);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "millwright: interrupted\n");
}

// One that comes while a search of hours goes on.
TEST(Plan, InterruptedItAnswersWithTheBestSoFar) {
  sigset_t held, before;
  sigemptyset(&held);
  sigaddset(&held, SIGINT);
  pthread_sigmask(SIG_BLOCK, &held, &before);
  std::thread impatient([] {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    kill(getpid(), SIGINT);
  });
  const Outcome outcome = RunCommand(
      "plan --json --model deepseek-v3 --cluster dgx-h100 --nodes 16384 --global-batch 7207200 "
      "--seq 16384 --schedules all --sensitivity");
  impatient.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(outcome.code, 130);
  if (outcome.out.empty()) {  // a machine may be too slow for any plan
    EXPECT_EQ(outcome.err, "millwright: interrupted\n");
    return;
  }
  EXPECT_THAT(outcome.err, StartsWith("millwright: interrupted: the best so far\n"));
  const Json json = Parsed(outcome);
  EXPECT_FALSE(json["plans"].empty());
  EXPECT_EQ(json["certificate"]["exact"], false);
  EXPECT_GT(json["certificate"]["unvisited"], 1'000'000'000);
  EXPECT_FALSE(json.contains("sensitivity"));
}

TEST(Plan, JsonKeys) {
  const Outcome outcome = RunCommand("plan --json" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 0);
  const Json json = Parsed(outcome);
  EXPECT_THAT(
      Keys(json),
      testing::ElementsAre(
          "step_time_s", "interval", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu",
          "ideal_time_s", "mfu_convention", "fits", "plan", "micro_batches", "slowest_stage",
          "time", "memory", "simulated_step_time_s", "simulated_peak_bytes", "simulated_fits",
          "estimate_error", "question", "warnings", "memory_limit_bytes", "plans", "simulation",
          "in_framework", "framework_notes", "pareto", "certificate", "searched", "rejected",
          "out_of_memory", "reason", "nearest_miss", "remedies", "timing"));
  ASSERT_EQ(json["plans"].size(), 10U);
  const Json& best = json["plans"][0];
  EXPECT_EQ(json["plan"], best["plan"]);
  EXPECT_EQ(json["step_time_s"], best["step_time_s"]);
  EXPECT_THAT(Keys(best),
              testing::ElementsAre("step_time_s", "interval", "tokens_per_s_per_gpu",
                                   "model_tflops_per_gpu", "mfu", "hfu", "ideal_time_s",
                                   "mfu_convention", "fits", "plan", "micro_batches",
                                   "slowest_stage", "time", "memory", "simulated_step_time_s",
                                   "simulated_peak_bytes", "simulated_fits", "estimate_error"));
  EXPECT_THAT(Keys(best["plan"]),
              testing::ElementsAre("tp", "sp", "cp", "cp_kind", "cp_ulysses", "pp", "vpp", "dp",
                                   "ep", "etp", "micro_batch", "zero", "zero_shard", "recompute",
                                   "schedule", "stage_layers", "order", "layers_per_stage"));
  EXPECT_EQ(json["question"]["model"]["parameters"]["total"], 8'030'261'248);
  // Tokens of a step over its time and 16 GPUs.
  EXPECT_DOUBLE_EQ(best["tokens_per_s_per_gpu"].get<double>(),
                   64 * 4096 / best["step_time_s"].get<double>() / 16);
  double sum = 0;
  for (const auto& [item, seconds] : best["time"].items()) {
    if (item != "total") sum += seconds.get<double>();
  }
  EXPECT_NEAR(sum, best["step_time_s"].get<double>(), 1e-9);
  EXPECT_EQ(best["time"]["total"], best["step_time_s"]);
  double peak = 0;
  for (const Json& stage : best["memory"]["stages"]) {
    double items = 0;
    for (const auto& [item, bytes] : stage.items()) {
      if (item != "stage" && item != "total_bytes") items += bytes.get<double>();
    }
    EXPECT_NEAR(items, stage["total_bytes"].get<double>(), 1);
    peak = std::max(peak, items);
  }
  EXPECT_NEAR(peak, best["memory"]["peak_bytes"].get<double>(), 1);
  EXPECT_LE(peak, json["memory_limit_bytes"].get<double>());
}

// Where memory is tight the first rank of a pipeline recomputes and the last one does not; the same
// bytes for any number of threads, and next to it the best that the framework can be told.
TEST(Plan, RecomputeByRank) {
  const std::string question =
      "plan --json --model llama-3.1-70b --cluster dgx-h100 --nodes 4 --global-batch 128 "
      "--seq 16384 --require tp=4,pp=4,zero=1,cp=2";
  const Json without = Parsed(RunCommand(question));
  EXPECT_FALSE(without["certificate"].contains("by_rank"));
  EXPECT_TRUE(without["in_framework"].is_null());
  Json with = Parsed(RunCommand(question + " --recompute-by-rank --threads 1"));
  Json again = Parsed(RunCommand(question + " --recompute-by-rank --threads 3"));
  const Json& by_rank = with["certificate"]["by_rank"];
  EXPECT_GE(by_rank["plans"], by_rank["faster"]);
  EXPECT_GT(by_rank["faster"], 0);
  with.erase("timing");
  again.erase("timing");
  EXPECT_EQ(with.dump(), again.dump());
  const auto step = [](const Json& plan) { return plan["step_time_s"].get<double>(); };
  const auto simulated = [](const Json& plan) {
    return plan["simulated_step_time_s"].get<double>();
  };
  const Json& best = with["plans"][0];
  EXPECT_THAT(best["plan"]["recompute"].get<std::string>(), HasSubstr("|"));
  EXPECT_LT(step(best), 0.95 * step(without["plans"][0]));
  EXPECT_LT(simulated(best), 0.95 * simulated(without["plans"][0]));
  EXPECT_LE(best["memory"]["peak_bytes"], with["memory_limit_bytes"]);
  EXPECT_EQ(with["in_framework"]["plan"], without["plans"][0]["plan"]);
  const Outcome text = RunCommand("plan" + question.substr(11) + " --recompute-by-rank");
  EXPECT_THAT(text.out,
              HasSubstr("The framework, megatron, has no recomputation by pipeline rank."));
}

// Megatron-FSDP has no pipeline, and torch.distributed's has FSDP beside it.
TEST(Plan, SaysWhatTheFrameworkCannotShard) {
  const std::string question =
      " --model llama-3.1-70b --cluster dgx-h200 --nodes 8 --global-batch 64 --seq 131072 "
      "--require pp=2,tp=2,cp=16";
  const Json json = Parsed(RunCommand("plan --json" + question));
  EXPECT_EQ(json["plans"][0]["plan"]["zero"], 2);
  EXPECT_LT(json["in_framework"]["plan"]["zero"], 2);
  EXPECT_GE(json["in_framework"]["step_time_s"], json["plans"][0]["step_time_s"]);
  EXPECT_EQ(json["framework_notes"].size(), 2U);
  const std::string text = RunCommand("plan" + question).out;
  EXPECT_THAT(text, HasSubstr("The framework, megatron, has no ZeRO 2 or 3 with a pipeline."));
  EXPECT_THAT(text, HasSubstr("Not as they are in the framework: #1"));
  const std::string with_offload =
      "plan --model llama-2-13b --cluster dgx-h100 --nodes 2 --global-batch 128 --seq 4096 "
      "--offload --require offload=1,pp=2";
  const std::string offloaded = RunCommand(with_offload).out;
  for (const char* threads : {"1", "3", "5"}) {
    EXPECT_EQ(RunCommand(with_offload + " --threads " + threads).out, offloaded);
  }
  EXPECT_THAT(offloaded, HasSubstr("has no offloaded layers with pipelines or recomputation. No "
                                   "plan that it"));
  EXPECT_THAT(offloaded, HasSubstr("layers are not"));
  const std::string compiled = RunCommand("plan --framework fsdp-compiled" + question).out;
  EXPECT_THAT(compiled, testing::Not(HasSubstr("no pipeline there")));
}

TEST(Plan, RanksByTheSimulatedStep) {
  const Json json = Parsed(RunCommand("plan --json --top 40" + std::string(kMoe)));
  const Json& plans = json["plans"];
  ASSERT_GT(plans.size(), 32U);
  const Json& simulation = json["simulation"];
  // As many layouts, and others that may turn out faster.
  EXPECT_GE(simulation["simulated"].get<std::size_t>(),
            plans.size() + simulation["left_out"].size());
  EXPECT_LE(simulation["simulated"].get<std::size_t>(), 2 * plans.size());
  double largest = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    largest = std::max(largest, std::abs(plans[i]["estimate_error"].get<double>()));
    EXPECT_TRUE(plans[i]["simulated_fits"].get<bool>());
    if (i == 0) continue;
    EXPECT_LE(plans[i - 1]["simulated_step_time_s"], plans[i]["simulated_step_time_s"]);
  }
  EXPECT_LE(largest, simulation["largest_error"].get<double>());
  EXPECT_THAT(RunCommand("plan" + std::string(kMoe)).out,
              HasSubstr("\n  Ranked by simulated step, of the 64 fastest by the estimate; it is "));
}

// What comes to its own only when layers are divided anew, or when it is simulated, is found
// without a filter that takes its competitors away: questions on which it was not.
TEST(Plan, AFilterFindsNothingFaster) {
  for (const auto& [question, filter] : std::vector<std::pair<std::string, std::string>>{
           {"--model qwen3-30b-a3b --cluster dgx-h100 --nodes 1 --global-batch 48 --seq 4096",
            "--require schedule=1f1b"},
           {"--model qwen3-30b-a3b --cluster dgx-h100 --nodes 2 --global-batch 96 --seq 8192",
            "--require schedule=1f1b"},
           {"--model mixtral-8x7b --cluster dgx-a100 --nodes 4 --global-batch 128 --seq 4096 "
            "--schedules all",
            "--require schedule=zb-v"}}) {
    std::string plain = "plan --json ";
    plain += question;
    const auto step = [](const std::string& command) {
      return Parsed(RunCommand(command))["simulated_step_time_s"].get<double>();
    };
    std::string filtered = plain;
    filtered.append(" ").append(filter);
    EXPECT_LE(step(plain), (1 + 1e-9) * step(filtered)) << question;
  }
}

// Nor does more memory cost, where a plan with layers of its own is the best: found among those
// that nearly fit with less, and among those that fit with more.
TEST(Plan, MoreMemoryNeverCosts) {
  double before = std::numeric_limits<double>::infinity();
  for (const char* more : {"0%", "5%", "20%", "50%"}) {
    std::string command =
        "plan --json --no-simulate --model qwen3-30b-a3b --cluster dgx-a100 --nodes 2 "
        "--global-batch 48 --seq 4096 --schedules all --what-if hbm=+";
    command += more;
    const double step = Parsed(RunCommand(command))["step_time_s"].get<double>();
    EXPECT_LE(step, (1 + 1e-9) * before) << more;
    before = step;
  }
}

TEST(Plan, NoSimulationRanksByTheEstimate) {
  const std::string flags = "plan --no-simulate" + std::string(kMoe);
  const Json json = Parsed(RunCommand(flags + " --json"));
  EXPECT_EQ(json["simulation"]["simulated"], 0);
  EXPECT_EQ(json["simulated_step_time_s"], nullptr);
  EXPECT_EQ(json["estimate_error"], nullptr);
  const Json& plans = json["plans"];
  ASSERT_EQ(plans.size(), 10U);
  for (std::size_t i = 1; i < plans.size(); ++i) {
    EXPECT_LE(plans[i - 1]["step_time_s"], plans[i]["step_time_s"]);
  }
  EXPECT_EQ(json["pareto"][0]["plan"], plans[0]["plan"]);
  EXPECT_THAT(RunCommand(flags).out, testing::Not(HasSubstr("imulated")));
}

TEST(Plan, ParetoFrontTradesTimeForMemory) {
  const Json json = Parsed(RunCommand("plan --json" + std::string(kSmall)));
  const Json& front = json["pareto"];
  ASSERT_GT(front.size(), 1U);
  // Both by the estimate.
  EXPECT_LE(front[0]["step_time_s"], json["plans"][0]["step_time_s"]);
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_GT(front[i]["step_time_s"].get<double>(), front[i - 1]["step_time_s"].get<double>());
    EXPECT_LT(front[i]["memory"]["peak_bytes"].get<double>(),
              front[i - 1]["memory"]["peak_bytes"].get<double>());
  }
}

TEST(Plan, SameBytesForAnyNumberOfThreads) {
  for (const char* question : {kSmall, kMoe}) {
    Json first;
    for (const char* threads : {"1", "2", "2"}) {
      Json json = Parsed(RunCommand("plan --json --threads " + std::string(threads) + question));
      json.erase("timing");
      if (first.is_null()) first = json;
      EXPECT_EQ(json.dump(), first.dump());
    }
    EXPECT_EQ(RunCommand("plan --threads 1" + std::string(question)).out,
              RunCommand("plan --threads 2" + std::string(question)).out);
  }
}

TEST_F(PlanFile, OutIsReadBackByEstimate) {
  for (const char* question : {kSmall, kMoe}) {
    const Outcome plan = RunCommand("plan --json --out job.json" + std::string(question));
    ASSERT_EQ(plan.code, 0);
    const Outcome estimate = RunCommand("estimate --json job.json");
    ASSERT_EQ(estimate.code, 0) << estimate.err;
    const Json best = Parsed(plan)["plans"][0];
    Json again = Parsed(estimate);
    again.erase("question");
    again.erase("warnings");
    Json estimated = best;
    for (const char* key :
         {"simulated_step_time_s", "simulated_peak_bytes", "simulated_fits", "estimate_error"}) {
      EXPECT_EQ(estimated.erase(key), 1U) << key;
    }
    EXPECT_EQ(again.dump(), estimated.dump());
    // What simulate makes of it is what plan ranked it by.
    const Json simulated = Parsed(RunCommand("simulate --json job.json"));
    const auto ratio = [&](const char* simulated_as, const char* planned_as) {
      return simulated[simulated_as].get<double>() / best[planned_as].get<double>();
    };
    EXPECT_NEAR(ratio("step_time_s", "simulated_step_time_s"), 1, 1e-11);
    EXPECT_NEAR(ratio("peak_bytes", "simulated_peak_bytes"), 1, 1e-11);
    EXPECT_NEAR(best["estimate_error"].get<double>(),
                best["step_time_s"].get<double>() / simulated["step_time_s"].get<double>() - 1,
                1e-12);
    // And by plan, which finds the same.
    EXPECT_EQ(Parsed(RunCommand("plan --json job.json"))["plans"][0].dump(), best.dump());
  }
}

TEST_F(PlanFile, FlagsOverrideTheJobFile) {
  ASSERT_EQ(RunCommand("plan --out job.json" + std::string(kSmall)).code, 0);
  const Json json = Parsed(RunCommand("plan --json --seq 8192 --nodes 4 job.json"));
  EXPECT_EQ(json["question"]["training"]["seq_length"], 8192);
  EXPECT_EQ(json["question"]["training"]["global_batch_size"], 64);
  EXPECT_EQ(json["question"]["cluster"]["gpus"], 32);
}

TEST(Plan, RequireAndForbid) {
  const Json json = Parsed(
      RunCommand("plan --json --top 50 --require tp=2|4,pp=2 --forbid recompute=full,zero=3" +
                 std::string(kSmall)));
  ASSERT_GT(json["plans"].size(), 1U);
  for (const Json& one : json["plans"]) {
    EXPECT_TRUE(one["plan"]["tp"] == 2 || one["plan"]["tp"] == 4);
    EXPECT_EQ(one["plan"]["pp"], 2);
    EXPECT_NE(one["plan"]["zero"], 3);
    EXPECT_FALSE(one["plan"]["recompute"].get<std::string>().starts_with("full"));
  }
  EXPECT_EQ(json["question"]["require"][0], "tp=2|4,pp=2");
}

TEST(Plan, MemoryMarginIsKept) {
  // 81,559 MiB x 2^20 x (1 - 0.25)
  const Json json = Parsed(RunCommand("plan --json --memory-margin 25%" + std::string(kSmall)));
  EXPECT_DOUBLE_EQ(json["memory_limit_bytes"].get<double>(), 0.75 * 81559 * 1048576);
  EXPECT_LE(json["plans"][0]["memory"]["peak_bytes"].get<double>(), 0.75 * 81559 * 1048576);
  Json share = Parsed(RunCommand("plan --json --memory-margin 0.25" + std::string(kSmall)));
  EXPECT_EQ(share["plans"], json["plans"]);
}

TEST(Plan, NothingFits) {
  const Outcome outcome = RunCommand("plan" + std::string(kImpossible));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("No plan fits gpt3-175b on 8 GPUs. The one that needs least "
                                      "memory is tp8 "));
  EXPECT_THAT(outcome.out, HasSubstr("\nWhat would make it fit\n"));
  EXPECT_THAT(outcome.out, HasSubstr(" nodes instead of 1"));
  EXPECT_THAT(outcome.out, HasSubstr("most of it is optimizer state ("));

  const Json json = Parsed(RunCommand("plan --json" + std::string(kImpossible)));
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["plans"].size(), 0U);
  EXPECT_EQ(json["nearest_miss"]["fits"], false);
  EXPECT_EQ(json["nearest_miss"]["memory"]["largest_item"], "optimizer");
  EXPECT_GT(json["nearest_miss"]["memory"]["peak_bytes"].get<double>(),
            json["memory_limit_bytes"].get<double>());
  EXPECT_GE(json["remedies"].size(), 1U);

  // Every plan that was costed is too large by some item, and the nearest of all by its own.
  std::int64_t count = 0;
  Json nearest;
  for (const Json& item : json["out_of_memory"]) {
    count += item["count"].get<std::int64_t>();
    if (item["least_over_bytes"].is_null()) continue;
    if (nearest.is_null() || item["least_over_bytes"] < nearest["least_over_bytes"]) nearest = item;
  }
  EXPECT_EQ(count, json["rejected"]["out_of_memory"]);
  EXPECT_EQ(nearest["item"], "optimizer");
  EXPECT_EQ(nearest["plan"], json["nearest_miss"]["plan"]);
  EXPECT_EQ(nearest["stage"], json["nearest_miss"]["memory"]["peak_stage"]);
  EXPECT_NEAR(nearest["least_over_bytes"].get<double>(),
              json["nearest_miss"]["memory"]["peak_bytes"].get<double>() -
                  json["memory_limit_bytes"].get<double>(),
              1);
}

TEST(Plan, ReasonsAreText) {
  const auto reason = [](const std::string& flags) {
    return Parsed(RunCommand("plan --json " + flags + kSmall))["reason"];
  };
  EXPECT_EQ(reason(""), nullptr);
  EXPECT_EQ(reason("--forbid tp=1|2|4|8|16"),
            "--forbid tp=1|2|4|8|16 leaves no tp that divides the 16 GPUs");
  EXPECT_EQ(reason("--require tp=81"), "tp 81 is more than the 16 GPUs");
  EXPECT_EQ(reason("--require tp=2,tp=4"),
            "--require tp=2 and --require tp=4 conflict: no tp is left");
  EXPECT_EQ(reason("--require tp=2 --forbid tp=2"),
            "--require tp=2 and --forbid tp=2 conflict: no tp is left");
  const Json impossible = Parsed(RunCommand("plan --json" + std::string(kImpossible)));
  EXPECT_THAT(impossible["reason"].get<std::string>(),
              StartsWith("the plan that needs least memory is tp8 "));
  const Json explain =
      Parsed(RunCommand("plan --json --explain tp=1,pp=1,zero=0" + std::string(kSmall)))["explain"];
  EXPECT_THAT(explain["reason"].get<std::string>(),
              StartsWith("the plan that needs least memory is tp1 "));
}

TEST(Plan, ThreadsThatWereUsed) {
  EXPECT_EQ(
      Parsed(RunCommand("plan --json --threads 3" + std::string(kSmall)))["timing"]["threads"], 3);
  EXPECT_GE(Parsed(RunCommand("plan --json" + std::string(kSmall)))["timing"]["threads"], 1);
}

TEST_F(PlanFile, OutKeepsTheLimitsOfTheSearch) {
  const Outcome first = RunCommand(
      "plan --json --require tp=2|4 --forbid zero=3 --memory-margin 10% "
      "--out job.json" +
      std::string(kSmall));
  ASSERT_EQ(first.code, 0);
  Json again = Parsed(RunCommand("plan --json job.json"));
  Json expected = Parsed(first);
  for (Json* json : {&again, &expected}) json->erase("timing");
  EXPECT_EQ(again.dump(), expected.dump());
  // Flags take the place of the file's, each of its own.
  const Json other = Parsed(RunCommand("plan --json --require tp=8 job.json"))["question"];
  EXPECT_EQ(other["require"], Json::array({"tp=8"}));
  EXPECT_EQ(other["forbid"], Json::array({"zero=3"}));
  EXPECT_EQ(other["memory_margin"], 0.1);
  EXPECT_EQ(Parsed(RunCommand("plan --json --forbid tp=2|4 job.json"))["reason"],
            "--forbid tp=2|4 and the job file's require tp=2|4 conflict: no tp is left");
}

TEST(Plan, AnswersThoughItsFileCannotBeWritten) {
  const Outcome outcome = RunCommand("plan --out /dev/full" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, StartsWith("Best: tp"));
  EXPECT_EQ(outcome.err,
            "millwright: --out: /dev/full: cannot be written: No space left on device\n");
}

TEST(Plan, GpusWithoutMeasurements) {
  const std::string rest = " --model llama-3.1-8b --global-batch 64 --seq 4096 --cluster ";
  EXPECT_THAT(RunCommand("plan" + rest + "mi300x").out,
              HasSubstr("\nEfficiency  H100's fractions of the datasheet: no measurements for "
                        "MI300X\n"));
  EXPECT_THAT(RunCommand("plan" + rest + "dgx-h200").out, testing::Not(HasSubstr("\nEfficiency ")));
  const auto calibration = [&](const std::string& cluster) {
    return Parsed(RunCommand("plan --json" + rest + cluster))["question"]["calibration"];
  };
  EXPECT_EQ(calibration("mi300x")["name"], "generic");
  EXPECT_EQ(calibration("mi300x")["measured"], false);
  EXPECT_EQ(calibration("mi300x")["source"], "no measurements: H100's fractions of the datasheet");
  EXPECT_EQ(calibration("dgx-h200")["name"], "H100");
  EXPECT_EQ(calibration("dgx-h200")["measured"], true);
}

TEST(Plan, LayersOfEachStage) {
  const std::string question =
      " --require pp=3,tp=1 --gpus 3 --model llama-3.1-8b --cluster dgx-h100 --global-batch 66 "
      "--seq 4096 --require vpp=1";
  // 32 layers over 3 stages; which has 10 is the stages' business, that they add up is not.
  const Json layers =
      Parsed(RunCommand("plan --json" + question))["plans"][0]["plan"]["layers_per_stage"];
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[0].get<int>() + layers[1].get<int>() + layers[2].get<int>(), 32);
  EXPECT_THAT(RunCommand("plan" + question).out, HasSubstr(" (uneven)\n"));
}

TEST_F(PlanFile, NothingIsWrittenWhereNothingFits) {
  const Outcome outcome = RunCommand("plan --out job.json" + std::string(kImpossible));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "millwright: no plan, so job.json is not written\n");
  EXPECT_EQ(Files(), 0);
}

TEST(Plan, PrecisionThatTheGpuLacks) {
  const Outcome outcome = RunCommand("plan --precision nvfp4" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, StartsWith("No plan: H100-SXM has no nvfp4.\n"));
  const Json json = Parsed(RunCommand("plan --json --precision nvfp4" + std::string(kSmall)));
  EXPECT_EQ(json["rejected"]["precision"], 1);
  EXPECT_EQ(json["reason"], "H100-SXM has no nvfp4");
}

TEST(Plan, PartOfANode) {
  const Json json = Parsed(RunCommand(
      "plan --json --model llama-3.1-8b --cluster dgx-h100 --gpus 4 --global-batch 8 --seq 4096"));
  EXPECT_EQ(json["question"]["cluster"]["nodes"], 1);
  EXPECT_EQ(json["question"]["cluster"]["gpus"], 4);
  EXPECT_EQ(json["fits"], true);
}

TEST(Plan, OneGpuIsSingular) {
  const Outcome outcome = RunCommand(
      "plan --model llama-3.1-8b --cluster dgx-h100 --gpus 1 --global-batch 8 --seq 4096");
  EXPECT_THAT(outcome.out, StartsWith("No plan fits llama-3.1-8b on 1 GPU. "));
  EXPECT_THAT(outcome.out,
              HasSubstr("\nCluster     1 node of dgx-h100, 1 GPU (H100-SXM, 79.6 GiB)\n"));
}

TEST(Plan, ShapeByFlags) {
  // 12 layers of 12 x 768^2 + 13 x 768, tables of (50,304 + 2,048) x 768, a final LayerNorm of
  // 2 x 768; the head is the embedding.
  const Json json = Parsed(
      RunCommand("plan --json --layers 12 --hidden 768 --heads 12 --vocab 50304 --cluster dgx-a100 "
                 "--global-batch 8 --seq 1024"));
  EXPECT_EQ(json["question"]["model"]["parameters"]["total"],
            12 * (12 * 768 * 768 + 13 * 768) + (50'304 + 2'048) * 768 + 2 * 768);
}

TEST(Explain, ComparesWithTheWinner) {
  const Outcome outcome = RunCommand("plan --explain tp=8,pp=2" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("tp=8,pp=2: tp8 sp pp2 "));
  EXPECT_THAT(outcome.out, HasSubstr("it loses "));
  const Json json = Parsed(RunCommand("plan --json --explain tp=8,pp=2" + std::string(kSmall)));
  const Json& explain = json["explain"];
  EXPECT_EQ(explain["estimate"]["plan"]["tp"], 8);
  EXPECT_EQ(explain["estimate"]["plan"]["pp"], 2);
  // Item by item, what is lost adds up to the difference of the steps.
  double lost = 0;
  for (const auto& [item, seconds] : explain["lost_to_best_s"].items()) {
    if (item != "total") lost += seconds.get<double>();
  }
  const double difference = explain["estimate"]["step_time_s"].get<double>() -
                            json["plans"][0]["step_time_s"].get<double>();
  EXPECT_NEAR(lost, difference, 1e-9);
  EXPECT_GT(difference, 0);
}

TEST(Explain, TheWinnerItself) {
  const Json plan = Parsed(RunCommand("plan --json" + std::string(kSmall)))["plans"][0]["plan"];
  const std::string asked = "tp=" + plan["tp"].dump() + ",pp=" + plan["pp"].dump();
  const Outcome outcome = RunCommand("plan --explain " + asked + kSmall);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith(asked + ": includes the best plan, tp"));
}

TEST(Explain, PlansThatCannotBe) {
  const auto first_line = [](const std::string& asked) {
    const Outcome outcome = RunCommand("plan --explain " + asked + kSmall);
    EXPECT_EQ(outcome.code, 1);
    return outcome.out.substr(0, outcome.out.find('\n'));
  };
  EXPECT_EQ(first_line("tp=3"), "tp=3: no plan: tp 3 does not divide the 16 GPUs.");
  EXPECT_EQ(first_line("tp=81"), "tp=81: no plan: tp 81 is more than the 16 GPUs.");
  EXPECT_EQ(
      first_line("schedule=interleaved,vpp=1"),
      "schedule=interleaved,vpp=1: no plan: the interleaved schedule does not go with vpp 1.");
  EXPECT_EQ(first_line("tp=4 --require tp=2"),
            "tp=4: no plan: --require tp=2 and --explain tp=4 conflict: no tp is left.");
  EXPECT_EQ(first_line("ep=8"), "ep=8: no plan: llama-3.1-8b has no experts for ep 8 and etp 1.");
  EXPECT_EQ(first_line("pp=16,vpp=4"),
            "pp=16,vpp=4: no plan: 32 layers are fewer than pp 16 x vpp 4 stages.");
  EXPECT_EQ(first_line("tp=2,dp=8,micro_batch=16"),
            "tp=2,dp=8,micro_batch=16: no plan: global batch 64 is not divisible by dp 8 x "
            "micro-batch 16.");
}

TEST(Explain, ZeroOverOneRankIsStillAPlan) {
  const Outcome outcome =
      RunCommand("plan --explain tp=8,pp=2,dp=1,zero=1,vpp=1" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(
      outcome.out,
      StartsWith("tp=8,pp=2,dp=1,zero=1,vpp=1: tp8 pp2 layers(17,15) dp1 mbs4 zero1 at best, "));
}

TEST(Explain, PlanThatDoesNotFit) {
  // 18 bytes x 8.03e9 parameters unsharded are 134.6 GiB of state alone.
  const Outcome outcome = RunCommand("plan --explain tp=1,pp=1,zero=0" + std::string(kSmall));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, StartsWith("tp=1,pp=1,zero=0: does not fit; the plan that needs least "
                                      "memory is tp1 "));
  EXPECT_THAT(outcome.out, HasSubstr("optimizer state"));
}

TEST_F(PlanFile, PageHoldsTheAnswer) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  for (const char* question : {kSmall, kMoe, kImpossible}) {
    const Outcome outcome = RunCommand(std::string("plan --json --html plan.html") + question);
    EXPECT_THAT(outcome.err, HasSubstr("millwright: wrote plan.html, "));
    const std::string page = Read("plan.html"), begin = "id=\"data\">";
    const std::size_t from = page.find(begin) + begin.size();
    const Json data = Json::parse(page.substr(from, page.find("</script>", from) - from));
    Json answer = Json::parse(outcome.out);
    answer.erase("timing");
    EXPECT_EQ(data["answer"], answer);
    EXPECT_EQ(data["names"].size(), answer["plans"].size());
    EXPECT_EQ(data["pareto_names"].size(), answer["pareto"].size());
    EXPECT_EQ(data["rejected"].size(), answer["rejected"].size());
    EXPECT_EQ(data["command"], std::string("./mw plan --json --html plan.html") + question);
    EXPECT_EQ(data["timeline"].is_null(), answer["plans"].empty());
    if (answer["plans"].empty()) continue;
    // Its step is the one that the plan is ranked by.
    EXPECT_NEAR(data["timeline"]["step"]["length"].get<double>() / 1e9,
                answer["plans"][0]["simulated_step_time_s"].get<double>(), 1e-9);
    for (const Json& plan : answer["plans"]) {
      // What the FLOPs take at the peak: the MFU's share of the step, and no more than computing.
      const double ideal = plan["ideal_time_s"];
      EXPECT_NEAR(ideal / plan["step_time_s"].get<double>(), plan["mfu"].get<double>(), 1e-12);
      EXPECT_LE(ideal, plan["time"]["compute"].get<double>());
    }
    RunCommand(std::string("plan --html plan.html --json") + question);
    Json again = data;
    again["command"] = std::string("./mw plan --html plan.html --json") + question;
    const std::string second = Read("plan.html");
    EXPECT_EQ(Json::parse(second.substr(from, second.find("</script>", from) - from)), again);
  }
}

TEST_F(PlanFile, CommandOfThePageIsAsAShellTakesIt) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  std::vector<std::string> args = Words(std::string("plan --out it's.json") + kSmall);
  args.insert(args.end(), {"--html", "a b.html"});
  ASSERT_EQ(RunCommand(args).code, 0);
  EXPECT_THAT(Read("a b.html"), HasSubstr("./mw plan --out 'it'\\\\''s.json'" +
                                          std::string(kSmall) + " --html 'a b.html'"));
}

TEST_F(PlanFile, PageThatCannotBeWritten) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  EXPECT_EQ(RunCommand("plan --html missing/plan.html" + std::string(kSmall)).err,
            "millwright: missing/plan.html: cannot be written: No such file or directory\n");
  EXPECT_EQ(RunCommand("plan --html a --out a" + std::string(kSmall)).err,
            "millwright: --html: is the file of --out\n");
  EXPECT_EQ(Files(), 0);
}

}  // namespace
}  // namespace millwright
