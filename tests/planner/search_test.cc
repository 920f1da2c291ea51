// SPDX-License-Identifier: Apache-2.0
#include "planner/search.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "core/model_presets.h"
#include "planner/layer_split.h"
#include "planner/search_space.h"
#include "tests/sanitized.h"

namespace millwright {
namespace {

std::vector<int> DivisorsOf(int n) {
  std::vector<int> divisors;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

struct Brute {
  std::vector<RankedPlan> fitting;  // by Before
  std::vector<RankedPlan> divided;  // and all with their layers divided best, where that is faster
  std::optional<RankedPlan> smallest;
};

// Every assignment of every knob, one after the other, through the checks and Itemise alone.
void ForEachPlan(const Estimator& estimator, const std::vector<Recompute>& recomputes,
                 bool all_schedules, bool all_orders,
                 const std::function<void(const Estimate&)>& visit) {
  const ModelConfig& model = estimator.model();
  const TrainingConfig& training = estimator.training();
  const Cluster& cluster = estimator.cluster();
  const int gpus = cluster.gpus();
  ParallelConfig p;
  const auto consider = [&] {
    for (const RankOrder order : {RankOrder::kDataInside, RankOrder::kPipelineInside}) {
      p.order = order;
      if (order == RankOrder::kPipelineInside && (!all_orders || !p.placed_otherwise())) continue;
      if (!CheckPlan(model, training, cluster.gpu(), gpus, p)) visit(estimator.Itemise(p));
    }
  };
  const std::vector<int> degrees = DivisorsOf(gpus);
  std::vector<std::pair<ContextParallelKind, int>> kinds_of_context = {
      {ContextParallelKind::kRing, 0}, {ContextParallelKind::kUlysses, 0}};
  for (int inner : degrees) kinds_of_context.emplace_back(ContextParallelKind::kNested, inner);
  for (int t : degrees)
    for (int c : degrees)
      for (int pp : degrees) {
        if (gpus % (t * c * pp) != 0) continue;
        p.tensor = t;
        p.context = c;
        p.pipeline = pp;
        p.data = gpus / (t * c * pp);
        for (bool sp : {false, true})
          for (const auto& [kind, inner] : kinds_of_context) {
            if (c == 1 && kind == ContextParallelKind::kUlysses) continue;
            if (inner > 0 && (inner == 1 || inner >= c)) continue;  // plain, or more than there are
            p.sequence_parallel = sp;
            p.context_kind = kind;
            p.context_ulysses = inner;
            for (int e : model.has_moe() ? degrees : std::vector<int>{1})
              for (int x : model.has_moe() ? degrees : std::vector<int>{1})
                for (const auto& schedule : TrainingScheduleNames())
                  for (int v = 1; v <= model.num_layers; ++v)
                    for (int b : DivisorsOf(int(training.global_batch_size)))
                      for (int zero : {0, 1, 2, 3}) {
                        // Without a pipeline all schedules are one; and what the search leaves out.
                        if (!all_schedules && !FollowsFromStages(schedule.value)) continue;
                        if (pp == 1 && schedule.value != ScheduleKind::k1F1B) continue;
                        if (zero >= 2 && !FollowsFromStages(schedule.value)) continue;
                        // GPipe by another name.
                        if (v == 1 && schedule.value == ScheduleKind::kBreadthFirst) continue;
                        p.expert = e;
                        p.expert_tensor = x;
                        p.virtual_stages = v;
                        p.schedule = schedule.value;
                        p.micro_batch_size = b;
                        p.zero = zero;
                        // All ranks, or those inside a domain.
                        const int inside =
                            std::gcd(p.data * c, std::max(1, cluster.gpus_per_domain() / t));
                        for (int shard : {0, inside}) {
                          if (shard > 0 && (zero == 0 || shard == 1)) continue;
                          p.zero_shard = shard;
                          for (const Recompute& r : recomputes) {
                            p.recompute = r;
                            consider();
                          }
                        }
                      }
          }
      }
}

// The fastest of each layout.
std::vector<RankedPlan> BestOfEachLayout(const std::vector<RankedPlan>& plans) {
  std::set<std::array<int, 6>> seen;
  std::vector<RankedPlan> best;
  for (const RankedPlan& plan : plans) {
    const ParallelConfig& p = plan.plan;
    if (seen.insert(
                {p.tensor, p.context, int(p.context_kind), p.pipeline, p.expert, p.expert_tensor})
            .second) {
      best.push_back(plan);
    }
  }
  return best;
}

Brute BruteForce(const ModelConfig& model, const TrainingConfig& training, const Cluster& cluster,
                 double margin, bool all_schedules, bool all_orders, bool offload) {
  Brute brute;
  std::vector<RankedPlan> all;
  const Estimator estimator(model, training, cluster);
  std::vector<Recompute> recomputes = RecomputeChoices(model);
  for (int n = 1; n < model.num_layers; ++n) {
    recomputes.push_back({.granularity = RecomputeGranularity::kFull, .full_layers = n});
  }
  if (offload) {
    for (Recompute choice : OffloadChoices(model)) {
      for (int n = 1; n <= model.num_layers; ++n) {
        choice.offload_layers = n;
        recomputes.push_back(choice);
      }
    }
  }
  ForEachPlan(estimator, recomputes, all_schedules, all_orders, [&](const Estimate& e) {
    const RankedPlan plan{e.plan, e.step, e.peak};
    if (e.peak <= (1 - margin) * e.capacity && HostHolds(e.host, e.host_capacity)) {
      brute.fitting.push_back(plan);
    }
    if (!brute.smallest || plan.peak < brute.smallest->peak) brute.smallest = plan;
    all.push_back(plan);
  });
  brute.divided.insert(brute.divided.end(), brute.fitting.begin(), brute.fitting.end());
  std::sort(brute.fitting.begin(), brute.fitting.end(), Before);
  // Five layers on four ranks, the most uneven here, become 1.6 times as fast at most.
  const std::vector<RankedPlan> layouts = BestOfEachLayout(brute.fitting);
  const Seconds limit = layouts.size() < 5 ? Seconds(1e9) : 1.6 * layouts[4].step;
  for (const RankedPlan& plan : all) {
    if (plan.step > limit) continue;
    const auto split = BestSplit(estimator, plan.plan, (1 - margin) * cluster.gpu().hbm_capacity);
    if (split) brute.divided.push_back({split->plan, split->step, split->peak});
  }
  std::sort(brute.divided.begin(), brute.divided.end(), Before);
  return brute;
}

ModelConfig TinyMoe() {
  ModelConfig model = PresetModel("tiny-llama");
  model.name = "tiny-moe";
  model.num_layers = 3;
  model.moe.num_experts = 4;
  model.moe.topk = 2;
  model.moe.ffn_hidden_size = 512;
  model.layers = {{.count = 1, .kind = {}}, {.count = 2, .kind = {.moe = true}}};
  return model;
}

struct Case {
  const char* name;
  ModelConfig model;
  int gpus;
  Bytes memory;
  bool all_schedules = false, all_orders = false, offload = false;
  Bytes host_memory{};
};

TEST(Search, EqualsBruteForceOnSmallSpaces) {
  ModelConfig four = PresetModel("tiny-llama");
  ModelConfig five = four;
  five.num_layers = 5;
  five.layers = {{.count = 5, .kind = {}}};
  const Case cases[] = {
      {"roomy", four, 8, 80_GiB},
      {"every schedule", four, 8, 80_GiB, true},
      {"uneven layers", five, 8, 80_GiB},
      {"tight", five, 8, Bytes(1.95 * 1073741824)},
      {"sixteen", four, 16, Bytes(2.3 * 1073741824)},
      {"experts", TinyMoe(), 8, 80_GiB},
      {"every schedule, tight", five, 8, Bytes(1.95 * 1073741824), true},
      {"tight experts", TinyMoe(), 8, Bytes(2.3 * 1073741824)},
      {"hopeless", four, 8, 1_GiB},
      {"every order", four, 16, 80_GiB, false, true},
      {"every order of experts, tight", TinyMoe(), 8, Bytes(2.3 * 1073741824), false, true},
      {"offloaded", five, 8, Bytes(1.85 * 1073741824), false, false, true},
      {"every schedule, offloaded", four, 8, Bytes(1.85 * 1073741824), true, false, true},
      {"offloaded experts", TinyMoe(), 8, Bytes(2.1 * 1073741824), false, false, true},
      {"offloaded to small hosts", five, 8, Bytes(1.85 * 1073741824), false, false, true, 4_GiB},
  };
  bool any_offloaded = false;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    if (kSanitized && (c.all_schedules || c.all_orders || c.model.has_moe())) continue;
    ClusterConfig config = FindCluster("dgx-h100");
    config.gpus_per_node = 8;
    config.nodes = c.gpus / 8;
    config.gpu.hbm_capacity = c.memory;
    config.host_memory = c.host_memory;
    const Cluster cluster(config);
    // Experts have a larger space as it is.
    const TrainingConfig training{.global_batch_size = c.model.has_moe() ? 8 : 24,
                                  .seq_length = 4096};
    const Brute brute =
        BruteForce(c.model, training, cluster, 0.05, c.all_schedules, c.all_orders, c.offload);
    SearchOptions options;
    options.offload = c.offload;
    std::string schedules;
    options.threads = 2;
    options.top = 5;
    if (c.all_schedules) {
      for (const auto& name : TrainingScheduleNames()) schedules += "|" + std::string(name.name);
      options.filter.Require("schedule=" + schedules.substr(1));
    }
    if (c.all_orders) options.filter.Require("order=tp-cp-ep-dp-pp|tp-cp-ep-pp-dp");
    options.split_layers = false;
    const SearchResult result = Search(c.model, training, cluster, options);
    options.split_layers = true;
    const SearchResult split = Search(c.model, training, cluster, options);
    EXPECT_EQ(split.certificate.space, result.certificate.space);
    const std::vector<RankedPlan> divided = BestOfEachLayout(brute.divided);
    ASSERT_EQ(split.plans.size(), std::min<std::size_t>(5, divided.size()));
    for (std::size_t i = 0; i < split.plans.size(); ++i) {
      // What is worth it by 0.1% alone is divided.
      EXPECT_LE(split.plans[i].step / divided[i].step, 1 + 1e-12)
          << i << ": " << ShortName(split.plans[i].plan) << " or " << ShortName(divided[i].plan);
    }
    if (brute.fitting.empty()) {
      EXPECT_TRUE(result.plans.empty());
      ASSERT_TRUE(result.nearest_miss.has_value());
      EXPECT_NEAR(result.nearest_miss->peak / brute.smallest->peak, 1, 1e-12);
      continue;
    }
    ASSERT_FALSE(result.plans.empty());
    const RankedPlan& winner = result.plans.front();
    EXPECT_NEAR(winner.step / brute.fitting.front().step, 1, 1e-12);
    const Estimate e = Estimator(c.model, training, cluster).Itemise(winner.plan);
    any_offloaded = any_offloaded || winner.plan.recompute.offload_layers > 0;
    EXPECT_NEAR(e.step / winner.step, 1, 1e-12);
    EXPECT_NEAR(e.peak / winner.peak, 1, 1e-12);

    // The table: the fastest of each layout.
    const std::vector<RankedPlan> layouts = BestOfEachLayout(brute.fitting);
    ASSERT_EQ(result.plans.size(), std::min<std::size_t>(5, layouts.size()));
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
      EXPECT_NEAR(result.plans[i].step / layouts[i].step, 1, 1e-12) << i;
    }

    // The front: nothing that fits within its span beats a point in both.
    for (const RankedPlan& point : result.pareto) {
      for (const RankedPlan& plan : brute.fitting) {
        EXPECT_FALSE(plan.step < point.step * (1 - 1e-12) && plan.peak < point.peak * (1 - 1e-12))
            << ShortName(plan.plan) << " beats " << ShortName(point.plan);
      }
    }
    // And nothing is missing from it by more than the 1% between points.
    for (const RankedPlan& plan : brute.fitting) {
      if (plan.step > kParetoSpan * winner.step) continue;
      bool covered = false;
      for (const RankedPlan& point : result.pareto) {
        covered = covered || (point.step <= plan.step * (1 + 1e-12) &&
                              point.peak <= plan.peak + 0.01 * config.gpu.hbm_capacity);
      }
      EXPECT_TRUE(covered) << ShortName(plan.plan);
    }
  }
  EXPECT_TRUE(any_offloaded || kSanitized);  // of all cases
}

// Of the plans over the limit, by what the item is that they are attributed to: how many, and by
// how much the nearest is over it.
TEST(Search, MemoryRejectionsEqualBruteForce) {
  const auto least_over = [](const OutOfMemory& item, Bytes limit) {
    return item.nearest->peak - limit;
  };
  ModelConfig five = PresetModel("tiny-llama");
  five.num_layers = 5;
  five.layers = {{.count = 5, .kind = {}}};
  int items_seen = 0;
  for (const double gib : {1.0, 1.2, 1.4, 1.6}) {
    SCOPED_TRACE(gib);
    ClusterConfig config = FindCluster("dgx-h100");
    config.gpu.hbm_capacity = Bytes(gib * 1073741824);
    const Cluster cluster(config);
    const TrainingConfig training{.global_batch_size = 8, .seq_length = 4096};
    const Estimator estimator(five, training, cluster);
    SearchOptions options;
    options.threads = 2;
    options.top = 1000;  // more than there are: nothing is cut for being slow
    // Neither of the two is better than the other, so that both are costed everywhere.
    options.filter.Require("recompute=none|full(all)");
    const SearchResult result = Search(five, training, cluster, options);

    std::array<OutOfMemory, kMemoryItems> brute;
    const std::vector<Recompute> recomputes = {{}, {.granularity = RecomputeGranularity::kFull}};
    ForEachPlan(estimator, recomputes, false, false, [&](const Estimate& e) {
      const ParallelConfig& p = e.plan;
      const int ranks = p.data * p.context;
      if (ranks == 1 && p.zero > 0) return;  // nothing to shard over: one plan of four
      if (p.zero_shard == ranks) return;     // is the same as 0
      if (e.peak <= result.memory_limit) return;
      // What recomputation does not change, of the stage that has most of it.
      StageMemory floor;
      for (StageMemory stage : e.memory) {
        for (MemoryItem item : {MemoryItem::kActivations, MemoryItem::kLogits,
                                MemoryItem::kWorkingSet, MemoryItem::kAllocatorSlack}) {
          stage[item] = Bytes(0);
        }
        if (stage.total() > floor.total()) floor = stage;
      }
      const double slack = DeviceOverheadsOf(training).allocator_slack;
      const Bytes least = floor.allocated() * (1 + slack) + floor[MemoryItem::kNccl] +
                          floor[MemoryItem::kCudaContext];
      const MemoryItem largest = least > result.memory_limit
                                     ? floor.largest()
                                     : e.memory[std::size_t(e.peak_stage)].largest();
      OutOfMemory& item = brute[static_cast<std::size_t>(largest)];
      ++item.count;
      if (!item.nearest || e.peak < item.nearest->peak) item.nearest = {p, e.step, e.peak};
    });
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < kMemoryItems; ++i) {
      SCOPED_TRACE(Name(static_cast<MemoryItem>(i)));
      const OutOfMemory& item = result.out_of_memory[i];
      sum += item.count;
      EXPECT_EQ(item.count, brute[i].count);
      ASSERT_EQ(item.nearest.has_value(), brute[i].nearest.has_value());
      if (!item.nearest) continue;
      ++items_seen;
      EXPECT_NEAR(least_over(item, result.memory_limit) / least_over(brute[i], result.memory_limit),
                  1, 1e-6);
      const Estimate e = estimator.Itemise(item.nearest->plan);
      EXPECT_EQ(e.peak_stage, item.stage);
      EXPECT_NEAR(e.peak / item.nearest->peak, 1, 1e-12);
    }
    EXPECT_EQ(sum, result.rejected[static_cast<int>(RejectionReason::kOutOfMemory)]);
    EXPECT_GT(sum, 0);
  }
  EXPECT_GE(items_seen, 6);
}

