// Closed forms of pipeline schedules: how layers are split, how much of the pipeline stands idle,
// how many micro-batches are in flight.
//
// Sources: 1F1B and interleaved 1F1B, arXiv:2104.04473 section 2.2; in-flight counts,
// arXiv:2205.05198 and Megatron-LM's schedule.  Exact for equal stages; for uneven ones the
// makespan is the bound (sum of stages)/v + (m - 1/v) max, exact where one stage is slowest.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model.h"
#include "core/units.h"

namespace millwright {

// Idle over useful time: (p - 1) / (v m).
double BubbleRatio(int pipeline, std::int64_t micro_batches, int virtual_stages);

// Micro-batch chunks (1/v of a rank's layers) whose activations pipeline rank `rank` holds at most:
// 1F1B min(p - r, m), interleaved min(2(p-1-r) + (v-1)p + 1, m v).
double ChunksInFlight(int pipeline, std::int64_t micro_batches, int virtual_stages, int rank);

// Chunks differ by one layer at most; the shorter ones come last (it has the head), first (it has
// the embedding), then from the end: 126 layers over 16 are 7, 14 x 8, 7.
std::vector<int> LayersPerChunk(int num_layers, int chunks);

// What a pipeline rank holds.  Kinds are indices into ModelConfig::distinct_kinds().
struct StageContent {
  int first_rank = 0;  // of the ranks with this content the first: it has most in flight
  int ranks = 1;       // how many have it
  std::vector<std::vector<int>> chunks;  // the kind of every layer of every virtual stage
  std::vector<int> layers;               // how many of each kind in all
  int total_layers = 0;
  bool embedding = false;
  bool head = false;

  // Of each kind, how many are among the first `per_chunk` layers of a chunk (0: all).
  std::vector<int> LeadingLayers(int per_chunk) const;
};

// Content of each pipeline rank in order; chunk k lies on rank k mod p.
std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline, int virtual_stages);
// The same with equal ranks merged, in order of first_rank.
std::vector<StageContent> DistinctStages(const std::vector<StageContent>& stages);

// Interleaved ranks work through their chunks in step, so that round j takes as long as the
// longest j-th chunk: the sum of those over the layers of the fullest rank.  1 where chunks are
// equal or there is one a rank.  In layers, kinds not told apart.
double ChunkUnevenness(const std::vector<StageContent>& stages);

// Point-to-point time that 1F1B cannot hide, for equal stages and a transfer of one unit on each
// boundary and direction: fill and drain, and every steady loop of two neighbours waits for two
// transfers.  2 (p-1)/p m + 2 (p-2), within 2 of the schedule's own makespan (0 for p = 1).
double ExposedTransfers1F1B(int pipeline, std::int64_t micro_batches);

}  // namespace millwright
