// SPDX-License-Identifier: Apache-2.0
#include "sim/collectives.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

int Mod(int a, int n) { return ((a % n) + n) % n; }
int CeilDivide(int a, int b) { return (a + b - 1) / b; }
bool Within(int x, int end) { return x >= 0 && x < end; }

// NCCL's tree over nodes 0 to n - 1: odd nodes are leaves, and a node's parent clears its lowest
// bit and sets the next, or only clears it where that is beyond the last node.
int TreeParent(int node, int n) {
  if (node == 0) return -1;
  const int bit = node & -node;
  const int up = (node ^ bit) | (bit << 1);
  return up < n ? up : node ^ bit;
}
int SecondTreeParent(int node, int n) {
  const bool mirrored = n % 2 == 0;
  const int parent = TreeParent(mirrored ? n - 1 - node : Mod(node - 1, n), n);
  if (parent < 0) return -1;
  return mirrored ? n - 1 - parent : (parent + 1) % n;
}

}  // namespace

std::vector<int> DomainSizes(std::span<const int> members, int gpus_per_domain) {
  std::vector<int> sizes;
  std::vector<int> domains;
  for (const int rank : members) {
    if (domains.empty() || domains.back() != rank / gpus_per_domain) {
      domains.push_back(rank / gpus_per_domain);
      sizes.push_back(0);
    }
    ++sizes.back();
  }
  std::sort(domains.begin(), domains.end());
  MILLWRIGHT_CHECK(std::adjacent_find(domains.begin(), domains.end()) == domains.end());
  return sizes;
}

CollectiveSpec RingAttentionExchange(Bytes kv_of_a_rank, std::vector<int> domain_sizes) {
  const int ranks = std::accumulate(domain_sizes.begin(), domain_sizes.end(), 0);
  return {.kind = CollectiveKind::kAllGather,
          .algorithm = CollectiveAlgorithm::kRing,
          .payload = ranks * kv_of_a_rank,
          .domain_sizes = std::move(domain_sizes),
          .channels = 1};
}

CollectiveSpec UlyssesExchange(Bytes tensor_of_a_rank, std::vector<int> domain_sizes) {
  return {.kind = CollectiveKind::kAllToAll,
          .algorithm = CollectiveAlgorithm::kDirect,
          .payload = tensor_of_a_rank,
          .domain_sizes = std::move(domain_sizes)};
}

bool TransferPlan::Supports(CollectiveKind kind, CollectiveAlgorithm algorithm) {
  const bool all_reduce = kind == CollectiveKind::kAllReduce;
  const bool half = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllGather;
  const bool broadcast = kind == CollectiveKind::kBroadcast;
  const bool all_to_all = kind == CollectiveKind::kAllToAll;
  switch (algorithm) {
    case CollectiveAlgorithm::kRing:
      return all_reduce || half || broadcast;
    case CollectiveAlgorithm::kTree:
      return all_reduce || broadcast;
    case CollectiveAlgorithm::kDirect:
      return true;
    case CollectiveAlgorithm::kOneShot:
      return all_reduce || broadcast;
    case CollectiveAlgorithm::kHalvingDoubling:
    case CollectiveAlgorithm::kNvls:
      return all_reduce || half;
    case CollectiveAlgorithm::kHierarchical:
      return all_reduce || half || all_to_all;
    case CollectiveAlgorithm::kPairwise:
    case CollectiveAlgorithm::kRailAligned:
      return all_to_all;
    case CollectiveAlgorithm::kNone:
    case CollectiveAlgorithm::kNvlsTree:
      return false;
  }
  return false;
}

