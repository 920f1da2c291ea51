// SPDX-License-Identifier: Apache-2.0
#include "validate/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "validate/links.h"
#include "validate/predict_operation.h"

namespace millwright {
namespace {

using testing::SizeIs;

Measurement Gemm(double factor) {
  Measurement row{.gpu = "H100", .dtype = "bfloat16", .source = "x"};
  row.operation = MeasuredGemm{4096, 4096, 4096};
  row.time = PredictOperation(row).time / factor;
  return row;
}

TEST(ValidateOps, ErrorsFloorAndOutliers) {
  // Predicted over measured is 1.1, 0.8, 1 and 100.
  MeasurementSet set{.files = {"x"}};
  for (double factor : {1.1, 0.8, 1.0, 100.0}) set.rows.push_back(Gemm(factor));
  set.rows[2].operation = MeasuredGemm{4096, 4096, 2048};
  set.rows[2].time = PredictOperation(set.rows[2]).time;
  set.rows.push_back({.gpu = "A40", .dtype = "bfloat16"});
  const OpsValidation v = ValidateOps(set, PredictOperations(set));

  ASSERT_THAT(v.tables, SizeIs(2));  // gemm, and its part with m, n, k >= 512
  EXPECT_EQ(v.tables[0].name, "gemm");
  ASSERT_THAT(v.tables[0].groups, SizeIs(1));
  const OpsGroup& group = v.tables[0].groups[0];
  EXPECT_EQ(group.name, "H100/bfloat16");
  EXPECT_EQ(group.errors.n, 4u);
  // Errors 0.1, -0.2, 0 and 99; quantiles are between the sorted ones: 0, 0.1, 0.2 and 99 by size.
  EXPECT_NEAR(group.errors.median_ape, 0.15, 1e-12);
  EXPECT_NEAR(group.errors.p90_ape, 0.2 + 0.7 * 98.8, 1e-9);
  EXPECT_NEAR(group.errors.bias, 0.05, 1e-12);
  EXPECT_EQ(group.worst[0].row, 3u);
  // Three rows share a key; times are T/1.1, T/0.8 and T/100, of which the middle one is best.
  EXPECT_EQ(group.floor.n, 3u);
  EXPECT_NEAR(group.floor.median_ape, 1 - 0.8 / 1.1, 1e-12);
  ASSERT_THAT(v.flagged, SizeIs(1));
  EXPECT_EQ(v.flagged[0].what.substr(v.flagged[0].what.find(" us")),
            " us, 95 times faster than its neighbours: m 4096 n 4096 k 4096");
  ASSERT_THAT(v.unsupported, SizeIs(1));
  EXPECT_EQ(v.unsupported[0].reason, "no datasheet of A40");
}

TEST(Links, NicsOfATopology) {
  EXPECT_DOUBLE_EQ(NicBandwidth("H100 8/node, 8x400G NDR IB")->value, 400e9);
  EXPECT_DOUBLE_EQ(NicBandwidth("H100 8x NVSwitch, 32x100G EFA")->value, 400e9);
  EXPECT_FALSE(NicBandwidth("8x NVSwitch single node").has_value());

  MeasuredCollective c{.op = "all_reduce", .topology = "8x200G", .nodes = 2, .gpus = 16};
  const PathProfile path = *PathOf(c, FindGpu("H100"));
  EXPECT_EQ(path.ranks, 16);
  EXPECT_EQ(path.max_ranks_per_domain, 8);
  EXPECT_DOUBLE_EQ(path.fabric_bandwidth.value, 25e9);  // 8 x 200 Gb/s over 8 GPUs
  EXPECT_DOUBLE_EQ(path.domain_bandwidth.value, 450e9);
  c.topology = "H200 1 GPU/node, 1x400G RoCE";
  c.gpus = 2;
  EXPECT_DOUBLE_EQ(PathOf(c, FindGpu("H200"))->fabric_bandwidth.value, 50e9);
  EXPECT_FALSE(PathOf(c, GpuSpec{.name = "mine"}).has_value());
}

}  // namespace
}  // namespace millwright
