// SPDX-License-Identifier: Apache-2.0
#include "validate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/config_io.h"
#include "cost_models/deepgemm_tiles.h"
#include "validate/robust_fit.h"
#include "validate/source_class.h"

namespace millwright {
namespace {

using testing::SizeIs;

// y = a + b x, a in (0, inf), b in (0, 1).
std::vector<Fitted> FitLine(const std::vector<double>& x, const std::vector<double>& y) {
  const std::vector<FitParameter> parameters{{ParameterKind::kAboveZero, 1},
                                             {ParameterKind::kShare, 0.5}};
  return FitParameters(parameters, x.size(),
                       [&](std::span<const double> v, std::span<double> logs) {
                         for (std::size_t i = 0; i < x.size(); ++i) {
                           logs[i] = std::log((v[0] + v[1] * x[i]) / y[i]);
                         }
                       });
}

TEST(RobustFit, RecoversNoiseFreeParameters) {
  std::vector<double> x, y;
  for (int i = 0; i < 40; ++i) {
    x.push_back(std::exp2(i / 4.0));
    y.push_back(7 + 0.3 * x.back());
  }
  const std::vector<Fitted> fit = FitLine(x, y);
  EXPECT_NEAR(fit[0].value, 7, 7e-4);
  EXPECT_NEAR(fit[1].value, 0.3, 3e-5);
}

// A tenth of the rows are ten times off; the others carry 5% noise.  Of 40 repeats nearly all must
// have the truth within three stated errors, and the errors must not be stated too wide either.
TEST(RobustFit, NoisyRowsStayWithinTheStatedError) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 0.05);
  int within = 0;
  double widest = 0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::vector<double> x, y;
    for (int i = 0; i < 200; ++i) {
      x.push_back(std::exp2(i / 20.0));
      y.push_back((7 + 0.3 * x.back()) * std::exp(noise(random)));
      if (i % 10 == 3) y.back() *= 10;
    }
    const std::vector<Fitted> fit = FitLine(x, y);
    within += std::abs(fit[1].value - 0.3) < 3 * fit[1].error &&
              std::abs(fit[0].value - 7) < 3 * fit[0].error;
    widest = std::max(widest, fit[1].error);
  }
  EXPECT_GE(within, 36);
  EXPECT_LT(widest, 0.01);  // 3%
}

TEST(RobustFit, AParameterThatNoRowDependsOnStaysTypical) {
  const std::vector<FitParameter> parameters{{ParameterKind::kAboveZero, 3}};
  const auto fit = FitParameters(parameters, 10, [](std::span<const double>, std::span<double> l) {
    for (double& v : l) v = 0.1;
  });
  EXPECT_NEAR(fit[0].value, 3, 1e-9);
}

TEST(ResidualGrid, FitsWhatVariesAndFadesToNothing) {
  // The residual is 0.2 at knots 0 and 1 and -0.1 at knot 3; nothing is known beyond.
  ResidualGrid grid{.axes = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}};
  std::vector<ResidualRow> rows;
  for (int i = 0; i < 20; ++i) {
    rows.push_back({{0}, 0.2});
    rows.push_back({{1}, 0.2});
    rows.push_back({{3}, -0.1});
  }
  FitResiduals(grid, rows, {.neighbours = 0.1, .zero = 0.02});
  const auto at = [&](double x) { return grid.At(std::vector{x}); };
  EXPECT_NEAR(at(0.5), 0.2, 0.005);
  EXPECT_NEAR(at(3), -0.1, 0.005);
  EXPECT_NEAR(at(2), 0.05, 0.01);  // between its neighbours
  EXPECT_LT(std::abs(at(9)), 0.05);
  EXPECT_DOUBLE_EQ(at(-5), at(0));
}

// Two lines of one shape, the second 0.3 above: where it has no row, its value follows the first's.
TEST(ResidualGrid, ALineFollowsTheOneBesideIt) {
  const std::vector<double> first{0, 0.1, 0.6, 0.1, 0};
  std::vector<ResidualRow> rows;
  for (std::size_t i = 0; i < first.size(); ++i) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      rows.push_back({{double(i), 0}, first[i]});
      if (i != 2) rows.push_back({{double(i), 1}, first[i] + 0.3});
    }
  }
  ResidualGrid grid{.axes = {{0, 1, 2, 3, 4}, {0, 1}}};
  const auto there = [&](double parallel) {
    FitResiduals(
        grid, rows,
        {.neighbours = 0.001, .zero = 0.001, .curvature = 0.001, .parallel = {0, parallel}});
    return grid.At(std::vector<double>{2, 1});
  };
  EXPECT_NEAR(there(1), 0.9, 0.02);
  EXPECT_LT(there(0), 0.6);
}

