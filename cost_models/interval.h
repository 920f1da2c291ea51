// SPDX-License-Identifier: Apache-2.0
//
// How far may a predicted step time, or peak of memory, be from what would be measured?
//
// Nine of ten published runs of a class lie inside its interval: the 5% and the 95% quantile of
// measured over predicted, of runs whose group (source, model, GPU) the fit had not seen
// (`millwright validate --runs RUNS --cross-validate` prints them).  An interval speaks of a system
// like those that were published; it knows nothing of a fault in one machine.  A GPU whose
// operations nobody measured takes the widest class's, half as wide again: a guess.
//
// Whether a plan's GEMMs lie outside the shapes measured makes no class of its own: within a class
// such runs are no further off (FSDP 0.92 to 1.04 outside, 70 runs, and 0.92 to 1.13 inside, 140),
// but for MoE on A100 to H200, most of which are outside (0.97 to 1.53, 15 runs, and 0.93 to 1.33,
// 7).
#pragma once

#include <cstdint>
#include <string_view>

#include "core/gpu.h"
#include "core/model.h"
#include "core/training.h"

namespace millwright {

enum class RunClass {
  kDense,  // Megatron, Ampere and Hopper
  kDenseBlackwell,
  kMoe,  // Megatron, Ampere and Hopper
  kMoeBlackwell,
  kFsdp,  // eager and compiled FSDP, InternEvo
  kLong,  // sequences of kLongSequence tokens and more, of all of these but MoE
  k2021,  // Megatron-LM and Megatron-DeepSpeed of 2021-22
  kNotMeasured,
};
inline constexpr int kRunClasses = 8;
inline constexpr std::int64_t kLongSequence = 32'768;
std::string_view Name(RunClass c);
RunClass ClassOf(const ModelConfig& model, const TrainingConfig& training, const GpuSpec& gpu);

struct Interval {
  double low = 1, high = 1;  // over the prediction
};
Interval StepInterval(RunClass c);
// A plan this much slower than another has an interval that overlaps the other's by half; below it
// the two cannot be told apart.
double ToldApart(RunClass c);
// Of max_allocated, reserved or the device's memory.
Interval MemoryInterval();

}  // namespace millwright
