// SPDX-License-Identifier: Apache-2.0
#include "planner/estimator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/model_presets.h"
#include "cost_models/collectives.h"
#include "planner/feasibility.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "planner/step_spec.h"

namespace millwright {
namespace {

Cluster ClusterOf(const char* name, int nodes) {
  ClusterConfig config = FindCluster(name);
  config.nodes = nodes;
  return Cluster(config);
}

ParallelConfig Plan(int tp, int pp, int dp, int micro_batch = 1) {
  ParallelConfig p;
  p.tensor = tp;
  p.sequence_parallel = tp > 1;
  p.pipeline = pp;
  p.data = dp;
  p.micro_batch_size = micro_batch;
  return p;
}

TEST(Estimator, ItemsAddUpToTheStep) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const TrainingConfig training{.global_batch_size = 1024, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 16);
  const Estimator estimator(model, training, cluster);
  const Estimate e = estimator.Itemise(Plan(8, 4, 4));
  EXPECT_EQ(e.micro_batches, 256);
  EXPECT_DOUBLE_EQ(e.step.value, e.time.total().value);
  EXPECT_DOUBLE_EQ(e.tokens_per_second_per_gpu, 1024.0 * 8192 / e.step.value / 128);
  // Model FLOPs of the step over 128 GPUs and the peak.
  EXPECT_NEAR(e.mfu, FlopsOfStep(model, training, {}).model.value / e.step.value / 128 / 989e12,
              1e-12);
  EXPECT_EQ(e.mfu, e.hfu);  // nothing recomputed
  // 1F1B over equal layers: the bubble is the other stages' one micro-batch each; the slowest has
  // the head.
  const double slowest = (e.step - e.time[TimeItem::kBubble] - e.time[TimeItem::kPipeline] -
                          e.time[TimeItem::kData] - e.time[TimeItem::kOptimizer])
                             .value;
  EXPECT_EQ(e.slowest_stage, 3);
  EXPECT_LT(e.time[TimeItem::kBubble].value, 3 * slowest / 256);
  EXPECT_GT(e.time[TimeItem::kBubble].value, 0.9 * 3 * slowest / 256);
}

TEST(Estimator, NoStepBeatsItsFlopsOverThePeak) {
  const ModelConfig model = PresetModel("qwen3-30b-a3b");
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 4096};
  const Cluster cluster = ClusterOf("dgx-h100", 2);
  const Estimator estimator(model, training, cluster);
  for (int tp : {1, 2, 4}) {
    for (int ep : {1, 2, 8}) {
      ParallelConfig p = Plan(tp, 2, 8 / tp);
      p.expert = ep;
      ASSERT_FALSE(CheckPlan(model, training, cluster.gpu(), 16, p));
      const Estimate e = estimator.Itemise(p);
      EXPECT_LT(e.hfu, 1);
      EXPECT_GT(e.mfu, 0);
    }
  }
}

