// SPDX-License-Identifier: Apache-2.0
//
// One training step in closed form: seconds by cause and bytes by pipeline stage.
//
// The step is max-plus in a line: (sum over ranks of one micro-batch)/v + (m - 1/v) x the pace of
// the full pipeline, plus transfers of fill and drain, exposed data-parallel communication and the
// optimizer.  That is 1F1B, plain or interleaved; of every other schedule the first part is the
// slowest rank's work and what the orders leave idle beside it (sim/schedule_forms).  Exact for
// equal stages with nothing contending; for uneven ones the simulator is the measure:
// tests/planner/cross_check_test.cc states how close they are.  Of a plan with layers or
// recomputation of its own for each stage the orders of these other schedules are walked with every
// pass as long as its stage's (sim/schedule_timing), since what a rank waits for is in which of its
// stages the work is: in Itemise alone, the search's candidates have none.
//
// Two doors to the same arithmetic: Itemise() for one plan, with every item; and, for the search,
// CostShape() once per layer shape, PipelineTerms once per pipeline and sharding, and then
// tens of nanoseconds per recompute choice.  Tests hold that both give the same numbers.
//
// Offloaded layers (Recompute::offload_layers) are copied to the host's memory after their forward
// and back before their backward, on two streams of their own, through two layers' buffers each
// way. They are spread over their chunk, so that a pass hides copies under all of it: it takes its
// own time or that of its copies, whichever is longer.  That leaves out the first fetch after a
// micro-batch's own forward and counts what drains under the next pass; both are in the simulator,
// which tests/planner/cross_check_test.cc holds beside this.  Copies are taken to slow nothing, and
// NICs on the same PCIe switch not to slow them.
//
// An Estimator remembers path profiles: one a thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model.h"
#include "core/parallel.h"
#include "core/training.h"
#include "cost_models/end_to_end.h"
#include "cost_models/layer_cost.h"
#include "cost_models/memory.h"
#include "cost_models/pipeline.h"
#include "planner/data_parallel.h"
#include "sim/schedule_forms.h"
#include "topologies/cluster.h"

namespace millwright {

enum class TimeItem {
  kCompute,    // forward and backward of the slowest rank, all micro-batches
  kRecompute,  // forwards run again, their communication included
  kTensor,     // exposed communication by dimension
  kContext,
  kExpert,
  kHost,       // copies of activations to and from the host that are not hidden
  kPipeline,   // point-to-point that is not hidden
  kData,       // gradient reduction and parameter gathering that is not hidden
  kBubble,     // waiting for other stages, uneven stages included
  kOptimizer,  // and gradient clipping
};
inline constexpr int kTimeItems = 10;
std::string_view Name(TimeItem item);
std::string_view JsonKey(TimeItem item);

struct StepTime {
  std::array<Seconds, kTimeItems> items{};
  Seconds& operator[](TimeItem i) { return items[static_cast<int>(i)]; }
  Seconds operator[](TimeItem i) const { return items[static_cast<int>(i)]; }
  Seconds total() const;
};

// Whether hosts that have `capacity` (0: not known) have room for `needed`.
inline bool HostHolds(Bytes needed, Bytes capacity) {
  return capacity == Bytes(0) || needed <= capacity;
}

// A plan, costed.
struct Estimate {
  ParallelConfig plan;
  StepTime time;
  Seconds step;                     // time.total()
  std::vector<StageMemory> memory;  // of every pipeline rank
  int peak_stage = 0;
  Bytes peak, capacity;
  Bytes host, host_capacity;  // of a domain: offloaded activations, and the memory; 0: not known
  bool FitsIn(Bytes limit) const { return peak <= limit && HostHolds(host, host_capacity); }
  bool fits() const { return FitsIn(capacity); }
  int slowest_stage = 0;
  std::int64_t micro_batches = 0;
  double tokens_per_second_per_gpu = 0;
  FlopsPerSecond model_flops_per_gpu;
  double mfu = 0, hfu = 0;
};

// One layer under one choice of recomputation.
struct TreatedLayer {
  Seconds forward, backward;  // backward with what is run again
  Seconds plain_backward;     //   and without
  // Of a split backward: the weight gradients, and what both passes take beyond one.
  Seconds weight, split_more;
  // Its forward and the backward of another in one pair: for each of a row of such layers, and
  // once.  Until ShapeCosts::Pair has set them the least that they can be.
  Seconds pair, pair_ends;
  Bytes saved;        // a micro-batch in flight keeps this
  Bytes waiting;      // and this once only its weight gradients are to come
  Bytes working_set;  // alive beside it while this layer is in backward
  Bytes offloaded;    //   and keeps this on the host,
  Seconds copy;       //   where it takes this long to get, and back
};

// Everything about a model cut to one LayerShape that does not depend on pipeline, data
// parallelism or ZeRO.
struct ShapeCosts {
  LayerShape shape;
  std::vector<LayerCost> kinds;  // by ModelConfig::distinct_kinds()
  PassTime embedding_forward, embedding_backward;
  PassTime head_forward, head_backward;  // with the MTP modules, but for their layers
  Bytes embedding_saved;                 // a micro-batch in flight keeps this
  Bytes head_saved;                      // logits, loss, norms: of the one micro-batch at the head
  Bytes head_working_set;
  Seconds head_weight, head_split_more;  // as of a TreatedLayer
  Bytes head_waiting;                    // a micro-batch keeps this until its weight gradient
  Bytes boundary;                        // what one micro-batch passes from stage to stage
  Bytes sent;         //   and what of it a rank sends: less where tensor ranks cut it among them
  Bytes least_layer;  // alive while the costliest kind is in backward, whatever is recomputed
  Seconds work;       // all layers, embedding and head, forward and backward
  Seconds overlapped_work;  //   at least this, where communication may run under all compute
  std::vector<RankParameters> kind_parameters;
  RankParameters embedding_parameters, head_parameters;  // head: with MTP's, but for its layers
  RankParameters token_table;  // of the embedding: what the last stage may hold again
  std::vector<PartialGradients> kind_partial;
  PartialGradients head_partial;
  BytesPerSecond to_host;  // what copies get

