// SPDX-License-Identifier: Apache-2.0
#include "cost_models/end_to_end.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cost_models/interval.h"
#include "cost_models/layer_cost.h"

namespace millwright {
namespace {

constexpr int kNode = 8;

TEST(EndToEnd, ClocksScaleTheGemmsOfTheirGpu) {
  EndToEnd e;
  e.clock_h100 = 0.5;
  const GpuSpec &h100 = FindGpu("H100"), &a100 = FindGpu("A100-80GB");
  const TrainingConfig training;
  EXPECT_DOUBLE_EQ(Adjusted(CalibrationFor(h100), e, h100, kNode, training).gemm.efficiency,
                   0.5 * CalibrationFor(h100).gemm.efficiency);
  EXPECT_DOUBLE_EQ(Adjusted(CalibrationFor(a100), e, a100, kNode, training).gemm.efficiency,
                   CalibrationFor(a100).gemm.efficiency);
  // A power-limited part of the family by its clock; 16 nodes wait for the slowest of 128 GPUs.
  const GpuSpec& limited = FindGpu("H100-HBM2e-500W");
  EXPECT_DOUBLE_EQ(Adjusted(CalibrationFor(limited), e, limited, 128, training).gemm.efficiency,
                   0.5 * 0.9 / (1 + 0.003 * 4) * CalibrationFor(h100).gemm.efficiency);
}

TEST(EndToEnd, AFullGraphLeavesTheHostNothingToWaitFor) {
  const GpuSpec& gpu = FindGpu("B200");
  TrainingConfig training{.precision = Precision::kMxfp8};
  const EndToEnd e;
  HostCalibration host = Adjusted(CalibrationFor(gpu), e, gpu, kNode, training).host;
  EXPECT_EQ(host.layer_gap, Seconds(e.gap_megatron));
  EXPECT_EQ(host.moe_sync_per_expert, Seconds(e.moe_sync_expert));
  training.launch_blocking = true;
  host = Adjusted(CalibrationFor(gpu), e, gpu, kNode, training).host;
  EXPECT_EQ(host.layer_gap, Seconds(e.gap_blocking));
  training.cuda_graph = CudaGraph::kFull;
  host = Adjusted(CalibrationFor(gpu), e, gpu, kNode, training).host;
  EXPECT_EQ(host.layer_gap + host.moe_sync + host.launch_floor, Seconds(0));
}

TEST(EndToEnd, AGraphOfPartsOfALayerLeavesHalfOfItsGap) {
  const GpuSpec& gpu = FindGpu("B200");
  const EndToEnd e;
  const HostCalibration host =
      Adjusted(CalibrationFor(gpu), e, gpu, kNode, {.cuda_graph = CudaGraph::kPartial}).host;
  EXPECT_EQ(host.layer_gap, Seconds(e.gap_megatron / 2));
  EXPECT_EQ(host.moe_sync, Seconds(e.moe_sync));
}

TEST(EndToEnd, PrecisionsOfBlackwellHaveTheirOwnClocks) {
  const GpuSpec& gpu = FindGpu("B200");
  EndToEnd e;
  e.mxfp8_b200 = 0.5;
  const GemmCalibration before = CalibrationFor(gpu).gemm;
  const GemmCalibration after = Adjusted(CalibrationFor(gpu), e, gpu, kNode, {}).gemm;
  EXPECT_DOUBLE_EQ(after.mxfp8_efficiency, 0.5 * before.mxfp8_efficiency);
  EXPECT_DOUBLE_EQ(after.sustained_mxfp8, 0.5 * before.sustained_mxfp8);
  EXPECT_DOUBLE_EQ(after.fp8_efficiency, before.fp8_efficiency);
}

TEST(LaunchWait, ASmoothMaximum) {
  PassTime forward{.compute = 1_ms}, backward{.compute = 2_ms};
  // Where the host needs what the GPU needs, the sixth root of 2 is 1.122.
  HostCalibration host{.launch_floor = 3_ms};
  OperatorCost wait = LaunchWait(forward, backward, host);
  EXPECT_NEAR(wait.forward.compute.value, (std::pow(2, 1.0 / 6) - 1) * 1e-3, 1e-12);
  EXPECT_NEAR(wait.backward.compute.value, (std::pow(2, 1.0 / 6) - 1) * 2e-3, 1e-12);
  // Ten times slower than the GPU: it sets the pace.
  host.launch_floor = 30_ms;
  wait = LaunchWait(forward, backward, host);
  EXPECT_NEAR(wait.forward.compute.value, 9e-3, 1e-8);
  host.launch_floor = {};
  EXPECT_EQ(LaunchWait(forward, backward, host).forward.compute, Seconds(0));
}

TEST(Interval, ClassesAndWhatCanBeToldApart) {
  const GpuSpec &h100 = FindGpu("H100"), &gb200 = FindGpu("GB200");
  ModelConfig dense{.num_layers = 1, .layers = {{1, {}}}};
  ModelConfig moe{.num_layers = 1, .layers = {{1, {.moe = true}}}};
  EXPECT_EQ(ClassOf(dense, {}, h100), RunClass::kDense);
  EXPECT_EQ(ClassOf(dense, {}, gb200), RunClass::kDenseBlackwell);
  EXPECT_EQ(ClassOf(moe, {}, h100), RunClass::kMoe);
  EXPECT_EQ(ClassOf(moe, {}, gb200), RunClass::kMoeBlackwell);
  EXPECT_EQ(ClassOf(moe, {.framework = Framework::kFsdp}, gb200), RunClass::kFsdp);
  EXPECT_EQ(ClassOf(dense, {.seq_length = 32768}, h100), RunClass::kLong);
  EXPECT_EQ(ClassOf(dense, {.seq_length = 131072, .framework = Framework::kFsdp}, h100),
            RunClass::kLong);
  EXPECT_EQ(ClassOf(dense, {.seq_length = 16384}, h100), RunClass::kDense);
  EXPECT_EQ(ClassOf(moe, {.seq_length = 131072}, h100), RunClass::kMoe);
  EXPECT_EQ(ClassOf(dense, {}, FindGpu("L40S")), RunClass::kNotMeasured);
  for (int i = 0; i < kRunClasses; ++i) {
    const auto c = static_cast<RunClass>(i);
    EXPECT_LT(StepInterval(c).low, 1) << Name(c);
    EXPECT_GT(StepInterval(c).high, 1) << Name(c);
    // At that distance the logs of the two intervals overlap by half.
    const double width = std::log(StepInterval(c).high / StepInterval(c).low);
    EXPECT_NEAR(std::log1p(ToldApart(c)), width / 2, 1e-12);
  }
}

}  // namespace
}  // namespace millwright
