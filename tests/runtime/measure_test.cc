// SPDX-License-Identifier: Apache-2.0
#include "runtime/measure.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "cost_models/executed_curves.h"
#include "cost_models/operators.h"
#include "runtime/communicator_splits.h"
#include "runtime/cpu_backend.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

// Every case of the quick sweep, once: all ranks come to the same time, and outputs are written
// (Measure checks that itself).
TEST(Measure, EveryCaseOnTwoRanks) {
  std::mutex mutex;
  std::map<std::size_t, std::set<double>> times;
  RunThreads(2, [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    MeasureOptions options{.shortest = Seconds(1e-9)};
    options.limits = {.warm_up = 0, .least = 3, .most = 3};
    Measurer measurer(backend, options);
    std::size_t index = 0;
    for (const MeasuredCase& what : SweepCases(2, true, SweepOf::kCpu)) {
      const Timing timing = measurer.Measure(what);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(timing.repeats, 3);
      EXPECT_GT(timing.sustained.value, 0);
      times[index++].insert(timing.sustained.value);
    }
  });
  for (const auto& [index, of_case] : times) EXPECT_EQ(of_case.size(), 1U) << index;
}

// 40 us of 100 and 80 are hidden: half of the shorter.
TEST(Measure, OverlapIsAShareOfTheShorter) {
  const OverlapTimes times{
      .product = Seconds(100e-6), .messages = Seconds(80e-6), .together = Seconds(140e-6)};
  EXPECT_NEAR(times.hidden(), 0.5, 1e-12);
  RunThreads(1, [](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    EXPECT_FALSE(Measurer(backend, {}).Overlap({.m = 4, .n = 4, .k = 4}));
  });
}

TEST(Measure, OneRankThatWantsToStopStopsAll) {
  RunThreads(2, [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    MeasureOptions options;
    if (communicator.rank() == 1) options.stop = [] { return true; };
    Measurer measurer(backend, options);
    EXPECT_TRUE(measurer.Stops());
    EXPECT_EQ(measurer.Measure(GemmCase{.m = 4, .n = 4, .k = 4}).repeats, 0);
  });
}

// Each kind of curve that a comparison needs has the eight sizes that its fit asks for.
TEST(Measure, SweepsAndPlansHaveEnoughSizes) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2, .pipeline = 2, .data = 2});
  for (const std::vector<MeasuredCase>& cases :
       {SweepCases(2, true, SweepOf::kCpu), SweepCases(2, false, SweepOf::kCpu),
        SweepCases(2, true, SweepOf::kGpu), CasesOf(workload)}) {
    std::map<std::string, int> sizes;
    for (const MeasuredCase& what : cases) {
      if (std::holds_alternative<GemmCase>(what)) ++sizes["product"];
      if (const auto* a = std::get_if<AttentionCase>(&what)) {
        ++sizes[a->backward ? "attention, backward" : "attention"];
      }
      if (const auto* r = std::get_if<RowsCase>(&what)) ++sizes[NameOf(*r)];
      if (const auto* c = std::get_if<CollectiveCase>(&what)) ++sizes[std::string(Name(c->kind))];
    }
    for (const char* needed :
         {"product", "rmsnorm", "rmsnorm; backward", "rope", "silu gated", "residual_add",
          "embedding", "cross_entropy", "cross_entropy; backward", "adam", "gradient_sum",
          "all-reduce", "send-recv"}) {
      EXPECT_GE(sizes[needed], 8) << needed;
    }
    EXPECT_GE(sizes["attention"], 5);  // of 16 tokens not all shares are whole
  }
}

