// SPDX-License-Identifier: Apache-2.0
#include "report/export.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "core/model_presets.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/megatron_args.h"
#include "report/export_notes.h"
#include "report/megatron_settings.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

Job MakeJob(const std::string& model, int nodes, const ParallelConfig& plan) {
  Job job;
  job.model = PresetModel(model);
  job.cluster = FindCluster("dgx-h100");
  job.cluster.nodes = nodes;
  job.training = {.global_batch_size = 64, .seq_length = 8192};
  job.parallel = plan;
  job.has_model = job.has_cluster = job.has_training = job.has_parallel = true;
  return job;
}

std::string FileOf(const Exported& exported, const std::string& name) {
  for (const ExportedFile& file : exported.files) {
    if (file.name == name) return file.text;
  }
  ADD_FAILURE() << "no file " << name;
  return {};
}

Exported ExportOnly(const Job& job, ExportFormat format) {
  return Export(job, std::vector<ExportFormat>{format});
}

TEST(PipelineLayout, GroupsEqualStages) {
  // Megatron's own reading of it: stages between '|', t*N for N layers, (x)*N for x N times.
  EXPECT_EQ(PipelineLayout({4}, 0), "Et*4L");
  EXPECT_EQ(PipelineLayout({1, 1}, 0), "Et|tL");
  EXPECT_EQ(PipelineLayout({7, 8, 8, 8, 7}, 0), "Et*7|(t*8|)*3t*7L");
  EXPECT_EQ(PipelineLayout({0, 1, 2, 2, 0}, 1), "E|t|(t*2|)*2mL");
}

TEST(PipelineLayout, IsReadBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> layers(1 + random() % 12);
    for (int& n : layers) n = int(random() % 3);
    const int mtp = int(random() % 3);
    const std::vector<LayoutStage> stages = ParsePipelineLayout(PipelineLayout(layers, mtp));
    ASSERT_EQ(stages.size(), layers.size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const bool last = i + 1 == stages.size();
      EXPECT_EQ(stages[i], (LayoutStage{.layers = layers[i],
                                        .mtp_layers = last ? mtp : 0,
                                        .embedding = i == 0,
                                        .loss = last}));
    }
  }
}

TEST(ExportMegatron, UnevenLayersAreALayout) {
  // 126 layers over 8 x 8 chunks: as if embedding and loss were layers, 128 / 64 = 2 each, so that
  // the first and the last chunk hold one.
  const Job job = MakeJob("llama-3.1-405b", 16,
                          {.tensor = 8,
                           .sequence_parallel = true,
                           .pipeline = 8,
                           .virtual_stages = 8,
                           .data = 2,
                           .schedule = ScheduleKind::kInterleaved});
  const std::string text = FileOf(ExportOnly(job, ExportFormat::kMegatron), "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n  --pipeline-model-parallel-layout 'Et|(t*2|)*62tL'\n"));
  EXPECT_THAT(text, HasSubstr("\n  --tensor-model-parallel-size 8\n  --sequence-parallel\n"));
  EXPECT_THAT(text, HasSubstr("\nNNODES=16\nGPUS_PER_NODE=8\n"));
  EXPECT_THAT(text, Not(HasSubstr("Not said here")));
}

TEST(ExportMegatron, SaysWhatItCannotSay) {
  Job job = MakeJob("llama-3.1-8b", 2, {.pipeline = 4, .data = 4, .schedule = ScheduleKind::kZbH1});
  job.training.fused_swiglu = true;
  job.model.name = "a\nb";  // a name is no way out of a comment
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  ASSERT_EQ(exported.unexpressed.size(), 3U);
  EXPECT_EQ(UnexpressedLine(exported.unexpressed[0]),
            "Megatron-LM cannot be told parallel.schedule: it has 1F1B and interleaved 1F1B only, "
            "not zb-h1");
  EXPECT_EQ(UnexpressedLine(exported.unexpressed[1]),
            "Megatron-LM cannot be told training.fused_swiglu: the gated product is kept");
  EXPECT_THAT(
      UnexpressedLine(exported.unexpressed[2]),
      MatchesRegex("Megatron-LM cannot be told parallel: written is tp1 pp4 dp4 mbs1 zero1: "
                   "[0-9.]+ s a step by the estimate, not [0-9.]+ s"));
  const std::string text = FileOf(exported, "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n# - training.fused_swiglu: the gated product is kept\n"));
  EXPECT_THAT(text, HasSubstr("for a\\u000ab on"));
}

// A file that starts another plan than the one it is of says whether that one fits.
TEST(ExportMegatron, WhatRunsInPlaceOfThePlanMayNotFit) {
  // Gradients are sharded under the pipeline, which Megatron-LM does not do.
  Job job = MakeJob("llama-3.1-70b", 8,
                    {.tensor = 4, .sequence_parallel = true, .pipeline = 4, .data = 4, .zero = 2});
  job.training.global_batch_size = 16;
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  ParallelConfig runs = job.parallel;
  runs.zero = 1;
  job.cluster.gpu.hbm_capacity =
      (estimator.Itemise(job.parallel).peak + estimator.Itemise(runs).peak) / 2;
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  EXPECT_THAT(
      UnexpressedLine(exported.unexpressed.back()),
      HasSubstr("parallel: written is tp4 sp pp4 dp4 mbs1 zero1, which does not fit: stage "));
}

TEST(Export, OfItsFrameworksFormatsThePlanThatItRuns) {
  Job job =
      MakeJob("llama-3.1-8b", 2, {.pipeline = 4, .data = 4, .schedule = ScheduleKind::kDualPipeV});
  const ParallelConfig runs{.tensor = 2, .sequence_parallel = true, .pipeline = 2, .data = 4};
  const std::vector<ExportFormat> formats = {ExportFormat::kMegatron, ExportFormat::kSlurm,
                                             ExportFormat::kTorchtitan};
  const Exported exported = Export(job, formats, Substitute{runs, "it has not that"});
  EXPECT_THAT(FileOf(exported, "megatron_args.sh"),
              AllOf(HasSubstr("# - parallel: it has not that\n"),
                    HasSubstr("  --tensor-model-parallel-size 2\n"),
                    HasSubstr("  --pipeline-model-parallel-size 2\n")));
  EXPECT_THAT(FileOf(exported, "run.sbatch"), HasSubstr("tensor (tp 2)"));
  // Which is not of that framework, and has the schedule.
  EXPECT_THAT(FileOf(exported, "torchtitan.toml"),
              HasSubstr("pipeline_parallel_schedule = \"DualPipeV\"\n"));
  job.training.framework = Framework::kFsdpCompiled;
  const Exported other = Export(job, formats, Substitute{runs, "it has not that"});
  EXPECT_THAT(FileOf(other, "torchtitan.toml"), HasSubstr("pipeline_parallel_degree = 2\n"));
  EXPECT_THAT(FileOf(other, "run.sbatch"), HasSubstr("tensor (tp 1)"));
}

