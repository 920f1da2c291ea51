// SPDX-License-Identifier: Apache-2.0
#include "planner/training_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "core/config_io.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

TrainingOption Switch(std::string_view name, bool TrainingConfig::*field, bool of_experts = false) {
  return {.name = name,
          .values = {"off", "on"},
          .of_experts = of_experts,
          .set = [field](TrainingConfig& t, std::size_t value) { t.*field = value == 1; }};
}

template <class E>
TrainingOption OneOf(std::string_view name, E TrainingConfig::*field,
                     std::span<const EnumName<E>> names, bool of_experts = false) {
  TrainingOption option{.name = name,
                        .values = {},
                        .of_experts = of_experts,
                        .set = [field, names](TrainingConfig& t, std::size_t value) {
                          t.*field = names[value].value;
                        }};
  for (const EnumName<E>& one : names) option.values.push_back(one.name);
  return option;
}

// Of fp32 or BF16: as many bytes.
TrainingOption Width(std::string_view name, double TrainingConfig::*field, double fp32) {
  return {.name = name,
          .values = {"fp32", "bf16"},
          .set = [field, fp32](TrainingConfig& t, std::size_t value) {
            t.*field = value == 0 ? fp32 : fp32 / 2;
          }};
}

const TrainingOption* Find(std::string_view name) {
  for (const TrainingOption& option : TrainingOptions()) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

}  // namespace

std::string TrainingOption::Flag(std::string_view value) const {
  if (!is_switch()) return fmt::format("--{} {}", name, value);
  return fmt::format("--{}{}", value == "on" ? "" : "no-", name);
}

std::span<const TrainingOption> TrainingOptions() {
  using T = TrainingConfig;
  static const std::vector<TrainingOption> options = {
      OneOf("precision", &T::precision, PrecisionNames()),
      Switch("overlap-grad-reduce", &T::overlap_grad_reduce),
      Switch("overlap-param-gather", &T::overlap_param_gather),
      Switch("overlap-p2p", &T::overlap_p2p),
      Switch("tp-comm-overlap", &T::tp_comm_overlap),
      Switch("cp-comm-overlap", &T::cp_comm_overlap),
      Switch("expert-overlap", &T::expert_overlap, true),
      OneOf("moe-dispatcher", &T::moe_dispatcher, MoeDispatcherNames(), true),
      OneOf("cuda-graph", &T::cuda_graph, CudaGraphNames()),
      Switch("flash-attention", &T::flash_attention),
      Switch("fused-swiglu", &T::fused_swiglu),
      Switch("fp8-activation-store", &T::fp8_activation_store),
      Switch("fused-cross-entropy", &T::fused_cross_entropy),
      Width("gradient-dtype", &T::gradient_bytes, 4),
      Width("moment-dtype", &T::moment_bytes, 8),
  };
  return options;
}

std::vector<SweepAxis> ParseChoices(std::string_view text, const ModelConfig& model) {
  std::vector<std::string_view> names;
  for (const TrainingOption& option : TrainingOptions()) names.push_back(option.name);
  std::vector<SweepAxis> axes = ParseSweep(text, names);
  std::vector<std::string> mistakes;
  for (const SweepAxis& axis : axes) {
    const TrainingOption& option = *Find(axis.name);
    for (std::size_t i = 0; i < axis.values.size(); ++i) {
      const std::string& value = axis.values[i];
      if (std::find(option.values.begin(), option.values.end(), value) == option.values.end()) {
        mistakes.push_back(fmt::format("{}: expected {}, got \"{}\"", option.name,
                                       fmt::join(option.values, ", "),
                                       Printable(value, kMostNameShown)));
      } else if (std::find(axis.values.begin(), axis.values.begin() + std::ptrdiff_t(i), value) !=
                 axis.values.begin() + std::ptrdiff_t(i)) {
        mistakes.push_back(fmt::format("{}: {} is given twice", option.name, value));
      }
    }
    if (option.of_experts && !model.has_moe()) {
      mistakes.push_back(fmt::format("{}: the model has no experts", option.name));
    }
  }
  if (SweepPoints(axes) > kMostChoices) {
    mistakes.push_back(
        fmt::format("{} combinations are more than {}", SweepPoints(axes), kMostChoices));
  }
  if (!mistakes.empty()) throw ConfigError(fmt::format("{}", fmt::join(mistakes, "\n")));
  return axes;
}

TrainingConfig ChoiceOf(const TrainingConfig& training, const std::vector<SweepAxis>& axes,
                        std::size_t index) {
  TrainingConfig chosen = training;
  const std::vector<std::string> at = SweepPoint(axes, index);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const TrainingOption& option = *Find(axes[i].name);
    const auto value = std::find(option.values.begin(), option.values.end(), at[i]);
    option.set(chosen, std::size_t(value - option.values.begin()));
  }
  return chosen;
}

std::string OptionsAnswer::NameOf(std::size_t index) const {
  const std::vector<std::string> at = SweepPoint(axes, index);
  std::string name;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    name += fmt::format("{}{}={}", i == 0 ? "" : ",", axes[i].name, at[i]);
  }
  return name;
}

void Choose(OptionsAnswer& answer, Objective objective) {
  const auto rank = [&](std::size_t i) {
    const OptionsAnswer::Choice& choice = answer.choices[i];
    const double time = choice.high.value_or(choice.best->step()).value;
    const double value = objective == Objective::kMemory ? choice.best->peak().value : time;
    return std::tuple(value, time, answer.as_asked != i, i);
  };
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < answer.choices.size(); ++i) {
    if (answer.choices[i].best && (!found || rank(i) < rank(*found))) found = i;
  }
  answer.chosen = found.value_or(0);
}

}  // namespace millwright
