// SPDX-License-Identifier: Apache-2.0
#include "validate/run_job.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/estimator.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

// A run that is complete: Llama-3-8B on two nodes.
PublishedRun Base() {
  PublishedRun run;
  run.id = "ours-1";
  run.gpu = "H100-80GB";
  run.model.layers = 32;
  run.model.hidden = 4096;
  run.model.heads = 32;
  run.model.kv_heads = 8;
  run.model.ffn = 14336;
  run.model.vocab = 128256;
  run.model.seq = 8192;
  run.num_gpus = 16;
  run.gpus_per_node = 8;
  run.mbs = 1;
  run.gbs = 64;
  return run;
}

RunJob JobOf(const PublishedRun& run) {
  auto job = RunJobOf(run);
  if (auto* why = std::get_if<NotModelled>(&job)) {
    ADD_FAILURE() << why->what;
    return {};
  }
  return std::get<RunJob>(job);
}

std::string WhyNot(const PublishedRun& run) {
  const auto job = RunJobOf(run);
  const auto* why = std::get_if<NotModelled>(&job);
  return why == nullptr ? "" : why->what;
}

TEST(RunJob, ACompleteRun) {
  PublishedRun run = Base();
  run.tp = 2;
  const Job job = JobOf(run).job;
  EXPECT_EQ(job.cluster.gpus(), 16);
  EXPECT_EQ(job.cluster.gpu.name, "H100-SXM");
  EXPECT_EQ(job.parallel.data, 8);  // 16 / 2
  EXPECT_TRUE(job.parallel.sequence_parallel);
  EXPECT_EQ(job.parallel.zero, 1);
  EXPECT_EQ(job.training.global_batch_size, 64);
  EXPECT_EQ(job.model.num_query_groups, 8);
}

TEST(RunJob, WhatIsSaidOfTheNetwork) {
  const auto nics = [](const char* text) {
    PublishedRun run = Base();
    run.interconnect = text;
    const ClusterConfig c = JobOf(run).job.cluster;
    return std::pair(c.nics_per_node, c.nic_bandwidth.value * 8 / 1e9);
  };
  EXPECT_EQ(nics(""), std::pair(8, 400.0));  // the preset's
  EXPECT_EQ(nics("4x HDR IB 200 Gb/s per node (inter_node_bandwidth=800 Gb/s/node)"),
            std::pair(4, 200.0));
  EXPECT_EQ(nics("NVLink3 in node; 4x100 Gb/s RoCE per node"), std::pair(4, 100.0));
  EXPECT_EQ(nics("1600 Gb/s RoCE per node (200 Gb/s/GPU)"), std::pair(8, 200.0));
  EXPECT_EQ(nics("400 Gb/s per node"), std::pair(4, 100.0));
  EXPECT_EQ(nics("NVLink5 in 8-GPU node; 400 Gb/s IB per GPU (spec)"), std::pair(8, 400.0));
}

// 64 of a rack's 72 GPUs: the most that divide 128.
TEST(RunJob, RacksAreUsedInEqualParts) {
  PublishedRun run = Base();
  run.gpu = "GB200-192GB";
  run.gpus_per_node = 4;  // of a host
  run.num_gpus = 128;
  run.gbs = 128;
  const ClusterConfig c = JobOf(run).job.cluster;
  EXPECT_EQ(c.gpus_per_node, 64);
  EXPECT_EQ(c.nodes, 2);
}

TEST(RunJob, FrameworksAndWhatTheyDoByDefault) {
  const auto training = [](const char* framework, const char* gpu = "A100-80GB") {
    PublishedRun run = Base();
    run.framework = framework;
    run.gpu = gpu;
    return JobOf(run).job.training;
  };
  EXPECT_EQ(training("Megatron-Bridge / Megatron-Core (NeMo 26.04)").framework,
            Framework::kMegatron);
  EXPECT_EQ(training("Megatron-Bridge / Megatron-Core (NeMo 26.04)").gradient_bytes, 2);
  EXPECT_EQ(training("Megatron-LM").gradient_bytes, 4);
  EXPECT_EQ(training("Megatron-LM (2021, commit 6985e589)").framework, Framework::kMegatron2021);
  EXPECT_FALSE(training("Megatron-LM (2021, commit 6985e589)").flash_attention);
  EXPECT_EQ(training("Megatron-DeepSpeed 3D (BLOOM)").framework, Framework::kMegatronDeepSpeed);
  EXPECT_EQ(training("torchtitan (Jun 2025)").framework, Framework::kFsdpCompiled);
  EXPECT_EQ(training("InternEvo (Hybrid ZeRO)").framework, Framework::kInternEvo);
  const char* composer = "Composer + PyTorch FSDP1";
  EXPECT_EQ(training(composer).flash_kernel, FlashKernel::kTriton);
  EXPECT_EQ(training(composer, "H100-80GB").flash_kernel, FlashKernel::kFlash2);
}