TEST(ExportTorchtitan, ScheduleIsTorchsForm) {
  // ZB-H1, p 2, m 2: rank 0 runs F0 F1, then each micro-batch's B and W apart.
  Job job = MakeJob("llama-3.1-8b", 1, {.pipeline = 2, .data = 4, .schedule = ScheduleKind::kZbH1});
  job.training.global_batch_size = 8;
  const Exported exported = ExportOnly(job, ExportFormat::kTorchtitan);
  std::istringstream csv(FileOf(exported, "pipeline_schedule.csv"));
  const PipelineSchedule schedule =
      BuildSchedule({.kind = ScheduleKind::kZbH1, .pipeline = 2, .micro_batches = 2});
  for (const std::vector<Pass>& order : schedule.orders) {
    std::string line, expected;
    ASSERT_TRUE(std::getline(csv, line));
    for (const Pass& pass : order) {
      const char letter = "FBIW"[static_cast<int>(pass.kind)];
      if (!expected.empty()) expected += ',';
      expected += std::to_string(pass.stage) + letter + std::to_string(pass.micro_batch);
    }
    EXPECT_EQ(line, expected);
  }
  EXPECT_THAT(FileOf(exported, "pipeline_schedule.csv"), testing::StartsWith("0F0,0F1,0I0,"));
  const std::string toml = FileOf(exported, "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\npipeline_parallel_schedule = \"InterleavedZeroBubble\"\n"));
  // torch 2.14's InterleavedZeroBubble of one stage a rank is this very order (its own class asked:
  // torch/distributed/pipelining/schedules.py).
  EXPECT_THAT(toml, HasSubstr("\n# the same order in full: pipeline_parallel_schedule_csv = "
                              "\"pipeline_schedule.csv\"\n"));
  EXPECT_THAT(toml, HasSubstr("\nlocal_batch_size = 2\nglobal_batch_size = 8\nseq_len = 8192\n"));
  EXPECT_THAT(toml, HasSubstr("\nname = \"llama3\"\nflavor = \"8B\"\n"));
}

TEST(ExportTorchtitan, HsdpIsInContextGroups) {
  // 32 ranks: dp 16 x cp 2; shards of 8 ranks are 4 data ranks, and 16 / 4 replicas.
  const Job job =
      MakeJob("llama-3.1-8b", 4, {.context = 2, .data = 16, .zero = 3, .zero_shard = 8});
  const std::string toml = FileOf(ExportOnly(job, ExportFormat::kTorchtitan), "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = "
                              "4\nfsdp_reshard_after_forward = \"always\"\n"));
  EXPECT_THAT(toml, HasSubstr("\ncontext_parallel_degree = 2\n"
                              "context_parallel_rotate_method = \"alltoall\"\n"));
}

TEST(ExportDeepSpeed, BatchesMultiply) {
  // DeepSpeed refuses anything but train = micro x accumulation x data-parallel ranks.
  const Job job = MakeJob("llama-3.1-8b", 2, {.data = 16, .micro_batch_size = 2, .zero = 3});
  const auto json =
      nlohmann::json::parse(FileOf(ExportOnly(job, ExportFormat::kDeepSpeed), "deepspeed.json"));
  EXPECT_EQ(json["train_batch_size"], 64);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["gradient_accumulation_steps"], 2);  // 64 / (16 x 2)
  EXPECT_EQ(json["zero_optimization"]["stage"], 3);
  EXPECT_EQ(json["bf16"]["enabled"], true);
  EXPECT_EQ(json["data_types"]["grad_accum_dtype"], "fp32");
}

TEST(ExportBridge, HasBridgesNames) {
  const Job job = MakeJob("deepseek-v3", 8, {.pipeline = 4, .data = 16, .expert = 16});
  const std::string yaml = FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  for (const char* line :
       {"\nmixed_precision: bf16_mixed\n", "\n  num_moe_experts: 256\n",
        "\n  share_embeddings_and_output_weights: false\n", "\n  activation_func: silu\n",
        "\n  gated_linear_unit: true\n", "\n  global_batch_size: 64\n",
        "\n  add_bias_linear: false\n", "\n  expert_model_parallel_size: 16\n"}) {
    EXPECT_THAT(yaml, HasSubstr(line));
  }
}

// Whether the whole of `field` is said, and how.
std::string Said(const Exported& exported, std::string_view field) {
  for (const Unexpressed& u : exported.unexpressed) {
    if (u.field == field) return u.why;
  }
  return {};
}
std::string MegatronText(const Job& job) {
  return FileOf(ExportOnly(job, ExportFormat::kMegatron), "megatron_args.sh");
}

// 8 copies of the experts for 2 of the rest: one shard group of either there, four of experts here.
TEST(Export, ShardsOfExpertsThatAreOthers) {
  Job job = MakeJob("qwen3-30b-a3b", 2,
                    {.tensor = 8, .sequence_parallel = true, .context = 2, .expert = 2, .zero = 1});
  job.parallel.zero_shard = 2;
  for (const ExportFormat format :
       {ExportFormat::kMegatron, ExportFormat::kBridge, ExportFormat::kTorchtitan}) {
    EXPECT_THAT(Said(ExportOnly(job, format), "parallel.zero_shard"),
                HasSubstr("experts' 8 data-parallel ranks are sharded there into 1 groups"));
  }
  job.parallel.zero_shard = 0;
  EXPECT_EQ(Said(ExportOnly(job, ExportFormat::kMegatron), "parallel.zero_shard"), "");
}