void ExpectSameOnAnyNumberOfThreads(const ClusterConfig& config) {
  const ModelConfig model = PresetModel("mixtral-8x7b");
  const TrainingConfig training{.global_batch_size = 256, .seq_length = 4096};
  const Cluster cluster(config);
  SearchOptions options;
  options.threads = 1;
  const SearchResult one = Search(model, training, cluster, options);
  for (int threads : {2, 3}) {
    options.threads = threads;
    const SearchResult many = Search(model, training, cluster, options);
    EXPECT_EQ(many.searched, one.searched);
    EXPECT_EQ(many.rejected, one.rejected);
    EXPECT_EQ(many.certificate.ruled_out, one.certificate.ruled_out);
    for (int i = 0; i < kMemoryItems; ++i) {
      const OutOfMemory &a = many.out_of_memory[i], &b = one.out_of_memory[i];
      EXPECT_EQ(a.count, b.count);
      EXPECT_EQ(a.stage, b.stage);
      ASSERT_EQ(a.nearest.has_value(), b.nearest.has_value());
      if (a.nearest) {
        EXPECT_EQ(a.nearest->plan, b.nearest->plan);
      }
    }
    ASSERT_EQ(many.plans.size(), one.plans.size());
    for (std::size_t i = 0; i < one.plans.size(); ++i) {
      EXPECT_EQ(many.plans[i].plan, one.plans[i].plan);
      EXPECT_EQ(many.plans[i].step, one.plans[i].step);
    }
    ASSERT_EQ(many.pareto.size(), one.pareto.size());
    for (std::size_t i = 0; i < one.pareto.size(); ++i) {
      EXPECT_EQ(many.pareto[i].plan, one.pareto[i].plan);
    }
  }
}

