// SPDX-License-Identifier: Apache-2.0
#include "runtime/unit.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

// `routed`: between permute and unpermute, where an MLP's names are those of the experts' MLPs.
OperatorCode CodeOf(std::string_view name, bool routed) {
  static constexpr std::pair<std::string_view, OperatorCode> kCodes[] = {
      {"embedding", OperatorCode::kEmbedding},
      {"embedding reduce", OperatorCode::kReduce},
      {"input norm", OperatorCode::kInputNorm},
      {"qkv gather", OperatorCode::kGather},
      {"qkv", OperatorCode::kQkv},
      {"qkv wgrad gather", OperatorCode::kRegather},
      {"qk norm", OperatorCode::kQkNorm},
      {"rope", OperatorCode::kRope},
      {"ulysses qkv all-to-all", OperatorCode::kUlyssesIn},
      {"attention core", OperatorCode::kAttention},
      {"ring kv exchange", OperatorCode::kRing},
      {"ring output merge", OperatorCode::kRingMerge},
      {"ulysses output all-to-all", OperatorCode::kUlyssesOut},
      {"attention output", OperatorCode::kAttentionOutput},
      {"attention output reduce", OperatorCode::kReduce},
      {"attention residual", OperatorCode::kAttentionResidual},
      {"pre-mlp norm", OperatorCode::kPreMlpNorm},
      {"mlp gather", OperatorCode::kGather},
      {"fc1", OperatorCode::kFc1},
      {"fc1 wgrad gather", OperatorCode::kRegather},
      {"activation", OperatorCode::kActivation},
      {"fc2", OperatorCode::kFc2},
      {"mlp reduce", OperatorCode::kReduce},
      {"mlp residual", OperatorCode::kMlpResidual},
      {"final norm", OperatorCode::kFinalNorm},
      {"head gather", OperatorCode::kGather},
      {"output head", OperatorCode::kOutputHead},
      {"head wgrad gather", OperatorCode::kRegather},
      {"cross-entropy", OperatorCode::kCrossEntropy},
      {"cross-entropy reduce", OperatorCode::kCrossEntropyReduce},
      {"router", OperatorCode::kRouter},
      {"shared expert gather", OperatorCode::kGather},
      {"shared expert reduce", OperatorCode::kReduce},
      {"permute", OperatorCode::kPermute},
      {"expert dispatch", OperatorCode::kDispatch},
      {"expert tensor gather", OperatorCode::kExpertGather},
      {"expert tensor scatter", OperatorCode::kExpertScatter},
      {"expert combine", OperatorCode::kCombine},
      {"unpermute", OperatorCode::kUnpermute},
  };
  if (routed && name == "fc1") return OperatorCode::kExpertFc1;
  if (routed && name == "activation") return OperatorCode::kExpertActivation;
  if (routed && name == "fc2") return OperatorCode::kExpertFc2;
  const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes),
                                   [&](const auto& code) { return code.first == name; });
  MILLWRIGHT_CHECK(found != std::end(kCodes));
  return found->second;
}

}  // namespace

const Bucket* Unit::BucketOf(std::string_view name) const {
  const auto holds = [&](const TensorPart& part) { return part.name.weight == name; };
  const auto found = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
    return std::any_of(bucket.parts.begin(), bucket.parts.end(), holds);
  });
  if (found != buckets.end()) return &*found;
  return table == nullptr ? nullptr : table->BucketOf(name);
}

const TensorPart& Unit::part(std::string_view name) const {
  const Bucket* bucket = BucketOf(name);
  MILLWRIGHT_CHECK(bucket != nullptr);
  return *std::find_if(bucket->parts.begin(), bucket->parts.end(),
                       [&](const TensorPart& p) { return p.name.weight == name; });
}

ConstView Unit::weight(std::string_view name) const {
  const Bucket* bucket = BucketOf(name);
  if (bucket == nullptr) return {};
  const TensorPart& p = part(name);
  return bucket->weights.view().Part(p.offset, p.elements()).Shaped(p.rows, p.cols);
}