TransferPlan::TransferPlan(CollectiveSpec spec) : spec_(std::move(spec)) {
  MILLWRIGHT_CHECK(Supports(spec_.kind, spec_.algorithm));
  MILLWRIGHT_CHECK(!spec_.domain_sizes.empty() && spec_.chunks > 0);
  for (const int size : spec_.domain_sizes) {
    MILLWRIGHT_CHECK(size > 0);
    first_.push_back(ranks_);
    ranks_ += size;
    domain_of_.resize(std::size_t(ranks_), int(first_.size()) - 1);
  }
  fewest_ = *std::min_element(spec_.domain_sizes.begin(), spec_.domain_sizes.end());
  even_ = fewest_ * domains() == ranks_;
  const bool all_to_all = spec_.kind == CollectiveKind::kAllToAll;
  const bool message =
      spec_.kind == CollectiveKind::kBroadcast || spec_.kind == CollectiveKind::kSendRecv;
  MILLWRIGHT_CHECK(!all_to_all || ranks_ <= 46340);  // ranks x ranks blocks in an int
  blocks_ = all_to_all ? ranks_ * ranks_ : message ? 1 : ranks_;
  if (!spec_.loads.empty()) {
    MILLWRIGHT_CHECK(all_to_all && int(spec_.loads.size()) == blocks_);
    loads_before_.push_back(0);
    for (const Bytes load : spec_.loads) {
      loads_before_.push_back(loads_before_.back() + load.value);
    }
  }
  if (ranks_ == 1) return;
  const bool all_reduce = spec_.kind == CollectiveKind::kAllReduce;
  switch (spec_.algorithm) {
    case CollectiveAlgorithm::kRing:
      BuildRings();
      break;
    case CollectiveAlgorithm::kTree:
      BuildTrees();
      break;
    case CollectiveAlgorithm::kHalvingDoubling: {
      const int steps = std::bit_width(unsigned(ranks_)) - 1;
      active_ = 1 << steps;
      folded_ = ranks_ - active_;
      rounds_ = (all_reduce ? 2 * steps : steps) + (folded_ > 0 ? 2 : 0);
      break;
    }
    case CollectiveAlgorithm::kDirect:
      rounds_ = all_reduce ? 2 : 1;
      if (spec_.kind == CollectiveKind::kBroadcast) {
        blocks_ = ranks_ - 1;  // scattered over all but the root
        rounds_ = ranks_ > 2 ? 2 : 1;
      }
      break;
    case CollectiveAlgorithm::kOneShot:
      rounds_ = 1;
      break;
    case CollectiveAlgorithm::kPairwise:
      rounds_ = ranks_ - 1;
      break;
    case CollectiveAlgorithm::kRailAligned:
      rounds_ = 2;
      break;
    case CollectiveAlgorithm::kNvls:
      switches_ = true;
      if (domains() == 1) {
        blocks_ = ranks_ * spec_.chunks;
        rounds_ = spec_.chunks + (all_reduce ? 3 : 1);
        break;
      }
      BuildHolders();
      break;
    case CollectiveAlgorithm::kHierarchical:
      if (all_to_all) {
        rounds_ = 2;
        break;
      }
      BuildHolders();
      break;
    case CollectiveAlgorithm::kNone:
    case CollectiveAlgorithm::kNvlsTree:
      break;
  }
}

bool TransferPlan::reduces() const {
  return spec_.kind == CollectiveKind::kAllReduce || spec_.kind == CollectiveKind::kReduceScatter;
}

// --- Blocks
// ---------------------------------------------------------------------------------------

Bytes TransferPlan::BytesOf(int block) const {
  if (!spec_.loads.empty()) return spec_.loads[std::size_t(block)];
  // An all-to-all's payload is that of one rank, its blocks are those of all.
  const double parts = spec_.kind == CollectiveKind::kAllToAll ? ranks_ : blocks_;
  return spec_.payload / parts;
}

Bytes TransferPlan::BytesOf(const Transfer& transfer) const {
  if (spec_.loads.empty()) return transfer.count * BytesOf(transfer.first);
  Bytes sum;
  for (int i = 0; i < transfer.count; ++i) sum += BytesOf(transfer.first + i * transfer.stride);
  return sum;
}

std::pair<std::int64_t, std::int64_t> TransferPlan::RangeOf(int block,
                                                            std::int64_t elements) const {
  const auto begin = [&](std::int64_t b) -> std::int64_t {
    if (!loads_before_.empty()) {
      return std::llround(double(elements) * loads_before_[std::size_t(b)] / loads_before_.back());
    }
    return elements / blocks_ * b + elements % blocks_ * b / blocks_;
  };
  return {begin(block), begin(block + 1)};
}

bool TransferPlan::StartsWith(int rank, int block) const {
  switch (spec_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return true;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return block / (blocks_ / ranks_) == rank;
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBroadcast:
      return rank == 0;
  }
  return false;
}

bool TransferPlan::EndsWith(int rank, int block) const {
  switch (spec_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return true;
    case CollectiveKind::kReduceScatter:
      return block / (blocks_ / ranks_) == rank;
    case CollectiveKind::kAllToAll:
      return block % ranks_ == rank;
    case CollectiveKind::kSendRecv:
      return rank == ranks_ - 1;
  }
  return false;
}

// --- Dispatch
// -------------------------------------------------------------------------------------

void TransferPlan::Sends(int endpoint, int round, std::vector<Transfer>* out) const {
  if (!Within(round, rounds_)) return;
  switch (spec_.algorithm) {
    case CollectiveAlgorithm::kRing:
      return SendsOfRing(endpoint, round, out);
    case CollectiveAlgorithm::kTree:
      return SendsOfTree(endpoint, round, out);
    case CollectiveAlgorithm::kHalvingDoubling:
      return SendsOfHalving(endpoint, round, out);
    case CollectiveAlgorithm::kDirect:
    case CollectiveAlgorithm::kOneShot:
    case CollectiveAlgorithm::kPairwise:
      return SendsOfDirect(endpoint, round, out);
    case CollectiveAlgorithm::kNvls:
      if (domains() == 1) return SendsOfNvls(endpoint, round, out);
      return SendsOfHierarchical(endpoint, round, out);
    case CollectiveAlgorithm::kHierarchical:
      if (spec_.kind == CollectiveKind::kAllToAll) return SendsOfForwarding(endpoint, round, out);
      return SendsOfHierarchical(endpoint, round, out);
    case CollectiveAlgorithm::kRailAligned:
      return SendsOfRailAligned(endpoint, round, out);
    case CollectiveAlgorithm::kNone:
    case CollectiveAlgorithm::kNvlsTree:
      return;
  }
}

