// SPDX-License-Identifier: Apache-2.0
//
// Numbers in FP8's E4M3, as NVIDIA's tensor cores multiply them (arXiv:2209.05433, table 1): a
// sign, four bits of exponent with bias 7, three of mantissa; up to 448, no infinities.
#pragma once

#include <cstdint>

namespace millwright {

inline constexpr double kLargestE4m3 = 448;

// To the nearest, ties to even; what is larger becomes the largest, NaN stays.
std::uint8_t ToE4m3(double value);
double FromE4m3(std::uint8_t bits);

}  // namespace millwright
