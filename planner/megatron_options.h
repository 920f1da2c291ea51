// SPDX-License-Identifier: Apache-2.0
//
// Which options Megatron-LM has, and how many values each takes.
//
// NVIDIA/Megatron-LM, megatron/training/arguments.py at commits 000c4ac24f61 (late 2025) and
// c99881af1687 (2026, with what it makes from its configuration classes), and a few that went
// before, which scripts still use.
#pragma once

#include <span>
#include <string_view>

namespace millwright {

enum class OptionValues { kNone, kOne, kMany };

struct MegatronOption {
  std::string_view name;
  OptionValues values = OptionValues::kNone;
  bool read = false;  // has a meaning here
};

// Sorted by name.
std::span<const MegatronOption> MegatronOptions();
const MegatronOption* FindMegatronOption(std::string_view name);

}  // namespace millwright
