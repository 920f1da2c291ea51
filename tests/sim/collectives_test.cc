// SPDX-License-Identifier: Apache-2.0
#include "sim/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "sim/perform.h"

namespace millwright {
namespace {

using namespace literals;
using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather,
                           Kind::kAllToAll,  Kind::kSendRecv,      Kind::kBroadcast};
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing,         Algorithm::kTree,
                                     Algorithm::kNvls,         Algorithm::kPairwise,
                                     Algorithm::kDirect,       Algorithm::kOneShot,
                                     Algorithm::kHierarchical, Algorithm::kHalvingDoubling,
                                     Algorithm::kRailAligned};

std::string Describe(const CollectiveSpec& spec) {
  std::string text = std::string(Name(spec.algorithm)) + " " + std::string(Name(spec.kind)) + " of";
  for (const int size : spec.domain_sizes) text += " " + std::to_string(size);
  return text;
}

// Every algorithm and kind there is, over `shapes`.
template <class Visit>
void ForEachPlan(const std::vector<std::vector<int>>& shapes, Bytes payload, Visit visit) {
  for (const std::vector<int>& shape : shapes) {
    for (const Kind kind : kKinds) {
      for (const Algorithm algorithm : kAlgorithms) {
        if (!TransferPlan::Supports(kind, algorithm)) continue;
        const TransferPlan plan({.kind = kind,
                                 .algorithm = algorithm,
                                 .payload = payload,
                                 .domain_sizes = shape,
                                 .chunks = 3,
                                 .loads = {}});
        SCOPED_TRACE(Describe(plan.spec()));
        visit(plan);
      }
    }
  }
}

const std::vector<std::vector<int>>& Shapes() {
  static const std::vector<std::vector<int>> shapes = {
      {1},          {2},       {3},       {5},          {8},       {17},
      {1, 1},       {2, 2},    {1, 1, 1}, {4, 4},       {8, 8, 8}, {3, 3, 3, 3, 3},
      {2, 2, 2, 2}, {3, 2},    {1, 4},    {5, 3, 7, 2}, {8, 8, 1}, {1, 1, 1, 1, 1},
      {2, 3, 3},    {6, 6, 5},
  };
  return shapes;
}

// What a rank has where nothing has arrived yet; sums with it are wrong for sure.
constexpr std::int64_t kGarbage = std::int64_t{1} << 40;

// Each rank starts with rank-dependent numbers where StartsWith says so, garbage elsewhere; the
// expected result follows from the kind alone.
void CheckResult(const TransferPlan& plan, std::int64_t elements) {
  const int n = plan.ranks();
  const bool sums =
      plan.spec().kind == Kind::kAllReduce || plan.spec().kind == Kind::kReduceScatter;
  const auto value = [](int rank, std::int64_t e) {
    return (rank + std::int64_t{1}) * 1000 + e * 7;
  };
  std::vector<std::vector<std::int64_t>> buffers(
      std::size_t(n), std::vector<std::int64_t>(std::size_t(elements), kGarbage));
  std::vector<std::int64_t> expected(std::size_t(elements), 0);
  for (int block = 0; block < plan.blocks(); ++block) {
    const auto [begin, end] = plan.RangeOf(block, elements);
    int starters = 0;
    for (int rank = 0; rank < n; ++rank) {
      if (!plan.StartsWith(rank, block)) continue;
      ++starters;
      for (std::int64_t e = begin; e < end; ++e) {
        buffers[std::size_t(rank)][std::size_t(e)] = value(rank, e);
        expected[std::size_t(e)] += value(rank, e);
      }
    }
    ASSERT_EQ(starters, sums ? n : 1);
  }
  Perform(plan, buffers);
  int finished = 0;
  for (int rank = 0; rank < n; ++rank) {
    for (int block = 0; block < plan.blocks(); ++block) {
      if (!plan.EndsWith(rank, block)) continue;
      ++finished;
      const auto [begin, end] = plan.RangeOf(block, elements);
      for (std::int64_t e = begin; e < end; ++e) {
        ASSERT_EQ(buffers[std::size_t(rank)][std::size_t(e)], expected[std::size_t(e)])
            << "rank " << rank << " block " << block << " element " << e;
      }
    }
  }
  ASSERT_GT(finished, 0);
}

