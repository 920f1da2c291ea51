// SPDX-License-Identifier: Apache-2.0
#include "validate/predict_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/gpu.h"
#include "core/mistakes.h"
#include "cost_models/collectives.h"
#include "cost_models/layer_cost.h"
#include "validate/links.h"

namespace millwright {
namespace {

OperationPrediction Unsupported(std::string why) {
  return {.time = {}, .unsupported = std::move(why)};
}

// The precision that a table's dtype is costed as; quantised weights alone are no training format.
std::optional<Precision> PrecisionOf(const std::string& dtype) {
  if (dtype == "bfloat16" || dtype == "float16" || dtype == "half") return Precision::kBf16;
  if (dtype == "fp8" || dtype == "fp8_block") return Precision::kFp8;
  if (dtype == "nvfp4") return Precision::kNvfp4;
  return std::nullopt;
}

std::optional<CollectiveKind> KindOf(const std::string& op) {
  if (op == "all_reduce") return CollectiveKind::kAllReduce;
  if (op == "all_gather") return CollectiveKind::kAllGather;
  if (op == "reduce_scatter") return CollectiveKind::kReduceScatter;
  if (op == "alltoall") return CollectiveKind::kAllToAll;
  if (op == "sendrecv") return CollectiveKind::kSendRecv;
  if (op == "broadcast") return CollectiveKind::kBroadcast;
  return std::nullopt;
}

struct Predictor {
  const GpuSpec& gpu;
  const Calibration& calibration;
  const std::string& dtype;
  const TrainingConfig training{};

  OperationPrediction Gemm(double m, double n, double k, double groups) const {
    const std::optional<Precision> precision = PrecisionOf(dtype);
    if (!precision) return Unsupported(fmt::format("no GEMM model of {}", dtype));
    if (gpu.peak(*precision).value <= 0) {
      return Unsupported(fmt::format("{} has no {}", gpu.name, dtype));
    }
    return {GemmTime(m, n, k, groups, *precision, gpu, calibration), {}};
  }
  OperatorCost Cost(const Operator& op) const {
    return CostOfOperator(op, LayerPaths{}, {gpu, calibration, training});
  }

  OperationPrediction operator()(const MeasuredGemm& g) const {
    return Gemm(double(g.m), double(g.n), double(g.k), 1);
  }
  OperationPrediction operator()(const MeasuredGroupedGemm& g) const {
    return Gemm(double(g.m_per_group), double(g.n), double(g.k), double(g.groups));
  }
  OperationPrediction operator()(const MeasuredAttention& a) const {
    if (a.phase == AttentionPhase::kDecode) {
      return Unsupported("decoding is no part of training");
    }
    Operator op{.name = "attention", .kind = OperatorKind::kAttention};
    op.scores_full = double(a.batch) * double(a.heads) * double(a.seq_q) * double(a.seq_kv);
    op.scores = a.causal ? op.scores_full / 2 : op.scores_full;
    op.qk_head = op.v_head = double(a.head_dim);
    op.attention_tokens = double(a.seq_q);
    const OperatorCost cost = Cost(op);
    switch (a.phase) {
      case AttentionPhase::kForward:
      case AttentionPhase::kPrefill:
      case AttentionPhase::kDecode:
        return {cost.forward.compute, {}};
      case AttentionPhase::kBackward:
        return {cost.backward.compute, {}};
      case AttentionPhase::kForwardBackward:
        return {cost.forward.compute + cost.backward.compute, {}};
    }
    return {};
  }
  OperationPrediction operator()(const MeasuredCollective& c) const {
    const std::optional<CollectiveKind> kind = KindOf(c.op);
    if (!kind) return Unsupported("DeepEP's kernels are costed as part of a layer only");
    const std::optional<PathProfile> path = PathOf(c, gpu);
    if (!path) return Unsupported(fmt::format("no cluster preset has {}", gpu.name));
    return {CostOfCollective(*kind, c.bytes, *path, calibration.collective).time, {}};
  }
  OperationPrediction operator()(const MeasuredMoe&) const {
    return Unsupported("fused MoE kernels of inference are not modelled");
  }
  OperationPrediction operator()(const MeasuredMemoryBound& m) const {
    const Operator op{.name = "memory", .kind = OperatorKind::kMemoryBound, .bytes = m.bytes};
    return {Cost(op).forward.compute, {}};
  }
};

}  // namespace

OperationPrediction PredictOperation(const Measurement& row) {
  const GpuSpec* gpu = GpuNamed(row.gpu);
  if (gpu == nullptr) {
    return Unsupported(fmt::format("no datasheet of {}", Printable(row.gpu, kMostNameShown)));
  }
  return std::visit(Predictor{*gpu, CalibrationFor(*gpu), row.dtype}, row.operation);
}

}  // namespace millwright
