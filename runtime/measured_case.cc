// SPDX-License-Identifier: Apache-2.0
#include "runtime/measured_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "core/check.h"
#include "cost_models/executed_curves.h"
#include "cost_models/operators.h"
#include "runtime/rank_group.h"

namespace millwright {
namespace {

constexpr double kCountedWidth = 2;  // bytes of an element in cost_models/operators' lists

// Each once, in the order in which they came.
void Add(std::vector<MeasuredCase>& cases, const MeasuredCase& one) {
  if (std::find(cases.begin(), cases.end(), one) == cases.end()) cases.push_back(one);
}

void AddLinear(std::vector<MeasuredCase>& cases, std::int64_t m, std::int64_t n, std::int64_t k) {
  Add(cases, GemmCase{.m = m, .n = n, .k = k, .pass = GemmPass::kForward});
  Add(cases, GemmCase{.m = m, .n = k, .k = n, .pass = GemmPass::kInputGradient});
  Add(cases, GemmCase{.m = n, .n = k, .k = m, .pass = GemmPass::kWeightGradient});
}

void AddBothWays(std::vector<MeasuredCase>& cases, AttentionCase attention) {
  for (const bool backward : {false, true}) {
    attention.backward = backward;
    Add(cases, attention);
  }
}

void AddBothWays(std::vector<MeasuredCase>& cases, RowsCase rows) {
  for (const bool backward : {false, true}) {
    rows.backward = backward;
    Add(cases, rows);
  }
}

// Positions 0, n - 1, then the middle, then the middles of both halves, and so on.
std::vector<std::size_t> CoarseToFine(std::size_t n) {
  std::vector<std::size_t> order;
  if (n > 0) order.push_back(0);
  if (n > 1) order.push_back(n - 1);
  for (std::size_t stride = n; stride > 1; stride = (stride + 1) / 2) {
    for (std::size_t at = stride / 2; at < n; at += stride) {
      if (std::find(order.begin(), order.end(), at) == order.end()) order.push_back(at);
    }
  }
  for (std::size_t at = 0; at < n; ++at) {
    if (std::find(order.begin(), order.end(), at) == order.end()) order.push_back(at);
  }
  return order;
}

template <class T>
std::vector<T> Reordered(const std::vector<T>& from) {
  std::vector<T> to;
  for (std::size_t i : CoarseToFine(from.size())) to.push_back(from[i]);
  return to;
}

// Cases that go together, and how many of them at a time.
struct CaseList {
  std::size_t at_once = 1;
  std::vector<MeasuredCase> cases;
};

// Of each list in turn, so that time that runs out takes from all alike.
std::vector<MeasuredCase> InTurn(const std::vector<CaseList>& lists) {
  std::vector<MeasuredCase> cases;
  std::vector<std::size_t> taken(lists.size());
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      for (std::size_t n = 0; n < lists[i].at_once && taken[i] < lists[i].cases.size(); ++n) {
        Add(cases, lists[i].cases[taken[i]++]);
        any = true;
      }
    }
  }
  return cases;
}
constexpr std::size_t kProductsAtOnce = 6;  // two layers' three passes

struct Size {
  std::int64_t rows, cols;
};

RowsCase Rows(RowsCase rows, const Size& size) {
  rows.rows = size.rows;
  rows.cols = size.cols;
  const RowKernel kernel = rows.kernel;
  if (kernel == RowKernel::kRope) {
    // Three query heads to one of keys.
    rows.head_size = std::min<std::int64_t>(64, size.cols / 4);
    rows.key_cols = size.cols / 4;
  }
  if (rows.of_heads) rows.cols = std::min<std::int64_t>(size.cols, 128);
  if (kernel == RowKernel::kPermute || kernel == RowKernel::kUnpermute) rows.experts = 8;
  if (kernel == RowKernel::kRoute) rows.cols = std::min<std::int64_t>(size.cols, 256);
  return rows;
}

std::int64_t ElementsOf(const Operator& op) {
  return std::int64_t(std::llround(op.payload.value / kCountedWidth));
}