TEST(Collectives, EveryAlgorithmGetsEveryKindRight) {
  ForEachPlan(Shapes(), 1_MiB, [](const TransferPlan& plan) {
    const std::int64_t blocks = plan.blocks();
    CheckResult(plan, 4 * blocks);      // even blocks
    CheckResult(plan, 3 * blocks + 1);  // blocks of unequal size
    CheckResult(plan, blocks / 2 + 1);  // empty blocks
  });
}

TEST(Collectives, UnevenExpertLoads) {
  std::mt19937 random(7);
  for (const std::vector<int>& shape : Shapes()) {
    const int n = std::accumulate(shape.begin(), shape.end(), 0);
    std::vector<Bytes> loads;
    std::int64_t total = 0;
    for (int i = 0; i < n * n; ++i) {
      const int load = i % 5 == 0 ? 0 : int(random() % 40);
      loads.emplace_back(load);
      total += load;
    }
    if (total == 0) continue;
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kPairwise,
                                      Algorithm::kHierarchical, Algorithm::kRailAligned}) {
      const TransferPlan plan({.kind = Kind::kAllToAll,
                               .algorithm = algorithm,
                               .payload = Bytes(0),
                               .domain_sizes = shape,
                               .loads = loads});
      SCOPED_TRACE(Describe(plan.spec()));
      CheckResult(plan, total);
      // Direct and pairwise: a rank sends its row but for what it keeps.
      if (algorithm == Algorithm::kHierarchical || algorithm == Algorithm::kRailAligned) continue;
      for (int rank = 0; rank < n; ++rank) {
        double row = 0;
        for (int to = 0; to < n; ++to) {
          if (to != rank) row += loads[std::size_t(rank) * std::size_t(n) + std::size_t(to)].value;
        }
        EXPECT_EQ(plan.SentBy(rank).value, row);
      }
    }
  }
}

// What arrives in a round is what others send in it; edges are the sums of transfers; what is
// sent over real buffers is what the plan counts.
TEST(Collectives, CountsAgree) {
  ForEachPlan(Shapes(), 1_MiB, [](const TransferPlan& plan) {
    std::map<std::pair<int, int>, double> edges, transfers;
    std::vector<Transfer> sends;
    for (int round = 0; round < plan.rounds(); ++round) {
      std::vector<int> receives(std::size_t(plan.endpoints()), 0);
      bool any = false;
      for (int endpoint = 0; endpoint < plan.endpoints(); ++endpoint) {
        sends.clear();
        plan.Sends(endpoint, round, &sends);
        for (const Transfer& t : sends) {
          any = true;
          ASSERT_EQ(t.from, endpoint);
          ASSERT_NE(t.to, endpoint);
          ASSERT_GT(t.count, 0);
          ++receives[std::size_t(t.to)];
          transfers[{t.from, t.to}] += plan.BytesOf(t).value;
        }
      }
      ASSERT_TRUE(any || plan.spec().kind == Kind::kAllToAll) << "round " << round;
      for (int endpoint = 0; endpoint < plan.endpoints(); ++endpoint) {
        ASSERT_EQ(plan.Receives(endpoint, round), receives[std::size_t(endpoint)])
            << "endpoint " << endpoint << " round " << round;
      }
    }
    for (const TransferPlan::Edge& edge : plan.Edges())
      edges[{edge.from, edge.to}] += edge.bytes.value;
    std::erase_if(edges, [](const auto& edge) { return edge.second == 0; });
    ASSERT_EQ(edges.size(), transfers.size());
    for (const auto& [pair, bytes] : transfers) {
      ASSERT_NEAR((edges[pair]) / bytes, 1, 1e-12);
    }
    int rounds = 0;
    for (const TransferPlan::Phase& phase : plan.Phases()) {
      ASSERT_EQ(phase.first, rounds);
      rounds += phase.rounds;
    }
    ASSERT_EQ(rounds, plan.rounds());

    std::vector<std::vector<int>> buffers(std::size_t(plan.ranks()),
                                          std::vector<int>(std::size_t(2 * plan.blocks())));
    const std::vector<std::int64_t> sent = Perform(plan, buffers);
    const double bytes_an_element = (1_MiB).value *
                                    (plan.spec().kind == Kind::kAllToAll ? plan.ranks() : 1) /
                                    (2 * plan.blocks());
    for (int endpoint = 0; endpoint < plan.endpoints(); ++endpoint) {
      ASSERT_NEAR(double(sent[std::size_t(endpoint)]) * bytes_an_element,
                  plan.SentBy(endpoint).value, 1e-6);
    }
  });
}

