// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_group.h"

#include "core/check.h"
#include "sim/collectives.h"

namespace millwright {

int IndexIn(const RankGroup& group, int rank) {
  const int index = (rank - group.first) / group.stride;
  MILLWRIGHT_CHECK(index >= 0 && index < group.ranks && group.member(index) == rank);
  return index;
}

std::pair<std::int64_t, std::int64_t> PartOf(const RankGroup& group, int rank,
                                             std::int64_t elements) {
  if (group.ranks == 1) return {0, elements};
  const int index = IndexIn(group, rank);
  const TransferPlan plan({.kind = CollectiveKind::kAllGather,
                           .algorithm = CollectiveAlgorithm::kRing,
                           .payload = Bytes(1),
                           .domain_sizes = {group.ranks}});
  MILLWRIGHT_CHECK(plan.blocks() == group.ranks && plan.StartsWith(index, index));
  return plan.RangeOf(index, elements);
}

RankGroups GroupsOf(const ParallelConfig& p, int rank) {
  const RankPlace place = PlaceOf(p, rank);
  const int block = p.expert * p.expert_tensor, stage = p.tensor * p.context * p.data;
  const int of_block = rank % stage % block, ulysses = p.ulysses_ranks();
  return {
      .place = place,
      .tensor = {.first = rank - place.tensor, .stride = 1, .ranks = p.tensor},
      .data = {.first = rank - (place.data * p.context + place.context) * p.tensor,
               .stride = p.tensor,
               .ranks = p.data * p.context},
      .everyone = {.first = 0, .stride = 1, .ranks = int(p.gpus())},
      .ulysses = {.first = rank - place.context % ulysses * p.tensor,
                  .stride = p.tensor,
                  .ranks = ulysses},
      .ring = {.first = rank - place.context / ulysses * ulysses * p.tensor,
               .stride = p.tensor * ulysses,
               .ranks = p.ring_ranks()},
      .expert = {.first = rank - place.expert * p.expert_tensor,
                 .stride = p.expert_tensor,
                 .ranks = p.expert},
      .expert_tensor = {.first = rank - place.expert_tensor, .stride = 1, .ranks = p.expert_tensor},
      .expert_data = {.first = rank - place.expert_data * block,
                      .stride = block,
                      .ranks = stage / block},
      .experts = {.first = rank - of_block, .stride = 1, .ranks = block},
      .micro_batch = {.first = rank - rank % (p.tensor * p.context),
                      .stride = 1,
                      .ranks = p.tensor * p.context},
      .stage = {.first = rank - rank % stage, .stride = 1, .ranks = stage}};
}

}  // namespace millwright