// A group's profile is that of the GPUs which its ranks are on.
TEST(Estimator, ProfilesFollowTheOrder) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 2048};
  const Cluster cluster = ClusterOf("dgx-h100", 4);
  const Estimator estimator(model, training, cluster);
  const auto expect = [&](const ParallelConfig& p, int stride, int ranks) {
    SCOPED_TRACE(testing::Message() << ShortName(p) << ": " << ranks << " ranks, " << stride);
    std::vector<int> gpus;
    for (int i = 0; i < ranks; ++i) gpus.push_back(int(GpuOf(p, std::int64_t{1} * i * stride)));
    const PathProfile expected = cluster.Profile(gpus);
    const PathProfile& profile = estimator.Profile(p, stride, ranks);
    EXPECT_TRUE(profile == expected || ranks == 1);
  };
  for (const RankOrder order : {RankOrder::kDataInside, RankOrder::kPipelineInside}) {
    for (const int t : {1, 2, 4}) {
      for (const int c : {1, 2}) {
        ParallelConfig p{.tensor = t, .context = c, .pipeline = 2, .data = 16 / (t * c)};
        p.order = order;
        expect(p, 1, t);
        expect(p, t, c);
        expect(p, t, c * p.data);
        if (c == 2) expect(p, t, c * p.data / 2);  // a shard
        expect(p, t * c, p.data);
        expect(p, t * c * p.data, p.pipeline);
      }
    }
  }
  // By hand: tp4 pp2 dp4 on nodes of 8.  Inside: ranks 0-3 and 4-7 of one node are the two stages,
  // and copies are a node apart; else a node has two copies of a stage, and stages are two nodes
  // apart.
  ParallelConfig p{.tensor = 4, .pipeline = 2, .data = 4};
  EXPECT_EQ(estimator.PipelineProfile(p).domains, 2);
  EXPECT_EQ(estimator.Profile(p, 4, 4).domains, 2);
  p.order = RankOrder::kPipelineInside;
  EXPECT_EQ(estimator.PipelineProfile(p).domains, 1);
  EXPECT_EQ(estimator.Profile(p, 4, 4).domains, 4);
}

// Nodes of 8 with tp 2: 4 context ranks lie in a node, and the fifth in the next.
TEST(Estimator, NestedContextExchangesHeadsInsideAndKvBetweenNodes) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  TrainingConfig training{.global_batch_size = 64, .seq_length = 131072};
  training.cp_comm_overlap = false;
  const Cluster cluster = ClusterOf("dgx-h100", 4);
  const Estimator estimator(model, training, cluster);
  LayerShape shape{.tensor = 2,
                   .context = 16,
                   .context_kind = ContextParallelKind::kNested,
                   .micro_batch_size = 1,
                   .seq_length = training.seq_length,
                   .context_ulysses = 4};
  const LayerPaths paths = estimator.PathsOf(shape);
  EXPECT_EQ(paths.ulysses, estimator.Profile(2, 4));
  EXPECT_EQ(paths.ulysses.domains, 1);
  EXPECT_EQ(paths.ring, estimator.Profile(8, 4));
  EXPECT_EQ(paths.ring.domains, 4);
  EXPECT_EQ(paths.ring.max_ranks_per_domain, 1);
  // Forward: q, k, v and the output exchanged, and 3 blocks of K and V: 8,192 tokens of 32 heads
  // and 4 KV heads, each of 128.
  const CollectiveCalibration& c = estimator.calibration().collective;
  const auto time = [&](CollectiveKind kind, double bytes, const PathProfile& path) {
    return CostOfCollective(kind, Bytes(bytes), path, c).time.value;
  };
  const double head = 2.0 * 8192 * 128;
  const double expected = time(CollectiveKind::kAllToAll, (32 + 2 * 4) * head, paths.ulysses) +
                          time(CollectiveKind::kAllToAll, 32 * head, paths.ulysses) +
                          3 * time(CollectiveKind::kSendRecv, 2 * 4 * head, paths.ring);
  EXPECT_NEAR(estimator.CostShape(shape).kinds[0].forward.context.value / expected, 1, 1e-12);
  // Each once more; the output beside its gradient, and the gradients of K and V beside them.
  const double backward = time(CollectiveKind::kAllToAll, (32 + 2 * 4) * head, paths.ulysses) +
                          2 * time(CollectiveKind::kAllToAll, 32 * head, paths.ulysses) +
                          6 * time(CollectiveKind::kSendRecv, 2 * 4 * head, paths.ring);
  EXPECT_NEAR(estimator.CostShape(shape).kinds[0].backward.context.value / backward, 1, 1e-12);
}