// torchtitan's distributed/tensor_parallel.py raises where it is not compiled.
TEST(ExportTorchtitan, AsynchronousTensorParallelismIsCompiled) {
  Job job = MakeJob("llama-3.1-8b", 1, {.tensor = 2, .sequence_parallel = true, .data = 4});
  job.training.tp_comm_overlap = true;
  Exported exported = ExportOnly(job, ExportFormat::kTorchtitan);
  EXPECT_THAT(FileOf(exported, "torchtitan.toml"), Not(HasSubstr("enable_async")));
  EXPECT_EQ(Said(exported, "training.tp_comm_overlap"), "it wants torch.compile");
  job.training.framework = Framework::kFsdpCompiled;
  exported = ExportOnly(job, ExportFormat::kTorchtitan);
  EXPECT_THAT(FileOf(exported, "torchtitan.toml"),
              HasSubstr("enable_async_tensor_parallel = true\n"));
  EXPECT_EQ(Said(exported, "training.tp_comm_overlap"), "");
}

// DeepSeek's norms of what is projected down; read back they are no norms of heads.
TEST(ExportMegatron, LatentAttentionHasItsNorms) {
  const Job job = MakeJob("deepseek-v3", 32, {.pipeline = 16, .data = 16, .expert = 16});
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  EXPECT_THAT(FileOf(exported, "megatron_args.sh"), HasSubstr("--qk-layernorm"));
}

// What the frameworks' own parsers refuse is not written.  Megatron-LM: megatron/training/
// arguments.py at commits 4393d2b91020 (late 2025) and c99881af1687 (2026), megatron/core/
// transformer/transformer_config.py at 002526d81b81 and parallel_state.py at 00caa53af309 (2026).

