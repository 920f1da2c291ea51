// SPDX-License-Identifier: Apache-2.0
//
// The whole grid of parallel steps against the step that is not cut: tensor, context and expert
// ranks of 1, 2 and 4, pipeline and data ranks of 1 to 4, every ZeRO stage, both kinds of context
// parallelism, of up to 16 ranks, with schedules, recomputation, sequence parallelism, models and
// types drawn to them from fixed seeds.  A few of every hundred are run; all of them where
// MILLWRIGHT_FULL_GRID is set, as `mw check --long` does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/expect_agreement.h"
#include "tests/runtime/tiny_workload.h"
#include "tests/sanitized.h"

namespace millwright {
namespace {

constexpr int kMostRanks = 16, kSlices = 24;

struct Degrees {
  int tensor, context;
  ContextParallelKind kind;
  int pipeline, data, expert, zero;
};

// Experts of 0 ranks: a model without them.
std::vector<Degrees> Grid() {
  using Kind = ContextParallelKind;
  std::vector<Degrees> grid;
  for (const int expert : {0, 1, 2, 4}) {
    for (const int tensor : {1, 2, 4}) {
      for (const auto& [context, kind] :
           {std::pair(1, Kind::kRing), std::pair(2, Kind::kRing), std::pair(4, Kind::kRing),
            std::pair(2, Kind::kUlysses), std::pair(4, Kind::kUlysses)}) {
        for (int pipeline = 1; pipeline <= 4; ++pipeline) {
          for (int data = 1; data <= 4; ++data) {
            const int plane = tensor * context * data;
            if (plane * pipeline > kMostRanks || (expert > 0 && plane % expert != 0)) continue;
            if (kind == Kind::kUlysses && tensor * context > 8) continue;  // of the 8 heads
            for (const int zero : {0, 1, 2, 3}) {
              grid.push_back({tensor, context, kind, pipeline, data, expert, zero});
            }
          }
        }
      }
    }
  }
  return grid;
}

ModelConfig ModelOf(bool experts, unsigned turn, int layers) {
  if (experts) {
    const ModelConfig model = WithMoeLayers(TinyMoe(turn % 2 == 0 ? 24 : 0), 1, layers - 1);
    return turn % 3 == 0 ? WithBiases(model) : model;
  }
  const ModelConfig models[] = {TinyModel(), WithBiases(TinyModel()), TinyGpt()};
  return WithLayers(models[turn % 3], layers);
}

Recompute RecomputeOf(bool experts, unsigned turn) {
  using Module = RecomputeModule;
  constexpr auto kSelective = RecomputeGranularity::kSelective;
  switch (turn) {
    case 1:
      return {.granularity = RecomputeGranularity::kFull};
    case 2:
      return {.granularity = kSelective, .modules = {Module::kCoreAttn}};
    case 3:
      return {.granularity = kSelective, .modules = {Module::kMlp, Module::kLayerNorm}};
    case 4:
      return {.granularity = RecomputeGranularity::kFull, .full_layers = 1};
    case 5:
      if (!experts) return {};
      return {.granularity = kSelective, .modules = {Module::kMoeAct, Module::kMoe}};
    default:
      return {};
  }
}

struct Question {
  ModelConfig model;
  TrainingConfig training;
  ParallelConfig plan;
};

// What the degrees leave open is drawn: models, recomputation, and the first schedule from one on
// that goes with the degrees.
Question QuestionOf(const Degrees& d, std::size_t cell) {
  std::mt19937 random{unsigned(cell)};
  const auto draw = [&](unsigned choices) { return unsigned(random()) % choices; };
  const auto schedules = TrainingScheduleNames();
  const bool experts = d.expert > 0;
  const int plane = d.tensor * d.context * d.data;
  const int expert = std::max(1, d.expert);
  // Experts are cut over tensor ranks every second time.
  const bool cut = experts && plane % (expert * d.tensor) == 0 && draw(2) == 0;
  Question q{.model = ModelOf(experts, draw(6), std::max(2, 2 * d.pipeline)),
             .plan = {.tensor = d.tensor,
                      .sequence_parallel = d.tensor > 1 && (experts || draw(2) == 0),
                      .context = d.context,
                      .context_kind = d.kind,
                      .pipeline = d.pipeline,
                      .data = d.data,
                      .expert = expert,
                      .expert_tensor = cut ? d.tensor : 1,
                      .micro_batch_size = 1 + int(draw(2)),
                      .zero = d.zero,
                      .recompute = RecomputeOf(experts, draw(6))}};
  q.training.global_batch_size =
      std::int64_t{1} * d.data * q.plan.micro_batch_size * 2 * d.pipeline;
  // Of 24 what ranks and the two chunks of a ring have is no power of two.
  q.training.seq_length = draw(3) == 0 ? 24 * std::max(1, d.context / 2) : 16;
  std::string refused;
  const unsigned first = draw(unsigned(schedules.size()));
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    const ScheduleKind schedule = schedules[(first + s) % schedules.size()].value;
    if (d.pipeline == 1 && schedule != ScheduleKind::k1F1B) continue;
    q.plan.schedule = schedule;
    q.plan.virtual_stages = ChoosesChunks(schedule) ? 2 : 1;
    const auto verdict =
        CheckPlan(q.model, q.training, FindGpu("H100"), std::int64_t(q.plan.gpus()), q.plan);
    if (!verdict) return q;
    refused += fmt::format("{}: {}\n", NameOf(schedule), verdict->detail);
  }
  ADD_FAILURE() << refused;
  return q;
}

TEST(NumericsGrid, EachMeetsEachOther) {
  std::map<std::string, int> met;
  const std::vector<Degrees> grid = Grid();
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const Degrees& d = grid[i];
    const Question q = QuestionOf(d, i);
    if (d.pipeline == 1) continue;
    const std::string schedule(NameOf(q.plan.schedule));
    ++met[fmt::format("{} zero{}", schedule, d.zero)];
    ++met[fmt::format("{} tp{}", schedule, d.tensor)];
    ++met[fmt::format("{} pp{}", schedule, d.pipeline)];
    ++met[fmt::format("{} ep{}", schedule, d.expert)];
    ++met[fmt::format("{} cp{} of kind {}", schedule, d.context, int(d.kind))];
    ++met[fmt::format("{} recompute {} of {} modules and {} layers", schedule,
                      int(q.plan.recompute.granularity), q.plan.recompute.modules.size(),
                      q.plan.recompute.full_layers)];
  }
  for (const auto& [pair, times] : met) EXPECT_GT(times, 2) << pair;
  // Of each schedule with 4 ZeRO stages, 3 tensor degrees, and so on; DualPipe has no pp 3.
  EXPECT_GE(met.size(), TrainingScheduleNames().size() * (4 + 3 + 2 + 4 + 5 + 5));
}