TEST(SourceClass, StacksWithoutVersions) {
  EXPECT_EQ(StackOf("aic:h100_sxm/attention/vllm/0.24.0:vllm_flash_attn_fa3"),
            "attention/vllm/vllm_flash_attn_fa3");
  EXPECT_EQ(StackOf("vidur:compute/a100/meta-llama/Llama-2-7b-hf:attn_post_proj (sum)"), "vidur");
  EXPECT_EQ(StackOf("flash-attention assets/flash3_fp16_fwd.png (bar labels) FA3"),
            "flash-attention FA3");
  EXPECT_EQ(StackOf("mine"), "mine");
  EXPECT_STREQ(ClocksOf("simumax:b200_bf16_ceperm:TE general_gemm"), "sustained");
  EXPECT_STREQ(ClocksOf("aic:h100_sxm/gemm/trtllm/1.0:torch_flow"), "burst");
  EXPECT_STREQ(ClocksOf("aic:h100_sxm/gemm/sglang/0.5.14:sglang_torch_linear"), "warm");
  EXPECT_STREQ(ClocksOf("aic:h100_sxm/gemm/sglang/0.5.14:sglang_deepgemm_gemm_nt_f8f8bf16"),
               "burst");
  EXPECT_TRUE(HoldsCast("fp8", "aic:h100_sxm/gemm/trtllm/1.3.0rc20:torch_flow"));
  EXPECT_TRUE(
      HoldsCast("fp8_block", "aic:h100_sxm/gemm/sglang/0.5.14:sglang_deepgemm_gemm_nt_f8f8bf16"));
  EXPECT_FALSE(HoldsCast("fp8_block", "DeepGEMM README@a9967bc (2025) H800 SXM5"));
  EXPECT_FALSE(HoldsCast("bfloat16", "aic:h100_sxm/gemm/trtllm/1.0:torch_flow"));
  EXPECT_EQ(LibraryOf({.library = "nccl-tests NCCL~2.27 (rows say 2.29.2), median of 4"}),
            "nccl-tests");
  EXPECT_EQ(LibraryOf({.library = "custom allreduce vLLM_custom_graph vllm 0.24.0"}),
            "vLLM_custom_graph");
  EXPECT_TRUE(IsRecent({.library = "nccl-tests NCCL~2.27 (rows say 2.29.2), median of 4"}));
  EXPECT_FALSE(IsRecent({.library = "nccl-tests NCCL~2.29 (rows say 2.8.4), median of 1"}));
  EXPECT_FALSE(IsRecent({.library = "nccl-tests NCCL unstated"}));
  MeasuredCollective c{
      .topology = "8x400G NDR IB", .library = "nccl-tests", .nodes = 2, .gpus = 16};
  EXPECT_EQ(FabricOf(c), "IB");
  c.library = "nccl-tests NCCL (unstated) MIN_CTAS=24 IB_QPS=2";
  EXPECT_EQ(FabricOf(c), "IB, more queue pairs");
}

GemmCurve KnownGemm() {
  GemmCurve curve{.dtype = "bfloat16", .clocks = "burst"};
  curve.efficiency.value = 0.9;
  curve.hbm_efficiency.value = 0.7;
  curve.launch.value = 4e-6;
  curve.k_overhead.value = 150;
  curve.tile_overhead.value = 12;
  curve.quantisation.value = 0.6;
  curve.split_cost.value = 2;
  return curve;
}

// Shapes over four decades, each time off by `noise`.
MeasurementSet Synthetic(double noise, unsigned seed) {
  const GpuSpec& gpu = FindGpu("H100");
  MeasurementSet set{.files = {"synthetic"}};
  std::mt19937 random(seed);
  std::normal_distribution<double> gauss(0, noise);
  std::uniform_real_distribution<double> log(4, 14);
  for (int i = 0; i < 1200; ++i) {
    const auto size = [&] { return std::int64_t(std::exp2(log(random))); };
    const MeasuredGemm g{size(), size(), size()};
    Measurement row{.gpu = "H100", .dtype = "bfloat16", .source = "synthetic"};
    const GemmShape shape{.m = double(g.m), .n = double(g.n), .k = double(g.k)};
    row.time = std::exp(noise > 0 ? gauss(random) : 0) * TimeOf(KnownGemm(), shape, gpu);
    row.operation = g;
    set.rows.push_back(row);
  }
  return set;
}

