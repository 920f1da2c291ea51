// SPDX-License-Identifier: Apache-2.0
#include "core/training.h"

namespace millwright {
namespace {

constexpr EnumName<StateScheme> kStateSchemeNames[] = {
    {StateScheme::kMegatron, "megatron"},
    {StateScheme::kFsdp, "fsdp"},
};
constexpr EnumName<MoeDispatcher> kMoeDispatcherNames[] = {
    {MoeDispatcher::kAllToAll, "alltoall"},
    {MoeDispatcher::kDeepEp, "deepep"},
};
constexpr EnumName<Framework> kFrameworkNames[] = {
    {Framework::kMegatron, "megatron"},
    {Framework::kMegatron2021, "megatron-2021"},
    {Framework::kMegatronDeepSpeed, "megatron-deepspeed"},
    {Framework::kFsdp, "fsdp"},
    {Framework::kFsdpCompiled, "fsdp-compiled"},
    {Framework::kInternEvo, "internevo"},
};
constexpr EnumName<CudaGraph> kCudaGraphNames[] = {
    {CudaGraph::kNone, "none"},
    {CudaGraph::kPartial, "partial"},
    {CudaGraph::kFull, "full"},
};
constexpr EnumName<FlashKernel> kFlashKernelNames[] = {
    {FlashKernel::kTriton, "triton"},
    {FlashKernel::kFlash2, "flash-2"},
    {FlashKernel::kNewest, "newest"},
};
constexpr EnumName<MfuConvention> kMfuConventionNames[] = {
    {MfuConvention::kCausal, "causal"},
    {MfuConvention::kFull, "full"},
};

}  // namespace

std::span<const EnumName<StateScheme>> StateSchemeNames() { return kStateSchemeNames; }
std::span<const EnumName<MoeDispatcher>> MoeDispatcherNames() { return kMoeDispatcherNames; }
std::span<const EnumName<Framework>> FrameworkNames() { return kFrameworkNames; }
std::span<const EnumName<CudaGraph>> CudaGraphNames() { return kCudaGraphNames; }
std::span<const EnumName<FlashKernel>> FlashKernelNames() { return kFlashKernelNames; }
std::span<const EnumName<MfuConvention>> MfuConventionNames() { return kMfuConventionNames; }

void Fields(ConfigIo& io, TrainingConfig& t) {
  constexpr std::int64_t kMostSequences = std::int64_t{1} << 30;
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
  io.Int("global_batch_size", t.global_batch_size, {1, kMostSequences},
         "sequences in one optimizer step, over all data-parallel ranks");
  io.Int("seq_length", t.seq_length, {1, kMostTokens}, "tokens of one sequence");
  io.Enum("precision", t.precision, PrecisionNames(),
          "what the matrix products of layers and experts run in; head, router and attention core "
          "stay in BF16 below it");

  io.Enum("state", t.state, StateSchemeNames(),
          "where master weights live: megatron keeps a BF16 copy to compute with and an fp32 "
          "master beside the moments; fsdp keeps an fp32 shard that is itself the master, and a "
          "BF16 copy of the gathered layers");
  io.Number("gradient_bytes", t.gradient_bytes, {.min = 2, .max = 4},
            "bytes of each gradient that is kept: 4 for fp32 main gradients, 2 for BF16");
  io.Number("moment_bytes", t.moment_bytes, {.min = 2, .max = 8},
            "bytes of Adam's two moments together, a parameter: 8 in fp32, 4 in BF16, 2 in 8 bits");
  io.Bool(
      "bf16_weights", t.bf16_weights,
      "in low precision BF16 weights are kept beside their quantised copies (Megatron-LM without "
      "--fp8-param-gather)");
  io.Bool("flash_attention", t.flash_attention,
          "a fused attention kernel, which keeps no seq_length x seq_length scores");
  io.Bool(
      "fused_swiglu", t.fused_swiglu,
      "the input of the MLP's second projection (gate x up) is recomputed in the backward pass, "
      "not kept");
  io.Bool("fp8_activation_store", t.fp8_activation_store,
          "the input of the MLP's activation function is kept in FP8 for the backward pass, by one "
          "cast each way (Megatron-LM's --activation-func-fp8-input-store)");
  io.Bool("fused_cross_entropy", t.fused_cross_entropy, "no fp32 copy of the logits is kept");
  io.Number("moe_imbalance", t.moe_imbalance, {.min = 1, .max = 1000},
            "tokens of the fullest expert rank over the mean; 1: balanced");

  io.Enum("framework", t.framework, FrameworkNames(),
          "whose software runs the step: what the host costs and what is fused. megatron: "
          "Megatron-Core with Transformer Engine; megatron-2021 and megatron-deepspeed: those of "
          "2021-22; fsdp: eager PyTorch FSDP; fsdp-compiled: torchtitan; internevo");
  io.Enum("cuda_graph", t.cuda_graph, CudaGraphNames(),
          "what the host launches as a graph: partial is parts of a layer, full a whole iteration, "
          "after which MoE layers do not wait for the host");
  io.Enum("flash_kernel", t.flash_kernel, FlashKernelNames(),
          "with flash_attention, which generation: triton (2022-23), flash-2, or the newest for "
          "the GPU");
  io.Bool("launch_blocking", t.launch_blocking,
          "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel");
  io.Bool("moe_token_drop", t.moe_token_drop,
          "experts take a fixed number of tokens and drop the rest, so that shapes are known to "
          "the host");
  io.Bool("overlap_grad_reduce", t.overlap_grad_reduce,
          "gradients are reduced bucket by bucket under the last backward pass");
  io.Bool("overlap_param_gather", t.overlap_param_gather,
          "the sharded optimizer's parameters are gathered under the next forward pass");
  io.Bool("overlap_p2p", t.overlap_p2p,
          "pipeline sends run under computation; interleaved schedule only, as in Megatron-LM");
  io.Bool("tp_comm_overlap", t.tp_comm_overlap,
          "tensor-parallel collectives are split and run under their matrix products");
  io.Bool("cp_comm_overlap", t.cp_comm_overlap,
          "ring attention passes keys and values on under the attention of the block before");
  io.Bool("expert_overlap", t.expert_overlap,
          "the experts' all-to-all runs under other micro-batches' computation");
  io.Enum(
      "moe_dispatcher", t.moe_dispatcher, MoeDispatcherNames(),
      "how tokens reach their experts: alltoall sends a copy to each of the topk experts, deepep "
      "one to each destination GPU, and across domains one to each destination domain");
  io.Enum("mfu_convention", t.mfu_convention, MfuConventionNames(),
          "FLOPs of the attention core counted in MFU: causal halves them by the mask, full does "
          "not");
}

}  // namespace millwright
