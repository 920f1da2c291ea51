// SPDX-License-Identifier: Apache-2.0
#include "runtime/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cost_models/operators.h"
#include "cost_models/pipeline.h"

namespace millwright {
namespace {

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of the result depends on each of x.
std::uint64_t Mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// From -1 to 1.
double Uniform(std::uint64_t bits) { return 2 * (double(bits >> 11) * 0x1p-53) - 1; }

bool IsNorm(std::string_view weight) { return weight.ends_with("_norm"); }
bool IsBias(std::string_view weight) { return weight.ends_with("_bias"); }

}  // namespace

std::vector<std::string> WhyNotExecutable(const Workload& w) {
  const ModelConfig& m = w.model;
  const ParallelConfig& p = w.parallel;
  std::vector<std::string> why;
  const auto refuse = [&](bool asked, std::string_view what) {
    if (asked) why.push_back(fmt::format("run does not execute {} yet", what));
  };
  refuse(m.has_moe(), "mixture-of-experts layers");
  refuse(m.latent, "latent attention");
  refuse(m.normalization != Normalization::kRmsNorm, "LayerNorm");
  refuse(m.position_embedding == PositionEmbedding::kLearned, "learned positions");
  refuse(m.position_embedding == PositionEmbedding::kRope && m.kv_channels % 2 != 0,
         "RoPE on heads of odd size");
  refuse(m.post_layer_norms, "norms on a layer's outputs");
  refuse(m.qk_layernorm, "norms on queries and keys");
  refuse(m.parallel_residual, "attention and MLP side by side");
  refuse(m.attention_sinks, "attention sinks");
  refuse(m.tied_embeddings, "a head tied to the embedding");
  refuse(m.attention_dropout || m.hidden_dropout, "dropout");
  refuse(m.mtp_num_layers > 0, "multi-token prediction");
  refuse(std::any_of(m.layers.begin(), m.layers.end(),
                     [](const LayerRun& run) { return run.kind.sliding_window > 0; }),
         "sliding windows");
  refuse(p.expert > 1 || p.expert_tensor > 1, "expert parallelism");
  refuse(p.zero_shard > 0, "ZeRO over a part of the data-parallel ranks (--zero-shard)");
  refuse(w.training.offloaded_layers > 0, "offloaded activations");
  refuse(w.schedule.forward_only, "a schedule without backward passes");
  return why;
}

std::string Text(const TensorName& name, const ModelConfig& model) {
  if (name.layer < 0 || name.layer == model.num_layers) return std::string(name.weight);
  return fmt::format("layer {} {}", name.layer, name.weight);
}

std::vector<Weight> WeightsOf(const ModelConfig& model, int layer) {
  if (layer < 0) return EmbeddingWeights(model);
  if (layer == model.num_layers) return HeadWeights(model);
  return LayerWeights(model, model.layer(layer));
}

double InitialValue(const Workload& w, const TensorName& name, const Weight& weight,
                    std::int64_t row, std::int64_t col) {
  std::uint64_t key = Mixed(w.seed);
  for (char c : name.weight) key = Mixed(key ^ std::uint64_t(c));
  key = Mixed(key ^ std::uint64_t(name.layer + 1));
  const double u = Uniform(Mixed(key ^ std::uint64_t(row * weight.cols + col)));
  if (IsNorm(name.weight)) return 1 + 0.1 * u;
  if (IsBias(name.weight)) return 0.1 * u;
  const double variance = name.layer < 0 ? 1 : 1 / double(weight.cols);
  return std::sqrt(3 * variance) * u;  // uniform in +-a has the variance a^2 / 3
}

std::int64_t Token(const Workload& w, int step, std::int64_t sequence, std::int64_t position) {
  std::uint64_t key = Mixed(~w.seed);
  for (std::int64_t part : {std::int64_t{step}, sequence, position}) {
    key = Mixed(key ^ std::uint64_t(part));
  }
  return std::int64_t(key % std::uint64_t(w.model.vocab_size));
}

std::vector<TensorPart> PartsOf(const Workload& w, int layer, int tensor_rank) {
  const ModelConfig& m = w.model;
  const int t = w.parallel.tensor;
  std::vector<TensorPart> parts;
  std::int64_t offset = 0;
  for (const Weight& weight : WeightsOf(m, layer)) {
    TensorPart part{.name = {layer, weight.name},
                    .whole = weight,
                    .rows = weight.rows,
                    .cols = weight.cols,
                    .section_rows = weight.rows,
                    .offset = offset};
    switch (weight.split) {
      case WeightSplit::kReplicated:
        part.copies = t;
        part.partial_gradient = w.parallel.sequence_parallel;
        break;
      case WeightSplit::kTensor:
        if (weight.name == "attention_output" || weight.name == "fc2") {
          part.cols = weight.cols / t;
          part.first_col = part.cols * tensor_rank;
        } else {
          part.sections = m.gated_linear_unit && weight.name.starts_with("fc1") ? 2 : 1;
          part.section_rows = weight.rows / part.sections;
          part.rows = weight.rows / t;
          part.first_row = part.section_rows / t * tensor_rank;
        }
        break;
      case WeightSplit::kQueryGroups: {
        const int groups = m.num_query_groups;
        part.sections = 2;
        part.section_rows = weight.rows / 2;
        const int cut = std::min(t, groups);
        part.rows = weight.rows / cut;
        part.copies = t / cut;
        part.first_row = part.section_rows / cut * (tensor_rank / part.copies);
        part.partial_gradient = true;
        break;
      }
      case WeightSplit::kVocabulary:
        part.rows = PaddedVocabulary(m.vocab_size, t) / t;
        part.first_row = part.rows * tensor_rank;
        break;
      case WeightSplit::kExpert:
      case WeightSplit::kExpertReplicated:
        MILLWRIGHT_CHECK(false);
    }
    offset += part.elements();
    parts.push_back(part);
  }
  return parts;
}

std::pair<int, int> LayersOfStage(const Workload& w, int stage) {
  const PipelineSchedule& schedule = w.schedule;
  const int stages = schedule.stages_per_direction();
  const std::vector<int> counts =
      LayersPerChunk(w.model.num_layers, schedule.pipeline, stages / schedule.pipeline);
  int first = 0;
  for (int s = 0; s < stage % stages; ++s) first += counts[std::size_t(s)];
  return {first, first + counts[std::size_t(stage % stages)]};
}

RankPlace PlaceOf(const ParallelConfig& p, int rank) {
  return {.tensor = rank % p.tensor,
          .context = rank / p.tensor % p.context,
          .data = rank / (p.tensor * p.context) % p.data,
          .pipeline = rank / (p.tensor * p.context * p.data)};
}

}  // namespace millwright
