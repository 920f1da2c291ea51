// SPDX-License-Identifier: Apache-2.0
//
// Closed forms of pipeline schedules: how layers are split, how much of the pipeline stands idle,
// how many micro-batches are in flight.
//
// Sources: 1F1B and interleaved 1F1B, arXiv:2104.04473 section 2.2; in-flight counts,
// arXiv:2205.05198 and Megatron-LM's schedule.  Exact for equal stages; for uneven ones the
// makespan is the bound (sum of stages)/v + (m - 1/v) max, exact where one stage is slowest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model.h"
#include "core/units.h"

namespace millwright {

// Idle over useful time: (p - 1) / (v m).
double BubbleRatio(int pipeline, std::int64_t micro_batches, int virtual_stages);

// Micro-batch chunks (1/v of a rank's layers) whose activations pipeline rank `rank` holds at most:
// 1F1B min(p - r, m), interleaved min(2(p-1-r) + (v-1)p + 1, m v).
double ChunksInFlight(int pipeline, std::int64_t micro_batches, int virtual_stages, int rank);
// Of these, how many are of its chunk `chunk`: forwards come in groups of p micro-batches through
// one chunk after the other.
double ChunksInFlight(int pipeline, std::int64_t micro_batches, int virtual_stages, int rank,
                      int chunk);

// Layers of each chunk, in the order in which a micro-batch passes them; they differ by one at
// most.  One chunk a rank: the shorter ones come last (it has the head), first (it has the
// embedding), then from the end: 126 layers over 16 are 7, 14 x 8, 7.  Several: the longer ones
// fill whole rounds over the ranks from the first on, so that ranks stay in step, and what is left
// goes to the last round by the same rule.  Where embedding and head as two more layers make the
// chunks equal, the first and the last chunk have one layer less (Megatron's
// account_for_embedding_in_pipeline_split): 126 layers are 128 chunks of one, the first and last of
// which have none.
std::vector<int> LayersPerChunk(int num_layers, int pipeline, int virtual_stages);
// The same for a model, whose multi-token-prediction modules and heads weigh on the last chunk:
// with such modules Megatron wants a layout by hand, and the last chunk is taken to have as many
// layers less as balance needs.  `own` is a plan's own split: where it is one into so many chunks,
// it is taken instead.
std::vector<int> LayersPerChunk(const ModelConfig& model, int pipeline, int virtual_stages,
                                std::span<const int> own = {});

// What a pipeline rank holds.  Kinds are indices into ModelConfig::distinct_kinds().
struct StageContent {
  std::vector<int> ranks;  // that have this content, ascending: the first has most in flight
  std::vector<std::vector<int>> chunks;  // the kind of every layer of every virtual stage
  std::vector<int> layers;               // how many of each kind in all
  int total_layers = 0;
  bool embedding = false;
  bool head = false;
  int treatment = 0;  // which of a plan's choices of recomputation is this one's

  // Of each kind, how many are among the first `per_chunk` layers of a chunk (0: all).
  std::vector<int> LeadingLayers(int per_chunk) const;
  // And how many are among `per_chunk` layers spread over each chunk.
  std::vector<int> SpreadLayers(int per_chunk) const;
};

// Whether `layer` of a chunk of `layers` is one of `of_chunk` that are spread evenly over it, the
// first of all among them: of six layers and two 0 and 3.
bool IsSpread(int layer, int layers, int of_chunk);

// Micro-batches in flight of each chunk of rank `rank` when it holds most layers.  From the end of
// the warm-up on, forwards go through the chunks in order while backwards leave them from the last,
// so that longer first chunks pile up.
std::vector<double> ChunksHeldAtPeak(int pipeline, std::int64_t micro_batches, int virtual_stages,
                                     int rank, const StageContent& content);

// Content of each pipeline rank in order; chunk k lies on rank k mod p.  The layers of
// multi-token-prediction modules follow the last layer of the last chunk.
std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline, int virtual_stages);
// The same where a schedule says which rank holds which stage, with `copies` of the model one after
// the other: chunks of a rank in the order of their stages.  `stage_layers` is a plan's own split,
// as LayersPerChunk takes it.
std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline,
                                   std::span<const int> rank_of_stage, int copies,
                                   std::span<const int> stage_layers = {});
// The same with equal ranks merged, in order of their first; those with another treatment are not.
std::vector<StageContent> DistinctStages(const std::vector<StageContent>& stages);

// Interleaved ranks work through rounds of chunks nearly in step, and while some are in round j the
// others are still in the one before, so that longer chunks hold shorter ones up.  What a step
// takes over that of equal chunks, fitted to the schedule's own makespans: 1 + (p-2)/(p+2) x
// (sum over rounds of the longest chunk of this round and the last, over the fullest rank, - 1).
// Off by 1% in the mean and 5% at most over 133 splits (p 2 to 16, 2 to 7 chunks).  1 for one chunk
// a rank and for equal chunks.  In layers; kinds are not told apart.
double ChunkUnevenness(const std::vector<StageContent>& stages, int pipeline);

// Point-to-point time that 1F1B cannot hide, for equal stages and a transfer of one unit on each
// boundary and direction: fill and drain, and every steady loop of two neighbours waits for two
// transfers.  2 (p-1)/p m + 2 (p-2), within 2 of the schedule's own makespan (0 for p = 1).
double ExposedTransfers1F1B(int pipeline, std::int64_t micro_batches);

}  // namespace millwright