int TransferPlan::Receives(int endpoint, int round) const {
  if (!Within(round, rounds_)) return 0;
  switch (spec_.algorithm) {
    case CollectiveAlgorithm::kRing:
      return ReceivesOfRing(endpoint, round);
    case CollectiveAlgorithm::kTree:
      return ReceivesOfTree(endpoint, round);
    case CollectiveAlgorithm::kHalvingDoubling:
      return ReceivesOfHalving(endpoint, round);
    case CollectiveAlgorithm::kDirect:
      if (spec_.kind == CollectiveKind::kBroadcast) {
        return endpoint == 0 ? 0 : round == 0 ? 1 : ranks_ - 2;
      }
      if (spec_.kind == CollectiveKind::kSendRecv) return endpoint == ranks_ - 1 ? 1 : 0;
      return ranks_ - 1;
    case CollectiveAlgorithm::kOneShot:
      if (spec_.kind == CollectiveKind::kBroadcast) return endpoint == 0 ? 0 : 1;
      return ranks_ - 1;
    case CollectiveAlgorithm::kPairwise:
      return 1;
    case CollectiveAlgorithm::kNvls:
      return domains() == 1 ? ReceivesOfNvls(endpoint, round)
                            : ReceivesOfHierarchical(endpoint, round);
    case CollectiveAlgorithm::kHierarchical:
      return spec_.kind == CollectiveKind::kAllToAll ? ReceivesOfForwarding(endpoint, round)
                                                     : ReceivesOfHierarchical(endpoint, round);
    case CollectiveAlgorithm::kRailAligned:
      return ReceivesOfRailAligned(endpoint, round);
    case CollectiveAlgorithm::kNone:
    case CollectiveAlgorithm::kNvlsTree:
      return 0;
  }
  return 0;
}

// --- Ring
// -----------------------------------------------------------------------------------------

// Ring x enters an even domain at its rank x and goes up to x - 1, and comes back through odd
// domains the other way: it changes domains between ranks of one index, on one rail.
void TransferPlan::BuildRings() {
  const int rings = spec_.channels > 0 ? spec_.channels : domains() > 1 ? fewest_ : 1;
  MILLWRIGHT_CHECK(rings == 1 || rings <= fewest_);
  for (int x = 0; x < rings; ++x) {
    std::vector<int>& order = order_.emplace_back();
    for (int d = 0; d < domains(); ++d) {
      const int size = SizeOf(d);
      for (int i = 0; i < size; ++i) {
        const int step = rings > 1 && d % 2 == 1 ? size - 1 - i : i;
        order.push_back(FirstOf(d) + (x + step) % size);
      }
    }
    if (spec_.kind == CollectiveKind::kBroadcast) {
      std::rotate(order.begin(), std::find(order.begin(), order.end(), 0), order.end());
    }
    std::vector<int>& position = position_.emplace_back(std::size_t(ranks_));
    for (int p = 0; p < ranks_; ++p) position[std::size_t(order[std::size_t(p)])] = p;
  }
  switch (spec_.kind) {
    case CollectiveKind::kBroadcast:
      blocks_ = rings * spec_.chunks;
      rounds_ = spec_.chunks + ranks_ - 2;
      break;
    case CollectiveKind::kAllReduce:
      blocks_ = rings * ranks_;
      rounds_ = 2 * (ranks_ - 1);
      break;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendRecv:
      blocks_ = rings * ranks_;
      rounds_ = ranks_ - 1;
      break;
  }
}

void TransferPlan::SendsOfRing(int rank, int round, std::vector<Transfer>* out) const {
  const int rings = channels(), n = ranks_;
  const bool reduce = reduces() && round < n - 1;
  // Reducing, a block begins behind its owner and arrives there last; gathering, it begins there.
  const int step = reduce                                     ? round + 1
                   : spec_.kind == CollectiveKind::kAllReduce ? round - (n - 1)
                                                              : round;
  for (int x = 0; x < rings; ++x) {
    const std::vector<int>& order = order_[std::size_t(x)];
    const int p = position_[std::size_t(x)][std::size_t(rank)];
    const int to = order[p + 1 == n ? 0 : std::size_t(p) + 1];
    if (spec_.kind == CollectiveKind::kBroadcast) {
      const int chunk = round - p;
      if (p == n - 1 || !Within(chunk, spec_.chunks)) continue;
      out->push_back({.from = rank, .to = to, .first = x * spec_.chunks + chunk});
      continue;
    }
    const int owner = order[std::size_t(p >= step ? p - step : p - step + n)];
    out->push_back({.from = rank, .to = to, .first = owner * rings + x, .reduce = reduce});
  }
}

