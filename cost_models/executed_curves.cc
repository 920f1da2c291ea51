// SPDX-License-Identifier: Apache-2.0
#include "cost_models/executed_curves.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "cost_models/layer_cost.h"
#include "cost_models/operators.h"

namespace millwright {
namespace {

constexpr double kCountedWidth = 2;  // bytes of an element in cost_models/operators' lists
constexpr double kAdamPasses =
    7;                            // elements read and written of a parameter: runtime/measured_case
constexpr double kSumPasses = 6;  //   and by the sum of its gradients

// Found exactly, where the curves' own look-ups take the nearest.
const BandwidthCurve* Exact(const GpuCurves& curves, const std::string& op,
                            const std::string& stack) {
  const BandwidthCurve* found = FindBandwidth(curves, op, stack);
  return found != nullptr && found->stack == stack ? found : nullptr;
}
const AttentionCurve* Exact(const GpuCurves& curves, const std::string& kernel) {
  const AttentionCurve* found = FindAttention(curves, kernel);
  return found != nullptr && found->kernel == kernel ? found : nullptr;
}

const ExecutedCurves::Kernel* Find(const ExecutedCurves& curves, const std::string& name) {
  const auto found = std::find_if(curves.kernels.begin(), curves.kernels.end(),
                                  [&](const ExecutedCurves::Kernel& k) { return k.name == name; });
  return found == curves.kernels.end() ? nullptr : &*found;
}

// KV heads of a rank that has `heads` query heads, or of `outputs` heads of queries, keys and
// values together: tensor ranks beyond the model's share one.
double KvHeads(double heads, const ModelConfig& model) {
  return std::max(1.0, heads * model.num_query_groups / model.num_attention_heads);
}
double KvHeadsOfProjection(double outputs, const ModelConfig& model) {
  const double groups = model.num_query_groups;
  return std::max(1.0, outputs * groups / (model.num_attention_heads + 2 * groups));
}

// As many heads as have the scores: a window leaves less of each.
AttentionShape ShapeOf(const Operator& op, const ModelConfig& model) {
  const double queries = op.attention_tokens, keys = queries * op.kernels;
  const double heads = op.scores / (0.5 * queries * keys);  // of all sequences
  return {.batch = 1,
          .queries = queries,
          .keys = keys,
          .heads = heads,
          .kv_heads = KvHeads(heads, model),
          .head_size = op.qk_head,
          .causal = true};
}

}  // namespace

std::string KernelOf(Activation activation, bool gated, bool weighted) {
  std::string name;
  switch (activation) {
    case Activation::kSilu:
      name = "silu";
      break;
    case Activation::kGelu:
      name = "gelu";
      break;
    case Activation::kRelu:
      name = "relu";
      break;
    case Activation::kSquaredRelu:
      name = "squared relu";
      break;
  }
  return name + (gated ? " gated" : "") + (weighted ? " weighted" : "");
}

std::string KernelOf(Normalization normalization, bool of_heads) {
  const std::string name = normalization == Normalization::kRmsNorm ? "rmsnorm" : "layernorm";
  return of_heads ? name + " of heads" : name;
}

std::vector<KernelUse> KernelsOf(const Operator& op, const ModelConfig& model) {
  const std::string_view name = op.name;
  const auto outputs = [&] { return Bytes(2 * kCountedWidth * op.groups * op.m * op.n); };
  switch (op.kind) {
    case OperatorKind::kGemm:
    case OperatorKind::kGroupedGemm: {
      if (name == "router") return {{"route", outputs()}};
      const bool grouped = op.kind == OperatorKind::kGroupedGemm;
      // The bias of a product in parts is added later, with the residual.
      const bool biased = (name == "qkv" && model.add_qkv_bias) ||
                          (model.add_mlp_bias && (name == "fc1" || (name == "fc2" && grouped)));
      if (biased) return {{"bias", outputs()}};
      return {};
    }
    case OperatorKind::kMemoryBound:
      break;
    case OperatorKind::kAttention:
    case OperatorKind::kCollective:
    case OperatorKind::kHost:
      return {};
  }
  if (name == "input norm" || name == "pre-mlp norm" || name == "final norm") {
    return {{KernelOf(model.normalization, false), op.bytes}};
  }
  if (name == "qk norm") return {{KernelOf(model.normalization, true), op.bytes}};
  if (name == "activation") {
    const bool of_experts = (op.modules & Mask(RecomputeModule::kMoeAct)) != 0;
    return {{KernelOf(model.activation, model.gated_linear_unit, of_experts), op.bytes}};
  }
  if (name == "attention residual" || name == "mlp residual") {
    const bool biased =
        name == "mlp residual" ? model.add_mlp_bias : model.add_attention_output_bias;
    std::vector<KernelUse> uses{{"residual_add", op.bytes}};
    if (biased) uses.push_back({"bias", 2.0 / 3 * op.bytes});
    return uses;
  }
  if (name == "embedding") {
    if (model.position_embedding != PositionEmbedding::kLearned) return {{"embedding", op.bytes}};
    return {{"embedding", op.bytes}, {"embedding", op.bytes}, {"residual_add", 1.5 * op.bytes}};
  }
  if (name == "cross-entropy") return {{"cross_entropy", op.bytes}};
  if (name == "ring output merge") return {};  // the running softmax is the merge
  return {{std::string(name), op.bytes}};      // "rope", "permute", "unpermute"
}

ExecutedAs ExecutedOn(std::string_view precision, std::string_view backend) {
  const bool on_gpus = backend == "cuda";
  ExecutedAs how{.stack = fmt::format("millwright-{}-{}", on_gpus ? "cuda" : "cpu", precision),
                 .library = fmt::format("millwright-{}-{}", on_gpus ? "nccl" : backend, precision),
                 .dtype = "float64",
                 .width = 8};
  if (precision == "fp32") {
    how.dtype = "float32";
    how.width = 4;
  } else if (precision == "bf16") {
    how.dtype = "bfloat16";
    how.width = 2;
  }
  return how;
}

ExecutedCurves ExecutedCurvesOf(const GpuCurves& curves, const ExecutedAs& how,
                                const ModelConfig& model) {
  const auto product = [&](std::string_view stage) -> const GemmCurve* {
    const GemmCurve* found = FindGemm(curves, how.dtype, "sustained", stage);
    return found != nullptr && found->stage == stage ? found : nullptr;
  };
  const auto collective = [&](std::string_view op) {
    return FindCollective(curves, op, how.library);
  };
  ExecutedCurves c{.forward = product(""),
                   .input_gradient = product("bwd_grad_act"),
                   .weight_gradient = product("bwd_grad_w"),
                   .attention = Exact(curves, how.stack),
                   .attention_backward = Exact(curves, how.stack + ", backward"),
                   .adam = Exact(curves, "adam", how.stack),
                   .gradient_sum = Exact(curves, "gradient_sum", how.stack),
                   .ring = collective("ring"),
                   .all_to_all = collective("alltoall"),
                   .send_recv = collective("sendrecv"),
                   .width = how.width,
                   .model = model};
  for (const BandwidthCurve& curve : curves.bandwidth) {
    if (curve.stack != how.stack) continue;
    const BandwidthCurve* backward = Exact(curves, curve.op + "; backward", how.stack);
    if (backward != nullptr) c.kernels.push_back({curve.op, &curve, backward});
  }
  return c;
}

std::vector<std::string> NotMeasured(const ExecutedCurves& curves,
                                     const std::vector<Operator>& operators,
                                     std::span<const CollectiveKind> kinds) {
  std::vector<std::string> missing;
  const auto need = [&](bool there, const std::string& what) {
    if (!there && std::find(missing.begin(), missing.end(), what) == missing.end()) {
      missing.push_back(what);
    }
  };
  const auto need_kind = [&](CollectiveKind kind) {
    const CollectiveCurve* curve = nullptr;
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllGather:
        curve = curves.ring;
        break;
      case CollectiveKind::kAllToAll:
        curve = curves.all_to_all;
        break;
      case CollectiveKind::kSendRecv:
        curve = curves.send_recv;
        break;
      case CollectiveKind::kBroadcast:
        break;
    }
    need(curve != nullptr, std::string(Name(kind)));
  };
  for (CollectiveKind kind : kinds) need_kind(kind);
  need(curves.adam != nullptr, "adam");
  need(curves.gradient_sum != nullptr, "gradient_sum");
  for (const Operator& op : operators) {
    for (const KernelUse& use : KernelsOf(op, curves.model)) {
      need(Find(curves, use.kernel) != nullptr, use.kernel);
    }
    switch (op.kind) {
      case OperatorKind::kGemm:
      case OperatorKind::kGroupedGemm:
        need(curves.forward != nullptr && curves.input_gradient != nullptr &&
                 curves.weight_gradient != nullptr,
             "matrix products of all three passes");
        break;
      case OperatorKind::kAttention:
        need(curves.attention != nullptr && curves.attention_backward != nullptr,
             "attention of both passes");
        break;
      case OperatorKind::kCollective:
        if (op.forward) need_kind(op.forward_collective);
        if (op.backward) need_kind(op.backward_collective);
        break;
      case OperatorKind::kMemoryBound:
      case OperatorKind::kHost:
        break;
    }
  }
  return missing;
}