// Powers of two, whose logarithms are these.
void AddCollectives(std::vector<MeasuredCase>& cases, CollectiveKind kind, int ranks, int from,
                    int to, int step) {
  std::vector<CollectiveCase> sizes;
  for (int log = from; log <= to; log += step) {
    const std::int64_t elements = (std::int64_t{1} << log) / ranks * ranks;
    if (elements > 0) sizes.push_back({.kind = kind, .ranks = ranks, .elements = elements});
  }
  for (const CollectiveCase& one : Reordered(sizes)) Add(cases, one);
}

}  // namespace

std::string NameOf(const RowsCase& rows) {
  std::string name;
  switch (rows.kernel) {
    case RowKernel::kNorm:
      name = KernelOf(rows.normalization, rows.of_heads);
      break;
    case RowKernel::kRope:
      name = "rope";
      break;
    case RowKernel::kActivation:
      name = KernelOf(rows.activation, rows.gated, rows.weighted);
      break;
    case RowKernel::kAdd:
      name = "residual_add";
      break;
    case RowKernel::kBias:
      name = "bias";
      break;
    case RowKernel::kEmbedding:
      name = "embedding";
      break;
    case RowKernel::kCrossEntropy:
      name = "cross_entropy";
      break;
    case RowKernel::kRoute:
      name = "route";
      break;
    case RowKernel::kPermute:
      name = "permute";
      break;
    case RowKernel::kUnpermute:
      name = "unpermute";
      break;
    case RowKernel::kAdam:
      name = "adam";
      break;
    case RowKernel::kGradientSum:
      name = "gradient_sum";
      break;
  }
  return rows.backward ? name + "; backward" : name;
}

Bytes BytesOf(const RowsCase& rows, int width) {
  const double elements = double(rows.rows) * double(rows.cols);
  double passes = 0;  // elements read or written, over `elements`
  switch (rows.kernel) {
    case RowKernel::kNorm:
    case RowKernel::kRope:
    case RowKernel::kBias:
    case RowKernel::kEmbedding:
    case RowKernel::kRoute:
      passes = 2;
      break;
    case RowKernel::kActivation:
      passes = rows.gated ? 3 : 2;
      break;
    case RowKernel::kAdd:
      passes = 3;
      break;
    case RowKernel::kCrossEntropy:
      passes = 6;  // 12 bytes a logit of 2
      break;
    case RowKernel::kPermute:
    case RowKernel::kUnpermute:
      passes = 2.5;  // 5 bytes an element of 2
      break;
    case RowKernel::kAdam:
      passes = 7;  // reads gradient, two moments, weight; writes all but the first
      break;
    case RowKernel::kGradientSum:
      passes = 6;  // three times cleared; two read and one written by the sum
      break;
  }
  return Bytes(passes * elements * width);
}

namespace {

// What a sweep varies; powers of two from the first to the last.
struct SweepSizes {
  std::vector<std::int64_t> products;  // m, n and k, each
  double most_flops = 0;               // of a product: tenths of a second
  std::vector<std::int64_t> tokens, head_sizes;
  std::vector<int> heads;
  std::vector<std::int64_t> cols;
  int rows_from = 0, rows_to = 0, parameters_from = 0, parameters_to = 0;
  int elements_from = 0, elements_to = 0;  // of collectives: from latency to more than caches hold
  int step = 1;
};

SweepSizes SizesOf(bool quick, SweepOf of) {
  SweepSizes s;
  switch (of) {
    case SweepOf::kCpu:
      s = {.products = {16, 64, 256, 1024},
           .most_flops = 2e9,
           .tokens = {16, 32, 64, 128, 256, 512},
           .head_sizes = {16, 64},
           .heads = {2, 8},
           .cols = {64, 1024},
           .rows_from = 4,
           .rows_to = 10,
           .parameters_from = 10,
           .parameters_to = quick ? 17 : 21,
           .elements_from = 6,
           .elements_to = quick ? 20 : 22};
      if (quick) {
        s.products = {32, 128, 384};
        s.tokens = {16, 64, 256};
      }
      break;
    case SweepOf::kGpu:
      s = {.products = {512, 1024, 2048, 4096, 8192, 16384},
           .most_flops = 1e13,
           .tokens = {512, 1024, 2048, 4096, 8192},
           .head_sizes = {64, 128},
           .heads = {8, 32},
           .cols = {1024, 8192},
           .rows_from = 8,
           .rows_to = 14,
           .parameters_from = 14,
           .parameters_to = quick ? 21 : 27,
           .elements_from = 8,
           .elements_to = quick ? 22 : 28};
      if (quick) {
        s.products = {512, 2048, 8192};
        s.tokens = {512, 2048, 8192};
      }
      break;
  }
  s.step = quick ? 2 : 1;
  return s;
}

}  // namespace

