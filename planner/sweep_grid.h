// SPDX-License-Identifier: Apache-2.0
//
// Which points does "seq=4096..131072,nodes=8..64,tp=1|2|4" name?
//
// A range doubles from its first number on, up to its last: 8..64 is 8, 16, 32, 64.  8..64+8 adds
// 8 each time, 1..81*3 multiplies by 3.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millwright {

struct SweepAxis {
  std::string name;
  std::vector<std::string> values;
  bool operator==(const SweepAxis&) const = default;
};

inline constexpr std::size_t kMostSweepPoints = 10'000;

// ConfigError with every mistake; `names` are those that an axis may have.
std::vector<SweepAxis> ParseSweep(std::string_view text,
                                  const std::vector<std::string_view>& names);

// The values of each axis at point `index`, the last axis changing fastest.
std::vector<std::string> SweepPoint(const std::vector<SweepAxis>& axes, std::size_t index);
std::size_t SweepPoints(const std::vector<SweepAxis>& axes);

}  // namespace millwright
