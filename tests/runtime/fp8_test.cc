// SPDX-License-Identifier: Apache-2.0
#include "runtime/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace millwright {
namespace {

// arXiv:2209.05433, table 1.
TEST(Fp8, TheFormatsOwnNumbers) {
  EXPECT_EQ(FromE4m3(0b0'1111'110), 448);
  EXPECT_EQ(FromE4m3(0b0'0001'000), std::ldexp(1, -6));
  EXPECT_EQ(FromE4m3(0b0'0000'111), 0.875 * std::ldexp(1, -6));
  EXPECT_EQ(FromE4m3(0b0'0000'001), std::ldexp(1, -9));
  EXPECT_EQ(FromE4m3(0b1'0111'100), -1.5);
  EXPECT_TRUE(std::isnan(FromE4m3(0b0'1111'111)));
  EXPECT_TRUE(std::isnan(FromE4m3(0b1'1111'111)));
}

TEST(Fp8, EveryNumberIsItself) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const double value = FromE4m3(std::uint8_t(bits));
    EXPECT_EQ(ToE4m3(value), bits) << value;
  }
}

// Against all of them, the nearest; between two the one whose last bit is 0.
TEST(Fp8, IsTheNearest) {
  std::vector<double> numbers;
  for (unsigned bits = 0; bits < 0x7f; ++bits) numbers.push_back(FromE4m3(std::uint8_t(bits)));
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const double low = numbers[i], high = numbers[i + 1];
    ASSERT_LT(low, high);
    const double middle = (low + high) / 2;
    EXPECT_EQ(ToE4m3(middle), i % 2 == 0 ? i : i + 1);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 0)), i);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 1e9)), i + 1);
    EXPECT_EQ(ToE4m3(-std::nextafter(middle, 1e9)), 0x80 | (i + 1));
  }
}

TEST(Fp8, WhatIsTooLargeIsTheLargest) {
  for (const double value : {449.0, 1e30, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(FromE4m3(ToE4m3(value)), kLargestE4m3);
    EXPECT_EQ(FromE4m3(ToE4m3(-value)), -kLargestE4m3);
  }
  EXPECT_TRUE(std::isnan(FromE4m3(ToE4m3(std::numeric_limits<double>::quiet_NaN()))));
}

}  // namespace
}  // namespace millwright