  std::vector<TreatedLayer> Treat(const Recompute& recompute) const;  // one a kind
  void Pair(const Recompute& recompute,
            std::vector<TreatedLayer>& treated) const;  // what pairs take
};

// The least that any model of such layers takes: those of the kind that most of them are, of one
// micro-batch, forward and backward.
struct LeastWork {
  Seconds work, overlapped;                // the latter where communication may run under compute
  Seconds shared_work, shared_overlapped;  // of both what no kind of context parallelism changes
  Bytes least_layer;
};

class PipelineTerms;

// What each of its pipeline ranks holds; treatments are indices into ParallelConfig::Recomputes().
std::vector<StageContent> StagesOfPlan(const ModelConfig& model, const ParallelConfig& plan);

class Estimator {
 public:
  // By the end-to-end parameters of the GPU's calibration file, or the shipped ones.
  Estimator(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster)
      : Estimator(model, training, cluster, EndToEndFor(cluster.gpu())) {}
  Estimator(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster,
            const EndToEnd& end_to_end);
  // By a calibration that whole steps add nothing to.
  Estimator(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster,
            const Calibration& calibration);

  // The plan must have passed CheckPlan.
  Estimate Itemise(const ParallelConfig& plan) const;

  ShapeCosts CostShape(const LayerShape& shape) const;
  LeastWork LeastWorkOf(const LayerShape& shape) const;  // at a fifth of the time

  const ModelConfig& model() const { return model_; }
  const TrainingConfig& training() const { return training_; }
  const Cluster& cluster() const { return cluster_; }
  const Calibration& calibration() const { return *calibration_; }
  const CostContext& context() const { return context_; }
  const std::vector<LayerKind>& kinds() const { return kinds_; }
  LayerPaths PathsOf(const LayerShape& shape) const;
  // Of a group of GPUs, and of one of `plan`'s ranks, which lie on GPUs in its order.
  const PathProfile& Profile(std::int64_t stride, std::int64_t ranks) const;
  const PathProfile& Profile(const ParallelConfig& plan, std::int64_t stride,
                             std::int64_t ranks) const;
  // Of the ranks of a pipeline.
  const PathProfile& PipelineProfile(const ParallelConfig& plan) const;
  Seconds scalar_sum() const { return scalar_sum_; }
  // Of the gradient of a tied embedding, between first and last stage.
  Seconds TiedSum(const ParallelConfig& plan, const ShapeCosts& shape) const;
  // Of a micro-batch to the next stage, whose ranks are `path` apart.
  Seconds Transfer(const ShapeCosts& shape, const PathProfile& path) const;
  // Of a schedule without a closed form; nullptr of 1F1B and interleaved.
  const ScheduleForms* Forms(const ScheduleChoice& choice) const;
  const PipelineSchedule& Orders(const ScheduleChoice& choice) const;
  Bytes capacity() const { return cluster_.gpu().hbm_capacity; }

