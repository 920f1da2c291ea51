// SPDX-License-Identifier: Apache-2.0
//
// Folded against full simulation, over plans drawn at random.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/model_presets.h"
#include "planner/feasibility.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "planner/step_spec.h"
#include "sim/full_simulation.h"

namespace millwright {
namespace {

TEST(FullCrossCheck, FoldedIsFullWhereNoLinkIsShared) {
  std::mt19937 random(5);
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  int compared = 0, placed_otherwise = 0, nested = 0, contended = 0, calm = 0;
  for (const char* name : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-xl"}) {
    const ModelConfig model = PresetModel(name);
    const std::vector<Recompute> choices = RecomputeChoices(model);
    for (const char* machine : {"dgx-h100", "dgx-a100", "gb200-nvl72"}) {
      ClusterConfig config = FindCluster(machine);
      config.nodes = machine == std::string_view("gb200-nvl72") ? 1 : 4;
      const Cluster cluster(config);
      const int gpus = cluster.gpus();
      for (int trial = 0; trial < 80; ++trial) {
        TrainingConfig training{.global_batch_size = 32, .seq_length = 2048};
        training.overlap_grad_reduce = pick({0, 1, 1});
        training.overlap_param_gather = pick({0, 1, 1});
        training.cp_comm_overlap = pick({0, 1, 1});
        training.tp_comm_overlap = pick({0, 0, 1});
        ParallelConfig p;
        p.tensor = pick({1, 2, 4, 8});
        p.sequence_parallel = p.tensor > 1 && pick({0, 1});
        p.context = pick({1, 1, 2});
        p.context_kind = pick({0, 1}) ? ContextParallelKind::kUlysses : ContextParallelKind::kRing;
        p.pipeline = pick({1, 2, 3, 4});
        if (gpus % (p.tensor * p.context * p.pipeline) != 0) continue;
        p.data = gpus / (p.tensor * p.context * p.pipeline);
        p.expert = pick({1, 1, 2, 4, 8});
        p.zero = pick({0, 1, 1, 2, 3});
        p.order = pick({0, 0, 1}) ? RankOrder::kPipelineInside : RankOrder::kDataInside;
        p.recompute = choices[random() % choices.size()];
        if (p.context == 2 && p.data % 2 == 0 && trial % 2 == 0) {
          p.context = 4;
          p.context_kind = ContextParallelKind::kNested;
          p.context_ulysses = 2;
          p.data /= 2;
        }
        if (trial % 4 == 0) {  // of each rank its own
          p.rank_recompute.assign(std::size_t(p.pipeline), std::exchange(p.recompute, {}));
          p.rank_recompute.back() = choices[std::size_t(trial) % choices.size()];
        }
        training.global_batch_size = std::int64_t{8} * p.data;
        if (CheckPlan(model, training, cluster.gpu(), gpus, p)) continue;
        const Estimator estimator(model, training, cluster);
        const ScheduleKind schedules[] = {ScheduleKind::k1F1B, ScheduleKind::kGpipe,
                                          ScheduleKind::kZbH1, ScheduleKind::kZbV};
        ScheduleChoice choice = ScheduleOf(p, 8);
        choice.kind = schedules[random() % 4];
        if (choice.kind == ScheduleKind::kZbV) choice.virtual_stages = 2;
        const std::string what = std::string(name) + " on " + machine + ", " + ShortName(p) + " " +
                                 std::string(NameOf(choice.kind));
        const StepSpec spec = StepSpecOf(estimator, p, choice);
        const TaskGraph graph = BuildStepGraph(spec);
        const Timeline folded = Simulate(graph);
        const int plane = gpus / p.pipeline;
        const CollectiveCalibration& calibration = estimator.calibration().collective;
        ++compared;
        std::vector<int> gpu_of_rank;
        for (int rank = 0; rank < gpus; ++rank) gpu_of_rank.push_back(int(GpuOf(p, rank)));
        placed_otherwise += p.placed_otherwise();
        nested += p.context_kind == ContextParallelKind::kNested;

        // Every collective at its price: each task of each rank as in the folded step.
        const FullSimulation priced(
            graph, cluster, calibration,
            {.plane = plane, .gpu_of_rank = gpu_of_rank, .share_links = false});
        const FullStep step = priced.Run();
        EXPECT_EQ(step.tasks, std::int64_t(graph.size()) * plane) << what;
        double worst = 0;
        for (int member = 0; member < plane; ++member) {
          for (TaskId id = 0; id < graph.size(); ++id) {
            const double end = step.ends[std::size_t(member) * graph.size() + id];
            worst = std::max(worst, std::abs(end - folded.end[id].value));
          }
        }
        EXPECT_LE(worst, 1e-9 * folded.makespan.value) << what;
        const Timeline shown = priced.TimelineOf(step, plane - 1);
        EXPECT_EQ(shown.peak, folded.peak) << what;
        for (TaskId id = 0; id < graph.size(); ++id) {
          ASSERT_NEAR(shown.start[id].value, folded.start[id].value, 1e-9 * folded.makespan.value)
              << what << ": " << graph.label(id);
        }

        // On links: never faster, and slower only where some collective was held up.
        const FullStep shared = FullSimulation(graph, cluster, calibration,
                                               {.plane = plane, .gpu_of_rank = gpu_of_rank})
                                    .Run();
        const double difference = shared.makespan / folded.makespan - 1;
        std::int64_t delayed = 0;
        for (const Contention& contention : shared.contention) delayed += contention.delayed;
        EXPECT_GE(difference, -1e-9) << what;
        if (delayed == 0) {
          ++calm;
          EXPECT_LE(difference, 1e-5) << what;  // what a delay of under 1e-6 each may add up to
        } else {
          ++contended;
        }
        for (const LinkLoad& load : shared.links) {
          EXPECT_LE(load.utilisation, 1 + 1e-9) << what;
        }
        for (std::size_t rank = 0; rank < shared.ranks.size(); ++rank) {
          EXPECT_NEAR(shared.ranks[rank].total() / shared.makespan, 1, 1e-9) << what;
        }
      }
    }
  }
  EXPECT_GT(compared, 250);
  EXPECT_GT(placed_otherwise, 30);
  EXPECT_GT(nested, 10);
  EXPECT_GT(contended, 30);
  EXPECT_GT(calm, 30);
}

}  // namespace
}  // namespace millwright