// The whole of it, hidden communication and launches included, to the last bit.
TEST(Estimator, NestedOfOneOrOfAllIsARingOrUlysses) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 32768};
  const Cluster cluster = ClusterOf("dgx-h100", 4);
  const Estimator estimator(model, training, cluster);
  for (const ContextParallelKind kind :
       {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    const LayerShape plain{
        .context = 16, .context_kind = kind, .micro_batch_size = 1, .seq_length = 32768};
    LayerShape nested = plain;
    nested.context_kind = ContextParallelKind::kNested;
    nested.context_ulysses = kind == ContextParallelKind::kRing ? 1 : 16;
    const LayerCost a = estimator.CostShape(plain).kinds[0];
    const LayerCost b = estimator.CostShape(nested).kinds[0];
    EXPECT_EQ(a.forward.total(), b.forward.total());
    EXPECT_EQ(a.backward.total(), b.backward.total());
    EXPECT_EQ(a.Saved(0), b.Saved(0));
  }
}

// What the search rules cuts out by, before it costs them, is a part of what they take; and that by
// which it rules out all kinds of context parallelism is the same of each.
TEST(Estimator, KindsOfContextParallelismShareTheRest) {
  const Cluster cluster = ClusterOf("dgx-h100", 4);
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 8192};
  for (const char* name : {"llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b"}) {
    const ModelConfig model = PresetModel(name);
    const Estimator estimator(model, training, cluster);
    for (const int tensor : {1, 2}) {
      LayerShape shape{.tensor = tensor,
                       .sequence_parallel = tensor > 1,
                       .context = 8,
                       .expert = model.has_moe() ? 4 : 1,
                       .micro_batch_size = 2,
                       .seq_length = training.seq_length};
      const LeastWork ring = estimator.LeastWorkOf(shape);
      for (const int ulysses : {1, 2, 4, 8}) {
        shape.context_kind = ContextParallelKind::kNested;
        shape.context_ulysses = ulysses;
        const LeastWork nested = estimator.LeastWorkOf(shape);
        EXPECT_EQ(nested.shared_work, ring.shared_work);
        EXPECT_EQ(nested.shared_overlapped, ring.shared_overlapped);
        EXPECT_EQ(nested.least_layer, ring.least_layer);
        EXPECT_LT(nested.shared_work, nested.work);
        EXPECT_LE(nested.shared_overlapped, nested.overlapped);
        // And that is a part of the whole, most of it where the layers are many.
        const ShapeCosts whole = estimator.CostShape(shape);
        EXPECT_LT(nested.work, whole.work);
        EXPECT_GT(nested.work, 0.4 * whole.work) << name;
        EXPECT_LE(nested.overlapped, whole.overlapped_work);
        EXPECT_LE(nested.least_layer, whole.least_layer);
      }
    }
  }
}

