// SPDX-License-Identifier: Apache-2.0
#include "planner/step_spec.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"
#include "core/parameters.h"

namespace millwright {
namespace {

double Elements(const std::vector<Weight>& weights) {
  double sum = 0;
  for (const Weight& weight : weights) sum += double(weight.elements());
  return sum;
}

class HeldByRanksTest : public testing::Test {
 protected:
  HeldByRanksTest() : cluster_(FindCluster("dgx-h100")) {}

  // Of every rank of four, unsharded: 2 B of weights, 4 of gradients and 12 of optimizer state for
  // each parameter that it holds.
  std::vector<StageMemory> Held(const ModelConfig& model, ScheduleKind kind, int chunks = 1) const {
    const Estimator estimator(model, training_, cluster_);
    ParallelConfig plan{.pipeline = 4, .virtual_stages = chunks, .data = 2, .zero = 0};
    return HeldByRanks(
        estimator, plan,
        BuildSchedule({.kind = kind, .pipeline = 4, .micro_batches = 8, .virtual_stages = chunks}));
  }

  const TrainingConfig training_{.global_batch_size = 16, .seq_length = 1024};
  const Cluster cluster_;
};

TEST_F(HeldByRanksTest, AddUpToTheModel) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const auto total = double(CountParameters(model).total);
  for (const EnumName<ScheduleKind>& name : ScheduleKindNames()) {
    SCOPED_TRACE(name.name);
    const bool looped =
        name.value == ScheduleKind::kInterleaved || name.value == ScheduleKind::kBreadthFirst;
    double weights = 0, gradients = 0, optimizer = 0;
    for (const StageMemory& rank : Held(model, name.value, looped ? 2 : 1)) {
      weights += rank[MemoryItem::kWeights].value;
      gradients += rank[MemoryItem::kGradients].value;
      optimizer += rank[MemoryItem::kOptimizer].value;
    }
    const double copies = name.value == ScheduleKind::kDualPipe ? 2 : 1;
    EXPECT_NEAR(weights / (copies * 2 * total), 1, 1e-12);
    EXPECT_NEAR(gradients / (copies * 4 * total), 1, 1e-12);
    EXPECT_NEAR(optimizer / (12 * total), 1, 1e-12);
  }
}

TEST_F(HeldByRanksTest, AVHasFirstAndLastStageOnTheFirstRank) {
  // 32 layers in 8 chunks of 4, two a rank; rank 0 has the embedding and the head beside them.
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const double layers = 8 * Elements(LayerWeights(model, model.layer(0)));
  const double ends = Elements(EmbeddingWeights(model)) + Elements(HeadWeights(model));
  for (ScheduleKind kind : {ScheduleKind::kZbV, ScheduleKind::kVHalf, ScheduleKind::kVMin,
                            ScheduleKind::kVZb, ScheduleKind::kDualPipeV}) {
    const std::vector<StageMemory> held = Held(model, kind);
    EXPECT_DOUBLE_EQ(held[0][MemoryItem::kWeights].value, 2 * (layers + ends));
    for (int rank : {1, 2, 3}) {
      EXPECT_DOUBLE_EQ(held[std::size_t(rank)][MemoryItem::kWeights].value, 2 * layers);
    }
  }
  // DualPipe: both ends, each on both outer ranks; the optimizer state of a stage once.
  const std::vector<StageMemory> dual = Held(model, ScheduleKind::kDualPipe);
  for (int rank : {0, 3}) {
    EXPECT_DOUBLE_EQ(dual[std::size_t(rank)][MemoryItem::kWeights].value, 2 * (2 * layers + ends));
    EXPECT_DOUBLE_EQ(dual[std::size_t(rank)][MemoryItem::kOptimizer].value,
                     12 * (2 * layers + ends) / 2);
  }
  EXPECT_DOUBLE_EQ(dual[1][MemoryItem::kWeights].value, 2 * 2 * layers);
}

TEST_F(HeldByRanksTest, ATiedEmbeddingIsThereTwiceOnlyWhereTheEndsAreApart) {
  ModelConfig model = PresetModel("llama-3.1-8b");
  model.tied_embeddings = true;
  const auto total = double(CountParameters(model).total);
  const double table = double(EmbeddingWeights(model).front().elements());
  const auto sum = [&](ScheduleKind kind) {
    double weights = 0;
    for (const StageMemory& rank : Held(model, kind)) weights += rank[MemoryItem::kWeights].value;
    return weights / 2;
  };
  EXPECT_DOUBLE_EQ(sum(ScheduleKind::k1F1B), total + table);
  EXPECT_DOUBLE_EQ(sum(ScheduleKind::kZbV), total);
}

class StepEndTest : public testing::Test {
 protected:
  static Cluster FourNodes() {
    ClusterConfig config = FindCluster("dgx-h100");
    config.nodes = 4;
    return Cluster(config);
  }
  StepSpec SpecOf(const ModelConfig& model, const ParallelConfig& plan) const {
    const Estimator estimator(model, training_, cluster_);
    const std::int64_t micro_batches =
        training_.global_batch_size / (std::int64_t{1} * plan.data * plan.micro_batch_size);
    return StepSpecOf(estimator, plan, ScheduleOf(plan, micro_batches));
  }
  static std::vector<TaskId> Labelled(const TaskGraph& graph, int rank, std::string_view label) {
    std::vector<TaskId> found;
    for (TaskId id = 0; id < graph.size(); ++id) {
      if (graph.task(id).rank == rank && graph.label(id) == label) found.push_back(id);
    }
    return found;
  }

