// SPDX-License-Identifier: Apache-2.0
#include "planner/job.h"

#include <gtest/gtest.h>

#include "core/model_presets.h"

namespace millwright {
namespace {

TEST(Job, ReadsBackWhatItWrites) {
  Job job;
  job.has_model = job.has_training = job.has_cluster = job.has_parallel = job.has_search = true;
  job.search = {.memory_margin = 0.1, .require = {"tp=8,pp=2|4"}, .forbid = {"zero=3", "sp=off"}};
  job.model = PresetModel("deepseek-v3");
  job.training = {.global_batch_size = 15360, .seq_length = 4096, .precision = Precision::kFp8};
  job.cluster = FindCluster("dgx-h800");
  job.cluster.nodes = 256;
  job.parallel.pipeline = 16;
  job.parallel.data = 128;
  job.parallel.expert = 64;
  job.parallel.recompute = {.granularity = RecomputeGranularity::kSelective,
                            .modules = {RecomputeModule::kMoeAct, RecomputeModule::kMlaUpProj}};
  const std::string text = WriteJob(job);
  const Job again = ParseJob("job.json", text);
  EXPECT_EQ(again.model, job.model);
  EXPECT_EQ(again.training, job.training);
  EXPECT_EQ(again.cluster, job.cluster);
  EXPECT_EQ(again.parallel, job.parallel);
  EXPECT_EQ(again.search, job.search);
  EXPECT_TRUE(again.has_model && again.has_training && again.has_cluster && again.has_parallel);
  EXPECT_EQ(WriteJob(again), text);
}

TEST(Job, EveryPartMayBeLeftOut) {
  const Job job = ParseJob("job.json", R"({"training": {"seq_length": 8192}})");
  EXPECT_FALSE(job.has_model || job.has_cluster || job.has_parallel);
  EXPECT_TRUE(job.has_training);
  EXPECT_EQ(job.training.seq_length, 8192);
}

TEST(Job, NamesAModelInsteadOfSpellingItOut) {
  const Job job = ParseJob("job.json", R"({"model_from": "llama-3.1-70b"})");
  EXPECT_TRUE(job.has_model);
  EXPECT_EQ(job.model, PresetModel("llama-3.1-70b"));
}

TEST(Job, MistakesOfAllPartsInOnePass) {
  try {
    ParseJob("job.json",
             R"({"modle": {}, "training": {"seq_length": -1, "precision": "fp9"},
                 "parallel": {"tensor_parallel": 0}})");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "job.json: at /training/seq_length: expected an integer from 1 to 1073741824, "
                 "got -1\n"
                 "job.json: at /training/precision: expected one of \"fp16\", "
                 "\"bf16\", \"fp8\", \"mxfp8\", \"nvfp4\", got \"fp9\"; did you mean \"fp8\"?\n"
                 "job.json: at /parallel/tensor_parallel: expected an integer from 1 to 1048576, "
                 "got 0\n"
                 "job.json: at /modle: unknown field; did you mean \"model\"? accepted fields: "
                 "model_from, model, training, cluster, parallel, search");
  }
}

std::string Mistakes(std::string_view text) {
  try {
    ParseJob("job.json", text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Job, FiltersAreCheckedWithTheFile) {
  EXPECT_EQ(Mistakes(R"({"search": {"memory_margin": 1, "require": ["tp=0,zerp=1"],
                                    "forbid": ["pp"]}})"),
            "job.json: at /search/memory_margin: expected a number from 0 to 0.99, got 1\n"
            "job.json: at /search/require: at tp: expected an integer >= 1, got \"0\"\n"
            "job.json: at /search/require: unknown knob \"zerp\"; did you mean \"zero\"? accepted: "
            "tp, sp, cp, cp_kind, pp, vpp, dp, ep, etp, micro_batch, zero, zero_shard, recompute, "
            "offload, schedule, order, cp_ulysses\n"
            "job.json: at /search/forbid: expected knob=value, got \"pp\"");
}

TEST(Job, FilesOfOtherKinds) {
  EXPECT_EQ(Mistakes(R"({"model_type": "llama", "hidden_size": 64})"),
            "job.json: is a Hugging Face config, not a job file; give it with --model");
  EXPECT_EQ(Mistakes(R"({"inherit": "dgx-h100", "nodes": 4})"),
            "job.json: is a cluster, not a job file; give it with --cluster");
}

}  // namespace
}  // namespace millwright
