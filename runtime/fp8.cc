// SPDX-License-Identifier: Apache-2.0
#include "runtime/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace millwright {
namespace {

constexpr std::uint8_t kSign = 0x80, kNan = 0x7f;

struct Bits {
  int bias, mantissa;
  std::uint8_t infinity;  // what is larger is no number; E4M3 has no infinity
};
constexpr Bits BitsOf(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? Bits{.bias = 7, .mantissa = 3, .infinity = kNan}
                                    : Bits{.bias = 15, .mantissa = 2, .infinity = 0x7c};
}

// The C library's functions for these three take most of a product's time.
int ExponentOf(double normal) { return int(std::bit_cast<std::uint64_t>(normal) >> 52) - 1023; }
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(std::uint64_t(exponent + 1023) << 52);
}
// Where doubles are a whole number apart, ties to even.
unsigned Nearest(double size) { return unsigned((size + 0x1p52) - 0x1p52); }

}  // namespace

std::uint8_t ToFp8(Fp8Format format, double value) {
  const Bits of = BitsOf(format);
  const std::uint8_t sign = std::signbit(value) ? kSign : 0;
  if (std::isnan(value)) return sign | kNan;
  const double size = std::min(std::fabs(value), LargestOf(format));
  if (size == 0) return sign;
  // Below the least exponent numbers are as far apart as there.
  const int least = 1 - of.bias, exponent = std::max(ExponentOf(size), least);
  // In steps of the last bit; rounded up to the next power of two its bits run on into the
  // exponent.
  const unsigned steps = Nearest(size * PowerOfTwo(of.mantissa - exponent));
  return std::uint8_t(sign | (unsigned(exponent - least) * (1U << of.mantissa) + steps));
}

double FromFp8(Fp8Format format, std::uint8_t bits) {
  const Bits of = BitsOf(format);
  const double sign = (bits & kSign) != 0 ? -1 : 1;
  const unsigned size = bits & kNan, exponent = size >> of.mantissa;
  if (size >= of.infinity) {
    const bool infinite = size == of.infinity && of.infinity != kNan;
    return std::copysign(infinite ? std::numeric_limits<double>::infinity()
                                  : std::numeric_limits<double>::quiet_NaN(),
                         sign);
  }
  const unsigned steps =
      (exponent > 0 ? 1U << of.mantissa : 0) + (size & ((1U << of.mantissa) - 1));
  return sign * std::ldexp(double(steps), int(std::max(exponent, 1U)) - of.bias - of.mantissa);
}

}  // namespace millwright