 private:
  friend std::vector<Estimator> EstimatorsFor(const ModelConfig& model,
                                              const TrainingConfig& training,
                                              const Cluster& cluster, int threads);

  const ModelConfig& model_;
  const TrainingConfig& training_;
  const Cluster& cluster_;
  std::unique_ptr<const Calibration> calibration_;  // of the GPU, as this training meets it
  CostContext context_;
  std::vector<LayerKind> kinds_;
  std::vector<int> layers_;  // of each kind, with those of MTP modules
  mutable std::unordered_map<std::int64_t, PathProfile> profiles_;  // by stride << 32 | ranks
  // Of ranks that are not equally far apart: tensor and context ranks, pipeline, stride, ranks.
  mutable std::map<std::array<std::int64_t, 4>, PathProfile> scattered_;
  std::shared_ptr<KnownForms> known_forms_ = std::make_shared<KnownForms>();
  mutable std::map<KnownForms::Key, const ScheduleForms*> forms_;  // of these, met here
  mutable std::map<KnownForms::Key, PipelineSchedule> orders_;
  Seconds scalar_sum_;  // over every rank, for the gradient norm and again for the loss
};

// One for each thread, which know the same forms.
std::vector<Estimator> EstimatorsFor(const ModelConfig& model, const TrainingConfig& training,
                                     const Cluster& cluster, int threads);

// What a choice of recomputation costs, without items.
struct QuickCost {
  Seconds step;
  Bytes peak;
  Bytes host;         // of a domain
  Seconds even_pace;  // the step if all ranks had an equal share of the work: StepIfDivided or less
};

// What a rank does of one micro-batch, all of its passes, and what it holds at most.
struct RankCost {
  Seconds time;
  Bytes peak;
  Bytes host;    // of one GPU
  Seconds data;  // exposed data-parallel communication of the step
};

// A recompute choice made ready: every layer `treated`, or, where `some` is not empty, some layers
// of every chunk treated and the others as in `rest`.  Where stages have several treatments, of
// each of them in turn.  Views: all must outlive it.
struct RecomputeTerms {
  std::span<const TreatedLayer> treated, rest;  // [treatment x kinds + kind]
  std::span<const int> some;                    // [stage x kinds + kind]: how many are treated
  int Treated(const StageContent& stage, std::size_t s, std::size_t k) const {
    return some.empty() ? stage.layers[k] : some[s * stage.layers.size() + k];
  }
  // Of the stage's own treatment, from the first kind on.
  const TreatedLayer* TreatedOf(const StageContent& stage) const {
    return treated.data() + std::size_t(stage.treatment) * stage.layers.size();
  }
  const TreatedLayer* RestOf(const StageContent& stage) const {
    return rest.data() + std::size_t(stage.treatment) * stage.layers.size();
  }
};
// Of stages, whose treatments are indices into `choices`.
struct TreatedStages {
  std::vector<TreatedLayer> treated, rest;
  std::vector<int> some;
  RecomputeTerms terms() const { return {.treated = treated, .rest = rest, .some = some}; }
};
TreatedStages TreatStages(const ShapeCosts& shape, const std::vector<StageContent>& stages,
                          std::span<const Recompute> choices);
// Those that are better than every other in time or memory, of some kind of layer; or, of `pairs`,
// in what these take.
struct TreatedChoice {
  const Recompute* recompute;
  std::vector<TreatedLayer> treated;
};
std::vector<TreatedChoice> Undominated(const std::vector<TreatedChoice>& choices,
                                       bool pairs = false);
// `some`: the first layers of each chunk where they are recomputed in full, those spread over it
// where they are offloaded; empty where all layers are treated alike.
std::vector<int> SomeLayers(const std::vector<StageContent>& stages, const Recompute& recompute);
std::vector<int> SomeLayers(const std::vector<StageContent>& stages,
                            std::span<const Recompute> choices);  // treatments are indices of them
// What becomes of the activations of the other layers.
Recompute OfOthers(const Recompute& recompute);

// What model state and the buffers and overheads beside it need of the fullest stage: the same for
// every micro-batch, kind of context parallelism and schedule with the same copies of the model.
struct StateFloor {
  Bytes bytes;
  MemoryItem largest = MemoryItem::kWeights;
};

// A layer shape in a pipeline with its data parallelism and ZeRO stage: all that is left open is
// what is recomputed.
class PipelineTerms {
 public:
  // `stages` as DistinctStages gives them for the plan's schedule.  All references must outlive
  // this.
  PipelineTerms(const Estimator& estimator, const ShapeCosts& shape,
                const std::vector<StageContent>& stages, const ParallelConfig& plan);