TEST(RunJob, WhatIsKeptInLowPrecision) {
  const auto training = [](const char* framework, const char* precision) {
    PublishedRun run = Base();
    run.framework = framework;
    run.precision = precision;
    run.gpu = "B200-192GB";  // has them all
    return JobOf(run).job.training;
  };
  EXPECT_TRUE(training("Megatron-LM + TE", "fp8 (hybrid)").bf16_weights);
  EXPECT_FALSE(training("Megatron-LM", "bf16").bf16_weights);
  EXPECT_FALSE(training("Megatron-Core + TE", "fp8").bf16_weights);  // NVIDIA's own examples
  const char* bridge = "Megatron-Bridge / Megatron-Core (NeMo 25.09)";
  EXPECT_FALSE(training(bridge, "mxfp8").bf16_weights);
  EXPECT_TRUE(training(bridge, "mxfp8").fp8_activation_store);
  EXPECT_FALSE(training(bridge, "bf16").fp8_activation_store);
}

TEST(RunJob, RowwiseScalingUnderTensorParallelismIsNoFasterThanBf16) {
  PublishedRun run = Base();
  run.framework = "torchtitan (Jun 2025)";
  run.precision = "fp8 (float8 rowwise)";
  EXPECT_EQ(JobOf(run).job.training.precision, Precision::kFp8);
  run.tp = 2;
  EXPECT_EQ(JobOf(run).job.training.precision, Precision::kBf16);
  run.precision = "fp8 (float8 tensorwise)";
  EXPECT_EQ(JobOf(run).job.training.precision, Precision::kFp8);
}

TEST(RunJob, AShareOfLayersThatIsNotSaidIsTheLeastThatFits) {
  // Llama-3-8B on 16 H100: a layer keeps 1.06 GiB a sequence of 8,192 tokens.
  PublishedRun run = Base();
  run.framework = "PyTorch FSDP1 + torch.compile";
  run.fsdp = true;
  run.recompute = "selective (per-layer AC on a subset)";
  EXPECT_EQ(JobOf(run).job.parallel.recompute.full_layers, 1);
  // Four sequences do not fit without recomputing many; one layer less than that does not either.
  run.mbs = 4;
  const Job job = JobOf(run).job;
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  ParallelConfig plan = job.parallel;
  EXPECT_GT(plan.recompute.full_layers, 8);
  EXPECT_LT(plan.recompute.full_layers, 32);
  EXPECT_TRUE(estimator.Itemise(plan).fits());
  --plan.recompute.full_layers;
  EXPECT_FALSE(estimator.Itemise(plan).fits());
}

// scripts/performance/configs and src/megatron/bridge/perf_recipes of Megatron-Bridge, 0.1 to 0.6.
TEST(RunJob, RecipesOfMegatronBridgeSayWhatTheirRowsDoNot) {
  PublishedRun run = Base();
  run.framework = "Megatron-Bridge / Megatron-Core (NeMo 26.04)";
  run.model.moe = true;
  run.model.experts = 128;
  run.model.topk = 8;
  run.model.moe_ffn = 1536;
  run.ep = 16;  // on two nodes
  EXPECT_EQ(JobOf(run).job.training.moe_dispatcher, MoeDispatcher::kAllToAll);
  run.framework = "Megatron-Bridge / Megatron-Core (NeMo 25.09)";
  EXPECT_EQ(JobOf(run).job.training.moe_dispatcher, MoeDispatcher::kDeepEp);
  run.traits.token_drop = true;
  EXPECT_EQ(JobOf(run).job.training.moe_dispatcher, MoeDispatcher::kAllToAll);

  run.traits = {};
  run.traits.cuda_graph = "partial";
  EXPECT_FALSE(JobOf(run).job.training.expert_overlap);
  run.traits.cuda_graph = "full";
  EXPECT_TRUE(JobOf(run).job.training.expert_overlap);
  run.traits.expert_overlap = false;
  EXPECT_FALSE(JobOf(run).job.training.expert_overlap);

  run.traits = {};
  run.notes = "HybridEP, TE CUDA graphs moe_router+moe_preprocess";
  EXPECT_EQ(JobOf(run).job.training.cuda_graph, CudaGraph::kPartial);
}