OperatorCost ExecutedCost(const Operator& op, const ExecutedCurves& curves, const GpuSpec& gpu) {
  OperatorCost cost{.forward = {}, .backward = {}, .modules = op.modules};
  switch (op.kind) {
    case OperatorKind::kGemm:
    case OperatorKind::kGroupedGemm: {
      const auto add = [&](double times, double outputs) {
        const auto time = [&](const GemmCurve& curve, double m, double n, double k) {
          return times * TimeOf(curve, {.m = m, .n = n, .k = k}, gpu);
        };
        const Seconds weight = time(*curves.weight_gradient, outputs, op.k, op.m);
        cost.forward.compute += time(*curves.forward, op.m, outputs, op.k);
        cost.weight_gradient += weight;
        cost.backward.compute += time(*curves.input_gradient, op.m, op.k, outputs) + weight;
      };
      if (op.name == "qkv") {
        const double head = double(curves.model.kv_channels);
        const double keys = head * KvHeadsOfProjection(op.n / head, curves.model);
        add(1, op.n - 2 * keys);
        add(2, keys);
      } else {
        add(op.groups, op.n);
      }
      break;
    }
    case OperatorKind::kAttention: {
      const AttentionShape shape = ShapeOf(op, curves.model);
      cost.forward.compute = TimeOf(*curves.attention, shape, gpu);
      cost.backward.compute = TimeOf(*curves.attention_backward, shape, gpu);
      break;
    }
    case OperatorKind::kMemoryBound:
    case OperatorKind::kCollective:
    case OperatorKind::kHost:
      break;
  }
  for (const KernelUse& use : KernelsOf(op, curves.model)) {
    const ExecutedCurves::Kernel* kernel = Find(curves, use.kernel);
    MILLWRIGHT_CHECK(kernel != nullptr);
    const Bytes bytes = (curves.width / kCountedWidth) * use.bytes;
    cost.forward.compute += TimeOf(*kernel->forward, bytes, gpu);
    cost.backward.compute += TimeOf(*kernel->backward, bytes, gpu);
  }
  return cost;
}

Seconds ExecutedOptimizerTime(double parameters, double updated, const ExecutedCurves& curves,
                              const GpuSpec& gpu) {
  return TimeOf(*curves.gradient_sum, Bytes(kSumPasses * curves.width * parameters), gpu) +
         TimeOf(*curves.adam, Bytes(kAdamPasses * curves.width * updated), gpu);
}

}  // namespace millwright
