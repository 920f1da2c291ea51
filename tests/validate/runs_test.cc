// SPDX-License-Identifier: Apache-2.0
#include "validate/runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>

#include "validate/fit_end_to_end.h"

namespace millwright {
namespace {

constexpr char kOurs[] = "tests/data/runs.json";
constexpr char kShared[] = "../shared/data/runs/published_runs.json";

TEST(ErrorSummary, QuantilesInterpolate) {
  // 0, 10, 20, 30: the median is 15; 0.9 x 3 = 2.7, so 20 + 0.7 x 10.
  EXPECT_DOUBLE_EQ(Quantile({30, 0, 20, 10}, 0.5), 15);
  EXPECT_DOUBLE_EQ(Quantile({30, 0, 20, 10}, 0.9), 27);
  EXPECT_DOUBLE_EQ(Quantile({}, 0.5), 0);
  // |e| = 0.1, 0.2, 0.3; e = -0.3, -0.1, 0.2.
  const ErrorSummary s = Summarise({0.2, -0.1, -0.3});
  EXPECT_EQ(s.n, 3U);
  EXPECT_DOUBLE_EQ(s.median_ape, 0.2);
  EXPECT_DOUBLE_EQ(s.p90_ape, 0.28);  // 0.2 + 0.8 x 0.1
  EXPECT_DOUBLE_EQ(s.bias, -0.1);
}

TEST(Spearman, RanksAlone) {
  EXPECT_DOUBLE_EQ(Spearman({1, 2, 3, 4}, {10, 100, 1000, 10000}), 1);
  EXPECT_DOUBLE_EQ(Spearman({1, 2, 3}, {3, 2, 1}), -1);
  // Ranks 0 1 2 3 against 1 0 2 3: 1 - 6 x 2 / (4 x 15) = 0.8.
  EXPECT_DOUBLE_EQ(Spearman({1, 2, 3, 4}, {2, 1, 3, 4}), 0.8);
  // A tie shares its ranks: 0.5 0.5 2 against 0 1 2: cov 1.5 / sqrt(1.5 x 2).
  EXPECT_DOUBLE_EQ(Spearman({1, 1, 2}, {1, 2, 3}), 1.5 / std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(Spearman({1, 1}, {1, 2}), 0);
}

TEST(Runs, MemoryIsComparedWithWhatWasMeasured) {
  EXPECT_EQ(MemoryKindOf("max_allocated, max over ranks"), MemoryKind::kAllocated);
  EXPECT_EQ(MemoryKindOf("max_reserved (torchtitan log)"), MemoryKind::kReserved);
  EXPECT_EQ(MemoryKindOf("nvidia-smi max on first/last stage"), MemoryKind::kDevice);
  EXPECT_EQ(MemoryKindOf("params+grads+optimizer+activations, no framework overhead"),
            MemoryKind::kModel);
}

// Half a micro-batch more takes half of what a whole one more does.
TEST(Runs, ARaggedBatchLiesBetweenWholeOnes) {
  std::vector<PublishedRun> runs(1, ReadPublishedRuns(kOurs).runs.at(0));
  const std::int64_t per_pass = *runs[0].dp * *runs[0].mbs;
  ASSERT_EQ(*runs[0].pp, 1);
  const auto step = [&](double micro_batches) {
    runs[0].gbs = std::int64_t(micro_batches * double(per_pass));
    return RunSet(runs).Step(0, ShippedEndToEnd()).value;
  };
  EXPECT_NEAR(step(2.5), 0.5 * (step(2) + step(3)), 1e-9);
}

TEST(Runs, PublishedStepsAreWithinTheirIntervals) {
  // Eight of the published runs, one a source and kind; tests/data/runs.json has their sources.
  const RunsReport report = CompareWithRuns(RunSet(ReadPublishedRuns(kOurs).runs));
  EXPECT_TRUE(report.unsupported.empty());
  for (const RunResult& r : report.results) {
    if (!r.run.step) continue;
    const Interval interval = StepInterval(r.run_class());
    EXPECT_GT(*r.run.step, interval.low * r.predicted) << r.run.id;
    EXPECT_LT(*r.run.step, interval.high * r.predicted) << r.run.id;
  }
  // BLOOM's trial that ran out of memory is predicted to.
  EXPECT_EQ(report.out_of_memory, 1U);
  EXPECT_EQ(report.out_of_memory_predicted, 1U);
}

// The README's table, held to a little more than it says.
TEST(Runs, AllPublishedSteps) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no " << kShared;
  const RunsReport report = CompareWithRuns(RunSet(ReadPublishedRuns(kShared).runs));
  EXPECT_GT(report.overall.n, 670U);
  EXPECT_LT(report.overall.median_ape, 0.035);
  EXPECT_LT(report.overall.p90_ape, 0.13);
  EXPECT_LT(std::abs(report.overall.bias), 0.01);
  EXPECT_EQ(report.out_of_memory, report.out_of_memory_predicted);
  for (const NamedSummary& s : report.memory) {
    if (s.name == "max allocated") {
      EXPECT_LT(s.errors.median_ape, 0.03);
      EXPECT_LT(s.errors.p90_ape, 0.08);
    }
    if (s.name == "all") {
      EXPECT_LT(s.errors.median_ape, 0.05);
      EXPECT_LT(s.errors.p90_ape, 0.15);
    }
  }
  for (std::size_t i : report.ran_but_predicted_not_to_fit) {
    const RunResult& r = report.results[i];
    EXPECT_LE(MemoryInterval().low * r.peak, r.capacity) << r.run.id;
  }
  // BLOOM's trials of one name have several shapes; only one of those was run eight times.
  EXPECT_EQ(report.sweeps.size(), 8U);
  EXPECT_EQ(std::ranges::count_if(
                report.sweeps, [](const Sweep& s) { return s.name.find("BLOOM") != s.name.npos; }),
            1);
  // Five are ordered as well as their own repeats are, or nearly.
  EXPECT_GE(std::ranges::count_if(report.sweeps, [](const Sweep& s) { return s.spearman >= 0.9; }),
            5);
  for (const Sweep& s : report.sweeps) {
    EXPECT_LE(s.most, 1);
    if (s.spearman < 0.9) continue;
    EXPECT_GT(s.spearman, s.most - 0.02) << s.name;
  }
  for (const Coverage& c : report.step_coverage) {
    if (c.name == "all") {
      EXPECT_GT(double(c.inside), 0.88 * double(c.n));
    }
  }
}

// Runs that are themselves predictions under other parameters: the fit predicts them again, and
// finds the parameters that runs tell from others.
TEST(FitEndToEnd, RecoversParametersFromRunsWithoutNoise) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no " << kShared;
  EndToEnd truth;
  truth.clock_a100 = 0.9;
  truth.clock_h100 = 1.1;
  truth.floor_2021 = 4e-3;
  truth.eager_bytes = 1.8;
  truth.broadcast = 2e-3;
  std::vector<PublishedRun> runs = ReadPublishedRuns(kShared).runs;
  {
    const RunSet untimed(runs);
    std::map<std::string, Seconds> steps;
    for (std::size_t i = 0; i < untimed.size(); ++i) {
      steps[untimed.run(i).id] = untimed.Step(i, truth);
    }
    for (PublishedRun& run : runs) {
      if (steps.contains(run.id)) run.step = steps[run.id];
    }
  }
  const RunSet set(runs);
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < set.size(); ++i) all.push_back(i);
  const EndToEnd fitted = FitEndToEnd(set, all, EndToEnd{});
  const ErrorSummary errors = CompareWithRuns(set, fitted).overall;
  EXPECT_LT(errors.median_ape, 0.005);
  EXPECT_LT(errors.p90_ape, 0.02);
  for (auto field : {&EndToEnd::clock_a100, &EndToEnd::clock_h100, &EndToEnd::floor_2021,
                     &EndToEnd::eager_bytes, &EndToEnd::broadcast}) {
    EXPECT_NEAR(fitted.*field / (truth.*field), 1, 0.03);
  }
}