TEST(Calibrate, RecoversAKnownGpuFromNoiseFreeRows) {
  const GpuCurves curves = Calibrate(Synthetic(0, 1), "H100", nullptr);
  ASSERT_THAT(curves.gemm, SizeIs(1));
  const GemmCurve& fit = curves.gemm[0];
  const GemmCurve known = KnownGemm();
  EXPECT_NEAR(fit.efficiency.value, known.efficiency.value, 0.009);
  EXPECT_NEAR(fit.hbm_efficiency.value, known.hbm_efficiency.value, 0.007);
  EXPECT_NEAR(fit.launch.value, known.launch.value, 0.04e-6);
  EXPECT_NEAR(fit.k_overhead.value, known.k_overhead.value, 3);
  EXPECT_NEAR(fit.tile_overhead.value, known.tile_overhead.value, 0.6);
  EXPECT_NEAR(fit.quantisation.value, known.quantisation.value, 0.02);
  EXPECT_LT(fit.fit.p90_ape, 0.01);
  EXPECT_LT(fit.fit.cv_p90_ape, 0.01);
  EXPECT_EQ(fit.fit.rows, 1200);
}

// DeepGEMM's products with their quantised activations: what its tiles cost, and what quantising
// does, are told apart.
TEST(Calibrate, RecoversDeepGemmsTiles) {
  GemmCurve known = KnownGemm();
  known.dtype = "fp8_block";
  known.launch.value = 2.5e-6;  // as is taken where there is no product in BF16
  known.split_cost.value = 0;
  known.slow_wave.value = 2.8;
  known.one_warpgroup.value = 1.3;
  known.odd_width.value = 1.2;
  known.ragged.value = 0.4;
  known.cast_launch.value = 2e-6;
  known.cast_efficiency.value = 0.7;
  MeasurementSet set{.files = {"synthetic"}};
  const GpuSpec& gpu = FindGpu("H100");
  int slow = 0;
  for (int m : {16, 64, 192, 256, 257, 512, 768, 769, 1024, 2048, 3584, 4096, 8192}) {
    for (int n : {512, 768, 1536, 3072, 4096, 7168, 12288}) {
      for (int k : {512, 2048, 7168, 16384}) {
        const GemmShape shape{.m = double(m), .n = double(n), .k = double(k)};
        slow += TilesOfDeepGemm(m, n, k, gpu.sm_count).SlowWave() ? 1 : 0;
        set.rows.push_back({.gpu = "H100",
                            .dtype = "fp8_block",
                            .source = "aic:h100_sxm/gemm/sglang/0.5.14:deepgemm",
                            .time = TimeWithCast(known, shape, gpu),
                            .operation = MeasuredGemm{m, n, k}});
      }
    }
  }
  EXPECT_GE(slow, 10);
  const GpuCurves curves = Calibrate(set, "H100", nullptr, false);
  ASSERT_THAT(curves.gemm, SizeIs(1));
  const GemmCurve& fit = curves.gemm[0];
  EXPECT_NEAR(fit.slow_wave.value, 2.8, 0.06);
  EXPECT_NEAR(fit.one_warpgroup.value, 1.3, 0.02);
  EXPECT_NEAR(fit.odd_width.value, 1.2, 0.01);
  EXPECT_NEAR(fit.ragged.value, 0.4, 0.02);
  EXPECT_NEAR(fit.cast_efficiency.value, 0.7, 0.03);
  EXPECT_EQ(fit.split_cost.value, 0);
  EXPECT_LT(fit.fit.p90_ape, 0.01);
}

// Covariances of exp(-distance), a Markov process: beyond the last of rows without noise only it
// counts, a distance of 1 away by exp(-1).  A row between two knots says the same of both: it
// varies as their mean, c = (1 + exp(-1)) / 2, and strays from it by 1 - 2 exp(-1/2) + c.
TEST(FitResiduals, ByCovarianceByHand) {
  const Covariance covariance = [](std::span<const double> a, std::span<const double> b) {
    return std::exp(-std::abs(a[0] - b[0]));
  };
  ResidualGrid grid{.axes = {{0, 1, 2}}};
  FitResiduals(grid, std::vector<ResidualRow>{{{0}, 0.3}, {{1}, -0.2}, {{1}, -0.1}, {{1}, -0.2}},
               covariance, 1e-9);
  EXPECT_NEAR(grid.values[0], 0.3, 1e-6);
  EXPECT_NEAR(grid.values[1], -0.2, 1e-6);  // the median
  EXPECT_NEAR(grid.values[2], -0.2 * std::exp(-1.0), 1e-6);
  grid = {.axes = {{0, 1}}};
  FitResiduals(grid, std::vector<ResidualRow>{{{0.5}, 0.05}}, covariance, 0);
  const double c = (1 + std::exp(-1.0)) / 2, strays = 1 - 2 * std::exp(-0.5) + c;
  EXPECT_NEAR(grid.values[0], 0.05 * c / (c + strays), 1e-9);
  EXPECT_NEAR(grid.values[1], 0.05 * c / (c + strays), 1e-9);
}

