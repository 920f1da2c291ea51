// SPDX-License-Identifier: Apache-2.0
//
// How much slower does compute run while communication holds some of the GPU's multiprocessors?
//
// A kernel that communicates keeps one thread block on a multiprocessor for each of its channels,
// for as long as it runs.  What computes beside it has the others: a share s of all taken for T
// makes compute s T longer, or, where the communication outlasts it, C into C / (1 - s).
//
// How many are held, as NCCL says itself at start-up ("24 coll channels, 16 nvls channels, 32 p2p
// channels, 32 p2p channels per peer" on an H100 node, "16 p2p channels, 2 p2p channels per peer"
// across nodes; github.com/NVIDIA/nccl/issues/1781, ncclTopoGetNchannels in src/graph/paths.cc):
//
//   collectives               24
//   a ring's exchange         32 inside a domain; between domains 2, one NIC's
//   all-to-all                32 inside a domain, 16 across
//   all-to-all by DeepEP      20 (num_sms, its default; "only 20 SMs", DeepSeek-V3,
//   arXiv:2412.19437)
//
// Limits: memory bandwidth, caches and power are shared too, and waves of thread blocks are whole;
// nobody has published slowdowns by kernel to fit that to.  Data parallelism and chunked tensor
// parallelism are charged by fits to whole steps instead (OverlapCalibration), 0.45 of the
// communication and 0.28 of the smaller, where 24 of 132 would be 0.18: those hold the rest.
#pragma once

#include <algorithm>

#include "core/gpu.h"
#include "core/path_profile.h"
#include "core/training.h"
#include "core/units.h"
#include "cost_models/collectives.h"

namespace millwright {

// Of the GPU's multiprocessors, held by a collective on `path`; 0 where nobody communicates, and on
// a CPU.  At most a half: the rest of a small GPU is left to compute.
double SmShareOf(CollectiveKind kind, const PathProfile& path, MoeDispatcher dispatcher,
                 const GpuSpec& gpu);

// What compute that runs beside communication takes longer.
inline Seconds SlowedBeside(Seconds compute, Seconds communication, double sm_share) {
  return sm_share * std::min(communication, compute / (1 - sm_share));
}

}  // namespace millwright
