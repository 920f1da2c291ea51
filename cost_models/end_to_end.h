// SPDX-License-Identifier: Apache-2.0
//
// What whole steps add to what single operations cost: clocks that sink under load, hosts that
// launch too slowly, communication that overlapping does not hide.
//
// Each number is one for a GPU, a generation of software or a kind of network, never one for a model
// or for a run.  They were fitted together to 675 published training steps of 97 groups (a source, a
// model and a GPU), least median-like loss of the log error, by
//
//     millwright validate --runs RUNS.json --cross-validate
//
// which prints them again.  "+-": standard error over groups (five-fold jackknife), in percent.
// Held-out groups are predicted with a median error of 4.3%, 90% within 14.8%, bias -0.5%.
// What is not identified by whole steps (launch latencies, NIC efficiency, optimizer bytes) stays with
// the operations' calibration.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/gpu.h"
#include "core/training.h"
#include "cost_models/calibration.h"

namespace millwright {

struct EndToEnd {
  // Sustained rate of matrix products over that of the GPU's GEMM curve: clocks under load.
  double clock_a100 = 1;  // +-0%
  double clock_h100 = 1.019;  // +-2%
  double clock_b200 = 0.9772;  // +-4%
  double clock_b300 = 0.975;  // +-3%
  // And of low precision beside that, against the curves of cost_models/presets.
  double fp8_h100 = 0.93;  // +-4%
  double fp8_b200 = 0.9506;  // +-18%, FP8 and MXFP8
  double nvfp4_b200 = 0.9379;  // +-17%
  double grouped_low = 1.17;  // at its bound, grouped GEMMs in low precision, over their factor there
  // Fused attention, by GPU, and older kernels over the newest on the same GPU.
  double attention_a100 = 0.9632;  // +-3%
  double attention_h100 = 0.9695;  // +-4%
  double attention_b200 = 1.024;  // +-24%
  double triton_attention = 0.6762;  // +-3%
  double flash2_on_h100 = 0.3612;  // +-3%
  // HBM rate of memory-bound operators, over the curve's; bytes that eager PyTorch moves, over those counted.
  double hbm = 1.12;  // at its bound
  double eager_bytes = 1.498;  // +-9%
  // Seconds that the GPU waits between the kernels of a layer, forward and backward, by software.
  double gap_2021 = 0.0002606;  // +-24%
  double gap_megatron = 0.0005285;  // +-35%, and compiled PyTorch
  double gap_eager = 0.001293;  // +-21%, FSDP and InternEvo
  double gap_blocking = 0.01409;  // +-8%, with CUDA_LAUNCH_BLOCKING=1
  // Seconds that the host of 2021 takes to launch a layer's forward and backward pass.
  double floor_2021 = 0.002487;  // +-3%
  // Seconds a MoE layer waits for the experts' token counts, and for each local expert in low precision.
  double moe_sync = 0.0005962;  // +-32%
  double moe_sync_expert = 0.0001715;  // +-12%
  // Ring and NVLS rate inside a domain, and all-to-all, over the rates of nccl-tests.
  double domain = 0.8837;  // +-14%
  double all_to_all = 1.4;  // at its bound
  // Share of communication that overlapping leaves.
  double tp_exposed = 0.3351;  // +-6%
  double expert_exposed = 0.3454;  // +-44%
  double dp_exposed = 0.4603;  // +-19%
  double fsdp_contention = 0.4532;  // +-24%, of the smaller of compute and FSDP's communication
  // Seconds for each rank of a shard group whose parameters are broadcast one after the other (InternEvo).
  double broadcast = 0.002988;  // +-9%
  bool operator==(const EndToEnd&) const = default;
};

const EndToEnd& ShippedEndToEnd();

// The fields, with the range that a fit may give them: no share above one, nothing beyond what the
// hardware can do.
struct EndToEndField {
  std::string_view name;
  double EndToEnd::*value;
  double most;
};
std::span<const EndToEndField> EndToEndFields();

// `calibration` as this training meets it on `gpus` of these GPUs.
Calibration Adjusted(const Calibration& calibration, const EndToEnd& end_to_end,
                     const GpuSpec& gpu, std::int64_t gpus, const TrainingConfig& training);

}  // namespace millwright
