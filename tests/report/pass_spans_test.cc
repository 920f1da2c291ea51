// SPDX-License-Identifier: Apache-2.0
#include "report/pass_spans.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "core/model_presets.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

// Passes of a rank follow its order without overlap, and what a pass waits for has ended.
void ExpectSound(const SimulatedStep& step) {
  const PipelineSchedule& schedule = step.spec.schedule;
  const auto spans = PassSpansOf(step);
  std::map<std::tuple<int, int, bool>, PassSpan> of;  // stage, micro-batch, forward
  ASSERT_EQ(int(spans.size()), schedule.pipeline);
  for (std::size_t r = 0; r < spans.size(); ++r) {
    const std::vector<Pass>& order = schedule.orders[r];
    ASSERT_EQ(spans[r].size(), order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      EXPECT_LT(spans[r][i].start, spans[r][i].end);
      EXPECT_LE(spans[r][i].end, step.step());
      if (i > 0 && !order[i - 1].overlaps_next) {
        EXPECT_LE(spans[r][i - 1].end.value, spans[r][i].start.value + 1e-12);
      }
      if (order[i].kind == PassKind::kBackwardWeight) continue;
      of[{order[i].stage, order[i].micro_batch, order[i].kind == PassKind::kForward}] = spans[r][i];
    }
  }
  const double sound = 1e-12;
  for (const auto& [key, span] : of) {
    const auto [stage, micro_batch, forward] = key;
    if (forward && !schedule.first_of_direction(stage)) {
      EXPECT_GE(span.end.value + sound, (of[{stage - 1, micro_batch, true}].start).value);
    }
    if (!forward) {
      EXPECT_GE(span.start.value + sound, (of[{stage, micro_batch, true}].start).value);
    }
  }
}

TEST(PassSpans, OfEverySchedule) {
  const ModelConfig model = LoadModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 16, .seq_length = 4096};
  ClusterConfig config = LoadCluster("dgx-h100");
  const Cluster cluster(config);
  const Estimator estimator(model, training, cluster);
  ParallelConfig plan{.tensor = 2, .sequence_parallel = true, .pipeline = 4, .data = 1};
  for (const auto& kind : ScheduleKindNames()) {
    if (kind.value == ScheduleKind::kForwardOnly) continue;
    const bool looped =
        kind.value == ScheduleKind::kInterleaved || kind.value == ScheduleKind::kBreadthFirst;
    for (const Recompute& recompute :
         {Recompute{}, Recompute{.granularity = RecomputeGranularity::kFull},
          Recompute{.granularity = RecomputeGranularity::kFull, .full_layers = 1}}) {
      SCOPED_TRACE(kind.name);
      plan.recompute = recompute;
      ExpectSound(SimulateStep(estimator, plan,
                               {.kind = kind.value,
                                .pipeline = 4,
                                .micro_batches = 16,
                                .virtual_stages = looped ? 2 : 1}));
    }
  }
}

TEST(PassSpans, OneRankFillsTheStep) {
  // Without data parallelism or a pipeline nothing runs but passes and the optimizer; with tensor
  // parallelism the last piece of a pass is a collective, which the next pass waits for.
  const ModelConfig model = LoadModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 4, .seq_length = 4096};
  ClusterConfig config = LoadCluster("dgx-h100");
  const Cluster cluster(config);
  const Estimator estimator(model, training, cluster);
  const ParallelConfig plan{.tensor = 8, .sequence_parallel = true};
  const SimulatedStep step =
      SimulateStep(estimator, plan, {.kind = ScheduleKind::k1F1B, .micro_batches = 4});
  const auto spans = PassSpansOf(step);
  ASSERT_EQ(spans.size(), 1U);
  ASSERT_EQ(spans[0].size(), 8U);
  for (std::size_t i = 2; i < 8; ++i) {  // all micro-batches take the same
    const double length = (spans[0][i].end - spans[0][i].start).value;
    EXPECT_NEAR(length, (spans[0][i - 2].end - spans[0][i - 2].start).value, 1e-9) << i;
  }
}

}  // namespace
}  // namespace millwright
