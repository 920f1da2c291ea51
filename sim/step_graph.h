// SPDX-License-Identifier: Apache-2.0
//
// Pipeline slots x layers x collectives -> the task graph of one training step.
//
// Folded: one rank for each pipeline rank stands for all that do the same.  What a layer does comes
// priced (StepSpec, which planner/step_spec makes from model, plan, cluster and cost models); this
// file only says what runs where and after what:
//
//   forward of a chunk   receive, embedding, layers, head, send
//   layer                compute and its collectives on their streams, one piece after the other or
//                        beside another
//   backward             the same in reverse, after what is recomputed; or the input gradients
//                        alone, with the weight gradients as a pass of their own
//   data parallel        parameters gathered bucket by bucket before the first forward, gradients
//                        reduced bucket by bucket after the last backward of a layer, under compute
//   gradients again      sums over ranks that hold the same weights: tensor ranks, a copy of the
//                        stage or a tied embedding on another pipeline rank
//   offloaded layer      copied to the host after its forward, and back before its backward, on
//                        streams of their own and one layer ahead: it begins its forward when the
//                        copy of the one before the last has ended, and is fetched when the
//                        backward of the last begins, so that each way two layers' buffers are
//                        enough
//   loss                 summed over all ranks, so that nobody goes on before the slowest stage
//   optimizer            when all gradients are in
//
// While a data-parallel collective runs under compute it takes SMs and bandwidth from it: a share
// of its time (StepSpec::contention) is added to the compute stream where it is launched; and so it
// is with communication of one pass of an overlapped pair (Piece::sm_share).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "sim/schedule.h"
#include "sim/task_graph.h"

namespace millwright {

// One piece of a pass: seconds on a stream.
struct Piece {
  const char* label = "";
  Seconds duration;
  Stream stream = Stream::kCompute;
  Cause cause = Cause::kCompute;
  // How far back in the pass the pieces are that it waits for; 0: none.  {2}: beside the one
  // before.
  std::array<std::uint8_t, 2> after{1, 0};
  bool routed = false;       // experts' compute, and the exchanges around it
  std::uint8_t through = 0;  // the operator of the layer that it ends with (Task::through)
  // Of its time, what compute of another pass that runs beside it takes longer.
  double sm_share = 0;
  Communication communication{};
};

// Collectives of data parallelism one after the other: one for each kind and group.
struct DataCall {
  Seconds duration;
  Communication communication{};
};
struct DataCalls {
  std::vector<DataCall> calls;
  void Add(const DataCall& call, double share = 1);
  void Add(const DataCalls& more, double share = 1);
  Seconds time() const;
  bool any() const { return time().value > 0; }
};

// A layer, embedding or head of one kind: what its passes run, and what it holds.
struct LayerPasses {
  std::vector<Piece> forward;
  std::vector<Piece> backward;         // both gradients, after what is recomputed
  std::vector<Piece> backward_input;   // what a split backward runs first
  std::vector<Piece> backward_weight;  //   and later
  Bytes saved;                         // from forward until backward (the input gradient) ends
  Bytes held_for_weight;               // from there until a weight gradient that comes later ends
  Bytes working_set;                   // beside it during backward
  Bytes offloaded;                     // held like `saved`, but on the host in between
  Seconds copy;                        // to get it there, and back; 0: nothing is offloaded
  double parameters = 0;               // of a rank, for buckets
  DataCalls gather, reduce;            // data parallel: of this layer's parameters, once a step
  DataCalls shard_gather;              // ZeRO-3: before each pass
  DataCalls shard_reduce;              // ZeRO-2, 3: after each backward
  bool stays_gathered = false;         // ZeRO-3: from forward to backward
};

// Once a step, when a rank's gradients have been reduced: sums over ranks that hold the same
// weights and have a part of their gradients each.
struct GradientSums {
  DataCall replicated, key_value;  // over tensor ranks
  DataCall copies;                 // DualPipe: with the pipeline rank that holds the same stages
  DataCall tied;                   // with the other rank that holds a tied embedding
};

struct StepSpec {
  PipelineSchedule schedule;
  std::vector<LayerPasses> kinds;
  LayerPasses embedding, head;
  std::vector<std::vector<int>> layers_of_stage;  // kind of each layer of each (virtual) stage
  Seconds transfer;  // of a micro-batch between stages on different ranks
  Bytes transfer_payload;
  std::vector<GradientSums> sums;  // of each rank; empty: none
  DataCall loss;                   // over all ranks of the step
  std::vector<Seconds> optimizer;  // of each rank
  double contention = 0;           // of a data-parallel collective once a step, added to compute
  double shard_contention = 0;     // ZeRO-3: of the smaller of a layer's compute and communication
  double bucket_parameters = 0;
  // Of each rank: what a second of compute in all of the above takes; empty: a second.
  std::vector<double> compute_time;
  bool overlap_gather = true, overlap_reduce = true;
  bool overlap_transfers = true;  // false: a rank does nothing until what it sends has gone
};

// kPieces: a task for each piece.  kMerged: what of a pass runs piece after piece whatever else
// goes on is one task, so that the graph is several times smaller and ends at the same time with
// the same peaks (tests/sim/simulate_test.cc: but for the order of sums); what its time goes to can
// no longer be seen.
enum class StepDetail : std::uint8_t { kPieces, kMerged };

// Tasks that the graph will have, but for data parallelism's few.
double TaskCount(const StepSpec& spec, StepDetail detail = StepDetail::kPieces);
TaskGraph BuildStepGraph(const StepSpec& spec, StepDetail detail = StepDetail::kPieces);

}  // namespace millwright
