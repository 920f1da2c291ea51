// SPDX-License-Identifier: Apache-2.0
#include "planner/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/gpu.h"
#include "planner/contenders.h"
#include "planner/training_options.h"
#include "topologies/what_if.h"

namespace millwright {
namespace {

std::optional<RankedPlan> Best(const Job& job, const ClusterConfig& config,
                               const SearchOptions& options) {
  const Cluster cluster(config);
  const SearchResult result = Search(job.model, job.training, cluster, options);
  if (result.plans.empty()) return {};
  return result.plans.front();
}

struct Change {
  std::string flag;
  TrainingConfig training;
};
std::vector<Change> ChangesOf(const Job& job) {
  const TrainingConfig& now = job.training;
  std::vector<Change> changes;
  const auto add = [&](std::string flag, const TrainingConfig& changed) {
    if (changed != now) changes.push_back({std::move(flag), changed});
  };
  for (const TrainingOption& option : TrainingOptions()) {
    if (option.of_experts && !job.model.has_moe()) continue;
    for (std::size_t i = 0; i < option.values.size(); ++i) {
      TrainingConfig changed = now;
      option.set(changed, i);
      const bool last = i + 1 == option.values.size();
      const bool narrower = changed.precision != now.precision && LowPrecision(changed.precision) &&
                            job.cluster.gpu.peak(changed.precision).value > 0;
      if (option.name == "precision" ? narrower : last) add(option.Flag(option.values[i]), changed);
    }
  }
  TrainingConfig twice = now;
  twice.global_batch_size *= 2;
  add(fmt::format("--global-batch {}", twice.global_batch_size), twice);
  return changes;
}

}  // namespace

std::optional<SensitivityAnswer> FindSensitivity(
    const Job& job, const SearchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  SearchOptions quick = options;
  // As `plan` searches: what is divided anew is among so many, and more of a resource must not
  // cost.
  quick.top = kLeastContenders;
  const std::optional<RankedPlan> now = Best(job, job.cluster, quick);
  if (!now) return {};
  SensitivityAnswer answer{.now = *now};
  for (const char* name : {"flops", "hbm", "hbm-bandwidth", "nvlink", "ib"}) {
    if (progress) progress(name);
    // What no rank uses is no resource.
    if (std::string_view(name) == "ib" && job.cluster.nodes == 1) continue;
    ClusterConfig more = job.cluster, less = job.cluster;
    if (!Scale(more, name, 1 + kSensitivityStep)) continue;
    Scale(less, name, 1 - kSensitivityStep);
    answer.resources.push_back({.name = name,
                                .value = WhatIfValue(job.cluster, name),
                                .more = Best(job, more, quick),
                                .less = Best(job, less, quick)});
  }
  const auto saved = [&](const Sensitivity& s) {
    return s.more ? now->step - s.more->step : Seconds(0);
  };
  std::stable_sort(answer.resources.begin(), answer.resources.end(),
                   [&](const Sensitivity& a, const Sensitivity& b) { return saved(a) > saved(b); });

  for (const Change& change : ChangesOf(job)) {
    if (progress) progress(change.flag);
    Job changed = job;
    changed.training = change.training;
    answer.options.push_back({.flag = change.flag,
                              .best = Best(changed, job.cluster, quick),
                              .batch = double(changed.training.global_batch_size) /
                                       double(job.training.global_batch_size)});
  }
  std::stable_sort(answer.options.begin(), answer.options.end(),
                   [&](const OptionSensitivity& a, const OptionSensitivity& b) {
                     return answer.Change(a) < answer.Change(b);
                   });
  return answer;
}

}  // namespace millwright
