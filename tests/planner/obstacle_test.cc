// SPDX-License-Identifier: Apache-2.0
#include "planner/obstacle.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"
#include "planner/feasibility.h"

namespace millwright {
namespace {

// 32 layers and heads on 8 GPUs, 64 sequences a step.
Job Question() {
  Job job;
  job.model = PresetModel("llama-3.1-8b");
  job.training = {.global_batch_size = 64, .seq_length = 4096};
  job.cluster = FindCluster("dgx-h100");
  return job;
}

std::string Of(std::string_view require, std::string_view forbid = "") {
  PlanFilter filter;
  if (!require.empty()) filter.Require(require);
  if (!forbid.empty()) filter.Forbid(forbid);
  return Obstacle(Question(), filter);
}

TEST(Obstacle, KnobsWithoutAValue) {
  EXPECT_EQ(Of("tp=81"), "tp 81 is more than the 8 GPUs");
  EXPECT_EQ(Of("tp=3"), "tp 3 does not divide the 8 GPUs");
  EXPECT_EQ(Of("tp=3|81"), "tp 3|81 does not divide the 8 GPUs");
  EXPECT_EQ(Of("cp_ulysses=3"), "cp_ulysses 3 does not divide the 8 GPUs");
  EXPECT_EQ(Of("vpp=40"), "vpp 40 is more than the 32 layers");
  EXPECT_EQ(Of("micro_batch=3"), "micro_batch 3 does not divide the global batch of 64");
  EXPECT_EQ(Of("", "tp=1|2|4|8"), "--forbid tp=1|2|4|8 leaves no tp that divides the 8 GPUs");
  EXPECT_EQ(Of("", "zero=0|1|2|3"), "--forbid zero=0|1|2|3 leaves no zero");
  EXPECT_EQ(Of("", "recompute=none|selective|full"),
            "--forbid recompute=none|selective|full leaves no recompute");
}

TEST(Obstacle, TermsThatConflict) {
  EXPECT_EQ(Of("tp=2,tp=4"), "--require tp=2 and --require tp=4 conflict: no tp is left");
  EXPECT_EQ(Of("tp=2", "tp=2"), "--require tp=2 and --forbid tp=2 conflict: no tp is left");
  EXPECT_EQ(Of("recompute=full", "recompute=full"),
            "--require recompute=full and --forbid recompute=full conflict: no recompute is left");
  // One of two is left, and does not divide.
  EXPECT_EQ(Of("tp=2|3", "tp=2"), "tp 3 does not divide the 8 GPUs");
}

TEST(Obstacle, ThePlainestPlanAsAWhole) {
  EXPECT_EQ(Of("schedule=interleaved,vpp=1"), "the interleaved schedule does not go with vpp 1");
  EXPECT_EQ(Of("sp=on,tp=1"), "sequence parallelism shards over tensor ranks, and tp is 1");
  EXPECT_EQ(Of("recompute=selective(moe)"), "llama-3.1-8b has no experts for moe");
  EXPECT_EQ(Of("zero_shard=3"), "zero_shard 3 does not divide the 8 data-parallel ranks (dp x cp)");
  EXPECT_EQ(Of("cp_ulysses=2,cp=2"), "cp 2 cannot be nested with cp_ulysses 2: accepted none");
  EXPECT_EQ(Of("cp_ulysses=2,cp_kind=ring"),
            "cp_ulysses 2 goes with nested context parallelism "
            "alone");
  EXPECT_EQ(Of("tp=8,pp=2"), "tp 8 x cp 1 x pp 2 x dp 1 is 16 GPUs, not 8");
  Job many = Question();
  many.training.global_batch_size = 4;
  EXPECT_EQ(Obstacle(many, {}), "global batch 4 is not divisible by dp 8 x micro-batch 1");
  Job narrow = Question();
  narrow.training.precision = Precision::kNvfp4;
  EXPECT_EQ(Obstacle(narrow, {}), "H100-SXM has no nvfp4");
}

TEST(Obstacle, NoneWhereThePlainestCanRun) {
  const Job job = Question();
  for (const char* require :
       {"", "schedule=interleaved", "sp=on", "cp_kind=ulysses", "cp_kind=nested", "cp_ulysses=4",
        "cp_ulysses=2,cp=8", "vpp=4", "tp=4,pp=2", "recompute=full(3)", "zero_shard=4"}) {
    PlanFilter filter;
    if (*require != '\0') filter.Require(require);
    EXPECT_EQ(Obstacle(job, filter), "") << require;
    const ParallelConfig plain = Plainest(job, filter);
    EXPECT_TRUE(filter.Allows(plain)) << require;
    EXPECT_FALSE(CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), plain))
        << require;
  }
}

}  // namespace
}  // namespace millwright
