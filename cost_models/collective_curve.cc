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

// The operations of a ring, each beside those that it is most like.
enum Variant {
  kSwitchesAdd,
  kAllReduced,
  kIntegersAllReduced,
  kIntegersReduced,
  kReduced,
  kGathered
};

Variant VariantOf(const CollectiveShape& s) {
  switch (s.kind) {
    case CollectiveKind::kAllReduce:
      if (s.integers) return kIntegersAllReduced;
      return s.in_switch && s.ranks > 4 ? kSwitchesAdd : kAllReduced;
    case CollectiveKind::kReduceScatter:
      return s.integers ? kIntegersReduced : kReduced;
    case CollectiveKind::kAllGather:
      return kGathered;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBroadcast:
      return kSwitchesAdd;
  }
  return kSwitchesAdd;
}

bool IsRing(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllGather;
}

}  // namespace

void Fields(ConfigIo& io, CollectiveCurve& c) {
  constexpr NumberRange kTime{.min = 0, .max = 1};  // seconds
  static constexpr std::array<std::string_view, 6> kOps{"ring",     "all_reduce", "ring_pass",
                                                        "alltoall", "sendrecv",   "broadcast"};
  io.Name("op", c.op, kOps,
          "ring: all-reduce, reduce-scatter and all-gather inside a domain; ring_pass: the latter "
          "two across domains");
  io.Text("library", c.library, "nccl-tests, torch, or a custom kernel's name");
  io.Text("fabric", c.fabric,
          "between domains, as the source names it; any: all together; empty: inside a domain");
  FittedField(io, "base_s", "base_s_error", c.base, kTime, "before any step");
  FittedField(io, "step_s", "step_s_error", c.step, kTime, "of one step of the ring");
  FittedField(
      io, "efficiency", "efficiency_error", c.efficiency, {.min = 1e-6, .max = 1e3},
      "bus bandwidth over the GPU's link bandwidth; above 1 where switches add up, or where "
      "no link is known (local-cpu)",
      Presence::kRequired);
  FittedField(io, "sqrt_coefficient", "sqrt_coefficient_error", c.sqrt_coefficient,
              {.min = 0, .max = 1e-3}, "seconds per square root of a byte and pass");
  FittedField(io, "own_share", "own_share_error", c.own_share, {.min = 0, .max = 1e3},
              "time of a rank's own share, over that of sending it on the link");
  FittedField(io, "own_reduced", "own_reduced_error", c.own_reduced, {.min = 0, .max = 1e3},
              "of a reduce-scatter beside own_share: adding up what is received last");
  FittedField(io, "crowding", "crowding_error", c.crowding, {.min = 0, .max = 4},
              "exponent by which ranks take bandwidth from each other");
  Fields(io, c.residual, 4);
  Fields(io, c.range, 3, "log2 of the bytes, ranks and domains measured");
  Fields(io, c.fit);
}

const char* CurveOp(CollectiveKind kind, bool across_domains) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return across_domains ? "all_reduce" : "ring";
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      return across_domains ? "ring_pass" : "ring";
    case CollectiveKind::kAllToAll:
      return "alltoall";
    case CollectiveKind::kSendRecv:
      return "sendrecv";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "";
}

std::array<double, 4> ResidualCoordinates(const CollectiveShape& s) {
  const double bytes = std::log2(s.bytes.value), ranks = std::log2(s.ranks);
  if (s.domains > 1) {
    const double domains = std::log2(s.domains);
    return {bytes, domains, ranks - domains, 0};
  }
  return {bytes - ranks, ranks, double(VariantOf(s)), s.recent ? 1.0 : 0.0};
}

CollectiveShape ShapeAt(std::span<const double> at, const CollectiveShape& like) {
  CollectiveShape s = like;
  if (like.domains > 1) {
    s.bytes = Bytes(std::exp2(at[0]));
    s.domains = std::exp2(at[1]);
    s.ranks = std::exp2(at[1] + at[2]);
    return s;
  }
  s.bytes = Bytes(std::exp2(at[0] + at[1]));
  s.ranks = std::exp2(at[1]);
  s.recent = at[3] > 0;
  if (!IsRing(like.kind)) return s;
  const long variant = std::lround(at[2]);
  s.in_switch = variant == kSwitchesAdd;
  s.integers = variant == kIntegersAllReduced || variant == kIntegersReduced;
  s.kind = variant <= kIntegersAllReduced ? CollectiveKind::kAllReduce
           : variant < kGathered          ? CollectiveKind::kReduceScatter
                                          : CollectiveKind::kAllGather;
  return s;
}

std::array<double, 3> RangeCoordinates(const CollectiveShape& s) {
  return {std::log2(s.bytes.value), std::log2(s.ranks), std::log2(s.domains)};
}

Seconds CollectiveFormula(const CollectiveCurve& c, const CollectiveShape& s, BytesPerSecond link) {
  const bool shares = s.kind != CollectiveKind::kSendRecv && s.kind != CollectiveKind::kBroadcast;
  double wire = Passes(s.kind) * (shares ? (s.ranks - 1) / s.ranks : 1) / c.efficiency.value;
  if (s.domains == 1) {
    wire *= std::pow(s.ranks / 2, c.crowding.value);
    const double reduced = s.kind == CollectiveKind::kReduceScatter ? c.own_reduced.value : 0;
    if (shares) wire += (c.own_share.value + reduced) / s.ranks;
  }
  return Seconds(c.base.value + Steps(s) * c.step.value +
                 Passes(s.kind) * c.sqrt_coefficient.value * std::sqrt(s.bytes.value)) +
         s.bytes * wire / link;
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