TEST(Calibrate, NoisyRowsStayWithinTheStatedError) {
  const GemmCurve known = KnownGemm();
  int within = 0, all = 0;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const GpuCurves curves = Calibrate(Synthetic(0.05, seed), "H100", nullptr, false);
    const GemmCurve& fit = curves.gemm.at(0);
    for (const auto member :
         {&GemmCurve::efficiency, &GemmCurve::hbm_efficiency, &GemmCurve::launch,
          &GemmCurve::k_overhead, &GemmCurve::quantisation}) {
      ++all;
      within += std::abs((fit.*member).value - (known.*member).value) < 3 * (fit.*member).error;
    }
    EXPECT_LT(fit.efficiency.error / fit.efficiency.value, 0.03);
    EXPECT_LT(fit.fit.median_ape, 0.05);  // of 5% noise the median is 3.4%
  }
  EXPECT_GE(within, all - 1);
}

TEST(Calibrate, TakesFromTheBaseWhatWasNotMeasured) {
  GpuCurves base{.gpu = "H100-SXM"};
  base.gemm.push_back(KnownGemm());
  base.gemm.back().dtype = "fp8";
  base.gemm.back().fit.source = "somebody";
  const GpuCurves curves = Calibrate(Synthetic(0, 1), "H100", &base, false);
  ASSERT_THAT(curves.gemm, SizeIs(2));
  EXPECT_EQ(curves.gemm[1].dtype, "fp8");
  EXPECT_EQ(curves.gemm[1].fit.source, "somebody (of H100-SXM)");
  EXPECT_EQ(curves.provenance,
            "millwright calibrate, 1200 rows of H100-SXM; the rest from H100-SXM");
}

// Operations of a ring in a domain of `gpu`, as `known` has them without noise.
MeasurementSet RingRows(const char* gpu, const CollectiveCurve& known, BytesPerSecond link) {
  MeasurementSet set{.files = {"synthetic"}};
  for (const char* op : {"all_reduce", "reduce_scatter", "all_gather"}) {
    for (int ranks : {2, 4, 8}) {
      for (int log = 9; log < 32; ++log) {
        const MeasuredCollective c{.op = op,
                                   .topology = "one node",
                                   .library = "nccl-tests",
                                   .nodes = 1,
                                   .gpus = ranks,
                                   .bytes = Bytes(std::exp2(log))};
        const CollectiveShape shape{.kind = *KindOf(op), .ranks = double(ranks), .bytes = c.bytes};
        set.rows.push_back({.gpu = gpu,
                            .dtype = "float",
                            .source = "synthetic",
                            .time = CollectiveFormula(known, shape, link),
                            .operation = c});
      }
    }
  }
  return set;
}

CollectiveCurve KnownRing() {
  CollectiveCurve known;
  known.base.value = 8e-6;
  known.step.value = 1.1e-6;
  known.efficiency.value = 0.7;
  known.sqrt_coefficient.value = 5e-9;
  known.own_share.value = 0.5;
  known.own_reduced.value = 0.3;
  return known;
}

TEST(Calibrate, RecoversAKnownRingFromNoiseFreeRows) {
  const CollectiveCurve known = KnownRing();
  const GpuCurves curves = Calibrate(RingRows("H100", known, 450_GBps), "H100", nullptr);
  ASSERT_THAT(curves.collective, SizeIs(1));
  const CollectiveCurve& fit = curves.collective[0];
  EXPECT_EQ(fit.op, "ring");
  EXPECT_NEAR(fit.base.value, known.base.value, 0.01 * known.base.value);
  EXPECT_NEAR(fit.step.value, known.step.value, 0.01 * known.step.value);
  EXPECT_NEAR(fit.efficiency.value, known.efficiency.value, 0.01 * known.efficiency.value);
  EXPECT_NEAR(fit.sqrt_coefficient.value, 5e-9, 0.2e-9);
  EXPECT_NEAR(fit.own_share.value, known.own_share.value, 0.02);
  EXPECT_NEAR(fit.own_reduced.value, known.own_reduced.value, 0.02);
  EXPECT_EQ(fit.crowding.value, 0);
  EXPECT_LT(fit.fit.cv_p90_ape, 0.01);
}

