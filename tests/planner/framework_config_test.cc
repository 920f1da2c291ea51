// SPDX-License-Identifier: Apache-2.0
#include "planner/framework_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millwright {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

template <class Read>
std::string MistakesOf(const Read& read, std::string_view text) {
  try {
    read("f", text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(Torchtitan, AConfigurationOfHsdpAndAPipeline) {
  const ImportedRun run = ReadTorchtitan("train.toml", R"(
[job]
description = "Llama 3"
[model]
name = "llama3"
converters = ["float8"]
[optimizer]
lr = 8e-5
[training]
local_batch_size = 16
seq_len = 8192
compile = true
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "full"
)");
  EXPECT_EQ(run.gpus, 256);  // 2 x 4 x 8 x 4
  std::vector<std::string> problems;
  const Job job = PlacedOn(run, 256, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(job.training.global_batch_size, 128);  // 16 on each of 8 replicas
  EXPECT_EQ(job.training.precision, Precision::kFp8);
  EXPECT_EQ(job.training.framework, Framework::kFsdpCompiled);
  EXPECT_EQ(job.training.state, StateScheme::kFsdp);
  EXPECT_TRUE(job.training.tp_comm_overlap);
  EXPECT_EQ(job.parallel.data, 8);
  EXPECT_EQ(job.parallel.zero, 2);  // a pipeline keeps weights gathered
  EXPECT_EQ(job.parallel.zero_shard, 4);
  EXPECT_EQ(job.parallel.virtual_stages, 2);
  EXPECT_EQ(job.parallel.schedule, ScheduleKind::kInterleaved);
  EXPECT_EQ(job.parallel.micro_batch_size, 2);
  EXPECT_EQ(job.parallel.recompute.granularity, RecomputeGranularity::kFull);
  EXPECT_THAT(run.warnings, IsEmpty());
  EXPECT_THAT(run.ignored, ElementsAre("job/description", "model/name", "optimizer/lr"));
}

TEST(Torchtitan, DefaultsAreItsOwn) {
  const ImportedRun run = ReadTorchtitan("train.toml", "");
  EXPECT_EQ(run.job.training.seq_length, 2048);
  EXPECT_EQ(run.job.parallel.micro_batch_size, 8);
  EXPECT_EQ(run.job.parallel.zero, 3);
  EXPECT_EQ(run.gpus, std::nullopt);
  EXPECT_THAT(run.warnings, ElementsAre("activation_checkpoint: selective, every 2 layers, is "
                                        "costed as selective(mlp,layernorm)"));
}

TEST(Torchtitan, NamesOfItsLastTomlRelease) {
  // Early 2026; the short names of the converters are those up to August 2025.
  const ImportedRun run = ReadTorchtitan("train.toml", R"(
[model]
converters = ["quantize.linear.mx", "quantize.grouped_mm.mx"]
[training]
local_batch_size = 16
[compile]
enable = true
[parallelism]
data_parallel_shard_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "DualPipeV"
expert_parallel_degree = 8
expert_tensor_parallel_degree = 1
expert_parallel_comm_backend = "deepep"
[activation_checkpoint]
mode = "memory_budget"
)");
  EXPECT_EQ(run.job.training.precision, Precision::kMxfp8);
  EXPECT_EQ(run.job.training.framework, Framework::kFsdpCompiled);
  EXPECT_EQ(run.job.training.moe_dispatcher, MoeDispatcher::kDeepEp);
  EXPECT_TRUE(run.job.training.expert_overlap);  // on unless said otherwise
  EXPECT_EQ(run.job.parallel.expert, 8);
  EXPECT_EQ(run.job.parallel.expert_tensor, 1);
  EXPECT_THAT(run.warnings,
              ElementsAre("activation_checkpoint: memory_budget, what the compiler chooses, is "
                          "costed as selective(mlp,layernorm)"));
  EXPECT_EQ(ReadTorchtitan("f", "[model]\nconverters = [\"quantize.linear.float8\"]\n")
                .job.training.precision,
            Precision::kFp8);
  // Neither has experts to exchange, whatever exchanges them.
  const ImportedRun dense =
      ReadTorchtitan("f",
                     "[parallelism]\nexpert_parallel_comm_backend = \"deepep\"\n"
                     "expert_tensor_parallel_degree = 2\n");
  EXPECT_EQ(dense.job.training.moe_dispatcher, MoeDispatcher::kAllToAll);
  EXPECT_FALSE(dense.job.training.expert_overlap);
  EXPECT_EQ(dense.job.parallel.expert_tensor, 1);
}

TEST(Torchtitan, Mistakes) {
  EXPECT_EQ(MistakesOf(ReadTorchtitan,
                       "[training]\nseq_len = 'x'\n[parallelism]\n"
                       "tensor_parallel_degree = 0\n"
                       "pipeline_parallel_schedule = \"1F1C\"\n"),
            "f: at /parallelism/pipeline_parallel_schedule: expected one of 1F1B, GPipe, "
            "Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, got "
            "\"1F1C\"; did you mean \"1F1B\"?\n"
            "f: at /parallelism/tensor_parallel_degree: expected an integer from 1 to 1048576, got "
            "0\n"
            "f: at /training/seq_len: expected an integer from 1 to 1073741824, got \"x\"");
  EXPECT_EQ(MistakesOf(ReadTorchtitan,
                       "[parallelism]\npipeline_parallel_degree = 2\n"
                       "module_fqns_per_model_part = [['a'], ['b'], ['c']]\n"),
            "f: at /parallelism/module_fqns_per_model_part: 3 parts cannot be shared out evenly "
            "among 2 ranks");
}

TEST(DeepSpeed, BatchesGiveTheRanks) {
  const ImportedRun run = ReadDeepSpeed("ds.json", R"({
    "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": true}, "fp16": {"enabled": "auto"}, "gradient_clipping": 1.0,
    "data_types": {"grad_accum_dtype": "fp32"}})");
  EXPECT_EQ(run.gpus, 32);  // 256 / (4 x 2)
  EXPECT_EQ(run.job.parallel.zero, 3);
  EXPECT_EQ(run.job.training.gradient_bytes, 4);
  EXPECT_EQ(run.job.training.precision, Precision::kBf16);
  EXPECT_THAT(run.ignored, ElementsAre("gradient_clipping"));
  EXPECT_THAT(run.warnings, ElementsAre("zero_optimization.offload_optimizer is not modelled: "
                                        "state is costed on the GPU"));
}

TEST(DeepSpeed, ShardsOfMicsAreCopiesOfTheState) {
  const auto instances = [](const std::string& stage, const std::string& shard) {
    return ReadDeepSpeed("ds.json",
                         R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 1,
                             "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
                             "zero_optimization": {"stage": )" +
                             stage + R"(, "mics_shard_size": )" + shard + "}}")
        .optimizer_instances;
  };
  EXPECT_EQ(instances("3", "8"), 4);
  EXPECT_EQ(instances("3", "-1"), 1);  // its default, without MiCS
  EXPECT_EQ(instances("1", "8"), 1);   // runtime/zero/mics.py is of stage 3
}

TEST(DeepSpeed, Mistakes) {
  EXPECT_EQ(MistakesOf(ReadDeepSpeed,
                       R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4,
                           "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 4},
                           "bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
            "f: at /train_batch_size: 10 is not a multiple of 4 x 1 (micro-batch x "
            "gradient_accumulation_steps)\n"
            "f: at /zero_optimization/stage: expected an integer from 0 to 3, got 4\n"
            "f: at /fp16/enabled: contradicts /bf16/enabled");
}

}  // namespace
}  // namespace millwright