int TransferPlan::ReceivesOfRing(int rank, int round) const {
  if (spec_.kind != CollectiveKind::kBroadcast) return channels();
  int count = 0;
  for (const std::vector<int>& position : position_) {
    const int p = position[std::size_t(rank)];
    count += p > 0 && Within(round - (p - 1), spec_.chunks) ? 1 : 0;
  }
  return count;
}

// --- Trees
// ----------------------------------------------------------------------------------------

void TransferPlan::BuildTrees() {
  const bool broadcast = spec_.kind == CollectiveKind::kBroadcast;
  const bool flat = domains() == 1;
  // What the trees join: ranks, or one rank of each domain; the root of a broadcast is left out
  // and feeds the roots of both.
  const int skipped = broadcast ? 1 : 0;
  const int nodes = (flat ? ranks_ : domains()) - skipped;
  const int pairs = flat || broadcast ? 1 : fewest_;
  for (int t = 0; t < 2 * pairs; ++t) {
    const int index = t / 2;
    const auto rank_of = [&](int node) {
      return flat ? node + skipped : FirstOf(node + skipped) + index;
    };
    std::vector<int> parent(std::size_t(ranks_), -1);
    for (int node = 0; node < nodes; ++node) {
      const int up = t % 2 == 0 ? TreeParent(node, nodes) : SecondTreeParent(node, nodes);
      parent[std::size_t(rank_of(node))] = up >= 0 ? rank_of(up) : broadcast ? 0 : -1;
    }
    for (int d = 0; d < domains() && !flat; ++d) {
      for (int i = 1; i < SizeOf(d); ++i) {
        const int rank = FirstOf(d) + (index + i) % SizeOf(d);
        parent[std::size_t(rank)] = FirstOf(d) + (index + i - 1) % SizeOf(d);
      }
    }
    trees_.push_back(MakeTree(std::move(parent)));
    rounds_ =
        std::max(rounds_, spec_.chunks + trees_.back().root_height + trees_.back().deepest - 1);
  }
  blocks_ = int(trees_.size()) * spec_.chunks;
}

TransferPlan::Tree TransferPlan::MakeTree(std::vector<int> parent) const {
  Tree tree{.parent = std::move(parent),
            .height = std::vector<int>(std::size_t(ranks_), 0),
            .depth = std::vector<int>(std::size_t(ranks_), 0),
            .children = std::vector(std::size_t(ranks_), std::array{-1, -1, -1})};
  std::vector<int> order;  // parents before children
  for (int rank = 0; rank < ranks_; ++rank) {
    const int up = tree.parent[std::size_t(rank)];
    if (up < 0) {
      order.push_back(rank);
      continue;
    }
    std::array<int, 3>& children = tree.children[std::size_t(up)];
    const auto free = std::find(children.begin(), children.end(), -1);
    MILLWRIGHT_CHECK(free != children.end());
    *free = rank;
  }
  MILLWRIGHT_CHECK(order.size() == 1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const int child : tree.children[std::size_t(order[i])]) {
      if (child < 0) continue;
      tree.depth[std::size_t(child)] = tree.depth[std::size_t(order[i])] + 1;
      order.push_back(child);
    }
  }
  MILLWRIGHT_CHECK(int(order.size()) == ranks_);
  for (std::size_t i = order.size(); i-- > 1;) {
    const int up = tree.parent[std::size_t(order[i])];
    tree.height[std::size_t(up)] =
        std::max(tree.height[std::size_t(up)], tree.height[std::size_t(order[i])] + 1);
  }
  if (reduces()) tree.root_height = tree.height[std::size_t(order.front())];
  tree.deepest = *std::max_element(tree.depth.begin(), tree.depth.end());
  return tree;
}

// Chunk c leaves a rank upwards in round height + c, and comes down to it in round root_height +
// depth - 1 + c.
void TransferPlan::SendsOfTree(int rank, int round, std::vector<Transfer>* out) const {
  for (std::size_t t = 0; t < trees_.size(); ++t) {
    const Tree& tree = trees_[t];
    const int first = int(t) * spec_.chunks;
    const int parent = tree.parent[std::size_t(rank)];
    const int up = round - tree.height[std::size_t(rank)];
    if (reduces() && parent >= 0 && Within(up, spec_.chunks)) {
      out->push_back({.from = rank, .to = parent, .first = first + up, .reduce = true});
    }
    const int down = round - (tree.root_height + tree.depth[std::size_t(rank)]);
    if (!Within(down, spec_.chunks)) continue;
    for (const int child : tree.children[std::size_t(rank)]) {
      if (child >= 0) out->push_back({.from = rank, .to = child, .first = first + down});
    }
  }
}

int TransferPlan::ReceivesOfTree(int rank, int round) const {
  int count = 0;
  for (const Tree& tree : trees_) {
    for (const int child : tree.children[std::size_t(rank)]) {
      if (child < 0 || !reduces()) continue;
      count += Within(round - tree.height[std::size_t(child)], spec_.chunks) ? 1 : 0;
    }
    const int down = round - (tree.root_height + tree.depth[std::size_t(rank)] - 1);
    count += tree.parent[std::size_t(rank)] >= 0 && Within(down, spec_.chunks) ? 1 : 0;
  }
  return count;
}

