// SPDX-License-Identifier: Apache-2.0
//
// The best plan's step on 30 questions that users have: models from 1 to 671 B on 8 to 16,384 GPUs.
// A search that gets worse fails here; so does one that gets better or is costed otherwise, so that
// the figure is pinned anew and CHANGELOG.md says why it moved.  A failing case prints its new row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "core/model_presets.h"
#include "planner/search.h"
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

struct Question {
  std::string_view model, cluster;
  int nodes;
  std::int64_t batch, seq;
  Precision precision;
  double step;            // seconds, of the fastest plan
  std::string_view plan;  // its name, for the reader
};
constexpr auto kBf16 = Precision::kBf16;
constexpr auto kFp8 = Precision::kFp8;

const Question kQuestions[] = {
    {"llama-3.2-1b", "dgx-a100", 1, 256, 4096, kBf16, 0, ""},
    {"llama-3.1-8b", "dgx-h100", 1, 128, 8192, kBf16, 0, ""},
    {"llama-3.1-8b", "dgx-h100", 8, 512, 8192, kFp8, 0, ""},
    {"llama-3.1-8b", "pcie-l40s", 4, 256, 4096, kBf16, 0, ""},
    {"llama-3.1-8b", "dgx-h100", 16, 64, 131072, kBf16, 0, ""},
    {"llama-3.1-70b", "dgx-h100", 16, 1024, 8192, kBf16, 0, ""},
    {"llama-3.1-70b", "dgx-h100", 128, 2048, 8192, kFp8, 0, ""},
    {"llama-3.1-70b", "dgx-a100", 32, 1024, 4096, kBf16, 0, ""},
    {"llama-3.1-70b", "dgx-h100-3to1", 32, 512, 8192, kBf16, 0, ""},
    {"llama-3.1-70b", "gb200-nvl72", 4, 576, 8192, kFp8, 0, ""},
    {"llama-3.1-70b", "dgx-h200", 8, 64, 131072, kBf16, 0, ""},
    {"llama-3.1-405b", "dgx-h100", 2048, 2048, 8192, kBf16, 0, ""},
    {"llama-3.1-405b", "dgx-b200", 64, 512, 8192, kFp8, 0, ""},
    {"llama-3.1-405b", "gb300-nvl72", 16, 1152, 8192, kFp8, 0, ""},
    {"qwen2.5-32b", "dgx-h100", 4, 256, 4096, kBf16, 0, ""},
    {"qwen3-32b", "dgx-a100", 16, 1024, 4096, kBf16, 0, ""},
    {"qwen3-30b-a3b", "dgx-h100", 4, 512, 4096, kBf16, 0, ""},
    {"qwen3-235b-a22b", "dgx-h100", 32, 2048, 4096, kBf16, 0, ""},
    {"qwen3-235b-a22b", "gb200-nvl72", 4, 2304, 4096, kFp8, 0, ""},
    {"mixtral-8x7b", "dgx-h100", 8, 1024, 4096, kBf16, 0, ""},
    {"mixtral-8x22b", "dgx-h100", 32, 2048, 4096, kBf16, 0, ""},
    {"deepseek-v2", "dgx-h800", 64, 4608, 4096, kBf16, 0, ""},
    {"deepseek-v3", "dgx-h800", 256, 15360, 4096, kFp8, 0, ""},
    {"deepseek-v3", "dgx-h100", 128, 15360, 4096, kFp8, 0, ""},
    {"gpt-oss-120b", "dgx-b200", 8, 1024, 8192, kBf16, 0, ""},
    {"gemma-3-27b", "dgx-h100", 8, 512, 8192, kBf16, 0, ""},
    {"gpt-22b", "dgx-a100", 1, 4, 2048, kBf16, 0, ""},
    {"gpt3-175b", "dgx-a100", 128, 1536, 2048, kBf16, 0, ""},
    {"mt-nlg-530b", "dgx-a100", 280, 1920, 2048, kBf16, 0, ""},
    {"gpt-1t", "dgx-a100", 384, 3072, 2048, kBf16, 0, ""},
};
static_assert(std::size(kQuestions) == 30);

class PlanQuality : public testing::TestWithParam<Question> {};

TEST_P(PlanQuality, BestStep) {
  const Question& q = GetParam();
  const ModelConfig model = PresetModel(q.model);
  ClusterConfig config = FindCluster(std::string(q.cluster));
  config.nodes = q.nodes;
  const Cluster cluster(config);
  const TrainingConfig training{
      .global_batch_size = q.batch, .seq_length = q.seq, .precision = q.precision};
  const SearchResult result = Search(model, training, cluster, {.top = 10, .progress = {}});
  ASSERT_FALSE(result.plans.empty());
  const RankedPlan& best = result.plans.front();
  // Pinned to six digits: no rounding of a compiler's choice, and nothing that a user would see.
  EXPECT_NEAR(best.step.value / q.step, 1, 1e-5)
      << "pin anew, and say why in CHANGELOG.md:\n"
      << fmt::format("{{\"{}\", \"{}\", {}, {}, {}, {}, {:.6g},\n \"{}\"}},\n", q.model, q.cluster,
                     q.nodes, q.batch, q.seq, q.precision == kFp8 ? "kFp8" : "kBf16",
                     best.step.value, ShortName(best.plan));
}

INSTANTIATE_TEST_SUITE_P(Questions, PlanQuality, testing::ValuesIn(kQuestions),
                         [](const testing::TestParamInfo<Question>& one) {
                           std::string name;
                           for (const char c :
                                fmt::format("{}_on_{}_x_{}_seq_{}", one.param.model,
                                            one.param.nodes, one.param.cluster, one.param.seq)) {
                             name += c == '-' || c == '.' ? '_' : c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace millwright