double Sent(Kind kind, Algorithm algorithm, std::vector<int> shape, int rank) {
  const TransferPlan plan({.kind = kind,
                           .algorithm = algorithm,
                           .payload = Bytes(1),
                           .domain_sizes = std::move(shape),
                           .loads = {}});
  return plan.SentBy(rank).value;
}
int Rounds(Kind kind, Algorithm algorithm, std::vector<int> shape) {
  return TransferPlan({.kind = kind,
                       .algorithm = algorithm,
                       .payload = Bytes(1),
                       .domain_sizes = std::move(shape),
                       .loads = {}})
      .rounds();
}

TEST(Collectives, RingSendsWhatNcclTestsCounts) {
  for (const int n : {2, 3, 5, 8, 17}) {
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_NEAR(Sent(kind, Algorithm::kRing, {n}, rank), RingBytesSentFactor(kind, n), 1e-12);
      }
    }
    EXPECT_EQ(Rounds(Kind::kAllReduce, Algorithm::kRing, {n}), 2 * (n - 1));
    EXPECT_EQ(Rounds(Kind::kAllGather, Algorithm::kRing, {n}), n - 1);
    EXPECT_NEAR(Sent(Kind::kAllToAll, Algorithm::kDirect, {n}, n - 1),
                RingBytesSentFactor(Kind::kAllToAll, n), 1e-12);
  }
  // Eight rings over 3 domains of 8 send as much: 2 x 23/24.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kRing, {8, 8, 8}, 5), 2.0 * 23 / 24, 1e-12);
}

TEST(Collectives, BytesSentAsTheHeaderStates) {
  // Halving-doubling of 8: 1/2 + 1/4 + 1/8 down, the same up: 2 x 7/8.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kHalvingDoubling, {8}, 3), 2 * 7.0 / 8, 1e-12);
  EXPECT_EQ(Rounds(Kind::kAllReduce, Algorithm::kHalvingDoubling, {8}), 6);
  // Of 5: rank 1 folds into 0 and sends all; 2 x 2 rounds among 0, 2, 3 and 4, and two more.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kHalvingDoubling, {5}, 1), 1, 1e-12);
  EXPECT_EQ(Rounds(Kind::kAllReduce, Algorithm::kHalvingDoubling, {5}), 6);
  // Two trees of 4 (0 - 2 - {1, 3}, and its mirror image): rank 2 has a parent and two children in
  // the first and is a leaf in the second: (3 + 1) / 2.  Rank 0: one child, and a leaf: (1 + 1)
  // / 2.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kTree, {4}, 2), 2, 1e-12);
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kTree, {4}, 0), 1, 1e-12);
  // 16 chunks up two levels and down two: 16 + 2 + 2 - 1.
  EXPECT_EQ(Rounds(Kind::kAllReduce, Algorithm::kTree, {4}), 19);
  for (const int n : {2, 3, 5, 8, 17, 64, 100}) {
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_LE(Sent(Kind::kAllReduce, Algorithm::kTree, {n}, rank), 2 + 1e-12) << n;
    }
  }
  // Hierarchical, 4 domains of 8: (2 x 7 + 2 x 3/4) / 8.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kHierarchical, {8, 8, 8, 8}, 9),
              (2 * 7 + 2 * 0.75) / 8, 1e-12);
  EXPECT_NEAR(Sent(Kind::kAllGather, Algorithm::kHierarchical, {8, 8, 8, 8}, 9), (7 + 0.75) / 8,
              1e-12);
  EXPECT_EQ(Rounds(Kind::kAllReduce, Algorithm::kHierarchical, {8, 8, 8, 8}), 2 + 2 * 3);
  // NVLS: all of the payload once into the switch, and its own sum once more.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kNvls, {8}, 0), 1 + 1.0 / 8, 1e-12);
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kNvls, {8}, 8), 8 + 1, 1e-12);
  EXPECT_NEAR(Sent(Kind::kReduceScatter, Algorithm::kNvls, {8}, 0), 1, 1e-12);
  EXPECT_NEAR(Sent(Kind::kAllGather, Algorithm::kNvls, {8}, 0), 1.0 / 8, 1e-12);
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kNvls, {8, 8, 8, 8}, 3), 1 + 1.0 / 8 + 2 * 0.75 / 8,
              1e-12);
  // One-shot: everything to everyone.
  EXPECT_NEAR(Sent(Kind::kAllReduce, Algorithm::kOneShot, {8}, 3), 7, 1e-12);
  // All-to-all of 4 x 8: 7/8 over NVLink and 3/4 over the rail; or 31/32 and 7 x 3/32 forwarded.
  EXPECT_NEAR(Sent(Kind::kAllToAll, Algorithm::kRailAligned, {8, 8, 8, 8}, 9), 7.0 / 8 + 0.75,
              1e-12);
  EXPECT_NEAR(Sent(Kind::kAllToAll, Algorithm::kHierarchical, {8, 8, 8, 8}, 9),
              31.0 / 32 + 7 * 3.0 / 32, 1e-12);
  // A broadcast ring ends with a rank that sends nothing on.
  EXPECT_NEAR(Sent(Kind::kBroadcast, Algorithm::kRing, {8}, 0), 1, 1e-12);
  EXPECT_EQ(Sent(Kind::kBroadcast, Algorithm::kRing, {8}, 7), 0);
  EXPECT_NEAR(Sent(Kind::kSendRecv, Algorithm::kDirect, {1, 1}, 0), 1, 1e-12);
}