std::vector<MeasuredCase> WithFp8(const std::vector<MeasuredCase>& cases) {
  std::vector<MeasuredCase> with;
  for (const MeasuredCase& one : cases) {
    with.push_back(one);
    const auto* gemm = std::get_if<GemmCase>(&one);
    if (gemm == nullptr || (gemm->m | gemm->n | gemm->k) % 16 != 0) continue;
    Add(with, GemmCase{.m = gemm->m, .n = gemm->n, .k = gemm->k, .fp8 = true});
  }
  return with;
}

std::vector<MeasuredCase> SweepCases(int ranks, bool quick, SweepOf of) {
  const SweepSizes s = SizesOf(quick, of);
  std::vector<CaseList> lists(1, {.at_once = kProductsAtOnce, .cases = {}});
  std::vector<GemmCase> products;
  for (std::int64_t m : s.products) {
    for (std::int64_t n : s.products) {
      for (std::int64_t k : s.products) {
        if (2.0 * double(m) * double(n) * double(k) <= s.most_flops) {
          products.push_back({.m = m, .n = n, .k = k});
        }
      }
    }
  }
  for (const GemmCase& one : Reordered(products)) AddLinear(lists[0].cases, one.m, one.n, one.k);

  std::vector<AttentionCase> attentions;
  for (std::int64_t tokens : s.tokens) {
    for (std::int64_t head_size : s.head_sizes) {
      for (int heads : s.heads) {
        attentions.push_back({.sequences = 1,
                              .tokens = tokens,
                              .head_size = head_size,
                              .heads = heads,
                              .groups = heads / 2});
      }
    }
  }
  CaseList& attention = lists.emplace_back(2);
  for (const AttentionCase& one : Reordered(attentions)) AddBothWays(attention.cases, one);

  std::vector<Size> shapes;
  for (std::int64_t cols : s.cols) {
    for (int log = s.rows_from; log <= s.rows_to; log += s.step) {
      shapes.push_back({std::int64_t{1} << log, cols});
    }
  }
  shapes = Reordered(shapes);
  const std::vector<RowsCase> kernels{
      {.kernel = RowKernel::kNorm},
      {.kernel = RowKernel::kRope},
      {.kernel = RowKernel::kActivation, .gated = true},
      {.kernel = RowKernel::kAdd},
      {.kernel = RowKernel::kEmbedding},
      {.kernel = RowKernel::kCrossEntropy},
      {.kernel = RowKernel::kRoute, .topk = 2},
      {.kernel = RowKernel::kPermute, .topk = 2},
      {.kernel = RowKernel::kUnpermute, .topk = 2},
      {.kernel = RowKernel::kActivation, .gated = true, .weighted = true},
      {.kernel = RowKernel::kNorm, .normalization = Normalization::kLayerNorm},
      {.kernel = RowKernel::kActivation, .activation = Activation::kGelu},
      {.kernel = RowKernel::kBias},
      {.kernel = RowKernel::kNorm, .of_heads = true},
  };
  for (const RowsCase& kernel : kernels) {
    CaseList& list = lists.emplace_back(2);
    for (const Size& size : shapes) AddBothWays(list.cases, Rows(kernel, size));
  }
  for (RowKernel kernel : {RowKernel::kAdam, RowKernel::kGradientSum}) {
    CaseList& list = lists.emplace_back();
    std::vector<RowsCase> lengths;
    for (int log = s.parameters_from; log <= s.parameters_to; ++log) {
      lengths.push_back({.kernel = kernel, .rows = 1, .cols = std::int64_t{1} << log});
    }
    for (const RowsCase& one : Reordered(lengths)) Add(list.cases, one);
  }
  const auto add_collectives = [&](CollectiveKind kind, int group) {
    AddCollectives(lists.emplace_back().cases, kind, group, s.elements_from, s.elements_to, s.step);
  };
  for (int group = 2; group <= ranks; group *= 2) {
    for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
      add_collectives(kind, group);
    }
  }
  if (ranks > 1) add_collectives(CollectiveKind::kSendRecv, 2);
  return InTurn(lists);
}

