// SPDX-License-Identifier: Apache-2.0
//
// The same training step on one rank with nothing cut: what an execution must come out as.
//
// Written a second time and in another way: plain loops in double, one sequence after the other,
// each head's whole softmax kept, no code shared with runtime/execution but the weights and tokens
// of the Workload.  tests/runtime/reference_test.cc checks its gradients by finite differences.
// Products in FP8 are rounded as runtime/linear_products says, of whole tensors, with a rounding of
// its own; the plan says no more than which sequences are a micro-batch.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "runtime/workload.h"

namespace millwright {

class Reference {
 public:
  // Weights begin rounded to float where `single_precision`, as those of an execution in float.
  Reference(const Workload& workload, bool single_precision);

  // Mean loss over the tokens of the global batch.
  double ComputeLoss(int step);
  double ComputeGradients(int step);  // and its gradients
  void Update(const Adam& adam);

  // Row-major, without padding.
  using Tensors = std::map<TensorName, std::vector<double>>;
  const Tensors& weights() const { return weights_; }
  const Tensors& gradients() const { return gradients_; }
  std::vector<double>& weight(const TensorName& name) { return weights_.at(name); }
  // The least, of all tokens and layers so far, by which the last chosen expert's logit is above
  // the next one's.  Where rounding is of that size, an execution may choose another.
  double routing_margin() const { return routing_margin_; }

 private:
  double Compute(int step, bool backward);

  const Workload& workload_;
  Tensors weights_, gradients_, moment1_, moment2_;
  int updates_ = 0;
  double routing_margin_ = std::numeric_limits<double>::infinity();
};

}  // namespace millwright
