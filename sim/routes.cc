// SPDX-License-Identifier: Apache-2.0
#include "sim/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/config_io.h"

namespace millwright {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
constexpr std::uint8_t kNoWay = 255;

std::uint64_t Key(int a, int b) { return std::uint64_t(std::uint32_t(a)) << 32 | std::uint32_t(b); }
// Fibonacci hashing: the high bits of the product are well mixed.
std::size_t Slot(std::uint64_t key, std::size_t size) {
  return std::size_t((key * 0x9E3779B97F4A7C15u) >> 32) & (size - 1);
}

}  // namespace

RouteTable::RouteTable(const Cluster& cluster)
    : cluster_(&cluster),
      ranks_(cluster.gpus()),
      per_domain_(cluster.gpus_per_domain()),
      table_(1024, {kEmpty, 0}) {
  for (const Link& link : cluster.links()) {
    capacity_.push_back(link.bandwidth);
    link_latency_.push_back(link.latency.value);
  }
  const int next_domain = cluster.domains() > 1 ? cluster.GpuVertex(per_domain_) : 0;
  vertices_per_domain_ = cluster.domains() > 1 ? next_domain : cluster.vertices();
  for (const Link& link : cluster.links()) {
    links_per_domain_ += link.from < vertices_per_domain_ ? 1 : 0;
  }
  Learn();
}

RouteTable RouteTable::Star(int ranks, BytesPerSecond bandwidth, Seconds link_latency) {
  RouteTable star;
  star.ranks_ = ranks;
  star.per_domain_ = ranks;
  star.capacity_.assign(2 * std::size_t(ranks), bandwidth);
  star.link_latency_.assign(2 * std::size_t(ranks), link_latency.value);
  star.table_.assign(1024, {kEmpty, 0});
  return star;
}

// A GPU of one NIC has one way to its leaf, by PCIe alone.  Between the same GPU of two domains
// there is always such a route.
void RouteTable::Learn() {
  const ClusterConfig& config = cluster_->config();
  if (cluster_->domains() == 1 || config.nics_per_node == 0 ||
      config.nics_per_node > config.gpus_per_node) {
    return;
  }
  const std::span<const Link> links = cluster_->links();
  for (int local = 0; local < per_domain_; ++local) {
    const std::vector<int> route = cluster_->Route(local, per_domain_ + local);
    const auto is_leaf = [&](int vertex) { return cluster_->KindOf(vertex) == VertexKind::kLeaf; };
    const auto up_end = std::find_if(route.begin(), route.end(),
                                     [&](int l) { return is_leaf(links[std::size_t(l)].to); });
    const auto last_leaf = std::find_if(route.rbegin(), route.rend(),
                                        [&](int l) { return is_leaf(links[std::size_t(l)].from); });
    MILLWRIGHT_CHECK(up_end != route.end() && last_leaf != route.rend());
    up_.emplace_back(route.begin(), up_end + 1);
    std::vector<int>& down = down_.emplace_back(last_leaf.base(), route.end());
    for (int& link : down) link -= links_per_domain_;
  }
  to_nic_.assign(std::size_t(cluster_->domains()) * std::size_t(vertices_per_domain_), -1);
  for (std::size_t l = 0; l < links.size(); ++l) {
    if (cluster_->KindOf(links[l].to) == VertexKind::kNic &&
        cluster_->KindOf(links[l].from) == VertexKind::kLeaf) {
      to_nic_[std::size_t(links[l].to)] = int(l);
    }
  }
}

int RouteTable::SwitchOf(int rank) const { return ranks_ + rank / per_domain_; }

void RouteTable::Slow(int link, double factor) {
  MILLWRIGHT_CHECK(factor > 0 && factor <= 1 && end_.empty());
  capacity_[std::size_t(link)] = capacity_[std::size_t(link)] * factor;
  disturbed_ = disturbed_ || factor < 1;
}

void RouteTable::Fail(int link) {
  MILLWRIGHT_CHECK(cluster_ != nullptr && end_.empty());
  const auto at = std::lower_bound(failed_.begin(), failed_.end(), link);
  if (at == failed_.end() || *at != link) failed_.insert(at, link);
  disturbed_ = true;
}

bool RouteTable::IsSlow(int link) const {
  return disturbed_ && cluster_ != nullptr &&
         capacity_[std::size_t(link)] < cluster_->links()[std::size_t(link)].bandwidth;
}

