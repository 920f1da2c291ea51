// SPDX-License-Identifier: Apache-2.0
#include "cost_models/collective_curve.h"

#include <algorithm>
#include <cmath>

namespace millwright {
namespace {

double Passes(CollectiveKind kind) { return kind == CollectiveKind::kAllReduce ? 2 : 1; }

double Steps(const CollectiveShape& s) {
  if (s.domains > 1) {
    return s.kind == CollectiveKind::kAllReduce ? 2 * std::log2(s.domains) : s.domains - 1;
  }
  switch (s.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return Passes(s.kind) * (s.ranks - 1);
    case CollectiveKind::kAllToAll:
      return std::log2(s.ranks);
    case CollectiveKind::kSendRecv:
      return 1;
  }
  return 0;
}

}  // namespace

void Fields(ConfigIo& io, CollectiveCurve& c) {
  constexpr NumberRange kTime{.min = 0, .max = 1};  // seconds
  static constexpr std::array<std::string_view, 5> kOps{"all_reduce", "ring_pass", "alltoall",
                                                        "sendrecv", "broadcast"};
  io.Name("op", c.op, kOps, "the collective; ring_pass: reduce-scatter and all-gather");
  io.Text("library", c.library, "nccl-tests, torch, or a custom kernel's name");
  io.Text("fabric", c.fabric, "between domains, as the source names it; empty: inside a domain");
  FittedField(io, "base_s", "base_s_error", c.base, kTime, "before any step");
  FittedField(io, "step_s", "step_s_error", c.step, kTime, "of one step of the ring");
  FittedField(io, "efficiency", "efficiency_error", c.efficiency, {.min = 1e-6, .max = 4},
              "bus bandwidth over the GPU's link bandwidth; above 1 where switches add up",
              Presence::kRequired);
  FittedField(io, "sqrt_coefficient", "sqrt_coefficient_error", c.sqrt_coefficient,
              {.min = 0, .max = 1e-3}, "seconds per square root of a byte and pass");
  Fields(io, c.residual, 3);
  Fields(io, c.range, 3, "log2 of the bytes, ranks and domains measured");
  Fields(io, c.fit);
}

const char* CurveOp(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return "ring_pass";
    case CollectiveKind::kAllToAll:
      return "alltoall";
    case CollectiveKind::kSendRecv:
      return "sendrecv";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "";
}

std::array<double, 3> ResidualCoordinates(const CollectiveShape& s) {
  const double ranks = std::log2(s.ranks);
  if (s.domains > 1) {
    const double domains = std::log2(s.domains);
    return {std::log2(s.bytes.value), domains, ranks - domains};
  }
  const bool second = s.kind == CollectiveKind::kAllGather ||
                      (s.kind == CollectiveKind::kAllReduce && !s.in_switch && s.ranks > 4);
  return {std::log2(s.bytes.value) - ranks / 2, ranks, second ? 1.0 : 0.0};
}

std::array<double, 3> RangeCoordinates(const CollectiveShape& s) {
  return {std::log2(s.bytes.value), std::log2(s.ranks), std::log2(s.domains)};
}

Seconds CollectiveFormula(const CollectiveCurve& c, const CollectiveShape& s, BytesPerSecond link) {
  const bool shares = s.kind != CollectiveKind::kSendRecv && s.kind != CollectiveKind::kBroadcast;
  const double wire = Passes(s.kind) * (shares ? (s.ranks - 1) / s.ranks : 1);
  return Seconds(c.base.value + Steps(s) * c.step.value +
                 Passes(s.kind) * c.sqrt_coefficient.value * std::sqrt(s.bytes.value)) +
         s.bytes * wire / (link * c.efficiency.value);
}

Seconds TimeOf(const CollectiveCurve& c, const CollectiveShape& s, BytesPerSecond link) {
  const auto at = [&](Bytes bytes) {
    CollectiveShape shape = s;
    shape.bytes = bytes;
    return std::exp(c.residual.At(ResidualCoordinates(shape))) * CollectiveFormula(c, shape, link);
  };
  // Nothing is faster than next to nothing, though the residual of few ranks may say so of many;
  // nor than the wire: with NVLS a GPU sends and receives its buffer once, in a ring nearly twice.
  return std::max({at(s.bytes), at(1_B), s.bytes * ((s.ranks - 1) / s.ranks) / link});
}

}  // namespace millwright
