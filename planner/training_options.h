// SPDX-License-Identifier: Apache-2.0
//
// Which options of a training step may a plan choose among?
//
// Precision, overlaps, CUDA graphs, the widths of gradients and moments, and what is kept of
// activations: `plan --choose` searches every combination of those it names, `--sensitivity` tries
// them one at a time.  What an option does to the loss is not looked at.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/training.h"
#include "planner/contenders.h"
#include "planner/job.h"
#include "planner/sweep_grid.h"

namespace millwright {

// Named and spelled as on the command line.
struct TrainingOption {
  std::string_view name;
  std::vector<std::string_view> values;  // of a switch off, on; last what is fast, or small
  bool of_experts = false;               // nothing without experts

  std::function<void(TrainingConfig&, std::size_t value)> set;

  bool is_switch() const { return values.front() == "off"; }
  std::string Flag(std::string_view value) const;  // "--precision fp8", "--no-overlap-p2p"
};
std::span<const TrainingOption> TrainingOptions();

// "precision=bf16|fp8,tp-comm-overlap=off|on".  ConfigError with every mistake: names and values
// that there are not, options of experts for a model without, more than kMostChoices combinations.
inline constexpr std::size_t kMostChoices = 256;
std::vector<SweepAxis> ParseChoices(std::string_view text, const ModelConfig& model);

// `training` with the values of each axis at point `index`; `axes` are ParseChoices'.
TrainingConfig ChoiceOf(const TrainingConfig& training, const std::vector<SweepAxis>& axes,
                        std::size_t index);

struct OptionsAnswer {
  struct Choice {
    std::optional<Contender> best;
    std::string reason;           // why there is none
    std::optional<Seconds> high;  // by which the best was found, where that is not its step
  };
  std::vector<SweepAxis> axes;
  std::vector<Choice> choices;          // of each point
  std::optional<std::size_t> as_asked;  // the options of the question without the choice
  std::size_t chosen = 0;

  std::string NameOf(std::size_t index) const;  // "precision=fp8,tp-comm-overlap=on"
};

// Fills in `chosen`: the least memory or the shortest step, of equals the faster, then what was
// asked for anyway, then the first.
void Choose(OptionsAnswer& answer, Objective objective);

}  // namespace millwright
