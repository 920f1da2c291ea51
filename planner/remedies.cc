// SPDX-License-Identifier: Apache-2.0
#include "planner/remedies.h"

#include <fmt/format.h>

#include <algorithm>

namespace millwright {
namespace {

constexpr int kMostDoublings = 6;
// Between too few nodes and enough so many more are tried, each halfway, down to a tenth of them.
constexpr int kMostHalvings = 4;

std::optional<RankedPlan> Best(const ModelConfig& model, const TrainingConfig& training,
                               const ClusterConfig& config, const SearchOptions& options) {
  const Cluster cluster(config);
  const SearchResult result = Search(model, training, cluster, options);
  if (result.plans.empty()) return {};
  return result.plans.front();
}

}  // namespace

std::vector<Remedy> Remedies(const ModelConfig& model, const TrainingConfig& training,
                             const ClusterConfig& cluster, const SearchOptions& options) {
  std::vector<Remedy> remedies;
  SearchOptions quick = options;
  quick.top = 1;
  // Of as many searches as there may be.
  constexpr int kMostSearches = 7 + kMostDoublings + kMostHalvings;
  int done = 0;
  if (options.progress) {
    quick.progress = [&](double share) { options.progress((done + share) / kMostSearches); };
  }
  const auto best = [&](const TrainingConfig& asked, const ClusterConfig& config,
                        const SearchOptions& how) {
    std::optional<RankedPlan> plan = Best(model, asked, config, how);
    ++done;
    return plan;
  };

  const auto try_training = [&](bool applies, std::string change, const auto& edit) {
    if (!applies) return;
    TrainingConfig changed = training;
    edit(changed);
    if (const auto plan = best(changed, cluster, quick)) {
      remedies.push_back({std::move(change), *plan});
    }
  };
  try_training(training.gradient_bytes > 2, "gradients in bf16 (--gradient-dtype bf16)",
               [](TrainingConfig& t) { t.gradient_bytes = 2; });
  try_training(training.moment_bytes > 4, "Adam moments in bf16 (--moment-dtype bf16)",
               [](TrainingConfig& t) { t.moment_bytes = 4; });
  try_training(!training.flash_attention, "FlashAttention (--flash-attention)",
               [](TrainingConfig& t) { t.flash_attention = true; });
  try_training(!training.fused_swiglu && model.gated_linear_unit,
               "the SwiGLU product recomputed (--fused-swiglu)",
               [](TrainingConfig& t) { t.fused_swiglu = true; });
  try_training(!training.fp8_activation_store,
               "the MLP activation's input kept in FP8 (--fp8-activation-store)",
               [](TrainingConfig& t) { t.fp8_activation_store = true; });
  try_training(!training.fused_cross_entropy, "fused cross-entropy (--fused-cross-entropy)",
               [](TrainingConfig& t) { t.fused_cross_entropy = true; });

  if (!options.offload) {
    SearchOptions offloading = quick;
    offloading.offload = true;
    if (const auto plan = best(training, cluster, offloading)) {
      remedies.push_back({"activations offloaded to the host (--offload)", *plan});
    }
  }

  ClusterConfig larger = cluster;
  std::optional<RankedPlan> found;
  int too_few = cluster.nodes;
  for (int doubling = 0; doubling < kMostDoublings; ++doubling) {
    larger.nodes *= 2;
    if (larger.gpus() > kMaxGpus || !Inconsistencies(larger).empty()) break;
    found = best(training, larger, quick);
    if (found) break;
    too_few = larger.nodes;
  }
  if (!found) return remedies;
  int enough = larger.nodes;
  for (int halving = 0; halving < kMostHalvings; ++halving) {
    if (enough - too_few <= std::max(1, enough / 10)) break;
    larger.nodes = too_few + (enough - too_few) / 2;
    if (!Inconsistencies(larger).empty()) break;
    if (const auto plan = best(training, larger, quick)) {
      enough = larger.nodes;
      found = plan;
    } else {
      too_few = larger.nodes;
    }
  }
  remedies.push_back({fmt::format("{} nodes instead of {}", enough, cluster.nodes), *found});
  return remedies;
}

}  // namespace millwright
