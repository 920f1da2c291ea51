// SPDX-License-Identifier: Apache-2.0
#include "planner/megatron_args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/parameters.h"
#include "planner/megatron_options.h"

namespace millwright {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A GPT of 12 layers, and what is to be looked at.
std::string Args(const std::string& more) {
  return "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
         "--max-position-embeddings 1024 --micro-batch-size 2 --vocab-size 50257 --bf16 " +
         more;
}
ImportedRun Read(const std::string& more) { return ReadMegatronArgs("args.txt", Args(more)); }
std::string MistakesOf(const std::string& text) {
  try {
    ReadMegatronArgs("args.txt", text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(MegatronOptions, AreSortedAndOnce) {
  const auto options = MegatronOptions();
  EXPECT_GT(options.size(), 400U);
  for (std::size_t i = 1; i < options.size(); ++i) {
    EXPECT_LT(options[i - 1].name, options[i].name);
  }
  EXPECT_EQ(FindMegatronOption("--num-layers")->values, OptionValues::kOne);
  EXPECT_EQ(FindMegatronOption("--bf16")->values, OptionValues::kNone);
  EXPECT_EQ(FindMegatronOption("--data-path")->values, OptionValues::kMany);
  EXPECT_EQ(FindMegatronOption("--num-layer"), nullptr);
}

TEST(MegatronArgs, DefaultsAreMegatrons) {
  const ImportedRun run = Read("");
  const ModelConfig& m = run.job.model;
  EXPECT_EQ(m.name, "args");
  EXPECT_EQ(m.ffn_hidden_size, 3072);  // 4 x 768
  EXPECT_EQ(m.kv_channels, 64);
  EXPECT_EQ(m.num_query_groups, 12);
  EXPECT_EQ(m.vocab_size, 50304);  // 50,257 padded to a multiple of 128
  EXPECT_EQ(m.normalization, Normalization::kLayerNorm);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kLearned);
  EXPECT_EQ(m.activation, Activation::kGelu);
  EXPECT_FALSE(m.gated_linear_unit);
  EXPECT_TRUE(m.tied_embeddings && m.add_mlp_bias && m.add_qkv_bias && m.attention_dropout);
  const TrainingConfig& t = run.job.training;
  EXPECT_EQ(t.precision, Precision::kBf16);
  EXPECT_EQ(t.gradient_bytes, 4);  // BF16 weights, fp32 main gradients
  EXPECT_FALSE(t.overlap_grad_reduce);
  EXPECT_EQ(run.job.parallel.zero, 0);
  EXPECT_EQ(run.gpus, std::nullopt);
  EXPECT_THAT(run.warnings, IsEmpty());
  // GPT-2 small as published: 124 million parameters (with 1,024 positions).
  EXPECT_NEAR(double(CountParameters(m).total), 124e6, 1e6);
}

TEST(MegatronArgs, ALaunchScript) {
  const ImportedRun run = ReadMegatronArgs("tests/data/megatron/gpt_175b.sh",
                                           ReadTextFile("tests/data/megatron/gpt_175b.sh"));
  EXPECT_EQ(run.gpus, 128);  // 16 nodes of 8
  EXPECT_EQ(run.job.model.num_layers, 96);
  EXPECT_EQ(run.job.model.vocab_size, 51200);           // 50,257 to a multiple of 128 x tp 8
  EXPECT_EQ(run.job.training.global_batch_size, 1536);  // 128 x 12
  EXPECT_EQ(run.job.parallel.tensor, 8);
  EXPECT_EQ(run.job.parallel.pipeline, 16);
  EXPECT_TRUE(run.job.parallel.sequence_parallel);
  EXPECT_THAT(run.warnings, ElementsAre("line 41: what stands under a condition is read as if it "
                                        "were always run"));
  EXPECT_EQ(run.ignored.size(), 10U);  // train-iters to log-interval
  // arXiv:2005.14165, table 2.1.
  EXPECT_NEAR(double(CountParameters(run.job.model).total), 175e9, 1e9);
}

TEST(MegatronArgs, AStringOfOptionsUnderSlurm) {
  const ImportedRun run = ReadMegatronArgs("tests/data/megatron/mixtral.sh",
                                           ReadTextFile("tests/data/megatron/mixtral.sh"));
  EXPECT_EQ(run.gpus, 64);
  const ModelConfig& m = run.job.model;
  EXPECT_EQ(m.moe.num_experts, 8);
  EXPECT_EQ(m.moe.ffn_hidden_size, 14336);
  EXPECT_EQ(m.vocab_size, 32000);  // a multiple of 128 x tp 2
  // The published count (arXiv:2401.04088): 46.7 billion.
  EXPECT_NEAR(double(CountParameters(m).total), 46.7e9, 0.1e9);
  const ParallelConfig& p = run.job.parallel;
  EXPECT_EQ(p.virtual_stages, 2);  // 32 layers, pp 4, 4 a chunk
  EXPECT_EQ(p.schedule, ScheduleKind::kInterleaved);
  EXPECT_EQ(p.expert, 8);
  EXPECT_EQ(p.expert_tensor, 1);
  EXPECT_EQ(p.zero, 1);
  EXPECT_THAT(p.recompute.modules,
              ElementsAre(RecomputeModule::kCoreAttn, RecomputeModule::kLayerNorm));
  EXPECT_THAT(
      run.warnings,
      ElementsAre("left out: line 21: --seqence-length: is no option of Megatron-LM; did you "
                  "mean \"--seq-length\"?"));
  std::vector<std::string> problems;
  const Job job = PlacedOn(run, 64, problems);
  EXPECT_EQ(job.parallel.data, 8);  // 64 / (2 x 4)
  EXPECT_THAT(problems, IsEmpty());
}

TEST(MegatronArgs, EveryMistakeAtOnce) {
  EXPECT_EQ(MistakesOf("--num-layers twelve \\\n --hiden-size 8 --bf16 \\\n --fp16 --swiglu "
                       "--squared-relu\n--micro-batch-size 0 --max-position-embeddings 8\n"
                       "--num-attention-heads $N --seq-length 8 --vocab-size 100 --normalization"),
            "args.txt: line 5: --normalization: expected a value\n"
            "args.txt: line 4: --micro-batch-size: expected an integer from 1 to 1048576, got "
            "\"0\"\n"
            "args.txt: line 1: --num-layers: expected an integer from 1 to 10000, got \"twelve\"\n"
            "args.txt: --hidden-size: missing\n"
            "args.txt: line 5: --num-attention-heads: its value is known only when the script "
            "runs; write it out\n"
            "args.txt: line 3: --squared-relu: contradicts --swiglu in line 3\n"
            "args.txt: line 3: --fp16: contradicts --bf16 in line 2\n"
            "args.txt: line 2: --hiden-size: is no option of Megatron-LM; did you mean "
            "\"--hidden-size\"?");
}

TEST(MegatronArgs, Contradictions) {
  EXPECT_EQ(MistakesOf(Args("--pipeline-model-parallel-size 5")),
            "args.txt: line 1: --pipeline-model-parallel-size: 12 layers cannot be divided evenly "
            "among 5 stages; Megatron-LM wants a --pipeline-model-parallel-layout");
  EXPECT_EQ(MistakesOf(Args("--overlap-param-gather")),
            "args.txt: line 1: --overlap-param-gather: needs --overlap-grad-reduce\n"
            "args.txt: line 1: --overlap-param-gather: needs --use-distributed-optimizer");
  EXPECT_EQ(MistakesOf(Args("--recompute-granularity selective --recompute-modules mlp layernrm")),
            "args.txt: line 1: --recompute-modules: expected core_attn, mlp, moe, moe_act, "
            "layernorm, mla_up_proj or shared_experts, got \"layernrm\"; did you mean "
            "\"layernorm\"?");
  EXPECT_EQ(MistakesOf(Args("--num-query-groups 5 --group-query-attention")),
            "args.txt: model: num_attention_heads: 12 attention heads cannot be shared out evenly "
            "among 5 query groups (KV heads)");
  EXPECT_EQ(MistakesOf("echo hello"),
            "args.txt: has no option of Megatron-LM: expected a launch script, a command line or a "
            "list of arguments such as --num-layers 32");
}

TEST(MegatronArgs, OffloadedLayersGoWithNeitherPipelinesNorRecomputation) {
  EXPECT_EQ(Read("--cpu-offloading-num-layers 11").job.parallel.recompute,
            (Recompute{.offload_layers = 11}));
  EXPECT_EQ(Read("--cpu-offloading-num-layers 0").job.parallel.recompute, Recompute{});
  EXPECT_EQ(MistakesOf(Args("--cpu-offloading-num-layers 12 --recompute-granularity selective "
                            "--pipeline-model-parallel-size 2")),
            "args.txt: line 1: --cpu-offloading-num-layers: offloads fewer than the 12 layers\n"
            "args.txt: line 1: --cpu-offloading-num-layers: does not go with pipeline parallelism\n"
            "args.txt: line 1: --cpu-offloading-num-layers: does not go with recomputation");
}

TEST(MegatronArgs, Layouts) {
  const std::string two = "--pipeline-model-parallel-size 2 ";
  // 5 and 7 layers are not Millwright's split of 12.
  const ImportedRun uneven = Read(two + "--pipeline-model-parallel-layout 'Et*5|t*7L'");
  EXPECT_EQ(uneven.job.parallel.virtual_stages, 1);
  EXPECT_THAT(uneven.warnings, IsEmpty());
  EXPECT_THAT(uneven.job.parallel.stage_layers, ElementsAre(5, 7));
  const ImportedRun virtual_stages =
      Read(two + "--pipeline-model-parallel-layout '(E)ttt|(ttt|)*2,t*3L'");
  EXPECT_EQ(virtual_stages.job.parallel.virtual_stages, 2);
  EXPECT_THAT(virtual_stages.warnings, IsEmpty());
  EXPECT_EQ(MistakesOf(Args(two + "--pipeline-model-parallel-layout Et*5|t*6L")),
            "args.txt: line 1: --pipeline-model-parallel-layout: begins with the embedding E and "
            "ends with the loss L");  // unquoted, the shell takes the rest for a pipe
  EXPECT_EQ(MistakesOf(Args(two + "--pipeline-model-parallel-layout 'Et*5|t*6L'")),
            "args.txt: line 1: --pipeline-model-parallel-layout: has 11 layers, and the model 12");
  // As slots, embedding and loss leave 14 / 2 = 7 for each rank, and 6 of them are layers.
  EXPECT_THAT(Read(two + "--account-for-embedding-in-pipeline-split "
                         "--account-for-loss-in-pipeline-split")
                  .warnings,
              IsEmpty());
  EXPECT_THAT(Read(two + "--decoder-first-pipeline-num-layers 4").job.parallel.stage_layers,
              ElementsAre(4, 8));
}

TEST(MegatronArgs, Sharding) {
  const auto zero = [](const std::string& more) { return Read(more).job.parallel.zero; };
  EXPECT_EQ(zero("--use-distributed-optimizer"), 1);
  EXPECT_EQ(zero("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"), 2);
  EXPECT_EQ(zero("--use-megatron-fsdp --data-parallel-sharding-strategy=optim_grads_params"), 3);
  EXPECT_EQ(zero("--use-torch-fsdp2"), 3);
  EXPECT_EQ(zero("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward"), 2);
  const ImportedRun run =
      Read("--use-distributed-optimizer --num-distributed-optimizer-instances 4");
  std::vector<std::string> problems;
  const Job job = PlacedOn(run, 32, problems);
  EXPECT_EQ(job.parallel.zero_shard, 8);          // 32 ranks in 4 copies
  EXPECT_EQ(job.training.global_batch_size, 64);  // none given: 2 on each of 32
  PlacedOn(run, 6, problems);
  EXPECT_THAT(problems, ElementsAre("6 data-parallel ranks cannot hold 4 copies of the optimizer"));
}

TEST(MegatronArgs, Bf16WeightsStayUnlessTheyAreGatheredQuantised) {
  const auto keeps = [](const std::string& more) { return Read(more).job.training.bf16_weights; };
  EXPECT_FALSE(keeps(""));  // nothing is quantised
  EXPECT_TRUE(keeps("--fp8-format hybrid"));
  EXPECT_FALSE(keeps("--fp8-format hybrid --fp8-param-gather"));
  EXPECT_TRUE(keeps("--fp4-format e2m1"));
  EXPECT_FALSE(keeps("--fp4-format e2m1 --fp4-param-gather"));
}

TEST(MegatronArgs, GraphsByTheirNamesOfBothYears) {
  const auto graph = [](const std::string& more) { return Read(more).job.training.cuda_graph; };
  const std::string local = "--cuda-graph-impl local ";
  EXPECT_EQ(graph(""), CudaGraph::kNone);
  EXPECT_EQ(graph(local + "--cuda-graph-scope full_iteration"), CudaGraph::kFull);
  EXPECT_EQ(graph(local + "--cuda-graph-scope attn"), CudaGraph::kPartial);
  // Since 2026, arguments.py at commit c99881af1687.
  EXPECT_EQ(graph("--cuda-graph-impl full_iteration"), CudaGraph::kFull);
  EXPECT_EQ(graph("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router"),
            CudaGraph::kPartial);
}

TEST(MegatronArgs, OnlyTransformerEnginesCrossEntropyKeepsNoFp32Logits) {
  // core/fusions/fused_cross_entropy.py is of fp32, and the default.
  const auto fused = [](const std::string& more) {
    return Read(more).job.training.fused_cross_entropy;
  };
  const std::string fusion = "--cross-entropy-loss-fusion ";
  EXPECT_FALSE(fused(fusion));
  EXPECT_FALSE(fused(fusion + "--cross-entropy-fusion-impl native"));
  EXPECT_TRUE(fused(fusion + "--cross-entropy-fusion-impl te"));
  EXPECT_FALSE(fused("--cross-entropy-fusion-impl te"));
}

TEST(MegatronArgs, ADenseModelHasNoExpertsToDivide) {
  const std::string tensor = "--tensor-model-parallel-size 4 ";
  const auto etp = [&](const std::string& more) {
    return Read(tensor + more).job.parallel.expert_tensor;
  };
  EXPECT_EQ(etp("--expert-tensor-parallel-size 8"), 1);
  EXPECT_EQ(etp("--num-experts 4 --moe-ffn-hidden-size 64"), 4);
  EXPECT_EQ(etp("--num-experts 4 --moe-ffn-hidden-size 64 --expert-tensor-parallel-size 2"), 2);
}

TEST(MegatronArgs, PatternsOfLayers) {
  const auto layers = [](const std::string& more) { return Read(more).job.model.layers; };
  const std::string moe = "--num-experts 4 --moe-ffn-hidden-size 64 ";
  const LayerRun dense3{3, {}}, moe9{9, {.moe = true}};
  EXPECT_THAT(layers(moe + "--moe-layer-freq ([0]*3+[1]*9)"), ElementsAre(dense3, moe9));
  EXPECT_THAT(layers(moe + "--moe-layer-freq '[0,0,0]+[1]*3*3'"), ElementsAre(dense3, moe9));
  // Every sixth layer from the first on: 0 and 6 of 12.
  EXPECT_THAT(layers(moe + "--moe-layer-freq 6"),
              ElementsAre(LayerRun{1, {.moe = true}}, LayerRun{5, {}}, LayerRun{1, {.moe = true}},
                          LayerRun{5, {}}));
  // A query sees itself and 127 keys before it; every sixth layer sees all.
  EXPECT_THAT(layers("--window-size 127,0 --window-attn-skip-freq 6"),
              ElementsAre(LayerRun{5, {.sliding_window = 128}}, LayerRun{1, {}},
                          LayerRun{5, {.sliding_window = 128}}, LayerRun{1, {}}));
  EXPECT_EQ(MistakesOf(Args(moe + "--moe-layer-freq '([0]*3+[1]*8)'")),
            "args.txt: line 1: --moe-layer-freq: is of 11 layers, and the model has 12");
  EXPECT_EQ(MistakesOf(Args(moe + "--moe-layer-freq '([0]*3+'")),
            "args.txt: line 1: --moe-layer-freq: expected a number or a list such as "
            "([0]*3+[1]*58), got \"([0]*3+\"");
}

TEST(MegatronArgs, HierarchicalContextParallelism) {
  const std::string cp = "--context-parallel-size 8 --cp-comm-type ";
  const auto read = [&](const std::string& more) { return Read(cp + more).job.parallel; };
  ParallelConfig p = read("a2a+p2p --hierarchical-context-parallel-sizes 2 4");
  EXPECT_EQ(p.context_kind, ContextParallelKind::kNested);
  EXPECT_EQ(p.ulysses_ranks(), 2);
  EXPECT_EQ(p.ring_ranks(), 4);
  // Of one alone the other is left.
  p = read("a2a+p2p --hierarchical-context-parallel-sizes 1 8");
  EXPECT_EQ(p.context_kind, ContextParallelKind::kRing);
  p = read("a2a+p2p --hierarchical-context-parallel-sizes 8 1");
  EXPECT_EQ(p.context_kind, ContextParallelKind::kUlysses);
  EXPECT_EQ(p.context_ulysses, 0);
  EXPECT_THAT(Read(cp + "a2a+p2p --hierarchical-context-parallel-sizes 2 4").warnings, IsEmpty());
  EXPECT_THAT(Read(cp + "p2p --hierarchical-context-parallel-sizes 2 4").warnings,
              ElementsAre("line 1: --hierarchical-context-parallel-sizes: has no effect without "
                          "--cp-comm-type a2a+p2p"));
  EXPECT_THAT(Read("--context-parallel-size 4 --cp-comm-type a2a --group-query-attention "
                   "--num-query-groups 4")
                  .warnings,
              IsEmpty());
  EXPECT_THAT(
      Read("--context-parallel-size 4 --cp-comm-type a2a --group-query-attention "
           "--num-query-groups 2")
          .warnings,
      ElementsAre("line 1: --cp-comm-type: is costed, but would not run: Transformer Engine "
                  "asserts that KV heads divide by the ranks that exchange them, and 2 of a "
                  "tensor rank do not divide by 4"));
  EXPECT_EQ(MistakesOf(Args(cp + "a2a+p2p")),
            "args.txt: line 1: --cp-comm-type: a2a+p2p needs "
            "--hierarchical-context-parallel-sizes");
  for (const char* sizes : {"2 2", "8", "2 2 2", "2 x", "-2 -4", "4294967296 4294967296"}) {
    EXPECT_EQ(MistakesOf(Args(cp + "a2a+p2p --hierarchical-context-parallel-sizes " + sizes)),
              "args.txt: line 1: --hierarchical-context-parallel-sizes: expected two sizes whose "
              "product is --context-parallel-size 8, got \"" +
                  std::string(sizes) + "\"");
  }
}

}  // namespace
}  // namespace millwright
