// SPDX-License-Identifier: Apache-2.0
#include "cost_models/operators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "core/model_presets.h"
#include "core/parameters.h"
#include "cost_models/memory.h"

namespace millwright {
namespace {

const Operator& Find(const std::vector<Operator>& operators, std::string_view name) {
  for (const Operator& op : operators) {
    if (op.name == name) return op;
  }
  ADD_FAILURE() << "no operator " << name;
  return operators.front();
}

TEST(LayerOperators, LlamaLayerKeepsWhatIsCountedByHand) {
  // Llama-3.1-70B: h 8192, 64 heads and 8 groups of 128, f 28672.  A token keeps, in BF16:
  // two norm inputs and two outputs 4h, q, k and v (64 + 16) 128, attention output h, gate, up and
  // their product 3f.
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const LayerShape shape{.seq_length = 1000};
  const auto operators = LayerOperators(model, model.layer(0), shape, {});
  const double a_token = 2 * (4 * 8192 + 80 * 128 + 8192 + 3 * 28672);
  EXPECT_DOUBLE_EQ(SavedBytes(operators, 0, false).value, 1000 * a_token);
  // Statistics: two RMSNorms' 1/std and a log-sum-exp a head, fp32.
  EXPECT_DOUBLE_EQ((SavedBytes(operators) - SavedBytes(operators, 0, false)).value,
                   1000 * 4 * (2 + 64.0));
  // Recomputing modules drops: layernorm both norm outputs; mlp gate, up and product.
  EXPECT_DOUBLE_EQ(SavedBytes(operators, Mask(RecomputeModule::kLayerNorm), false).value,
                   1000 * (a_token - 2 * 2 * 8192));
  EXPECT_DOUBLE_EQ(SavedBytes(operators, Mask(RecomputeModule::kMlp), false).value,
                   1000 * (a_token - 2 * 3 * 28672));
  EXPECT_DOUBLE_EQ(LayerInputBytes(operators).value, 1000 * 2 * 8192.0);
  // A fused SwiGLU does not keep the product.
  EXPECT_DOUBLE_EQ(
      SavedBytes(LayerOperators(model, model.layer(0), shape, {.fused_swiglu = true}), 0, false)
          .value,
      1000 * (a_token - 2 * 28672));
  // Gate and up in FP8: half of them, for a cast of 3 bytes an element more each way.
  const std::vector<Operator> stored =
      LayerOperators(model, model.layer(0), shape, {.fp8_activation_store = true});
  EXPECT_DOUBLE_EQ(SavedBytes(stored, 0, false).value, 1000 * (a_token - 2 * 28672));
  ASSERT_EQ(stored.size(), operators.size() + 1);
  Bytes moved, moved_stored;
  for (const Operator& op : operators) moved += op.bytes;
  for (const Operator& op : stored) moved_stored += op.bytes;
  EXPECT_DOUBLE_EQ((moved_stored - moved).value, 1000 * 3 * 2 * 28672.0);
}

TEST(LayerOperators, TensorAndContextParallelDivideWhatIsKept) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const double whole =
      SavedBytes(LayerOperators(model, model.layer(0), {.seq_length = 8192}, {}), 0, false).value;
  for (int t : {2, 4, 8}) {
    for (int c : {1, 2, 4}) {
      const LayerShape shape{
          .tensor = t, .sequence_parallel = true, .context = c, .seq_length = 8192};
      EXPECT_DOUBLE_EQ(SavedBytes(LayerOperators(model, model.layer(0), shape, {}), 0, false).value,
                       whole / t / c);
    }
  }
}

// arXiv:2401.10241, table 1: between the two passes of a split backward a GPT layer keeps M_W = 32
// s b h bytes, that is of its four products the inputs (h, h, h and 4h) and the gradients of the
// outputs (3h, h, 4h and h), in two bytes each; whatever is recomputed.
TEST(LayerOperators, WeightGradientsNeedThePublishedBytes) {
  ModelConfig gpt{.num_layers = 1,
                  .hidden_size = 64,
                  .num_attention_heads = 4,
                  .ffn_hidden_size = 256,
                  .vocab_size = 128};
  gpt.gated_linear_unit = false;
  FillDefaults(gpt);
  const LayerShape whole{.micro_batch_size = 3, .seq_length = 16};
  EXPECT_EQ(HeldForWeights(LayerOperators(gpt, {}, whole, {})).value, 32.0 * 16 * 3 * 64);
  // Cut by two with sequence parallelism: inputs of qkv and fc1 and all else by two, but for the
  // gathered gradients of the two reduced outputs: 2 h of the 16 elements a token and h stay.
  LayerShape cut = whole;
  cut.tensor = 2;
  cut.sequence_parallel = true;
  EXPECT_EQ(HeldForWeights(LayerOperators(gpt, {}, cut, {})).value, (14 + 2 * 2) * 16.0 * 3 * 64);
  // Experts: the router's input h and 4 bytes of each of 8 logits' gradients, and for each of the
  // two experts of a token its row h, fc1's gradient f, fc2's input f and its output's gradient h.
  gpt.moe = {.num_experts = 8, .topk = 2, .ffn_hidden_size = 32};
  const double dense = HeldForWeights(LayerOperators(gpt, {}, whole, {})).value;
  const double mlp = 2.0 * (64 + 256 + 256 + 64) * 16 * 3;
  EXPECT_EQ(HeldForWeights(LayerOperators(gpt, {.moe = true}, whole, {})).value,
            dense - mlp + (2 * 64 + 4 * 8 + 2 * 2 * (64 + 32 + 32 + 64)) * 16.0 * 3);
  // The head: its input and the gradient of its logits.
  EXPECT_EQ(HeldForWeights(HeadOperators(gpt, whole, {})).value, 2.0 * (64 + 128) * 16 * 3);
}

TEST(LayerOperators, KvHeadsAreReplicatedBeyondTheirNumber) {
  // 8 KV heads on 16 tensor ranks: each rank still has one, so the ranks together hold 16.
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const auto at = [&](int t) {
    return LayerOperators(model, model.layer(0),
                          {.tensor = t, .sequence_parallel = true, .seq_length = 8192}, {});
  };
  EXPECT_EQ(Find(at(8), "qkv").n, (64 / 8 + 2) * 128);
  EXPECT_EQ(Find(at(16), "qkv").n, (64 / 16 + 2) * 128);
  const RankParameters eight =
      ParametersPerRank(LayerWeights(model, model.layer(0)), model, 8, 1, 1);
  const RankParameters sixteen =
      ParametersPerRank(LayerWeights(model, model.layer(0)), model, 16, 1, 1);
  // Replicated: K and V of one head, 2 x 128 x 8192, and two norms; the rest halves.
  const double kept = 2 * 128 * 8192.0 + 2 * 8192;
  EXPECT_DOUBLE_EQ(sixteen.dense - kept, (eight.dense - kept) / 2);
}

TEST(LayerOperators, GemmShapesEqualTheWeights) {
  // On one rank the k x n of a layer's GEMMs are its matrices: norms, biases and routers' biases
  // apart, no parameter is without its product and no product without its parameter.
  for (const char* name : {"llama-3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3",
                           "gpt-oss-20b", "gpt2", "gemma-2-9b", "deepseek-v2-lite"}) {
    const ModelConfig model = PresetModel(name);
    for (const LayerKind& kind : model.distinct_kinds()) {
      double gemm = 0, weights = 0;
      for (const Operator& op : LayerOperators(model, kind, {.seq_length = 128}, {})) {
        if (op.kind == OperatorKind::kGemm || op.kind == OperatorKind::kGroupedGemm) {
          gemm += op.n * op.k * op.groups;
        }
      }
      for (const Weight& w : LayerWeights(model, kind)) {
        const bool norm = w.name.find("norm") != std::string_view::npos;  // gain and bias
        if (w.cols > 1 && w.rows > 1 && !norm) weights += double(w.elements());
      }
      EXPECT_DOUBLE_EQ(gemm, weights) << name << (kind.moe ? " moe" : " dense");
    }
  }
}

TEST(LayerOperators, ModelFlopsAreSixForEveryActiveParameterAndToken) {
  // Beside the attention core, a token's training FLOPs are 6 x the matrices it passes through:
  // all active parameters but the embedding table, norms and biases.
  for (const char* name : {"llama-3.1-8b", "mixtral-8x7b", "qwen3-235b-a22b"}) {
    const ModelConfig model = PresetModel(name);
    TrainingConfig training{.global_batch_size = 1, .seq_length = 64};
    double attention = 0;
    for (const LayerRun& run : model.layers) {
      for (const Operator& op : LayerOperators(model, run.kind, {.seq_length = 64}, training)) {
        if (op.kind == OperatorKind::kAttention) {
          attention += 3 * run.count * op.forward_flops(MfuConvention::kCausal).value;
        }
      }
    }
    const double matrices = FlopsOfStep(model, training, {}).model.value - attention;
    const double active = double(CountParameters(model).active) -
                          double(model.vocab_size) * double(model.hidden_size);
    EXPECT_NEAR(matrices / (6 * 64 * active), 1, 2e-3) << name;
  }
}

TEST(LayerOperators, CausalAttentionIsHalfAndAWindowLess) {
  const ModelConfig model = PresetModel("gpt-oss-20b");
  const auto core = [&](LayerKind kind) {
    return Find(LayerOperators(model, kind, {.seq_length = 1024}, {}), "attention core");
  };
  const Operator full = core({.moe = true, .sliding_window = 0});
  EXPECT_DOUBLE_EQ(full.scores, full.scores_full / 2);
  EXPECT_DOUBLE_EQ(full.scores_full, 64.0 * 1024 * 1024);
  // Window 128: query i sees min(i, 128) keys, 128 - 128^2 / 2048 on average (continuous).
  const Operator windowed = core({.moe = true, .sliding_window = 128});
  EXPECT_DOUBLE_EQ(windowed.scores, 64.0 * 1024 * (128 - 128.0 * 128 / 2048));
  // A window as long as the sequence is no window.
  EXPECT_DOUBLE_EQ(core({.moe = true, .sliding_window = 4096}).scores, full.scores);
}

TEST(LayerOperators, ExpertsSeeEveryRoutedTokenOnce) {
  const ModelConfig model = PresetModel("deepseek-v3");
  const LayerKind moe{.moe = true};
  // 4096 tokens x topk 8 over EP 64: a rank's own 4096 x 8 routed tokens leave, as many arrive,
  // for 4 local experts.
  const auto operators = LayerOperators(model, moe, {.expert = 64, .seq_length = 4096}, {});
  double rows = 0;
  for (const Operator& op : operators) {
    if (op.kind == OperatorKind::kGroupedGemm && op.n == 4096) rows = op.m * op.groups;
  }
  EXPECT_DOUBLE_EQ(rows, 4096 * 8);
  EXPECT_DOUBLE_EQ(Find(operators, "expert dispatch").payload.value, 2.0 * 4096 * 8 * 7168);
  // Expert tensor parallelism 2: each of the pair computes half of the FFN for both ranks' tokens.
  const auto split =
      LayerOperators(model, moe, {.expert = 32, .expert_tensor = 2, .seq_length = 4096}, {});
  EXPECT_DOUBLE_EQ(Find(split, "expert tensor gather").payload.value, 2.0 * 2 * 4096 * 8 * 7168);
  double flops = 0, split_flops = 0;
  for (const Operator& op : operators) {
    if (op.kind == OperatorKind::kGroupedGemm) flops += op.forward_flops({}).value;
  }
  for (const Operator& op : split) {
    if (op.kind == OperatorKind::kGroupedGemm) split_flops += op.forward_flops({}).value;
  }
  EXPECT_DOUBLE_EQ(flops, split_flops);
}

TEST(LayerOperators, RingExchangesKvAndUlyssesQkvo) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const LayerShape ring{.context = 4, .seq_length = 8192};
  const Operator exchange =
      Find(LayerOperators(model, model.layer(0), ring, {}), "ring kv exchange");
  // 4 b (T/c) g e bytes, c - 1 times.
  EXPECT_DOUBLE_EQ(exchange.payload.value, 4.0 * 2048 * 8 * 128);
  EXPECT_EQ(exchange.repeats, 3);
  LayerShape ulysses = ring;
  ulysses.context_kind = ContextParallelKind::kUlysses;
  const auto operators = LayerOperators(model, model.layer(0), ulysses, {});
  EXPECT_DOUBLE_EQ(Find(operators, "ulysses qkv all-to-all").payload.value,
                   2.0 * 2048 * (64 + 2 * 8) * 128);
  EXPECT_EQ(Find(operators, "ulysses output all-to-all").backward_repeats, 2);  // and the output
  EXPECT_DOUBLE_EQ(Find(operators, "ulysses output all-to-all").payload.value,
                   2.0 * 2048 * 64 * 128);
}

