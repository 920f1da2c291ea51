// SPDX-License-Identifier: Apache-2.0
#include "validate/shapes.h"

#include "validate/source_class.h"

namespace millwright {

std::optional<GemmShape> GemmShapeOf(const MeasuredOperation& operation) {
  if (const auto* g = std::get_if<MeasuredGemm>(&operation)) {
    return GemmShape{.m = double(g->m), .n = double(g->n), .k = double(g->k)};
  }
  if (const auto* g = std::get_if<MeasuredGroupedGemm>(&operation)) {
    return GemmShape{.m = double(g->m_per_group),
                     .n = double(g->n),
                     .k = double(g->k),
                     .groups = double(g->groups)};
  }
  return std::nullopt;
}

std::string StageOf(const MeasuredOperation& operation) {
  const auto* g = std::get_if<MeasuredGroupedGemm>(&operation);
  return g == nullptr ? std::string() : std::string(Name(g->stage));
}

bool IsGemmDtype(const std::string& dtype) {
  return dtype == "bfloat16" || dtype == "fp8" || dtype == "fp8_block" || dtype == "nvfp4" ||
         dtype == "float32" || dtype == "float64";
}

std::optional<AttentionShape> AttentionShapeOf(const MeasuredOperation& operation) {
  const auto* a = std::get_if<MeasuredAttention>(&operation);
  if (a == nullptr || a->phase == AttentionPhase::kDecode) return std::nullopt;
  return AttentionShape{.batch = double(a->batch),
                        .queries = double(a->seq_q),
                        .keys = double(a->seq_kv),
                        .heads = double(a->heads),
                        .kv_heads = double(a->kv_heads),
                        .head_size = double(a->head_dim),
                        .causal = a->causal};
}

std::string KernelOf(const Measurement& row) {
  std::string kernel = StackOf(row.source);
  const auto* a = std::get_if<MeasuredAttention>(&row.operation);
  if (a == nullptr) return kernel;
  switch (a->phase) {
    case AttentionPhase::kForward:
    case AttentionPhase::kPrefill:
    case AttentionPhase::kDecode:
      return kernel;
    case AttentionPhase::kBackward:
      return kernel + ", backward";
    case AttentionPhase::kForwardBackward:
      return kernel + ", forward and backward";
  }
  return kernel;
}

std::optional<CollectiveShape> CollectiveShapeOf(const Measurement& row, const GpuSpec& gpu) {
  const auto* c = std::get_if<MeasuredCollective>(&row.operation);
  if (c == nullptr || c->gpus < 2) return std::nullopt;
  const CollectiveKind* kind = KindOf(c->op);
  const std::optional<PathProfile> path = PathOf(*c, gpu);
  if (kind == nullptr || !path) return std::nullopt;
  return CollectiveShape{.kind = *kind,
                         .ranks = double(c->gpus),
                         .bytes = c->bytes,
                         .in_switch = path->in_switch_reduction,
                         .domains = double(c->nodes),
                         .integers = row.dtype == "int8",
                         .recent = IsRecent(*c)};
}

}  // namespace millwright
