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
#include "validate/shapes.h"
#include "validate/source_class.h"

namespace millwright {
namespace {

OperationPrediction Unsupported(std::string why) {
  return {.time = {}, .unsupported = std::move(why)};
}

// The precision that a table's dtype is costed as where it has no curve; quantised weights alone
// are no training format.
std::optional<Precision> PrecisionOf(const std::string& dtype) {
  if (dtype == "bfloat16") return Precision::kBf16;
  if (dtype == "fp8" || dtype == "fp8_block") return Precision::kFp8;
  if (dtype == "nvfp4") return Precision::kNvfp4;
  return std::nullopt;
}

class Predictor {
 public:
  Predictor(const Measurement& row, const GpuSpec& gpu, const GpuCurves* curves)
      : row_(row), gpu_(gpu), calibration_(CalibrationFor(gpu)), curves_(curves) {}

  OperationPrediction operator()(const MeasuredGemm&) const { return Gemm(); }
  OperationPrediction operator()(const MeasuredGroupedGemm&) const { return Gemm(); }

  OperationPrediction operator()(const MeasuredAttention& a) const {
    const std::optional<AttentionShape> shape = AttentionShapeOf(row_.operation);
    if (!shape) return Unsupported("decoding is no part of training");
    const std::string kernel = KernelOf(row_);
    const AttentionCurve* curve = curves_ == nullptr ? nullptr : FindAttention(*curves_, kernel);
    const bool forward = a.phase == AttentionPhase::kForward || a.phase == AttentionPhase::kPrefill;
    if (curve != nullptr && (forward || curve->kernel == kernel)) {
      return {TimeOf(*curve, *shape, gpu_), {}};
    }
    const Seconds one_way = curve != nullptr ? TimeOf(*curve, *shape, gpu_) : FromLayer(a);
    const double backward = calibration_.attention.backward_factor;
    switch (a.phase) {
      case AttentionPhase::kForward:
      case AttentionPhase::kPrefill:
      case AttentionPhase::kDecode:
        return {one_way, {}};
      case AttentionPhase::kBackward:
        return {backward * one_way, {}};
      case AttentionPhase::kForwardBackward:
        return {(1 + backward) * one_way, {}};
    }
    return {};
  }

  OperationPrediction operator()(const MeasuredCollective& c) const {
    const std::optional<CollectiveShape> shape = CollectiveShapeOf(row_, gpu_);
    if (KindOf(c.op) == nullptr) {
      return Unsupported("DeepEP's kernels are costed as part of a layer only");
    }
    std::optional<PathProfile> path = PathOf(c, gpu_);
    if (!shape || !path) return Unsupported(fmt::format("no cluster preset has {}", gpu_.name));
    if (curves_ != nullptr) {
      const CollectiveCurve* curve =
          FindCollective(*curves_, CurveOp(shape->kind, c.nodes > 1), LibraryOf(c), FabricOf(c));
      const BytesPerSecond measured = curves_->rates.link;
      const BytesPerSecond link = measured.value > 0 ? measured : NarrowestLink(*path);
      if (curve != nullptr) return {TimeOf(*curve, *shape, link), {}};
    }
    path->in_switch_reduction = shape->in_switch && !shape->integers;
    return {CostOfCollective(shape->kind, c.bytes, *path, calibration_.collective).time, {}};
  }

  OperationPrediction operator()(const MeasuredMoe&) const {
    return Unsupported("fused MoE kernels of inference are not modelled");
  }

  OperationPrediction operator()(const MeasuredMemoryBound& m) const {
    if (curves_ != nullptr) {
      const BandwidthCurve* curve = FindBandwidth(*curves_, m.op, StackOf(row_.source));
      if (curve != nullptr) return {TimeOf(*curve, m.bytes, gpu_), {}};
    }
    const Operator op{.name = "memory", .kind = OperatorKind::kMemoryBound, .bytes = m.bytes};
    return {Cost(op).forward.compute, {}};
  }

 private:
  OperationPrediction Gemm() const {
    const std::string dtype = CurveDtype(row_.dtype);
    const std::optional<Precision> precision = PrecisionOf(dtype);
    const bool of_core = dtype == "float32" || dtype == "float64";
    if (!precision && !of_core) return Unsupported(fmt::format("no GEMM model of {}", dtype));
    if (precision && gpu_.peak(*precision).value <= 0) {
      return Unsupported(fmt::format("{} has no {}", gpu_.name, dtype));
    }
    const GemmShape s = *GemmShapeOf(row_.operation);
    const GemmCurve* curve = curves_ == nullptr ? nullptr
                                                : FindGemm(*curves_, dtype, ClocksOf(row_.source),
                                                           StageOf(row_.operation));
    if (curve == nullptr && curves_ != nullptr) {
      curve = FindGemm(*curves_, dtype, ClocksOf(row_.source));
    }
    if (curve != nullptr && PeakOf(curve->dtype, gpu_).value > 0) {
      const bool cast = HoldsCast(dtype, row_.source);
      return {cast ? TimeWithCast(*curve, s, gpu_) : TimeOf(*curve, s, gpu_), {}};
    }
    if (!precision) return Unsupported(fmt::format("no measured curve of {}", dtype));
    return {GemmTime(s.m, s.n, s.k, s.groups, *precision, gpu_, calibration_), {}};
  }

  // By the calibration of the GPU's family, which knows no kernels.
  Seconds FromLayer(const MeasuredAttention& a) const {
    Operator op{.name = "attention", .kind = OperatorKind::kAttention};
    op.scores_full = double(a.batch) * double(a.heads) * double(a.seq_q) * double(a.seq_kv);
    op.scores = a.causal ? op.scores_full / 2 : op.scores_full;
    op.qk_head = op.v_head = double(a.head_dim);
    op.attention_tokens = double(a.seq_q);
    return Cost(op).forward.compute;
  }
  OperatorCost Cost(const Operator& op) const {
    const TrainingConfig training;
    return CostOfOperator(op, LayerPaths{}, {gpu_, calibration_, training});
  }

  const Measurement& row_;
  const GpuSpec& gpu_;
  const Calibration& calibration_;
  const GpuCurves* curves_;
};

}  // namespace

OperationPrediction PredictOperation(const Measurement& row, const GpuCurves* curves) {
  const GpuSpec* gpu = GpuNamed(row.gpu);
  if (gpu == nullptr) {
    return Unsupported(fmt::format("no datasheet of {}", Printable(row.gpu, kMostNameShown)));
  }
  const bool given = curves != nullptr && SameName(curves->gpu, gpu->name);
  if (!given) return std::visit(Predictor(row, *gpu, BuiltInCurves(*gpu)), row.operation);
  const GpuSpec rated = WithRates(*gpu, curves->rates);
  return std::visit(Predictor(row, rated, curves), row.operation);
}

std::vector<OperationPrediction> PredictOperations(const MeasurementSet& set,
                                                   const GpuCurves* curves) {
  std::vector<OperationPrediction> all;
  all.reserve(set.rows.size());
  for (const Measurement& row : set.rows) all.push_back(PredictOperation(row, curves));
  return all;
}

}  // namespace millwright
