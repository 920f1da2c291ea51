// SPDX-License-Identifier: Apache-2.0
#include "validate/measured_rows.h"

#include <fmt/format.h>

namespace millwright {
namespace {

const char* OpOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kAllToAll:
      return "alltoall";
    case CollectiveKind::kSendRecv:
      return "sendrecv";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "";
}

struct OperationOf {
  const MeasuredOn& on;

  MeasuredOperation operator()(const GemmCase& g) const {
    MeasuredGroupedGemm gradient{.groups = 1, .m_per_group = g.m, .n = g.n, .k = g.k};
    switch (g.pass) {
      case GemmPass::kForward:
        break;
      case GemmPass::kInputGradient:
        gradient.stage = GroupedGemmStage::kInputGradient;
        return gradient;
      case GemmPass::kWeightGradient:
        gradient.stage = GroupedGemmStage::kWeightGradient;
        return gradient;
    }
    return MeasuredGemm{.m = g.m, .n = g.n, .k = g.k};
  }
  MeasuredOperation operator()(const AttentionCase& a) const {
    return MeasuredAttention{
        .phase = a.backward ? AttentionPhase::kBackward : AttentionPhase::kForward,
        .batch = a.sequences,
        .seq_q = a.tokens,
        .seq_kv = a.tokens,
        .heads = a.heads,
        .kv_heads = a.groups,
        .head_dim = a.head_size,
        .causal = true};
  }
  MeasuredOperation operator()(const RowsCase& r) const {
    return MeasuredMemoryBound{.op = NameOf(r), .bytes = BytesOf(r, on.width)};
  }
  MeasuredOperation operator()(const CollectiveCase& c) const {
    return MeasuredCollective{.op = OpOf(c.kind),
                              .topology = on.topology,
                              .library = on.library,
                              .nodes = 1,
                              .gpus = c.ranks,
                              .bytes = Bytes(double(c.elements) * on.width)};
  }
};

}  // namespace

Measurement RowOf(const MeasuredCase& what, const Timing& timing, bool burst,
                  const MeasuredOn& on) {
  const auto* gemm = std::get_if<GemmCase>(&what);
  std::string how;
  if (burst) {
    how = fmt::format("{}-burst:first repeats", on.stack);
  } else {
    how = fmt::format("{}:{} repeats, spread {:.1f}%{}", on.stack, timing.repeats,
                      100 * timing.spread, timing.settled ? "" : ", not settled");
  }
  const bool named = std::holds_alternative<AttentionCase>(what) && !on.attention_by.empty();
  const std::string by = named ? "; by " + on.attention_by : "";
  return {.gpu = on.gpu,
          .dtype = gemm != nullptr && gemm->fp8 ? "fp8" : on.dtype,
          .source = fmt::format("{}; {} rank{}; {}{}", how, on.ranks, on.ranks == 1 ? "" : "s",
                                on.machine, by),
          .time = burst ? timing.burst : timing.sustained,
          .operation = std::visit(OperationOf{on}, what)};
}

}  // namespace millwright
