// SPDX-License-Identifier: Apache-2.0
//
// What is executed: a model, a plan, its pipeline schedule and task graph, and the data, all of it
// a function of one seed, so that every rank makes its part of weights and tokens without asking
// another.
//
// Executed today: decoder layers (RMSNorm or LayerNorm, RoPE or learned positions, grouped-query
// attention with normed heads and windows, gated or plain MLP, routed and shared experts, biases)
// and a tied head; tensor, sequence, context (ring, Ulysses and both nested), pipeline (every
// schedule with a backward pass), data, expert and expert tensor parallelism, ZeRO 0 to 3,
// selective and full recomputation; linear layers' products in FP8 (runtime/linear_products). Not
// yet: what WhyNotExecutable names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "core/parallel.h"
#include "core/parameters.h"
#include "core/training.h"
#include "sim/schedule.h"
#include "sim/task_graph.h"

namespace millwright {

struct Workload {
  ModelConfig model;
  TrainingConfig training;
  ParallelConfig parallel;  // CheckPlan has passed it
  PipelineSchedule schedule;
  std::uint64_t seed = 1;
  TaskGraph graph{0};  // of a step, in pieces; what executes the workload takes its tasks

  int ranks() const { return int(parallel.gpus()); }
};

// Its linear layers' products have operands in FP8 (runtime/linear_products).
bool MultipliesFp8(const Workload& workload);

// Each thing that the workload asks for and the runtime does not do yet, as a sentence.
std::vector<std::string> WhyNotExecutable(const Workload& workload);

// Adam as everyone runs it (arXiv:1412.6980, algorithm 1), without weight decay.
struct Adam {
  double rate = 1e-3;     // arXiv:1412.6980, section 2
  double beta1 = 0.9;     // arXiv:1412.6980, section 2
  double beta2 = 0.95;    // arXiv:2005.14165, appendix B
  double epsilon = 1e-8;  // arXiv:1412.6980, section 2
};

// A tensor of the whole model: the embedding is layer -1, the head layer num_layers.
struct TensorName {
  int layer = 0;
  std::string_view weight;  // as core/parameters names it
  auto operator<=>(const TensorName&) const = default;
};
std::string Text(const TensorName& name, const ModelConfig& model);  // "layer 3 fc1"

// The tensors of an embedding, a layer or a head as matrices: experts' below one another, and of a
// LayerNorm gains in the first row and biases in the second.
std::vector<Weight> WeightsOf(const ModelConfig& model, int layer);

// Uniform and of about unit effect: matrices within sqrt(3 / cols), the embedding within sqrt(3)
// unless a head is tied to it, biases within 0.1, gains of norms 1 +- 0.1.
double InitialValue(const Workload& workload, const TensorName& name, const Weight& weight,
                    std::int64_t row, std::int64_t col);
// Of a sequence of the global batch of a step; position seq_length is the last token's label.
std::int64_t Token(const Workload& workload, int step, std::int64_t sequence,
                   std::int64_t position);

// Tensors that are reduced, sharded and updated together: each kind over ranks of its own, the
// token table apart because a tied head has a second one.
enum class BucketKind : std::uint8_t { kDense, kExperts, kTable };

// What a rank holds of a tensor: `rows` x `cols` elements, of which row r is global row
// `global_row(r)` and column c global column first_col + c.
struct TensorPart {
  TensorName name;
  Weight whole;  // unpadded
  BucketKind bucket = BucketKind::kDense;
  std::int64_t rows = 0, cols = 0;
  std::int64_t sections = 1;  // of the rows: gate and up, keys and values, each cut alike
  std::int64_t section_rows = 0, first_row = 0, first_col = 0;
  std::int64_t offset = 0;        // in the flat buffer of its layer and bucket
  int copies = 1;                 // ranks in a row, of tensor or expert-tensor ranks, that hold it
  bool partial_gradient = false;  // each of them has the gradient of its own tokens or heads alone
  std::int64_t elements() const { return rows * cols; }
  std::int64_t global_row(std::int64_t r) const {
    const std::int64_t in_section = rows / sections;
    return r / in_section * section_rows + first_row + r % in_section;
  }
};
// Layers [first, second) of a stage; a second direction's stages repeat the first's.
std::pair<int, int> LayersOfStage(const Workload& workload, int stage);

// Where a rank stands: tensor ranks are neighbours, then context, data and pipeline; the ranks of a
// pipeline stage once more, for the experts: expert-tensor, expert and expert-data ranks.
struct RankPlace {
  int tensor = 0, context = 0, data = 0, pipeline = 0;
  int expert_tensor = 0, expert = 0, expert_data = 0;
};
RankPlace PlaceOf(const ParallelConfig& parallel, int rank);

// In the order in which they lie in the flat buffers of their buckets.  A tied head has the token
// table as a part.
std::vector<TensorPart> PartsOf(const Workload& workload, int layer, const RankPlace& place);

}  // namespace millwright
