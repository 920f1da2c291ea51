// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/read_config.h"

namespace millwright {
namespace {

TEST(Parallel, RandomConfigsAreWrittenAndReadBackEqual) {
  std::mt19937_64 random(6);
  const auto from = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int round = 0; round < 1000; ++round) {
    ParallelConfig p;
    p.tensor = from(1, 64);
    p.sequence_parallel = from(0, 1) == 1;
    p.context = from(1, 64);
    p.context_kind = static_cast<ContextParallelKind>(from(0, 2));
    p.pipeline = from(1, 64);
    p.virtual_stages = from(1, 8);
    p.data = from(1, 1 << 20);
    p.expert = from(1, 256);
    p.expert_tensor = from(1, 8);
    p.micro_batch_size = from(1, 64);
    p.zero = from(0, 3);
    p.zero_shard = from(0, 64);
    const auto some_recompute = [&] {
      Recompute r{.granularity = static_cast<RecomputeGranularity>(from(0, 2))};
      if (r.granularity == RecomputeGranularity::kFull)
        r.full_layers = from(0, 9);
      else
        r.offload_layers = from(0, 9);
      if (r.granularity == RecomputeGranularity::kSelective) {
        for (int i = 0; i < kRecomputeModules; ++i)
          if (i == round % kRecomputeModules || from(0, 1) == 1)
            r.modules.push_back(static_cast<RecomputeModule>(i));
      }
      return r;
    };
    if (from(0, 1) == 0) {
      p.recompute = some_recompute();
    } else {
      for (int rank = 0; rank < p.pipeline; ++rank) p.rank_recompute.push_back(some_recompute());
    }
    p.schedule = TrainingScheduleNames()[std::size_t(from(0, 11))].value;
    p.order = static_cast<RankOrder>(from(0, 1));
    p.context_ulysses = from(0, 64);
    const std::string text = WriteConfig([&](ConfigIo& io) { Fields(io, p); });
    ASSERT_EQ(Read<ParallelConfig>(text), p) << text;
  }
}

TEST(Parallel, RecomputeFieldsThatWouldBeIgnoredAreRefused) {
  EXPECT_EQ(Complaint<ParallelConfig>(R"({"recompute": {"granularity": "selective"}})"),
            "c.json: at /recompute/modules: selective recompute needs at least one module");
  EXPECT_EQ(
      Complaint<ParallelConfig>(R"({"recompute": {"granularity": "full", "modules": ["mlp"]}})"),
      "c.json: at /recompute/modules: only selective recompute takes modules");
  EXPECT_EQ(Complaint<ParallelConfig>(R"({"recompute": {"full_layers": 2}})"),
            "c.json: at /recompute/full_layers: only full recompute takes a number of layers");
  EXPECT_EQ(
      Complaint<ParallelConfig>(R"({"recompute": {"granularity": "full", "offload_layers": 2}})"),
      "c.json: at /recompute/offload_layers: full recompute leaves nothing to offload");
  EXPECT_EQ(Complaint<ParallelConfig>(R"({"tensor_paralel": 8, "zero": 4})"),
            "c.json: at /zero: expected an integer from 0 to 3, got 4\n"
            "c.json: at /tensor_paralel: unknown field; did you mean \"tensor_parallel\"? accepted "
            "fields: tensor_parallel, sequence_parallel, context_parallel, context_parallel_kind, "
            "pipeline_parallel, virtual_stages, data_parallel, expert_parallel, "
            "expert_tensor_parallel, micro_batch_size, zero, zero_shard, recompute, schedule, "
            "stage_layers, order, context_parallel_ulysses, rank_recompute");
}

TEST(Parallel, RecomputeOfRanksIsOneOfEach) {
  EXPECT_EQ(Complaint<ParallelConfig>(
                R"({"pipeline_parallel": 2, "recompute": {"granularity": "full"},
                    "rank_recompute": [{}, {}, {"granularity": "full"}]})"),
            "c.json: at /rank_recompute: expected one for each of the 2 pipeline ranks, got 3\n"
            "c.json: at /recompute: expected none beside rank_recompute, got full");
  EXPECT_EQ(Complaint<ParallelConfig>(
                R"({"pipeline_parallel": 2, "rank_recompute": [{"full_layers": 2}, {"gran": 1}]})"),
            "c.json: at /rank_recompute/0/full_layers: only full recompute takes a number of "
            "layers\n"
            "c.json: at /rank_recompute/1/gran: unknown field; did you mean \"granularity\"? "
            "accepted fields: granularity, modules, full_layers, offload_layers");
  // Left out where there is none, so that files that have none stay as they were.
  ParallelConfig p{.pipeline = 3};
  const auto text = [&] { return WriteConfig([&](ConfigIo& io) { Fields(io, p); }); };
  EXPECT_EQ(text().find("rank_recompute"), std::string::npos);
  const Recompute full{.granularity = RecomputeGranularity::kFull, .full_layers = 4};
  p.rank_recompute = {full, {.offload_layers = 2}, {}};
  EXPECT_NE(text().find("rank_recompute"), std::string::npos);
  EXPECT_EQ(p.RecomputeOf(1).offload_layers, 2);
  EXPECT_TRUE(p.Offloads());
  EXPECT_EQ(p.Recomputes(), p.rank_recompute);
  EXPECT_EQ(ShortName(p), "tp1 cp1 pp3 vpp1 dp1 mbs1 zero1 full(4)|offload(2)|none");
  p.rank_recompute = {full, {}, {}};
  EXPECT_EQ(RecomputeName(p), "full(4)|2xnone");
  EXPECT_EQ(p.Recomputes(), (std::vector<Recompute>{full, {}}));
  EXPECT_FALSE(p.Offloads());
  p.rank_recompute = {{}, {}, {}};
  EXPECT_EQ(ShortName(p), "tp1 cp1 pp3 vpp1 dp1 mbs1 zero1");
}