// --- Halving-doubling
// -----------------------------------------------------------------------------

int TransferPlan::ActiveOf(int rank) const {
  if (rank >= 2 * folded_) return rank - folded_;
  return rank % 2 == 0 ? rank / 2 : -1;
}

void TransferPlan::SendsOfHalving(int rank, int round, std::vector<Transfer>* out) const {
  const bool gather_only = spec_.kind == CollectiveKind::kAllGather;
  const int steps = std::bit_width(unsigned(active_)) - 1;
  const int active = ActiveOf(rank);
  int step = round;
  if (folded_ > 0) {
    if (round == 0) {
      if (active >= 0) return;
      if (gather_only) {
        out->push_back({.from = rank, .to = rank - 1, .first = rank});
      } else {
        out->push_back({.from = rank, .to = rank - 1, .count = ranks_, .reduce = true});
      }
      return;
    }
    if (round == rounds_ - 1) {
      if (active < 0 || active >= folded_) return;
      const int to = rank + 1;
      switch (spec_.kind) {
        case CollectiveKind::kReduceScatter:
          out->push_back({.from = rank, .to = to, .first = to});
          return;
        case CollectiveKind::kAllGather:  // it has its own block
          out->push_back({.from = rank, .to = to, .count = to});
          if (to + 1 < ranks_) {
            out->push_back({.from = rank, .to = to, .first = to + 1, .count = ranks_ - to - 1});
          }
          return;
        default:
          out->push_back({.from = rank, .to = to, .count = ranks_});
          return;
      }
    }
    --step;
  }
  if (active < 0) return;
  const bool halving = !gather_only && step < steps;
  if (!halving && !gather_only) step -= steps;
  // Halving, the partner's half goes out; doubling, all that was gathered so far.
  const int distance = halving ? active_ >> (step + 1) : 1 << step;
  const int partner = active ^ distance;
  const int begin = (halving ? partner : active) & ~(distance - 1);
  const int first = FirstBlockOf(begin);
  out->push_back({.from = rank,
                  .to = RankOfActive(partner),
                  .first = first,
                  .count = FirstBlockOf(begin + distance) - first,
                  .reduce = halving});
}

int TransferPlan::ReceivesOfHalving(int rank, int round) const {
  const int active = ActiveOf(rank);
  if (folded_ > 0) {
    if (round == 0) return Within(active, folded_) ? 1 : 0;
    if (round == rounds_ - 1) {
      if (active >= 0) return 0;
      return spec_.kind == CollectiveKind::kAllGather && rank + 1 < ranks_ ? 2 : 1;
    }
  }
  return active >= 0 ? 1 : 0;
}

// --- Direct, one-shot, pairwise
// -------------------------------------------------------------------

void TransferPlan::SendsOfDirect(int rank, int round, std::vector<Transfer>* out) const {
  const int n = ranks_;
  if (spec_.kind == CollectiveKind::kSendRecv) {
    if (rank == 0) out->push_back({.from = 0, .to = n - 1});
    return;
  }
  // A broadcast: the root scatters, and the others gather among themselves.
  if (spec_.kind == CollectiveKind::kBroadcast && (rank == 0) != (round == 0)) return;
  const bool pairwise = spec_.algorithm == CollectiveAlgorithm::kPairwise;
  const int begin = pairwise ? round + 1 : 1, end = pairwise ? round + 2 : n;
  for (int step = begin; step < end; ++step) {
    const int to = rank + step < n ? rank + step : rank + step - n;
    Transfer transfer{.from = rank, .to = to};
    switch (spec_.kind) {
      case CollectiveKind::kAllReduce:
        if (spec_.algorithm == CollectiveAlgorithm::kOneShot) {
          transfer.count = n;
          transfer.reduce = true;
        } else {
          transfer.first = round == 0 ? to : rank;
          transfer.reduce = round == 0;
        }
        break;
      case CollectiveKind::kReduceScatter:
        transfer.first = to;
        transfer.reduce = true;
        break;
      case CollectiveKind::kAllGather:
        transfer.first = rank;
        break;
      case CollectiveKind::kAllToAll:
        transfer.first = rank * n + to;
        break;
      case CollectiveKind::kBroadcast:
        if (to == 0) continue;
        if (blocks_ > 1) transfer.first = (round == 0 ? to : rank) - 1;
        break;
      case CollectiveKind::kSendRecv:
        break;
    }
    out->push_back(transfer);
  }
}

// --- Hierarchical, and NVLS over several domains
// ---------------------------------------------------

void TransferPlan::BuildHolders() {
  const bool all_reduce = spec_.kind == CollectiveKind::kAllReduce;
  const bool scatter = spec_.kind == CollectiveKind::kReduceScatter;
  const int inside = switches_ ? 2 : ranks_ > domains() ? 1 : 0;
  const auto add = [&](Stage stage, int rounds) {
    stages_.push_back({stage, rounds_, rounds});
    rounds_ += rounds;
  };
  if (!scatter && !all_reduce && !even_) add(Stage::kTakeOver, 1);
  if (scatter || all_reduce) {
    add(Stage::kGather, inside);
    add(Stage::kReduceAcross, domains() - 1);
  }
  if (!scatter) {
    add(Stage::kGatherAcross, domains() - 1);
    add(Stage::kScatter, inside);
  }
  if (scatter && !even_) add(Stage::kHandOver, 1);
}