bool RouteTable::IsDetour(int route) const {
  return std::binary_search(detours_.begin(), detours_.end(), route);
}

bool RouteTable::ReachesSwitch(int rank) {
  if (failed_.empty()) return true;
  const auto failed = [&](int link) {
    return std::binary_search(failed_.begin(), failed_.end(), link);
  };
  return !failed(LinkToSwitch(rank, true)) && !failed(LinkToSwitch(rank, false));
}

int RouteTable::Find(int from, int to) {
  const std::uint64_t key = Key(from, to);
  for (std::size_t i = Slot(key, table_.size());; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i].first == key) return table_[i].second;
    if (table_[i].first == kEmpty) return Add(key);
  }
}

int RouteTable::Add(std::uint64_t key) {
  const int from = int(key >> 32), to = int(key & 0xFFFFFFFFu);
  const int route = int(end_.size());
  if (2 * end_.size() >= table_.size()) {
    std::vector<std::pair<std::uint64_t, int>> old(2 * table_.size(), {kEmpty, 0});
    old.swap(table_);
    for (const auto& entry : old) {
      if (entry.first == kEmpty) continue;
      std::size_t i = Slot(entry.first, table_.size());
      while (table_[i].first != kEmpty) i = (i + 1) & (table_.size() - 1);
      table_[i] = entry;
    }
  }
  const std::size_t begin = links_.size();
  Append(from, to);
  GoAround(from, to, begin);
  double latency = 0, bandwidth = std::numeric_limits<double>::infinity();
  for (std::size_t i = begin; i < links_.size(); ++i) {
    latency += link_latency_[std::size_t(links_[i])];
    bandwidth = std::min(bandwidth, capacity_[std::size_t(links_[i])].value);
  }
  end_.push_back(links_.size());
  to_.push_back(to);
  latency_.emplace_back(latency);
  bandwidth_.emplace_back(bandwidth);
  std::size_t i = Slot(key, table_.size());
  while (table_[i].first != kEmpty) i = (i + 1) & (table_.size() - 1);
  table_[i] = {key, route};
  return route;
}

std::span<const int> RouteTable::LinksOf(int route) const {
  const std::size_t begin = route == 0 ? 0 : end_[std::size_t(route) - 1];
  return std::span(links_).subspan(begin, end_[std::size_t(route)] - begin);
}

// Endpoints from ranks_ on are switches.
void RouteTable::Append(int from, int to) {
  MILLWRIGHT_CHECK(from >= 0 && to >= 0 && from != to);
  if (cluster_ == nullptr) {
    if (from < ranks_) links_.push_back(from);
    if (to < ranks_) links_.push_back(ranks_ + to);
    return;
  }
  const auto domain = [&](int endpoint) {
    return endpoint < ranks_ ? endpoint / per_domain_ : endpoint - ranks_;
  };
  if (domain(from) == domain(to)) {
    AppendWithinDomain(from, to);
  } else {
    MILLWRIGHT_CHECK(from < ranks_ && to < ranks_);
    AppendBetweenDomains(from, to);
  }
}

void RouteTable::GoAround(int from, int to, std::size_t begin) {
  if (failed_.empty()) return;
  const auto broken = std::find_if(
      links_.begin() + std::ptrdiff_t(begin), links_.end(),
      [&](int link) { return std::binary_search(failed_.begin(), failed_.end(), link); });
  if (broken == links_.end()) return;
  const int link = *broken;
  links_.resize(begin);
  if (from >= ranks_ || to >= ranks_) {
    throw ConfigError(fmt::format("no NVLink SHARP for {}: {} is down",
                                  cluster_->NameOf(cluster_->GpuVertex(std::min(from, to))),
                                  cluster_->NameOfLink(link)));
  }
  const std::vector<int> detour = cluster_->Route(from, to, failed_);
  links_.insert(links_.end(), detour.begin(), detour.end());
  detours_.push_back(int(end_.size()));
}

// As in domain 0, whose links are the first.
void RouteTable::AppendWithinDomain(int from, int to) {
  if (to >= ranks_ || from >= ranks_) {
    links_.push_back(LinkToSwitch(std::min(from, to), to >= ranks_));
    return;
  }
  const int shift = from / per_domain_ * links_per_domain_;
  for (int link : WithinFirstDomain(from % per_domain_, to % per_domain_)) {
    links_.push_back(link + shift);
  }
}