// As nested loops count GPUs, the innermost first.
TEST(Parallel, GpusOfRanks) {
  ParallelConfig p{.tensor = 2, .context = 3, .pipeline = 4, .data = 5};
  for (const RankOrder order : {RankOrder::kDataInside, RankOrder::kPipelineInside}) {
    p.order = order;
    const bool inside = order == RankOrder::kPipelineInside;
    int gpu = 0;
    for (int outer = 0; outer < (inside ? p.data : p.pipeline); ++outer)
      for (int inner = 0; inner < (inside ? p.pipeline : p.data); ++inner)
        for (int c = 0; c < p.context; ++c)
          for (int t = 0; t < p.tensor; ++t) {
            const int d = inside ? outer : inner, stage = inside ? inner : outer;
            const int rank = t + p.tensor * (c + p.context * (d + p.data * stage));
            EXPECT_EQ(GpuOf(p, rank), gpu++);
          }
  }
  p.data = 1;  // nobody to lie between
  EXPECT_FALSE(p.placed_otherwise());
  EXPECT_EQ(ShortName(p), "tp2 cp3 pp4 vpp1 dp1 mbs1 zero1");
  p.data = 2;
  EXPECT_EQ(ShortName(p), "tp2 cp3 pp4 vpp1 dp2 mbs1 zero1 pp-dp");
}

// Each context rank is in one all-to-all and one ring: u x r = c.
TEST(Parallel, ContextRanksAreExchangersTimesRing) {
  ParallelConfig p{.context = 12};
  const auto both = [&] { return std::pair(p.ulysses_ranks(), p.ring_ranks()); };
  EXPECT_EQ(both(), std::pair(1, 12));
  EXPECT_EQ(ContextCell(p), "12");
  p.context_kind = ContextParallelKind::kUlysses;
  EXPECT_EQ(both(), std::pair(12, 1));
  EXPECT_EQ(ContextCell(p), "12u");
  p.context_kind = ContextParallelKind::kNested;
  p.context_ulysses = 4;
  EXPECT_EQ(both(), std::pair(4, 3));
  EXPECT_EQ(ContextCell(p), "12u4");
}

TEST(Parallel, ShortNames) {
  ParallelConfig p{
      .tensor = 8, .sequence_parallel = true, .pipeline = 4, .virtual_stages = 2, .data = 4};
  EXPECT_EQ(ShortName(p), "tp8 sp cp1 pp4 vpp2 dp4 mbs1 zero1");
  p.recompute = {
      RecomputeGranularity::kSelective, {RecomputeModule::kCoreAttn, RecomputeModule::kMlp}, 0};
  EXPECT_EQ(ShortName(p), "tp8 sp cp1 pp4 vpp2 dp4 mbs1 zero1 selective(core_attn,mlp)");
  p = {.context = 2,
       .context_kind = ContextParallelKind::kUlysses,
       .data = 64,
       .expert = 8,
       .micro_batch_size = 2,
       .zero = 3,
       .zero_shard = 8,
       .recompute = {RecomputeGranularity::kFull, {}, 4}};
  EXPECT_EQ(ShortName(p), "tp1 cp2 ulysses pp1 vpp1 dp64 ep8 etp1 mbs2 zero3/8 full(4)");
  EXPECT_EQ(p.gpus(), 128);  // 2 x 64
  p = {.context = 16, .context_kind = ContextParallelKind::kNested, .context_ulysses = 4};
  EXPECT_EQ(ShortName(p), "tp1 cp16 nested(4) pp1 vpp1 dp1 mbs1 zero1");
  EXPECT_EQ(ShortName(Recompute{}), "none");
  EXPECT_EQ(ShortName(Recompute{.offload_layers = 3}), "offload(3)");
  EXPECT_EQ(ShortName(ParallelConfig{.recompute = {.offload_layers = 3}}),
            "tp1 cp1 pp1 vpp1 dp1 mbs1 zero1 offload(3)");
  EXPECT_EQ(ShortName(Recompute{RecomputeGranularity::kSelective, {RecomputeModule::kMlp}, 0, 2}),
            "selective(mlp) offload(2)");
  EXPECT_EQ(ShortName(Recompute{RecomputeGranularity::kFull, {}, 0}), "full");
}

}  // namespace
}  // namespace millwright
