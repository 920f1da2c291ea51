// SPDX-License-Identifier: Apache-2.0
//
// What can be measured on a backend: operations with their sizes, and which of them are.
//
// Bytes of what is bound by memory are those of its forward pass, for both passes, as
// cost_models/operators counts them with elements as wide as they really are, so that a measured
// row and an operator of a layer are the same point of a curve.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/model.h"
#include "core/units.h"
#include "cost_models/collectives.h"
#include "runtime/workload.h"

namespace millwright {

enum class GemmPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

// As its pass calls it: an input gradient of a layer with n outputs and k inputs is m x k x n.
struct GemmCase {
  std::int64_t m = 0, n = 0, k = 0;
  GemmPass pass = GemmPass::kForward;
  bool fp8 = false;  // of E4M3 operands, both with the sum's index last, as in all three passes
  bool operator==(const GemmCase&) const = default;
};

struct AttentionCase {
  std::int64_t sequences = 1, tokens = 0, head_size = 0;
  int heads = 1, groups = 1;
  bool backward = false;
  bool operator==(const AttentionCase&) const = default;
};

enum class RowKernel : std::uint8_t {
  kNorm,
  kRope,  // of queries and keys together
  kActivation,
  kAdd,
  kBias,
  kEmbedding,
  kCrossEntropy,
  kRoute,    // the choice of experts by their logits
  kPermute,  // tokens copied to a row for each of their experts, and
  kUnpermute,
  kAdam,
  kGradientSum,  // what a rank does to gradients once a step: cleared, and added to its share
};

// Works on rows of `cols` elements, each by itself: those that an activation writes, that an
// embedding reads, of rotary positions queries and keys, of routed tokens their copies.
struct RowsCase {
  RowKernel kernel = RowKernel::kNorm;
  bool backward = false;
  std::int64_t rows = 0, cols = 0;
  Normalization normalization = Normalization::kRmsNorm;
  bool of_heads = false;  // norms of queries and keys, head by head
  Activation activation = Activation::kSilu;
  bool gated = false;
  bool weighted = false;                     // an expert's, by what each row counts
  std::int64_t head_size = 0, key_cols = 0;  // of rotary positions, whose angles heads share
  int topk = 0, experts = 0;
  bool operator==(const RowsCase&) const = default;
};
// "rmsnorm", "silu gated"; and "; backward".
std::string NameOf(const RowsCase& rows);
Bytes BytesOf(const RowsCase& rows, int width);

struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // of send-recv: from one rank to the next
  int ranks = 2;
  std::int64_t elements = 0;  // payload, as cost_models/collectives counts it
  bool operator==(const CollectiveCase&) const = default;
};

using MeasuredCase = std::variant<GemmCase, AttentionCase, RowsCase, CollectiveCase>;

// For a machine on which `ranks` ranks measure, in sizes that a CPU core or a GPU computes in
// milliseconds; `quick`: as few as a fit needs.  The widest apart come first, so that what there is
// no time for is missing between, not at the ends.
enum class SweepOf : std::uint8_t { kCpu, kGpu };
std::vector<MeasuredCase> SweepCases(int ranks, bool quick, SweepOf of);
// With each product, once for its three passes, that in FP8: Transformer Engine transposes operands
// so that all passes are of one layout, the only one that Hopper's tensor cores take.  Sizes that
// are no multiples of 16 are left out, as cuBLASLt has none of those.
std::vector<MeasuredCase> WithFp8(const std::vector<MeasuredCase>& cases);
// Of every kind of layer, embedding and head of the workload, on one of its ranks, and their
// neighbours.
std::vector<MeasuredCase> CasesOf(const Workload& workload);

}  // namespace millwright
