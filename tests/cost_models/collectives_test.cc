// SPDX-License-Identifier: Apache-2.0
#include "cost_models/collectives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/gpu.h"

namespace millwright {
namespace {

// Nothing but bandwidth.
constexpr CollectiveCalibration kIdeal{.domain_efficiency = 1,
                                       .fabric_efficiency = 1,
                                       .tree_efficiency = 1,
                                       .all_to_all_efficiency = 1,
                                       .nvls_min_ranks = 1 << 30};

PathProfile Domain(int ranks) {
  return {.ranks = ranks,
          .domains = 1,
          .min_ranks_per_domain = ranks,
          .max_ranks_per_domain = ranks,
          .domain_bandwidth = 450_GBps,
          .in_switch_reduction = true};
}

PathProfile Fabric(int domains, int members) {
  return {.ranks = domains * members,
          .domains = domains,
          .min_ranks_per_domain = members,
          .max_ranks_per_domain = members,
          .domain_bandwidth = 450_GBps,
          .fabric_bandwidth = 50_GBps,
          .in_switch_reduction = members > 1};
}

double Time(CollectiveKind kind, Bytes payload, const PathProfile& path,
            const CollectiveCalibration& c = kIdeal) {
  return CostOfCollective(kind, payload, path, c).time.value;
}

TEST(Collectives, RingTimeIsWireBytesOverBandwidth) {
  for (int n : {2, 3, 5, 8, 17}) {
    // 2 (n-1)/n x 1 GB over 450 GB/s.
    EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllReduce, 1_GB, Domain(n)), 2.0 * (n - 1) / n / 450);
    EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllGather, 1_GB, Domain(n)), 1.0 * (n - 1) / n / 450);
  }
}

TEST(Collectives, BroadcastFlowsOnceAroundTheRing) {
  // The whole message over every hop, and a step for each: 1 GB over 450 GB/s, 7 x 0.80 us.
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kBroadcast, 1_GB, Domain(8)), 1.0 / 450);
  const CollectiveCalibration& c = CalibrationFor(FindGpu("H100")).collective;
  EXPECT_NEAR(Time(CollectiveKind::kBroadcast, 8_B, Domain(8), c) * 1e6, 4.7 + 0.8 * 7, 0.1);
}

TEST(Collectives, ReduceScatterThenAllGatherIsTheRingAllReduce) {
  const CollectiveCalibration c = CalibrationFor(FindGpu("A100-80GB")).collective;
  CollectiveCalibration no_base = c;
  no_base.base = Seconds(0);
  PathProfile path = Domain(8);
  path.in_switch_reduction = false;
  for (Bytes payload : {1_MiB, 64_MiB, 1_GiB}) {
    EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllReduce, payload, path, no_base),
                     Time(CollectiveKind::kReduceScatter, payload, path, no_base) +
                         Time(CollectiveKind::kAllGather, payload, path, no_base));
  }
}

TEST(Collectives, GroupOfOneAndEmptyPayloadAreFree) {
  EXPECT_EQ(Time(CollectiveKind::kAllReduce, 1_GB, Domain(1)), 0);
  EXPECT_EQ(Time(CollectiveKind::kAllReduce, 0_B, Domain(8)), 0);
}

TEST(Collectives, AllNicsOfADomainCarryOneRingEach) {
  // One member a node: its own NIC, 50 GB/s.  Eight members: eight NICs, 400 GB/s, so the same
  // payload over 16 ranks in 2 nodes is much faster than over 16 nodes.
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllGather, 1_GB, Fabric(16, 1)), 15.0 / 16 / 50);
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllGather, 1_GB, Fabric(2, 8)), 15.0 / 16 / 400);
  // NVLink bounds it where NICs are faster together.
  PathProfile fat = Fabric(2, 8);
  fat.fabric_bandwidth = 100_GBps;
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllGather, 1_GB, fat), 15.0 / 16 / 450);
}

TEST(Collectives, AllToAllLeavesTheDomainByTheNicShare) {
  // 64 ranks in 8 nodes: 56/64 of the buffer leaves, over a 50 GB/s share.
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllToAll, 1_GB, Fabric(8, 8)), 56.0 / 64 / 50);
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllToAll, 1_GB, Domain(8)), 7.0 / 8 / 450);
}

