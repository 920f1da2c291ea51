// SPDX-License-Identifier: Apache-2.0
#include "planner/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/gpu.h"
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

struct Option {
  std::string flag;
  TrainingConfig training;
};
std::vector<Option> OptionsOf(const Job& job) {
  const TrainingConfig& now = job.training;
  std::vector<Option> options;
  const auto add = [&](std::string flag, const auto& change) {
    TrainingConfig changed = now;
    change(changed);
    if (changed != now) options.push_back({std::move(flag), changed});
  };
  for (const auto& precision : PrecisionNames()) {
    if (!LowPrecision(precision.value) || !(job.cluster.gpu.peak(precision.value).value > 0)) {
      continue;
    }
    add(fmt::format("--precision {}", precision.name),
        [&](TrainingConfig& t) { t.precision = precision.value; });
  }
  add("--overlap-grad-reduce", [](TrainingConfig& t) { t.overlap_grad_reduce = true; });
  add("--overlap-param-gather", [](TrainingConfig& t) { t.overlap_param_gather = true; });
  add("--overlap-p2p", [](TrainingConfig& t) { t.overlap_p2p = true; });
  add("--tp-comm-overlap", [](TrainingConfig& t) { t.tp_comm_overlap = true; });
  add("--cp-comm-overlap", [](TrainingConfig& t) { t.cp_comm_overlap = true; });
  if (job.model.has_moe()) {
    add("--expert-overlap", [](TrainingConfig& t) { t.expert_overlap = true; });
    add("--moe-dispatcher deepep",
        [](TrainingConfig& t) { t.moe_dispatcher = MoeDispatcher::kDeepEp; });
  }
  add("--cuda-graph full", [](TrainingConfig& t) { t.cuda_graph = CudaGraph::kFull; });
  add("--fused-swiglu", [](TrainingConfig& t) { t.fused_swiglu = true; });
  add("--fp8-activation-store", [](TrainingConfig& t) { t.fp8_activation_store = true; });
  add("--fused-cross-entropy", [](TrainingConfig& t) { t.fused_cross_entropy = true; });
  add("--gradient-dtype bf16", [](TrainingConfig& t) { t.gradient_bytes = 2; });
  add("--moment-dtype bf16", [](TrainingConfig& t) { t.moment_bytes = 4; });
  add(fmt::format("--global-batch {}", 2 * now.global_batch_size),
      [](TrainingConfig& t) { t.global_batch_size *= 2; });
  return options;
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

  for (const Option& option : OptionsOf(job)) {
    if (progress) progress(option.flag);
    Job changed = job;
    changed.training = option.training;
    answer.options.push_back({.flag = option.flag,
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
