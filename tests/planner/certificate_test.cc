// SPDX-License-Identifier: Apache-2.0
//
// What bounds rule out changes nothing: hundreds of small spaces, drawn from a seed, are searched
// with bounds and, every candidate costed, without.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "core/model_presets.h"
#include "planner/search.h"

namespace millwright {
namespace {

struct Question {
  ModelConfig model = PresetModel("tiny-llama");
  TrainingConfig training;
  ClusterConfig cluster = FindCluster("dgx-h100");
  bool all_schedules = false, split_layers = false, offload = false;
  std::string schedules;  // those alone
};

template <class T>
T OneOf(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

Question Draw(std::mt19937& random) {
  Question q;
  q.model.num_layers = int(2 + random() % 5);
  q.model.layers = {{.count = q.model.num_layers, .kind = {}}};
  q.all_schedules = random() % 3 == 0;
  q.split_layers = random() % 2 == 0;
  if (random() % 4 == 0) {
    q.model.moe.num_experts = 4;
    q.model.moe.topk = 2;
    q.model.moe.ffn_hidden_size = 512;
    const int dense = int(random() % 2);
    q.model.layers = {{.count = q.model.num_layers - dense, .kind = {.moe = true}}};
    if (dense > 0) q.model.layers.insert(q.model.layers.begin(), {.count = dense, .kind = {}});
    q.all_schedules = false;  // or a test takes minutes
  }
  q.training.global_batch_size = OneOf(random, {4, 6, 8, 12, 16});
  q.training.seq_length = OneOf(random, {1024, 4096, 65536});
  q.training.framework = OneOf(random, {Framework::kMegatron, Framework::kFsdpCompiled});
  q.cluster.gpus_per_node = OneOf(random, {2, 4, 8});
  q.cluster.nics_per_node = q.cluster.gpus_per_node;
  q.cluster.nodes = OneOf(random, {1, 2});
  // From what fits nothing to what fits all.
  q.cluster.gpu.hbm_capacity =
      Bytes(OneOf(random, {0.9, 1.4, 1.7, 2.0, 2.5, 4.0, 80.0}) * (1 << 30));
  q.offload = random() % 3 == 0;
  // From copies that everything waits for to such as nothing does, and hosts that may be too small.
  q.cluster.host_bandwidth = BytesPerSecond(OneOf(random, {1e9, 20e9, 500e9}));
  q.cluster.host_memory = Bytes(OneOf(random, {0.0, 0.5, 4.0}) * (1 << 30));
  return q;
}

SearchResult Answer(const Question& q, bool exhaustive, int top, int threads) {
  SearchOptions options{.top = top, .threads = threads, .exhaustive = exhaustive};
  options.split_layers = q.split_layers;
  options.offload = q.offload;
  if (q.all_schedules) {
    std::string names;
    for (const auto& name : TrainingScheduleNames()) names += "|" + std::string(name.name);
    options.filter.Require("schedule=" + names.substr(1));
  }
  if (!q.schedules.empty()) options.filter.Require("schedule=" + q.schedules);
  return Search(q.model, q.training, Cluster(q.cluster), options);
}

void ExpectSame(const std::vector<RankedPlan>& a, const std::vector<RankedPlan>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Costed by the same sums, so to the last bit; plans that tie in both may differ in name.
    EXPECT_EQ(a[i].step, b[i].step) << i;
    EXPECT_EQ(a[i].peak, b[i].peak) << i;
  }
}

TEST(Certificate, BoundsChangeNothingOnHundredsOfSmallSpaces) {
  std::mt19937 random(6);
  int with_plan = 0, with_bounds = 0, offloaded = 0;
  std::array<std::int64_t, kBounds> ruled_out{};
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const Question q = Draw(random);
    const int top = OneOf(random, {1, 2, 5});
    const SearchResult bounded = Answer(q, false, top, 1), all = Answer(q, true, top, 2);
    const Certificate &c = bounded.certificate, &every = all.certificate;
    // Every candidate is accounted for, and without bounds every one is costed.
    EXPECT_EQ(every.costed, every.space);
    EXPECT_EQ(c.space, every.space);
    EXPECT_EQ(std::accumulate(c.ruled_out.begin(), c.ruled_out.end(), c.costed), c.space);
    EXPECT_TRUE(c.exact());
    EXPECT_TRUE(every.exact());
    EXPECT_EQ(c.best_bound, every.best_bound);
    ExpectSame(bounded.plans, all.plans);
    ExpectSame(bounded.in_framework, all.in_framework);
    ExpectSame(bounded.pareto, all.pareto);
    ASSERT_EQ(bounded.nearest_miss.has_value(), all.nearest_miss.has_value());
    if (all.nearest_miss) {
      EXPECT_EQ(bounded.nearest_miss->peak, all.nearest_miss->peak);
    }
    if (!all.plans.empty()) {
      ++with_plan;
      offloaded += all.plans.front().plan.recompute.offload_layers > 0 ? 1 : 0;
      // Of the candidates; with layers divided anew a plan may be faster.
      if (q.split_layers) {
        EXPECT_GE(c.best_bound, all.plans.front().step);
      } else {
        EXPECT_EQ(c.best_bound, all.plans.front().step);
      }
    }
    with_bounds += c.costed < c.space / 2 ? 1 : 0;
    for (std::size_t b = 0; b < kBounds; ++b) ruled_out[b] += c.ruled_out[b];
    if (HasFailure()) return;
  }
  // The draw is worth something: plans were found, and every bound had its part.
  EXPECT_GT(with_plan, 150);
  EXPECT_GT(with_bounds, 100);
  EXPECT_GT(offloaded, 5);
  for (std::size_t b = 0; b < kBounds; ++b)
    EXPECT_GT(ruled_out[b], 0) << Name(static_cast<Bound>(b));
}

// The same where DualPipe's pairs hide the exchanges of experts, which bounds know before the pairs
// are worked out.
TEST(Certificate, BoundsChangeNothingWherePairsHideExchanges) {
  std::mt19937 random(8);
  int drawn = 0, with_plan = 0, bounded_away = 0;
  while (drawn < 40) {
    Question q = Draw(random);
    if (!q.model.has_moe()) continue;
    SCOPED_TRACE(++drawn);
    q.schedules = "dualpipe|dualpipe-v,pp=2|4,ep=1|2|4";
    q.offload = q.split_layers = false;
    q.training.global_batch_size = OneOf(random, {8, 16});
    q.cluster.gpus_per_node = q.cluster.nics_per_node = q.cluster.sockets = 1;
    q.cluster.nodes = OneOf(random, {4, 8});
    q.cluster.nic_bandwidth = BytesPerSecond(OneOf(random, {2e9, 50e9}));
    q.cluster.gpu.hbm_capacity = Bytes(OneOf(random, {1.4, 2.5, 4.0, 80.0}) * (1 << 30));
    const SearchResult bounded = Answer(q, false, 2, 1), all = Answer(q, true, 2, 2);
    EXPECT_EQ(bounded.certificate.space, all.certificate.costed);
    ExpectSame(bounded.plans, all.plans);
    ExpectSame(bounded.pareto, all.pareto);
    if (HasFailure()) return;
    bounded_away += bounded.certificate.costed < all.certificate.costed / 2;
    with_plan += !all.plans.empty();
  }
  EXPECT_GT(bounded_away, 20);
  EXPECT_GT(with_plan, 20);
}

// A deadline that comes at once leaves everything unvisited, one that never comes changes nothing;
// and where it comes between, what is said to be the bound holds.
TEST(Certificate, DeadlinesLeaveABoundThatHolds) {
  using std::chrono::steady_clock;
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    const Question q = Draw(random);
    const Cluster cluster(q.cluster);
    SearchOptions options{.top = 5, .threads = 2};
    options.split_layers = false;
    const SearchResult whole = Search(q.model, q.training, cluster, options);
    for (const auto time : {std::chrono::hours(-1), std::chrono::hours(1)}) {
      options.deadline = steady_clock::now() + time;
      const SearchResult limited = Search(q.model, q.training, cluster, options);
      const Certificate& c = limited.certificate;
      EXPECT_EQ(c.space, whole.certificate.space);
      EXPECT_EQ(c.unvisited, time.count() < 0 ? c.space : 0);
      EXPECT_EQ(std::accumulate(c.ruled_out.begin(), c.ruled_out.end(), c.costed),
                c.space - c.unvisited);
      EXPECT_LE(c.best_bound, whole.certificate.best_bound);
      if (time.count() < 0) {
        // All that is known is the FLOPs.
        EXPECT_TRUE(limited.plans.empty());
        EXPECT_GT(c.best_bound, Seconds(0));
        EXPECT_FALSE(c.exact());
        continue;
      }
      ExpectSame(limited.plans, whole.plans);
      ExpectSame(limited.pareto, whole.pareto);
      EXPECT_TRUE(c.exact());
    }
    options.deadline = steady_clock::now() + std::chrono::milliseconds(2);
    const SearchResult some = Search(q.model, q.training, cluster, options);
    EXPECT_LE(some.certificate.best_bound, whole.certificate.best_bound);
    if (some.plans.empty() || whole.plans.empty()) continue;
    EXPECT_GE(some.plans.front().step, whole.plans.front().step);
    EXPECT_NEAR(some.plans.front().step / some.certificate.best_bound, 1 + some.certificate.gap,
                1e-9);
  }
}

