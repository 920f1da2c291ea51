// SPDX-License-Identifier: Apache-2.0
//
// In which order does each pipeline rank run the passes of a step?
//
// A schedule is a list for each rank, and no times: F, B (gradient of the input), W (gradient of
// the weights) or BW (both in one) of a micro-batch on a stage.  A rank works its list off strictly
// in order; a pass starts when the rank is free and its inputs are there (sim/schedule_timing.h).
//
// Stages are numbered in the order in which a micro-batch passes them; a rank with v chunks holds
// v stages, each a v-th of its layers.  DualPipe sends half of the micro-batches through the ranks
// in reverse: stages p..2p-1 are a second copy of the model, numbered from rank p-1 back to 0,
// and micro-batches are numbered anew in each direction.
//
// Rules and sources:
//   gpipe         arXiv:1811.06965; backward in ascending order, as PyTorch's ScheduleGPipe
//   1f1b          arXiv:2104.04473 section 2.2.1
//   interleaved   arXiv:2104.04473 section 2.2.2 with Megatron-LM's groups of micro-batches
//                 (microbatch_group_size_per_vp_stage)
//   zb-h1, zb-h2  arXiv:2401.10241 section 2, in the handcrafted form (H1 is PyTorch's
//                 ScheduleInterleavedZeroBubble with one stage a rank)
//   zb-v          arXiv:2401.10241 section 6, in the handcrafted form of PyTorch's
//                 ScheduleZBVZeroBubble
//   v-half, v-min, v-zb   arXiv:2405.15362, built by sim/v_shape.h
//   dualpipe, dualpipe-v  arXiv:2412.19437 and deepseek-ai/DualPipe
//   bfs           arXiv:2211.05953: every micro-batch through a chunk before the next chunk
//   forward-only  inference: forward passes alone, in interleaved order where a rank has chunks
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"

namespace millwright {

enum class PassKind : std::uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight };

struct Pass {
  std::int32_t micro_batch = 0;
  std::uint16_t stage = 0;
  PassKind kind = PassKind::kForward;
  // A forward that runs together with the kBackward listed after it: the two are one slot, which
  // starts when both can and ends when both have.
  bool overlaps_next = false;
  bool operator==(const Pass&) const = default;
};

// Whether one chooses a rank's chunks, rather than the schedule.
bool ChoosesChunks(ScheduleKind kind);
// Whether the gradients of inputs and of weights are passes of their own, anywhere.
bool SplitsBackward(ScheduleKind kind);

// What to build.
struct ScheduleChoice {
  ScheduleKind kind = ScheduleKind::k1F1B;
  int pipeline = 1;
  int micro_batches = 1;   // DualPipe: in both directions together
  int virtual_stages = 1;  // chunks a rank, where the schedule lets one choose; 1: its own number
  int group = 0;           // interleaved: micro-batches in a row through one chunk; 0: GroupSize()
  bool operator==(const ScheduleChoice&) const = default;
};

// The one that `plan` names.
ScheduleChoice ScheduleOf(const ParallelConfig& plan, std::int64_t micro_batches);

// Stages of one copy of the model that a rank holds.
int ChunksOfRank(const ScheduleChoice& choice);
// Stages of one copy of the model.
int StagesPerCopy(const ParallelConfig& plan);
// Forgets a split of the layers into another number of stages than the plan has.
void DropOtherSplit(ParallelConfig& plan);

// Copies of the model that the ranks hold together.
int CopiesOfModel(ScheduleKind kind);
// Which rank holds each stage, of one copy after the other.
std::vector<int> RankOfStage(const ScheduleChoice& choice);

struct PipelineSchedule {
  std::string name;
  std::string file;  // where it was read from; empty for a built-in one
  int pipeline = 1;
  int micro_batches = 1;       // of all directions
  int directions = 1;          // 2: the second half of the stages is the model once more
  int chunk_cost_divisor = 1;  // chunks that a rank's layers of one copy are divided into
  bool forward_only = false;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Pass>> orders;  // of each rank

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int stages_per_direction() const { return stages() / directions; }
  int micro_batches_per_direction() const { return micro_batches / directions; }
  bool first_of_direction(int stage) const { return stage % stages_per_direction() == 0; }
  bool last_of_direction(int stage) const { return (stage + 1) % stages_per_direction() == 0; }
  std::size_t passes() const;
};

// Bounds that keep a schedule in memory and its numbers in their types.
inline constexpr int kMostStages = 1 << 16;
inline constexpr std::int64_t kMostPasses = std::int64_t{1} << 27;  // 1 GiB of them

// "NAME" or "NAME:CHUNKS", as in "interleaved:4", into kind and virtual_stages.  ConfigError with a
// did-you-mean where there is none of that name.
ScheduleChoice ParseScheduleChoice(std::string_view text);

// What `choice` lacks to be a schedule, each as one sentence; empty where it can be built.
std::vector<std::string> Unmet(const ScheduleChoice& choice);

// ConfigError with all that is unmet, one a line.
PipelineSchedule BuildSchedule(const ScheduleChoice& choice);

// Micro-batches that an interleaved schedule sends through a chunk in a row where nobody said:
// the fewest, from `pipeline` on, that leave no last group smaller than the pipeline, which would
// stall it (Megatron-LM refuses that; where PyTorch's m / (m / p) is whole, it is this number).
// For micro_batches >= pipeline.
int GroupSize(int pipeline, int micro_batches);

}  // namespace millwright