TEST(Search, SameAnswerAndCountsOnAnyNumberOfThreads) {
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  ExpectSameOnAnyNumberOfThreads(config);
}

TEST(Search, SameCountsWhereNothingFits) {
  ClusterConfig config = FindCluster("dgx-h100");  // 47 billion parameters in 640 GB
  ExpectSameOnAnyNumberOfThreads(config);
}

// Where the state alone is too large no micro-batch changes that, and what would fit least badly is
// the same as among all of them.
TEST(Search, StateThatNeverFitsIsNotWorkedOutForEachMicroBatch) {
  const ModelConfig model = PresetModel("mixtral-8x7b");
  const TrainingConfig training{.global_batch_size = 64, .seq_length = 4096};
  const Cluster cluster(FindCluster("dgx-h100"));
  SearchOptions options{.exhaustive = true};
  options.filter.Require("pp=2|4,recompute=none|full");
  const SearchResult all = Search(model, training, cluster, options);
  options.exhaustive = false;
  const SearchResult bounded = Search(model, training, cluster, options);
  ASSERT_TRUE(all.nearest_miss && bounded.nearest_miss);
  EXPECT_EQ(bounded.nearest_miss->plan, all.nearest_miss->plan);
  EXPECT_EQ(bounded.nearest_miss->peak, all.nearest_miss->peak);
  EXPECT_EQ(bounded.certificate.space, all.certificate.space);
  EXPECT_EQ(bounded.searched, 0);
  EXPECT_EQ(bounded.certificate.ruled_out[std::size_t(Bound::kModelState)],
            bounded.certificate.space);
}

