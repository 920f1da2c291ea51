// SPDX-License-Identifier: Apache-2.0
#include "planner/full_step.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/check.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

std::string_view KindName(VertexKind kind) {
  switch (kind) {
    case VertexKind::kGpu:
      return "GPU";
    case VertexKind::kNvswitch:
      return "NVSwitch";
    case VertexKind::kPcieSwitch:
      return "PCIe switch";
    case VertexKind::kSocket:
      return "socket";
    case VertexKind::kNic:
      return "NIC";
    case VertexKind::kLeaf:
      return "leaf";
    case VertexKind::kSpine:
      return "spine";
    case VertexKind::kCore:
      return "core";
  }
  return {};
}

std::string NameOfLink(const Cluster& cluster, const Link& link) {
  return fmt::format("{} to {}", cluster.NameOf(link.from), cluster.NameOf(link.to));
}

void ReportLinks(const Cluster& cluster, const std::vector<LinkLoad>& loads, FullReport& report) {
  std::map<std::pair<VertexKind, VertexKind>, LinkUseReport> kinds;
  for (const LinkLoad& load : loads) {
    const Link& link = cluster.links()[std::size_t(load.link)];
    const VertexKind from = cluster.KindOf(link.from), to = cluster.KindOf(link.to);
    LinkUseReport& kind = kinds[{from, to}];
    if (kind.name.empty()) {
      kind.name = fmt::format("{} to {}", KindName(from), KindName(to));
      kind.links = 0;
    }
    ++kind.links;
    kind.mean += load.utilisation;
    kind.bytes = std::max(kind.bytes, load.bytes);
    if (load.utilisation > kind.utilisation) {
      kind.utilisation = load.utilisation;
      kind.busiest = NameOfLink(cluster, link);
    }
  }
  for (auto& [ends, kind] : kinds) {
    kind.mean /= double(kind.links);
    report.link_kinds.push_back(std::move(kind));
  }
  const auto busier = [](const auto& a, const auto& b) { return a.utilisation > b.utilisation; };
  std::stable_sort(report.link_kinds.begin(), report.link_kinds.end(), busier);
  std::vector<LinkLoad> busiest = loads;
  std::stable_sort(busiest.begin(), busiest.end(), busier);
  constexpr std::size_t kMostLinks = 20;
  busiest.resize(std::min(busiest.size(), kMostLinks));
  for (const LinkLoad& load : busiest) {
    const Link& link = cluster.links()[std::size_t(load.link)];
    report.links.push_back({.name = NameOfLink(cluster, link),
                            .busiest = {},
                            .bytes = load.bytes,
                            .utilisation = load.utilisation,
                            .mean = load.utilisation});
  }
}

Seconds BusyOf(const RankTime& time) {
  return std::accumulate(time.busy.begin(), time.busy.end(), Seconds(0));
}

// How many steps at once go into memory, and are there cores for.
int Workers(Bytes of_one, int steps, const SimulatedStep& step, int plane) {
  const Bytes memory(double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)));
  if (of_one > memory) {
    throw ConfigError(fmt::format(
        "every rank of {} pipeline ranks on {} GPUs, with {} tasks on each, needs {} of this "
        "machine's {}; --fidelity folded simulates one GPU of each pipeline rank",
        step.graph.ranks(), FormatInteger(std::int64_t{1} * plane * step.graph.ranks()),
        FormatCount(double(step.graph.size()) / step.graph.ranks()), FormatBytes(of_one),
        FormatBytes(memory)));
  }
  const int cores = int(std::max(1U, std::thread::hardware_concurrency()));
  return std::min({cores, steps, std::max(1, int(memory / of_one / 2))});
}

}  // namespace

Seconds FullReport::Percentile(double share) const {
  std::vector<Seconds> sorted = steps;
  std::sort(sorted.begin(), sorted.end());
  const auto at = std::size_t(std::ceil(share * double(sorted.size())));
  return sorted[std::clamp<std::size_t>(at, 1, sorted.size()) - 1];
}

Seconds FullReport::mean() const {
  return std::accumulate(steps.begin(), steps.end(), Seconds(0)) / double(steps.size());
}

FullReport SimulateEveryRank(const Estimator& estimator, const FullAsked& asked,
                             SimulatedStep& step) {
  const Cluster& cluster = estimator.cluster();
  const int pipeline = step.graph.ranks();
  FullReport report{.options = asked.options, .folded = step.timeline.makespan};
  report.options.plane = cluster.gpus() / pipeline;
  const int plane = report.options.plane;
  const Bytes of_one = FullSimulation::MemoryFor(step.graph.size(), pipeline, plane);
  const int workers = Workers(of_one, asked.steps, step, plane);

  const FullSimulation full(step.graph, cluster, estimator.calibration().collective,
                            report.options);
  report.steps.resize(std::size_t(asked.steps));
  std::mutex telling;
  std::atomic<int> next{1}, done{0};
  const auto run = [&](int number) {
    const bool alone = asked.steps == 1;
    FullStep result = full.Run(number, [&](double share) {
      const std::lock_guard lock(telling);
      if (asked.progress) asked.progress(alone ? share : (done + share) / double(asked.steps));
    });
    report.steps[std::size_t(number)] = result.makespan;
    ++done;
    return result;
  };

  const FullStep first = run(0);
  report.contention = first.contention;
  ReportLinks(cluster, first.links, report);
  report.ranks = std::int64_t(first.ranks.size());
  report.tasks = first.tasks;
  report.latest = first.latest();
  const int stage = report.latest / plane;
  report.latest_computes = BusyOf(first.ranks[std::size_t(report.latest)]);
  std::vector<Seconds> computes;
  for (int member = 0; member < plane; ++member) {
    computes.push_back(BusyOf(first.ranks[std::size_t(stage * plane + member)]));
  }
  std::nth_element(computes.begin(), computes.begin() + plane / 2, computes.end());
  report.median_computes = computes[std::size_t(plane / 2)];
  report.shown = report.latest % plane;
  step.timeline = full.TimelineOf(first, report.shown);
  for (int rank = 0; rank < pipeline; ++rank) {
    step.ranks[std::size_t(rank)] =
        first.ranks[std::size_t(rank) * std::size_t(plane) + std::size_t(report.shown)];
  }
  step.SetPeaks();

  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&] {
        try {
          for (int number = next++; number < asked.steps; number = next++) run(number);
        } catch (...) {
          const std::lock_guard lock(telling);
          failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
  return report;
}

}  // namespace millwright