class NumericsGridSlice : public testing::TestWithParam<int> {};

TEST_P(NumericsGridSlice, EqualsTheStepThatIsNotCut) {
  // A prime, so that what is run of a slice is not always of the same degrees.
  const std::size_t stride = std::getenv("MILLWRIGHT_FULL_GRID") != nullptr ? 1
                             : kSanitized                                   ? 97
                                                                            : 23;
  const std::vector<Degrees> grid = Grid();
  int run = 0;
  for (std::size_t i = std::size_t(GetParam()); i < grid.size(); i += kSlices * stride) {
    const ElementType type = i % 7 == 3 ? ElementType::kFp32 : ElementType::kFp64;
    const Question q = QuestionOf(grid[i], i);
    Workload workload = WorkloadOf(q.model, q.training, q.plan);
    // No token may be undecided between experts by as little as what rounding moves.
    const double margin = type == ElementType::kFp64 ? 1e-7 : 1e-4;
    while (q.model.has_moe() && RoutingMargin(workload) < margin) ++workload.seed;
    ExpectAgreement(workload, type);
    if (HasFailure()) return;
    ++run;
  }
  EXPECT_GT(run, 0);
}

INSTANTIATE_TEST_SUITE_P(All, NumericsGridSlice, testing::Range(0, kSlices));

}  // namespace
}  // namespace millwright