// Between domains a ring of several stays on the rail: ranks of one index.
TEST(Collectives, RingsChangeDomainsOnTheirRail) {
  const TransferPlan plan({.kind = Kind::kAllGather,
                           .algorithm = Algorithm::kRing,
                           .payload = 1_GiB,
                           .domain_sizes = {8, 8, 8, 8},
                           .loads = {}});
  std::vector<int> leaving(32, 0);
  for (const TransferPlan::Edge& edge : plan.Edges()) {
    if (edge.from / 8 == edge.to / 8) continue;
    EXPECT_EQ(edge.from % 8, edge.to % 8);
    ++leaving[std::size_t(edge.from)];
  }
  EXPECT_EQ(leaving, std::vector<int>(32, 1));
}

TEST(Collectives, RailAlignedTrafficStaysOnItsRail) {
  for (const Algorithm algorithm : {Algorithm::kRailAligned, Algorithm::kHierarchical}) {
    const TransferPlan plan({.kind = Kind::kAllToAll,
                             .algorithm = algorithm,
                             .payload = 1_GiB,
                             .domain_sizes = {4, 4, 4},
                             .loads = {}});
    for (const TransferPlan::Edge& edge : plan.Edges()) {
      EXPECT_TRUE(edge.from / 4 == edge.to / 4 || edge.from % 4 == edge.to % 4);
    }
  }
}

// Ring attention: every rank's keys and values pass every rank, one hop a round, and a rank sends
// (n - 1) blocks; with 8 ranks and 1 MiB each, 7 MiB.
TEST(Collectives, RingAttentionAndUlysses) {
  const TransferPlan ring(RingAttentionExchange(1_MiB, {8}));
  EXPECT_EQ(ring.rounds(), 7);
  EXPECT_DOUBLE_EQ(ring.SentBy(3).value, (7_MiB).value);
  std::vector<Transfer> sends;
  ring.Sends(3, 2, &sends);  // in its third round rank 3 passes on what began at rank 1
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].first, 1);
  EXPECT_EQ(sends[0].to, 4);
  // Ulysses: 1/8 of the tensor stays.
  const TransferPlan ulysses(UlyssesExchange(8_MiB, {8}));
  EXPECT_DOUBLE_EQ(ulysses.SentBy(3).value, (7_MiB).value);
}

TEST(Collectives, DomainSizesOfAGroup) {
  EXPECT_EQ(DomainSizes(std::vector{0, 1, 7, 8, 16, 17}, 8), (std::vector{3, 1, 2}));
  EXPECT_THROW(DomainSizes(std::vector{0, 8, 1}, 8), InternalError);
}

TEST(Collectives, AThousandsOfRanksAreAFormula) {
  const TransferPlan plan({.kind = Kind::kAllReduce,
                           .algorithm = Algorithm::kRing,
                           .payload = 1_GiB,
                           .domain_sizes = {16384},
                           .loads = {}});
  EXPECT_EQ(plan.rounds(), 2 * 16383);
  EXPECT_EQ(plan.Edges().size(), 16384u);
  EXPECT_NEAR(plan.SentBy(77) / 1_GiB, RingBytesSentFactor(Kind::kAllReduce, 16384), 1e-9);
}

}  // namespace
}  // namespace millwright
