// SPDX-License-Identifier: Apache-2.0
#include "runtime/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millwright {
namespace {

constexpr int kBias = 7, kMantissa = 3;
constexpr int kLeastExponent = 1 - kBias;  // below it numbers are as far apart as there
constexpr std::uint8_t kNan = 0x7f;

}  // namespace

std::uint8_t ToE4m3(double value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | kNan;
  const double size = std::min(std::fabs(value), kLargestE4m3);
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), kLeastExponent);
  // In steps of the last bit; rounded up to the next power of two its bits run on into the
  // exponent.
  const auto steps = unsigned(std::nearbyint(std::ldexp(size, kMantissa - exponent)));
  return std::uint8_t(sign | (unsigned(exponent - kLeastExponent) * (1U << kMantissa) + steps));
}

double FromE4m3(std::uint8_t bits) {
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if ((bits & kNan) == kNan) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  const unsigned exponent = (bits & kNan) >> kMantissa, mantissa = bits & ((1U << kMantissa) - 1);
  const unsigned steps = (exponent > 0 ? 1U << kMantissa : 0) + mantissa;
  return sign * std::ldexp(double(steps), int(std::max(exponent, 1U)) - kBias - kMantissa);
}

}  // namespace millwright
