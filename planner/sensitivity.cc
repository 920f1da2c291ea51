// SPDX-License-Identifier: Apache-2.0
#include "planner/sensitivity.h"

#include <algorithm>

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

}  // namespace

std::optional<SensitivityAnswer> FindSensitivity(
    const Job& job, const SearchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  SearchOptions quick = options;
  quick.top = 1;
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
  return answer;
}

}  // namespace millwright
