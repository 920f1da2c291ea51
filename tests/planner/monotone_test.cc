// SPDX-License-Identifier: Apache-2.0
//
// What the best plan may never do, by the estimate: get slower where the machine gets better.
#include <gtest/gtest.h>

#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_presets.h"
#include "planner/search.h"
#include "tests/sanitized.h"
#include "topologies/what_if.h"

namespace millwright {
namespace {

struct Question {
  const char* model;
  const char* cluster;
  int nodes;
  TrainingConfig training;
};

const Question kQuestions[] = {
    {"llama-3.1-8b", "dgx-h100", 2, {.global_batch_size = 64, .seq_length = 8192}},
    {"llama-3.1-70b", "dgx-a100", 8, {.global_batch_size = 256, .seq_length = 4096}},
    {"mixtral-8x7b", "dgx-h100", 4, {.global_batch_size = 128, .seq_length = 4096}},
    // A head like four of its 36 layers: best are plans that are slow as long as these are even.
    {"gpt-oss-120b", "dgx-h100", 8, {.global_batch_size = 192, .seq_length = 8192}},
};
// Plans that fit only when their layers are divided anew, under another ZeRO stage or with more
// recomputation than what is fastest of those that nearly fit.
const Question kDivided[] = {
    {"deepseek-v2-lite", "dgx-h100", 1, {.global_batch_size = 2048, .seq_length = 2048}},
    {"qwen3-30b-a3b",
     "pcie-h100",
     1,
     {.global_batch_size = 48, .seq_length = 16384, .precision = Precision::kFp8}},
};

// Infinite where none fits.
Seconds BestStep(const Question& q, const ClusterConfig& config, SearchOptions options) {
  const SearchResult result = Search(PresetModel(q.model), q.training, Cluster(config), options);
  return result.plans.empty() ? Seconds(1e30) : result.plans.front().step;
}
Seconds BestStep(const Question& q, const ClusterConfig& config, int threads = 2) {
  const SearchResult result =
      Search(PresetModel(q.model), q.training, Cluster(config), {.top = 1, .threads = threads});
  EXPECT_FALSE(result.plans.empty());
  return result.plans.empty() ? Seconds(0) : result.plans.front().step;
}

ClusterConfig ClusterOf(const Question& q) {
  ClusterConfig config = FindCluster(q.cluster);
  config.nodes = q.nodes;
  return config;
}

TEST(Monotone, MoreOfAResourceNeverMakesTheBestPlanSlower) {
  for (const Question& q : std::span(kQuestions).first(kSanitized ? 1 : std::size(kQuestions))) {
    for (const char* resource : {"hbm", "hbm-bandwidth", "flops", "nvlink", "ib"}) {
      if (q.model == std::string_view("gpt-oss-120b") && resource != std::string_view("hbm")) break;
      SCOPED_TRACE(std::string(q.model) + ", " + resource);
      Seconds before(1e30);
      for (const double factor : {0.8, 1.0, 1.05, 1.13, 1.26, 1.3, 2.0, 4.0}) {
        ClusterConfig config = ClusterOf(q);
        ASSERT_TRUE(Scale(config, resource, factor));
        const Seconds step = BestStep(q, config);
        EXPECT_LE(step, (1 + 1e-12) * before) << factor;
        before = step;
      }
    }
  }
}

TEST(Monotone, AFilterNeverFindsAFasterPlan) {
  std::vector<Question> questions(std::begin(kQuestions), std::end(kQuestions));
  questions.insert(questions.end(), std::begin(kDivided), std::end(kDivided));
  if (kSanitized) questions.resize(1);
  for (const Question& q : questions) {
    for (const int top : {1, 32}) {
      const SearchOptions options{.top = top, .threads = 2};
      const Seconds best = BestStep(q, ClusterOf(q), options);
      for (const char* term : {"cp=1", "tp=1", "pp=4", "pp=8", "vpp=1", "zero=0|1", "micro_batch=1",
                               "recompute=none", "sp=1", "cp_kind=ring", "dp=1", "cp=2"}) {
        SearchOptions filtered = options;
        filtered.filter.Require(term);
        EXPECT_GE(BestStep(q, ClusterOf(q), filtered) / best, 1 - 1e-12)
            << q.model << ", top " << top << ", " << term;
      }
    }
  }
}

TEST(Monotone, ALargerSpaceNeverHasASlowerBestPlan) {
  for (const Question& q : kDivided) {
    const SearchOptions options{.top = 32, .threads = 2};
    SearchOptions larger = options;
    larger.offload = true;
    EXPECT_LE(BestStep(q, ClusterOf(q), larger), BestStep(q, ClusterOf(q), options)) << q.model;
    larger.filter.Require("cp=1|2,tp=1|2");
    SearchOptions both = larger;
    both.filter.Require("offload=0");
    EXPECT_LE(BestStep(q, ClusterOf(q), larger), BestStep(q, ClusterOf(q), both)) << q.model;
  }
}

// Twice the nodes are faster even with all of them busy, so that none need be left idle.  (5 nodes
// of 8 do not divide a batch of 64 into whole micro-batches: between powers of two some may have
// to.)
TEST(Monotone, TwiceTheNodesAreFaster) {
  for (const Question& q : kQuestions) {
    Seconds before(1e30);
    for (const int times : {1, 2, 4}) {
      ClusterConfig config = ClusterOf(q);
      config.nodes *= times;
      const Seconds step = BestStep(q, config);
      EXPECT_LT(step, before) << q.model << ", " << config.nodes;
      before = step;
    }
  }
}

// GPUs of a cluster are alike: how many threads look for the plan changes nothing.
TEST(Monotone, ThreadsChangeNothing) {
  for (const Question& q : kQuestions) {
    EXPECT_EQ(BestStep(q, ClusterOf(q), 1), BestStep(q, ClusterOf(q), 2)) << q.model;
  }
}

}  // namespace
}  // namespace millwright