// All-to-alls of 4 in a ring of 2, of a sequence of 8,192: a rank has 1,024 tokens, and after the
// exchange 4,096 of 64 / 4 heads.
TEST(LayerOperators, NestedExchangesHeadsInsideAndKvOutside) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  LayerShape shape{.context = 8,
                   .context_kind = ContextParallelKind::kNested,
                   .seq_length = 8192,
                   .context_ulysses = 4};
  auto operators = LayerOperators(model, model.layer(0), shape, {});
  const Operator in = Find(operators, "ulysses qkv all-to-all");
  EXPECT_EQ(in.group, GroupKind::kUlysses);
  EXPECT_DOUBLE_EQ(in.payload.value, 2.0 * 1024 * (64 + 2 * 8) * 128);
  const Operator out = Find(operators, "ulysses output all-to-all");
  EXPECT_EQ(out.group, GroupKind::kUlysses);
  EXPECT_DOUBLE_EQ(out.payload.value, 2.0 * 1024 * 64 * 128);
  // K and V of 4,096 tokens and 8 / 4 groups: as many bytes as a step of the plain ring of 8, once
  // instead of seven times.
  const Operator exchange = Find(operators, "ring kv exchange");
  EXPECT_EQ(exchange.group, GroupKind::kRing);
  EXPECT_DOUBLE_EQ(exchange.payload.value, 2.0 * 2 * 4096 * 2 * 128);
  EXPECT_EQ(exchange.repeats, 1);
  EXPECT_EQ(exchange.backward_repeats, 2);
  const Operator core = Find(operators, "attention core");
  EXPECT_EQ(core.attention_tokens, 4096);
  EXPECT_EQ(core.kernels, 2);
  // One of two outputs is merged into the other: fp32 read and written, BF16 read.
  EXPECT_DOUBLE_EQ(Find(operators, "ring output merge").bytes.value, 10.0 * 1024 * 64 * 128);
  // On 8 tensor ranks a rank has one KV head, which 4 ranks need: kept four times, and passed on.
  shape.tensor = 8;
  operators = LayerOperators(model, model.layer(0), shape, {});
  EXPECT_DOUBLE_EQ(Find(operators, "ring kv exchange").payload.value, 2.0 * 2 * 4096 * 1 * 128);
  EXPECT_DOUBLE_EQ(Find(operators, "ulysses qkv all-to-all").payload.value,
                   2.0 * 1024 * (8 + 2 * 4) * 128);
}