TEST(RunJob, WordsForRecomputationThatAreNone) {
  PublishedRun run = Base();
  run.recompute = "selective(mlp)";  // as this program writes it
  EXPECT_EQ(JobOf(run).job.parallel.recompute.modules,
            std::vector<RecomputeModule>{RecomputeModule::kMlp});
  for (const char* words : {"selectiv", "fully", "garbage", "nonesuch"}) {
    run.recompute = words;
    const auto job = RunJobOf(run);
    ASSERT_TRUE(std::holds_alternative<NotModelled>(job)) << words;
    EXPECT_EQ(std::get<NotModelled>(job).what,
              "recompute \"" + std::string(words) + "\" is neither none, full nor selective");
  }
}

TEST(RunJob, TraitsAreFieldsOfTheJob) {
  PublishedRun run = Base();
  run.traits.cuda_graph = "full";
  run.traits.dispatcher = "hybridep";
  run.traits.async_tp = true;
  run.traits.activation_offload = true;
  run.traits.launch_blocking = true;
  run.recompute = "none + activation CPU offload of 20 layers";
  const TrainingConfig t = JobOf(run).job.training;
  EXPECT_EQ(t.cuda_graph, CudaGraph::kFull);
  EXPECT_EQ(t.moe_dispatcher, MoeDispatcher::kDeepEp);
  EXPECT_TRUE(t.tp_comm_overlap);
  EXPECT_TRUE(t.launch_blocking);
  EXPECT_EQ(JobOf(run).job.parallel.recompute.offload_layers, 20);
  run.pp = 4;  // of 8 layers a stage
  EXPECT_EQ(JobOf(run).job.parallel.recompute.offload_layers, 5);
}

TEST(RunJob, Recomputation) {
  const auto recompute = [](const char* text) {
    PublishedRun run = Base();
    run.recompute = text;
    return ShortName(JobOf(run).job.parallel.recompute);
  };
  EXPECT_EQ(recompute("none"), "none");
  EXPECT_EQ(recompute("full"), "full");
  EXPECT_EQ(recompute("selective (every 2nd layer)"), "full(16)");  // of 32
  EXPECT_EQ(recompute("selective: mlp"), "selective(mlp)");
  EXPECT_EQ(recompute("selective: layernorm,moe_act"), "selective(layernorm)");  // no experts
  EXPECT_EQ(recompute("selective (core attention)"), "selective(core_attn)");
}

TEST(RunJob, RaggedBatchesAreWholeMicroBatchesAndARest) {
  PublishedRun run = Base();
  run.mbs = 2;
  run.gbs = 16 * 5;  // 5 sequences a rank: two micro-batches and half of one
  const RunJob job = JobOf(run);
  EXPECT_EQ(job.job.training.global_batch_size, 16 * 4);
  EXPECT_DOUBLE_EQ(job.ragged, 0.5);
  run.gbs = 16;  // one sequence a rank: a micro-batch of one
  EXPECT_EQ(JobOf(run).job.parallel.micro_batch_size, 1);
  EXPECT_DOUBLE_EQ(JobOf(run).ragged, 0);
}

TEST(RunJob, WhatCannotBeModelledSaysWhy) {
  const auto why = [](auto change) {
    PublishedRun run = Base();
    change(run);
    return WhyNot(run);
  };
  EXPECT_EQ(why([](PublishedRun& r) { r.gpu = ""; }), "the GPU is not given");
  EXPECT_EQ(why([](PublishedRun& r) { r.gpu = "MI355X-288GB"; }),
            "no cluster preset with the GPU MI355X-288GB");
  EXPECT_EQ(why([](PublishedRun& r) { r.gpu = "B200-192GB power-limited"; }),
            "a power limit is in force and not stated");
  EXPECT_EQ(why([](PublishedRun& r) { r.num_gpus = 12; }), "num_gpus is no whole number of nodes");
  EXPECT_EQ(why([](PublishedRun& r) { r.model.seq = {}; }), "model.seq is not given");
  EXPECT_EQ(why([](PublishedRun& r) { r.model.mamba = true; }), "Mamba layers are not modelled");
  EXPECT_EQ(why([](PublishedRun& r) { r.precision = "fp32"; }), "precision fp32 is not modelled");
  EXPECT_EQ(why([](PublishedRun& r) { r.notes = "LoRA"; }), "only adapters are trained (LoRA)");
  EXPECT_EQ(why([](PublishedRun& r) { r.mbs = {}; }), "mbs is not given");
  EXPECT_EQ(why([](PublishedRun& r) { r.tp = 3; }), "tp x pp x cp does not divide num_gpus");
  EXPECT_EQ(why([](PublishedRun& r) { r.dp = 3; }), "tp x pp x cp x dp is not num_gpus");
  EXPECT_EQ(why([](PublishedRun& r) { r.model.heads = 0; }).substr(0, 6), "model:");
}

}  // namespace
}  // namespace millwright
