// SPDX-License-Identifier: Apache-2.0
#include "report/step_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "core/model_presets.h"
#include "report/pass_spans.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

std::int64_t Sum(const PaintTimes& times) {
  return std::accumulate(times.begin(), times.end(), std::int64_t{0});
}
std::size_t Bars(const StepPicture& picture) {
  std::size_t bars = 0;
  for (const PictureRank& rank : picture.ranks) bars += rank.bars.size();
  return bars;
}

// llama-3.1-8b on 8 GPUs, 16 micro-batches.
void ForEverySchedule(const std::function<void(const SimulatedStep&)>& check) {
  const ModelConfig model = LoadModel("llama-3.1-8b");
  const Cluster cluster(LoadCluster("dgx-h100"));
  for (const int zero : {1, 2, 3}) {
    const int data = zero == 1 ? 1 : 2, tensor = 2 / data;
    const TrainingConfig training{.global_batch_size = std::int64_t{16} * data, .seq_length = 4096};
    const Estimator estimator(model, training, cluster);
    const ParallelConfig plan{.tensor = tensor,
                              .sequence_parallel = tensor > 1,
                              .pipeline = 4,
                              .data = data,
                              .zero = zero,
                              .recompute = {.granularity = RecomputeGranularity::kFull}};
    for (const auto& kind : ScheduleKindNames()) {
      if (kind.value == ScheduleKind::kForwardOnly) continue;
      const bool looped =
          kind.value == ScheduleKind::kInterleaved || kind.value == ScheduleKind::kBreadthFirst;
      SCOPED_TRACE(testing::Message() << kind.name << " with ZeRO " << zero);
      check(SimulateStep(estimator, plan,
                         {.kind = kind.value,
                          .pipeline = 4,
                          .micro_batches = 16,
                          .virtual_stages = looped ? 2 : 1}));
    }
  }
}

TEST(StepPicture, BarsArePassesAndWhatIsBetween) {
  ForEverySchedule([](const SimulatedStep& step) {
    const StepPicture picture = PictureOf(step, {});
    const auto spans = PassSpansOf(step);
    EXPECT_EQ(picture.length, std::llround(step.step().value * 1e9));
    EXPECT_EQ(picture.merged_bars, 0);
    EXPECT_EQ(picture.without_tasks, 0);
    std::int64_t passes = 0;
    for (std::size_t r = 0; r < picture.ranks.size(); ++r) {
      const std::vector<Pass>& order = step.spec.schedule.orders[r];
      std::int64_t now = 0;
      std::size_t at = 0;
      for (const PictureBar& bar : picture.ranks[r].bars) {
        const std::int64_t end = now + bar.length;
        if (bar.kind == PictureBar::Kind::kPass || bar.kind == PictureBar::Kind::kPair) {
          ++passes;
          ASSERT_LT(at, order.size());
          EXPECT_EQ(bar.pass, order[at]);
          EXPECT_EQ(bar.kind == PictureBar::Kind::kPair, order[at].overlaps_next);
          EXPECT_EQ(now, std::llround(spans[r][at].start.value * 1e9));
          EXPECT_EQ(end, std::llround(spans[r][at].end.value * 1e9));
          at += order[at].overlaps_next ? 2 : 1;
          const PassShape& shape = picture.shapes[bar.shape];
          // A shared shape is as long to a ten-thousandth for each of the paints in it.
          EXPECT_NEAR(double(Sum(shape.times)), double(bar.length),
                      kPaints * (1 + 1e-4 * double(bar.length)));
          // What computes and what it waits for fill the pass, one after the other.
          std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
          for (const PictureTask& task : shape.tasks) {
            if (task.stream == Stream::kCompute) pieces.emplace_back(task.start, task.length);
          }
          std::sort(pieces.begin(), pieces.end());
          std::int64_t before = 0;
          for (const auto& [start, length] : pieces) {
            EXPECT_EQ(start, before);
            before = start + length;
          }
          EXPECT_NEAR(double(before), double(bar.length), 1.0);
        }
        now = end;
      }
      EXPECT_EQ(at, order.size());
      EXPECT_EQ(now, picture.length);
    }
    EXPECT_EQ(passes, picture.passes);
  });
}