namespace {

// The cases of one plan.
class PlanCases {
 public:
  explicit PlanCases(const Workload& workload)
      : workload_(workload),
        model_(workload.model),
        plan_(workload.parallel),
        shape_(ShapeOf(plan_, workload.training)),
        groups_(GroupsOf(plan_, 0)),
        tokens_(plan_.micro_batch_size * workload.training.seq_length / plan_.context),
        outside_(plan_.sequence_parallel ? tokens_ / plan_.tensor : tokens_) {}

  std::vector<MeasuredCase> Take() {
    const TrainingConfig& training = workload_.training;
    for (LayerKind kind : model_.distinct_kinds()) {
      AddUnit(LayerOperators(model_, kind, shape_, training));
    }
    AddUnit(EmbeddingOperators(model_, shape_, training));
    AddUnit(HeadOperators(model_, shape_, training));
    AddParameters();
    if (plan_.pipeline > 1) AddGroup(CollectiveKind::kSendRecv, 2, outside_ * model_.hidden_size);
    AddGroup(CollectiveKind::kAllReduce, workload_.ranks(), workload_.ranks());  // the loss
    for (const CollectiveCase& group : measured_groups_) {
      // Around those of the plan, an octave apart.
      AddCollectives(lists_.emplace_back(2).cases, group.kind, group.ranks, 6,
                     std::clamp(int(std::bit_width(std::uint64_t(group.elements))), 14, 28), 1);
    }
    lists_.push_back(std::move(products_));
    return InTurn(lists_);
  }

 private:
  void AddUnit(const std::vector<Operator>& operators) {
    const Operator* fc1 = nullptr;
    for (const Operator& op : operators) {
      if (op.name == "fc1") fc1 = &op;
      switch (op.kind) {
        case OperatorKind::kGemm:
        case OperatorKind::kGroupedGemm:
          AddProducts(op);
          break;
        case OperatorKind::kAttention:
          AddAttention();
          break;
        case OperatorKind::kCollective:
          if (op.forward) AddGroup(op.forward_collective, RanksOf(op.group), ElementsOf(op));
          if (op.backward) AddGroup(op.backward_collective, RanksOf(op.group), ElementsOf(op));
          break;
        case OperatorKind::kMemoryBound:
        case OperatorKind::kHost:
          break;
      }
      for (const KernelUse& use : KernelsOf(op, model_)) AddRows(RowsOf(op, use.kernel, fc1));
    }
  }

  int RanksOf(GroupKind group) const {
    switch (group) {
      case GroupKind::kTensor:
        return plan_.tensor;
      case GroupKind::kRing:
        return plan_.ring_ranks();
      case GroupKind::kExpert:
        return plan_.expert;
      case GroupKind::kExpertTensor:
        return plan_.expert_tensor;
      case GroupKind::kUlysses:
        return plan_.ulysses_ranks();
    }
    return 1;
  }
  std::int64_t heads() const { return model_.num_attention_heads / plan_.tensor; }
  std::int64_t kv_heads() const { return std::max(1, model_.num_query_groups / plan_.tensor); }

  void AddProducts(const Operator& op) {
    std::vector<std::int64_t> outputs{std::int64_t(op.n)};
    // Executed as three products.
    if (op.name == "qkv") outputs = {heads() * model_.kv_channels, kv_heads() * model_.kv_channels};
    for (double share : {1.0, 0.5, 2.0}) {
      const auto m = std::int64_t(op.m * share);
      if (m == 0) continue;
      for (std::int64_t n : outputs) AddLinear(products_.cases, m, n, std::int64_t(op.k));
    }
  }