TEST(Search, FiltersNarrowTheSpace) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 128, .seq_length = 8192};
  ClusterConfig config = FindCluster("dgx-h100");
  const Cluster cluster(config);
  SearchOptions options;
  options.filter.Require("tp=2|4,zero=1,recompute=none");
  options.filter.Forbid("pp=1");
  const SearchResult result = Search(model, training, cluster, options);
  ASSERT_FALSE(result.plans.empty());
  for (const RankedPlan& plan : result.plans) EXPECT_TRUE(options.filter.Allows(plan.plan));
  EXPECT_GT(result.rejected[int(RejectionReason::kForbidden)], 0);
}

// Rules of thumb that must come out by themselves.
TEST(Search, TensorParallelStaysInTheDomainAndPipelinesCrossIt) {
  const ModelConfig model = PresetModel("llama-3.1-405b");
  const TrainingConfig training{.global_batch_size = 2048, .seq_length = 8192};
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 128;
  const Cluster cluster(config);
  const SearchResult result = Search(model, training, cluster, {});
  ASSERT_FALSE(result.plans.empty());
  EXPECT_LE(result.plans.front().plan.tensor, 8);
  EXPECT_GT(result.plans.front().plan.pipeline, 1);
  // An island of 72 GPUs may hold what eight could not.
  for (const RankedPlan& plan : result.plans) EXPECT_LE(plan.plan.tensor, 8);
}