// The two doors give one answer, over plans drawn at random.
TEST(Estimator, QuickAndItemisedAgree) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  int costed = 0, offloaded = 0;
  for (const char* name : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-xl",
                           "gemma-2-9b", "gpt-oss-20b"}) {
    const ModelConfig model = PresetModel(name);
    const Cluster cluster = ClusterOf("dgx-h100", 4);
    for (int trial = 0; trial < 300; ++trial) {
      TrainingConfig training{.global_batch_size = 96, .seq_length = 2048};
      training.state = pick({0, 1}) ? StateScheme::kFsdp : StateScheme::kMegatron;
      training.overlap_grad_reduce = pick({0, 1});
      training.fused_swiglu = pick({0, 1});
      ParallelConfig p;
      p.tensor = pick({1, 2, 4});
      p.sequence_parallel = p.tensor > 1 && pick({0, 1});
      p.context = pick({1, 2, 4});
      p.context_kind = static_cast<ContextParallelKind>(pick({0, 1}));
      if (p.context == 4 && pick({0, 1})) {
        p.context_kind = ContextParallelKind::kNested;
        p.context_ulysses = 2;
      }
      p.pipeline = pick({1, 2, 4});
      p.virtual_stages = pick({1, 1, 2, 3});
      p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
      if (pick({0, 1})) {
        const auto all = TrainingScheduleNames();
        p.schedule = all[random() % all.size()].value;
        if (!ChoosesChunks(p.schedule)) p.virtual_stages = 1;
      }
      p.data = 32 / (p.tensor * p.context * p.pipeline);
      p.expert = pick({1, 1, 2, 8});
      p.expert_tensor = pick({1, 1, 2});
      p.micro_batch_size = pick({1, 2, 3});
      p.zero = pick({0, 1, 2, 3});
      p.zero_shard = p.zero > 0 ? pick({0, 0, 2}) : 0;
      p.order = pick({0, 0, 1}) ? RankOrder::kPipelineInside : RankOrder::kDataInside;
      const auto choices = RecomputeChoices(model);
      p.recompute = choices[random() % choices.size()];
      if (p.recompute.granularity == RecomputeGranularity::kFull) {
        p.recompute.full_layers = pick({0, 1, 3});
      } else {
        p.recompute.offload_layers = pick({0, 0, 1, 3, 100});
      }
      if (CheckPlan(model, training, cluster.gpu(), 32, p)) continue;
      ++costed;
      const Estimator estimator(model, training, cluster);
      const Estimate whole = estimator.Itemise(p);
      const ShapeCosts shape = estimator.CostShape(ShapeOf(p, training));
      const auto stages = DistinctStages(StagesOfPlan(model, p));
      auto treated = shape.Treat(p.recompute), rest = shape.Treat(OfOthers(p.recompute));
      // What is there before is the least: bounds of the search go by it.
      const auto least = treated;
      shape.Pair(p.recompute, treated);
      shape.Pair(OfOthers(p.recompute), rest);
      for (std::size_t k = 0; k < treated.size(); ++k) {
        EXPECT_GT(least[k].pair, Seconds(0));
        EXPECT_LE(least[k].pair, treated[k].pair);
        EXPECT_LE(treated[k].pair, treated[k].forward + (1 + 1e-12) * treated[k].backward);
        EXPECT_GE(treated[k].pair_ends.value, -1e-12 * treated[k].pair.value);
      }
      const auto some = SomeLayers(stages, p.recompute);
      PipelineTerms terms(estimator, shape, stages, p);
      terms.SetInFlight();
      const QuickCost quick = terms.Cost({.treated = treated, .rest = rest, .some = some});
      offloaded += quick.host > Bytes(0) ? 1 : 0;
      EXPECT_EQ(quick.host > Bytes(0), p.recompute.offload_layers > 0);
      EXPECT_NEAR(quick.host.value, whole.host.value, 1e-12 * whole.host.value);
      EXPECT_NEAR(quick.step / whole.step, 1, 1e-12) << ShortName(p);
      EXPECT_NEAR(quick.peak / whole.peak, 1, 1e-12) << ShortName(p);
      EXPECT_LE(terms.FloorPeak(false), quick.peak);
      for (Seconds item : whole.time.items) EXPECT_GE(item.value, -1e-12) << ShortName(p);
      for (const StageMemory& stage : whole.memory) {
        for (Bytes item : stage.items) EXPECT_GE(item.value, 0);
        EXPECT_LE(stage.total(), whole.peak);
      }
    }
  }
  EXPECT_GT(costed, 200);
  EXPECT_GT(offloaded, 50);
}

// What takes longer may hide better: of two choices that keep as much, the slower one stays for
// pairs.
TEST(Estimator, ChoicesThatHideStayForPairs) {
  const Recompute none, full{.granularity = RecomputeGranularity::kFull, .modules = {}};
  const auto layer = [](double backward, double pair) {
    TreatedLayer t{};
    t.backward = Seconds(backward);
    t.pair = Seconds(pair);
    t.saved = t.working_set = Bytes(1);
    return std::vector<TreatedLayer>{t};
  };
  const std::vector<TreatedChoice> choices = {{&none, layer(2, 4)}, {&full, layer(3, 3.5)}};
  EXPECT_EQ(Undominated(choices).size(), 1u);
  EXPECT_EQ(Undominated(choices, true).size(), 2u);
  // And one that neither hides nor is faster goes.
  const std::vector<TreatedChoice> worse = {{&none, layer(2, 4)}, {&full, layer(3, 4.5)}};
  EXPECT_EQ(Undominated(worse, true).size(), 1u);
}

