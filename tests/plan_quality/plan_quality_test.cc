// SPDX-License-Identifier: Apache-2.0
//
// The best plan's step on 30 questions that users have: models from 1 to 671 B on 8 to 16,384 GPUs.
// A search that gets worse fails here; so does one that gets better or is costed otherwise, so that
// the figure is pinned anew and CHANGELOG.md says why it moved.  A failing case prints its new row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>
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
void PrintTo(const Question& q, std::ostream* out) { *out << q.model; }
constexpr auto kBf16 = Precision::kBf16;
constexpr auto kFp8 = Precision::kFp8;

const Question kQuestions[] = {
    {"llama-3.2-1b", "dgx-a100", 1, 256, 4096, kBf16, 5.70686, "tp1 cp1 pp1 vpp1 dp8 mbs4 zero1"},
    {"llama-3.1-8b", "dgx-h100", 1, 128, 8192, kBf16, 12.9789,
     "tp1 cp1 pp2 vpp1 layers(17,15) dp4 mbs1 zero1 selective(layernorm)"},
    {"llama-3.1-8b", "dgx-h100", 8, 512, 8192, kFp8, 4.74272,
     "tp1 cp1 pp2 vpp1 layers(18,14) dp32 mbs1 zero1"},
    {"llama-3.1-8b", "pcie-l40s", 4, 256, 4096, kBf16, 10.2116,
     "tp1 cp1 pp4 vpp1 layers(8,2x9,6) dp8 mbs1 zero1"},
    {"llama-3.1-8b", "dgx-h100", 16, 64, 131072, kBf16, 22.0792,
     "tp1 cp16 nested(8) pp1 vpp1 dp8 mbs1 zero2"},
    {"llama-3.1-70b", "dgx-h100", 16, 1024, 8192, kBf16, 62.0913,
     "tp2 sp cp2 pp8 vpp1 layers(9,4x10,2x11,9) dp4 mbs1 zero1"},
    {"llama-3.1-70b", "dgx-h100", 128, 2048, 8192, kFp8, 10.3513,
     "tp2 sp cp2 pp8 vpp10 dp32 mbs1 zero1"},
    {"llama-3.1-70b", "dgx-a100", 32, 1024, 4096, kBf16, 37.1881,
     "tp4 sp cp1 pp4 vpp19 dp16 mbs2 zero1 selective(layernorm)"},
    {"llama-3.1-70b", "dgx-h100-3to1", 32, 512, 8192, kBf16, 15.9805,
     "tp4 sp cp1 pp4 vpp10 dp16 mbs1 zero1 selective(layernorm)"},
    {"llama-3.1-70b", "gb200-nvl72", 4, 576, 8192, kFp8, 4.47435,
     "tp2 sp cp1 pp3 vpp15 dp48 mbs1 zero1"},
    {"llama-3.1-70b", "dgx-h200", 8, 64, 131072, kBf16, 276.121,
     "tp2 sp cp16 nested(4) pp2 vpp1 dp1 mbs1 zero2 selective(layernorm)"},
    {"llama-3.1-405b", "dgx-h100", 2048, 2048, 8192, kBf16, 6.00025,
     "tp4 sp cp4 nested(2) pp16 vpp4 dp64 mbs1 zero1 selective(layernorm)"},
    {"llama-3.1-405b", "dgx-b200", 64, 512, 8192, kFp8, 13.1317,
     "tp2 sp cp4 ulysses pp16 vpp4 dp4 mbs1 zero1"},
    {"llama-3.1-405b", "gb300-nvl72", 16, 1152, 8192, kFp8, 9.47146,
     "tp2 sp cp2 pp16 vpp4 dp18 mbs1 zero1"},
    {"qwen2.5-32b", "dgx-h100", 4, 256, 4096, kBf16, 13.791, "tp2 sp cp1 pp4 vpp9 dp4 mbs1 zero1"},
    {"qwen3-32b", "dgx-a100", 16, 1024, 4096, kBf16, 36.1198,
     "tp2 sp cp1 pp4 vpp12 dp16 mbs1 zero1"},
    {"qwen3-30b-a3b", "dgx-h100", 4, 512, 4096, kBf16, 5.86996,
     "tp1 cp1 pp2 vpp1 layers(25,23) dp16 ep8 etp1 mbs2 zero1"},
    {"qwen3-235b-a22b", "dgx-h100", 32, 2048, 4096, kBf16, 17.0619,
     "tp2 sp cp1 pp8 vpp6 dp16 ep8 etp1 mbs1 zero1 selective(moe_act,layernorm)"},
    {"qwen3-235b-a22b", "gb200-nvl72", 4, 2304, 4096, kFp8, 6.84106,
     "tp1 cp1 pp6 vpp15 dp48 ep8 etp1 mbs2 zero1 selective(moe_act,layernorm)"},
    {"mixtral-8x7b", "dgx-h100", 8, 1024, 4096, kBf16, 10.3029,
     "tp1 cp1 pp4 vpp8 dp16 ep8 etp1 mbs2 zero1 selective(moe_act)"},
    {"mixtral-8x22b", "dgx-h100", 32, 2048, 4096, kBf16, 16.0984,
     "tp1 cp2 pp4 vpp14 dp32 ep8 etp1 mbs1 zero1 selective(layernorm)"},
    {"deepseek-v2", "dgx-h800", 64, 4608, 4096, kBf16, 19.3064,
     "tp1 cp1 pp32 vpp1 dp16 ep8 etp1 mbs1 zero1 selective(mla_up_proj)"},
    {"deepseek-v3", "dgx-h800", 256, 15360, 4096, kFp8, 27.132,
     "tp2 sp cp1 pp16 vpp1 dp64 ep8 etp1 mbs1 zero1 selective(mla_up_proj)"},
    {"deepseek-v3", "dgx-h100", 128, 15360, 4096, kFp8, 45.1339,
     "tp1 cp1 pp16 vpp1 dp64 ep8 etp1 mbs2 zero1 full"},
    {"gpt-oss-120b", "dgx-b200", 8, 1024, 8192, kBf16, 10.2373,
     "tp1 cp1 pp2 vpp9 dp32 ep8 etp1 mbs2 zero1 selective(moe_act,layernorm)"},
    {"gemma-3-27b", "dgx-h100", 8, 512, 8192, kBf16, 22.9346,
     "tp2 sp cp1 pp4 vpp1 layers(14,2x17,14) dp8 mbs1 zero1 selective(layernorm)"},
    {"gpt-22b", "dgx-a100", 1, 4, 2048, kBf16, 0.876236, "tp4 sp cp1 pp2 vpp24 dp1 mbs2 zero0"},
    {"gpt3-175b", "dgx-a100", 128, 1536, 2048, kBf16, 16.6347,
     "tp4 sp cp1 pp8 vpp12 dp32 mbs2 zero1 selective(layernorm)"},
    {"mt-nlg-530b", "dgx-a100", 280, 1920, 2048, kBf16, 33.9987,
     "tp4 sp cp2 pp56 vpp1 dp5 mbs1 zero1"},
    {"gpt-1t", "dgx-a100", 384, 3072, 2048, kBf16, 64.9788, "tp8 sp cp1 pp32 vpp4 dp12 mbs1 zero1"},
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
