// SPDX-License-Identifier: Apache-2.0
//
// Whether a plan can be run at all, before anything is costed: divisibility, framework rules,
// memory.  A plan that cannot is returned as a Rejection with a named reason, never thrown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/gpu.h"
#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"

namespace millwright {

enum class RejectionReason {
  kGpuCount,             // t c p D is not the cluster's size
  kPrecision,            // the GPU lacks it
  kHeads,                // attention heads not divisible by t
  kQueryGroups,          // KV heads neither divide t nor are divided by it
  kFfn,                  // FFN not divisible by t
  kSequenceParallel,     // asked for without tensor parallelism
  kMoeSequenceParallel,  // MoE under tensor parallelism needs sequence parallelism (Megatron)
  kSequenceLength,       // tokens not divisible by what cuts them
  kUlyssesHeads,         // t c, or t and the ranks of an all-to-all, do not divide the heads
  kNestedContext,        // ranks of an all-to-all that are no part of c, or without nesting
  kNotMoe,               // expert parallelism of a model without experts
  kExperts,              // experts not divisible by E
  kExpertFfn,            // an expert's FFN not divisible by x
  kExpertRanks,          // E x does not divide t c D
  kRankOrder,            // pipeline inside data needs E x = t c (Megatron)
  kLayers,               // fewer layers than pipeline stages times virtual stages
  kVirtualStages,        // virtual stages without a pipeline, or the schedule does not go with them
  kBatch,                // global batch not divisible by D b
  kInterleaved,          // interleaved schedule: micro-batches not a multiple of p
  kSchedule,             // another schedule needs what the plan does not give
  kZeroShard,            // sharding over a group that does not divide D c
  kRecompute,            // recompute settings that do not go with the model or contradict
  kOutOfMemory,
  kHostMemory,  // offloaded activations need more than the hosts have
  kTooSlow,     // a lower bound on its time rules it out of everything reported
  kForbidden,   // by --require or --forbid
};
inline constexpr int kRejectionReasons = static_cast<int>(RejectionReason::kForbidden) + 1;
std::string_view Name(RejectionReason reason);     // "attention heads not divisible by tp"
std::string_view JsonKey(RejectionReason reason);  // "heads"

struct Rejection {
  RejectionReason reason;
  std::string detail;  // with the numbers
};

using Verdict = std::optional<Rejection>;  // nullopt: fine

// Each looks at what its name says; CheckPlan asks all, and the search each as early as it can.
Verdict CheckPrecision(const GpuSpec& gpu, const TrainingConfig& training);
Verdict CheckTensor(const ModelConfig& model, int tensor);
Verdict CheckSequenceParallel(const ModelConfig& model, int tensor, bool sequence_parallel);
// Of one tensor rank; those that more tensor ranks than heads share count for each of them.
int KeyValueHeads(const ModelConfig& model, int tensor);
Verdict CheckContext(const ModelConfig& model, const TrainingConfig& training,
                     const ParallelConfig& plan);
Verdict CheckExpert(const ModelConfig& model, int expert, int expert_tensor);
Verdict CheckExpertRanks(std::int64_t ranks_of_stage, int expert, int expert_tensor);
Verdict CheckOrder(const ModelConfig& model, const ParallelConfig& plan);
Verdict CheckPipeline(const ModelConfig& model, int pipeline, int virtual_stages,
                      ScheduleKind schedule);
// That the plan's own split of the layers, if it has one, is one of this model into its stages.
Verdict CheckStageLayers(const ModelConfig& model, const ParallelConfig& plan);
Verdict CheckBatch(const TrainingConfig& training, int data, int micro_batch_size, int pipeline,
                   int virtual_stages);
// What schedules need that are neither 1F1B nor interleaved; the batch must be divisible.
Verdict CheckSchedule(const ModelConfig& model, const TrainingConfig& training,
                      const ParallelConfig& plan);
// Whether the software that the question names has the schedule: Megatron-LM's pipeline_parallel/
// schedules.py has 1F1B and interleaved, torchtitan takes those of torch.distributed.pipelining,
// and of the others none is known beside 1F1B and interleaved.
bool RunsIn(Framework framework, ScheduleKind schedule);
// Whether it has the ZeRO stage under such a pipeline: Megatron-FSDP, which shards gradients and
// parameters for Megatron-LM, has none (its mesh has data, expert and tensor ranks only:
// core/distributed/fsdp/mcore_fsdp_adapter.py, commit 00caa53af309), and DeepSpeed's pipeline
// engine refuses ZeRO 2 and 3 (runtime/pipe/engine.py).
bool ShardsIn(Framework framework, int pipeline, int zero);
// Whether it offloads the layers that the plan does: Megatron-LM's transformer_config.py refuses it
// with pipelines and with recomputation.
bool OffloadsIn(Framework framework, int pipeline, const Recompute& recompute);
// And whether it can do what the plan does besides: none recomputes by rank.
bool RunsIn(Framework framework, const ParallelConfig& plan);
Verdict CheckZero(std::int64_t data_ranks, int zero, int zero_shard);
Verdict CheckRecompute(const ModelConfig& model, const Recompute& recompute);
// Whether layers can be offloaded under the schedule: where the gradients of weights are a pass of
// their own, what they need would have to stay or come back a second time.
bool CanOffload(ScheduleKind schedule);
Verdict CheckOffload(const ParallelConfig& plan);
// The plan's recomputation, of each of its ranks where it has one of each.
Verdict CheckRecompute(const ModelConfig& model, const ParallelConfig& plan);

// Everything but memory.
Verdict CheckPlan(const ModelConfig& model, const TrainingConfig& training, const GpuSpec& gpu,
                  std::int64_t cluster_gpus, const ParallelConfig& plan);

}  // namespace millwright
