// SPDX-License-Identifier: Apache-2.0
#include "cost_models/pipeline.h"

#include <algorithm>
#include <cmath>

#include "core/parameters.h"

namespace millwright {

double BubbleRatio(int pipeline, std::int64_t micro_batches, int virtual_stages) {
  return double(pipeline - 1) / (double(virtual_stages) * double(micro_batches));
}

double ChunksInFlight(int pipeline, std::int64_t micro_batches, int virtual_stages, int rank) {
  const double m = double(micro_batches);
  if (virtual_stages == 1) return std::min(double(pipeline - rank), m);
  return std::min(2.0 * (pipeline - 1 - rank) + (virtual_stages - 1.0) * pipeline + 1,
                  m * virtual_stages);
}

double ChunksInFlight(int pipeline, std::int64_t micro_batches, int virtual_stages, int rank,
                      int chunk) {
  const double p = pipeline;
  const double in_flight = ChunksInFlight(pipeline, micro_batches, virtual_stages, rank);
  const double round = p * virtual_stages;  // forwards of one group of micro-batches
  const double whole = std::floor(in_flight / round);
  return whole * p + std::clamp(in_flight - whole * round - chunk * p, 0.0, p);
}

std::vector<int> LayersPerChunk(int num_layers, int pipeline, int virtual_stages) {
  const int chunks = pipeline * virtual_stages;
  if (virtual_stages > 1 && (num_layers + 2) % chunks == 0) {
    std::vector<int> layers(chunks, (num_layers + 2) / chunks);
    --layers.front();
    --layers.back();
    return layers;
  }
  std::vector<int> layers(chunks, num_layers / chunks);
  const int longer = num_layers % chunks;
  const int whole = longer / pipeline * pipeline;
  for (int k = 0; k < whole; ++k) ++layers[k];
  // The round in which only some are longer: the last one.
  const int first = chunks - pipeline;
  const int some = longer - whole;
  if (some == 0) return layers;
  std::vector<int> order;  // of who is spared: last, first, from the end
  order.push_back(pipeline - 1);
  if (pipeline > 1) order.push_back(0);
  for (int r = pipeline - 2; r > 0; --r) order.push_back(r);
  for (int i = pipeline - some; i < pipeline; ++i) ++layers[first + order[i]];
  return layers;
}

std::vector<int> StageContent::LeadingLayers(int per_chunk) const {
  if (per_chunk == 0) return layers;
  std::vector<int> leading(layers.size());
  for (const std::vector<int>& chunk : chunks) {
    const int n = std::min(per_chunk, int(chunk.size()));
    for (int i = 0; i < n; ++i) ++leading[chunk[i]];
  }
  return leading;
}

std::vector<int> StageContent::SpreadLayers(int per_chunk) const {
  std::vector<int> spread(layers.size());
  for (const std::vector<int>& chunk : chunks) {
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      spread[chunk[i]] += IsSpread(int(i), int(chunk.size()), per_chunk) ? 1 : 0;
    }
  }
  return spread;
}

bool IsSpread(int layer, int layers, int of_chunk) {
  const auto before = [&](int end) {  // of the layers before `end`
    return (std::int64_t{end} * std::min(of_chunk, layers) + layers - 1) / layers;
  };
  return before(layer + 1) > before(layer);
}

// What the head, and each MTP module's, costs in layers of the last kind: per token, by the weights
// that take part.
double HeadInLayers(const ModelConfig& model) {
  double active = 0;
  for (const Weight& w : LayerWeights(model, model.layers.back().kind)) {
    const bool routed =
        w.split == WeightSplit::kExpert || w.split == WeightSplit::kExpertReplicated;
    active += double(w.elements()) * (routed ? double(model.moe.topk) / model.moe.num_experts : 1);
  }
  return double(model.hidden_size) * double(model.vocab_size) / active;
}

std::vector<int> LayersPerChunk(const ModelConfig& model, int pipeline, int virtual_stages,
                                std::span<const int> own) {
  const int chunks = pipeline * virtual_stages;
  if (int(own.size()) == chunks) return {own.begin(), own.end()};
  if (model.mtp_num_layers == 0 || chunks == 1) {
    return LayersPerChunk(model.num_layers, pipeline, virtual_stages);
  }
  const double modules = model.mtp_num_layers;
  const double at_end = modules + (1 + modules) * HeadInLayers(model);
  const double target = (model.num_layers + at_end) / chunks;
  const int last = int(std::clamp(std::round(target - at_end), 0.0, double(model.num_layers)));
  const int others = model.num_layers - last;
  std::vector<int> layers(chunks, others / (chunks - 1));
  // Dense layers, the cheaper ones, come first.
  for (int k = 0; k < others % (chunks - 1); ++k) ++layers[k];
  layers.back() = last;
  return layers;
}