  void AddAttention() {
    // Under Ulysses a rank has the tokens of all who exchange, and some heads; of a ring its own.
    const int split = plan_.ulysses_ranks();
    AttentionCase one{.sequences = plan_.micro_batch_size,
                      .head_size = model_.kv_channels,
                      .heads = int(std::max<std::int64_t>(1, heads() / split)),
                      .groups = int(std::max<std::int64_t>(1, kv_heads() / split))};
    const std::int64_t own = workload_.training.seq_length / plan_.ring_ranks();
    for (double share : {1.0, 0.5, 2.0, 0.25, 1.5, 0.75, 0.125, 0.375}) {
      one.tokens = std::int64_t(double(own) * share);
      if (one.tokens > 0 && one.heads % one.groups == 0) AddBothWays(products_.cases, one);
    }
  }

  // What an operator does with a kernel; `fc1` is the product before an activation.
  RowsCase RowsOf(const Operator& op, std::string_view kernel, const Operator* fc1) const {
    const std::int64_t h = model_.hidden_size;
    const bool product = op.kind != OperatorKind::kMemoryBound;
    if (kernel == "rope") {
      return {.kernel = RowKernel::kRope,
              .rows = tokens_,
              .cols = (heads() + kv_heads()) * model_.kv_channels,
              .head_size = model_.kv_channels,
              .key_cols = kv_heads() * model_.kv_channels};
    }
    if (kernel == "route") {
      return {.kernel = RowKernel::kRoute,
              .rows = std::int64_t(op.m),
              .cols = std::int64_t(op.n),
              .topk = model_.moe.topk};
    }
    if (kernel == "bias" && product) {
      return {.kernel = RowKernel::kBias,
              .rows = std::int64_t(op.m * op.groups),
              .cols = std::int64_t(op.n)};
    }
    if (kernel == "bias") return {.kernel = RowKernel::kBias, .rows = outside_, .cols = h};
    if (kernel == "residual_add") {
      return {.kernel = RowKernel::kAdd,
              .rows = op.name == "embedding" ? tokens_ : outside_,
              .cols = h};
    }
    if (kernel == "embedding") return {.kernel = RowKernel::kEmbedding, .rows = tokens_, .cols = h};
    if (kernel == "cross_entropy") {
      return {.kernel = RowKernel::kCrossEntropy,
              .rows = tokens_,
              .cols = PaddedVocabulary(model_.vocab_size, plan_.tensor) / plan_.tensor};
    }
    if (kernel == "permute" || kernel == "unpermute") {
      return {.kernel = kernel == "permute" ? RowKernel::kPermute : RowKernel::kUnpermute,
              .rows = outside_ * model_.moe.topk,
              .cols = h,
              .topk = model_.moe.topk,
              .experts = model_.moe.num_experts};
    }
    if (kernel == KernelOf(model_.normalization, true)) {
      return {.kernel = RowKernel::kNorm,
              .rows = tokens_ * (heads() + kv_heads()),
              .cols = model_.kv_channels,
              .normalization = model_.normalization,
              .of_heads = true};
    }
    if (kernel == KernelOf(model_.normalization, false)) {
      return {.kernel = RowKernel::kNorm,
              .rows = outside_,
              .cols = h,
              .normalization = model_.normalization};
    }
    MILLWRIGHT_CHECK(op.name == "activation" && fc1 != nullptr);
    return {.kernel = RowKernel::kActivation,
            .rows = std::int64_t(fc1->m * fc1->groups),
            .cols = std::int64_t(fc1->n) / (model_.gated_linear_unit ? 2 : 1),
            .activation = model_.activation,
            .gated = model_.gated_linear_unit,
            .weighted = kernel.ends_with("weighted")};
  }