// Llama-3.1-8B on TP 8 PP 2 of two DGX H100, 16 sequences of 8,192 tokens, one replica: stages of
// 16 layers, of which each saves (4h + 48 heads of 128 + h + 3f) / 8 x 2 bytes a token and two
// statistics outside tensor-parallel blocks, 32 / 8 = 4 heads' of attention.
TEST(Estimator, OffloadedLayersByHand) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 16, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 2);
  const Estimator estimator(model, training, cluster);
  ParallelConfig plan = Plan(8, 2, 1);
  const Estimate kept = estimator.Itemise(plan);
  const double layer =
      8192 * (2 * (4 * 4096 + 48 * 128 + 4096 + 3 * 14336) / 8.0 + 4 * (2 / 8.0 + 4));
  EXPECT_NEAR(kept.memory[0][MemoryItem::kActivations].value, 2 * 16 * layer, 1);
  EXPECT_EQ(kept.host.value, 0);

  // Half of the layers: stage 0 keeps 8 layers of each of its two micro-batches, and two buffers
  // each way; stage 1, of one micro-batch, 8 and a buffer.  On a node are 8 GPUs of stage 0.
  plan.recompute.offload_layers = 8;
  const Estimate half = estimator.Itemise(plan);
  EXPECT_NEAR(half.memory[0][MemoryItem::kActivations].value, (2 * 8 + 4) * layer, 1);
  EXPECT_NEAR(half.memory[1][MemoryItem::kActivations].value, (8 + 1) * layer, 1);
  EXPECT_NEAR(half.host.value, 8 * 2 * 8 * layer, 8);
  EXPECT_EQ(half.host_capacity.value, 2e12);
  // The copies of two layers, 285 MB at 0.88 x 63 GB/s, are shorter than a pass: nothing waits.
  plan.recompute.offload_layers = 2;
  const Estimate two = estimator.Itemise(plan);
  EXPECT_EQ(two.time[TimeItem::kHost].value, 0);
  EXPECT_DOUBLE_EQ(two.step.value, kept.step.value);

  // At 1 GB/s the last rank copies out eight layers, of which the last must have gone before it is
  // fetched, and eight back, 16 times; beside nothing but the first layer's forward and backward,
  // where these do not follow their like: of two ranks' 16 forwards half of one does on average.
  plan.recompute.offload_layers = 8;
  ClusterConfig slow = cluster.config();
  slow.host_bandwidth = BytesPerSecond(1e9);
  const Cluster slow_cluster(slow);
  const Estimate waits = Estimator(model, training, slow_cluster).Itemise(plan);
  const TreatedLayer one = estimator.CostShape(ShapeOf(plan, training)).Treat({}).front();
  EXPECT_NEAR(
      (waits.time[TimeItem::kHost] + waits.time[TimeItem::kCompute] + waits.time[TimeItem::kTensor])
          .value,
      16 * 2 * 8 * layer / 0.88e9 + 15.5 * (one.forward + one.backward).value, 1e-6);
  // One more than the layers are all of them: no layer stays, and a buffer more is needed.
  plan.recompute.offload_layers = 17;
  const Estimate all = estimator.Itemise(plan);
  EXPECT_NEAR(all.memory[1][MemoryItem::kActivations].value, 2 * layer, 1);
  EXPECT_NEAR(all.host.value, 8 * 2 * 16 * layer, 16);
}

