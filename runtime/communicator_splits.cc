// SPDX-License-Identifier: Apache-2.0
#include "runtime/communicator_splits.h"

#include <algorithm>

#include "runtime/pipeline_messages.h"

namespace millwright {

std::vector<CommunicatorSplit> SplitsOf(const Workload& workload, int rank) {
  const ParallelConfig& p = workload.parallel;
  const RankGroups groups = GroupsOf(p, rank);
  std::vector<RankGroup> of_rank{groups.tensor,        groups.ulysses,    groups.ring,
                                 groups.data,          groups.experts,    groups.expert,
                                 groups.expert_tensor, groups.expert_data};
  // Ranks that share KV heads, as runtime/execution sums their gradients.
  for (int layer = 0; layer < workload.model.num_layers; ++layer) {
    for (const TensorPart& part : PartsOf(workload, layer, groups.place)) {
      of_rank.push_back({.first = rank - rank % part.copies, .stride = 1, .ranks = part.copies});
    }
  }
  if (MultipliesFp8(workload)) {
    of_rank.push_back(groups.micro_batch);
    if (workload.model.has_moe()) of_rank.push_back(groups.stage);
  }
  std::vector<CommunicatorSplit> splits;
  for (const RankGroup& group : of_rank) {
    const bool known = std::any_of(splits.begin(), splits.end(),
                                   [&](const auto& split) { return split.group == group; });
    if (group.ranks == 1 || group == groups.everyone || known) continue;
    splits.push_back({.color = group.first, .key = IndexIn(group, rank), .group = group});
  }
  const int plane = p.tensor * p.context * p.data, in_plane = rank % plane;
  for (const auto& [from, to] : PipelineEdges(workload.schedule, workload.model.tied_embeddings)) {
    const bool sends = groups.place.pipeline == from, receives = groups.place.pipeline == to;
    splits.push_back(
        {.color = sends || receives ? in_plane : -1,
         .key = receives ? 1 : 0,
         .group = {.first = from * plane + in_plane, .stride = (to - from) * plane, .ranks = 2},
         .channel = true});
  }
  return splits;
}

std::vector<CommunicatorSplit> SplitsOfFirst(const std::set<int>& sizes, int ranks, int rank) {
  std::vector<CommunicatorSplit> splits;
  for (int first : sizes) {
    if (first == 1 || first == ranks) continue;  // none is needed, or that of all
    splits.push_back({.color = rank < first ? 0 : -1,
                      .key = rank,
                      .group = {.first = 0, .stride = 1, .ranks = first}});
  }
  if (ranks == 1) return splits;
  for (const int from : {0, 1}) {
    splits.push_back({.color = rank < 2 ? 0 : -1,
                      .key = rank == from ? 0 : 1,
                      .group = {.first = from, .stride = 1 - 2 * from, .ranks = 2},
                      .channel = true});
  }
  return splits;
}

}  // namespace millwright
