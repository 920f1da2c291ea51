// SPDX-License-Identifier: Apache-2.0
#include "sim/disturbance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "core/config_io.h"
#include "core/mistakes.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

constexpr double kLeastFactor = 1e-6;
constexpr std::string_view kWaysToNameLinks =
    "A->B (one way), A-B (both ways) or A (every link of A)";
constexpr std::size_t kMostMistakes = 100;
// Names among which the nearest is looked for.
constexpr int kMostNames = 4096;

template <class Number>
std::optional<Number> Parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::string Quoted(std::string_view text) {
  return fmt::format("\"{}\"", Printable(text, kMostNameShown));
}

std::string DidYouMean(std::string_view word, std::span<const std::string_view> names) {
  const std::string_view nearest = NearestName(word, names);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

class Reader {
 public:
  explicit Reader(const Cluster& cluster) : cluster_(cluster) {}

  void Slow(std::string_view text) {
    where_ = fmt::format("--slow {}", text.empty() ? "\"\"" : Printable(text, kMostNameShown));
    const std::size_t equals = text.rfind('=');
    if (equals == std::string_view::npos) {
      Mistake("expected a part and a factor, as in gpu:17=0.8");
      return;
    }
    const std::string_view part = text.substr(0, equals);
    const std::optional<double> factor = Parse<double>(text.substr(equals + 1));
    const bool good = factor && *factor >= kLeastFactor && *factor <= 1;
    if (!good) {
      Mistake(fmt::format("the factor must be a number from 0.000001 to 1, got {}",
                          Quoted(text.substr(equals + 1))));
    }
    if (!Once(part, &slowed_)) return;
    constexpr std::string_view kKinds[] = {"gpu", "node", "nic", "link"};
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::string_view kind = part.substr(0, colon);
    const std::string_view which = part.substr(std::min(colon + 1, part.size()));
    const double f = good ? *factor : 1;
    if (colon == part.size() || std::ranges::count(kKinds, kind) == 0) {
      Mistake(fmt::format("expected gpu:N, node:N, nic:N or link: and {}, got {}{}",
                          kWaysToNameLinks, Quoted(part),
                          colon == part.size() ? "" : DidYouMean(kind, kKinds)));
    } else if (kind == "gpu") {
      if (const auto rank = Number(which, "GPUs", cluster_.gpus())) Multiply(*rank, 1, f);
    } else if (kind == "node") {
      if (const auto node = Number(which, "nodes", cluster_.domains())) {
        Multiply(*node * cluster_.gpus_per_domain(), cluster_.gpus_per_domain(), f);
      }
    } else {
      for (const int link : kind == "nic" ? LinksOfNic(which) : LinksNamed(which)) {
        if (f < 1) slow_links_.try_emplace(link, 1).first->second *= f;
      }
    }
  }

  void LinkDown(std::string_view text) {
    where_ = fmt::format("--link-down {}", text.empty() ? "\"\"" : Printable(text, kMostNameShown));
    if (!Once(text, &downed_)) return;
    const std::size_t colon = text.find(':');
    const std::string_view kind = colon == std::string_view::npos ? "link" : text.substr(0, colon);
    const std::string_view which = text.substr(colon == std::string_view::npos ? 0 : colon + 1);
    if (kind != "nic" && kind != "link") {
      Mistake(fmt::format("expected nic:N, {}, got {}", kWaysToNameLinks, Quoted(text)));
      return;
    }
    for (const int link : kind == "nic" ? LinksOfNic(which) : LinksNamed(which)) {
      failed_.insert(link);
    }
  }

  Disturbance Finish() {
    if (mistakes_ > lines_.size()) {
      lines_.push_back(fmt::format("and {} more mistakes", mistakes_ - lines_.size()));
    }
    if (mistakes_ > 0) throw ConfigError(fmt::format("{}", fmt::join(lines_, "\n")));
    return {.gpu_speed = std::move(speed_),
            .slow_links = {slow_links_.begin(), slow_links_.end()},
            .failed_links = {failed_.begin(), failed_.end()}};
  }

 private:
  void Mistake(const std::string& what) {
    if (++mistakes_ <= kMostMistakes) lines_.push_back(fmt::format("{}: {}", where_, what));
  }

  bool Once(std::string_view part, std::set<std::string, std::less<>>* seen) {
    if (seen->emplace(part).second) return true;
    Mistake(fmt::format("{} is named twice", Quoted(part)));
    return false;
  }

  std::optional<int> Number(std::string_view text, const char* what, int count) {
    const std::optional<int> number = Parse<int>(text);
    // "007" would be another name for 7, and could be said once more.
    const bool plain = number && fmt::format("{}", *number) == text;
    if (plain && *number >= 0 && *number < count) return number;
    Mistake(count == 0 ? fmt::format("there are no {}", what)
                       : fmt::format("there are {} {}, 0 to {}; got {}", FormatInteger(count), what,
                                     count - 1, Quoted(text)));
    return {};
  }

  void Multiply(int first_rank, int count, double factor) {
    if (factor >= 1) return;
    if (speed_.empty()) speed_.assign(std::size_t(cluster_.gpus()), 1);
    for (int rank = first_rank; rank < first_rank + count; ++rank) {
      speed_[std::size_t(rank)] *= factor;
    }
  }

  std::vector<int> LinksOfNic(std::string_view text) {
    const int per_node = cluster_.config().nics_per_node;
    const std::optional<int> nic = Number(text, "NICs", per_node * cluster_.domains());
    if (!nic) return {};
    const int vertex =
        *cluster_.VertexNamed(fmt::format("node{}/nic{}", *nic / per_node, *nic % per_node));
    std::vector<int> links;
    for (const Link& link : cluster_.LinksFrom(vertex)) {
      if (cluster_.KindOf(link.to) == VertexKind::kLeaf) links = LinksBetween(vertex, link.to);
    }
    if (links.empty()) Mistake(fmt::format("{} is joined to no switch", cluster_.NameOf(vertex)));
    return links;
  }

  std::vector<int> LinksBetween(int a, int b) const {
    const std::optional<int> there = cluster_.LinkBetween(a, b), back = cluster_.LinkBetween(b, a);
    return there && back ? std::vector<int>{*there, *back} : std::vector<int>{};
  }

  // "A->B", "A-B" or "A".
  std::vector<int> LinksNamed(std::string_view text) {
    const std::size_t dash = text.find('-');
    if (dash == std::string_view::npos) {
      const std::optional<int> part = Part(text);
      std::vector<int> links;
      if (!part) return links;
      for (const Link& link : cluster_.LinksFrom(*part)) {
        for (const int l : LinksBetween(*part, link.to)) links.push_back(l);
      }
      return links;
    }
    const bool one_way = text.substr(dash).starts_with("->");
    const std::string_view to_text = text.substr(dash + (one_way ? 2 : 1));
    if (to_text.empty()) {
      Mistake(
          "expected a part's name behind the -, as in node0/nic0-leaf0.0; a shell takes an "
          "unquoted > for itself");
      return {};
    }
    const std::optional<int> from = Part(text.substr(0, dash)), to = Part(to_text);
    if (!from || !to) return {};
    std::vector<int> both = LinksBetween(*from, *to);
    if (both.empty()) {
      const std::string name = cluster_.NameOf(*from);
      Mistake(fmt::format("{} and {} are not linked; {} is linked to {}", name,
                          cluster_.NameOf(*to), name, NeighboursOf(*from)));
    } else if (one_way) {
      return {both.front()};
    }
    return both;
  }

  std::string NeighboursOf(int vertex) const {
    std::vector<int> neighbours;
    for (const Link& link : cluster_.LinksFrom(vertex)) neighbours.push_back(link.to);
    return Ranges(neighbours);
  }

  std::optional<int> Part(std::string_view name) {
    const std::optional<int> vertex = cluster_.VertexNamed(name);
    if (!vertex) {
      Mistake(fmt::format("there is no {}{}; parts are {}", Quoted(name), Nearest(name), Parts()));
    }
    return vertex;
  }

  // Of one node's parts, the first one's where none is said, and the switches.
  std::string Nearest(std::string_view name) const {
    const int per_domain = (cluster_.vertices() - Switches()) / cluster_.domains();
    int domain = 0;
    if (name.starts_with("node")) {
      const std::string_view number = name.substr(4, std::max<std::size_t>(name.find('/'), 4) - 4);
      domain = std::clamp(Parse<int>(number).value_or(0), 0, cluster_.domains() - 1);
    }
    std::vector<std::string> names;
    const int first = cluster_.vertices() - Switches();
    for (int i = 0; i < std::min(per_domain, kMostNames); ++i) {
      names.push_back(cluster_.NameOf(domain * per_domain + i));
    }
    for (int v = first; v < std::min(cluster_.vertices(), first + kMostNames); ++v) {
      names.push_back(cluster_.NameOf(v));
    }
    return DidYouMean(name, std::vector<std::string_view>(names.begin(), names.end()));
  }

  int Switches() const {
    return cluster_.CountOf(VertexKind::kLeaf) + cluster_.CountOf(VertexKind::kSpine) +
           cluster_.CountOf(VertexKind::kCore);
  }

  std::string Parts() const {
    std::vector<int> all(std::size_t(cluster_.vertices()));
    std::iota(all.begin(), all.end(), 0);
    return Ranges(all);
  }

  // The first and the last of each kind.
  std::string Ranges(std::span<const int> vertices) const {
    std::map<VertexKind, std::pair<int, int>> ends;
    for (const int v : vertices)
      ends.try_emplace(cluster_.KindOf(v), v, v).first->second.second = v;
    std::vector<std::string> ranges;
    for (const auto& [kind, range] : ends) {
      const auto [first, last] = range;
      ranges.push_back(
          first == last ? cluster_.NameOf(first)
                        : fmt::format("{} to {}", cluster_.NameOf(first), cluster_.NameOf(last)));
    }
    return fmt::format("{}", fmt::join(ranges, ", "));
  }

  const Cluster& cluster_;
  std::string where_;
  std::vector<std::string> lines_;
  std::size_t mistakes_ = 0;
  std::set<std::string, std::less<>> slowed_, downed_;
  std::vector<double> speed_;
  std::map<int, double> slow_links_;
  std::set<int> failed_;
};

}  // namespace