TEST(Estimator, HostsMustHoldWhatIsOffloaded) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 16, .seq_length = 8192};
  ClusterConfig config = FindCluster("dgx-h100");
  ParallelConfig plan = Plan(8, 1, 1);
  plan.recompute.offload_layers = 16;
  const auto estimate = [&](Bytes host) {
    config.host_memory = host;
    const Cluster cluster(config);
    return Estimator(model, training, cluster).Itemise(plan);
  };
  const Bytes needed = estimate(Bytes(0)).host;  // not known: enough
  EXPECT_TRUE(estimate(Bytes(0)).fits());
  EXPECT_TRUE(estimate(needed).fits());
  EXPECT_FALSE(estimate(0.99 * needed).fits());
}

TEST(Estimator, MemoryOfAStageByHand) {
  // Llama-3.1-8B on one GPU, TP 1, one sequence of 1,000 tokens: 8.03e9 parameters at 2 + 4 + 12.
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 1, .seq_length = 1000};
  ClusterConfig config = FindCluster("dgx-h200");
  config.gpus_per_node = 1;
  config.nics_per_node = 1;
  config.nvswitches = 0;
  config.sockets = 1;
  config.domain_link = DomainLink::kPcie;
  config.in_switch_reduction = false;
  const Cluster cluster(config);
  const Estimate e = Estimator(model, training, cluster).Itemise(Plan(1, 1, 1));
  const StageMemory& memory = e.memory[0];
  EXPECT_DOUBLE_EQ(memory[MemoryItem::kWeights].value, 2.0 * 8030261248);
  EXPECT_DOUBLE_EQ(memory[MemoryItem::kGradients].value, 4.0 * 8030261248);
  EXPECT_DOUBLE_EQ(memory[MemoryItem::kOptimizer].value, 12.0 * 8030261248);
  // 32 layers of 2 (4h + 48 heads of 128 + h + 3f) bytes a token and 34 fp32 statistics.
  const double a_token = 2 * (4 * 4096 + 48 * 128 + 4096 + 3 * 14336) + 4 * (2 + 32);
  EXPECT_DOUBLE_EQ(memory[MemoryItem::kActivations].value, 32 * 1000 * a_token);
  // At the head: final norm in and out and its statistic, ten bytes a logit.
  EXPECT_DOUBLE_EQ(memory[MemoryItem::kLogits].value,
                   1000 * (2 * 2 * 4096 + 4) + 10.0 * 1000 * 128256);
  EXPECT_EQ(memory[MemoryItem::kNccl].value, 0);  // nobody to talk to
}

TEST(Estimator, Bf16WeightsStayBesideTheirQuantisedCopies) {
  // Two bytes more for each of the 218.1e6 parameters of a layer, but none for the tables.
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const Cluster cluster = ClusterOf("dgx-h100", 1);
  TrainingConfig training{
      .global_batch_size = 64, .seq_length = 8192, .precision = Precision::kFp8};
  const auto weights = [&] {
    return Estimator(model, training, cluster)
        .Itemise(Plan(8, 1, 1))
        .memory[0][MemoryItem::kWeights]
        .value;
  };
  const double quantised = weights();
  training.bf16_weights = true;
  double a_layer = 0;
  for (const Weight& w : LayerWeights(model, model.layer(0))) {
    a_layer += double(w.elements()) / (w.split == WeightSplit::kReplicated ? 1 : 8);
  }
  EXPECT_DOUBLE_EQ(weights() - quantised, 2 * 32 * a_layer);
  training.precision = Precision::kBf16;
  EXPECT_DOUBLE_EQ(weights(), quantised);
}

