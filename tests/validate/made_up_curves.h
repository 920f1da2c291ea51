// SPDX-License-Identifier: Apache-2.0
//
// Curves of a machine that there is not, for what `run` executes in fp64 on threads: the numbers
// only have to differ.
#pragma once

#include <string>

#include "cost_models/executed_curves.h"
#include "cost_models/gpu_curves.h"

namespace millwright {

inline ExecutedAs MadeUpAs() { return ExecutedOn("fp64", "threads"); }

inline GpuCurves MadeUpCurves() {
  const ExecutedAs how = MadeUpAs();
  GpuCurves curves{.gpu = "local-cpu", .provenance = "made up"};
  curves.rates = {.fp32 = FlopsPerSecond(20e9),
                  .fp64 = FlopsPerSecond(10e9),
                  .memory = BytesPerSecond(20e9),
                  .link = BytesPerSecond(5e9)};
  double rate = 0.5;
  for (const char* stage : {"", "bwd_grad_act", "bwd_grad_w"}) {
    curves.gemm.push_back({.dtype = "float64",
                           .clocks = "sustained",
                           .stage = stage,
                           .efficiency = {rate, 0},
                           .hbm_efficiency = {0.5, 0},
                           .launch = {1e-6, 0}});
    rate += 0.1;
  }
  for (const char* pass : {"", ", backward"}) {
    curves.attention.push_back({.kernel = how.stack + pass,
                                .rate_64 = {0.1, 0},
                                .rate_128 = {0.1, 0},
                                .rate_256 = {0.1, 0},
                                .hbm_efficiency = {0.5, 0},
                                .launch = {2e-6, 0}});
  }
  for (const char* op : {"rmsnorm", "layernorm", "rmsnorm of heads", "rope", "silu gated", "gelu",
                         "residual_add", "bias", "embedding", "cross_entropy", "route", "permute",
                         "unpermute", "silu gated weighted", "adam", "gradient_sum"}) {
    for (const char* pass : {"", "; backward"}) {
      curves.bandwidth.push_back({.op = std::string(op) + pass,
                                  .stack = how.stack,
                                  .efficiency = {rate, 0},
                                  .launch = {3e-6, 0}});
      rate *= 0.97;
    }
  }
  for (const char* op : {"ring", "alltoall", "sendrecv"}) {
    curves.collective.push_back({.op = op,
                                 .library = how.library,
                                 .base = {rate * 1e-5, 0},
                                 .step = {1e-6, 0},
                                 .efficiency = {0.5, 0}});
    rate *= 0.9;
  }
  return curves;
}

}  // namespace millwright
