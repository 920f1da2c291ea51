// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of a training step, really computed.
//
// What is simulated is what is executed: a rank takes the tasks of the step's TaskGraph
// (sim/step_graph), in the graph's order.  A task of a pass brings the pass through its layer as
// far as Task::through says: operator by operator of cost_models/operators, matrix products,
// kernels and collectives with the kind, group and payload that the list says.  A buffer that is
// not as long as the list's payload is our bug and ends the run.  Messages, reductions, gatherings
// and sums are done where the graph has them.
//
// A rank is one thread; what its backend does later than it is told overlaps, and sends do not
// wait.  Data parallelism's collectives are forked: beside the passes, where the backend can, until
// a task that waits for them in the graph, or one that works on the same parameters or gradients.
//
// Otherwise than in the simulated step: a ring's exchanges are made within the attention, and a
// product that is cut into chunks is computed whole, with the first of them; a stage's parameters
// are gathered with its first bucket; under ZeRO-3 embedding and head are reduced and gathered once
// a step; the second token table of a tied head is reduced as all parameters are, and what the two
// exchange of their gradients is a rank's share of it under ZeRO; experts' biases are summed over
// expert-tensor ranks, which the simulated step does not count; ranks tell each other how many
// rows their experts get, where the simulated step has the host wait.
// tests/runtime/payload_test.cc holds all calls of every rank to the simulated step's, byte for
// byte: those of routed rows after runtime/expert_layer's factor.
#pragma once

#include <array>
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
#include "sim/timeline.h"

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

  // The rank's tasks of the workload's graph, but for the optimizer's; the mean loss over the
  // tokens of the global batch, on every rank.
  double ComputeGradients(int step);
  // Adam.
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
  // When this rank ran its tasks of the graph, and the most that it held; of other ranks' tasks
  // nothing.  A task for which nothing was left to do takes no time.
  Timeline timeline();
  const std::vector<ExecutedCall>& calls() const { return backend_.calls(); }
  const std::vector<RoutedRows>& routed() const { return operators_.routed(); }

 private:
  // What is done of an operator, or after the operators of a layer.
  enum class Part : std::uint8_t {
    kForward,
    kRecompute,
    kBoth,    // of a backward: both gradients,
    kInput,   //   the input's and those of norms,
    kWeight,  //   or those of the matrices
    kForget,  // ZeRO-3: give back the layer's parameters
    kKept,    // of the activations only what is kept until another pass
    kEnd,     //   or none of them, and gradients are complete
  };
  struct Step {
    Unit* unit = nullptr;
    std::size_t op = 0;
    Part part = Part::kForward;
  };
  // ZeRO-3: to be gathered for a pass; of an embedding or a head, for the first.
  struct Awaited {
    Unit* unit = nullptr;
    Bucket* bucket = nullptr;
  };
  struct Run {
    PassState state;
    std::vector<Step> steps;
    std::size_t at = 0;
    std::vector<Awaited> awaited;
    bool done() const { return at == steps.size(); }
  };
  // A stage and a micro-batch.
  using RunKey = std::pair<int, int>;

  void AddUnits(int stage);
  void Take(TaskId id);
  void TakeOther(const Task& task, std::string_view label);
  void Advance(Run& run, std::uint8_t through, bool recompute);
  std::vector<Step> StepsOf(const Pass& pass);
  Run& RunOf(const Task& task);
  Run StartPass(const Pass& pass);
  void TakeStep(Run& run);
  void EndPass(Run& run);

  // Does `work`, and notes it as `op`.
  template <class Work>
  void Do(ExecutedOperator op, const Work& work);
  void Reduce(Bucket& bucket);
  void ReduceAll();
  void JoinForks(Unit& unit, bool gradients);
  void FinishSums();  // all that are left of the step
  void SumCopies(bool kv);
  void SumCopies(Bucket& bucket, bool kv);
  // The buckets of which another pipeline rank has the same parameters, by that rank: of the same
  // stage of the other direction (DualPipe), or of the token table of a tied head.
  std::map<int, std::vector<Bucket*>> Twins();
  std::map<int, std::vector<Bucket*>> Tables();
  void SendGradients(std::string_view name, const std::map<int, std::vector<Bucket*>>& to);
  void ReceiveGradients(std::string_view name, const std::map<int, std::vector<Bucket*>>& from);
  void SumLoss();
  void Gather(Bucket& bucket);
  void GatherNext(Run& run, const Communication& group);
  template <class Which>
  void GatherFor(Run& run, const Which& which);
  void UpdateBucket(Bucket& bucket, const Adam& adam);
  void Forget(Bucket& bucket);

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
  std::vector<TaskId> program_;                         // this rank's tasks, in order
  std::map<RunKey, std::vector<Pass>> passes_;          // of a step, the last one first
  std::map<RunKey, std::vector<Pass>> passes_left_;     //   and those that have not begun
  std::map<RunKey, Run> runs_;                          // on their way
  std::map<std::pair<const Unit*, int>, Saved> saved_;  // by unit and micro-batch
  std::map<int, Tensor> handed_on_;                     // by tag, between stages of this rank
  std::vector<int> gradients_left_;                     // of each stage, passes that add to them
  std::vector<Bucket*> unreduced_;                      // what is complete, in order
  std::vector<char> gathered_;                          // of each stage: this step
  std::array<bool, 2> copies_summed_{};                 // this step; of keys and values apart
  Backend::Fork last_fork_ = 0;
  std::map<TaskId, Backend::Fork> forks_;  // in which tasks of data parallelism were done
  double loss_ = 0;
  bool loss_summed_ = false;
  std::vector<ExecutedOperator> executed_;
  std::size_t timed_ = 0;                                       // of these have their times
  std::vector<std::pair<Backend::Mark, Backend::Mark>> marks_;  // of these
  std::vector<std::size_t> ends_;                               // of each task, how many were done
  Backend::Mark begin_ = 0;
  Watch watch_;
  int updates_ = 0;
};

}  // namespace millwright