TEST(ExportMegatron, FsdpGoesWithNoPipeline) {
  // mcore_fsdp_adapter.py's mesh is "(dp_cp ep tp)" of all ranks (commit 00caa53af309).
  Job job = MakeJob("llama-3.1-8b", 2, {.pipeline = 2, .data = 8, .zero = 3});
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  const std::string text = FileOf(exported, "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n  --use-distributed-optimizer\n"));
  EXPECT_THAT(text, Not(HasSubstr("fsdp")));
  EXPECT_THAT(Said(exported, "parallel.zero"), HasSubstr("written as the distributed optimizer"));
  job.parallel = {.context = 2, .data = 8, .zero = 3};
  EXPECT_THAT(MegatronText(job), HasSubstr("\n  --use-megatron-fsdp\n"));
  // Before Blackwell it asserts 1 with tp or cp, and anything else with FSDP.
  const auto script = [&] { return FileOf(ExportOnly(job, ExportFormat::kSlurm), "run.sbatch"); };
  EXPECT_THAT(script(), Not(HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS")));
  job.parallel = {.context = 2, .pipeline = 2, .data = 4, .zero = 3};
  EXPECT_THAT(script(), HasSubstr("\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"));
}

TEST(ExportMegatron, PipelinesInsideDataWantAsManyDataRanksOfExperts) {
  // "When not using pp-last rank ordering, the data parallel size of the attention and moe layers
  // must be the same": of a dense model too, whose experts would have dp x cp.
  Job job = MakeJob(
      "llama-3.1-8b", 4,
      {.tensor = 2, .context = 2, .pipeline = 2, .data = 4, .order = RankOrder::kPipelineInside});
  const std::string text = MegatronText(job);
  EXPECT_THAT(text, HasSubstr("\n  --use-tp-pp-dp-mapping\n  --expert-tensor-parallel-size 4\n"));
  EXPECT_EQ(ReadMegatronArgs("args", text).job.parallel.expert_tensor, 1);  // there are no experts
  job.parallel.context = 1;
  EXPECT_THAT(MegatronText(job), Not(HasSubstr("--expert-tensor-parallel-size")));
  // Megatron-FSDP of Bridge refuses the order, also where it makes no difference
  // (src/megatron/bridge/training/config.py at commit 003e863ad19f), and it is of `dist`.
  const auto yaml = [&] {
    return FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  };
  EXPECT_THAT(yaml(), HasSubstr("\ndist:\n  use_tp_pp_dp_mapping: true\n"));
  job.parallel = {.tensor = 2, .data = 16, .zero = 3, .order = RankOrder::kPipelineInside};
  EXPECT_THAT(yaml(), Not(HasSubstr("use_tp_pp_dp_mapping")));
}

TEST(ExportMegatron, ExpertsExchangeUnderComputeWhereTheyMay) {
  // transformer_config.py: expert parallelism, virtual stages with a pipeline, no MoE recomputed.
  Job job =
      MakeJob("mixtral-8x7b", 4,
              {.tensor = 2, .sequence_parallel = true, .pipeline = 4, .data = 4, .expert = 8});
  job.training.expert_overlap = true;
  const auto written = [&] {
    const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
    const bool is =
        FileOf(exported, "megatron_args.sh").find("\n  --overlap-moe-expert-parallel-comm\n") !=
        std::string::npos;
    EXPECT_EQ(is, Said(exported, "training.expert_overlap").empty());
    return is;
  };
  EXPECT_FALSE(written());
  job.parallel.virtual_stages = 2;
  job.parallel.schedule = ScheduleKind::kInterleaved;
  EXPECT_TRUE(written());
  // "you can set CUDA_DEVICE_MAX_CONNECTIONS to 1 or 32", and more is what overlaps.
  EXPECT_THAT(FileOf(ExportOnly(job, ExportFormat::kSlurm), "run.sbatch"),
              HasSubstr("\nexport CUDA_DEVICE_MAX_CONNECTIONS=32\n"));
  job.parallel.recompute = {.granularity = RecomputeGranularity::kSelective,
                            .modules = {RecomputeModule::kMoe}};
  EXPECT_FALSE(written());
  job.parallel.recompute = {.granularity = RecomputeGranularity::kFull};
  EXPECT_FALSE(written());
  job.parallel = {.data = 32};
  EXPECT_FALSE(written());
}

TEST(ExportMegatron, DeepEpPadsNoExpertAndWantsRanks) {
  // transformer_config.py, moe_pad_expert_input_to_capacity; token_dispatcher.py wants TP x EP > 1.
  Job job = MakeJob("mixtral-8x7b", 1, {.data = 8, .expert = 8});
  job.training.moe_dispatcher = MoeDispatcher::kDeepEp;
  job.training.moe_token_drop = true;
  std::string text = MegatronText(job);
  EXPECT_THAT(text, HasSubstr("\n  --moe-enable-deepep\n  --moe-expert-capacity-factor 1.0\n"));
  EXPECT_THAT(text, Not(HasSubstr("--moe-pad-expert-input-to-capacity")));
  job.parallel.expert = 1;
  text = MegatronText(job);
  EXPECT_THAT(text, HasSubstr("\n  --moe-token-dispatcher-type alltoall\n"));
  EXPECT_THAT(text, HasSubstr("\n  --moe-pad-expert-input-to-capacity\n"));
}

TEST(ExportMegatron, GraphsRecomputeNothingThatDrawsNumbers) {
  // transformer_config.py, "Graphed recompute module doesn't accept random number"; gpt3 has
  // dropout.
  Job job = MakeJob("gpt3-175b", 4, {.tensor = 8, .sequence_parallel = true, .pipeline = 4});
  job.training.cuda_graph = CudaGraph::kPartial;
  job.training.seq_length = 2048;
  const auto graph = [&] {
    const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
    std::string text = FileOf(exported, "megatron_args.sh");
    EXPECT_EQ(text.find("--cuda-graph-impl ") == std::string::npos,
              !Said(exported, "training.cuda_graph").empty());
    return text;
  };
  EXPECT_THAT(graph(), HasSubstr("--cuda-graph-scope attn\n"));
  job.parallel.recompute = {.granularity = RecomputeGranularity::kSelective,
                            .modules = {RecomputeModule::kCoreAttn}};
  EXPECT_THAT(graph(), Not(HasSubstr("\n  --cuda-graph")));
  job.parallel.recompute.modules = {RecomputeModule::kMlp};
  EXPECT_THAT(graph(), HasSubstr("--cuda-graph-scope attn\n"));
  job.training.cuda_graph = CudaGraph::kFull;
  EXPECT_THAT(graph(), Not(HasSubstr("\n  --cuda-graph")));
  // What the first pipeline rank recomputes is what is written.
  job.training.cuda_graph = CudaGraph::kPartial;
  job.parallel.recompute = {};
  job.parallel.rank_recompute.resize(4);
  job.parallel.rank_recompute[0] = {.granularity = RecomputeGranularity::kFull};
  EXPECT_THAT(graph(), Not(HasSubstr("\n  --cuda-graph")));
}

TEST(ExportMegatron, OneArgumentInPlaceOfAnother) {
  Job job = MakeJob(
      "llama-3.1-8b", 1,
      {.pipeline = 2, .virtual_stages = 2, .data = 4, .schedule = ScheduleKind::kInterleaved});
  // "Transformer Engine cross entropy loss fusion is disabled due to stability issues" (2026).
  job.training.fused_cross_entropy = true;
  // Of TransformerConfig, and of no argument.
  job.training.fp8_activation_store = true;
  // "pipeline-model-parallel size should be greater than 2" with virtual stages.
  job.training.overlap_p2p = false;
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  std::string text = FileOf(exported, "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n  --cross-entropy-fusion-impl native\n"));
  EXPECT_THAT(text, HasSubstr("\n# By release:\n# - --cross-entropy-fusion-impl te is taken by"));
  EXPECT_THAT(text, Not(HasSubstr("--activation-func-fp8-input-store")));
  EXPECT_THAT(text, Not(HasSubstr("--no-overlap-p2p-communication")));
  for (const char* field :
       {"training.fused_cross_entropy", "training.fp8_activation_store", "training.overlap_p2p"}) {
    EXPECT_FALSE(Said(exported, field).empty()) << field;
  }
  // Its own fusion keeps fp32 logits, and is the default.
  EXPECT_FALSE(ReadMegatronArgs("args", text).job.training.fused_cross_entropy);

  // bias_activation_fusion is of GELU and SwiGLU; topk 1 wants the softmax first; sinks are of the
  // fused backend; MXFP8 weights share the gradients' buffer where both overlaps are on.
  job.model.activation = Activation::kSquaredRelu;
  job.model.gated_linear_unit = false;
  job.model.add_mlp_bias = job.model.add_qkv_bias = job.model.add_attention_output_bias = true;
  EXPECT_THAT(MegatronText(job), HasSubstr("\n  --squared-relu\n  --no-bias-gelu-fusion\n"));
  job = MakeJob("mixtral-8x7b", 1, {.data = 8});
  job.model.moe.topk = 1;
  EXPECT_THAT(MegatronText(job), HasSubstr("\n  --moe-router-pre-softmax\n"));
  job = MakeJob("gpt-oss-20b", 1, {.data = 8});
  EXPECT_THAT(MegatronText(job), HasSubstr("\n  --attention-backend fused\n"));
  job = MakeJob("llama-3.1-8b", 1, {.data = 8});
  job.training.precision = Precision::kMxfp8;
  EXPECT_THAT(MegatronText(job),
              HasSubstr("\n  --fp8-param-gather\n  --reuse-grad-buf-for-mxfp8-param-ag\n"));
  job.training.overlap_param_gather = false;
  EXPECT_THAT(MegatronText(job), Not(HasSubstr("--reuse-grad-buf-for-mxfp8-param-ag")));
}