TEST(Collectives, ATreeOfTwoDomainsSendsThePayloadOnce) {
  // Ring: 2 x 15/16 GB over 8 NICs of 50 GB/s, 4.69 ms.  Tree: 1 GB over them, 2.5 ms, while each
  // GPU's links pass on 2 x 15/16 GB at 450 GB/s, 4.17 ms.
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllReduce, 1_GB, Fabric(2, 8)), 1.875 / 450);
  // With NICs half as fast they decide: 1 GB over 200 GB/s.
  PathProfile thin = Fabric(2, 8);
  thin.fabric_bandwidth = 25_GBps;
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllReduce, 1_GB, thin), 1.0 / 200);
  // In a tree of four a domain has a parent and children: as much as in a ring, 2 x 31/32.
  thin = Fabric(4, 8);
  thin.fabric_bandwidth = 25_GBps;
  EXPECT_DOUBLE_EQ(Time(CollectiveKind::kAllReduce, 1_GB, thin), 2 * 31.0 / 32 / 200);
}

TEST(Collectives, NcclChoosesAsItWould) {
  const CollectiveCalibration& c = CalibrationFor(FindGpu("H100")).collective;
  const auto algorithm = [&](Bytes payload, const PathProfile& path) {
    return CostOfCollective(CollectiveKind::kAllReduce, payload, path, c).algorithm;
  };
  EXPECT_EQ(algorithm(1_MiB, Domain(8)), CollectiveAlgorithm::kRing);  // below 2 MiB
  EXPECT_EQ(algorithm(64_MiB, Domain(8)), CollectiveAlgorithm::kNvls);
  EXPECT_EQ(algorithm(64_MiB, Domain(4)), CollectiveAlgorithm::kRing);     // more than 4 GPUs
  EXPECT_EQ(algorithm(1_MiB, Fabric(64, 1)), CollectiveAlgorithm::kTree);  // few steps
  EXPECT_EQ(algorithm(4_GiB, Fabric(4, 1)), CollectiveAlgorithm::kRing);
}

// Where the measured values that the curves were taken from are met, and how well.
TEST(Collectives, MeasuredBusBandwidthOfH100IsMet) {
  const CollectiveCalibration& c = CalibrationFor(FindGpu("H100")).collective;
  const auto bus = [&](CollectiveKind kind, Bytes size) {
    return size.value * RingBytesSentFactor(kind, 8) / Time(kind, size, Domain(8), c) / 1e9;
  };
  // nccl-tests on 8 H100 SXM, NCCL 2.27-2.29 (collected 2026-11): GB/s at 64 and 512 MiB.
  EXPECT_NEAR(bus(CollectiveKind::kAllReduce, 64_MiB) / 362, 1, 0.15);
  EXPECT_NEAR(bus(CollectiveKind::kAllReduce, 512_MiB) / 445, 1, 0.15);
  EXPECT_NEAR(bus(CollectiveKind::kReduceScatter, 64_MiB) / 293, 1, 0.10);
  EXPECT_NEAR(bus(CollectiveKind::kReduceScatter, 512_MiB) / 336, 1, 0.10);
  EXPECT_NEAR(bus(CollectiveKind::kAllToAll, 512_MiB) / 315, 1, 0.10);
  // Latency: 4.7 + 0.80 us x steps.
  EXPECT_NEAR(Time(CollectiveKind::kAllGather, 8_B, Domain(8), c) * 1e6, 4.7 + 0.8 * 7, 0.1);
}

TEST(Collectives, NeverFasterThanTheWireAndMonotone) {
  for (const char* gpu : {"A100-80GB", "H100", "B200", "B300", "MI300X"}) {
    const CollectiveCalibration& c = CalibrationFor(FindGpu(gpu)).collective;
    for (CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
          CollectiveKind::kAllToAll, CollectiveKind::kSendRecv}) {
      for (const PathProfile& path : {Domain(2), Domain(8), Fabric(2, 8), Fabric(16, 1)}) {
        double before = 0;
        for (double payload = 1; payload < 1e11; payload *= 3) {
          const double time = Time(kind, Bytes(payload), path, c);
          EXPECT_TRUE(std::isfinite(time));
          EXPECT_GE(time, before);
          // Half the payload must at least cross the widest wire there is.
          EXPECT_GE(time, payload / 2 / path.domain_bandwidth.value);
          before = time;
        }
      }
    }
  }
}

}  // namespace
}  // namespace millwright