View Unit::gradient(std::string_view name) {
  const Bucket* with_it = BucketOf(name);
  const TensorPart& p = part(name);
  for (Bucket& bucket : buckets) {
    if (&bucket != with_it) continue;
    return bucket.gradients.view().Part(p.offset, p.elements()).Shaped(p.rows, p.cols);
  }
  return table->gradient(name);
}

namespace {

Bucket MakeBucket(const Workload& workload, const RankGroup& group, Backend& backend,
                  std::vector<TensorPart> parts) {
  Bucket bucket{.group = group, .parts = std::move(parts)};
  std::int64_t elements = 0;
  for (const TensorPart& part : bucket.parts) elements += part.elements();
  bucket.weights = Tensor(backend, 1, elements);
  bucket.gradients = Tensor::Zeros(backend, 1, elements, Element::kSum);
  std::tie(bucket.first, bucket.last) = workload.parallel.zero == 0
                                            ? std::pair(std::int64_t{0}, elements)
                                            : PartOf(group, backend.rank(), elements);
  const std::int64_t own = bucket.last - bucket.first;
  if (backend.WidthOf(Element::kValue) < backend.WidthOf(Element::kSum)) {
    bucket.master = Tensor(backend, 1, own, Element::kSum);
  }
  bucket.shard_gradients = Tensor::Zeros(backend, 1, own, Element::kSum);
  bucket.moment1 = Tensor::Zeros(backend, 1, own, Element::kSum);
  bucket.moment2 = Tensor::Zeros(backend, 1, own, Element::kSum);
  std::vector<double> values;
  for (const TensorPart& part : bucket.parts) {
    values.clear();
    for (std::int64_t r = 0; r < part.rows; ++r) {
      const std::int64_t row = part.global_row(r);
      for (std::int64_t c = 0; c < part.cols; ++c) {
        // Rows beyond the vocabulary are padding.
        values.push_back(row >= part.whole.rows ? 0
                                                : InitialValue(workload, part.name, part.whole, row,
                                                               part.first_col + c));
      }
    }
    backend.Upload(std::span<const double>(values),
                   bucket.weights.view().Part(part.offset, part.elements()));
    const std::int64_t first = std::max(part.offset, bucket.first);
    const std::int64_t last = std::min(part.offset + part.elements(), bucket.last);
    if (bucket.master.empty() || first >= last) continue;
    backend.Upload(std::span<const double>(values).subspan(std::size_t(first - part.offset),
                                                           std::size_t(last - first)),
                   bucket.master.view().Part(first - bucket.first, last - first));
  }
  return bucket;
}

}  // namespace

Unit MakeUnit(const Workload& workload, const RankGroups& groups, Backend& backend, int stage,
              int layer, std::span<const Operator> operators, bool without_table) {
  Unit unit{.stage = stage, .layer = layer};
  bool routed = false;
  for (const Operator& op : operators) {
    if (op.kind == OperatorKind::kHost) continue;  // what a GPU's host costs is no work
    unit.operators.push_back(op);
    unit.numbers.push_back(int(&op - operators.data()));
    unit.codes.push_back(CodeOf(op.name, routed));
    if (unit.codes.back() == OperatorCode::kPermute) routed = true;
  }
  std::map<BucketKind, std::vector<TensorPart>> parts;
  for (const TensorPart& part : PartsOf(workload, layer, groups.place)) {
    if (part.bucket == BucketKind::kTable && without_table) continue;
    parts[part.bucket].push_back(part);
  }
  for (auto& [kind, of_kind] : parts) {
    const RankGroup& group = kind == BucketKind::kExperts ? groups.expert_data : groups.data;
    unit.buckets.push_back(MakeBucket(workload, group, backend, std::move(of_kind)));
  }
  return unit;
}

}  // namespace millwright
