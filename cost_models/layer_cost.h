// SPDX-License-Identifier: Apache-2.0
//
// What one layer costs a rank, for one micro-batch: seconds by kind and bytes kept.
//
// Each operator of cost_models/operators is timed by the GPU's calibration and, where it
// communicates, by the path between the members of its process group.  Times are of work that is
// not hidden: a collective that runs under compute counts only what sticks out.
#pragma once

#include <vector>

#include "core/gpu.h"
#include "core/path_profile.h"
#include "core/training.h"
#include "cost_models/calibration.h"
#include "cost_models/operators.h"

namespace millwright {

// The process groups a layer communicates in.
struct LayerPaths {
  PathProfile tensor, context, expert, expert_tensor;
};
const PathProfile& PathOf(GroupKind group, const LayerPaths& paths);

// Seconds of one pass (forward, or backward without recomputation), exposed.
struct PassTime {
  Seconds compute;
  Seconds tensor;   // TP and sequence-parallel collectives
  Seconds context;  // ring or Ulysses
  Seconds expert;   // dispatch, combine, expert-tensor collectives
  Seconds total() const { return compute + tensor + context + expert; }
  PassTime& operator+=(const PassTime& o) {
    compute += o.compute;
    tensor += o.tensor;
    context += o.context;
    expert += o.expert;
    return *this;
  }
  friend PassTime operator*(double k, const PassTime& p) {
    return {k * p.compute, k * p.tensor, k * p.context, k * p.expert};
  }
};

struct OperatorCost {
  PassTime forward, backward;
  Seconds weight_gradient;  // of backward.compute, what a split backward may do later
  ModuleMask modules = 0;
};

struct LayerCost {
  std::vector<OperatorCost> operators;
  PassTime forward, backward;  // of all of them, and waiting for their launches
  OperatorCost launch_wait;
  std::vector<SavedTensor> saved;
  Bytes input;             // what full recomputation keeps
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

LayerCost CostOfLayer(const std::vector<Operator>& operators, const LayerPaths& paths,
                      const CostContext& context);

// Times of single operators, for tests and for `describe`.
Seconds GemmTime(double m, double n, double k, double groups, Precision precision,
                 const GpuSpec& gpu, const Calibration& calibration);
OperatorCost CostOfOperator(const Operator& op, const LayerPaths& paths,
                            const CostContext& context);

}  // namespace millwright
