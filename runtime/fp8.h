// SPDX-License-Identifier: Apache-2.0
//
// Numbers in FP8, as NVIDIA's tensor cores multiply them (arXiv:2209.05433, table 1).
//
// E4M3: a sign, four bits of exponent with bias 7, three of mantissa; up to 448, no infinities.
// E5M2: five bits of exponent with bias 15, two of mantissa, infinities; up to 57,344.
#pragma once

#include <cstdint>

#include "runtime/operation.h"

namespace millwright {

enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };

constexpr Fp8Format FormatOf(Element element) {
  return element == Element::kFp8Gradient ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
}
constexpr double LargestOf(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448 : 57344; }

// To the nearest, ties to even; what is larger becomes the largest, NaN stays.
std::uint8_t ToFp8(Fp8Format format, double value);
double FromFp8(Fp8Format format, std::uint8_t bits);

}  // namespace millwright