// A ring of one is Ulysses and all-to-alls of one are a ring, operator by operator.
TEST(LayerOperators, NestedOfOneOrOfAllIsTheOther) {
  for (const char* name : {"llama-3.1-70b", "deepseek-v2-lite", "gpt-oss-20b"}) {
    const ModelConfig model = PresetModel(name);
    for (const int tensor : {1, 8}) {
      for (const ContextParallelKind kind :
           {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
        const LayerShape plain{
            .tensor = tensor, .context = 8, .context_kind = kind, .seq_length = 8192};
        LayerShape nested = plain;
        nested.context_kind = ContextParallelKind::kNested;
        nested.context_ulysses = kind == ContextParallelKind::kRing ? 1 : 8;
        const auto a = LayerOperators(model, model.layer(0), plain, {});
        const auto b = LayerOperators(model, model.layer(0), nested, {});
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          SCOPED_TRACE(std::string(a[i].name));
          EXPECT_EQ(a[i].name, b[i].name);
          EXPECT_EQ(a[i].group, b[i].group);
          EXPECT_EQ(a[i].payload, b[i].payload);
          EXPECT_EQ(a[i].repeats, b[i].repeats);
          EXPECT_EQ(a[i].backward_repeats, b[i].backward_repeats);
          EXPECT_EQ(a[i].hidden_under, b[i].hidden_under);
          EXPECT_EQ(a[i].bytes, b[i].bytes);
          EXPECT_EQ(a[i].scores, b[i].scores);
          EXPECT_EQ(a[i].attention_tokens, b[i].attention_tokens);
          EXPECT_EQ(a[i].kernels, b[i].kernels);
        }
        EXPECT_EQ(SavedBytes(a), SavedBytes(b));
        EXPECT_EQ(SavedBytes(a, Mask(RecomputeModule::kCoreAttn)),
                  SavedBytes(b, Mask(RecomputeModule::kCoreAttn)));
      }
    }
  }
}

