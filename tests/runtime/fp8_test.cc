// SPDX-License-Identifier: Apache-2.0
#include "runtime/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace millwright {
namespace {

constexpr Fp8Format kE4m3 = Fp8Format::kE4m3, kE5m2 = Fp8Format::kE5m2;
constexpr unsigned kNan = 0x7f;

// arXiv:2209.05433, table 1.
TEST(Fp8, TheFormatsOwnNumbers) {
  EXPECT_EQ(FromFp8(kE4m3, 0b0'1111'110), 448);
  EXPECT_EQ(FromFp8(kE4m3, 0b0'0001'000), std::ldexp(1, -6));
  EXPECT_EQ(FromFp8(kE4m3, 0b0'0000'111), 0.875 * std::ldexp(1, -6));
  EXPECT_EQ(FromFp8(kE4m3, 0b0'0000'001), std::ldexp(1, -9));
  EXPECT_EQ(FromFp8(kE4m3, 0b1'0111'100), -1.5);
  EXPECT_TRUE(std::isnan(FromFp8(kE4m3, 0b0'1111'111)));
  EXPECT_TRUE(std::isnan(FromFp8(kE4m3, 0b1'1111'111)));
}

// The same, of E5M2.
TEST(Fp8, TheWiderFormatsOwnNumbers) {
  EXPECT_EQ(FromFp8(kE5m2, 0b0'11110'11), 57344);
  EXPECT_EQ(FromFp8(kE5m2, 0b0'00001'00), std::ldexp(1, -14));
  EXPECT_EQ(FromFp8(kE5m2, 0b0'00000'11), 0.75 * std::ldexp(1, -14));
  EXPECT_EQ(FromFp8(kE5m2, 0b0'00000'01), std::ldexp(1, -16));
  EXPECT_EQ(FromFp8(kE5m2, 0b1'01111'10), -1.5);
  EXPECT_EQ(FromFp8(kE5m2, 0b0'11111'00), std::numeric_limits<double>::infinity());
  EXPECT_EQ(FromFp8(kE5m2, 0b1'11111'00), -std::numeric_limits<double>::infinity());
  for (const unsigned mantissa : {1, 2, 3}) {
    EXPECT_TRUE(std::isnan(FromFp8(kE5m2, std::uint8_t(0b0'11111'00 | mantissa))));
  }
}

TEST(Fp8, EveryNumberIsItself) {
  for (const Fp8Format format : {kE4m3, kE5m2}) {
    for (unsigned bits = 0; bits < 256; ++bits) {
      const double value = FromFp8(format, std::uint8_t(bits));
      if (std::isinf(value)) continue;  // what is too large becomes the largest
      const unsigned expected = std::isnan(value) ? bits | kNan : bits;
      EXPECT_EQ(ToFp8(format, value), expected) << value;
    }
  }
}

// Against all of them, the nearest; between two the one whose last bit is 0.
TEST(Fp8, IsTheNearest) {
  for (const Fp8Format format : {kE4m3, kE5m2}) {
    std::vector<double> numbers;
    for (unsigned bits = 0; numbers.empty() || numbers.back() < LargestOf(format); ++bits) {
      numbers.push_back(FromFp8(format, std::uint8_t(bits)));
    }
    EXPECT_EQ(numbers.size(), format == kE4m3 ? 0x7fU : 0x7cU);
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      const double low = numbers[i], high = numbers[i + 1];
      ASSERT_LT(low, high);
      const double middle = (low + high) / 2;
      EXPECT_EQ(ToFp8(format, middle), i % 2 == 0 ? i : i + 1);
      EXPECT_EQ(ToFp8(format, std::nextafter(middle, 0)), i);
      EXPECT_EQ(ToFp8(format, std::nextafter(middle, 1e9)), i + 1);
      EXPECT_EQ(ToFp8(format, -std::nextafter(middle, 1e9)), 0x80 | (i + 1));
    }
  }
}

TEST(Fp8, WhatIsTooLargeIsTheLargest) {
  for (const Fp8Format format : {kE4m3, kE5m2}) {
    for (const double value : {57345.0, 1e30, std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(FromFp8(format, ToFp8(format, value)), LargestOf(format));
      EXPECT_EQ(FromFp8(format, ToFp8(format, -value)), -LargestOf(format));
    }
    EXPECT_TRUE(
        std::isnan(FromFp8(format, ToFp8(format, std::numeric_limits<double>::quiet_NaN()))));
  }
  EXPECT_EQ(FromFp8(kE4m3, ToFp8(kE4m3, 449)), 448);
}

}  // namespace
}  // namespace millwright