std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline, int virtual_stages) {
  std::vector<int> rank_of_stage(std::size_t(pipeline) * std::size_t(virtual_stages));
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    rank_of_stage[s] = int(s % std::size_t(pipeline));
  }
  return StagesOf(model, pipeline, rank_of_stage, 1);
}

std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline,
                                   std::span<const int> rank_of_stage, int copies,
                                   std::span<const int> stage_layers) {
  const std::vector<LayerKind> kinds = model.distinct_kinds();
  std::vector<int> kind_of_layer;
  for (const LayerRun& run : model.layers) {
    const auto kind = std::find(kinds.begin(), kinds.end(), run.kind) - kinds.begin();
    kind_of_layer.insert(kind_of_layer.end(), run.count, int(kind));
  }

  std::vector<StageContent> ranks(pipeline);
  for (int r = 0; r < pipeline; ++r) {
    ranks[r].ranks = {r};
    ranks[r].layers.assign(kinds.size(), 0);
  }
  const std::size_t stages = rank_of_stage.size() / std::size_t(copies);
  const std::vector<int> sizes =
      LayersPerChunk(model, pipeline, int(stages) / pipeline, stage_layers);
  auto next = kind_of_layer.begin();
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    const std::size_t chunk = s % stages;
    StageContent& rank = ranks[rank_of_stage[s]];
    if (chunk == 0) {
      rank.embedding = true;
      next = kind_of_layer.begin();
    }
    rank.chunks.emplace_back(next, next + sizes[chunk]);
    next += sizes[chunk];
    rank.total_layers += sizes[chunk];
    if (chunk + 1 == stages) {
      rank.head = true;
      rank.chunks.back().insert(rank.chunks.back().end(), std::size_t(model.mtp_num_layers),
                                kind_of_layer.back());
      rank.total_layers += model.mtp_num_layers;
    }
    for (int kind : rank.chunks.back()) ++rank.layers[kind];
  }
  return ranks;
}

std::vector<StageContent> DistinctStages(const std::vector<StageContent>& stages) {
  std::vector<StageContent> distinct;
  for (const StageContent& stage : stages) {
    const auto same = std::find_if(distinct.begin(), distinct.end(), [&](const StageContent& d) {
      return d.embedding == stage.embedding && d.head == stage.head && d.chunks == stage.chunks &&
             d.treatment == stage.treatment;
    });
    if (same == distinct.end()) {
      distinct.push_back(stage);
    } else {
      same->ranks.push_back(stage.ranks.front());
    }
  }
  return distinct;
}

std::vector<double> ChunksHeldAtPeak(int pipeline, std::int64_t micro_batches, int virtual_stages,
                                     int rank, const StageContent& content) {
  std::vector<double> held;
  for (int chunk = 0; chunk < virtual_stages; ++chunk) {
    held.push_back(ChunksInFlight(pipeline, micro_batches, virtual_stages, rank, chunk));
  }
  if (micro_batches <= pipeline) return held;
  const auto layers = [&](int chunk) { return double(content.chunks[chunk].size()); };
  double more = 0, most = 0;
  int upto = -1;
  for (int chunk = 0; chunk < virtual_stages; ++chunk) {
    more += layers(chunk) - layers(virtual_stages - 1 - chunk);
    if (more > most) {
      most = more;
      upto = chunk;
    }
  }
  for (int chunk = 0; chunk <= upto; ++chunk) {
    held[chunk] += pipeline;
    held[virtual_stages - 1 - chunk] -= pipeline;
  }
  return held;
}

double ChunkUnevenness(const std::vector<StageContent>& stages, int pipeline) {
  const std::size_t rounds = stages.front().chunks.size();
  if (rounds == 1) return 1;
  std::vector<std::size_t> longest(rounds);
  std::size_t fullest = 0, in_step = 0;
  for (const StageContent& stage : stages) {
    fullest = std::max(fullest, std::size_t(stage.total_layers));
    for (std::size_t j = 0; j < rounds; ++j) {
      longest[j] = std::max(longest[j], stage.chunks[j].size());
    }
  }
  for (std::size_t j = 0; j < rounds; ++j) {
    in_step += std::max(longest[j], longest[(j + rounds - 1) % rounds]);
  }
  const double p = pipeline;
  return 1 + (p - 2) / (p + 2) * (double(in_step) / double(fullest) - 1);
}

double ExposedTransfers1F1B(int pipeline, std::int64_t micro_batches) {
  if (pipeline <= 1) return 0;
  const double p = pipeline;
  return 2 * (p - 1) / p * double(micro_batches) + 2 * (p - 2);
}

}  // namespace millwright
