// SPDX-License-Identifier: Apache-2.0
#include "core/gpu.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/read_config.h"

namespace millwright {
namespace {

using namespace literals;

TEST(Gpu, NamesAsUsersWriteThem) {
  for (const char* name : {"h100", "H100-80GB", "H100 SXM", "H100-SXM5-80GB", "h100_sxm"}) {
    EXPECT_EQ(FindGpu(name).name, "H100-SXM") << name;
  }
  EXPECT_EQ(FindGpu("A100").name, "A100-80GB");
  EXPECT_EQ(FindGpu("a100 40gb").name, "A100-40GB");
  EXPECT_EQ(FindGpu("mi300x").name, "MI300X");
}

TEST(Gpu, UnknownNameListsTheNearest) {
  EXPECT_EQ(Complaint([] { FindGpu("h1000"); }),
            "unknown GPU \"h1000\", did you mean \"H100-SXM\"?; known: A100-80GB, A100-40GB, "
            "A100-PCIe-80GB, H100-SXM, H100-PCIe, H100-NVL, H100-HBM2e-500W, H800, H200, B200, "
            "B300, GB200, GB300, "
            "L40S, MI300X, local-cpu");
}

TEST(Gpu, AliasesMeanOneGpuEach) {
  std::set<std::string> seen;
  for (const GpuPreset& preset : GpuPresets()) {
    EXPECT_EQ(&FindGpu(preset.spec.name), &preset.spec);
    for (const std::string& alias : preset.aliases) {
      EXPECT_EQ(&FindGpu(alias), &preset.spec) << alias;
      EXPECT_TRUE(seen.insert(alias).second) << alias << " is listed twice";
    }
  }
}

TEST(Gpu, PresetsAreComplete) {
  for (const GpuPreset& preset : GpuPresets()) {
    const GpuSpec& g = preset.spec;
    if (g.placeholder) continue;
    EXPECT_GT(g.peak_fp32, FlopsPerSecond(0)) << g.name;
    EXPECT_GT(g.peak_tf32, g.peak_fp32) << g.name;
    EXPECT_GT(g.peak_bf16, g.peak_tf32) << g.name;
    EXPECT_GT(g.hbm_bandwidth, 500_GBps) << g.name;
    EXPECT_GE(g.hbm_capacity, 40_GiB) << g.name;
    EXPECT_GT(g.sm_count, 0) << g.name;
    EXPECT_FALSE(g.calibration.empty()) << g.name;
    EXPECT_FALSE(g.source.empty()) << g.name;
  }
}

TEST(Gpu, PeakFollowsThePrecision) {
  const GpuSpec& h100 = FindGpu("H100");
  EXPECT_EQ(h100.peak(Precision::kBf16), 989_TFLOPS);  // datasheet: 1,979 with sparsity, half
  EXPECT_EQ(h100.peak(Precision::kFp16), 989_TFLOPS);
  EXPECT_EQ(h100.peak(Precision::kFp8), 1979_TFLOPS);
  EXPECT_EQ(h100.peak(Precision::kMxfp8).value, 0);
  EXPECT_EQ(h100.peak(Precision::kNvfp4), FlopsPerSecond(0));
  // A datasheet's peaks that no training step is costed at.
  EXPECT_EQ(h100.peak_tf32, 494.5_TFLOPS);
  EXPECT_EQ(h100.peak_fp32, 67_TFLOPS);
  EXPECT_EQ(FindGpu("A100").peak(Precision::kFp8), FlopsPerSecond(0));
  EXPECT_EQ(FindGpu("B300").peak(Precision::kNvfp4), 13500_TFLOPS);  // 108 PFLOP/s over 8
}

TEST(Gpu, InheritsAndOverrides) {
  const GpuSpec gpu =
      Read<GpuSpec>(R"({"inherit": "h100", "name": "H100-96GB", "hbm_capacity": "96 GB"})");
  GpuSpec expected = FindGpu("H100");
  expected.name = "H100-96GB";
  expected.hbm_capacity = 96_GB;
  EXPECT_EQ(gpu, expected);
}

TEST(Gpu, EveryPresetSurvivesWritingAndReading) {
  for (const GpuPreset& preset : GpuPresets()) {
    GpuSpec gpu = preset.spec;
    EXPECT_EQ(Read<GpuSpec>(WriteConfig([&](ConfigIo& io) { Fields(io, gpu); })), preset.spec);
  }
}

TEST(Gpu, CalibrationIsOneOfTheFamilies) {
  EXPECT_EQ(Complaint([] { Read<GpuSpec>(R"({"inherit": "H100", "calibration": "h1000"})"); }),
            "c.json: at /calibration: expected one of \"A100\", \"H100\", \"B200\", \"B300\", "
            "\"generic\", got \"h1000\"; did you mean \"H100\"?");
  for (const GpuPreset& preset : GpuPresets()) {
    EXPECT_NE(
        std::find(CalibrationNames().begin(), CalibrationNames().end(), preset.spec.calibration),
        CalibrationNames().end())
        << preset.spec.name;
  }
  EXPECT_TRUE(FindGpu("H200").measured());
  EXPECT_FALSE(FindGpu("MI300X").measured());
  EXPECT_FALSE(GpuSpec().measured());
}

TEST(Gpu, UnknownNameIsEscaped) {
  EXPECT_TRUE(
      Complaint([] { FindGpu("\xff\x1b"); }).starts_with("unknown GPU \"\\xff\\u001b\"; known: "));
}

TEST(Gpu, UnknownParentIsAMistakeOfTheFile) {
  EXPECT_EQ(Complaint([] { Read<GpuSpec>(R"({"inherit": "H2000"})"); }),
            "c.json: at /inherit: unknown GPU \"H2000\", did you mean \"H200\"?; known: "
            "A100-80GB, A100-40GB, A100-PCIe-80GB, H100-SXM, H100-PCIe, H100-NVL, H100-HBM2e-500W, "
            "H800, H200, "
            "B200, B300, GB200, GB300, L40S, MI300X, local-cpu");
}

}  // namespace
}  // namespace millwright