  const TrainingConfig training_{.global_batch_size = 16, .seq_length = 1024};
  const Cluster cluster_ = FourNodes();
};

TEST_F(StepEndTest, NobodyUpdatesBeforeTheLossOfTheSlowestStageIsIn) {
  const StepSpec spec =
      SpecOf(PresetModel("llama-3.1-8b"), {.tensor = 4, .pipeline = 4, .data = 2, .zero = 1});
  EXPECT_EQ(spec.loss.communication.ranks, 32);
  EXPECT_EQ(spec.loss.communication.payload.value, 4);
  const TaskGraph graph = BuildStepGraph(spec);
  const Timeline timeline = Simulate(graph);
  Seconds complete;
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<TaskId> ready = Labelled(graph, rank, "gradients complete");
    ASSERT_EQ(ready.size(), 1U);
    complete = std::max(complete, timeline.end[ready.front()]);
  }
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<TaskId> optimizer = Labelled(graph, rank, "optimizer");
    ASSERT_EQ(optimizer.size(), 1U);
    EXPECT_DOUBLE_EQ(timeline.start[optimizer.front()].value,
                     (complete + spec.loss.duration).value);
  }
}

// Norms of 4,096 in fp32: 8 layers of two on each of four ranks, and the head's.  One KV head, K
// and V of 128 x 4,096 in each of 8 layers, is on 8 / 2 tensor ranks.  ZeRO-1 leaves half of both.
TEST_F(StepEndTest, TensorRanksSumWhatTheyHoldAlike) {
  ModelConfig model = PresetModel("llama-3.1-8b");
  model.num_query_groups = 2;
  ParallelConfig plan{.tensor = 8, .sequence_parallel = true, .pipeline = 2, .data = 2, .zero = 0};
  for (int zero : {0, 1}) {
    plan.zero = zero;
    const double share = zero == 0 ? 1 : 0.5;
    const StepSpec spec = SpecOf(model, plan);
    for (int rank : {0, 1}) {
      const GradientSums& sums = spec.sums[std::size_t(rank)];
      EXPECT_EQ(sums.replicated.communication,
                (Communication{.payload = Bytes(share * 4 * 4096 * (16 * 2 + rank)), .ranks = 8}));
      EXPECT_EQ(sums.key_value.communication,
                (Communication{.payload = Bytes(share * 4 * 16 * 2 * 128 * 4096), .ranks = 4}));
      EXPECT_GT(sums.replicated.duration.value, 0);
      EXPECT_EQ(sums.copies.duration.value, 0);
    }
    plan.sequence_parallel = false;
    EXPECT_EQ(SpecOf(model, plan).sums[0].replicated.duration.value, 0);
    plan.sequence_parallel = true;
  }
}

// A tied table of 256,000 x 3,584 on two tensor ranks, in fp32, sent by each end to the other.
TEST_F(StepEndTest, TheEndsOfThePipelineSumATiedEmbedding) {
  const ModelConfig model = PresetModel("gemma-2-9b");
  const StepSpec spec = SpecOf(model, {.tensor = 2, .pipeline = 4, .data = 4, .zero = 1});
  const double bytes = 4.0 * 256000 / 2 * 3584;
  for (const auto& [rank, other] : {std::pair{0, 3}, std::pair{3, 0}}) {
    EXPECT_EQ(
        spec.sums[std::size_t(rank)].tied.communication,
        (Communication{.kind = CollectiveKind::kSendRecv, .payload = Bytes(bytes), .to = other}));
  }
  EXPECT_EQ(spec.sums[1].tied.duration.value, 0);
  const TaskGraph graph = BuildStepGraph(spec);
  const Timeline timeline = Simulate(graph);
  // Both go on when both have sent.
  Seconds sent;
  for (int rank : {0, 3}) {
    for (TaskId id : Labelled(graph, rank, "sum tied gradients")) {
      sent = std::max(sent, timeline.end[id]);
    }
  }
  for (int rank : {0, 3}) {
    EXPECT_GE(timeline.end[Labelled(graph, rank, "gradients complete").front()], sent);
  }
}

// 32 layers, gathered forward and backward; embedding and head once, and kept.
TEST_F(StepEndTest, ShardedEmbeddingAndHeadAreGatheredOncePerMicroBatch) {
  const StepSpec spec = SpecOf(PresetModel("llama-3.1-8b"), {.data = 8, .zero = 3});
  const TaskGraph graph = BuildStepGraph(spec);
  EXPECT_EQ(Labelled(graph, 0, "gather layer").size(), 2U * (2 * 32 + 2));
  EXPECT_EQ(Labelled(graph, 0, "reduce layer").size(), 2U * (32 + 2));
}