int RouteTable::LinkToSwitch(int rank, bool gathers) {
  MILLWRIGHT_CHECK(cluster_->config().domain_link == DomainLink::kNvswitch && per_domain_ > 1);
  const int gpu = rank % per_domain_;
  const int other = (gpu + 1) % per_domain_;
  const std::span<const int> route =
      gathers ? WithinFirstDomain(gpu, other) : WithinFirstDomain(other, gpu);
  MILLWRIGHT_CHECK(route.size() == 2);
  return (gathers ? route.front() : route.back()) + rank / per_domain_ * links_per_domain_;
}

std::span<const int> RouteTable::WithinFirstDomain(int from, int to) {
  const auto [it, fresh] = within_.try_emplace(Key(from, to));
  if (fresh) it->second = cluster_->Route(from, to);
  return it->second;
}

int RouteTable::LeafLink(int rank) const {
  const int domain = rank / per_domain_;
  const int nic = cluster_->links()[std::size_t(up_[std::size_t(rank % per_domain_)].back())].from;
  const int vertex = domain * vertices_per_domain_ + nic;
  return to_nic_[std::size_t(vertex)];
}

// Links between switches are equally long, so that the fewest are the shortest way.
const std::vector<std::uint8_t>& RouteTable::HopsTo(int leaf) {
  const auto [it, fresh] = hops_.try_emplace(leaf);
  std::vector<std::uint8_t>& hops = it->second;
  if (!fresh) return hops;
  const int first = FirstLeaf();
  hops.assign(std::size_t(cluster_->vertices() - first), kNoWay);
  hops[std::size_t(leaf - first)] = 0;
  std::vector<int> reached{leaf};
  for (std::size_t next = 0; next < reached.size(); ++next) {
    const int at = reached[next];
    for (const Link& link : cluster_->LinksFrom(at)) {
      if (link.to < first || hops[std::size_t(link.to - first)] != kNoWay) continue;
      hops[std::size_t(link.to - first)] = std::uint8_t(hops[std::size_t(at - first)] + 1);
      reached.push_back(link.to);
    }
  }
  return hops;
}

// Among equal ways the destination's domain decides, as in Cluster::Route.
bool RouteTable::AppendBetweenLeaves(int from, int to, int domain) {
  if (from == to) return true;
  const std::vector<std::uint8_t>& hops = HopsTo(to);
  const int first = FirstLeaf();
  if (hops[std::size_t(from - first)] == kNoWay) return false;
  std::vector<int> ways;
  for (int at = from; at != to;) {
    ways.clear();
    for (const Link& link : cluster_->LinksFrom(at)) {
      if (link.to >= first &&
          hops[std::size_t(link.to - first)] + 1 == hops[std::size_t(at - first)]) {
        ways.push_back(int(&link - cluster_->links().data()));
      }
    }
    const int count = int(ways.size());
    links_.push_back(ways[std::size_t(domain % count)]);
    domain /= count;
    at = cluster_->links()[std::size_t(links_.back())].to;
  }
  return true;
}

void RouteTable::AppendBetweenDomains(int from, int to) {
  const auto append_all = [&](std::span<const int> route, int shift) {
    for (int link : route) links_.push_back(link + shift);
  };
  if (up_.empty()) {
    append_all(cluster_->Route(from, to), 0);
    return;
  }
  const std::span<const Link> links = cluster_->links();
  const std::vector<int>& up = up_[std::size_t(from % per_domain_)];
  const std::vector<int>& down = down_[std::size_t(to % per_domain_)];
  const int up_shift = from / per_domain_ * links_per_domain_;
  const int leaf_link = LeafLink(to);
  const int nic_link = up.back() + up_shift;
  const int leaf_from = links[std::size_t(nic_link)].to;
  const int leaf_to = links[std::size_t(leaf_link)].from;
  const std::size_t begin = links_.size();
  append_all(up, up_shift);
  if (!AppendBetweenLeaves(leaf_from, leaf_to, to / per_domain_)) {
    // Over NVLink: rails that no spine joins.
    links_.resize(begin);
    append_all(cluster_->Route(from, to), 0);
    return;
  }
  links_.push_back(leaf_link);
  append_all(down, to / per_domain_ * links_per_domain_);
}

}  // namespace millwright
