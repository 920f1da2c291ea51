// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a cluster file: read or refused with ConfigError, and what is read builds (where
// it is small), survives writing, and gives profiles and routes that are finite and positive.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "topologies/cluster.h"

namespace {

using namespace millwright;

void Require(bool condition) {
  if (!condition) std::abort();
}

void Try(const ClusterConfig& config) {
  const Cluster cluster(config);
  for (int stride = 1; stride <= cluster.gpus(); stride += 1 + stride / 2) {
    for (int ranks = 1; stride * ranks <= cluster.gpus(); ranks += 1 + ranks / 2) {
      const PathProfile p = cluster.Profile({.stride = stride, .ranks = ranks});
      Require(p.domains >= 1 && p.min_ranks_per_domain >= 1);
      Require(p.max_ranks_per_domain >= p.min_ranks_per_domain && p.max_ranks_per_domain <= ranks);
      Require(std::isfinite(p.domain_latency.value) && std::isfinite(p.fabric_latency.value));
      Require(p.max_ranks_per_domain == 1 || p.domain_bandwidth > BytesPerSecond(0));
      Require(p.domains == 1 || p.fabric_bandwidth > BytesPerSecond(0));
    }
  }
  const int last = cluster.gpus() - 1;
  Require(cluster.Route(0, last).empty() == (last == 0));
  Require(cluster.Bisection() >= BytesPerSecond(0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ClusterConfig config;
    ReadConfig("input", text, [&](ConfigIo& io) { Fields(io, config); });
    ClusterConfig again;
    const std::string written = WriteConfig([&](ConfigIo& io) { Fields(io, config); });
    ReadConfig("written", written, [&](ConfigIo& io) { Fields(io, again); });
    Require(again == config);
    if (config.gpus() <= 512 && config.nics_per_node <= 64) Try(config);
  } catch (const ConfigError&) {
  }
  return 0;
}