TEST(ExportBridge, SaysInYamlWhatTheCommandLineEvaluates) {
  // A YAML's values are not evaluated, and what there is no key for is skipped with a warning:
  // src/megatron/bridge/training/utils/omegaconf_utils.py at commit 158aa4e28957, models/
  // gpt_provider.py at 0254ddd44183, utils/activation_map.py at 158aa4e28957.
  Job job = MakeJob("deepseek-v2-lite", 2, {.pipeline = 2, .data = 8, .expert = 8});
  job.training.precision = Precision::kFp8;
  job.training.cuda_graph = CudaGraph::kFull;
  job.training.overlap_grad_reduce = job.training.overlap_param_gather = false;
  job.training.fused_cross_entropy = job.training.fp8_activation_store = true;
  const Exported exported = ExportOnly(job, ExportFormat::kBridge);
  const std::string yaml = FileOf(exported, "megatron_bridge.yaml");
  for (const char* line :
       {"\n  moe_layer_freq: [0, 1, 1, ", "\n  activation_func: silu\n",
        "\n  should_pad_vocab: true\n", "\n  cross_entropy_fusion_impl: \"te\"\n",
        "\n  activation_func_fp8_input_store: true\n", "\n  use_te_rng_tracker: true\n",
        "\nrerun_state_machine:\n  check_for_nan_in_loss: false\n",
        "\n  check_for_nan_in_grad: false\n", "\n  overlap_grad_reduce: false\n",
        "\n  overlap_param_gather: false\n"}) {
    EXPECT_THAT(yaml, HasSubstr(line));
  }
  EXPECT_THAT(yaml, Not(HasSubstr("\n  max_position_embeddings")));
  EXPECT_THAT(yaml, Not(HasSubstr("\n  attention_backend")));
  // training/mixed_precision.py at commit d9f7643bb960: first and last layer in BF16.
  EXPECT_THAT(Said(exported, "training.precision"), HasSubstr("first_last_layers_bf16"));
  job.model.activation = Activation::kRelu;
  job.model.gated_linear_unit = false;
  EXPECT_THAT(FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml"),
              HasSubstr("\n  activation_func: relu\n"));
}

TEST(ExportBridge, TypesAreNamedAsPyTorchDoes) {
  // Where a field has a torch.dtype, text is looked up in torch (omegaconf_utils.py): of "bf16" the
  // text would be left.  The command line's fp8 is torch.uint8 (megatron/training/arguments.py).
  Job job = MakeJob("llama-3.1-8b", 1, {.data = 8, .zero = 1});
  const auto yaml = [&] {
    return FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  };
  job.training.moment_bytes = 4;
  EXPECT_THAT(yaml(), HasSubstr("\n  exp_avg_dtype: \"torch.bfloat16\"\n"
                                "  exp_avg_sq_dtype: \"torch.bfloat16\"\n"));
  EXPECT_THAT(MegatronText(job), HasSubstr("--exp-avg-dtype bf16"));
  job.training.moment_bytes = 2;
  EXPECT_THAT(yaml(), HasSubstr("\n  exp_avg_dtype: \"torch.uint8\"\n"));
}

TEST(ExportTorchtitan, KeysAreThoseOfTheLastToml) {
  // A key that there is not is an error ("Invalid field names in ..."): job_config.py of early 2026
  // has [compile], quantize.* and expert_tensor_parallel_degree.
  Job job = MakeJob("mixtral-8x7b", 4,
                    {.tensor = 2,
                     .sequence_parallel = true,
                     .data = 16,
                     .expert = 8,
                     .expert_tensor = 2,
                     .zero = 3});
  job.training.precision = Precision::kFp8;
  job.training.framework = Framework::kFsdpCompiled;
  job.training.moe_dispatcher = MoeDispatcher::kDeepEp;
  Exported exported = ExportOnly(job, ExportFormat::kTorchtitan);
  std::string toml = FileOf(exported, "torchtitan.toml");
  for (const char* lines :
       {"\nconverters = [\"quantize.linear.float8\", \"quantize.grouped_mm.float8\"]\n",
        "\n[quantize.linear.float8]\nrecipe_name = \"tensorwise\"\n",
        "\nfilter_fqns = [\"output\", \"router.gate\"]\n",
        "\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n", "\n[compile]\nenable = true\n",
        "\nexpert_parallel_degree = 8\nexpert_tensor_parallel_degree = 2\n",
        "\nexpert_parallel_comm_backend = \"deepep\"\n"}) {
    EXPECT_THAT(toml, HasSubstr(lines));
  }
  EXPECT_THAT(Said(exported, "parallel.expert_parallel"), "");
  // parallel_dims.py: where tensor ranks do not cut experts, ep is a multiple of cp x tp.
  job.parallel.expert = 1;
  job.parallel.expert_tensor = 2;
  exported = ExportOnly(job, ExportFormat::kTorchtitan);
  EXPECT_FALSE(Said(exported, "parallel.expert_tensor_parallel").empty());
  job.parallel = {.tensor = 4, .sequence_parallel = true, .data = 8, .expert = 2};
  exported = ExportOnly(job, ExportFormat::kTorchtitan);
  EXPECT_THAT(Said(exported, "parallel.expert_parallel"), HasSubstr("a multiple of 4, cp x tp"));
  // DDP with other parallelism is refused, by whatever it comes.
  job = MakeJob("llama-3.1-8b", 1, {.tensor = 2, .data = 4, .zero_shard = 1});
  EXPECT_THAT(FileOf(ExportOnly(job, ExportFormat::kTorchtitan), "torchtitan.toml"),
              HasSubstr("\ndata_parallel_shard_degree = 4\n"));
}

TEST(ExportTorchtitan, DividedBackwardPassesAreNotCompiled) {
  // torch 2.14, _check_torch_compile_compatibility; experts overlap by the schedule's class and not
  // from a CSV (torchtitan/distributed/pipeline_parallel.py at commit 02ef790c7961).
  Job job = MakeJob("mixtral-8x7b", 1,
                    {.pipeline = 2, .data = 4, .expert = 4, .schedule = ScheduleKind::kDualPipeV});
  job.training.framework = Framework::kFsdpCompiled;
  job.training.expert_overlap = true;
  Exported exported = ExportOnly(job, ExportFormat::kTorchtitan);
  std::string toml = FileOf(exported, "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\n[compile]\nenable = false\n"));
  EXPECT_THAT(Said(exported, "training.framework"), HasSubstr("torch.compile with dualpipe-v"));
  EXPECT_THAT(toml, HasSubstr("\n# the same order in full: pipeline_parallel_schedule_csv"));
  EXPECT_THAT(toml, HasSubstr("\npipeline_parallel_expert_parallel_overlap = true\n"));
  EXPECT_EQ(Said(exported, "training.expert_overlap"), "");
  job.parallel.schedule = ScheduleKind::kZbV;  // not torch's own order
  toml = FileOf(ExportOnly(job, ExportFormat::kTorchtitan), "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\npipeline_parallel_schedule_csv = \"pipeline_schedule.csv\"\n"));
}