TEST(LayerOperators, SequenceParallelMovesTheSameBytesAndRegathers) {
  // Four all-reduces of P are four all-gathers and four reduce-scatters; wgrad gathers twice more:
  // 10 units against 8 of (n-1)/n P.
  const ModelConfig model = PresetModel("llama-3.1-8b");
  const auto wire = [&](bool sp) {
    double bytes = 0, hidden = 0;
    for (const Operator& op :
         LayerOperators(model, model.layer(0),
                        {.tensor = 8, .sequence_parallel = sp, .seq_length = 4096}, {})) {
      if (op.kind != OperatorKind::kCollective) continue;
      double sent = 0;
      if (op.forward) sent += RingBytesSentFactor(op.forward_collective, 8);
      if (op.backward) sent += RingBytesSentFactor(op.backward_collective, 8);
      (op.hidden_under >= 0 ? hidden : bytes) += sent * op.payload.value;
    }
    return std::pair(bytes, hidden);
  };
  const auto [plain, none] = wire(false);
  const auto [sharded, regathered] = wire(true);
  EXPECT_DOUBLE_EQ(plain, sharded);
  EXPECT_EQ(none, 0);
  EXPECT_DOUBLE_EQ(regathered, sharded / 4);
}

TEST(HeadOperators, LogitsAreSplitByVocabularyAndSequence) {
  const ModelConfig model = PresetModel("llama-3.1-70b");
  const auto logits = [&](int t, int c, bool fused) {
    const auto operators =
        HeadOperators(model, {.tensor = t, .context = c, .micro_batch_size = 2, .seq_length = 8192},
                      {.fused_cross_entropy = fused});
    return Find(operators, "cross-entropy").saved[0].bytes.value;
  };
  // b T V: 2 x 8192 x 128256, BF16 + fp32 + an fp32 softmax.
  EXPECT_DOUBLE_EQ(logits(1, 1, false), 10.0 * 2 * 8192 * 128256);
  EXPECT_DOUBLE_EQ(logits(2, 4, true), 6.0 * 2 * 2048 * 128256 / 2);
  // 128256 is 1002 x 128: on 8 ranks it is padded to 126 x 1024 = 129024.
  EXPECT_EQ(PaddedVocabulary(128256, 8), 129024);
  EXPECT_DOUBLE_EQ(logits(8, 1, true), 6.0 * 2 * 8192 * 129024 / 8);
  // FlashAttention's loss, of eager FSDP's programs: the BF16 logits alone.
  const auto eager = HeadOperators(model, {.micro_batch_size = 1, .seq_length = 8192},
                                   {.fused_cross_entropy = true, .framework = Framework::kFsdp});
  EXPECT_DOUBLE_EQ(Find(eager, "cross-entropy").saved[0].bytes.value, 2.0 * 8192 * 128256);
}

}  // namespace
}  // namespace millwright
