// SPDX-License-Identifier: Apache-2.0
#include "planner/training_options.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/config_io.h"
#include "core/model_presets.h"

namespace millwright {
namespace {

std::string Mistake(const std::string& text, const char* model = "llama-3.1-8b") {
  try {
    ParseChoices(text, PresetModel(model));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(TrainingOptions, EachValueIsAnotherStep) {
  for (const TrainingOption& option : TrainingOptions()) {
    SCOPED_TRACE(option.name);
    EXPECT_GE(option.values.size(), 2U);
    for (std::size_t i = 0; i < option.values.size(); ++i) {
      TrainingConfig one, again;
      option.set(one, i);
      option.set(again, i);
      EXPECT_EQ(one, again);
      for (std::size_t j = 0; j < i; ++j) {
        TrainingConfig other;
        option.set(other, j);
        EXPECT_NE(one, other);
      }
    }
  }
}

TEST(TrainingOptions, SpelledAsFlags) {
  std::set<std::string> flags;
  for (const TrainingOption& option : TrainingOptions()) {
    for (const auto value : option.values) flags.insert(option.Flag(value));
  }
  for (const char* flag : {"--precision mxfp8", "--overlap-p2p", "--no-overlap-p2p",
                           "--moe-dispatcher deepep", "--gradient-dtype bf16"}) {
    EXPECT_TRUE(flags.contains(flag)) << flag;
  }
}

TEST(TrainingOptions, EveryCombinationTheLastChangingFastest) {
  const auto axes = ParseChoices("precision=bf16|fp8,moment-dtype=bf16|fp32,expert-overlap=on",
                                 PresetModel("mixtral-8x7b"));
  ASSERT_EQ(SweepPoints(axes), 4U);
  const TrainingConfig asked{.global_batch_size = 7, .fused_swiglu = true};
  for (std::size_t i = 0; i < 4; ++i) {
    TrainingConfig right = asked;
    right.precision = i < 2 ? Precision::kBf16 : Precision::kFp8;
    right.moment_bytes = i % 2 == 0 ? 4 : 8;
    right.expert_overlap = true;
    EXPECT_EQ(ChoiceOf(asked, axes, i), right) << i;
  }
  const OptionsAnswer answer{.axes = axes, .choices = {}};
  EXPECT_EQ(answer.NameOf(1), "precision=bf16,moment-dtype=fp32,expert-overlap=on");
}

TEST(TrainingOptions, EveryMistake) {
  EXPECT_EQ(
      Mistake("precision=bf16|fp9,tp-comm-overlap=yes,expert-overlap=on,cuda-graph=full|full"),
      "precision: expected fp16, bf16, fp8, mxfp8, nvfp4, got \"fp9\"\n"
      "tp-comm-overlap: expected off, on, got \"yes\"\n"
      "expert-overlap: the model has no experts\n"
      "cuda-graph: full is given twice");
  EXPECT_TRUE(Mistake("precison=bf16").starts_with("unknown \"precison\", did you mean"));
  EXPECT_EQ(Mistake("precision"), "precision: expected values, got \"\"");
  std::string nine;
  int switches = 0;
  for (const TrainingOption& option : TrainingOptions()) {
    if (!option.is_switch() || switches == 9) continue;
    nine += (switches++ == 0 ? "" : ",") + std::string(option.name) + "=off|on";
  }
  EXPECT_EQ(Mistake(nine, "mixtral-8x7b"), "512 combinations are more than 256");
}

TEST(TrainingOptions, TheBestIsChosen) {
  const auto axes = ParseChoices("precision=bf16|fp8|fp16", PresetModel("llama-3.1-8b"));
  OptionsAnswer answer{.axes = axes, .choices = {}};
  answer.choices.resize(3);
  const auto with = [](Seconds step, Bytes peak) {
    Contender one;
    one.estimate.step = step;
    one.estimate.peak = peak;
    return one;
  };
  Choose(answer, Objective::kThroughput);
  EXPECT_FALSE(answer.choices[answer.chosen].best);
  answer.choices[1].best = with(Seconds(2), Bytes(5));
  answer.choices[2].best = with(Seconds(3), Bytes(4));
  Choose(answer, Objective::kThroughput);
  EXPECT_EQ(answer.chosen, 1U);
  Choose(answer, Objective::kMemory);
  EXPECT_EQ(answer.chosen, 2U);
  // Of equals the faster, what was asked for anyway, the first.
  answer.choices[0].best = with(Seconds(4), Bytes(4));
  Choose(answer, Objective::kMemory);
  EXPECT_EQ(answer.chosen, 2U);
  answer.choices[0].best = with(Seconds(2), Bytes(5));
  for (const Objective o : {Objective::kThroughput, Objective::kCost}) {
    Choose(answer, o);
    EXPECT_EQ(answer.chosen, 0U);
  }
  answer.as_asked = 1;
  Choose(answer, Objective::kThroughput);
  EXPECT_EQ(answer.chosen, 1U);
  answer.choices[2].high = Seconds(3.1);  // as its plans were ranked
  answer.choices[0].high = answer.choices[1].high = Seconds(4);
  Choose(answer, Objective::kThroughput);
  EXPECT_EQ(answer.chosen, 2U);
}

}  // namespace
}  // namespace millwright
