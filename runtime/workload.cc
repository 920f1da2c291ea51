// SPDX-License-Identifier: Apache-2.0
#include "runtime/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/mixed.h"
#include "cost_models/operators.h"
#include "cost_models/pipeline.h"

namespace millwright {
namespace {

// From -1 to 1.
double Uniform(std::uint64_t bits) { return 2 * (double(bits >> 11) * 0x1p-53) - 1; }

bool IsNorm(std::string_view weight) { return weight.ends_with("_norm"); }
bool IsBias(std::string_view weight) { return weight.ends_with("_bias"); }
bool IsHeadNorm(std::string_view weight) { return weight == "q_norm" || weight == "k_norm"; }
bool IsRowParallel(std::string_view weight) {
  return weight == "attention_output" || weight.ends_with("fc2");
}

}  // namespace

bool MultipliesFp8(const Workload& w) { return w.training.precision == Precision::kFp8; }

std::vector<std::string> WhyNotExecutable(const Workload& w) {
  const ModelConfig& m = w.model;
  const ParallelConfig& p = w.parallel;
  std::vector<std::string> why;
  const auto refuse = [&](bool asked, std::string_view what) {
    if (asked) why.push_back(fmt::format("run does not execute {} yet", what));
  };
  refuse(m.latent, "latent attention");
  refuse(m.position_embedding == PositionEmbedding::kLearned &&
             w.training.seq_length > m.max_position_embeddings,
         "sequences longer than the table of learned positions");
  refuse(m.position_embedding == PositionEmbedding::kRope && m.kv_channels % 2 != 0,
         "RoPE on heads of odd size");
  refuse(m.post_layer_norms, "norms on a layer's outputs");
  refuse(m.parallel_residual, "attention and MLP side by side");
  refuse(m.attention_sinks, "attention sinks");
  refuse(m.attention_dropout || m.hidden_dropout, "dropout");
  refuse(m.mtp_num_layers > 0, "multi-token prediction");
  refuse(m.has_moe() && m.moe.shared_expert_gate, "a gate on the shared experts");
  refuse(m.has_moe() && m.moe.router_correction_bias, "a router's load-balancing bias");
  refuse(m.has_moe() && m.moe.num_groups > 0, "node-limited routing (groups of experts)");
  refuse(p.zero_shard > 0, "ZeRO over a part of the data-parallel ranks (--zero-shard)");
  refuse(w.parallel.Offloads(), "offloaded activations");
  refuse(w.training.fp8_activation_store, "keeping the MLP activation's input in FP8");
  refuse(w.schedule.forward_only, "a schedule without backward passes");
  refuse(w.training.precision == Precision::kMxfp8 || w.training.precision == Precision::kNvfp4,
         "products in mxfp8 and nvfp4 (a scale for each block; fp8 has one for each tensor)");
  // Each rank of a KV head has a part of its gradient, and parts are not rounded as their sum is.
  refuse(MultipliesFp8(w) && p.tensor > m.num_query_groups,
         "products in FP8 on more tensor ranks than KV heads");
  return why;
}

std::string Text(const TensorName& name, const ModelConfig& model) {
  if (name.layer < 0 || name.layer == model.num_layers) return std::string(name.weight);
  return fmt::format("layer {} {}", name.layer, name.weight);
}

std::vector<Weight> WeightsOf(const ModelConfig& model, int layer) {
  std::vector<Weight> weights = layer < 0 ? EmbeddingWeights(model)
                                : layer == model.num_layers
                                    ? HeadWeights(model)
                                    : LayerWeights(model, model.layer(layer));
  for (Weight& weight : weights) {
    if (IsNorm(weight.name) && weight.cols == 2) std::swap(weight.rows, weight.cols);
    weight.rows *= std::exchange(weight.count, 1);
  }
  return weights;
}

double InitialValue(const Workload& w, const TensorName& name, const Weight& weight,
                    std::int64_t row, std::int64_t col) {
  std::uint64_t key = Mixed(w.seed);
  for (char c : name.weight) key = Mixed(key ^ std::uint64_t(c));
  key = Mixed(key ^ std::uint64_t(name.layer + 1));
  const double u = Uniform(Mixed(key ^ std::uint64_t(row * weight.cols + col)));
  if (IsNorm(name.weight)) {
    const bool bias = w.model.normalization == Normalization::kLayerNorm && row == 1;
    return (bias ? 0 : 1) + 0.1 * u;
  }
  if (IsBias(name.weight)) return 0.1 * u;
  const bool table = name.layer < 0 && !w.model.tied_embeddings;  // a head's is a matrix
  const double variance = table ? 1 : 1 / double(weight.cols);
  return std::sqrt(3 * variance) * u;  // uniform in +-a has the variance a^2 / 3
}

std::int64_t Token(const Workload& w, int step, std::int64_t sequence, std::int64_t position) {
  std::uint64_t key = Mixed(~w.seed);
  for (std::int64_t part : {std::int64_t{step}, sequence, position}) {
    key = Mixed(key ^ std::uint64_t(part));
  }
  return std::int64_t(key % std::uint64_t(w.model.vocab_size));
}

std::vector<TensorPart> PartsOf(const Workload& w, int layer, const RankPlace& place) {
  const ModelConfig& m = w.model;
  const ParallelConfig& p = w.parallel;
  const int t = p.tensor;
  std::vector<Weight> weights = WeightsOf(m, layer);
  const std::size_t own = weights.size();
  if (m.tied_embeddings && layer == m.num_layers) weights.push_back(EmbeddingWeights(m).front());
  std::vector<TensorPart> parts;
  std::array<std::int64_t, 3> offsets{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = weights[i];
    TensorPart part{.name = {i < own ? layer : -1, weight.name},
                    .whole = weight,
                    .rows = weight.rows,
                    .cols = weight.cols,
                    .section_rows = weight.rows};
    const bool fc1 = weight.name.find("fc1") != std::string_view::npos;
    const int gates = fc1 && m.gated_linear_unit ? 2 : 1;  // sections of fc1
    switch (weight.split) {
      case WeightSplit::kReplicated:
        part.copies = t;
        // Each has its own tokens, or heads; of positions all have the whole gradient.
        part.partial_gradient = (p.sequence_parallel || IsHeadNorm(weight.name)) && layer >= 0;
        break;
      case WeightSplit::kTensor:
        if (IsRowParallel(weight.name)) {
          part.cols = weight.cols / t;
          part.first_col = part.cols * place.tensor;
        } else {
          part.sections = gates;
          part.section_rows = weight.rows / gates;
          part.rows = weight.rows / t;
          part.first_row = part.section_rows / t * place.tensor;
        }
        break;
      case WeightSplit::kQueryGroups: {
        const int groups = m.num_query_groups;
        part.sections = 2;
        part.section_rows = weight.rows / 2;
        const int cut = std::min(t, groups);
        part.rows = weight.rows / cut;
        part.copies = t / cut;
        part.first_row = part.section_rows / cut * (place.tensor / part.copies);
        part.partial_gradient = true;
        break;
      }
      case WeightSplit::kVocabulary:
        part.rows = PaddedVocabulary(m.vocab_size, t) / t;
        part.first_row = part.rows * place.tensor;
        if (weight.name == "token_embedding") part.bucket = BucketKind::kTable;
        break;
      case WeightSplit::kExpert: {
        const int x = p.expert_tensor, experts = m.moe.num_experts / p.expert;  // on this rank
        part.bucket = BucketKind::kExperts;
        part.rows = weight.rows / p.expert;
        part.first_row = part.rows * place.expert;
        if (IsRowParallel(weight.name)) {
          part.cols = weight.cols / x;
          part.first_col = part.cols * place.expert_tensor;
        } else {
          part.sections = std::int64_t{1} * experts * gates;
          part.section_rows = part.rows / part.sections;
          part.rows /= x;
          part.first_row += part.section_rows / x * place.expert_tensor;
        }
        break;
      }
      case WeightSplit::kExpertReplicated:
        part.bucket = BucketKind::kExperts;
        part.rows = weight.rows / p.expert;
        part.first_row = part.rows * place.expert;
        part.copies = p.expert_tensor;
        part.partial_gradient = true;  // the first of them has it
        break;
    }
    std::int64_t& offset = offsets[std::size_t(part.bucket)];
    part.offset = std::exchange(offset, offset + part.elements());
    parts.push_back(part);
  }
  return parts;
}

std::pair<int, int> LayersOfStage(const Workload& w, int stage) {
  const PipelineSchedule& schedule = w.schedule;
  const int stages = schedule.stages_per_direction();
  const std::vector<int> counts = LayersPerChunk(
      w.model, schedule.pipeline, stages / schedule.pipeline, w.parallel.stage_layers);
  int first = 0;
  for (int s = 0; s < stage % stages; ++s) first += counts[std::size_t(s)];
  return {first, first + counts[std::size_t(stage % stages)]};
}

RankPlace PlaceOf(const ParallelConfig& p, int rank) {
  const int stage = p.tensor * p.context * p.data, in_stage = rank % stage;
  return {.tensor = rank % p.tensor,
          .context = rank / p.tensor % p.context,
          .data = in_stage / (p.tensor * p.context),
          .pipeline = rank / stage,
          .expert_tensor = in_stage % p.expert_tensor,
          .expert = in_stage / p.expert_tensor % p.expert,
          .expert_data = in_stage / (p.expert_tensor * p.expert)};
}

}  // namespace millwright