  // The same but for the schedule, which must lay stages out as the one before.
  void Reschedule(const ParallelConfig& plan);
  // What is in flight under the schedule: to be called before anything of memory is asked.  It is
  // that of `other`, too, with the same stages, schedule and micro-batches.
  void SetInFlight();
  void SetInFlight(const PipelineTerms& other) { held_ = other.held_; }

  Seconds Step(const RecomputeTerms& recompute) const;
  // The same if the pipeline's layers were divided so that the slowest rank is as fast as whole
  // layers allow (planner/fullest_rank), whatever memory says, and if all ranks exposed equally
  // much of data-parallel communication.  Never longer than with layers as they are.  The best of
  // all divisions is longer, or shorter by 0.1% at most; by 3.5% of schedules without a closed form
  // and of offloading, which are not in proportion to a rank's layers (of small models, whose
  // layers weigh most: tests/planner/layer_split_test.cc).
  Seconds StepIfDivided(const RecomputeTerms& recompute) const;
  QuickCost Cost(const RecomputeTerms& recompute) const;
  std::vector<RankCost> CostOfRanks(const RecomputeTerms& recompute) const;  // of each stage given
  // From the first forward to the last backward, of 1F1B and interleaved: of what one micro-batch
  // takes on all ranks together, and on the slowest.
  Seconds MakespanOf(Seconds sum, Seconds slowest) const;
  // The step, of the same, where each of the stages given takes so long.
  Seconds StepOf(std::span<const RankCost> of_stages) const;
  // The largest item of the fullest stage.
  MemoryItem LargestItem(const RecomputeTerms& recompute) const;
  // No choice of recomputation needs less, and of it the largest item of the fullest stage.
  // `if_divided`: and if the layers were divided so that the fullest rank has as little state as
  // whole layers allow.
  Bytes FloorPeak(bool if_divided) const;
  MemoryItem LargestFloorItem() const;
  // And without what the micro-batch changes.
  StateFloor FloorOfState(bool if_divided) const;
  // The same, whether the schedule has orders for the micro-batches or not.
  static StateFloor StateFloorOf(const Estimator& estimator, const ShapeCosts& shape,
                                 const std::vector<StageContent>& stages,
                                 const ParallelConfig& plan, bool if_divided);
  // With every item; `plan` as given to the constructor, but for its recomputation.
  Estimate Itemise(const ParallelConfig& plan, const RecomputeTerms& recompute) const;