TransferPlan::StageRounds TransferPlan::StageAt(int round) const {
  for (const StageRounds& stage : stages_) {
    if (Within(round - stage.first, stage.rounds)) return stage;
  }
  MILLWRIGHT_CHECK(false);
}

// A holder looks after the blocks of the ranks whose index is its own, modulo the holders.
Transfer TransferPlan::Sector(int from, int to, int holder, int domain, bool reduce) const {
  return {.from = from,
          .to = to,
          .first = FirstOf(domain) + holder,
          .count = CeilDivide(SizeOf(domain) - holder, fewest_),
          .stride = fewest_,
          .reduce = reduce};
}

void TransferPlan::AddHolderBlocks(int from, int to, int holder, bool reduce,
                                   std::vector<Transfer>* out) const {
  if (even_) {
    out->push_back({.from = from,
                    .to = to,
                    .first = holder,
                    .count = domains(),
                    .stride = fewest_,
                    .reduce = reduce});
    return;
  }
  for (int d = 0; d < domains(); ++d) out->push_back(Sector(from, to, holder, d, reduce));
}

void TransferPlan::SendsOfHierarchical(int endpoint, int round, std::vector<Transfer>* out) const {
  const StageRounds stage = StageAt(round);
  const int step = round - stage.first;
  const bool is_switch = endpoint >= ranks_;
  const int domain = is_switch ? endpoint - ranks_ : DomainOf(endpoint);
  const int first = FirstOf(domain), size = SizeOf(domain);
  const int index = is_switch ? size : endpoint - first;
  const int holders = fewest_, to_switch = ranks_ + domain;
  switch (stage.stage) {
    case Stage::kGather:
      if (switches_ && step == 0) {
        if (is_switch) return;
        out->push_back({.from = endpoint, .to = to_switch, .count = ranks_, .reduce = true});
      } else if (!switches_ || is_switch) {
        for (int h = 0; h < holders; ++h) {
          if (h != index) AddHolderBlocks(endpoint, first + h, h, !switches_, out);
        }
      }
      return;
    case Stage::kReduceAcross:
    case Stage::kGatherAcross: {
      if (index >= holders) return;
      const bool reduce = stage.stage == Stage::kReduceAcross;
      const int to = FirstOf((domain + 1) % domains()) + index;
      const int sector = Mod(domain - step - (reduce ? 1 : 0), domains());
      out->push_back(Sector(endpoint, to, index, sector, reduce));
      return;
    }
    case Stage::kScatter:
      if (switches_ && step == 0) {
        if (index < holders) AddHolderBlocks(endpoint, to_switch, index, false, out);
      } else if (is_switch) {
        for (int i = 0; i < size; ++i) {
          out->push_back({.from = endpoint, .to = first + i, .count = ranks_});
        }
      } else if (!switches_ && index < holders) {
        for (int i = 0; i < size; ++i) {
          if (i != index) AddHolderBlocks(endpoint, first + i, index, false, out);
        }
      }
      return;
    case Stage::kHandOver:
      if (index >= holders) return;
      for (int i = index + holders; i < size; i += holders) {
        out->push_back({.from = endpoint, .to = first + i, .first = first + i});
      }
      return;
    case Stage::kTakeOver:
      if (index < holders || is_switch) return;
      out->push_back({.from = endpoint, .to = first + index % holders, .first = endpoint});
      return;
  }
}

int TransferPlan::ReceivesOfHierarchical(int endpoint, int round) const {
  const StageRounds stage = StageAt(round);
  const int step = round - stage.first;
  const bool is_switch = endpoint >= ranks_;
  const int domain = is_switch ? endpoint - ranks_ : DomainOf(endpoint);
  const int size = SizeOf(domain);
  const int index = is_switch ? size : endpoint - FirstOf(domain);
  const int holders = fewest_, runs = even_ ? 1 : domains();
  const bool holds = index < holders;
  switch (stage.stage) {
    case Stage::kGather:
      if (switches_ && step == 0) return is_switch ? size : 0;
      if (!holds) return 0;
      return switches_ ? runs : (size - 1) * runs;
    case Stage::kReduceAcross:
    case Stage::kGatherAcross:
      return holds ? 1 : 0;
    case Stage::kScatter:
      if (switches_ && step == 0) return is_switch ? holders * runs : 0;
      if (is_switch) return 0;
      return switches_ ? 1 : (holders - (holds ? 1 : 0)) * runs;
    case Stage::kHandOver:
      return holds || is_switch ? 0 : 1;
    case Stage::kTakeOver:
      return holds ? (size - 1 - index) / holders : 0;
  }
  return 0;
}

