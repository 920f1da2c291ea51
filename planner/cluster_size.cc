// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_size.h"

#include <cmath>
#include <functional>

namespace millwright {
namespace {

constexpr Seconds kHour(3600);

}  // namespace

double SizeAnswer::TokensPerSecond(const ClusterSize& size) const {
  return tokens_of_step / size.step().value;
}

double SizeAnswer::GpuHoursPerToken(const ClusterSize& size) const {
  return double(size.gpus) * (size.step() / kHour) / tokens_of_step;
}

Seconds SizeAnswer::TimeOf(const ClusterSize& size) const {
  return std::ceil(*question.tokens / tokens_of_step) * size.step();
}

double SizeAnswer::UsdOf(const ClusterSize& size) const {
  return *question.price * double(size.gpus) * (TimeOf(size) / kHour);
}

bool SizeAnswer::Meets(const ClusterSize& size) const {
  return size.best && (!question.deadline || TimeOf(size) <= *question.deadline);
}

void Choose(SizeAnswer& answer) {
  const SizeQuestion& question = answer.question;
  // Less is better; of equals the smaller cluster, which comes first.
  const auto least = [&](bool must_meet, const std::function<double(const ClusterSize&)>& value) {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < answer.sizes.size(); ++i) {
      const ClusterSize& size = answer.sizes[i];
      if (!size.best || (must_meet && !answer.Meets(size))) continue;
      if (!found || value(size) < value(answer.sizes[*found])) found = i;
    }
    return found;
  };
  const auto time_of_token = [&](const ClusterSize& s) { return 1 / answer.TokensPerSecond(s); };
  std::optional<std::size_t> chosen = least(true, [&](const ClusterSize& size) {
    switch (question.objective) {
      case Objective::kThroughput:
        return question.deadline ? double(size.nodes) : time_of_token(size);
      case Objective::kCost:
        return answer.GpuHoursPerToken(size);
      case Objective::kMemory:
        return size.best->peak().value;
    }
    return 0.0;
  });
  answer.met = chosen.has_value();
  if (!chosen) chosen = least(false, time_of_token);  // the nearest to the deadline
  answer.chosen = chosen.value_or(answer.sizes.size() - 1);
}

}  // namespace millwright
