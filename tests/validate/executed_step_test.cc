// SPDX-License-Identifier: Apache-2.0
#include "validate/executed_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cost_models/layer_cost.h"
#include "cost_models/operators.h"
#include "runtime/communicator.h"
#include "tests/runtime/tiny_workload.h"
#include "tests/validate/made_up_curves.h"

namespace millwright {
namespace {

const ExecutedAs kHow = MadeUpAs();

// Simulates and executes it, and compares.
ExecutedComparison CompareOf(const Workload& workload) {
  const GpuCurves curves = MadeUpCurves();
  const ExecutedModel model = ExecutedModelOf(workload, curves, kHow, "cpu.json");
  const Estimator estimator(workload.model, model.training, model.cluster, model.calibration);
  const SimulatedStep simulated = SimulateStep(
      estimator, workload.parallel, StepSpecOf(estimator, workload.parallel, workload.schedule));
  RecordedStep recorded;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    RunOutcome outcome = RunSteps(workload, {.steps = 2, .record = true}, communicator);
    if (communicator.rank() == 0) recorded = std::move(outcome.recorded);
  });
  EXPECT_EQ(recorded.ranks.size(), std::size_t(workload.ranks()));
  EXPECT_EQ(recorded.number, 1);  // of two steps the first is not counted
  return CompareExecuted(estimator, workload, simulated, Measured(recorded));
}

// What is charged is executed and the other way round, and the sum over operators is that of the
// graph's streams, which planner/step_spec makes on its own.
void ExpectSums(const Workload& workload) {
  SCOPED_TRACE(fmt::format("{} {}", workload.schedule.name, workload.ranks()));
  const ExecutedComparison c = CompareOf(workload);
  Seconds operators, streams;
  for (const ComparedOperator& one : c.operators) {
    operators += one.predicted;
    if (one.name == "ring output merge" || one.name == "launch gaps") continue;
    if (one.predicted.value > 0) {
      EXPECT_GT(one.calls, 0) << one.name << one.backward;
      EXPECT_GT(one.measured.value, 0) << one.name << one.backward;
    }
  }
  ASSERT_EQ(c.streams.back().name, "waiting, and the rest");
  for (const ComparedStream& one : c.streams) {
    // The graph lets a reduction begin beside what is left of the last backward.
    EXPECT_GE(one.predicted / c.predicted, -0.05) << one.name;
    if (&one != &c.streams.back()) streams += one.predicted;
  }
  EXPECT_NEAR(operators / (double(workload.ranks()) * streams), 1, 1e-9);
}

// One rank does one thing after the other: its streams fill the step.
TEST(ExecutedStep, OneRankNeverWaits) {
  const ExecutedComparison c = CompareOf(TinyWorkload(TinyModel(), {.zero = 0}));
  EXPECT_NEAR(c.streams.back().predicted / c.predicted, 0, 1e-9);
  EXPECT_EQ(c.streams.front().name, "compute");
}

TEST(ExecutedStep, OperatorsAddUpToTheStreams) {
  ExpectSums(TinyWorkload(TinyModel(), {.zero = 0}));
  ExpectSums(TinyWorkload(TinyModel(), {.tensor = 2}));
  ExpectSums(TinyWorkload(TinyModel(), {.tensor = 2, .sequence_parallel = true}));
  ExpectSums(TinyWorkload(TinyModel(), {.context = 2}));
  ExpectSums(
      TinyWorkload(TinyModel(), {.context = 2, .context_kind = ContextParallelKind::kUlysses}));
  ExpectSums(TinyWorkload(
      TinyModel(),
      {.context = 4, .context_kind = ContextParallelKind::kNested, .context_ulysses = 2}));
  for (int zero : {0, 1, 2, 3}) ExpectSums(TinyWorkload(TinyModel(), {.data = 2, .zero = zero}));
  for (ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZbH1}) {
    ExpectSums(TinyWorkload(
        TinyModel(), {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .schedule = kind}));
  }
  ExpectSums(TinyWorkload(
      TinyModel(), {.recompute = {.granularity = RecomputeGranularity::kFull, .full_layers = 1}}));
  ExpectSums(
      TinyWorkload(TinyModel(), {.recompute = {.granularity = RecomputeGranularity::kSelective,
                                               .modules = {RecomputeModule::kMlp}}}));
}

