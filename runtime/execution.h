// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of a training step, really computed.
//
// What is simulated is what is executed: the passes are those of the PipelineSchedule, in its
// order, and what a layer does in a pass is the list of cost_models/operators, operator by
// operator: matrix products, kernels and collectives with the kind, group and payload that the list
// says. A buffer that is not as long as the list's payload is our bug and ends the run.  An
// overlapped pair of passes takes turns operator by operator, as in sim/step_graph.  Data
// parallelism is that of planner/step_spec, a bucket for each layer: reduced once a step (ZeRO 0,
// 1) or after each backward (2, 3), gathered once a step (1, 2) or before each pass (3).
//
// A rank is one thread, so that nothing really overlaps; sends do not wait.
//
// Executed, and not in the simulated step: the gradients of what tensor ranks hold alike but
// compute in parts (norms and biases under sequence parallelism, KV heads fewer than tensor ranks)
// are summed once a step, the two copies of DualPipe exchange theirs, the loss is summed, and under
// ZeRO-3 embedding and head are reduced and gathered once a step.  tests/runtime/payload_test.cc
// holds all other calls of every rank to the simulated step's, byte for byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "runtime/exchange.h"
#include "runtime/workload.h"

namespace millwright {

// What a rank did, in order.
struct ExecutedOperator {
  std::string_view name;
  int stage = 0;
  int micro_batch = -1;
  PassKind pass = PassKind::kForward;
  bool recomputed = false;
  Seconds start, end;  // since the step began
};

template <class T>
class Execution {
 public:
  // Both must outlive it.  WhyNotExecutable must be empty.
  Execution(const Workload& workload, Communicator& communicator);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // All passes of a step and the reduction of gradients; the mean loss over the tokens of the
  // global batch, on every rank.
  double ComputeGradients(int step);
  // Adam, and whole parameters again where they are to be.
  void Update(const Adam& adam);

  // Calls visit(part, first, weights, gradients) for each tensor of which this rank has elements
  // [first, first + size) that it updates.
  using Visit = std::function<void(const TensorPart&, std::int64_t first,
                                   std::span<const T> weights, std::span<const T> gradients)>;
  void ForEachTensor(const Visit& visit) const;

  // Of the last step.
  const std::vector<ExecutedOperator>& operators() const;
  const std::vector<ExecutedCall>& calls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millwright