// --- NVLS in one domain
// ---------------------------------------------------------------------------

// Chunk c is, in round c, on its way into the switch, which adds up; in c + 1 from there to the
// ranks, each its shard; in c + 2 back to the switch, and in c + 3 to all.
void TransferPlan::SendsOfNvls(int endpoint, int round, std::vector<Transfer>* out) const {
  const int n = ranks_, chunks = spec_.chunks;
  const int gather_from = spec_.kind == CollectiveKind::kAllReduce ? 2 : 0;
  const bool is_switch = endpoint >= n;
  if (reduces()) {
    const int chunk = is_switch ? round - 1 : round;
    if (Within(chunk, chunks)) {
      if (!is_switch) {
        out->push_back({.from = endpoint,
                        .to = n,
                        .first = chunk,
                        .count = n,
                        .stride = chunks,
                        .reduce = true});
      } else {
        for (int r = 0; r < n; ++r) {
          out->push_back({.from = n, .to = r, .first = r * chunks + chunk});
        }
      }
    }
  }
  if (spec_.kind == CollectiveKind::kReduceScatter) return;
  const int chunk = round - gather_from - (is_switch ? 1 : 0);
  if (!Within(chunk, chunks)) return;
  if (!is_switch) {
    out->push_back({.from = endpoint, .to = n, .first = endpoint * chunks + chunk});
    return;
  }
  for (int r = 0; r < n; ++r) {
    out->push_back({.from = n, .to = r, .first = chunk, .count = n, .stride = chunks});
  }
}

int TransferPlan::ReceivesOfNvls(int endpoint, int round) const {
  const int chunks = spec_.chunks;
  const int gather_from = spec_.kind == CollectiveKind::kAllReduce ? 2 : 0;
  const bool is_switch = endpoint >= ranks_;
  int count = 0;
  if (reduces()) count += Within(round - (is_switch ? 0 : 1), chunks) ? 1 : 0;
  if (spec_.kind != CollectiveKind::kReduceScatter) {
    count += Within(round - gather_from - (is_switch ? 0 : 1), chunks) ? 1 : 0;
  }
  return is_switch ? count * ranks_ : count;
}

// --- All-to-all in two steps
// ------------------------------------------------------------------------

void TransferPlan::SendsOfRailAligned(int rank, int round, std::vector<Transfer>* out) const {
  const int n = ranks_, domain = DomainOf(rank), first = FirstOf(domain), size = SizeOf(domain);
  const int index = rank - first;
  if (round == 0) {
    for (int j = 0; j < size; ++j) {
      if (j == index) continue;
      if (even_) {
        out->push_back({.from = rank,
                        .to = first + j,
                        .first = rank * n + j,
                        .count = domains(),
                        .stride = size});
        continue;
      }
      for (int e = 0; e < domains(); ++e) {
        if (SizeOf(e) <= j) continue;
        out->push_back({.from = rank,
                        .to = first + j,
                        .first = rank * n + FirstOf(e) + j,
                        .count = CeilDivide(SizeOf(e) - j, size),
                        .stride = size});
      }
    }
    return;
  }
  for (int step = 1; step < domains(); ++step) {
    const int e = (domain + step) % domains();
    for (int p = index; p < SizeOf(e); p += size) {
      const int to = FirstOf(e) + p;
      out->push_back({.from = rank, .to = to, .first = first * n + to, .count = size, .stride = n});
    }
  }
}

int TransferPlan::ReceivesOfRailAligned(int rank, int round) const {
  if (round == 1) return domains() - 1;
  const int domain = DomainOf(rank), index = IndexOf(rank);
  int runs = 1;
  for (int e = 0; e < domains() && !even_; ++e) {
    runs += e != domain && SizeOf(e) > index ? 1 : 0;
  }
  return (SizeOf(domain) - 1) * runs;
}

void TransferPlan::SendsOfForwarding(int rank, int round, std::vector<Transfer>* out) const {
  const int n = ranks_, domain = DomainOf(rank), first = FirstOf(domain), size = SizeOf(domain);
  const int index = rank - first;
  if (round == 0) {
    for (int step = 1; step < size; ++step) {
      const int to = first + (index + step) % size;
      out->push_back({.from = rank, .to = to, .first = rank * n + to});
    }
    for (int step = 1; step < domains(); ++step) {
      const int e = (domain + step) % domains();
      out->push_back({.from = rank,
                      .to = FirstOf(e) + index % SizeOf(e),
                      .first = rank * n + FirstOf(e),
                      .count = SizeOf(e)});
    }
    return;
  }
  // What came for the others here, from the ranks of this index (and, of larger domains, those
  // beyond): all domains before this one, and all behind it.
  for (int step = 1; step < size; ++step) {
    const int to = first + (index + step) % size;
    if (even_) {
      const Transfer run{.from = rank, .to = to, .first = index * n + to, .stride = size * n};
      Transfer before = run, after = run;
      before.count = domain;
      after.first += (domain + 1) * size * n;
      after.count = domains() - 1 - domain;
      if (before.count > 0) out->push_back(before);
      if (after.count > 0) out->push_back(after);
      continue;
    }
    for (int d = 0; d < domains(); ++d) {
      if (d == domain || SizeOf(d) <= index) continue;
      out->push_back({.from = rank,
                      .to = to,
                      .first = (FirstOf(d) + index) * n + to,
                      .count = CeilDivide(SizeOf(d) - index, size),
                      .stride = size * n});
    }
  }
}

