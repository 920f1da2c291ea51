// SPDX-License-Identifier: Apache-2.0
//
// What do the operators of a layer take where `run` executes them, by what `measure` has measured
// there?
//
// Each operator of cost_models/operators is the point of a measured curve, or of a few: products by
// pass and size, attention by pass and shape, what is bound by memory by its kernel and bytes,
// collectives by kind, ranks and bytes.  Nothing overlaps, and nothing is added: a rank does one
// after the other.  The lists count elements of two bytes; here they are as wide as they are.
//
// Off by, beside what the fits of the curves say: a ring's blocks are priced as one attention of
// its own queries over all keys; the optimizer's step of each layer as one over all of the rank's
// parameters; the few numbers of the cross-entropy's reductions and of the gradient's norm as if
// they were twice as many.  Experts are priced as if they got equally many rows, and what their
// ranks tell each other before is not charged, nor are the copies around an all-to-all.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "cost_models/gpu_curves.h"

namespace millwright {

struct Operator;
struct OperatorCost;

// Of what a backend calls its kernels, and of how they are measured.
struct ExecutedAs {
  std::string stack;    // "millwright-cpu-fp64": of kernels
  std::string library;  // "millwright-mpi-fp64": of collectives
  std::string dtype;    // "float64"
  double width = 8;     // bytes of an element
};
ExecutedAs ExecutedOn(std::string_view precision, std::string_view backend);  // "fp64", "mpi"

struct ExecutedCurves {
  const GemmCurve *forward = nullptr, *input_gradient = nullptr, *weight_gradient = nullptr;
  const AttentionCurve *attention = nullptr, *attention_backward = nullptr;
  struct Kernel {
    std::string name;  // "rmsnorm"
    const BandwidthCurve *forward = nullptr, *backward = nullptr;
  };
  std::vector<Kernel> kernels;
  const BandwidthCurve *adam = nullptr, *gradient_sum = nullptr;
  const CollectiveCurve *ring = nullptr, *all_to_all = nullptr, *send_recv = nullptr;
  double width = 8;
  ModelConfig model;  // whose operators they are for
};

// What `curves` have of it; nothing is taken from elsewhere.  They must outlive it.
ExecutedCurves ExecutedCurvesOf(const GpuCurves& curves, const ExecutedAs& how,
                                const ModelConfig& model);

// "silu gated": the kernel of a model's activation, "silu gated weighted" of its experts';
// "layernorm", "rmsnorm of heads": of its norms.
std::string KernelOf(Activation activation, bool gated, bool weighted = false);
std::string KernelOf(Normalization normalization, bool of_heads);

// What an operator runs that is bound by memory: all of it, or what there is beside its product.
struct KernelUse {
  std::string kernel;
  Bytes bytes;  // of its forward pass, as the list counts them
};
std::vector<KernelUse> KernelsOf(const Operator& op, const ModelConfig& model);

// What of these operators and of these collectives beside them has no curve: kernels' names,
// "attention of both passes", "all-reduce".
std::vector<std::string> NotMeasured(const ExecutedCurves& curves,
                                     const std::vector<Operator>& operators,
                                     std::span<const CollectiveKind> kinds);

// Of a product, an attention or what is bound by memory.  NotMeasured has none of them.
OperatorCost ExecutedCost(const Operator& op, const ExecutedCurves& curves, const GpuSpec& gpu);

// Of a rank's parameters once a step: gradients cleared and added up, those updated that are its
// own.
Seconds ExecutedOptimizerTime(double parameters, double updated, const ExecutedCurves& curves,
                              const GpuSpec& gpu);

}  // namespace millwright
