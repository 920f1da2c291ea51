// SPDX-License-Identifier: Apache-2.0
//
// The answer: one assignment of the cluster's GPUs to a model, in Megatron-LM's terms.
//
// Ranks are numbered with tensor innermost, then context, data, pipeline outermost (Megatron's
// default order tp-cp-ep-dp-pp).  The expert part lays the same t c D ranks of a stage out as
// expert-tensor innermost, then expert, then expert-data.  In which order they lie on GPUs is the
// plan's RankOrder.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config_io.h"

namespace millwright {

// How attention crosses context ranks: keys and values go around a ring, all-to-alls exchange heads
// for tokens, or both: all-to-alls among neighbours inside, a ring of these groups outside
// (Megatron-LM's --cp-comm-type p2p, a2a and a2a+p2p; arXiv:2405.07719, "USP").
enum class ContextParallelKind { kRing, kUlysses, kNested };
// Of `context` ranks those of an all-to-all, and the ring has the rest: 1 in a plain ring, all of
// them in plain Ulysses, `nested` where both are.
constexpr int UlyssesRanks(ContextParallelKind kind, int context, int nested) {
  switch (kind) {
    case ContextParallelKind::kRing:
      return 1;
    case ContextParallelKind::kUlysses:
      return context;
    case ContextParallelKind::kNested:
      return nested;
  }
  return 1;
}

// In which order a pipeline rank runs its passes: sim/schedule.h says how, and whose each is.
enum class ScheduleKind {
  kGpipe,
  k1F1B,
  kInterleaved,
  kZbH1,
  kZbH2,
  kZbV,
  kVHalf,
  kVMin,
  kVZb,
  kDualPipe,
  kDualPipeV,
  kBreadthFirst,
  kForwardOnly,
};
// Which ranks have neighbouring GPUs, innermost first: Megatron-LM's default, and its
// --use-tp-pp-dp-mapping, under which the stages of a pipeline are neighbours.
enum class RankOrder { kDataInside, kPipelineInside };
enum class RecomputeGranularity { kNone, kSelective, kFull };
// Megatron-LM's --recompute-modules.
enum class RecomputeModule { kCoreAttn, kMlp, kMoe, kMoeAct, kLayerNorm, kMlaUpProj };
inline constexpr int kRecomputeModules = 6;

std::span<const EnumName<ContextParallelKind>> ContextParallelKindNames();
std::span<const EnumName<ScheduleKind>> ScheduleKindNames();
std::span<const EnumName<ScheduleKind>> TrainingScheduleNames();  // those with a backward pass
std::string_view NameOf(ScheduleKind kind);
// 1F1B and interleaved: which of the two a plan has its virtual stages say.  Every framework with
// pipelines has them, and the estimate has a closed form of them (planner/estimator.h).
bool FollowsFromStages(ScheduleKind kind);
std::span<const EnumName<RankOrder>> RankOrderNames();  // "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"
std::span<const EnumName<RecomputeGranularity>> RecomputeGranularityNames();
std::span<const EnumName<RecomputeModule>> RecomputeModuleNames();

// What becomes of activations between a layer's forward and its backward: kept, dropped and
// computed again, or moved to the host's memory and back.
struct Recompute {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  std::vector<RecomputeModule> modules{};  // selective: which
  int full_layers = 0;     // full: the first N layers of each virtual stage; 0: all of them
  int offload_layers = 0;  // none and selective: layers of each virtual stage, spread evenly over
                           //   it, of which what is not dropped waits in host memory
  auto operator<=>(const Recompute&) const = default;
};

struct ParallelConfig {
  int tensor = 1;
  bool sequence_parallel = false;
  int context = 1;
  ContextParallelKind context_kind = ContextParallelKind::kRing;
  int pipeline = 1;
  int virtual_stages = 1;  // chunks a pipeline rank holds, where the schedule lets one choose
  int data = 1;            // dense data parallel: n / (t c p)
  int expert = 1;
  int expert_tensor = 1;
  int micro_batch_size = 1;
  int zero = 1;        // 0: plain, 1: optimizer sharded, 2: gradients too, 3: parameters too
  int zero_shard = 0;  // ranks that one copy of the sharded state spans (HSDP); 0: all of D c
  Recompute recompute{};
  ScheduleKind schedule = ScheduleKind::k1F1B;
  // Layers of each stage in the order in which a micro-batch passes them, virtual stages too;
  // empty: as even as LayersPerChunk (cost_models/pipeline.h) makes them.
  std::vector<int> stage_layers{};
  RankOrder order = RankOrder::kDataInside;
  int context_ulysses = 0;  // nested: ranks of an all-to-all, more than 1 and fewer than c; else 0
  // Of each pipeline rank, in place of `recompute`, which is then none; empty: all are alike.
  std::vector<Recompute> rank_recompute{};
  bool operator==(const ParallelConfig&) const = default;

  // Of the context ranks, those that exchange heads for tokens, and those of a ring.
  int ulysses_ranks() const { return UlyssesRanks(context_kind, context, context_ulysses); }
  int ring_ranks() const { return context / ulysses_ranks(); }

  // t c p D, as a double because four degrees read from a file may pass 2^63.
  double gpus() const { return 1.0 * tensor * context * pipeline * data; }
  const Recompute& RecomputeOf(int pipeline_rank) const {
    return rank_recompute.empty() ? recompute : rank_recompute[std::size_t(pipeline_rank)];
  }
  std::vector<Recompute> Recomputes() const;  // of all ranks, each once, the first rank's first
  bool Offloads() const;                      // on some rank
  // Whether the order makes a difference.
  bool placed_otherwise() const {
    return order == RankOrder::kPipelineInside && pipeline > 1 && data > 1;
  }
};

// On which GPU of the cluster the rank is; both count from 0.
std::int64_t GpuOf(const ParallelConfig& parallel, std::int64_t rank);

void Fields(ConfigIo& io, ParallelConfig& parallel);

// "tp8 sp cp1 pp4 vpp2 dp4 mbs1 zero1 selective(mlp)", for tables and messages.
std::string ShortName(const ParallelConfig& parallel);
std::string ShortName(const Recompute& recompute);
// How context ranks are used, as names have it: "", " ulysses" or " nested(4)".
std::string ContextSuffix(const ParallelConfig& parallel);
// "8", "8u" with Ulysses, "16u4" with all-to-alls of 4 in a ring of 4: a cell of a table.
std::string ContextCell(const ParallelConfig& parallel);
// The same, of all ranks: "full(4)|2xselective(mlp)|none" where they differ, as --rank-recompute
// takes it.
std::string RecomputeName(const ParallelConfig& parallel);
// "7,14x8,7", as --stage-layers takes it.
std::string RunsOf(std::span<const int> counts);

}  // namespace millwright