// One for the three passes of a size, and none of sizes that tensor cores do not take.
TEST(Measure, ProductsInFp8) {
  const std::vector<MeasuredCase> cases =
      WithFp8({GemmCase{.m = 32, .n = 48, .k = 64},
               GemmCase{.m = 32, .n = 48, .k = 64, .pass = GemmPass::kInputGradient},
               GemmCase{.m = 32, .n = 40, .k = 64}, AttentionCase{.tokens = 16, .head_size = 8}});
  ASSERT_EQ(cases.size(), 5U);
  EXPECT_EQ(cases[1], MeasuredCase(GemmCase{.m = 32, .n = 48, .k = 64, .fp8 = true}));
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    MeasureOptions options{.shortest = Seconds(1e-9)};
    options.limits = {.warm_up = 0, .least = 3, .most = 3};
    EXPECT_EQ(Measurer(backend, options).Measure(cases[1]).repeats, 3);
  });
}

// What a plan's operators run is among what is measured of it: kernel by kernel, with the bytes of
// the list, whose elements have two; the same formula written twice.
TEST(Measure, BytesAreThoseOfTheOperatorList) {
  ModelConfig normed = TinyModel();
  normed.qk_layernorm = true;
  const ParallelConfig tensor{.tensor = 2, .sequence_parallel = true};
  for (const Workload& workload :
       {TinyWorkload(TinyModel(), tensor), TinyWorkload(normed, tensor),
        TinyWorkload(TinyGpt(), {.pipeline = 2}), TinyWorkload(WithBiases(TinyMoe(24)), tensor),
        TinyWorkload(TinyMoe(), {.data = 2, .expert = 2})}) {
    const ModelConfig& model = workload.model;
    const LayerShape shape = ShapeOf(workload.parallel, workload.training);
    std::vector<Operator> operators = EmbeddingOperators(model, shape, workload.training);
    for (int layer = 0; layer < model.num_layers; ++layer) {
      for (const Operator& op :
           LayerOperators(model, model.layer(layer), shape, workload.training)) {
        operators.push_back(op);
      }
    }
    for (const Operator& op : HeadOperators(model, shape, workload.training)) {
      operators.push_back(op);
    }
    std::map<std::string, std::set<double>> of_plan;
    for (const MeasuredCase& what : CasesOf(workload)) {
      const auto* r = std::get_if<RowsCase>(&what);
      if (r != nullptr && !r->backward) of_plan[NameOf(*r)].insert(BytesOf(*r, 2).value);
    }
    int found = 0;
    for (const Operator& op : operators) {
      for (const KernelUse& use : KernelsOf(op, model)) {
        const auto& bytes = of_plan[use.kernel];
        const bool near = std::any_of(bytes.begin(), bytes.end(), [&](double one) {
          return std::abs(one / use.bytes.value - 1) < 1e-9;
        });
        EXPECT_TRUE(near) << op.name << ": " << use.kernel << " of " << use.bytes.value;
        ++found;
      }
    }
    EXPECT_GT(found, 9);
  }
}

// A product's three passes are those that CostOfOperator's backward prices: m n k, m k n, n k m.
TEST(Measure, ProductsOfAPlanAreItsOperators) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2});
  const std::vector<MeasuredCase> cases = CasesOf(workload);
  const auto has = [&](const MeasuredCase& one) {
    return std::find(cases.begin(), cases.end(), one) != cases.end();
  };
  // Queries and keys: 4 heads and 1 of 4 elements.
  EXPECT_TRUE(has(GemmCase{.m = 16, .n = 16, .k = 16, .pass = GemmPass::kForward}));
  EXPECT_TRUE(has(GemmCase{.m = 16, .n = 4, .k = 16, .pass = GemmPass::kForward}));
  // fc1 of a tensor rank: 16 tokens, 2 x 24 / 2 outputs, 16 inputs.
  EXPECT_TRUE(has(GemmCase{.m = 16, .n = 24, .k = 16, .pass = GemmPass::kForward}));
  EXPECT_TRUE(has(GemmCase{.m = 16, .n = 16, .k = 24, .pass = GemmPass::kInputGradient}));
  EXPECT_TRUE(has(GemmCase{.m = 24, .n = 16, .k = 16, .pass = GemmPass::kWeightGradient}));
}

}  // namespace
}  // namespace millwright
