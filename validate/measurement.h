// SPDX-License-Identifier: Apache-2.0
//
// What was measured: one operation on one kind of GPU, and the time it took.
//
// Six tables, as in the shared data: GEMM, attention, collectives, fused MoE layers, grouped GEMMs
// and memory-bound operators.  `source` says who measured it and how; what decides a time and is
// not in the shape (burst or sustained clocks, the attention kernel) follows from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/units.h"

namespace millwright {

struct MeasuredGemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool operator==(const MeasuredGemm&) const = default;
};

// Forward passes over a prompt are prefill too: the names are the tables' own.
enum class AttentionPhase { kForward, kBackward, kForwardBackward, kPrefill, kDecode };

struct MeasuredAttention {
  AttentionPhase phase = AttentionPhase::kForward;
  std::int64_t batch = 0, seq_q = 0, seq_kv = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false;
  bool operator==(const MeasuredAttention&) const = default;
};

struct MeasuredCollective {
  std::string op;  // as nccl-tests names it; deepep_dispatch_fp8, deepep_combine_bf16
  std::string topology, library;
  std::int64_t nodes = 0, gpus = 0;  // NVLink domains; ranks in all
  Bytes bytes;                       // nccl-tests' size
  bool operator==(const MeasuredCollective&) const = default;
};

struct MeasuredMoe {
  std::int64_t tokens = 0, hidden = 0, inter = 0, topk = 0, experts = 0;
  std::int64_t tensor = 0, expert = 0;  // parallel degrees
  std::string distribution;             // of tokens over experts: balanced, power_law_X
  bool operator==(const MeasuredMoe&) const = default;
};

enum class GroupedGemmStage { kForward, kInputGradient, kWeightGradient };

struct MeasuredGroupedGemm {
  GroupedGemmStage stage = GroupedGemmStage::kForward;
  std::int64_t groups = 0, m_per_group = 0, n = 0, k = 0;
  bool operator==(const MeasuredGroupedGemm&) const = default;
};

struct MeasuredMemoryBound {
  std::string op;
  Bytes bytes;
  bool operator==(const MeasuredMemoryBound&) const = default;
};

using MeasuredOperation = std::variant<MeasuredGemm, MeasuredAttention, MeasuredCollective,
                                       MeasuredMoe, MeasuredGroupedGemm, MeasuredMemoryBound>;

// The names of the tables, in the order of the variant's alternatives.
inline constexpr std::array<std::string_view, std::variant_size_v<MeasuredOperation>> kTableNames{
    "gemm", "attention", "collective", "moe", "grouped_gemm", "memory_bound"};

struct Measurement {
  std::string gpu, dtype, source;
  Seconds time;
  int file = 0, line = 0;  // of MeasurementSet::files
  MeasuredOperation operation;

  std::string_view table() const { return kTableNames[operation.index()]; }
};

// A row that was read but is doubtful, and so is left out of fits.
struct FlaggedRow {
  int file = 0, line = 0;
  std::string what;
};

struct MeasurementSet {
  std::vector<std::string> files;
  std::vector<Measurement> rows;
  std::vector<FlaggedRow> flagged;
};

std::string_view Name(AttentionPhase phase);
std::string_view Name(GroupedGemmStage stage);

// The shape in one line, as "m 384 n 8192 k 16384".
std::string ShapeText(const MeasuredOperation& operation);

}  // namespace millwright
