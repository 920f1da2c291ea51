// SPDX-License-Identifier: Apache-2.0
//
// What one layer costs a rank, for one micro-batch: seconds by kind and bytes kept.
//
// Each operator of cost_models/operators is timed by the GPU's calibration and, where it
// communicates, by the path between the members of its process group.  Times are of work that is
// not hidden: a collective that runs under compute counts only what sticks out.
//
// With tp_comm_overlap tensor collectives run beside the GEMM next to them, as in Transformer
// Engine's userbuffers (its recipes' "ring_exchange", "pipeline" and "bulk"; github.com/NVIDIA/
// TransformerEngine, common/comm_gemm_overlap): a gather before a GEMM and a scatter behind one are
// cut into a chunk for each rank, whose parts of the GEMM run beside the exchanges of the others;
// the input gradient's scatter runs whole beside the weight gradient.  What runs side by side takes
// longer (OverlapCalibration::tp_contention).  A ring under attention slows it by the
// multiprocessors that it holds (cost_models/sm_share).  A gather under an input gradient is taken
// to slow nothing: with 24 multiprocessors, and fitted again, held-out published steps were off by
// 4.3% at the median and 14.9% at the 90th percentile where they were by 4.2 and 14.7%.  Chunks are
// as efficient as the whole GEMM: they take turns on several streams, so that one starts in the
// tail of another.  (Charged with what a lone GEMM of that size loses, and fitted again, held-out
// published steps were off by 4.7% at the median where they were by 4.2%; with half of it by 4.5%.)
// "pipeline" is taken for a ring of exchanges too: the same bytes in as many parts.
#pragma once

#include <algorithm>
#include <vector>

#include "core/gpu.h"
#include "core/path_profile.h"
#include "core/training.h"
#include "cost_models/calibration.h"
#include "cost_models/operators.h"
#include "cost_models/sm_share.h"

namespace millwright {

// The process groups a layer communicates in.
struct LayerPaths {
  PathProfile tensor, ring, expert, expert_tensor, ulysses;
};
const PathProfile& PathOf(GroupKind group, const LayerPaths& paths);

// Seconds of one pass (forward, or backward without recomputation), exposed.
struct PassTime {
  Seconds compute;
  Seconds tensor;   // TP and sequence-parallel collectives
  Seconds context;  // ring or Ulysses
  Seconds expert;   // dispatch, combine, expert-tensor collectives
  Seconds total() const { return compute + tensor + context + expert; }
  // Where each kind may run under the others.
  Seconds longest() const { return std::max({compute, tensor, context, expert}); }
  PassTime& operator+=(const PassTime& o) {
    compute += o.compute;
    tensor += o.tensor;
    context += o.context;
    expert += o.expert;
    return *this;
  }
  friend PassTime operator+(PassTime a, const PassTime& b) { return a += b; }
  friend PassTime operator*(double k, const PassTime& p) {
    return {k * p.compute, k * p.tensor, k * p.context, k * p.expert};
  }
};

struct OperatorCost {
  PassTime forward, backward;
  Seconds weight_gradient;  // of backward.compute, what a split backward may do later
  ModuleMask modules = 0;
  // Of the multiprocessors, what a collective takes from another pass's compute that it runs
  // beside; 0 where it runs beside its own, which is charged there.
  double sm_share = 0;
};

struct LayerCost {
  std::vector<OperatorCost> operators;
  PassTime forward, backward;  // of all of them, and waiting for their launches
  OperatorCost launch_wait;
  // Of a split backward the pass that comes later: the weight gradients, and what was to be
  // gathered for them under other work; and by how much the two passes together take longer than
  // one.
  Seconds backward_weight, split_more;
  std::vector<SavedTensor> saved;
  Bytes input;             // what full recomputation keeps
  Bytes held_for_weights;  // HeldForWeights
  Bytes largest_gradient;  // most gradient bytes alive at once in backward, beside the saved

  PassTime Recomputed(ModuleMask modules) const;  // forward time of what is run again
  Bytes Saved(ModuleMask recomputed) const;
};

struct CostContext {
  const GpuSpec& gpu;
  const Calibration& calibration;
  const TrainingConfig& training;
  int moe_topk = 0;         // copies of a token that dispatch sends
  int moe_num_groups = 0;   // node-limited routing: groups of experts,
  int moe_topk_groups = 0;  //   and how many of them a token may reach; 0: any
};

// What a pass takes beyond the GPU's work where the host cannot launch as fast.
OperatorCost LaunchWait(const PassTime& forward, const PassTime& backward,
                        const HostCalibration& host);

// The measured curve of a precision, where there is one, and its clocks under steady load.
struct SteadyCurve {
  const GemmCurve* curve = nullptr;
  double sustained = 1;
};
SteadyCurve CurveOf(Precision precision, const GemmCalibration& calibration);

// A GEMM cut into chunks and the exchanges between them: one fewer, each a step of the collective's
// ring.  Exchange i brings what chunk i works on, or sends what chunk i - 1 has made.
struct ChunkedGemm {
  int chunks = 1;
  Seconds gemm, exchange;  // of a chunk, alone
  Seconds slowed;          // added to either while both run
  Seconds total() const { return gemm + (chunks - 1) * (std::max(gemm, exchange) + slowed); }
};

// A tensor collective and the GEMM beside it.
struct TensorOverlap {
  int gemm = -1;                  // its index; -1: none
  bool gathers = false;           // the collective is in front of the GEMM
  ChunkedGemm forward, backward;  // with the GEMM and its input gradient; one chunk: not overlapped
  // Instead of `backward`, unless that is a pass of its own: the whole beside the weight gradient,
  bool with_weight_gradient = false;
  Seconds slowed;  // either of which takes this much longer
};
// Of operator `i` of the list.
TensorOverlap OverlapOf(const std::vector<Operator>& operators, std::size_t i,
                        const LayerPaths& paths, const CostContext& context);

LayerCost CostOfLayer(const std::vector<Operator>& operators, const LayerPaths& paths,
                      const CostContext& context);

// Times of single operators, for tests and for `describe`.
Seconds GemmTime(double m, double n, double k, double groups, Precision precision,
                 const GpuSpec& gpu, const Calibration& calibration);
OperatorCost CostOfOperator(const Operator& op, const LayerPaths& paths,
                            const CostContext& context);

}  // namespace millwright
