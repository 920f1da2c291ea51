// SPDX-License-Identifier: Apache-2.0
#include "cost_models/interval.h"

#include <cmath>

namespace millwright {

std::string_view Name(RunClass c) {
  switch (c) {
    case RunClass::kDense:
      return "dense, A100 to H200";
    case RunClass::kDenseBlackwell:
      return "dense, B200 to GB300";
    case RunClass::kMoe:
      return "MoE, A100 to H200";
    case RunClass::kMoeBlackwell:
      return "MoE, B200 to GB300";
    case RunClass::kFsdp:
      return "FSDP and InternEvo";
    case RunClass::kLong:
      return "sequences of 32,768 tokens and more";
    case RunClass::k2021:
      return "software of 2021-22";
    case RunClass::kNotMeasured:
      return "GPU not measured";
  }
  return {};
}

RunClass ClassOf(const ModelConfig& model, const TrainingConfig& training, const GpuSpec& gpu) {
  if (!gpu.measured()) return RunClass::kNotMeasured;
  const bool blackwell = gpu.calibration.starts_with("B");
  const bool is_long = training.seq_length >= kLongSequence && !model.has_moe();
  if (is_long && !Of2021(training.framework)) return RunClass::kLong;
  switch (training.framework) {
    case Framework::kMegatron:
      break;
    case Framework::kMegatron2021:
    case Framework::kMegatronDeepSpeed:
      return RunClass::k2021;
    case Framework::kFsdp:
    case Framework::kFsdpCompiled:
    case Framework::kInternEvo:
      return RunClass::kFsdp;
  }
  if (model.has_moe()) return blackwell ? RunClass::kMoeBlackwell : RunClass::kMoe;
  return blackwell ? RunClass::kDenseBlackwell : RunClass::kDense;
}

Interval StepInterval(RunClass c) {
  switch (c) {
    case RunClass::kDense:
      return {0.91, 1.17};  // 68 runs
    case RunClass::kDenseBlackwell:
      return {0.90, 1.12};  // 87 runs
    case RunClass::kMoe:
      return {0.92, 1.45};  // 22 runs: few, and predictions too fast
    case RunClass::kMoeBlackwell:
      return {0.86, 1.25};  // 92 runs
    case RunClass::kFsdp:
      return {0.92, 1.12};  // 210 runs
    case RunClass::kLong:
      return {0.95, 1.20};  // 28 runs: 21 of FSDP, and 7 on B200 that are 15% slower than predicted
    case RunClass::k2021:
      return {0.91, 1.22};  // 168 runs
    case RunClass::kNotMeasured:
      return {0.8, 1.8};
  }
  return {};
}

double ToldApart(RunClass c) {
  const Interval i = StepInterval(c);
  return std::sqrt(i.high / i.low) - 1;
}

Interval MemoryInterval() { return {0.91, 1.23}; }  // 114 runs, four kinds of figures together

}  // namespace millwright
