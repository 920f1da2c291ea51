// SPDX-License-Identifier: Apache-2.0
//
// What whole steps add to what single operations cost: clocks that sink under load, hosts that
// launch too slowly, communication that overlapping does not hide.
//
// Each number is one for a GPU, a generation of software or a kind of network, never one for a
// model or for a run.  The defaults here are what one would set without whole steps: 1 where
// operations were measured, else the study of published steps that came before this fit [study].
// ShippedEndToEnd() is a fit to published training steps, made by
//
//     millwright validate --runs RUNS.json --cross-validate 5
//
// which fits again, from these defaults, and prints values, standard errors and the error on groups
// of runs that a fit has not seen.  What whole steps do not identify (launch latencies, NIC
// efficiency, optimizer bytes) stays with the operations' calibration.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/gpu.h"
#include "core/training.h"
#include "cost_models/calibration.h"
#include "cost_models/own_end_to_end.h"

namespace millwright {

struct EndToEnd {
  // Sustained rate of matrix products over that of the GPU's calibration: clocks under load.
  double clock_a100 = 1;
  double clock_h100 = 1;
  double clock_b200 = 1;
  double clock_b300 = 1;
  // And of low precision beside that, over its own curve.
  double fp8_h100 = 1;
  double fp8_b200 = 1;
  double mxfp8_b200 = 1;
  double nvfp4_b200 = 1;
  double grouped_low = 1;  // grouped GEMMs in low precision
  // Fused attention, by GPU, and older kernels over the newest on the same GPU.
  double attention_a100 = 1;
  double attention_h100 = 1;
  double attention_b200 = 1;
  double triton_attention = 0.68;  // [study] 113 over 166 TFLOP/s on A100
  double flash2_on_h100 = 0.36;    // [study] 205 over 570 TFLOP/s
  // HBM rate of memory-bound operators, and bytes that eager PyTorch moves over those counted.
  double hbm = 1;
  double eager_bytes = 1.45;  // [study]
  // Seconds that the GPU waits between the kernels of a layer, forward and backward, by software.
  double gap_2021 = 0.4e-3;      // [study]
  double gap_megatron = 0.8e-3;  // [study]; compiled PyTorch too
  double gap_eager = 0.5e-3;     // [study]; FSDP and InternEvo
  double gap_blocking = 9.4e-3;  // [study]; with CUDA_LAUNCH_BLOCKING=1
  // Seconds that the host of 2021 takes to launch a layer's forward and backward pass.
  double floor_2021 = 2.95e-3;  // [study]
  // Seconds that a MoE layer waits for the experts' token counts, and for each local expert in low
  // precision.
  double moe_sync = 0.93e-3;          // [study]
  double moe_sync_expert = 0.155e-3;  // [study]
  // Ring and NVLS rate inside a domain, and all-to-all, over the rates of nccl-tests.
  double domain = 1;
  double all_to_all = 1;
  // Of the smaller of a GEMM and the tensor-parallel communication beside it, what either takes
  // longer for the other.  [study] has the share of the communication that is left, 0.40: the same
  // where all of it fits under GEMMs.
  double tp_contention = 0.40;
  // Share of communication that overlapping leaves.
  double expert_exposed = 0.47;   // [study]
  double dp_exposed = 0.26;       // [study]
  double fsdp_contention = 0.30;  // [study], of the smaller of compute and FSDP's communication
  // Seconds for each rank of a group whose parameters are broadcast one after the other
  // (InternEvo).
  double broadcast = 2.7e-3;  // difference of its steps at 512 and 1,024 ranks, by rank
  bool operator==(const EndToEnd&) const = default;
};

const EndToEnd& ShippedEndToEnd();

// The fields, with what is shipped and its standard error, as a share (over groups of runs, by a
// five-fold jackknife), and the most that a fit may give them: no share above one, nothing beyond
// what the hardware can do.
struct EndToEndField {
  std::string_view name;
  double EndToEnd::*value;
  double shipped;
  double error;
  double most;
};
std::span<const EndToEndField> EndToEndFields();
const EndToEndField* FieldNamed(std::string_view name);  // nullptr: there is none

// The shipped ones with a user's own in their place.
EndToEnd With(const OwnEndToEnd& own);
// Those of the GPU's calibration file; the shipped ones where it has none.
EndToEnd EndToEndFor(const GpuSpec& gpu);

// `calibration` as this training on `gpus` of these GPUs meets it.
Calibration Adjusted(const Calibration& calibration, const EndToEnd& end_to_end, const GpuSpec& gpu,
                     std::int64_t gpus, const TrainingConfig& training);

}  // namespace millwright
