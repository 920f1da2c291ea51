#include "cost_models/pipeline.h"

#include <algorithm>

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

std::vector<int> LayersPerChunk(int num_layers, int chunks) {
  const int base = num_layers / chunks;
  const int longer = num_layers % chunks;
  std::vector<int> layers(chunks, longer == 0 ? base : base + 1);
  int shorter = longer == 0 ? 0 : chunks - longer;
  if (shorter > 0) {
    --layers[chunks - 1];
    --shorter;
  }
  if (shorter > 0) {
    --layers[0];
    --shorter;
  }
  for (int k = chunks - 2; shorter > 0; --k, --shorter) --layers[k];
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

std::vector<StageContent> StagesOf(const ModelConfig& model, int pipeline, int virtual_stages) {
  const std::vector<LayerKind> kinds = model.distinct_kinds();
  std::vector<int> kind_of_layer;
  for (const LayerRun& run : model.layers) {
    const auto kind = std::find(kinds.begin(), kinds.end(), run.kind) - kinds.begin();
    kind_of_layer.insert(kind_of_layer.end(), run.count, int(kind));
  }

  std::vector<StageContent> stages(pipeline);
  for (int r = 0; r < pipeline; ++r) {
    stages[r].first_rank = r;
    stages[r].layers.assign(kinds.size(), 0);
  }
  stages.front().embedding = true;
  stages.back().head = true;
  const std::vector<int> sizes = LayersPerChunk(model.num_layers, pipeline * virtual_stages);
  auto next = kind_of_layer.begin();
  for (std::size_t chunk = 0; chunk < sizes.size(); ++chunk) {
    StageContent& stage = stages[chunk % pipeline];
    stage.chunks.emplace_back(next, next + sizes[chunk]);
    next += sizes[chunk];
    stage.total_layers += sizes[chunk];
    for (int kind : stage.chunks.back()) ++stage.layers[kind];
  }
  return stages;
}

std::vector<StageContent> DistinctStages(const std::vector<StageContent>& stages) {
  std::vector<StageContent> distinct;
  for (const StageContent& stage : stages) {
    const auto same = std::find_if(distinct.begin(), distinct.end(), [&](const StageContent& d) {
      return d.embedding == stage.embedding && d.head == stage.head && d.chunks == stage.chunks;
    });
    if (same == distinct.end()) {
      distinct.push_back(stage);
    } else {
      ++same->ranks;
    }
  }
  return distinct;
}

double ChunkUnevenness(const std::vector<StageContent>& stages) {
  std::size_t rounds = 0, fullest = 0;
  for (std::size_t j = 0; j < stages.front().chunks.size(); ++j) {
    std::size_t longest = 0;
    for (const StageContent& stage : stages) longest = std::max(longest, stage.chunks[j].size());
    rounds += longest;
  }
  for (const StageContent& stage : stages) {
    fullest = std::max(fullest, std::size_t(stage.total_layers));
  }
  return double(rounds) / double(fullest);
}

double ExposedTransfers1F1B(int pipeline, std::int64_t micro_batches) {
  if (pipeline <= 1) return 0;
  const double p = pipeline;
  return 2 * (p - 1) / p * double(micro_batches) + 2 * (p - 2);
}

}  // namespace millwright
