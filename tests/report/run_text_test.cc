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

// Two operators of two layers and two micro-batches: four runs each, 400 us of the first together
// and so 100 us a run, where 90 are predicted.
RunAnswer Answer() {
  RunAnswer answer{.job = {.model = TinyModel(), .cluster = FindCluster("dgx-h100")},
                   .options = {.type = ElementType::kBf16},
                   .backend = RunBackend::kCuda};
  answer.outcome = {
      .losses = {7.5},
      .seconds = {Seconds(0.25)},
      .ranks =
          {{.rank = 0, .sent = 0, .peak = 3'000'000, .busy = Seconds(0.2), .step = Seconds(0.25)}},
      .operators = {{.name = "qkv",
                     .forward_runs = 4,
                     .backward_runs = 4,
                     .forward = Seconds(400e-6),
                     .backward = Seconds(800e-6)},
                    {.name = "ring kv exchange", .forward_runs = 4, .forward = Seconds(20e-6)}}};
  answer.predicted = {{.name = "qkv", .forward = Seconds(90e-6), .backward = Seconds(220e-6)}};
  return answer;
}

TEST(RunText, OperatorsBesideTheirPredictions) {
  const std::string text = RunText(Answer(), {});
  EXPECT_THAT(text, testing::StartsWith(
                        "Executed tp1 cp1 pp1 vpp1 dp1 mbs1 zero1 under 1f1b on 1 rank (CUDA) in "
                        "bf16: 1 step, loss 7.500000,\n250 ms a step. Not verified (--verify).\n"));
  EXPECT_THAT(text, testing::EndsWith(R"(
Rank  sent  tensors, peak  in operators    step
   0   0 B        3.00 MB        200 ms  250 ms

Operator of rank 0, mean of the last step  forward  predicted   off  backward  predicted   off
qkv                                         100 us    90.0 us  -10%    200 us     220 us  +10%
ring kv exchange                           5.00 us
)"));
}

TEST(RunText, OperatorsAreLeftOutWhereNothingIsPredicted) {
  RunAnswer answer = Answer();
  answer.predicted.clear();
  EXPECT_THAT(RunText(answer, {}), testing::Not(testing::HasSubstr("Operator of rank 0")));
}

TEST(RunText, JsonHasBothUnderTiming) {
  const auto json = nlohmann::json::parse(RunJson(Answer()));
  EXPECT_EQ(json["backend"], "cuda");
  EXPECT_EQ(json["ranks"][0]["peak_bytes"], 3'000'000);
  const auto& operators = json["timing"]["operators"];
  ASSERT_EQ(operators.size(), 2U);
  EXPECT_EQ(operators[0]["forward_s"], 400e-6);
  EXPECT_EQ(operators[0]["predicted_backward_s"], 220e-6);
  EXPECT_FALSE(operators[1].contains("predicted_forward_s"));
}

}  // namespace
}  // namespace millwright
