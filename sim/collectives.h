// SPDX-License-Identifier: Apache-2.0
//
// A collective as transfers: who sends which blocks to whom, and after what.
//
// One description, used three ways: priced in closed form (Phases, sim/collective_run), simulated
// as flows over links (sim/collective_run, sim/network) and performed on real buffers
// (sim/perform).
//
// Model.  The payload is cut into blocks.  Transfers are arranged in rounds: what an endpoint
// sends in round r needs nothing but what reached it in rounds before r, and an endpoint enters
// a round when all its transfers of earlier rounds, in and out, are done.  Other endpoints may be
// ahead or behind; nothing waits for all.  Nothing is stored per transfer: what an endpoint sends
// in a round is a formula, so that a ring over 4,096 ranks takes kilobytes.
//
// Ranks are positions in the group, domain by domain.  Endpoints are the ranks and then the
// domains' switches, which NVLS uses.  n ranks, D domains, q the fewest ranks in a domain, S the
// payload as cost_models/collectives.h defines it, C chunks, k = floor(log2 n), r = n - 2^k.
//
// algorithm         kinds            rounds               bytes a rank sends
// ring              AR               2(n-1)               2(n-1)/n S     (nccl-tests' factor)
//                   RS, AG           n-1                  (n-1)/n S
//                   broadcast        C + n - 2            S, the last rank nothing
// tree (double)     AR               C + height + depth - 1   (parents + children)/2 S, over both
//                                                         trees: at most 2 S on one domain
//                   broadcast        C + depth - 1        (children)/2 S over both trees
// halving-doubling  AR               2k (+ 2 where r > 0) 2(2^k - 1)/2^k S where r = 0; else a
//                                                         rank that folds sends S, and its
//                                                         partner S more
//                   RS, AG           k (+ 2)              (2^k - 1)/2^k S where r = 0
// direct            AR               2                    2(n-1)/n S
//                   RS, AG, A2A      1                    (n-1)/n S
//                   broadcast        2                    S the root, (n-2)/(n-1) S the others
//                   send-recv        1                    S, from the first rank to the last
// one-shot          AR, broadcast    1                    (n-1) S (of a broadcast, the root)
// hierarchical      AR               2 + 2(D-1)           (2(q-1) + 2(D-1)/D)/q S, even domains
//                   RS, AG           1 + (D-1) (+ 1)      ((q-1) + (D-1)/D)/q S, even domains
//                   A2A              2                    (n-1)/n S to others' domains and its
//                                                         own, and forwards (q-1)(D-1)/n S
// nvls              AR               C + 3                S + S/n; each switch n S + S
//  (one domain)     RS               C + 1                S
//                   AG               C + 1                S/n
//  (more domains)   AR               4 + 2(D-1)           (1 + 1/q + 2(D-1)/D/q) S, even domains
//                   RS, AG           2 + (D-1) (+ 1)      likewise
// pairwise          A2A              n-1                  (n-1)/n S
// rail-aligned      A2A              2                    (q-1)/q S, and (D-1)/D S over its rail
//
// tree: NCCL's two binary trees, of which the second is the first mirrored (n even) or shifted
// by one (n odd), so that a rank is inner in one of them only; with several domains they join
// the domains, the ranks of a domain hang in a chain, and each of q pairs of trees goes through
// another rank, that is, NIC.  A broadcast's two trees join all but the root, which feeds both.
// ring: with several domains, q rings that leave a domain by different ranks, each to the same
// rail (a ring over an odd number of domains crosses rails once).
// halving-doubling: n that is no power of two: 2r ranks first fold into r, and unfold at last.
// hierarchical: reduce-scatter in the domain, ring among the ranks of one index, all-gather in
// the domain; where domains differ in size, q of each do the ring for all.  All-to-all: across
// first, to the rank of one's own index (DeepEP's way), and on by NVLink.
// rail-aligned: by NVLink first, to the rank with the receiver's index, and across on its rail
// (NCCL's PXN).
// nvls: the domain's switch adds up and multicasts; in one domain, C chunks flow through it.
//
// Sources: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (ring, halving-doubling); Sanders,
// Speck and Traff, Parallel Computing 35(12), 2009 (two trees); NCCL 2.4 release notes (double
// binary trees), NCCL 2.12 (PXN), NCCL 2.17 (NVLS).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"
#include "cost_models/collectives.h"

namespace millwright {

// Blocks first, first + stride, ..., `count` of them.
struct Transfer {
  int from = 0;
  int to = 0;
  int first = 0;
  int count = 1;
  int stride = 1;
  bool reduce = false;  // the receiver adds
};

struct CollectiveSpec {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  Bytes payload;
  std::vector<int> domain_sizes;  // ranks in each domain, in the group's order
  int chunks = 16;   // of broadcast rings, trees and NVLS, which pipeline; of each tree or ring
  int channels = 0;  // rings; 0: as the header says.  1: ranks in the group's order
  std::vector<Bytes> loads;  // all-to-all-v: from x ranks + to; then the payload is not looked at
};

// How the members of a group, ordered so that those of a domain follow each other, lie on domains.
std::vector<int> DomainSizes(std::span<const int> members, int gpus_per_domain);

// Ring attention: each rank's keys and values travel once around the ring, a round under each
// block of attention.  An all-gather whose blocks arrive one by one.
CollectiveSpec RingAttentionExchange(Bytes kv_of_a_rank, std::vector<int> domain_sizes);
// DeepSpeed-Ulysses: a tensor split by sequence becomes one split by heads, or back.
CollectiveSpec UlyssesExchange(Bytes tensor_of_a_rank, std::vector<int> domain_sizes);

class TransferPlan {
 public:
  static bool Supports(CollectiveKind kind, CollectiveAlgorithm algorithm);