TEST(ExportDeepSpeed, GradientsAreOfATypeThatItTakes) {
  // deepspeed/runtime/engine.py, _do_optimizer_sanity_check: without ZeRO BF16 weights accumulate
  // in fp32 and fp16 ones in fp16.
  Job job = MakeJob("llama-3.1-8b", 1, {.data = 8, .zero = 0});
  const auto type = [&] {
    const Exported exported = ExportOnly(job, ExportFormat::kDeepSpeed);
    std::string name =
        nlohmann::json::parse(FileOf(exported, "deepspeed.json"))["data_types"]["grad_accum_dtype"];
    EXPECT_EQ(Said(exported, "training.gradient_bytes").empty(),
              (name == "fp32") == (job.training.gradient_bytes == 4));
    return name;
  };
  job.training.gradient_bytes = 2;
  EXPECT_EQ(type(), "fp32");
  job.parallel.zero = 1;
  EXPECT_EQ(type(), "bf16");
  job.training = {.global_batch_size = 64, .seq_length = 8192, .precision = Precision::kFp16};
  EXPECT_EQ(type(), "fp32");
  job.parallel.zero = 0;
  EXPECT_EQ(type(), "fp16");
  // MiCS, ZeRO 3 of neighbouring ranks: runtime/zero/config.py at commit 1b88ac366fc9.
  job.parallel = {.data = 8, .zero = 3, .zero_shard = 4};
  const auto json =
      nlohmann::json::parse(FileOf(ExportOnly(job, ExportFormat::kDeepSpeed), "deepspeed.json"));
  EXPECT_EQ(json["zero_optimization"]["mics_shard_size"], 4);
}

TEST(ExportFsdp, ItsRanksAreAllThereAre) {
  // accelerate 1.14, parallelism_config.py: dp_replicate x dp_shard x tp x cp is the number of
  // processes, and tp or cp go with no replicas of one rank.
  Job job = MakeJob("llama-3.1-8b", 2, {.tensor = 2, .pipeline = 2, .data = 4, .zero = 3});
  std::string yaml = FileOf(ExportOnly(job, ExportFormat::kFsdp), "fsdp.yaml");
  EXPECT_THAT(yaml, HasSubstr("\nnum_processes: 16\n"));
  EXPECT_THAT(yaml, HasSubstr("dp_shard_size: 8\n  parallelism_config_tp_size: 2\n"));
  job.parallel = {.context = 2, .data = 8, .zero = 3, .zero_shard = 2};
  const Exported exported = ExportOnly(job, ExportFormat::kFsdp);
  yaml = FileOf(exported, "fsdp.yaml");
  EXPECT_THAT(yaml, HasSubstr("dp_replicate_size: 1\n  parallelism_config_dp_shard_size: 8\n"));
  EXPECT_THAT(Said(exported, "parallel.zero_shard"), HasSubstr("no replicas of one rank"));
}

TEST(Export, NestedContextParallelism) {
  ParallelConfig plan{.context = 16, .context_kind = ContextParallelKind::kNested};
  plan.context_ulysses = 8;
  const Job job = MakeJob("llama-3.1-8b", 2, plan);
  const Exported megatron = ExportOnly(job, ExportFormat::kMegatron);
  EXPECT_THAT(megatron.unexpressed, testing::IsEmpty());
  EXPECT_THAT(FileOf(megatron, "megatron_args.sh"),
              HasSubstr("\n  --context-parallel-size 16\n  --cp-comm-type 'a2a+p2p'\n"
                        "  --hierarchical-context-parallel-sizes 8 2\n"));
  const std::string yaml = FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  EXPECT_THAT(yaml, HasSubstr("\n  cp_comm_type: \"a2a+p2p\"\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  hierarchical_context_parallel_sizes: [8, 2]\n"));
  for (const auto& [format, why] :
       {std::pair(ExportFormat::kTorchtitan, "keys and values rotate, heads are not exchanged"),
        std::pair(ExportFormat::kFsdp, "keys and values go around, heads are not exchanged")}) {
    const Exported exported = ExportOnly(job, format);
    EXPECT_TRUE(std::any_of(exported.unexpressed.begin(), exported.unexpressed.end(),
                            [&](const Unexpressed& u) {
                              return u.field == "parallel.context_parallel_kind" && u.why == why;
                            }));
  }
}

// Of 8 KV heads a tensor rank of 4 has two, which 8 ranks of an all-to-all would have to copy.
TEST(Export, HeadsThatTransformerEngineDoesNotExchange) {
  const auto notes = [](int tensor, int context, int ulysses) {
    ParallelConfig plan{.tensor = tensor, .context = context};
    plan.context_kind = ulysses > 0 ? ContextParallelKind::kNested : ContextParallelKind::kUlysses;
    plan.context_ulysses = ulysses;
    std::string text;
    for (const Unexpressed& u :
         ExportOnly(MakeJob("llama-3.1-8b", 2, plan), ExportFormat::kMegatron).unexpressed) {
      if (u.field == "parallel.context_parallel_kind") text += u.why + "\n";
    }
    return text;
  };
  EXPECT_EQ(notes(4, 2, 0), "");
  EXPECT_EQ(notes(4, 4, 0),
            "--cp-comm-type a2a: Transformer Engine asserts that KV heads divide by the ranks that "
            "exchange them, and 2 of a tensor rank do not divide by 4\n");
  EXPECT_EQ(notes(1, 16, 8), "");
  EXPECT_EQ(notes(4, 4, 2), "");
  EXPECT_EQ(notes(2, 8, 4), "");
}