// One exchange, after which every part has the whole answer.
TEST(Search, PartsExchangeOnceAndFindWhatOneFinds) {
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const TrainingConfig training{.global_batch_size = 32, .seq_length = 4096};
  const Cluster cluster(FindCluster("dgx-h100"));
  const SearchResult alone = Search(model, training, cluster, {.threads = 1});
  constexpr int kParts = 3;
  std::vector<std::string> texts;
  for (const bool all_known : {false, true}) {
    for (int i = 0; i < kParts; ++i) {
      int exchanges = 0;
      SearchOptions options{.threads = 1};
      options.part = {.index = i, .count = kParts, .gather = [&](const std::string& own) {
                        ++exchanges;
                        if (!all_known) texts.push_back(own);
                        return all_known ? texts : std::vector<std::string>{own};
                      }};
      const SearchResult result = Search(model, training, cluster, options);
      EXPECT_EQ(exchanges, 1);
      if (!all_known) {
        EXPECT_LT(result.certificate.space, alone.certificate.space);
        continue;
      }
      EXPECT_EQ(result.certificate.costed, alone.certificate.costed);
      EXPECT_EQ(result.certificate.ruled_out, alone.certificate.ruled_out);
      EXPECT_EQ(result.rejected, alone.rejected);
      ASSERT_EQ(result.plans.size(), alone.plans.size());
      for (std::size_t k = 0; k < alone.plans.size(); ++k) {
        EXPECT_EQ(result.plans[k].plan, alone.plans[k].plan);
      }
      EXPECT_EQ(result.pareto.size(), alone.pareto.size());
    }
  }
}