Disturbance ReadDisturbance(std::span<const std::string> slow,
                            std::span<const std::string> link_down, const Cluster& cluster) {
  Reader reader(cluster);
  for (const std::string& text : slow) reader.Slow(text);
  for (const std::string& text : link_down) reader.LinkDown(text);
  return reader.Finish();
}

void Disturb(std::span<const UnlikeNodes> unlike, const Cluster& cluster,
             Disturbance* disturbance) {
  std::map<int, double> slow(disturbance->slow_links.begin(), disturbance->slow_links.end());
  const auto slow_down = [&](int from, int to, double factor) {
    for (const auto& link : {cluster.LinkBetween(from, to), cluster.LinkBetween(to, from)}) {
      if (link && factor < 1) slow.try_emplace(*link, 1).first->second *= factor;
    }
  };
  const int of_node = cluster.gpus_per_domain();
  for (const UnlikeNodes& entry : unlike) {
    for (const auto& [first, last] : NodesNamed(entry.nodes)) {
      for (int rank = first * of_node; rank < (last + 1) * of_node; ++rank) {
        if (entry.speed.compute < 1) {
          std::vector<double>& speed = disturbance->gpu_speed;
          if (speed.empty()) speed.assign(std::size_t(cluster.gpus()), 1);
          speed[std::size_t(rank)] *= entry.speed.compute;
        }
        const int gpu = cluster.GpuVertex(rank);
        for (const Link& link : cluster.LinksFrom(gpu)) {
          const VertexKind kind = cluster.KindOf(link.to);
          // A link between two GPUs is met from both.
          const bool nvlink =
              kind == VertexKind::kNvswitch || (kind == VertexKind::kGpu && link.to > gpu);
          if (nvlink) slow_down(gpu, link.to, entry.speed.nvlink);
        }
      }
      for (int nic = 0; nic < cluster.config().nics_per_node * (last - first + 1); ++nic) {
        const int per_node = cluster.config().nics_per_node;
        const int vertex = *cluster.VertexNamed(
            fmt::format("node{}/nic{}", first + nic / per_node, nic % per_node));
        for (const Link& link : cluster.LinksFrom(vertex)) {
          if (cluster.KindOf(link.to) == VertexKind::kLeaf) {
            slow_down(vertex, link.to, entry.speed.nic);
          }
        }
      }
    }
  }
  disturbance->slow_links.assign(slow.begin(), slow.end());
}

}  // namespace millwright