TEST(ExportSlurm, RacksAreHostsOfTrays) {
  // Two racks of 72 GPUs are 2 x 18 compute trays of 4.
  Job job = MakeJob("llama-3.1-8b", 1, {.tensor = 8, .sequence_parallel = true, .data = 18});
  job.cluster = FindCluster("gb200-nvl72");
  job.cluster.nodes = 2;
  const Exported exported = ExportOnly(job, ExportFormat::kSlurm);
  const std::string text = FileOf(exported, "run.sbatch");
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --nodes=36\n"));
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --gpus-per-node=4\n"));
  EXPECT_THAT(text, HasSubstr("\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"));
  ASSERT_EQ(exported.unexpressed.size(), 1U);
  EXPECT_EQ(exported.unexpressed[0].field, "cluster");
}

TEST(ExportSlurm, SaysWhichRanksAreNeighbours) {
  Job job = MakeJob("llama-3.1-8b", 4, {.tensor = 4, .pipeline = 2, .data = 4});
  const auto script = [&] { return FileOf(ExportOnly(job, ExportFormat::kSlurm), "run.sbatch"); };
  EXPECT_THAT(script(), HasSubstr("tensor (tp 4), context (cp 1), data (dp 4), pipeline (pp 2);"));
  job.parallel.order = RankOrder::kPipelineInside;
  EXPECT_THAT(script(), HasSubstr("tensor (tp 4), context (cp 1), pipeline (pp 2), data (dp 4);"));
}

TEST(ExportFormats, AreNamed) {
  EXPECT_EQ(ParseExportFormats("slurm,megatron,slurm"),
            (std::vector<ExportFormat>{ExportFormat::kSlurm, ExportFormat::kMegatron}));
  try {
    ParseExportFormats("megatrn,");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "expected some of megatron, bridge, torchtitan, deepspeed, fsdp, slurm, got "
                 "\"megatrn\"; did you mean \"megatron\"?\n"
                 "expected some of megatron, bridge, torchtitan, deepspeed, fsdp, slurm, got \"\"");
  }
}

class ExportedFolder : public testing::Test {
 protected:
  ExportedFolder()
      : folder_(std::filesystem::temp_directory_path() /
                (std::string("export_test_") +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }
  ~ExportedFolder() override { std::filesystem::remove_all(folder_); }
  static std::string Read(const std::filesystem::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::filesystem::path folder_;
};

TEST_F(ExportedFolder, IsMadeAndItsFilesAreReplaced) {
  const std::string folder = folder_ / "a" / "b";
  WriteExported(folder, std::vector<ExportedFile>{{"x", "1"}, {"y", "2"}});
  WriteExported(folder, std::vector<ExportedFile>{{"y", "3"}});
  EXPECT_EQ(Read(folder_ / "a/b/x"), "1");
  EXPECT_EQ(Read(folder_ / "a/b/y"), "3");
}

TEST_F(ExportedFolder, StaysAsItWasWhereAFileCannotBeWritten) {
  // The second name is a folder's, so neither appears.
  std::filesystem::create_directories(folder_ / "y");
  EXPECT_THROW(WriteExported(folder_, std::vector<ExportedFile>{{"x", "1"}, {"y", "2"}}),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
  // Nor does the folder where there was none.
  EXPECT_THROW(WriteExported(folder_ / "new", std::vector<ExportedFile>{{"none/x", "1"}}),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(ExportedFolder, IsNoFile) {
  std::ofstream(folder_) << "a file";
  try {
    CheckFolderWritable(folder_);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), folder_.string() + ": is a file; with --export a folder is expected");
  }
  EXPECT_THROW(CheckFolderWritable(folder_ / "below"), ConfigError);
}

// --- round trip

template <class T>
nlohmann::json JsonOf(T value) {
  return nlohmann::json::parse(WriteConfig([&](ConfigIo& io) { Fields(io, value); }));
}

// The fields in which the two differ, "training.state".
template <class T>
std::vector<std::string> Differences(const std::string& part, const T& a, const T& b) {
  const nlohmann::json left = JsonOf(a), right = JsonOf(b);
  std::vector<std::string> fields;
  for (const auto& [key, value] : left.items()) {
    if (!right.contains(key) || right[key] != value)
      fields.push_back(fmt::format("{}.{}", part, key));
  }
  for (const auto& [key, value] : right.items()) {
    if (!left.contains(key)) fields.push_back(fmt::format("{}.{}", part, key));
  }
  return fields;
}

class RandomJobs {
 public:
  explicit RandomJobs(unsigned seed) : random_(seed) {
    for (const ModelPreset& preset : ModelPresets()) names_.emplace_back(preset.name);
  }
  // Passes CheckPlan.
  Job Next() {
    while (true) {
      Job job = Any();
      if (!CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), job.parallel)) {
        return job;
      }
    }
  }

 private:
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }
  bool Coin() { return random_() % 2 == 0; }
  bool Seldom() { return random_() % 8 == 0; }