// With sequences this long under DualPipe, layers divided evenly fit with no recomputation, by more
// than twice the memory; few of them in the first stage and all recomputed do.
TEST(Search, DividesAnewWhatFitsInNoOtherWay) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  ClusterConfig config = FindCluster("dgx-h100");
  config.nodes = 4;
  const Cluster cluster(config);
  const TrainingConfig training{.global_batch_size = 16, .seq_length = 65536};
  SearchOptions options;
  options.filter.Require("tp=16,pp=2,cp=1,schedule=dualpipe");
  const SearchResult result = Search(model, training, cluster, options);
  ASSERT_EQ(result.plans.size(), 1U);
  const ParallelConfig& plan = result.plans.front().plan;
  EXPECT_EQ(plan.recompute.granularity, RecomputeGranularity::kFull);
  EXPECT_FALSE(plan.stage_layers.empty());
  EXPECT_FALSE(CheckPlan(model, training, cluster.gpu(), cluster.gpus(), plan));
  const Estimate e = Estimator(model, training, cluster).Itemise(plan);
  EXPECT_LE(e.peak.value, result.memory_limit.value * (1 + 1e-12));
  ParallelConfig even = plan;
  even.stage_layers.clear();
  EXPECT_GT(Estimator(model, training, cluster).Itemise(even).peak, 2 * result.memory_limit);
  options.split_layers = false;
  EXPECT_TRUE(Search(model, training, cluster, options).plans.empty());
}