  // Eight sizes around it, or a fit has too little.
  void AddRows(const RowsCase& one) {
    if (std::find(rows_.begin(), rows_.end(), one) != rows_.end()) return;
    rows_.push_back(one);
    std::vector<MeasuredCase>& list = lists_.emplace_back(2).cases;
    int sizes = 0;
    for (int log : {0, 1, -1, 2, -2, 3, -3, 4, -4, 5, 6, 7}) {
      RowsCase near = one;
      near.rows = log >= 0 ? near.rows << log : near.rows >> -log;
      if (near.topk > 0) near.rows -= near.rows % near.topk;
      constexpr double kMostElements = 16e6;
      const bool large = double(near.rows) * double(near.cols) > kMostElements;
      if (near.rows == 0 || (log > 0 && large)) continue;
      AddBothWays(list, near);
      if (++sizes == 8) break;
    }
  }

  void AddGroup(CollectiveKind kind, int ranks, std::int64_t elements) {
    elements = elements / ranks * ranks;
    if (ranks == 1 || elements == 0) return;
    if (kind == CollectiveKind::kSendRecv) ranks = 2;
    Add(products_.cases, CollectiveCase{.kind = kind, .ranks = ranks, .elements = elements});
    const auto known = std::find_if(
        measured_groups_.begin(), measured_groups_.end(),
        [&](const CollectiveCase& group) { return group.kind == kind && group.ranks == ranks; });
    if (known == measured_groups_.end()) {
      measured_groups_.push_back({.kind = kind, .ranks = ranks, .elements = elements});
    } else {
      known->elements = std::max(known->elements, elements);
    }
  }

  // What data parallelism and the optimizer do with the parameters of each kind of layer.
  void AddParameters() {
    std::set<std::int64_t> summed, updated;
    std::vector<int> units{-1, model_.num_layers};
    for (int layer = 0; layer < model_.num_layers; ++layer) {
      if (layer == 0 || !(model_.layer(layer) == model_.layer(layer - 1))) units.push_back(layer);
    }
    for (int unit : units) {
      for (BucketKind kind : {BucketKind::kDense, BucketKind::kExperts, BucketKind::kTable}) {
        std::int64_t parameters = 0;
        for (const TensorPart& part : PartsOf(workload_, unit, groups_.place)) {
          if (part.bucket == kind) parameters += part.elements();
        }
        if (parameters == 0) continue;
        const int replicas =
            kind == BucketKind::kExperts ? groups_.expert_data.ranks : groups_.data.ranks;
        if (plan_.zero == 0) {
          AddGroup(CollectiveKind::kAllReduce, replicas, parameters);
        } else {
          AddGroup(CollectiveKind::kReduceScatter, replicas, parameters);
          AddGroup(CollectiveKind::kAllGather, replicas, parameters);
        }
        summed.insert(parameters);
        updated.insert(
            std::max<std::int64_t>(1, plan_.zero > 0 ? parameters / replicas : parameters));
      }
    }
    AddLengths(RowKernel::kGradientSum, summed);
    AddLengths(RowKernel::kAdam, updated);
  }

  // These, and octaves below the longest, so that a fit has enough.
  void AddLengths(RowKernel kernel, const std::set<std::int64_t>& lengths) {
    constexpr int kOctaves = 8;
    std::vector<MeasuredCase>& list = lists_.emplace_back().cases;
    for (std::int64_t length : lengths) {
      Add(list, RowsCase{.kernel = kernel, .rows = 1, .cols = length});
    }
    for (int log = 1; log < kOctaves && *lengths.rbegin() >> log > 0; ++log) {
      Add(list, RowsCase{.kernel = kernel, .rows = 1, .cols = *lengths.rbegin() >> log});
    }
  }

  const Workload& workload_;
  const ModelConfig& model_;
  const ParallelConfig& plan_;
  LayerShape shape_;
  RankGroups groups_;
  std::int64_t tokens_, outside_;  // outside tensor-parallel blocks
  CaseList products_{.at_once = kProductsAtOnce, .cases = {}};
  std::vector<CaseList> lists_;
  std::vector<RowsCase> rows_;
  std::vector<CollectiveCase> measured_groups_;  // with the most elements of a call
};

}  // namespace

std::vector<MeasuredCase> CasesOf(const Workload& workload) { return PlanCases(workload).Take(); }

}  // namespace millwright
