// SPDX-License-Identifier: Apache-2.0
#include "report/export_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/mistakes.h"
#include "cost_models/pipeline.h"
#include "planner/data_parallel.h"
#include "report/estimate_text.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

std::string Commented(std::string_view text) {
  constexpr int kColumns = 98;
  std::string out;
  std::string_view rest;
  const std::string wrapped = Wrapped(text, kColumns, 0);
  for (rest = wrapped; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    out += fmt::format("# {}\n", line);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return out;
}

}  // namespace

void ExportNotes::Cannot(std::string_view field, std::string_view why) {
  exported_.unexpressed.push_back({format_, std::string(field), std::string(why)});
}

std::string ExportNotes::Head(const Job& job, std::string_view what, std::string_view spelling,
                              std::string_view usage) const {
  const auto shown = [](const std::string& name) { return Printable(name, kMostNameShown); };
  std::string head =
      Commented(fmt::format("{} of the plan {} for {} on {} x {}, {}, written by Millwright.", what,
                            BriefName(job.parallel), shown(job.model.name), job.cluster.nodes,
                            shown(job.cluster.name), Counted(job.cluster.gpus(), "GPU")));
  head += Commented(fmt::format("Spelling: {}.", spelling));
  head += Commented(usage);
  bool first = true;
  for (const Unexpressed& u : exported_.unexpressed) {
    if (u.format != format_) continue;
    if (first) head += "#\n# Not said here:\n";
    first = false;
    head += Commented(fmt::format("- {}: {}", u.field, u.why));
  }
  if (!by_release_.empty()) head += "#\n# By release:\n";
  for (const std::string& how : by_release_) head += Commented(fmt::format("- {}", how));
  return head;
}

void ExportNotes::AddFile(std::string name, std::string text) {
  exported_.files.push_back({std::move(name), std::move(text)});
}

const Recompute& ExportNotes::RecomputeOf(const ParallelConfig& plan) {
  const Recompute& first = plan.RecomputeOf(0);
  if (!plan.rank_recompute.empty()) {
    Cannot("parallel.rank_recompute",
           fmt::format("recomputation is one for all pipeline ranks; written is the first rank's, "
                       "{}, in place of {}",
                       ShortName(first), RecomputeName(plan)));
  }
  return first;
}

Hosts HostsOf(const ClusterConfig& cluster) {
  constexpr int kMostOfHost = 16;  // HGX boards have 8, and AWS p2 hosts had 16
  constexpr int kOfTray = 4;       // GB200 and GB300 NVL72: 18 compute trays of 4 GPUs (datasheet)
  const int domain = cluster.gpus_per_node;
  const int gpus = domain > kMostOfHost && domain % kOfTray == 0 ? kOfTray : domain;
  return {.count = cluster.nodes * (domain / gpus), .gpus = gpus};
}

ChunkLayers ChunkLayersOf(const ModelConfig& model, const ParallelConfig& plan) {
  ChunkLayers chunks{.layers =
                         LayersPerChunk(model, plan.pipeline, ChunksOfRank(ScheduleOf(plan, 1)),
                                        plan.stage_layers)};
  chunks.even = std::all_of(chunks.layers.begin(), chunks.layers.end(),
                            [&](int n) { return n == chunks.layers.front(); });
  return chunks;
}

std::vector<BitRun> MoeRuns(const ModelConfig& model) {
  std::vector<BitRun> runs;
  for (const LayerRun& run : model.layers) {
    if (runs.empty() || runs.back().bit != run.kind.moe) runs.push_back({.bit = run.kind.moe});
    runs.back().count += run.count;
  }
  return runs;
}

void NoteExpertShard(const Job& job, ExportNotes& notes) {
  const DataRanks r = DataRanksOf(job.parallel);
  const std::int64_t of_rest = r.dense_ranks / r.dense_shard;
  const std::int64_t of_experts = r.expert_ranks / r.expert_shard;
  if (!job.model.has_moe() || job.parallel.zero_shard == 0 || of_experts == of_rest) return;
  notes.Cannot("parallel.zero_shard",
               fmt::format("experts' {} data-parallel ranks are sharded there into {} groups, as "
                           "the rest; here into {} of {} ranks",
                           r.expert_ranks, of_rest, of_experts, r.expert_shard));
}

}  // namespace millwright