// A cluster whose GPUs run at nine tenths of the shipped clock, in twelve runs of one model at
// several batches: what they say is found, and no more than they say.
std::vector<PublishedRun> OnSlowerGpus(std::size_t count, double clock) {
  const std::vector<PublishedRun> ours = ReadPublishedRuns(kOurs).runs;
  std::vector<PublishedRun> runs;
  for (const PublishedRun& run : ours) {
    if (run.id != "dgxc-00" && run.id != "foundry-000") continue;
    for (std::size_t i = 0; i < (count + 1) / 2; ++i) {
      runs.push_back(run);
      runs.back().id += "-" + std::to_string(i);
      runs.back().gbs = std::int64_t(i + 1) * *run.gbs;
    }
  }
  runs.resize(count);
  EndToEnd theirs = ShippedEndToEnd();
  theirs.clock_h100 *= clock;
  const RunSet untimed(runs);
  EXPECT_EQ(untimed.size(), count);
  for (std::size_t i = 0; i < count; ++i) runs[i].step = untimed.Step(i, theirs);
  return runs;
}
std::vector<std::size_t> All(const RunSet& set) {
  std::vector<std::size_t> all(set.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

TEST(FitOwn, FindsWhatItsRunsSay) {
  const RunSet set(OnSlowerGpus(12, 0.9));
  const OwnEndToEnd own = FitOwn(set, All(set));
  EXPECT_EQ(own.runs, 12);
  EXPECT_GT(own.shipped_median_ape, 0.06);
  EXPECT_LT(own.median_ape, 0.01);
  EXPECT_LT(own.cv_median_ape, 0.02);
  ASSERT_FALSE(own.parameters.empty());
  EXPECT_EQ(own.parameters[0].name, "clock_h100");
  EXPECT_NEAR(own.parameters[0].value.value / ShippedEndToEnd().clock_h100, 0.9, 0.02);
  EXPECT_DOUBLE_EQ(With(own).clock_h100, own.parameters[0].value.value);
  EXPECT_DOUBLE_EQ(With(own).clock_b200, ShippedEndToEnd().clock_b200);
}

TEST(FitOwn, FewRunsMoveLittleAndRightOnesNothing) {
  // What a scatter of 6% and a clock known to 5% leave of one run: it moves, and not all the way.
  const RunSet one(OnSlowerGpus(1, 0.8));
  const OwnEndToEnd of_one = FitOwn(one, All(one));
  EXPECT_LT(of_one.median_ape, of_one.shipped_median_ape);
  EXPECT_GT(of_one.median_ape, 0.5 * of_one.shipped_median_ape);
  EXPECT_EQ(of_one.cv_median_ape, 0);
  const RunSet right(OnSlowerGpus(6, 1));
  const OwnEndToEnd same = FitOwn(right, All(right));
  EXPECT_TRUE(same.parameters.empty());
  EXPECT_LT(same.cv_median_ape, 1e-9);
}

TEST(CrossValidation, NoGroupIsOnBothSides) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "no " << kShared;
  const CrossValidation cross = CrossValidate(RunSet(ReadPublishedRuns(kShared).runs), 2);
  // Half of the runs predict the other half: worse than the fit to all, and still this good.
  EXPECT_LT(cross.held_out.overall.median_ape, 0.06);
  EXPECT_LT(cross.held_out.overall.p90_ape, 0.18);
  EXPECT_EQ(cross.spread.size(), EndToEndFields().size());
  // What is shipped is this fit.
  for (const EndToEndField& field : EndToEndFields()) {
    EXPECT_NEAR(ShippedEndToEnd().*field.value / (cross.fitted.*field.value), 1, 2e-3)
        << field.name;
  }
}

}  // namespace
}  // namespace millwright
