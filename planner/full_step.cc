// SPDX-License-Identifier: Apache-2.0
#include "planner/full_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/check.h"
#include "core/machine_memory.h"
#include "core/unit_text.h"
#include "planner/parallel_work.h"

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
      kind.busiest = cluster.NameOfLink(load.link);
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
    report.links.push_back({.name = cluster.NameOfLink(load.link),
                            .busiest = {},
                            .bytes = load.bytes,
                            .utilisation = load.utilisation,
                            .mean = load.utilisation});
  }
}

// Compute of the ranks of a folded step, on average.
Seconds MeanBusy(const SimulatedStep& step) {
  Seconds sum;
  for (const RankTime& rank : step.ranks) sum += rank.total_busy();
  return sum / double(step.ranks.size());
}

// Where all are alike, the rank that finishes last.
void FindSlowest(const FullStep& step, int plane, FullReport& report) {
  constexpr double kNoticed = 1e-6;
  double most = 1 + kNoticed;
  report.slowest = step.latest();
  for (std::size_t first = 0; first < step.ranks.size(); first += std::size_t(plane)) {
    std::vector<Seconds> busy;
    for (int member = 0; member < plane; ++member) {
      busy.push_back(step.ranks[first + std::size_t(member)].total_busy());
    }
    std::vector<Seconds> sorted = busy;
    std::nth_element(sorted.begin(), sorted.begin() + plane / 2, sorted.end());
    const Seconds median = sorted[std::size_t(plane / 2)];
    const auto longest = std::max_element(busy.begin(), busy.end());
    const bool noted = median.value > 0 && *longest / median > most;
    if (noted) {
      most = *longest / median;
      report.slowest = int(first) + int(longest - busy.begin());
    }
    if (noted || report.slowest / plane == int(first) / plane) {
      report.slowest_computes = busy[std::size_t(report.slowest % plane)];
      report.median_computes = median;
    }
  }
}

// How many steps at once go into memory, and are there cores for.
int Workers(Bytes of_one, int steps, const SimulatedStep& step, int plane) {
  const Bytes memory = MachineMemory();
  if (of_one > memory) {
    throw ConfigError(fmt::format(
        "every rank of {} pipeline ranks on {} GPUs, with {} tasks on each, needs {} of this "
        "machine's {}; --fidelity folded simulates one GPU of each pipeline rank",
        step.graph.ranks(), FormatInteger(std::int64_t{1} * plane * step.graph.ranks()),
        FormatCount(double(step.graph.size()) / step.graph.ranks()), FormatBytes(of_one),
        FormatBytes(memory)));
  }
  return std::min({Cores(), steps, std::max(1, int(memory / of_one / 2))});
}

}  // namespace

Seconds Percentile(std::vector<Seconds> values, double share) {
  std::sort(values.begin(), values.end());
  const auto at = std::size_t(std::ceil(share * double(values.size())));
  return values[std::clamp<std::size_t>(at, 1, values.size()) - 1];
}

Seconds FullReport::Percentile(double share) const { return millwright::Percentile(steps, share); }

Seconds FullReport::mean() const {
  return std::accumulate(steps.begin(), steps.end(), Seconds(0)) / double(steps.size());
}

FullReport SimulateEveryRank(const Estimator& estimator, const ParallelConfig& plan,
                             const FullAsked& asked, SimulatedStep& step) {
  const Cluster& cluster = estimator.cluster();
  if (!cluster.config().unlike_nodes.empty()) {
    // Prices of sound nodes, of which some are slow.
    ClusterConfig config = cluster.config();
    config.unlike_nodes.clear();
    const Cluster sound(config);
    const Estimator of_sound(estimator.model(), estimator.training(), sound);
    FullAsked disturbed = asked;
    Disturb(cluster.config().unlike_nodes, sound, &disturbed.options.disturbance);
    const Seconds folded = step.step();
    step = SimulateStep(of_sound, plan, StepSpecOf(of_sound, plan, step.spec.schedule));
    FullReport report = SimulateEveryRank(of_sound, plan, disturbed, step);
    report.folded = folded;
    return report;
  }
  const int pipeline = step.graph.ranks();
  FullReport report{.options = asked.options, .folded = step.timeline.makespan};
  report.options.plane = cluster.gpus() / pipeline;
  if (plan.placed_otherwise()) {
    for (int rank = 0; rank < cluster.gpus(); ++rank) {
      report.options.gpu_of_rank.push_back(int(GpuOf(plan, rank)));
    }
  }
  if (estimator.training().mfu_convention == MfuConvention::kCausal) {
    // Compute at the peak of all units takes this share of what it is expected to take.
    const Estimate estimate = estimator.Itemise(plan);
    report.options.fastest = std::min(1.0, estimate.hfu * (estimate.step / MeanBusy(step)));
  }
  const int plane = report.options.plane;
  const Bytes of_one = FullSimulation::MemoryFor(step.graph.size(), pipeline, plane);
  const int workers = Workers(of_one, asked.steps, step, plane);

  const FullSimulation full(step.graph, cluster, estimator.calibration().collective,
                            report.options);
  report.steps.resize(std::size_t(asked.steps));
  FullStep shown;
  if (asked.steps == 1) {
    shown = full.Run(0, asked.progress);
    report.steps.front() = shown.makespan;
  } else {
    ForEachInParallel(
        report.steps.size(), workers,
        [&](int, std::size_t number) {
          report.steps[number] = full.Run(std::int64_t(number)).makespan;
        },
        asked.progress);
    const Seconds median = report.Percentile(0.5);
    report.median =
        int(std::find(report.steps.begin(), report.steps.end(), median) - report.steps.begin());
    shown = full.Run(report.median);
  }

  // However the draws fall, all FLOPs at the peak are a bound.
  MILLWRIGHT_CHECK(report.options.fastest <= 0 ||
                   shown.makespan >= report.options.fastest * (1 - 1e-9) * MeanBusy(step));
  report.contention = shown.contention;
  ReportLinks(cluster, shown.links, report);
  report.ranks = std::int64_t(shown.ranks.size());
  report.tasks = shown.tasks;
  report.disturbed_in_vain = full.disturbed_in_vain();
  FindSlowest(shown, plane, report);
  const int member = report.slowest % plane;
  step.timeline = full.TimelineOf(shown, member);
  for (int rank = 0; rank < pipeline; ++rank) {
    step.ranks[std::size_t(rank)] =
        shown.ranks[std::size_t(rank) * std::size_t(plane) + std::size_t(member)];
  }
  step.SetPeaks();
  report.shown = int(GpuOf(plan, member));
  report.slowest = int(GpuOf(plan, report.slowest));
  return report;
}

}  // namespace millwright