// tp x cp x pp x dp = 2 on a node of two: 2 layers, batch 2, one kind of schedule.  By hand, with
// recompute=none|full(all) and ZeRO 0 and 1 alone, ring alone, sp off:
//   tp2, cp2 (nothing but one rank each of the others; cp2 has two data ranks to shard over)
//   tp2: mbs 1, 2                          x no data ranks: one ZeRO          x 2 = 4
//   cp2: mbs 1, 2                          x ZeRO 0, 1 over both ranks         x 2 = 8
//   pp2: mbs 1, 2                          x one ZeRO                          x 2 = 4
//   dp2: mbs 1 (2 x 2 is over the batch)   x ZeRO 0, 1                         x 2 = 4
// The shard of a domain is both ranks, and so the same as all of them.
TEST(Certificate, CountsTheSpaceAsByHand) {
  Question q;
  q.model.num_layers = 2;
  q.model.layers = {{.count = 2, .kind = {}}};
  q.training = {.global_batch_size = 2, .seq_length = 1024};
  q.cluster.gpus_per_node = q.cluster.nics_per_node = 2;
  q.cluster.nodes = 1;
  SearchOptions options{.threads = 1};
  options.filter.Require("recompute=none|full(all),zero=0|1,cp_kind=ring,sp=off");
  const SearchResult result = Search(q.model, q.training, Cluster(q.cluster), options);
  EXPECT_EQ(result.certificate.space, 20);
  // Nothing, one layer of a stage or two are offloaded; pp2 has no two: 6 + 12 + 4 + 6.
  SearchOptions offloading{.threads = 1, .offload = true};
  offloading.filter.Require("recompute=none,zero=0|1,cp_kind=ring,sp=off");
  EXPECT_EQ(Search(q.model, q.training, Cluster(q.cluster), offloading).certificate.space, 28);
  // Asked for by name, and nothing else: 2 + 4 + 0 + 2.
  SearchOptions two{.threads = 1};
  two.filter.Require("recompute=none,zero=0|1,cp_kind=ring,sp=off,offload=2");
  EXPECT_EQ(Search(q.model, q.training, Cluster(q.cluster), two).certificate.space, 8);
}

}  // namespace
}  // namespace millwright
