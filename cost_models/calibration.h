// SPDX-License-Identifier: Apache-2.0
//
// What a GPU and its network achieve, as the few numbers that the cost models take.
//
// A Calibration belongs to a family of GPUs ("A100", "H100", ...; GpuSpec::calibration names it)
// and is expressed as fractions of the datasheet, so that one family serves its variants (an
// H200 is an H100 with another memory).  The values shipped here are first, simple efficiency
// curves taken from public measurements: sustained clocks, large training shapes.  Their error
// on the operations they were taken from is stated beside them in cost_models/presets.  A user's
// measured curves (cost_models/gpu_curves) take their place.
#pragma once

#include <optional>
#include <string_view>

#include "core/gpu.h"
#include "core/units.h"
#include "cost_models/executed_curves.h"
#include "cost_models/gpu_curves.h"

namespace millwright {

// m x n x k: time = t0 + max(2mnk / (peak x efficiency x prod x/(x + roll_off)), bytes /
// (HBM x memory efficiency)), x over m, n, k.  Where a precision has a measured curve: what that
// says, at the clocks of steady load.
struct GemmCalibration {
  double efficiency = 0;  // of the BF16 peak, sustained, as m, n, k grow
  double roll_off = 0;    // m, n or k at which half the rate is lost
  // Of the BF16 peak too, in low precision, quantisation apart; 0: not measured.
  double fp8_efficiency = 0;
  double mxfp8_efficiency = 0;
  double nvfp4_efficiency = 0;
  // Arithmetic rate under steady load over that of a few launches at boost clocks, which the curves
  // were measured at; above 1 where the curve is another chip's.
  double sustained_bf16 = 1, sustained_fp8 = 1, sustained_mxfp8 = 1, sustained_nvfp4 = 1;
  // Of a user's curves, which outlive this.
  const GemmCurve* bf16_curve = nullptr;
  const GemmCurve* fp8_curve = nullptr;  // MXFP8's too
  const GemmCurve* nvfp4_curve = nullptr;
  double grouped_factor = 1;      // grouped GEMM over one GEMM of the same m, in BF16
  double grouped_factor_low = 1;  //   and in FP8 and FP4
  double curve_grouped = 1;       // what both are times where a curve takes the law's place
  double curve_grouped_low = 1;
  double backward_factor = 1;         // (dgrad + wgrad) over 2 x forward
  double cast_bytes_per_element = 0;  // HBM traffic to quantise a GEMM's input, low precision
  Seconds launch;                     // t0
};

// Flash attention: rate = peak x efficiency x s / (s + roll_off), s the tokens a rank holds of a
// sequence.
struct AttentionCalibration {
  double efficiency = 0;           // of the BF16 peak: head size 128, forward, causal half counted
  double roll_off = 0;             // tokens
  double head_64_factor = 1;       // rate at head size 64 over that at 128
  double backward_factor = 0;      // backward time over forward time
  double unfused_score_bytes = 0;  // HBM bytes per score element, forward, unfused
  double unfused_backward_factor = 0;
  Seconds launch;
};

struct MemoryCalibration {
  double efficiency = 0;       // of HBM bandwidth
  double backward_factor = 0;  // backward bytes over forward bytes of a memory-bound operator
  Seconds launch;
  double bytes_factor = 1;  // software that fuses less moves more bytes than are counted
};

// Collectives: time = base + latencies + wire bytes / (bandwidth x efficiency) + sqrt term.
struct CollectiveCalibration {
  Seconds base;                      // one collective, before any step
  Seconds domain_step;               // a ring step inside a domain
  Seconds fabric_step;               // a ring step between domains
  Seconds tree_level;                // a doubling of the domains in a tree
  double domain_efficiency = 0;      // ring wire rate over GPU-to-GPU bandwidth
  double nvls_efficiency = 0;        // all-reduce bus bandwidth over GPU-to-GPU bandwidth
  double fabric_efficiency = 0;      // of the NIC share
  double tree_efficiency = 0;        // tree all-reduce over ring all-reduce bandwidth
  double all_to_all_efficiency = 0;  // inside a domain
  Seconds all_to_all_base;
  Seconds p2p_base, p2p_fabric_base;
  // Seconds per square root of a byte, the protocol envelope: inside a domain and across domains.
  double sqrt_coefficient = 0, fabric_sqrt_coefficient = 0;
  Bytes nvls_threshold;    // NVLS from this size
  int nvls_min_ranks = 0;  //   and from this many ranks
  // Inside a domain, measured; nullptr: by the above.
  const CollectiveCurve* ring_curve = nullptr;  // all-reduce, reduce-scatter and all-gather
  const CollectiveCurve* all_to_all_curve = nullptr;
  const CollectiveCurve* send_recv_curve = nullptr;
  double bytes_factor = 1;           // where elements are wider than they are counted
  double curve_rate = 1;             // bandwidth of rings and NVLS in a step, over the curves'
  double all_to_all_curve_rate = 1;  //   and of all-to-all
};

// What overlapping hides, measured end to end.
struct OverlapCalibration {
  double tp_contention = 0;    // tp_comm_overlap: of the smaller of a GEMM and what runs beside it
  double expert_exposed = 0;   // share left with expert_overlap
  double p2p_exposed = 0;      // share left with overlap_p2p
  double dp_exposed = 0;       // share of an overlapped DP collective that still costs time
  double dp_window = 0;        // of a pass that can hide DP communication
  double fsdp_contention = 0;  // of the smaller of compute and communication
};

// What the host and the software cost beside the GPU's own work.
struct HostCalibration {
  Seconds layer_gap;            // idle between the kernels of a layer, forward and backward
  Seconds launch_floor;         // a layer's forward and backward take the host at least this long
  Seconds moe_sync;             // waiting for the experts' token counts, forward and backward
  Seconds moe_sync_per_expert;  //   and for each expert of the rank
  Seconds broadcast_per_rank;   // of a parameter broadcast after the step, a shard's owner
};

struct Calibration {
  std::string_view name;
  std::string_view source;
  GemmCalibration gemm;
  AttentionCalibration attention;
  MemoryCalibration memory;
  CollectiveCalibration collective;
  OverlapCalibration overlap;
  HostCalibration host;
  double optimizer_bytes_per_parameter = 0;  // HBM traffic of the whole optimizer step
  // Of the link to the host's memory, what large copies get: 55.6 of PCIe 5's 63.0 GB/s
  // (NVIDIA's blog on NVbandwidth, host_to_device_memcpy_ce); assumed of NVLink-C2C.
  double host_efficiency = 0.88;
  // Of the slowest GPU, over that of the others: what a rank computes takes 1 / compute_speed.
  double compute_speed = 1;
  // Of a rank of `run`: what it computes is priced by these alone, and one after the other.
  std::optional<ExecutedCurves> executed;
};

// The family of `gpu`, with the curves of its calibration file where it has one; a family that is
// not known falls back on "generic" with H100's fractions.  A file is read once; ConfigError where
// that fails.
const Calibration& CalibrationFor(const GpuSpec& gpu);

// The same, with `curves` in place of the laws for GEMMs and collectives inside a domain; they must
// outlive it.
Calibration WithCurves(const Calibration& calibration, const GpuCurves& curves);

// Of a rank of `run`, which has what `curves` holds of it and no other overheads.
Calibration AsExecuted(const ExecutedCurves& curves);

}  // namespace millwright
