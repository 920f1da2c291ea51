// SPDX-License-Identifier: Apache-2.0
#include "cost_models/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/model_presets.h"

namespace millwright {
namespace {

// Runs 1F1B in order, with a transfer of `c` on every boundary: independent of the closed forms.
double Makespan1F1B(int p, int m, double forward, double backward, double c) {
  struct Step {
    bool forward;
    int micro_batch;
  };
  std::vector<std::vector<Step>> program(p);
  for (int r = 0; r < p; ++r) {
    const int warm = std::min(p - 1 - r, m);
    for (int i = 0; i < warm; ++i) program[r].push_back({true, i});
    for (int i = 0; i < m - warm; ++i) {
      program[r].push_back({true, warm + i});
      program[r].push_back({false, i});
    }
    for (int i = m - warm; i < m; ++i) program[r].push_back({false, i});
  }
  std::vector<std::vector<double>> f(p, std::vector<double>(m, -1)), b = f;
  std::vector<std::size_t> at(p);
  std::vector<double> free(p);
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < p; ++r) {
      while (at[r] < program[r].size()) {
        const Step s = program[r][at[r]];
        double ready = 0;
        if (s.forward && r > 0) {
          ready = f[r - 1][s.micro_batch] < 0 ? -1 : f[r - 1][s.micro_batch] + c;
        } else if (!s.forward) {
          ready = r + 1 < p ? (b[r + 1][s.micro_batch] < 0 ? -1 : b[r + 1][s.micro_batch] + c)
                            : f[r][s.micro_batch];
        }
        if (ready < 0) break;
        free[r] = std::max(free[r], ready) + (s.forward ? forward : backward);
        (s.forward ? f : b)[r][s.micro_batch] = free[r];
        ++at[r];
        moved = true;
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(Bubble, OneForwardOneBackwardByRunningIt) {
  for (int p : {2, 3, 4, 8}) {
    for (int m : {p, 2 * p, 5 * p}) {
      const double makespan = Makespan1F1B(p, m, 1, 2, 0);
      EXPECT_NEAR(makespan / (3.0 * m) - 1, BubbleRatio(p, m, 1), 1e-12) << p << " " << m;
    }
  }
}

TEST(ExposedTransfers, WithinTwoOfTheScheduleItself) {
  for (int p : {2, 3, 4, 5, 8, 16}) {
    for (int m : {p, p + 1, 2 * p, 3 * p + 1, 8 * p}) {
      const double exposed = Makespan1F1B(p, m, 10, 20, 1) - (m + p - 1) * 30.0;
      EXPECT_NEAR(ExposedTransfers1F1B(p, m), exposed, m % p == 0 ? 1e-9 : 2) << p << " " << m;
    }
  }
  EXPECT_EQ(ExposedTransfers1F1B(1, 100), 0);
}

TEST(ChunksInFlight, FollowsTheWarmUp) {
  // 1F1B: min(p - r, m).
  EXPECT_EQ(ChunksInFlight(4, 8, 1, 0), 4);
  EXPECT_EQ(ChunksInFlight(4, 8, 1, 3), 1);
  EXPECT_EQ(ChunksInFlight(16, 2, 1, 0), 2);
  // Interleaved, p 4, v 2: 11 9 7 5 half stages (the schedule's own peaks).
  EXPECT_EQ(ChunksInFlight(4, 8, 2, 0), 11);
  EXPECT_EQ(ChunksInFlight(4, 8, 2, 1), 9);
  EXPECT_EQ(ChunksInFlight(4, 8, 2, 3), 5);
  EXPECT_EQ(ChunksInFlight(4, 4, 2, 0), 8);  // no more than there are
}

TEST(LayersPerChunk, UnevenSplitsSpareTheEnds) {
  // 126 over 16: 7, 14 x 8, 7.
  std::vector<int> expected(16, 8);
  expected.front() = expected.back() = 7;
  EXPECT_EQ(LayersPerChunk(126, 16, 1), expected);
  EXPECT_EQ(LayersPerChunk(80, 8, 1), std::vector<int>(8, 10));
  // 61 over 16: three stages have 3 layers: the last, the first, the last but one.
  expected.assign(16, 4);
  expected[15] = expected[0] = expected[14] = 3;
  EXPECT_EQ(LayersPerChunk(61, 16, 1), expected);
  for (int layers : {5, 61, 126}) {
    for (int chunks = 1; chunks <= layers; ++chunks) {
      const std::vector<int> split = LayersPerChunk(layers, chunks, 1);
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), layers);
      EXPECT_LE(*std::max_element(split.begin(), split.end()) -
                    *std::min_element(split.begin(), split.end()),
                1);
    }
  }
}

TEST(Stages, HoldEveryLayerOnce) {
  const ModelConfig model = PresetModel("deepseek-v3");  // 3 dense, 58 MoE, one MTP module
  for (auto [p, v] : {std::pair{1, 1}, {16, 1}, {4, 3}, {8, 7}}) {
    const auto stages = StagesOf(model, p, v);
    int dense = 0, moe = 0, ranks = 0;
    for (const StageContent& s : stages) {
      dense += s.layers[0];
      moe += s.layers[1];
      EXPECT_EQ(s.chunks.size(), std::size_t(v));
    }
    EXPECT_EQ(dense, 3);
    EXPECT_EQ(moe, 58 + 1);
    EXPECT_TRUE(stages.front().embedding);
    EXPECT_TRUE(stages.back().head);
    for (const StageContent& s : DistinctStages(stages)) ranks += int(s.ranks.size());
    EXPECT_EQ(ranks, p);
  }
  // PP 16: a head is 7168 x 129280 = 0.93 G weights, a layer's active ones 0.60 G, so the last
  // stage's MTP module and two heads weigh 1 + 2 x 1.5 layers, as much as each of 16 stages should:
  // (61 + 4.1) / 16 = 4.1.  It has none of the 61: the others have 4 each, and the first one more.
  const std::vector<StageContent> sixteen = StagesOf(model, 16, 1);
  EXPECT_EQ(sixteen[0].layers, (std::vector<int>{3, 2}));
  EXPECT_EQ(sixteen[0].LeadingLayers(2), (std::vector<int>{2, 0}));
  EXPECT_EQ(sixteen[1].layers, (std::vector<int>{0, 4}));
  EXPECT_EQ(sixteen[15].layers, (std::vector<int>{0, 1}));
}

TEST(Stages, SpreadLayersAreEvenlyApart) {
  // Of six layers two are each third, four two of each three, the first of them always; more than
  // there are, all.
  const auto spread = [](int layers, int of_chunk) {
    std::string text;
    for (int i = 0; i < layers; ++i) text += IsSpread(i, layers, of_chunk) ? 'x' : '.';
    return text;
  };
  EXPECT_EQ(spread(6, 0), "......");
  EXPECT_EQ(spread(6, 1), "x.....");
  EXPECT_EQ(spread(6, 2), "x..x..");
  EXPECT_EQ(spread(6, 3), "x.x.x.");
  EXPECT_EQ(spread(6, 4), "xx.xx.");
  EXPECT_EQ(spread(6, 6), "xxxxxx");
  EXPECT_EQ(spread(6, 9), "xxxxxx");
  EXPECT_EQ(spread(5, 3), "xx.x.");
  // DeepSeek-V3's first of 16 stages has three dense layers and two of experts: the first
  // and third of the five, or the first two and the fourth.
  const std::vector<StageContent> stages = StagesOf(PresetModel("deepseek-v3"), 16, 1);
  EXPECT_EQ(stages[0].SpreadLayers(2), (std::vector<int>{2, 0}));
  EXPECT_EQ(stages[0].SpreadLayers(3), (std::vector<int>{2, 1}));
  EXPECT_EQ(stages[0].SpreadLayers(0), (std::vector<int>{0, 0}));
  EXPECT_EQ(stages[0].SpreadLayers(9), (std::vector<int>{3, 2}));
}

TEST(Stages, EmbeddingAndHeadMayHaveAChunkEach) {
  // 126 layers and those two are 128 chunks of one.
  const ModelConfig model = PresetModel("llama-3.1-405b");
  const std::vector<StageContent> stages = StagesOf(model, 16, 8);
  EXPECT_TRUE(stages.front().chunks.front().empty());
  EXPECT_TRUE(stages.back().chunks.back().empty());
  EXPECT_EQ(stages.front().total_layers, 7);
  EXPECT_EQ(stages[1].total_layers, 8);
}

TEST(ChunkUnevenness, ShorterChunksWaitForLongerOnes) {
  const auto unevenness = [](int layers, int p, int v) {
    const ModelConfig model =
        GptShape({.num_layers = layers, .hidden_size = 64, .num_attention_heads = 1});
    return ChunkUnevenness(DistinctStages(StagesOf(model, p, v)), p);
  };
  EXPECT_DOUBLE_EQ(unevenness(16, 4, 2), 1);
  EXPECT_DOUBLE_EQ(unevenness(126, 16, 1), 1);
  // 12 layers in 8 chunks over 4 ranks: 2 2 2 2 | 1 1 1 1.  Each round is in step with one of 2: 4
  // layers' time for 3, at (4-2)/(4+2) of the excess.
  EXPECT_DOUBLE_EQ(unevenness(12, 4, 2), 1 + 1.0 / 3 * (4.0 / 3 - 1));
  // 10 layers: 1 1 1 1 | 1 2 2 1, the same.
  EXPECT_DOUBLE_EQ(unevenness(10, 4, 2), 1 + 1.0 / 3 * (4.0 / 3 - 1));
  // Two ranks are never held up.
  EXPECT_DOUBLE_EQ(unevenness(6, 2, 2), 1);
}

TEST(ChunksHeldAtPeak, LongerFirstChunksPileUp) {
  // p 2, v 2, m 8, rank 0: warm-up holds 2 + 1 micro-batches of chunk 0 and 2 of chunk 1.  With
  // chunks of 2 and 1 layers, the next group's two forwards through chunk 0 are in before the first
  // group's two backwards through it, which come after those through chunk 1: 5 of chunk 0, none of
  // chunk 1.
  const StageContent rank{.chunks = {{0, 0}, {0}}, .layers = {3}, .total_layers = 3};
  EXPECT_EQ(ChunksHeldAtPeak(2, 8, 2, 0, rank), (std::vector<double>{5, 0}));
  // Equal chunks, or one group of micro-batches: the warm-up is the peak.
  const StageContent even{.chunks = {{0}, {0}}, .layers = {2}, .total_layers = 2};
  EXPECT_EQ(ChunksHeldAtPeak(2, 8, 2, 0, even), (std::vector<double>{3, 2}));
  EXPECT_EQ(ChunksHeldAtPeak(2, 2, 2, 0, rank), (std::vector<double>{2, 2}));
}

TEST(ChunksInFlight, ChunksAddUpToAll) {
  for (auto [p, m, v] : {std::tuple{4, 8, 1}, {4, 8, 2}, {8, 32, 5}, {2, 2, 3}}) {
    for (int rank = 0; rank < p; ++rank) {
      double sum = 0;
      for (int chunk = 0; chunk < v; ++chunk) sum += ChunksInFlight(p, m, v, rank, chunk);
      EXPECT_EQ(sum, ChunksInFlight(p, m, v, rank));
    }
  }
  // p 4, v 2, rank 0: 11 forwards, 4 through chunk 0, 4 through chunk 1, 3 more through chunk 0.
  EXPECT_EQ(ChunksInFlight(4, 8, 2, 0, 0), 7);
  EXPECT_EQ(ChunksInFlight(4, 8, 2, 0, 1), 4);
}

}  // namespace
}  // namespace millwright
