// SPDX-License-Identifier: Apache-2.0
#include "cost_models/gpu_curves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cost_models/deepgemm_tiles.h"

namespace millwright {
namespace {

constexpr const char* kMeasured[] = {"A100", "H100", "H200", "B200", "B300", "GB200", "GB300"};

TEST(ResidualGrid, IsLinearBetweenKnotsAndConstantBeyond) {
  const ResidualGrid grid{.axes = {{0, 2}, {1, 2, 4}}, .values = {0, 1, 2, 10, 11, 12}};
  const auto at = [&](double x, double y) { return grid.At(std::vector{x, y}); };
  EXPECT_DOUBLE_EQ(at(0, 1), 0);
  EXPECT_DOUBLE_EQ(at(2, 4), 12);
  EXPECT_DOUBLE_EQ(at(1, 3), 6.5);  // halfway between 1.5 and 11.5
  EXPECT_DOUBLE_EQ(at(-7, 0), 0);
  EXPECT_DOUBLE_EQ(at(9, 99), 12);
  EXPECT_DOUBLE_EQ(ResidualGrid().At(std::vector{1.0}), 0);
}

// Two tiles of 128 x 256 on a GPU of two multiprocessors are one wave: 2 x 128 x 256 x (k + k0)
// FLOPs a multiprocessor, with nothing else in the way.
TEST(GemmCurve, OneWaveByHand) {
  GpuSpec gpu{.name = "toy", .peak_bf16 = 2_TFLOPS, .hbm_bandwidth = 1000000_GBps, .sm_count = 2};
  GemmCurve curve{.dtype = "bfloat16", .clocks = "burst"};
  curve.efficiency.value = 0.5;
  curve.hbm_efficiency.value = 1;
  curve.launch.value = 1e-6;
  curve.k_overhead.value = 24;
  curve.quantisation.value = 1;
  const double wave = 2 * 128.0 * 256 * (1000 + 24) / 0.5e12;
  EXPECT_NEAR(TimeOf(curve, {.m = 256, .n = 256, .k = 1000}, gpu).value, 1e-6 + wave, 1e-9);
  // One row more: nine strips of 32 rows instead of eight.
  EXPECT_NEAR(TimeOf(curve, {.m = 257, .n = 256, .k = 1000}, gpu).value, 1e-6 + 9.0 / 8 * wave,
              1e-9);
  // At half the clock it takes twice as long, but for the launch.
  EXPECT_NEAR(TimeOf(curve, {.m = 256, .n = 256, .k = 1000}, gpu, 0.5).value, 1e-6 + 2 * wave,
              1e-9);
}

// 132 multiprocessors.  4096 x 7168 are 16 x 56 = 896 tiles of 256 x 128, in 7 waves for 6.8; the
// largest tiles read least.  128 x 7168 go into one wave as 2 x 64 tiles of 64 x 112, whose
// operands are 176 wide, or as 112 of 128 x 64, where they are 192.
TEST(DeepGemmTiles, LeastTrafficWithIdleMultiprocessors) {
  const DeepGemmTiles large = TilesOfDeepGemm(4096, 7168, 7168, 132);
  EXPECT_EQ(large.m, 256);
  EXPECT_EQ(large.n, 128);
  EXPECT_EQ(large.tiles, 896);
  EXPECT_EQ(large.waves, 7);
  EXPECT_TRUE(large.pairs);
  EXPECT_FALSE(large.SlowWave());
  const DeepGemmTiles flat = TilesOfDeepGemm(128, 7168, 7168, 132);
  EXPECT_EQ(flat.m, 64);
  EXPECT_EQ(flat.n, 112);
  EXPECT_EQ(flat.tiles, 128);
  // 112 is seven times 16; 64 rows are one warpgroup's.
  EXPECT_TRUE(flat.OddWidth());
  EXPECT_TRUE(flat.OneWarpgroup());
  EXPECT_FALSE(large.OddWidth());
  EXPECT_FALSE(large.OneWarpgroup());
}

// 1024 x 3072 are 8 x 16 tiles of 128 x 192, which fill 128 of 132; half as many columns more do
// not go into one wave.  1024 x 2048 go into one of 128 x 128.
TEST(DeepGemmTiles, OneWaveOfTheLargest) {
  const DeepGemmTiles one = TilesOfDeepGemm(1024, 3072, 7168, 132);
  EXPECT_EQ(one.m, 128);
  EXPECT_EQ(one.n, 192);
  EXPECT_EQ(one.tiles, 128);
  EXPECT_FALSE(one.pairs);
  EXPECT_TRUE(one.SlowWave());
  EXPECT_FALSE(TilesOfDeepGemm(1024, 4608, 7168, 132).SlowWave());
  EXPECT_FALSE(TilesOfDeepGemm(1024, 2048, 7168, 132).SlowWave());
  // Few rows have tiles of few rows.
  EXPECT_EQ(TilesOfDeepGemm(12, 4096, 7168, 132).m, 16);
}

const GpuSpec kToy{
    .name = "toy", .peak_fp8 = 1980_TFLOPS, .hbm_bandwidth = 1000000_GBps, .sm_count = 132};
// Of its arithmetic alone, at half of its peak.
GemmCurve DeepGemmOnToy() {
  GemmCurve curve{.dtype = "fp8_block", .clocks = "burst"};
  curve.efficiency.value = 0.5;
  curve.hbm_efficiency.value = 1;
  curve.quantisation.value = 1;
  return curve;
}

// The product above at 1.98 PFLOP/s x 0.5 of 132: a wave of 128 x 192 x 7168, three times.
TEST(GemmCurve, DeepGemmsSlowWaveByHand) {
  GemmCurve curve = DeepGemmOnToy();
  curve.slow_wave.value = 3;
  const double wave = 2 * 128.0 * 192 * 7168 / (990e12 / 132);
  EXPECT_NEAR(TimeOf(curve, {.m = 1024, .n = 3072, .k = 7168}, kToy).value, 3 * wave, 1e-9);
  curve.slow_wave.value = 0;  // not measured
  EXPECT_NEAR(TimeOf(curve, {.m = 1024, .n = 3072, .k = 7168}, kToy).value, wave, 1e-9);
}

// 257 x 5120 are 5 x 46 = 230 tiles of 64 x 112, two waves of 132, at 7.5 TFLOP/s each: 1.5 times
// as long for one warpgroup, 1.25 times for 112 columns, and half a strip of 64 rows more for row
// 257. 4096 x 7168 are 7 waves of 256 x 128, of which none of it holds.
TEST(GemmCurve, DeepGemmsTilesByHand) {
  GemmCurve curve = DeepGemmOnToy();
  const double rate = 990e12 / 132, waves = 2 * (2 * 64.0 * 112 * 2560) / rate;
  const GemmShape shape{.m = 257, .n = 5120, .k = 2560};
  EXPECT_NEAR(TimeOf(curve, shape, kToy).value, waves, 1e-9);
  curve.one_warpgroup.value = 1.5;
  EXPECT_NEAR(TimeOf(curve, shape, kToy).value, 1.5 * waves, 1e-9);
  curve.odd_width.value = 1.25;
  EXPECT_NEAR(TimeOf(curve, shape, kToy).value, 1.5 * 1.25 * waves, 1e-9);
  curve.ragged.value = 0.5;
  EXPECT_NEAR(TimeOf(curve, shape, kToy).value, 1.5 * 1.25 * (1 + 0.5 * 64 / 257) * waves, 1e-9);
  EXPECT_NEAR(TimeOf(curve, {.m = 4096, .n = 7168, .k = 7168}, kToy).value,
              7 * (2 * 256.0 * 128 * 7168) / rate, 1e-9);
}

// Two of 100 GB/s exchange 1 GB: half of it on the wire at 80%, and their own halves as in a fifth
// of the time that sending them would take.  Four on a path that they share have a quarter of its
// rate.
TEST(CollectiveCurve, OwnSharesAndSharedPathsByHand) {
  CollectiveCurve curve;
  curve.efficiency.value = 0.8;
  curve.own_share.value = 0.2;
  CollectiveShape shape{.kind = CollectiveKind::kAllGather, .ranks = 2, .bytes = 1_GB};
  EXPECT_NEAR(CollectiveFormula(curve, shape, 100_GBps).value, 0.005 / 0.8 + 0.2 * 0.005, 1e-12);
  // A reduce-scatter adds to its own half as it comes in, here for another tenth of sending it.
  curve.own_reduced.value = 0.1;
  EXPECT_NEAR(CollectiveFormula(curve, shape, 100_GBps).value, 0.005 / 0.8 + 0.2 * 0.005, 1e-12);
  shape.kind = CollectiveKind::kReduceScatter;
  EXPECT_NEAR(CollectiveFormula(curve, shape, 100_GBps).value, 0.005 / 0.8 + 0.3 * 0.005, 1e-12);
  shape.kind = CollectiveKind::kAllGather;
  curve.crowding.value = 2;
  EXPECT_NEAR(CollectiveFormula(curve, shape, 100_GBps).value, 0.005 / 0.8 + 0.2 * 0.005, 1e-12);
  shape.ranks = 4;
  EXPECT_NEAR(CollectiveFormula(curve, shape, 100_GBps).value, 4 * 0.0075 / 0.8 + 0.2 * 0.0025,
              1e-12);
}

TEST(CollectiveCurve, ShapesHaveTheirCoordinates) {
  using enum CollectiveKind;
  for (const CollectiveShape& s :
       {CollectiveShape{kAllReduce, 8, 1_MB, true}, CollectiveShape{kAllReduce, 8, 1_MB},
        CollectiveShape{kAllReduce, 8, 1_MB, false, 1, true, false},
        CollectiveShape{kReduceScatter, 3, 2_GB, false, 1, true},
        CollectiveShape{kReduceScatter, 4, 1_MB}, CollectiveShape{kAllGather, 2, 1_MB},
        CollectiveShape{kAllToAll, 8, 1_MB}, CollectiveShape{kAllReduce, 64, 1_MB, false, 8}}) {
    const std::array<double, 4> at = ResidualCoordinates(s);
    const CollectiveShape back = ShapeAt(at, s);
    EXPECT_EQ(back.kind, s.kind);
    EXPECT_NEAR(back.ranks, s.ranks, 1e-9);
    EXPECT_NEAR(back.bytes / s.bytes, 1, 1e-9);
    EXPECT_NEAR(back.domains, s.domains, 1e-9);
    EXPECT_EQ(ResidualCoordinates(back)[2], at[2]);
  }
}

TEST(GpuCurves, EveryMeasuredGpuHasItsOwn) {
  for (const char* name : kMeasured) {
    const GpuCurves* curves = BuiltInCurves(FindGpu(name));
    ASSERT_NE(curves, nullptr) << name;
    EXPECT_TRUE(SameName(curves->gpu, FindGpu(name).name)) << name;
    EXPECT_NE(FindGemm(*curves, "bfloat16", "burst"), nullptr) << name;
    EXPECT_NE(FindCollective(*curves, "ring", "nccl-tests"), nullptr) << name;
    EXPECT_FALSE(curves->attention.empty()) << name;
  }
  EXPECT_EQ(BuiltInCurves(FindGpu("MI300X")), nullptr);
  EXPECT_EQ(BuiltInCurves(FindGpu("H800")), BuiltInCurves(FindGpu("H100")));
}

TEST(GpuCurves, AFileReadsBackAsWritten) {
  for (const char* name : kMeasured) {
    const GpuCurves& curves = *BuiltInCurves(FindGpu(name));
    const std::string text = WriteCurves(curves);
    EXPECT_TRUE(ParseCurves("x.json", text) == curves) << name;
    EXPECT_EQ(WriteCurves(ParseCurves("x.json", text)), text) << name;
  }
}

TEST(GpuCurves, WrongFilesAreRefused) {
  const std::string start =
      "{\"gpu\": \"x\", \"gemm\": [{\"hbm_efficiency\": 1, \"efficiency\": 1, \"axes\": [\"0\", "
      "\"1\", \"0 1\"], "
      "\"residual\": ";
  const auto mistakes = [&](const std::string& rest) -> std::string {
    try {
      ParseCurves("x.json", start + rest);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(mistakes("[\"1 2 3\"]}]}"),
            "x.json: at /gemm/0/residual: expected 2 numbers, as the axes say, got 3");
  EXPECT_EQ(mistakes("[\"1 nan\"]}]}"),
            "x.json: at /gemm/0/residual: expected numbers with a blank between");
  EXPECT_EQ(mistakes("[\"1 20000\"]}]}"),
            "x.json: at /gemm/0/residual: expected thousandths from -10000 to 10000");
  EXPECT_EQ(mistakes("[\"1 2\"], \"launch_s\": -1}]}"),
            "x.json: at /gemm/0/launch_s: expected a number from 0 to 1, got -1");
}

// Inside the range measured and far outside: finite, never above the datasheet, and twice the work
// hardly ever faster (a residual that falls from knot to knot may bend a curve a little; twice
// DeepGEMM's slow wave is two fast ones, and twice a product may have tiles that are faster).
TEST(GpuCurves, SaneEverywhere) {
  std::mt19937 random(3);
  const auto size = [&](double low, double high) {
    return std::round(std::exp2(std::uniform_real_distribution<double>(low, high)(random)));
  };
  for (const char* name : kMeasured) {
    const GpuSpec& gpu = FindGpu(name);
    const GpuCurves& curves = *BuiltInCurves(gpu);
    for (const GemmCurve& c : curves.gemm) {
      double least = 0.7 / (1 + c.ragged.value);
      for (const Fitted& slower : {c.slow_wave, c.one_warpgroup, c.odd_width}) {
        least /= std::max(1.0, slower.value);
      }
      for (int i = 0; i < 500; ++i) {
        const GemmShape s{.m = size(0, 20), .n = size(3, 20), .k = size(3, 20)};
        const Seconds time = TimeOf(c, s, gpu);
        const double peak = 2 * s.m * s.n * s.k / PeakOf(c.dtype, gpu).value;
        EXPECT_TRUE(std::isfinite(time.value) && time.value >= peak) << name << c.dtype;
        for (double GemmShape::*side : {&GemmShape::m, &GemmShape::n, &GemmShape::k}) {
          GemmShape twice = s;
          twice.*side *= 2;
          EXPECT_GT(TimeOf(c, twice, gpu) / time, least)
              << name << " " << c.dtype << " " << c.clocks << c.stage << " " << s.m << "x" << s.n
              << "x" << s.k;
        }
      }
    }
    for (const AttentionCurve& c : curves.attention) {
      for (int i = 0; i < 200; ++i) {
        const double group = size(0, 4);
        AttentionShape s{.batch = size(0, 8),
                         .queries = size(0, 18),
                         .keys = 0,
                         .heads = group * size(0, 3),
                         .kv_heads = 1,
                         .head_size = size(5, 9),
                         .causal = i % 2 == 0};
        s.keys = s.queries;
        s.kv_heads = s.heads / group;
        const double flops =
            4 * s.batch * s.heads * s.queries * s.keys * s.head_size * (s.causal ? 0.5 : 1);
        const Seconds time = TimeOf(c, s, gpu);
        EXPECT_TRUE(std::isfinite(time.value) && time.value >= flops / gpu.peak_bf16.value)
            << name << " " << c.kernel;
      }
    }
    for (const BandwidthCurve& c : curves.bandwidth) {
      for (double bytes = 1e3; bytes < 1e12; bytes *= 3) {
        EXPECT_TRUE(std::isfinite(TimeOf(c, Bytes(bytes), gpu).value));
      }
    }
    const BytesPerSecond link = 450_GBps;
    for (const CollectiveCurve& c : curves.collective) {
      const CollectiveKind kind = c.op == "alltoall"    ? CollectiveKind::kAllToAll
                                  : c.op == "ring_pass" ? CollectiveKind::kAllGather
                                                        : CollectiveKind::kAllReduce;
      for (double ranks : {2.0, 3.0, 8.0, 72.0}) {
        for (double bytes = 1; bytes < 1e12; bytes *= 3) {
          const Seconds time = TimeOf(c, {kind, ranks, Bytes(bytes), true}, link);
          EXPECT_TRUE(std::isfinite(time.value) &&
                      time >= Bytes(bytes * (ranks - 1) / ranks) / link)
              << name << " " << c.op << " " << c.library;
        }
      }
    }
  }
}

}  // namespace
}  // namespace millwright
