// SPDX-License-Identifier: Apache-2.0
#include "topologies/unlike_nodes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/mistakes.h"

namespace millwright {
namespace {

std::optional<int> NodeIn(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

}  // namespace

NodeSpeed Slower(const NodeSpeed& a, const NodeSpeed& b) {
  return {.compute = std::min(a.compute, b.compute),
          .nic = std::min(a.nic, b.nic),
          .nvlink = std::min(a.nvlink, b.nvlink)};
}

void Fields(ConfigIo& io, UnlikeNodes& unlike) {
  constexpr NumberRange kFactor{.min = kLeastNodeFactor, .max = 1};
  io.Text("nodes", unlike.nodes, "which, counted from 0: \"3,8..15\"", Presence::kRequired);
  if (io.reading() && !unlike.nodes.empty() && NodesNamed(unlike.nodes).empty()) {
    io.Mistake("nodes",
               fmt::format("expected nodes and ranges of them, as in \"3,8..15\", got \"{}\"",
                           Printable(unlike.nodes, kMostNameShown)));
  }
  io.Number("compute", unlike.speed.compute, kFactor, "speed of the GPUs over that of the others");
  io.Number("nic", unlike.speed.nic, kFactor, "bandwidth of each NIC over that of the others");
  io.Number("nvlink", unlike.speed.nvlink, kFactor, "NVLink bandwidth over that of the others");
}

std::vector<std::pair<int, int>> NodesNamed(std::string_view text) {
  std::vector<std::pair<int, int>> ranges;
  while (true) {
    const std::string_view one = text.substr(0, text.find(','));
    const std::size_t dots = one.find("..");
    const std::optional<int> first = NodeIn(one.substr(0, dots));
    const std::optional<int> last =
        dots == std::string_view::npos ? first : NodeIn(one.substr(dots + 2));
    if (!first || !last || *last < *first) return {};
    ranges.emplace_back(*first, *last);
    if (one.size() == text.size()) return ranges;
    text.remove_prefix(one.size() + 1);
  }
}

std::vector<std::string> ProblemsOf(std::span<const UnlikeNodes> unlike, int nodes) {
  std::vector<std::string> problems;
  std::vector<std::pair<int, int>> all;
  for (const UnlikeNodes& entry : unlike) {
    if (entry.nodes.empty()) problems.emplace_back("\"\": names no node");
    int last = -1;
    for (const auto& range : NodesNamed(entry.nodes)) {
      all.push_back(range);
      last = std::max(last, range.second);
    }
    if (last >= nodes) {
      problems.push_back(
          fmt::format("\"{}\": {}", Printable(entry.nodes, kMostNameShown),
                      nodes == 1 ? "there is one node, 0"
                                 : fmt::format("there are {} nodes, 0 to {}", nodes, nodes - 1)));
    }
    if (entry.speed == NodeSpeed{}) {
      problems.push_back(fmt::format("\"{}\": compute, nic or nvlink must be below 1",
                                     Printable(entry.nodes, kMostNameShown)));
    }
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 1; i < all.size(); ++i) {
    // The range that reaches furthest is the one to overlap with.
    if (all[i].first <= all[i - 1].second) {
      problems.push_back(fmt::format("node {} is named twice", all[i].first));
    }
    all[i].second = std::max(all[i].second, all[i - 1].second);
  }
  return problems;
}

NodeSpeed SlowestOf(std::span<const UnlikeNodes> unlike, int first, int last) {
  NodeSpeed slowest;
  for (const UnlikeNodes& entry : unlike) {
    for (const auto& [from, to] : NodesNamed(entry.nodes)) {
      if (from <= last && to >= first) slowest = Slower(slowest, entry.speed);
    }
  }
  return slowest;
}

std::string TextOf(const NodeSpeed& speed) {
  std::vector<std::string> parts;
  const auto add = [&](double factor, const char* what) {
    if (factor < 1) parts.push_back(fmt::format("{:.3g} of the {}", factor, what));
  };
  add(speed.compute, "compute");
  add(speed.nic, "NIC bandwidth");
  add(speed.nvlink, "NVLink bandwidth");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string TextOf(std::span<const UnlikeNodes> unlike) {
  std::string text;
  for (const UnlikeNodes& entry : unlike) {
    const auto ranges = NodesNamed(entry.nodes);
    const bool one = ranges.size() == 1 && ranges.front().first == ranges.front().second;
    text += fmt::format("{}node{} {} at {}", text.empty() ? "" : "; ", one ? "" : "s", entry.nodes,
                        TextOf(entry.speed));
  }
  return text;
}

}  // namespace millwright
