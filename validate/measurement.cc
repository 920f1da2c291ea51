// SPDX-License-Identifier: Apache-2.0
#include "validate/measurement.h"

#include <fmt/format.h>

namespace millwright {
namespace {

struct ShapeWriter {
  std::string operator()(const MeasuredGemm& g) const {
    return fmt::format("m {} n {} k {}", g.m, g.n, g.k);
  }
  std::string operator()(const MeasuredAttention& a) const {
    return fmt::format("{} batch {} seq {}x{} heads {}/{} of {}{}", Name(a.phase), a.batch, a.seq_q,
                       a.seq_kv, a.heads, a.kv_heads, a.head_dim, a.causal ? " causal" : "");
  }
  std::string operator()(const MeasuredCollective& c) const {
    return fmt::format("{} {:.0f} B, {} GPUs in {}", c.op, c.bytes.value, c.gpus,
                       c.nodes == 1 ? "1 domain" : fmt::format("{} domains", c.nodes));
  }
  std::string operator()(const MeasuredMoe& m) const {
    return fmt::format("{} tokens, {} of {} experts, {}x{}, tp {} ep {}, {}", m.tokens, m.topk,
                       m.experts, m.hidden, m.inter, m.tensor, m.expert, m.distribution);
  }
  std::string operator()(const MeasuredGroupedGemm& g) const {
    return fmt::format("{} {} groups, m {} n {} k {}", Name(g.stage), g.groups, g.m_per_group, g.n,
                       g.k);
  }
  std::string operator()(const MeasuredMemoryBound& m) const {
    return fmt::format("{} {:.0f} B", m.op, m.bytes.value);
  }
};

}  // namespace

std::string_view Name(AttentionPhase phase) {
  switch (phase) {
    case AttentionPhase::kForward:
      return "fwd";
    case AttentionPhase::kBackward:
      return "bwd";
    case AttentionPhase::kForwardBackward:
      return "fwd+bwd";
    case AttentionPhase::kPrefill:
      return "prefill";
    case AttentionPhase::kDecode:
      return "decode";
  }
  return {};
}

std::string_view Name(GroupedGemmStage stage) {
  switch (stage) {
    case GroupedGemmStage::kForward:
      return "fwd";
    case GroupedGemmStage::kInputGradient:
      return "bwd_grad_act";
    case GroupedGemmStage::kWeightGradient:
      return "bwd_grad_w";
  }
  return {};
}

std::string ShapeText(const MeasuredOperation& operation) {
  return std::visit(ShapeWriter{}, operation);
}

}  // namespace millwright