TEST(Estimator, SoftwareOf2021CutsWhatItPassesOn) {
  // 2048 tokens of GPT-3's 12288 elements on TP 8: each rank sends an eighth over its NIC, and the
  // node gathers it.
  const ModelConfig model = PresetModel("gpt3-175b");
  const Cluster cluster = ClusterOf("dgx-a100", 2);
  TrainingConfig training{.global_batch_size = 16, .seq_length = 2048};
  ParallelConfig plan = Plan(8, 2, 1);
  plan.sequence_parallel = false;
  const auto transfer = [&](Framework framework) {
    training.framework = framework;
    const Estimator estimator(model, training, cluster);
    return estimator.Transfer(estimator.CostShape(ShapeOf(plan, training)),
                              estimator.Profile(8, 2));
  };
  const Estimator estimator(model, training, cluster);
  const auto time = [&](CollectiveKind kind, double elements, int stride, int ranks) {
    return CostOfCollective(kind, Bytes(2 * elements), estimator.Profile(stride, ranks),
                            estimator.calibration().collective)
        .time.value;
  };
  const double elements = 2048.0 * 12288;
  EXPECT_DOUBLE_EQ(transfer(Framework::kMegatron).value,
                   time(CollectiveKind::kSendRecv, elements, 8, 2));
  EXPECT_DOUBLE_EQ(transfer(Framework::kMegatron2021).value,
                   time(CollectiveKind::kSendRecv, elements / 8, 8, 2) +
                       time(CollectiveKind::kAllGather, elements, 1, 8));
}

TEST(Estimator, ZeroStagesTradeMemoryForTime) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 1);
  const Estimator estimator(model, training, cluster);
  double memory = 1e30;
  for (int zero : {0, 1, 2, 3}) {
    ParallelConfig p = Plan(1, 1, 8);
    p.zero = zero;
    const Estimate e = estimator.Itemise(p);
    const StageMemory& m = e.memory[0];
    const double state =
        (m[MemoryItem::kWeights] + m[MemoryItem::kGradients] + m[MemoryItem::kOptimizer]).value;
    EXPECT_LT(state, memory);
    memory = state;
  }
  EXPECT_DOUBLE_EQ(memory, 18.0 * 8030261248 / 8);
}

TEST(Estimator, HsdpGathersInsideTheNode) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 1024, .seq_length = 2048};
  const Cluster cluster = ClusterOf("dgx-h100", 8);
  const Estimator estimator(model, training, cluster);
  ParallelConfig p = Plan(1, 1, 64);
  p.zero = 3;
  const Estimate fsdp = estimator.Itemise(p);
  p.zero_shard = 8;
  const Estimate hsdp = estimator.Itemise(p);
  EXPECT_LT(hsdp.time[TimeItem::kData], fsdp.time[TimeItem::kData]);
  EXPECT_NEAR(hsdp.memory[0][MemoryItem::kOptimizer] / fsdp.memory[0][MemoryItem::kOptimizer], 8,
              1e-9);
}

TEST(Estimator, TiedEmbeddingsLiveOnBothEnds) {
  const ModelConfig model = PresetModel("gpt2-xl");  // vocabulary 50257, h 1600, tied
  const TrainingConfig training{.global_batch_size = 8, .seq_length = 1024};
  const Cluster cluster = ClusterOf("dgx-h100", 1);
  ParallelConfig p = Plan(1, 2, 4);
  p.zero = 0;
  const Estimate e = Estimator(model, training, cluster).Itemise(p);
  // 24 layers each; stage 0 has token and position tables, stage 1 a copy of them and a final norm
  // of 2 x 1600.
  EXPECT_NEAR((e.memory[1][MemoryItem::kWeights] - e.memory[0][MemoryItem::kWeights]).value,
              2 * 2 * 1600.0 - 0, 2.1 * 1024 * 1600);
}

TEST(Estimator, PeakIsTheFullestStage) {
  const ModelConfig model = PresetModel("llama-3.1-405b");
  const TrainingConfig training{.global_batch_size = 2048, .seq_length = 8192};
  const Cluster cluster = ClusterOf("dgx-h100", 2048);
  const Estimate e = Estimator(model, training, cluster).Itemise(Plan(8, 16, 128));
  ASSERT_EQ(e.memory.size(), 16U);
  // 7, 14 x 8, 7 layers and p - r micro-batches in flight: 7 x 16 = 112 < 8 x 15 = 120.
  EXPECT_EQ(e.peak_stage, 1);
  EXPECT_NEAR(e.memory[1][MemoryItem::kActivations] / e.memory[0][MemoryItem::kActivations],
              120.0 / 112, 1e-9);
}