// One layer, one micro-batch, one rank: what the tasks take is what the closed form says, and with
// the weight gradient apart no less than the GEMMs and no more than all of it in a row.
TEST(TensorOverlap, TasksTakeWhatTheClosedFormSays) {
  const Cluster cluster(FindCluster("dgx-h100"));
  for (const char* name : {"llama-3.1-70b", "deepseek-v2-lite", "gpt2-xl"}) {
    const ModelConfig model = PresetModel(name);
    for (const bool overlapped : {false, true}) {
      for (const std::int64_t sequence : {512, 8192}) {
        TrainingConfig training{.global_batch_size = 8, .seq_length = sequence};
        training.tp_comm_overlap = overlapped;
        const Estimator estimator(model, training, cluster);
        for (const int tensor : {2, 4, 8}) {
          if (model.num_attention_heads % tensor != 0) continue;
          for (const bool sequence_parallel : {false, true}) {
            const ParallelConfig plan{.tensor = tensor,
                                      .sequence_parallel = sequence_parallel,
                                      .data = 8 / tensor,
                                      .zero = 0};
            SCOPED_TRACE(std::string(name) + " " + ShortName(plan) + (overlapped ? " o" : ""));
            const StepSpec whole = StepSpecOf(estimator, plan, ScheduleOf(plan, 8 / plan.data));
            const ShapeCosts costs = estimator.CostShape(ShapeOf(plan, training));
            for (std::size_t kind = 0; kind < costs.kinds.size(); ++kind) {
              StepSpec one{.kinds = {whole.kinds[kind]}, .layers_of_stage = {{0}}};
              one.kinds[0].reduce = one.kinds[0].gather = {};
              one.schedule =
                  BuildSchedule({.kind = ScheduleKind::kGpipe, .pipeline = 1, .micro_batches = 1});
              const LayerCost& layer = costs.kinds[kind];
              const double closed = (layer.forward.total() + layer.backward.total()).value;
              EXPECT_NEAR(Simulate(BuildStepGraph(one)).makespan.value / closed, 1, 1e-12);

              // Apart, the same payloads: none is lost, none sent twice but what is gathered again.
              one.schedule =
                  BuildSchedule({.kind = ScheduleKind::kZbH1, .pipeline = 1, .micro_batches = 1});
              const TaskGraph split = BuildStepGraph(one);
              Seconds in_a_row;
              for (const Task& task : split.tasks()) in_a_row += task.duration;
              const Seconds makespan = Simulate(split).makespan;
              EXPECT_LE(makespan, in_a_row);
              EXPECT_GE(makespan, layer.forward.compute + layer.backward.compute);
            }
          }
        }
      }
    }
  }
}

// Exchanges: gather 4 chunks' worth in 3 of a third each; the first chunk's GEMM does not wait.
TEST(TensorOverlap, AChunkIsComputedWhenItHasCome) {
  const Cluster cluster(FindCluster("dgx-h100"));
  TrainingConfig training{.global_batch_size = 8, .seq_length = 8192};
  training.tp_comm_overlap = true;
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const Estimator estimator(model, training, cluster);
  const ParallelConfig plan{.tensor = 4, .sequence_parallel = true, .data = 2, .zero = 0};
  const TaskGraph graph = BuildStepGraph(StepSpecOf(estimator, plan, ScheduleOf(plan, 4)));
  const Timeline timeline = Simulate(graph);
  const std::span<const TaskId> exchanges = graph.program(0, Stream::kTensor);
  const std::span<const TaskId> computes = graph.program(0, Stream::kCompute);
  std::vector<TaskId> first;  // of the first layer
  for (TaskId id : exchanges) {
    if (graph.label(id) == "qkv gather" && first.size() < 3) first.push_back(id);
  }
  ASSERT_EQ(first.size(), 3U);
  for (TaskId id : first) {
    const Communication& c = graph.communications()[graph.task(id).communication];
    EXPECT_EQ(c.kind, CollectiveKind::kAllGather);
    EXPECT_DOUBLE_EQ(c.payload.value, 2.0 * 8192 * 8192 / 3);
  }
  // The GEMM's chunks are the compute tasks from the start of the first exchange on.
  auto chunk = std::find_if(computes.begin(), computes.end(), [&](TaskId id) {
    return timeline.start[id] == timeline.start[first[0]];
  });
  ASSERT_NE(chunk, computes.end());
  for (std::size_t i = 0; i < 3; ++i) {
    const TaskId before = *chunk++;
    const Seconds there = std::max(timeline.end[first[i]], timeline.end[before]);
    EXPECT_EQ(timeline.start[*chunk], there);
    // Only exchanges hold exchanges up.
    if (i > 0) {
      EXPECT_EQ(timeline.start[first[i]], timeline.end[first[i - 1]]);
    }
  }
}

}  // namespace
}  // namespace millwright