int TransferPlan::ReceivesOfForwarding(int rank, int round) const {
  const int domain = DomainOf(rank), size = SizeOf(domain), index = IndexOf(rank);
  int count = 0;
  if (round == 0) {
    count = size - 1;
    for (int d = 0; d < domains(); ++d) {
      if (d != domain && SizeOf(d) > index) count += CeilDivide(SizeOf(d) - index, size);
    }
    return count;
  }
  if (even_) return (size - 1) * ((domain > 0 ? 1 : 0) + (domain + 1 < domains() ? 1 : 0));
  for (int r = 0; r < size; ++r) {
    if (r == index) continue;
    for (int d = 0; d < domains(); ++d) count += d != domain && SizeOf(d) > r ? 1 : 0;
  }
  return count;
}

// --- Sums
// -----------------------------------------------------------------------------------------

std::vector<TransferPlan::Edge> TransferPlan::Edges() const {
  std::vector<Edge> edges;
  if (rounds_ == 0) return edges;
  const bool all_reduce = spec_.kind == CollectiveKind::kAllReduce;
  if (spec_.algorithm == CollectiveAlgorithm::kRing) {
    const bool broadcast = spec_.kind == CollectiveKind::kBroadcast;
    const Bytes bytes = broadcast ? spec_.payload / channels() : rounds_ * BytesOf(0);
    for (const std::vector<int>& order : order_) {
      for (int p = 0; p < ranks_ - (broadcast ? 1 : 0); ++p) {
        edges.push_back({order[std::size_t(p)], order[std::size_t((p + 1) % ranks_)], bytes});
      }
    }
    return edges;
  }
  if (spec_.algorithm == CollectiveAlgorithm::kTree) {
    for (const Tree& tree : trees_) {
      for (int rank = 0; rank < ranks_; ++rank) {
        const int parent = tree.parent[std::size_t(rank)];
        if (parent < 0) continue;
        const Bytes bytes = spec_.payload / double(trees_.size());
        edges.push_back({parent, rank, bytes});
        if (all_reduce) edges.push_back({rank, parent, bytes});
      }
    }
    return edges;
  }
  std::vector<Transfer> sends;
  const auto add_round = [&](int round) {
    for (int endpoint = 0; endpoint < endpoints(); ++endpoint) {
      sends.clear();
      Sends(endpoint, round, &sends);
      for (const Transfer& t : sends) edges.push_back({t.from, t.to, BytesOf(t)});
    }
  };
  if (stages_.empty()) {
    for (int round = 0; round < rounds_; ++round) add_round(round);
    return edges;
  }
  for (const StageRounds& stage : stages_) {
    if (stage.stage != Stage::kReduceAcross && stage.stage != Stage::kGatherAcross) {
      for (int step = 0; step < stage.rounds; ++step) add_round(stage.first + step);
      continue;
    }
    // In a ring over domains each passes on all sectors but one.
    for (int holder = 0; holder < fewest_ && stage.rounds > 0; ++holder) {
      const auto sector = [&](int d) { return BytesOf(Sector(0, 0, holder, d, false)); };
      Bytes all;
      for (int d = 0; d < domains(); ++d) all += sector(d);
      for (int d = 0; d < domains(); ++d) {
        const int next = (d + 1) % domains();
        const int kept = stage.stage == Stage::kReduceAcross ? d : next;
        edges.push_back({FirstOf(d) + holder, FirstOf(next) + holder, all - sector(kept)});
      }
    }
  }
  return edges;
}

Bytes TransferPlan::SentBy(int endpoint) const {
  std::vector<Transfer> sends;
  Bytes sum;
  for (int round = 0; round < rounds_; ++round) {
    sends.clear();
    Sends(endpoint, round, &sends);
    for (const Transfer& t : sends) sum += BytesOf(t);
  }
  return sum;
}

std::vector<TransferPlan::Phase> TransferPlan::Phases() const {
  std::vector<Phase> phases;
  if (rounds_ == 0) return phases;
  if (spec_.algorithm == CollectiveAlgorithm::kRing && spec_.kind != CollectiveKind::kBroadcast) {
    return {{0, rounds_}};
  }
  for (int round = 0; round < rounds_; ++round) {
    const bool same = !stages_.empty() && even_ && StageAt(round).first < round &&
                      (StageAt(round).stage == Stage::kReduceAcross ||
                       StageAt(round).stage == Stage::kGatherAcross);
    if (same) {
      ++phases.back().rounds;
    } else {
      phases.push_back({round, 1});
    }
  }
  return phases;
}

}  // namespace millwright
