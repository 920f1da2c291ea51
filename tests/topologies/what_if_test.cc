// SPDX-License-Identifier: Apache-2.0
#include "topologies/what_if.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

using namespace literals;

std::string MessageOf(const std::string& text) {
  ClusterConfig cluster = FindCluster("dgx-a100");
  try {
    ApplyWhatIf(cluster, text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(WhatIf, ReplacesAndScales) {
  ClusterConfig cluster = FindCluster("dgx-h100");
  ApplyWhatIf(cluster, "hbm=141GiB,ib=800Gb/s,nvlink=+10%,hbm-bandwidth=-50%,switch-latency=1us");
  EXPECT_EQ(cluster.gpu.hbm_capacity, 141_GiB);
  EXPECT_EQ(cluster.nic_bandwidth, 800_Gbps);
  EXPECT_DOUBLE_EQ(cluster.nvlink_bandwidth.value, 495e9);    // 450 GB/s and a tenth
  EXPECT_DOUBLE_EQ(cluster.gpu.hbm_bandwidth.value, 1675e9);  // half of 3,350 GB/s
  EXPECT_EQ(cluster.switch_latency, 1_us);
  EXPECT_EQ(cluster.name,
            "dgx-h100 with hbm=141GiB,ib=800Gb/s,nvlink=+10%,hbm-bandwidth=-50%,"
            "switch-latency=1us");
}

TEST(WhatIf, FlopsAreOfEveryPrecision) {
  ClusterConfig cluster = FindCluster("dgx-b200");
  const GpuSpec before = cluster.gpu;
  ApplyWhatIf(cluster, "flops=+100%");
  for (const Precision p : {Precision::kBf16, Precision::kFp8, Precision::kNvfp4}) {
    EXPECT_DOUBLE_EQ(cluster.gpu.peak(p).value, 2 * before.peak(p).value);
  }
}

TEST(WhatIf, EachNameScalesItsField) {
  for (const WhatIfName& n : WhatIfNames()) {
    const ClusterConfig before = FindCluster("dgx-b200");
    ClusterConfig after = before;
    EXPECT_TRUE(Scale(after, n.name, 2)) << n.name;
    EXPECT_NE(before, after) << n.name;
    EXPECT_FALSE(WhatIfValue(before, n.name).empty()) << n.name;
    EXPECT_TRUE(Scale(after, n.name, 0.5));
    EXPECT_EQ(before, after) << n.name;
  }
}

TEST(WhatIf, Mistakes) {
  EXPECT_EQ(MessageOf("hbn=1GiB,nvlink=5,fp8=1PFLOP/s,flops=3,"),
            "--what-if: unknown \"hbn\", did you mean \"hbm\"?; there are hbm, hbm-bandwidth, "
            "flops, bf16, fp8, fp4, nvlink, ib, pcie, nvlink-latency, ib-latency, switch-latency\n"
            "--what-if: nvlink: expected a quantity such as \"400 Gb/s\" or a change such as +10%, "
            "got \"5\"\n"
            "--what-if: fp8: dgx-a100 has none\n"
            "--what-if: flops: expected a change such as +10%, got \"3\"\n"
            "--what-if: unknown \"\"; there are hbm, hbm-bandwidth, flops, bf16, fp8, fp4, nvlink, "
            "ib, pcie, nvlink-latency, ib-latency, switch-latency");
  EXPECT_EQ(MessageOf("hbm=90GiB,ib=+10%,hbm=80GiB,hbm=70GiB"),
            "--what-if: hbm: given more than once");
  EXPECT_EQ(MessageOf("ib=-100%"),
            "--what-if: at /nic_bandwidth: must be at least 1 B/s with 8 NICs");
}

}  // namespace
}  // namespace millwright
