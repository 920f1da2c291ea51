// SPDX-License-Identifier: Apache-2.0
#include "cost_models/sm_share.h"

namespace millwright {
namespace {

int MultiprocessorsOf(CollectiveKind kind, bool across_domains, MoeDispatcher dispatcher) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return 24;  // NCCL, "24 coll channels"
    case CollectiveKind::kSendRecv:
      return across_domains ? 2 : 32;  // NCCL, "p2p channels per peer"
    case CollectiveKind::kAllToAll:
      if (dispatcher == MoeDispatcher::kDeepEp) return 20;  // DeepEP, num_sms
      return across_domains ? 16 : 32;                      // NCCL, "p2p channels"
  }
  return 0;
}

}  // namespace

double SmShareOf(CollectiveKind kind, const PathProfile& path, MoeDispatcher dispatcher,
                 const GpuSpec& gpu) {
  if (path.ranks <= 1) return 0;
  const int held = MultiprocessorsOf(kind, path.domains > 1, dispatcher);
  return double(std::min(held, gpu.sm_count / 2)) / gpu.sm_count;
}

}  // namespace millwright