  explicit TransferPlan(CollectiveSpec spec);  // CHECKs that it is supported

  const CollectiveSpec& spec() const { return spec_; }
  int ranks() const { return ranks_; }
  int endpoints() const { return ranks_ + (switches_ ? domains() : 0); }
  int domains() const { return int(spec_.domain_sizes.size()); }
  int DomainOf(int rank) const { return domain_of_[std::size_t(rank)]; }
  int FirstOf(int domain) const { return first_[std::size_t(domain)]; }
  int rounds() const { return rounds_; }
  int blocks() const { return blocks_; }

  Bytes BytesOf(int block) const;
  Bytes BytesOf(const Transfer& transfer) const;
  // Elements [first, second) of a block where `elements` are shared out in all.  All-to-all: of
  // n x n blocks, by sender and then receiver.
  std::pair<std::int64_t, std::int64_t> RangeOf(int block, std::int64_t elements) const;
  // The block's contents are right from the start on this rank: its shard or message.  For
  // kinds that reduce, on all.
  bool StartsWith(int rank, int block) const;
  // The block must be right on this rank at last.
  bool EndsWith(int rank, int block) const;

  // Appends what an endpoint sends in a round.
  void Sends(int endpoint, int round, std::vector<Transfer>* out) const;
  // How many transfers reach it.
  int Receives(int endpoint, int round) const;

  // Bytes from an endpoint to another over the whole collective; a pair may come several times.
  struct Edge {
    int from, to;
    Bytes bytes;
  };
  std::vector<Edge> Edges() const;
  Bytes SentBy(int endpoint) const;

  // Successive rounds of equal cost.
  struct Phase {
    int first, rounds;
  };
  std::vector<Phase> Phases() const;

 private:
  // Pipelined over two (or two for each NIC) trees.
  struct Tree {
    std::vector<int> parent, height, depth;
    std::vector<std::array<int, 3>> children;  // -1: none
    int root_height = 0;                       // 0 in a broadcast: nothing goes up
    int deepest = 0;
  };

  void BuildRings();
  void BuildTrees();
  void BuildHolders();
  Tree MakeTree(std::vector<int> parent) const;

  bool reduces() const;
  int channels() const { return int(order_.size()); }
  int SizeOf(int domain) const { return spec_.domain_sizes[std::size_t(domain)]; }
  int IndexOf(int rank) const { return rank - FirstOf(DomainOf(rank)); }

  void SendsOfRing(int rank, int round, std::vector<Transfer>* out) const;
  void SendsOfTree(int rank, int round, std::vector<Transfer>* out) const;
  void SendsOfHalving(int rank, int round, std::vector<Transfer>* out) const;
  void SendsOfDirect(int rank, int round, std::vector<Transfer>* out) const;
  void SendsOfHierarchical(int endpoint, int round, std::vector<Transfer>* out) const;
  void SendsOfNvls(int endpoint, int round, std::vector<Transfer>* out) const;
  void SendsOfRailAligned(int rank, int round, std::vector<Transfer>* out) const;
  void SendsOfForwarding(int rank, int round, std::vector<Transfer>* out) const;
  int ReceivesOfRing(int rank, int round) const;
  int ReceivesOfTree(int rank, int round) const;
  int ReceivesOfHalving(int rank, int round) const;
  int ReceivesOfHierarchical(int endpoint, int round) const;
  int ReceivesOfNvls(int endpoint, int round) const;
  int ReceivesOfRailAligned(int rank, int round) const;
  int ReceivesOfForwarding(int rank, int round) const;

  // Hierarchical: what the rounds of each stage are.
  enum class Stage { kGather, kReduceAcross, kGatherAcross, kScatter, kHandOver, kTakeOver };
  struct StageRounds {
    Stage stage;
    int first, rounds;
  };
  StageRounds StageAt(int round) const;
  void AddHolderBlocks(int from, int to, int holder, bool reduce, std::vector<Transfer>* out) const;
  Transfer Sector(int from, int to, int holder, int domain, bool reduce) const;

  // Halving-doubling.
  int active_ = 1, folded_ = 0;  // 2^k and r
  int ActiveOf(int rank) const;  // -1: folded away
  int RankOfActive(int active) const { return active < folded_ ? 2 * active : active + folded_; }
  int FirstBlockOf(int active) const { return active <= folded_ ? 2 * active : active + folded_; }

  CollectiveSpec spec_;
  int ranks_ = 0, rounds_ = 0, blocks_ = 0;
  bool switches_ = false;
  std::vector<int> first_, domain_of_;
  std::vector<std::vector<int>> order_, position_;  // of each ring: rank by position, and back
  std::vector<Tree> trees_;
  int fewest_ = 0;  // q
  bool even_ = true;
  std::vector<StageRounds> stages_;
  std::vector<double> loads_before_;  // all-to-all-v: sum of loads before each block
};

}  // namespace millwright
