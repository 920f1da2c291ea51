// SPDX-License-Identifier: Apache-2.0
#include "report/plan_text.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"
#include "report/estimate_text.h"

namespace millwright {
namespace {

constexpr double kGiB = 1073741824.0;

Estimate Example() {
  Estimate e;
  e.plan = {.tensor = 4, .sequence_parallel = true, .pipeline = 2, .data = 16};
  e.time[TimeItem::kCompute] = Seconds(8);
  e.time[TimeItem::kTensor] = Seconds(1.5);
  e.time[TimeItem::kBubble] = Seconds(0.5);
  e.step = e.time.total();
  e.memory.resize(2);
  e.memory[1].stage = 1;
  e.memory[0][MemoryItem::kWeights] = Bytes(10 * kGiB);
  e.memory[0][MemoryItem::kOptimizer] = Bytes(60 * kGiB);
  e.memory[1][MemoryItem::kWeights] = Bytes(10 * kGiB);
  e.peak = e.memory[0].total();
  e.capacity = Bytes(80 * kGiB);
  e.micro_batches = 8;
  e.tokens_per_second_per_gpu = 1103.4;
  e.model_flops_per_gpu = FlopsPerSecond(496e12);
  e.mfu = 0.501;
  e.hfu = 0.55;
  return e;
}

TEST(EstimateText, Sentences) {
  const Estimate e = Example();
  EXPECT_EQ(BriefName(e.plan), "tp4 sp pp2 dp16 mbs1 zero1");
  EXPECT_EQ(ResultSentence(e), "10.0 s a step, 1,103 tokens/s/GPU, 50.1% MFU, 70.0 of 80.0 GiB");
  GpuSpec gpu;
  gpu.name = "G";
  // 70 - 64 = 6; the optimizer has 60 of the 70.
  EXPECT_EQ(MissSentence(e, Bytes(64 * kGiB), gpu),
            "stage 0 needs 70.0 GiB, 6.0 GiB more than the 64.0 GiB that the margin leaves of G's "
            "80.0 GiB; most of it is optimizer state (60.0 GiB)");
}

TEST(EstimateText, TimeByItem) {
  EXPECT_EQ(
      TimeText(Example(), {}),
      "Time of a step, slowest stage 0          10.0 s  share\n"
      "  compute                                8.00 s  80.0%  ################################\n"
      "    of it the model's FLOPs at the peak  5.01 s  50.1%  ####################\n"
      "  tensor-parallel communication          1.50 s  15.0%  ######\n"
      "  pipeline bubble                        500 ms   5.0%  ##\n");
  Estimate one = Example();
  one.memory.resize(1);
  one.time = {};
  one.time[TimeItem::kRecompute] = one.step = Seconds(2);
  // 70 columns leave 10 to a bar.
  EXPECT_EQ(TimeText(one, {.width = 70}),
            "Time of a step                        2.00 s   share\n"
            "  recompute (with its communication)  2.00 s  100.0%  ##########\n");
}

TEST(EstimateText, LayersOfEachStage) {
  EXPECT_EQ(LayersText({20}), "20");
  EXPECT_EQ(LayersText({20, 20, 20, 20}), "20");
  std::vector<int> uneven(16, 8);
  uneven.front() = uneven.back() = 7;
  EXPECT_EQ(LayersText(uneven), "7,14x8,7 (uneven)");
  // 126 layers over 16 stages.
  EXPECT_EQ(LayersPerStage(PresetModel("llama-3.1-405b"), {.pipeline = 16}), uneven);
}

TEST(EstimateText, EqualStagesShareALine) {
  Estimate e = Example();
  e.memory.push_back(e.memory[1]);
  e.memory[2].stage = 2;
  EXPECT_EQ(
      MemoryText(e, {}),
      "Memory of the fullest stage, 0  70.0 GiB  of peak\n"
      "  weights                       10.0 GiB    14.3%  ######\n"
      "  optimizer state               60.0 GiB    85.7%  ##################################\n"
      "\n"
      "Stage, GiB  weights  gradients  optimizer  activations  working set  other  total  "
      "free\n"
      "  0            10.0        0.0       60.0          0.0          0.0    0.0   70.0  "
      "10.0\n"
      "  1-2          10.0        0.0        0.0          0.0          0.0    0.0   10.0  "
      "70.0\n");
}

TEST(PlanText, TableLeavesOutWhatAllShare) {
  Estimate second = Example();
  second.plan.context = 2;
  second.plan.context_kind = ContextParallelKind::kUlysses;
  second.plan.data = 8;
  second.plan.recompute = {.granularity = RecomputeGranularity::kSelective,
                           .modules = {RecomputeModule::kMlp, RecomputeModule::kLayerNorm}};
  second.step = Seconds(11);
  EXPECT_EQ(PlanTable({{.estimate = Example()}, {.estimate = second}}, {}),
            "# tp sp cp pp dp mbs zero  slower  estimate  tok/s/GPU  TFLOP/s    MFU    HFU   GiB  "
            "recompute\n"
            "1  4 on  1  2 16   1    1            10.0 s      1,103      496  50.1%  55.0%  70.0  "
            "none\n"
            "2  4 on 2u  2  8   1    1  +10.0%    11.0 s      1,103      496  50.1%  55.0%  70.0  "
            "mlp,layernorm\n"
            "    (u: Ulysses; other context parallelism is ring)\n");
}

TEST(PlanText, TableHasNestedContext) {
  Estimate nested = Example();
  nested.plan.context = 16;
  nested.plan.context_kind = ContextParallelKind::kNested;
  nested.plan.context_ulysses = 4;
  const std::string table = PlanTable({{.estimate = Example()}, {.estimate = nested}}, {});
  EXPECT_NE(table.find("\n2  4 on 16u4  2 16 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n    (u: Ulysses; 16u8: a ring of Ulysses groups of 8; else a ring)\n"),
            std::string::npos)
      << table;
}

TEST(PlanText, TableMarksLayersThatAreNotEven) {
  Estimate second = Example();
  second.plan.stage_layers = {3, 5};
  EXPECT_EQ(PlanTable({{.estimate = Example()}, {.estimate = second}}, {}),
            "# tp sp pp dp mbs zero  slower  estimate  tok/s/GPU  TFLOP/s    MFU    HFU   GiB  "
            "layers\n"
            "1  4 on  2 16   1    1            10.0 s      1,103      496  50.1%  55.0%  70.0  -\n"
            "2  4 on  2 16   1    1    0.0%    10.0 s      1,103      496  50.1%  55.0%  70.0  "
            "3,5\n");
}

TEST(PlanText, TableRanksByTheSimulation) {
  // Estimate 10 s: 10/8 - 1 = 25%, 10/12.5 - 1 = -20%; 12.5/8 - 1 = 56.25%.
  // Speeds are the simulation's: 1,103 x 10/8 and x 10/12.5.
  const Contender first{.estimate = Example(), .simulated = SimulatedCost{Seconds(8), {}}};
  const Contender second{.estimate = Example(), .simulated = SimulatedCost{Seconds(12.5), {}}};
  EXPECT_EQ(
      PlanTable({first, second}, {}),
      "# tp sp pp dp mbs zero  simulated  slower  estimate     off  tok/s/GPU  TFLOP/s    "
      "MFU    HFU   GiB\n"
      "1  4 on  2 16   1    1     8.00 s            10.0 s  +25.0%      1,379      620  62.6%  "
      "68.8%  70.0\n"
      "2  4 on  2 16   1    1     12.5 s  +56.2%    10.0 s  -20.0%        883      397  40.1%  "
      "44.0%  70.0\n");
}

TEST(PlanText, SaysWhereEstimateAndSimulationDisagree) {
  PlanAnswer answer;
  EXPECT_EQ(SimulatedText(answer, {}), "");
  answer.result.memory_limit = Bytes(76 * kGiB);
  // 77.5 - 76 = 1.5
  answer.contenders = {.plans = {{.estimate = Example()}},
                       .left_out = {{.estimate = Example(),
                                     .simulated = SimulatedCost{Seconds(9), Bytes(77.5 * kGiB)}}},
                       .simulated = 5,
                       .too_large = 2,
                       .median_difference = 0.01,
                       .largest_difference = 0.034};
  EXPECT_EQ(
      SimulatedText(answer, {}),
      "  Ranked by simulated step, of the 5 fastest by the estimate; it is 1.0% off at the "
      "median and 3.4%\n  at most.\n"
      "  2 of 7 have no simulated step and keep their estimate: a step of theirs is over 4.00 M "
      "tasks\n  (simulate takes it).\n"
      "  Left out: tp4 sp pp2 dp16 mbs1 zero1 would take 9.00 s, and fits by the estimate, but "
      "the\n  simulation holds 77.5 GiB, 1.5 GiB too much.\n");
  answer.contenders = {.plans = {{.estimate = Example()}}, .too_large = 1};
  EXPECT_EQ(SimulatedText(answer, {}),
            "  1 of 1 have no simulated step and keep their estimate: a step of theirs is over "
            "4.00 M tasks\n  (simulate takes it).\n");
  answer.contenders = {.plans = {{.estimate = Example(),
                                  .simulated = SimulatedCost{Seconds(9), Bytes(77.5 * kGiB)}}},
                       .none_fits_simulated = true,
                       .simulated = 1,
                       .largest_difference = 0.034};
  EXPECT_EQ(
      SimulatedText(answer, {}),
      "  The estimate is 3.4% off the simulation.\n"
      "  By the simulation none leaves the margin free: the best holds 77.5 GiB of 76.0 GiB.\n");
}

TEST(PlanText, LossWhereTheEstimateSaysOtherwise) {
  // Estimates 10 and 10.5, simulated 12 and 11.
  Contender plan{.estimate = Example(), .simulated = SimulatedCost{Seconds(12), {}}};
  Contender best{.estimate = Example(), .simulated = SimulatedCost{Seconds(11), {}}};
  best.estimate.step = Seconds(10.5);
  EXPECT_EQ(LossSentence(plan, best),
            "by the estimate it gains 500 ms on the best plan, by the simulation it loses 1.00 s");
}

TEST(PlanText, LossNamesItsCauses) {
  Estimate plan = Example();
  plan.time[TimeItem::kCompute] = Seconds(7.5);    // gains 0.5
  plan.time[TimeItem::kExpert] = Seconds(2);       // loses 2
  plan.time[TimeItem::kRecompute] = Seconds(0.5);  // loses 0.5
  plan.step = plan.time.total();                   // 12
  EXPECT_EQ(LossSentence({.estimate = plan}, {.estimate = Example()}),
            "it loses 2.00 s (20.0%) to the best plan: 2.00 s in expert-parallel communication "
            "(and gains 500 ms in compute)");
}

TEST(PlanText, RejectionsLargestFirst) {
  SearchResult result;
  result.searched = 1234;
  result.rejected[static_cast<int>(RejectionReason::kHeads)] = 2;
  result.rejected[static_cast<int>(RejectionReason::kOutOfMemory)] = 1000;
  result.memory_limit = Bytes(64 * kGiB);
  // 65.5 - 64
  result.out_of_memory[static_cast<int>(MemoryItem::kOptimizer)] = {
      .count = 4,
      .nearest = RankedPlan{Example().plan, Seconds(10), Bytes(65.5 * kGiB)},
      .stage = 1};
  result.out_of_memory[static_cast<int>(MemoryItem::kActivations)].count = 996;
  EXPECT_EQ(RejectionText(result, {}),
            "1,234 plans costed; what was rejected\n"
            "  1,000  out of memory; most of the fullest stage is\n"
            "             996  activations\n"
            "               4  optimizer state (nearest: 1.5 GiB over on stage 1, tp4 sp pp2 dp16 "
            "mbs1 zero1)\n"
            "      2  attention heads not divisible by tp\n");
}

}  // namespace
}  // namespace millwright
