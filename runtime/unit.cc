// SPDX-License-Identifier: Apache-2.0
#include "runtime/unit.h"

#include <algorithm>
#include <tuple>

#include "core/check.h"

namespace millwright {
namespace {

OperatorCode CodeOf(std::string_view name) {
  static constexpr std::pair<std::string_view, OperatorCode> kCodes[] = {
      {"embedding", OperatorCode::kEmbedding},
      {"embedding reduce", OperatorCode::kReduce},
      {"input norm", OperatorCode::kInputNorm},
      {"qkv gather", OperatorCode::kGather},
      {"qkv", OperatorCode::kQkv},
      {"qkv wgrad gather", OperatorCode::kRegather},
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
  };
  const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes),
                                   [&](const auto& code) { return code.first == name; });
  MILLWRIGHT_CHECK(found != std::end(kCodes));
  return found->second;
}

}  // namespace

bool Unit::has(std::string_view name) const {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const TensorPart& p) { return p.name.weight == name; });
}

const TensorPart& Unit::part(std::string_view name) const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const TensorPart& p) { return p.name.weight == name; });
  MILLWRIGHT_CHECK(found != parts.end());
  return *found;
}

ConstView Unit::weight(std::string_view name) const {
  if (!has(name)) return {};
  const TensorPart& p = part(name);
  return weights.view().Part(p.offset, p.elements()).Shaped(p.rows, p.cols);
}

View Unit::gradient(std::string_view name) {
  const TensorPart& p = part(name);
  return gradients.view().Part(p.offset, p.elements()).Shaped(p.rows, p.cols);
}

Unit MakeUnit(const Workload& workload, const RankGroups& groups, Backend& backend, int stage,
              int layer, std::span<const Operator> operators) {
  Unit unit{.stage = stage, .layer = layer};
  for (const Operator& op : operators) {
    if (op.kind == OperatorKind::kHost) continue;  // what a GPU's host costs is no work
    unit.operators.push_back(op);
    unit.codes.push_back(CodeOf(op.name));
  }
  unit.parts = PartsOf(workload, layer, groups.place.tensor);
  std::int64_t elements = 0;
  for (const TensorPart& part : unit.parts) elements += part.elements();
  unit.weights = Tensor(backend, 1, elements);
  unit.gradients = Tensor::Zeros(backend, 1, elements, Element::kSum);
  std::tie(unit.first, unit.last) = workload.parallel.zero == 0
                                        ? std::pair(std::int64_t{0}, elements)
                                        : PartOf(groups.data, backend.rank(), elements);
  const std::int64_t own = unit.last - unit.first;
  if (backend.WidthOf(Element::kValue) < backend.WidthOf(Element::kSum)) {
    unit.master = Tensor(backend, 1, own, Element::kSum);
  }
  unit.shard_gradients = Tensor::Zeros(backend, 1, own, Element::kSum);
  unit.moment1 = Tensor::Zeros(backend, 1, own, Element::kSum);
  unit.moment2 = Tensor::Zeros(backend, 1, own, Element::kSum);
  std::vector<double> values;
  for (const TensorPart& part : unit.parts) {
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
                   unit.weights.view().Part(part.offset, part.elements()));
    const std::int64_t first = std::max(part.offset, unit.first);
    const std::int64_t last = std::min(part.offset + part.elements(), unit.last);
    if (unit.master.empty() || first >= last) continue;
    backend.Upload(std::span<const double>(values).subspan(std::size_t(first - part.offset),
                                                           std::size_t(last - first)),
                   unit.master.view().Part(first - unit.first, last - first));
  }
  return unit;
}

}  // namespace millwright