// Experts, whose exchanges are as many as there are; a model like GPT-2, whose token table two
// stages have; norms of heads and windows.
TEST(ExecutedStep, OperatorsOfOtherLayersToo) {
  ExpectSums(TinyWorkload(TinyMoe(24), {.zero = 0}));
  ExpectSums(TinyWorkload(TinyMoe(), {.data = 2, .expert = 2}));
  ExpectSums(TinyWorkload(TinyMoe(24), {.tensor = 2,
                                        .sequence_parallel = true,
                                        .data = 2,
                                        .expert = 2,
                                        .expert_tensor = 2,
                                        .zero = 2}));
  ExpectSums(TinyWorkload(TinyGpt(), {.zero = 0}));
  ExpectSums(TinyWorkload(TinyGpt(), {.tensor = 2, .pipeline = 2, .zero = 0}));
  ModelConfig model = WithLayers(TinyModel(), 2);
  model.qk_layernorm = true;
  model.layers.back().kind.sliding_window = 4;
  ExpectSums(TinyWorkload(model, {.tensor = 2}));
}

TEST(ExecutedStep, QueriesKeysAndValuesAreThreeProducts) {
  const GpuCurves curves = MadeUpCurves();
  const ModelConfig model = TinyModel();  // 8 query heads, 2 of keys, 4 elements each
  const ExecutedCurves executed = ExecutedCurvesOf(curves, kHow, model);
  const GpuSpec gpu = WithRates(FindGpu("local-cpu"), curves.rates);
  const auto forward = [&](double outputs) {
    return TimeOf(*executed.forward, {.m = 16, .n = outputs, .k = 16}, gpu);
  };
  for (const int tensor : {1, 2, 4}) {
    // The second head of keys is the first's copy beyond two tensor ranks.
    const double heads = 8.0 / tensor, keys = std::max(1.0, 2.0 / tensor);
    const Operator qkv{
        .name = "qkv", .kind = OperatorKind::kGemm, .m = 16, .n = (heads + 2 * keys) * 4, .k = 16};
    EXPECT_NEAR(ExecutedCost(qkv, executed, gpu).forward.compute.value,
                (forward(4 * heads) + 2 * forward(4 * keys)).value, 1e-15)
        << tensor;
  }
}

// Each element takes eight bytes where the lists count two: an all-reduce of 16 tokens of 16
// elements sends 2,048 bytes, half of them twice, over half of 5 GB/s.
TEST(ExecutedStep, PayloadsAreAsWideAsTheyAre) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2});
  const GpuCurves curves = MadeUpCurves();
  const ExecutedModel model = ExecutedModelOf(workload, curves, kHow, "cpu.json");
  const Estimator estimator(workload.model, model.training, model.cluster, model.calibration);
  const auto time = [&](double elements) {
    return CostOfCollective(CollectiveKind::kAllReduce, Bytes(2 * elements),
                            estimator.Profile(1, 2), model.calibration.collective)
        .time;
  };
  EXPECT_NEAR((time(1e6 + 256) - time(1e6)).value, 2048 / 2.5e9, 1e-15);
}

TEST(ExecutedStep, SaysWhatWasNotMeasured) {
  GpuCurves curves = MadeUpCurves();
  curves.attention.pop_back();
  curves.collective.erase(curves.collective.begin());
  std::erase_if(curves.bandwidth, [](const BandwidthCurve& c) { return c.op == "rope"; });
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2});
  std::string message;
  try {
    ExecutedModelOf(workload, curves, kHow, "cpu.json");
  } catch (const ConfigError& error) {
    message = error.what();
  }
  EXPECT_EQ(message,
            "cpu.json: no curves of all-reduce, rope, attention of both passes with "
            "millwright-cpu-fp64 over millwright-threads-fp64; measure them (measure --for "
            "JOB.json --dtype fp64 --backend threads, without --budget or with a larger one), and "
            "calibrate");
}

}  // namespace
}  // namespace millwright
