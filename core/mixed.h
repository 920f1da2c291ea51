// SPDX-License-Identifier: Apache-2.0
//
// A well-mixed 64-bit number for each place in a sequence, so that what is drawn for one place
// depends on nothing but its key.
#pragma once

#include <cstdint>

namespace millwright {

// What splitmix64 adds between two of its numbers.
inline constexpr std::uint64_t kMixedStep = 0x9e3779b97f4a7c15;

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of the result depends on each of x.
constexpr std::uint64_t Mixed(std::uint64_t x) {
  x += kMixedStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace millwright
