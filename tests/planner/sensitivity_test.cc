// SPDX-License-Identifier: Apache-2.0
#include "planner/sensitivity.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/model_presets.h"
#include "planner/contenders.h"
#include "topologies/what_if.h"

namespace millwright {
namespace {

Job SmallJob() {
  Job job;
  job.model = PresetModel("llama-3.1-8b");
  job.cluster = FindCluster("dgx-h100");
  job.cluster.nodes = 2;
  job.training = {.global_batch_size = 64, .seq_length = 8192};
  return job;
}

TEST(Sensitivity, IsASearchWithOneThingChanged) {
  const Job job = SmallJob();
  const SearchOptions options{.top = 3, .threads = 1};
  const std::optional<SensitivityAnswer> answer = FindSensitivity(job, options);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->resources.size(), 5U);
  Seconds before(1e9);
  for (const Sensitivity& s : answer->resources) {
    ASSERT_TRUE(s.more && s.less) << s.name;
    // More of something is never worse, and less never better: every plan stays, and none is
    // slower.
    EXPECT_LE(s.more->step, answer->now.step) << s.name;
    EXPECT_GE(s.less->step, answer->now.step) << s.name;
    // In order of what they save.
    const Seconds saved = answer->now.step - s.more->step;
    EXPECT_LE(saved, before);
    before = saved;
    // The same as asking what if.
    ClusterConfig config = job.cluster;
    ApplyWhatIf(config, s.name + "=+10%");
    const SearchResult result =
        Search(job.model, job.training, Cluster(config), {.top = kLeastContenders, .threads = 1});
    EXPECT_EQ(result.plans.front().plan, s.more->plan) << s.name;
    EXPECT_EQ(result.plans.front().step, s.more->step) << s.name;
  }
  // Matrix products are most of this step: a tenth more FLOP/s saves at least 5%, and at most all
  // of 1 - 1/1.1 = 9.1%.
  const Sensitivity& first = answer->resources.front();
  EXPECT_EQ(first.name, "flops");
  EXPECT_LT(first.more->step, 0.95 * answer->now.step);
  EXPECT_GT(first.more->step, answer->now.step / 1.1001);
}

TEST(Sensitivity, OptionsAreSearchesToo) {
  const Job job = SmallJob();
  const auto answer = FindSensitivity(job, {.threads = 1});
  ASSERT_TRUE(answer);
  double before = -1;
  std::set<std::string> seen;
  for (const OptionSensitivity& option : answer->options) {
    SCOPED_TRACE(option.flag);
    EXPECT_TRUE(seen.insert(option.flag).second);
    EXPECT_GE(answer->Change(option), before);
    before = answer->Change(option);
    TrainingConfig training = job.training;
    if (option.flag == "--precision fp8") {
      training.precision = Precision::kFp8;
    } else if (option.flag == "--tp-comm-overlap") {
      training.tp_comm_overlap = true;
    } else if (option.flag == "--global-batch 128") {
      training.global_batch_size = 128;
    } else {
      continue;
    }
    const SearchResult result =
        Search(job.model, training, Cluster(job.cluster), {.top = kLeastContenders, .threads = 1});
    EXPECT_EQ(result.plans.front().plan, option.best->plan);
    // Of a token.
    EXPECT_DOUBLE_EQ(
        answer->Change(option),
        result.plans.front().step * 64.0 / double(training.global_batch_size) / answer->now.step -
            1);
  }
  EXPECT_TRUE(seen.contains("--precision fp8"));
  EXPECT_TRUE(seen.contains("--global-batch 128"));
  EXPECT_FALSE(seen.contains("--precision nvfp4"));      // not on H100
  EXPECT_FALSE(seen.contains("--expert-overlap"));       // nor experts
  EXPECT_FALSE(seen.contains("--overlap-grad-reduce"));  // on already
}

TEST(Sensitivity, LeavesOutWhatThereIsNot) {
  Job job = SmallJob();
  job.cluster.nodes = 1;
  const auto answer = FindSensitivity(job, {.threads = 1});
  ASSERT_TRUE(answer);
  for (const Sensitivity& s : answer->resources) EXPECT_NE(s.name, "ib");
}

TEST(Sensitivity, IsOfAPlanThatFits) {
  Job job = SmallJob();
  job.model = PresetModel("llama-3.1-405b");
  job.cluster.nodes = 1;
  EXPECT_FALSE(FindSensitivity(job, {.threads = 1}));
}

}  // namespace
}  // namespace millwright