// Choices by rank take nothing from the answer: never slower, and no other counts.
TEST(Search, RecomputeByRankIsNeverSlower) {
  struct Question {
    const char* model;
    const char* cluster;
    int nodes;
    TrainingConfig training;
    bool offload = false;
  };
  int faster = 0, only = 0;
  for (const Question& q :
       {Question{"llama-3.1-70b", "dgx-h100", 4, {.global_batch_size = 128, .seq_length = 16384}},
        Question{"llama-3.1-70b", "dgx-h100", 3, {.global_batch_size = 48, .seq_length = 16384}},
        Question{"llama-3.1-8b", "dgx-a100", 1, {.global_batch_size = 16, .seq_length = 65536}},
        Question{
            "llama-3.1-8b", "dgx-a100", 1, {.global_batch_size = 8, .seq_length = 65536}, true},
        Question{"mixtral-8x7b", "dgx-h100", 2, {.global_batch_size = 64, .seq_length = 16384}},
        Question{"gpt2-xl", "dgx-h100", 1, {.global_batch_size = 64, .seq_length = 1024}}}) {
    const ModelConfig model = PresetModel(q.model);
    ClusterConfig config = FindCluster(q.cluster);
    config.nodes = q.nodes;
    const Cluster cluster(config);
    SearchOptions options{.offload = q.offload};
    const SearchResult without = Search(model, q.training, cluster, options);
    options.recompute_by_rank = true;
    const SearchResult with = Search(model, q.training, cluster, options);
    EXPECT_EQ(with.searched, without.searched);
    EXPECT_EQ(with.certificate.ruled_out, without.certificate.ruled_out);
    EXPECT_EQ(with.rejected, without.rejected);
    EXPECT_GE(with.plans.size(), without.plans.size());
    EXPECT_TRUE(without.without_by_rank.empty());
    ASSERT_EQ(with.without_by_rank.size(), without.plans.size());
    for (std::size_t i = 0; i < without.plans.size(); ++i) {
      EXPECT_EQ(with.without_by_rank[i].plan, without.plans[i].plan);
    }
    for (std::size_t i = 0; i < without.plans.size(); ++i) {
      EXPECT_LE(with.plans[i].step, without.plans[i].step) << q.model << " " << i;
    }
    ASSERT_EQ(with.in_framework.size(), without.in_framework.size());
    for (std::size_t i = 0; i < without.in_framework.size(); ++i) {
      EXPECT_LE(with.in_framework[i].step, without.in_framework[i].step);
      EXPECT_TRUE(with.in_framework[i].plan.rank_recompute.empty());
    }
    const Estimator estimator(model, q.training, cluster);
    for (const RankedPlan& ranked : with.plans) {
      EXPECT_FALSE(CheckPlan(model, q.training, cluster.gpu(), cluster.gpus(), ranked.plan));
      const Estimate e = estimator.Itemise(ranked.plan);
      EXPECT_NEAR(e.step / ranked.step, 1, 1e-12);
      EXPECT_LE(e.peak.value, with.memory_limit.value * (1 + 1e-12));
    }
    if (with.plans.empty()) continue;
    only += without.plans.empty();
    faster += !without.plans.empty() && with.plans[0].step < 0.99 * without.plans[0].step;
  }
  EXPECT_GT(faster + only, 0);
}

}  // namespace
}  // namespace millwright