// A choice for each rank that is the same for all is that choice.
TEST(Estimator, OneChoiceForEveryRankIsThatChoice) {
  const ModelConfig model = PresetModel("mixtral-8x7b");
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  const Cluster cluster(config);
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 4096};
  const Estimator estimator(model, training, cluster);
  std::vector<Recompute> choices = RecomputeChoices(model);
  choices.push_back({.granularity = RecomputeGranularity::kFull, .full_layers = 2});
  choices.push_back({.offload_layers = 3});
  for (const Recompute& choice : choices) {
    for (const ScheduleKind schedule : {ScheduleKind::k1F1B, ScheduleKind::kInterleaved,
                                        ScheduleKind::kGpipe, ScheduleKind::kDualPipe}) {
      ParallelConfig p{.tensor = 2,
                       .sequence_parallel = true,
                       .pipeline = 4,
                       .data = 4,
                       .recompute = choice,
                       .schedule = schedule};
      if (schedule == ScheduleKind::kInterleaved) p.virtual_stages = 2;
      if (CheckPlan(model, training, cluster.gpu(), cluster.gpus(), p)) continue;
      ParallelConfig by_rank = p;
      by_rank.recompute = {};
      by_rank.rank_recompute.assign(4, choice);
      const Estimate e = estimator.Itemise(p), same = estimator.Itemise(by_rank);
      const ScheduleChoice order = ScheduleOf(p, e.micro_batches);
      EXPECT_EQ(same.step, e.step) << ShortName(p);
      EXPECT_EQ(same.peak, e.peak) << ShortName(p);
      EXPECT_EQ(same.host, e.host) << ShortName(p);
      EXPECT_EQ(same.hfu, e.hfu) << ShortName(p);
      EXPECT_EQ(SimulateStep(estimator, by_rank, order).step(),
                SimulateStep(estimator, p, order).step())
          << ShortName(p);
    }
  }
}

// Of two ranks with as many layers each, one with every layer run again and one with none: half of
// the FLOPs, the sum of both ranks' work, and of each rank the memory that its own choice needs.
TEST(Estimator, RanksWithChoicesOfTheirOwn) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const Cluster cluster(FindCluster("dgx-h100"));
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 4096};
  const Estimator estimator(model, training, cluster);
  ParallelConfig p{.tensor = 2, .sequence_parallel = true, .pipeline = 2, .data = 2};
  const Recompute full{.granularity = RecomputeGranularity::kFull};
  const Estimate none = estimator.Itemise(p);
  p.recompute = full;
  const Estimate all = estimator.Itemise(p);
  p.recompute = {};
  p.rank_recompute = {full, {}};
  const Estimate one = estimator.Itemise(p);
  EXPECT_NEAR(one.hfu * one.step / (0.5 * (none.hfu * none.step + all.hfu * all.step)), 1, 1e-12);
  EXPECT_EQ(one.memory[0].total(), all.memory[0].total());
  EXPECT_EQ(one.memory[1].total(), none.memory[1].total());
  EXPECT_LT(one.memory[0].total(), none.memory[0].total());
  EXPECT_GT(one.step, none.step);
  EXPECT_LT(one.step, all.step);
  EXPECT_EQ(one.slowest_stage, 0);

  // Two copies of the model run every layer's forward again once each for half of the batch.
  ParallelConfig plain{.pipeline = 8, .recompute = full}, copies = plain;
  copies.schedule = ScheduleKind::kDualPipe;
  const Estimate of_one = estimator.Itemise(plain), of_two = estimator.Itemise(copies);
  EXPECT_NEAR(of_two.hfu * of_two.step / (of_one.hfu * of_one.step), 1, 1e-12);
}

}  // namespace
}  // namespace millwright
