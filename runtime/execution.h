// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of a training step, really computed.
//
// What is simulated is what is executed: the passes are those of the PipelineSchedule, in its
// order, and what a layer does in a pass is the list of cost_models/operators, operator by
// operator: matrix products, kernels and collectives with the kind, group and payload that the list
// says.  A buffer that is not as long as the list's payload is our bug and ends the run.  An
// overlapped pair of passes takes turns operator by operator, as in sim/step_graph.  Data
// parallelism is that of planner/step_spec, a bucket for each layer: reduced once a step (ZeRO 0,
// 1) or after each backward (2, 3), gathered once a step (1, 2) or before each pass (3).
//
// A rank is one thread; what its backend does later than it is told overlaps, and sends do not
// wait.
//
// Otherwise than in the simulated step: under ZeRO-3 embedding and head are reduced and gathered
// once a step; the second token table of a tied head is reduced as all parameters are, and what the
// two exchange of their gradients is a rank's share of it under ZeRO; ranks tell each other how
// many rows their experts get, where the simulated step has the host wait.
// tests/runtime/payload_test.cc holds all other calls of every rank to the simulated step's, byte
// for byte: those of routed rows after runtime/expert_layer's factor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"
#include "runtime/backend.h"
#include "runtime/unit.h"
#include "runtime/unit_operators.h"
#include "runtime/workload.h"
#include "sim/task_graph.h"

namespace millwright {

// What a rank did, in order: the operators of its passes, and "send", "receive", "optimizer" (what
// is done to gradients and parameters once a step) and the collectives of data parallelism.
struct ExecutedOperator {
  std::string_view name;
  Stream stream = Stream::kCompute;  // on which sim/step_graph has it
  int stage = 0;
  int micro_batch = -1;  // of a pass
  PassKind pass = PassKind::kForward;
  bool recomputed = false;
  int calls = 0;       // collectives and messages
  Seconds start, end;  // since the step began
  Seconds processor;   // that the rank's thread had of it
  // Of a pass, and no message between two.
  bool of_pass() const {
    return micro_batch >= 0 && stream != Stream::kSend && stream != Stream::kReceive;
  }
};

class Execution {
 public:
  // Both must outlive it.  WhyNotExecutable must be empty.
  Execution(const Workload& workload, Backend& backend);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // All passes of a step and the reduction of gradients; the mean loss over the tokens of the
  // global batch, on every rank.
  double ComputeGradients(int step);
  // Adam, and whole parameters again where they are to be.
  void Update(const Adam& adam);

  // Calls visit(part, first, weights, gradients) for each tensor of which this rank has elements
  // [first, first + size) that it updates.
  using Visit =
      std::function<void(const TensorPart&, std::int64_t first, std::span<const double> weights,
                         std::span<const double> gradients)>;
  void ForEachTensor(const Visit& visit) const;

  // Called where a pass is through a layer, the embedding or the head, with what stays of it; of
  // the last pass with nothing.
  using Watch = std::function<void(const Unit&, const Pass&, const Saved&)>;
  void WatchKept(Watch watch) { watch_ = std::move(watch); }

  // Of the last step; waits until it is done.
  const std::vector<ExecutedOperator>& operators();
  const std::vector<ExecutedCall>& calls() const { return backend_.calls(); }
  const std::vector<RoutedRows>& routed() const { return operators_.routed(); }

 private:
  // What is done of an operator, or around the operators of a layer.
  enum class Part : std::uint8_t {
    kForward,
    kRecompute,
    kBoth,    // of a backward: both gradients,
    kInput,   //   the input's and those of norms,
    kWeight,  //   or those of the matrices
    kGather,  // ZeRO-3: the layer's parameters,
    kForget,  //   and give them back
    kReduce,  // ZeRO-2, 3: the layer's gradients
    kKept,    // of the activations only what is kept until another pass
    kEnd,     // none of them
  };
  struct Step {
    Unit* unit = nullptr;
    std::size_t op = 0;
    Part part = Part::kForward;
  };
  struct Run {
    PassState state;
    std::vector<Step> steps;
    std::size_t at = 0;
    bool done() const { return at == steps.size(); }
  };

  void AddUnits(int stage);
  std::vector<Step> StepsOf(const Pass& pass);
  Run StartPass(const Pass& pass);
  void TakeStep(Run& run);
  void EndPass(Run& run);
  void RunPass(const Pass& pass);
  void RunTogether(const Pass& a, const Pass& b);

  // Does `work`, and notes it as `op`.
  template <class Work>
  void Do(ExecutedOperator op, const Work& work);
  void ReduceShard(Unit& unit);
  void SumCopies(Bucket& bucket);
  void ExchangeGradients(std::string_view name, int with, std::span<Bucket* const> buckets);
  void ExchangeTwins();
  void ExchangeTables();
  void GatherUnit(Unit& unit);
  void UpdateBucket(Bucket& bucket, const Adam& adam);
  void Forget(Unit& unit);

  bool is_layer(const Unit& unit) const {
    return unit.layer >= 0 && unit.layer < workload_.model.num_layers;
  }
  bool sharded(const Unit& unit) const { return workload_.parallel.zero == 3 && is_layer(unit); }
  bool reduces_each_pass(const Unit& unit) const {
    return workload_.parallel.zero == 2 || sharded(unit);
  }
  bool holds_embedding() const;
  int RankOnPipeline(int pipeline) const;

  const Workload& workload_;
  Backend& backend_;
  RankGroups groups_;
  UnitOperators operators_;
  std::vector<Unit> units_;
  std::map<std::pair<const Unit*, int>, Saved> saved_;  // by unit and micro-batch
  std::map<int, Tensor> handed_on_;                     // by tag, between stages of this rank
  std::vector<ExecutedOperator> executed_;
  std::size_t timed_ = 0;                                       // of these have their times
  std::vector<std::pair<Backend::Mark, Backend::Mark>> marks_;  // of these
  Backend::Mark begin_ = 0;
  Watch watch_;
  int updates_ = 0;
};

}  // namespace millwright