// A protocol that begins at 8 MiB a rank and takes a fifth longer: where one operation's size was
// left out, the others' at the same share say so, and beyond the sizes measured it goes on.
TEST(Calibrate, WhatFormulasLeaveOverIsAlikeAtAShareOfARank) {
  const CollectiveCurve known = KnownRing();
  MeasurementSet set = RingRows("H100", known, 450_GBps);
  const auto ring = [](const MeasuredCollective& c) { return double(c.bytes / Bytes(c.gpus)); };
  std::erase_if(set.rows, [&](Measurement& row) {
    const auto& c = std::get<MeasuredCollective>(row.operation);
    if (ring(c) >= 1 << 23) row.time = 1.2 * row.time;
    return c.op == "all_reduce" && c.gpus == 4 && c.bytes == Bytes(1 << 26);
  });
  const GpuCurves curves = Calibrate(set, "H100", nullptr);
  ASSERT_THAT(curves.collective, SizeIs(1));
  const auto over = [&](double log) {
    const CollectiveShape shape{
        .kind = CollectiveKind::kAllReduce, .ranks = 4, .bytes = Bytes(std::exp2(log))};
    return TimeOf(curves.collective[0], shape, 450_GBps) /
           CollectiveFormula(known, shape, 450_GBps);
  };
  EXPECT_NEAR(over(26), 1.2, 0.03);
  EXPECT_NEAR(over(24), 1.0, 0.03);
  EXPECT_NEAR(over(32), 1.2, 0.05);
  EXPECT_NEAR(over(33), 1.2, 0.05);
}

TEST(Calibrate, RanksThatShareALinkCrowdEachOther) {
  CollectiveCurve known = KnownRing();
  known.crowding.value = 2;
  const GpuCurves curves = Calibrate(RingRows("L40S", known, 32_GBps), "L40S", nullptr, false);
  ASSERT_THAT(curves.collective, SizeIs(1));
  EXPECT_NEAR(curves.collective[0].crowding.value, 2, 0.04);
}

// 25 us and 300 GB/s on InfiniBand, whose first call took 80 us; RoCE takes a quarter longer, and
// is measured at four sizes only.
TEST(Calibrate, AFabricOfFewRowsIsLikeTheOthers) {
  MeasurementSet set{.files = {"synthetic"}};
  const auto truth = [](double bytes) { return 25e-6 + 2 * 15.0 / 16 * bytes / 300e9; };
  const auto add = [&](const char* fabric, int log, double seconds) {
    set.rows.push_back({.gpu = "H100",
                        .dtype = "float",
                        .source = "synthetic",
                        .time = Seconds(seconds),
                        .operation = MeasuredCollective{.op = "all_reduce",
                                                        .topology = fabric,
                                                        .library = "nccl-tests",
                                                        .nodes = 2,
                                                        .gpus = 16,
                                                        .bytes = Bytes(std::exp2(log))}});
  };
  for (int log = 3; log <= 33; ++log) {
    add("8x400G IB", log, log == 3 ? 80e-6 : truth(std::exp2(log)));
  }
  for (int log : {26, 27, 29, 31}) add("8x400G RoCE", log, 1.25 * truth(std::exp2(log)));
  const GpuCurves curves = Calibrate(set, "H100", nullptr, false);
  const auto time = [&](const char* fabric, int log) {
    const CollectiveCurve* curve = FindCollective(curves, "all_reduce", "nccl-tests", fabric);
    const CollectiveShape shape{.ranks = 16, .bytes = Bytes(std::exp2(log)), .domains = 2};
    return TimeOf(*curve, shape, 400_GBps).value / truth(std::exp2(log));
  };
  EXPECT_NEAR(time("IB", 10), 1, 0.05);
  EXPECT_NEAR(time("IB", 28), 1, 0.03);
  EXPECT_NEAR(time("RoCE", 28), 1.25, 0.05);
  EXPECT_NEAR(time("RoCE", 30), 1.25, 0.05);
  // Nobody measured it: between the two.
  EXPECT_EQ(FindCollective(curves, "all_reduce", "nccl-tests", "EFA")->fabric, kAnyFabric);
  EXPECT_GT(time("EFA", 29), 0.99);
  EXPECT_LT(time("EFA", 29), 1.26);
}

TEST(Calibrate, NamesTheGpusThatThereAre) {
  try {
    Calibrate(Synthetic(0, 1), "B200", nullptr);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "no measurement is of B200; there are some of H100");
  }
}

}  // namespace
}  // namespace millwright
