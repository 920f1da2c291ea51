// SPDX-License-Identifier: Apache-2.0
#include "report/run_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/json.h"
#include "tests/runtime/tiny_workload.h"
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

RunAnswer Answer() {
  RunAnswer answer{.job = {.model = TinyModel(), .cluster = FindCluster("dgx-h100")},
                   .options = {.type = ElementType::kBf16},
                   .backend = RunBackend::kCuda};
  answer.outcome = {.losses = {7.5},
                    .seconds = {Seconds(0.25)},
                    .ranks = {{.rank = 0,
                               .sent = 0,
                               .peak = 3'000'000,
                               .resident = 90'000'000,
                               .busy = Seconds(0.2),
                               .step = Seconds(0.25)}}};
  answer.compared = ExecutedComparison{
      .operators = {{.name = "qkv",
                     .backward = true,
                     .calls = 4,
                     .predicted = Seconds(880e-6),
                     .measured = Seconds(800e-6)},
                    {.name = "launch gaps", .predicted = Seconds(30e-6)}},
      .streams = {{.name = "compute", .predicted = Seconds(0.18), .measured = Seconds(0.2)},
                  {.name = "waiting, and the rest",
                   .predicted = Seconds(0.02),
                   .measured = Seconds(0.05)}},
      .predicted = Seconds(0.2),
      .measured = Seconds(0.25)};
  return answer;
}

// 880 us over 800 are a tenth more, 200 ms over 250 a fifth less.
TEST(RunText, BesideTheSimulatedStep) {
  const std::string text = RunText(Answer(), {});
  EXPECT_THAT(text, testing::StartsWith(
                        "Executed tp1 cp1 pp1 vpp1 dp1 mbs1 zero1 under 1f1b on 1 rank (CUDA) in "
                        "bf16: 1 step, loss 7.500000,\n250 ms a step. Not verified (--verify).\n"));
  EXPECT_THAT(text, testing::EndsWith(R"(
Rank  sent  tensors, peak  process, peak  in operators    step
   0   0 B        3.00 MB        90.0 MB        200 ms  250 ms

Simulated 200 ms, executed 250 ms: -20.0%.

Stream, mean of the ranks  predicted  measured   error
compute                       180 ms    200 ms  -10.0%
waiting, and the rest        20.0 ms   50.0 ms  -60.0%
step                          200 ms    250 ms  -20.0%

Operator, all ranks            calls  predicted  measured         error
qkv                  backward      4     880 us    800 us        +10.0%
launch gaps          forward       0    30.0 us      0 ns  not executed
)"));
}

TEST(RunText, TimesOnAProcessorStandBeside) {
  RunAnswer answer = Answer();
  answer.compared->processor = Seconds(0.16);
  answer.compared->streams[0].processor = Seconds(0.15);
  EXPECT_THAT(RunText(answer, {}), testing::HasSubstr(R"(
Simulated 200 ms, executed 250 ms: -20.0%. A rank had a processor for 160 ms of it: +25.0%.

Stream, mean of the ranks  predicted  measured   error  processor
compute                       180 ms    200 ms  -10.0%     150 ms
)"));
  answer.compared.reset();
  EXPECT_THAT(RunText(answer, {}), testing::Not(testing::HasSubstr("Simulated")));
}

TEST(RunText, WhoseAttentionItWas) {
  RunAnswer answer = Answer();
  EXPECT_FALSE(nlohmann::json::parse(RunJson(answer)).contains("attention_by"));
  answer.outcome.attention_by = "cuDNN 9.19.0";
  EXPECT_THAT(RunText(answer, {}),
              testing::HasSubstr("250 ms a step. Attention by cuDNN 9.19.0. Not verified"));
  EXPECT_EQ(nlohmann::json::parse(RunJson(answer))["attention_by"], "cuDNN 9.19.0");
}

TEST(RunText, JsonHasBothUnderTiming) {
  const auto json = nlohmann::json::parse(RunJson(Answer()));
  EXPECT_EQ(json["backend"], "cuda");
  EXPECT_EQ(json["ranks"][0]["peak_bytes"], 3'000'000);
  const auto& simulated = json["timing"]["simulated"];
  EXPECT_EQ(simulated["predicted_s"], 0.2);
  EXPECT_EQ(simulated["operators"][0]["measured_s"], 800e-6);
  EXPECT_EQ(simulated["streams"][1]["stream"], "waiting, and the rest");
}

}  // namespace
}  // namespace millwright