  Job Any() {
    Job job = MakeJob(names_[random_() % names_.size()], OneOf({1, 2, 4, 8}), {});
    job.cluster.gpu = FindGpu("B200");  // has every precision
    job.training.seq_length = OneOf({1024, 2048, 4096});
    job.training.global_batch_size = OneOf({64, 128, 256});
    TrainingConfig& t = job.training;
    t.precision = OneOf({Precision::kBf16, Precision::kBf16, Precision::kFp16, Precision::kFp8,
                         Precision::kMxfp8, Precision::kNvfp4});
    t.gradient_bytes = Coin() ? 4 : Seldom() ? 3 : 2;
    t.moment_bytes = Coin() ? 8 : OneOf({2.0, 3.0, 4.0, 5.0, 6.0, 7.0});
    t.flash_attention = !Seldom();
    t.bf16_weights = Seldom();
    t.fused_swiglu = Seldom();
    t.fp8_activation_store = Coin();
    t.fused_cross_entropy = Coin();
    t.cuda_graph = OneOf({CudaGraph::kNone, CudaGraph::kPartial, CudaGraph::kFull});
    t.overlap_grad_reduce = Coin();
    t.overlap_param_gather = Coin();
    t.overlap_p2p = Coin();
    t.tp_comm_overlap = Coin();
    t.cp_comm_overlap = !Seldom();
    t.expert_overlap = Coin();
    t.moe_token_drop = Coin();
    t.moe_dispatcher = Coin() ? MoeDispatcher::kDeepEp : MoeDispatcher::kAllToAll;
    t.moe_imbalance = Seldom() ? 1.5 : 1;
    t.state = Seldom() ? StateScheme::kFsdp : StateScheme::kMegatron;
    t.framework = Seldom() ? Framework::kFsdp : Framework::kMegatron;
    t.launch_blocking = Seldom();
    t.flash_kernel = Seldom() ? FlashKernel::kFlash2 : FlashKernel::kNewest;
    t.mfu_convention = Seldom() ? MfuConvention::kFull : MfuConvention::kCausal;

    ParallelConfig& p = job.parallel;
    p.tensor = OneOf({1, 2, 4, 8});
    p.sequence_parallel = p.tensor > 1 && (job.model.has_moe() || Coin());
    p.context = OneOf({1, 1, 2, 4});
    p.context_kind = Coin() ? ContextParallelKind::kRing : ContextParallelKind::kUlysses;
    if (p.context == 4 && Coin()) {
      p.context_kind = ContextParallelKind::kNested;
      p.context_ulysses = 2;
    }
    p.pipeline = OneOf({1, 2, 4});
    p.virtual_stages = p.pipeline > 1 ? OneOf({1, 1, 2, 3, 5}) : 1;
    p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved
                 : Seldom()
                     ? OneOf({ScheduleKind::kZbH1, ScheduleKind::kDualPipeV, ScheduleKind::kGpipe})
                     : ScheduleKind::k1F1B;
    if (p.pipeline > 1 && Seldom()) {
      const int stages = StagesPerCopy(p), layers = job.model.num_layers;
      p.stage_layers.assign(std::size_t(stages), layers / stages);
      p.stage_layers.front() += layers % stages + 1;
      --p.stage_layers.back();
    }
    p.data = std::max<int>(1, int(job.cluster.gpus()) / (p.tensor * p.context * p.pipeline));
    p.expert = job.model.has_moe() ? OneOf({1, 2, 4, 8}) : 1;
    p.expert_tensor = job.model.has_moe() ? OneOf({1, 1, 2}) : 1;
    p.micro_batch_size = OneOf({1, 2});
    p.zero = OneOf({0, 1, 1, 2, 3});
    p.zero_shard = p.zero > 0 && Coin() ? std::max(1, p.data * p.context / 2) : 0;
    p.order = Coin() ? RankOrder::kPipelineInside : RankOrder::kDataInside;
    Recompute& r = p.recompute;
    r.granularity = OneOf({RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                           RecomputeGranularity::kFull});
    if (r.granularity == RecomputeGranularity::kFull) r.full_layers = OneOf({0, 1, 3});
    if (r.granularity != RecomputeGranularity::kFull && Seldom()) r.offload_layers = 2;
    if (r.granularity == RecomputeGranularity::kSelective) {
      r.modules = {OneOf({RecomputeModule::kCoreAttn, RecomputeModule::kMlp})};
      r.modules.push_back(RecomputeModule::kLayerNorm);
      if (job.model.has_moe()) r.modules.push_back(RecomputeModule::kMoeAct);
      if (job.model.latent) r.modules.push_back(RecomputeModule::kMlaUpProj);
    }
    if (p.pipeline > 1 && Seldom()) {
      p.rank_recompute.resize(std::size_t(p.pipeline));
      p.rank_recompute.front() = std::exchange(r, {});
    }
    return job;
  }

  std::mt19937 random_;
  std::vector<std::string> names_;
};

TEST(ExportMegatron, RoundTripsButForWhatItSays) {
  RandomJobs jobs(20261129);
  std::set<std::string> seen;
  int other_schedules = 0;
  for (int round = 0; round < 600; ++round) {
    const Job job = jobs.Next();
    const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
    const std::string text = FileOf(exported, "megatron_args.sh");
    std::set<std::string> said;
    for (const Unexpressed& u : exported.unexpressed) {
      said.insert(u.field);
      if (u.field.starts_with("model.moe.")) said.insert("model.moe");
      if (u.field == "parallel.rank_recompute") said.insert("parallel.recompute");
      if (u.field == "parallel.schedule") ++other_schedules;
    }
    seen.insert(said.begin(), said.end());

    ImportedRun run;
    try {
      run = ReadMegatronArgs("megatron_args.sh", text);
    } catch (const ConfigError& error) {
      FAIL() << error.what() << "\n" << text;
    }
    EXPECT_EQ(run.gpus, job.cluster.gpus());
    std::vector<std::string> problems;
    Job again = PlacedOn(run, *run.gpus, problems);
    EXPECT_TRUE(problems.empty());
    // The whole of the ranks is one copy, by either spelling.
    if (job.parallel.zero_shard == job.parallel.data * job.parallel.context) {
      again.parallel.zero_shard = job.parallel.zero_shard;
    }
    again.model.name = job.model.name;
    again.model.architecture = job.model.architecture;
    for (const auto& fields : {Differences("training", job.training, again.training),
                               Differences("parallel", job.parallel, again.parallel),
                               Differences("model", job.model, again.model)}) {
      for (const std::string& field : fields) {
        EXPECT_TRUE(said.contains(field)) << field << " of\n" << text << WriteJob(again);
      }
    }
    // Heads that are not exchanged are said both ways.
    EXPECT_EQ(run.warnings.size(), said.count("parallel.context_parallel_kind")) << text;
    if (HasFailure()) return;
  }
  // What can be said of a plan by Megatron's options, the plans above have had said.
  EXPECT_GE(seen.size(), 15U);
  EXPECT_GE(other_schedules, 10);
}

TEST(Export, EveryFormatTakesEveryPlan) {
  RandomJobs jobs(3);
  std::vector<ExportFormat> all;
  for (const auto& n : ExportFormatNames()) all.push_back(n.value);
  for (int round = 0; round < 100; ++round) {
    const Job job = jobs.Next();
    const Exported exported = Export(job, all);
    std::set<std::string> names;
    for (const ExportedFile& file : exported.files) {
      EXPECT_TRUE(names.insert(file.name).second);
      EXPECT_FALSE(file.text.empty());
      EXPECT_EQ(file.text.back(), '\n');
    }
    EXPECT_GE(names.size(), 7U);
  }
}

}  // namespace
}  // namespace millwright
