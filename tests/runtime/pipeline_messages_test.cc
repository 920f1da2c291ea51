// SPDX-License-Identifier: Apache-2.0
//
// What pipeline ranks send each other, and the communicators that this and the groups need.
#include "runtime/pipeline_messages.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "runtime/communicator_splits.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

Workload WorkloadOf(ScheduleKind kind) {
  const bool chosen = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kBreadthFirst;
  return TinyWorkload(WithLayers(TinyModel(), 8),
                      {.tensor = 2,
                       .sequence_parallel = true,
                       .pipeline = 4,
                       .virtual_stages = chosen ? 2 : 1,
                       .data = 2,
                       .schedule = kind},
                      16);
}

// Each message that a pass waits for is sent by just one, of the rank that it names.
TEST(PipelineMessages, WhatIsAwaitedIsSent) {
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    SCOPED_TRACE(name.name);
    const PipelineSchedule schedule = WorkloadOf(name.value).schedule;
    std::set<std::tuple<int, int, int>> sent, awaited;  // from, to, tag
    std::set<int> tags;
    int passes = 0;
    for (int rank = 0; rank < schedule.pipeline; ++rank) {
      for (const Pass& pass : schedule.orders[std::size_t(rank)]) {
        if (const auto message = SentBy(schedule, pass)) {
          sent.emplace(rank, message->peer, message->tag);
          tags.insert(message->tag);
          ++passes;
        }
        if (const auto message = AwaitedBy(schedule, pass)) {
          awaited.emplace(message->peer, rank, message->tag);
        }
      }
    }
    EXPECT_EQ(sent, awaited);
    EXPECT_EQ(int(tags.size()), passes);
    EXPECT_LT(*tags.rbegin(), GradientsTag(schedule));
  }
}

TEST(CommunicatorSplits, EveryGroupIsWholeAndEveryRankTakesPart) {
  for (ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kDualPipe}) {
    const Workload workload = WorkloadOf(kind);
    std::vector<std::vector<CommunicatorSplit>> of_rank;
    for (int rank = 0; rank < workload.ranks(); ++rank) {
      of_rank.push_back(SplitsOf(workload, rank));
      ASSERT_EQ(of_rank.back().size(), of_rank.front().size());
    }
    for (std::size_t i = 0; i < of_rank.front().size(); ++i) {
      std::map<int, std::map<int, int>> ranks;  // by colour and key
      for (int rank = 0; rank < workload.ranks(); ++rank) {
        const CommunicatorSplit& split = of_rank[std::size_t(rank)][i];
        EXPECT_EQ(split.channel, of_rank.front()[i].channel);
        if (split.color < 0) continue;
        EXPECT_TRUE(ranks[split.color].emplace(split.key, rank).second);
        EXPECT_EQ(split.group.member(split.key), rank);
      }
      for (const auto& [color, members] : ranks) {
        const CommunicatorSplit& split = of_rank[std::size_t(members.begin()->second)][i];
        EXPECT_EQ(int(members.size()), split.group.ranks);
      }
    }
  }
}

// 1F1B on four ranks: activations down, gradients up, and no message between others.
TEST(PipelineMessages, EdgesOf1F1B) {
  const std::set<std::pair<int, int>> expected{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}};
  EXPECT_EQ(PipelineEdges(WorkloadOf(ScheduleKind::k1F1B).schedule, false), expected);
}

// A tied head: the two ranks that have a token table exchange its gradients; under zb-v one rank
// has both ends of the model, and under dualpipe each of two has.
TEST(PipelineMessages, EdgesOfATiedHead) {
  const std::set<std::pair<int, int>> expected{{0, 1}, {1, 0}, {1, 2}, {2, 1},
                                               {2, 3}, {3, 2}, {0, 3}, {3, 0}};
  EXPECT_EQ(PipelineEdges(WorkloadOf(ScheduleKind::k1F1B).schedule, true), expected);
  for (const ScheduleKind kind : {ScheduleKind::kZbV, ScheduleKind::kDualPipe}) {
    const PipelineSchedule schedule = WorkloadOf(kind).schedule;
    EXPECT_EQ(PipelineEdges(schedule, true), PipelineEdges(schedule, false));
  }
}

}  // namespace
}  // namespace millwright