 private:
  // What is in flight on a rank at one time.
  struct Held {
    // Of each kind, layers x micro-batches: until their input gradients, and until the weights'.
    std::vector<double> layers, waiting;
    std::vector<double> chunks;  // of each chunk, micro-batches until their input gradients
    double embedding = 0;        // micro-batches that passed it
    double at_head = 0;          // between the head and its backward, beyond the one that begins it
    double head_waiting = 0;     // that wait for the head's weight gradient
    ChunksHeld::Working working = ChunksHeld::Working::kHead;
  };
  struct Stage {
    const StageContent* content = nullptr;
    Seconds forward, backward;      // embedding and head, one micro-batch
    Seconds weight, split_more;     // of these
    Seconds gather, reduce;         // ZeRO-3: one micro-batch's all-gather and reduce-scatter
    Seconds root_gather;            //   and embedding and head, which stay gathered until backward
    Seconds grad_sync, param_sync;  // ZeRO 0-2: gradients and parameters, once
    Seconds replica_sync;           // HSDP: sharded gradients over the replicas, once a step
    Seconds tied_sync;              // the embedding's gradient between first and last stage
    Seconds copies_sync;            // gradients between the two copies of a stage
    Seconds tensor_sums;            // of gradients that tensor ranks have in parts
    StageMemory fixed;              // what recomputation does not change
    Bytes fixed_allocated, overhead;  // sums of `fixed`
    Bytes embedding_saved, head_saved, head_working_set;
  };
  struct StageCost {
    Seconds forward, backward;
    Seconds plain_backward;               // without what is recomputed or waited for
    Seconds copies;                       // to the host, and from it,
    double copied = 0;                    //   of so many layers
    Seconds forward_wait, backward_wait;  // of each, for these
    Seconds weight;                       // of backward
    Seconds pair, pair_ends;
    Seconds sharding;  // what ZeRO-2 and 3 add to one micro-batch
    Bytes activations, layer_working_set;
    Bytes peak;
    Bytes host;                 // of one GPU
    bool in_backward = true;    // the peak: with a working set
    bool head_is_peak = false;  //   which is the head's
    Seconds split_more;         // of backward
    Seconds total() const { return forward + backward + sharding; }
  };
  struct Makespan {
    Seconds total;
    Seconds transfers, bubble;  // of total
    Seconds hidden;             // of the slowest rank's work, under other work of its pairs
    Seconds even;               // the total if all ranks were like the mean, or less
  };
  // Sums over the ranks and the worst of them.
  struct Ranks {
    Seconds sum, slowest;  // of one micro-batch
    std::size_t slowest_stage = 0;
    RankPassCosts slowest_passes, passes;  // of it, and summed: where there are forms
    Seconds data;                          // of the worst
    Seconds data_sum;
    Bytes peak;
    Bytes host;  // of one GPU
  };
  enum class Ask { kTime, kTimeAndMemory };
  template <Ask ask, class Each>  // each(stage, its StageCost)
  Ranks OverRanks(const RecomputeTerms& recompute, const Each& each) const;
  Makespan MakespanOf(const Ranks& ranks) const;
  Makespan FormsMakespan(const Ranks& ranks) const;
  Bytes IfDivided(std::span<const Bytes> of_stages) const;
  Seconds LeastSlowestOf(const RecomputeTerms& recompute) const;
  Makespan WalkedMakespan(const ParallelConfig& plan, const RecomputeTerms& recompute,
                          const Ranks& ranks, std::span<const StageCost> costs) const;
  std::vector<RankPassCosts> PassesOfChunks(std::size_t s, const RecomputeTerms& recompute,
                                            const Recompute& choice) const;
  RankPassCosts PassCostsOf(const StageCost& cost) const;
  StageCost CostOfStage(std::size_t s, const RecomputeTerms& recompute, Ask ask) const;
  double InFlight1F1B(int rank) const;
  std::vector<Held> HeldBy(const Stage& stage, std::span<const int> ranks) const;
  void SetMemory(const Stage& stage, std::span<const Held> held, std::size_t s,
                 const RecomputeTerms& recompute, StageCost& cost) const;
  void WaitForCopies(const Stage& stage, StageCost& cost) const;
  void FinishPasses(const Stage& stage, StageCost& cost) const;
  struct Activations {
    Bytes on_gpu, on_host;
  };
  Activations ActivationsOf(const Stage& stage, std::size_t s, const RecomputeTerms& recompute,
                            const Held& held) const;
  Bytes OfDomain(Bytes host) const;  // where each GPU has so much
  // The items of that peak.
  static void GivePeak(const Stage& stage, const StageCost& cost, StageMemory& memory);
  Seconds ExposedData(const Stage& stage, const StageCost& cost) const;
  Seconds Overlapped(Seconds communication, double chunks, Seconds pass, Seconds again,
                     bool slows_all) const;
  void AddState(Stage& stage, const ParallelConfig& plan, const DataGroups& groups);

  struct Unscheduled {};
  PipelineTerms(Unscheduled, const Estimator& estimator, const ShapeCosts& shape,
                const std::vector<StageContent>& stages, const ParallelConfig& plan);

  const Estimator& estimator_;
  const ShapeCosts& shape_;
  std::vector<Stage> stages_;
  using HeldByStages = std::vector<std::vector<Held>>;  // of which one sets a stage's peak
  std::shared_ptr<const HeldByStages> held_;
  double micro_batches_ = 1;
  double virtual_stages_ = 1;
  double unevenness_ = 1;
  double ranks_ = 1;
  double dense_shard_ = 1, expert_shard_ = 1;  // ranks that share a parameter's state
  double in_a_row_ =
      0;  // share of a rank's forward passes that follow each other, without backward
  const ScheduleForms* forms_ = nullptr;   // of a schedule without a closed form
  const ScheduleForms* steady_ = nullptr;  // for its pace
  double copies_ = 1;                      // of the model: each sees its share of the micro-batches
  Seconds boundary_transfer_;              // of a micro-batch between two ranks
  Seconds transfer_;                       // for `forms_`, that no rank waits for
  Seconds send_;                           //   and that it waits for, in each of its passes
  int zero_ = 0;
  double slack_ = 0;
  Seconds steady_transfers_;  // that a micro-batch waits for between ranks without time to spare
  Seconds fill_transfers_;    // of fill and drain
  Seconds optimizer_;         // of the rank with most parameters, and gradient clipping
};

}  // namespace millwright