// The same sums as TimeOfRank, which walks the graph on its own.
TEST(StepPicture, TimesAreThoseOfTheRank) {
  ForEverySchedule([](const SimulatedStep& step) {
    const StepPicture picture = PictureOf(step, {});
    for (std::size_t r = 0; r < picture.ranks.size(); ++r) {
      const RankTime& time = step.ranks[r];
      const PaintTimes& times = picture.ranks[r].times;
      EXPECT_EQ(Sum(times), picture.length);
      const auto spent = [&](Cause cause) {
        return (time.busy[std::size_t(cause)] + time.waiting[std::size_t(cause)]).value * 1e9;
      };
      const auto of = [&](std::initializer_list<Paint> paints) {
        double sum = 0;
        for (const Paint paint : paints) sum += double(times[std::size_t(paint)]);
        return sum;
      };
      // Each task and wait is rounded to a nanosecond.
      const double most = double(step.graph.size());
      EXPECT_NEAR(
          of({Paint::kForward, Paint::kBackward, Paint::kBackwardInput, Paint::kBackwardWeight}),
          spent(Cause::kCompute), most);
      EXPECT_NEAR(of({Paint::kRecompute}), spent(Cause::kRecompute), most);
      EXPECT_NEAR(of({Paint::kTensor}), spent(Cause::kTensor), most);
      EXPECT_NEAR(of({Paint::kData}), spent(Cause::kData), most);
      EXPECT_NEAR(of({Paint::kPipeline}), spent(Cause::kPipeline), most);
      EXPECT_NEAR(of({Paint::kOptimizer}), spent(Cause::kOptimizer), most);
      EXPECT_NEAR(of({Paint::kIdle}), time.idle.value * 1e9, most);
    }
  });
}

TEST(StepPicture, MemoryReachesThePeak) {
  ForEverySchedule([](const SimulatedStep& step) {
    for (const std::size_t moments : {std::size_t{1} << 30, std::size_t{400}}) {
      const StepPicture picture = PictureOf(step, {.moments = moments});
      // 100 a rank are too few for the layers of 16 micro-batches.
      EXPECT_EQ(picture.memory_slice > 0, moments == 400);
      for (std::size_t r = 0; r < picture.ranks.size(); ++r) {
        const PictureRank& rank = picture.ranks[r];
        ASSERT_EQ(rank.moments.size(), rank.held.size());
        EXPECT_TRUE(std::is_sorted(rank.moments.begin(), rank.moments.end()));
        if (moments == 400) {
          // A slice that ends in quiet has a second moment.
          EXPECT_LE(rank.moments.size(), 2 * 100U + 2);
        }
        const double peak = (step.fixed[r].total() + step.timeline.peak[r]).value;
        const double highest = std::max_element(rank.held.begin(), rank.held.end())->value;
        // Changes within a nanosecond are one, and a layer's saved tensors may go in exchange.
        EXPECT_NEAR(highest, peak, 0.01 * peak) << r;
        EXPECT_NEAR(rank.held.back().value, step.fixed[r].total().value, 1e-6 * peak);
      }
    }
  });
}

TEST(StepPicture, BarsThatAreTooManyAreMerged) {
  ForEverySchedule([](const SimulatedStep& step) {
    const StepPicture whole = PictureOf(step, {});
    const StepPicture merged = PictureOf(step, {.bars = 60});
    EXPECT_GT(Bars(whole), 60U);
    EXPECT_LE(Bars(merged), 60U);
    EXPECT_GT(merged.merged_bars, 0);
    for (std::size_t r = 0; r < merged.ranks.size(); ++r) {
      std::int64_t length = 0, count = 0;
      PaintTimes times{};
      for (const PictureBar& bar : merged.ranks[r].bars) {
        length += bar.length;
        count += bar.kind == PictureBar::Kind::kMerged ? bar.count : 1;
        if (bar.kind == PictureBar::Kind::kWait || bar.kind == PictureBar::Kind::kTask ||
            bar.kind == PictureBar::Kind::kIdle) {
          times[std::size_t(bar.paint)] += bar.length;
          continue;
        }
        const PaintTimes& of = merged.shapes[bar.shape].times;
        for (std::size_t i = 0; i < times.size(); ++i) times[i] += of[i];
      }
      EXPECT_EQ(length, merged.length);
      EXPECT_EQ(count, std::int64_t(whole.ranks[r].bars.size()));
      for (std::size_t i = 0; i < times.size(); ++i) {
        EXPECT_NEAR(double(times[i]), double(whole.ranks[r].times[i]), 2e-4 * double(whole.length));
      }
    }
  });
}

TEST(StepPicture, TasksThatAreTooManyAreLeftOutOrMerged) {
  ForEverySchedule([](const SimulatedStep& step) {
    const StepPicture whole = PictureOf(step, {});
    const StepPicture few = PictureOf(step, {.tasks = 50});
    std::size_t kept = 0, beside = 0, all_beside = 0;
    for (const PassShape& shape : few.shapes) kept += shape.tasks.size();
    std::int64_t count = 0;
    for (std::size_t r = 0; r < few.ranks.size(); ++r) {
      beside += few.ranks[r].beside.size();
      all_beside += whole.ranks[r].beside.size();
      for (const PictureTask& task : few.ranks[r].beside) count += task.count;
    }
    EXPECT_LE(kept, 50U);
    EXPECT_GT(few.without_tasks, 0);
    EXPECT_LE(beside, 50U);
    EXPECT_EQ(count, std::int64_t(all_beside));
    const StepPicture none = PictureOf(step, {.tasks = 0, .moments = 0});
    EXPECT_EQ(none.without_tasks, none.passes);
    for (const PictureRank& rank : none.ranks) {
      EXPECT_TRUE(rank.beside.empty());
      EXPECT_TRUE(rank.moments.empty());
    }
  });
}

}  // namespace
}  // namespace millwright
