// SPDX-License-Identifier: Apache-2.0
#include "core/unit_text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace millwright {
namespace {

TEST(ParseQuantity, EachUnitHasItsScale) {
  EXPECT_EQ(ParseQuantity<Bytes>("1 B"), Bytes(1));
  EXPECT_EQ(ParseQuantity<Bytes>("1 kB"), Bytes(1000));
  EXPECT_EQ(ParseQuantity<Bytes>("1 KiB"), Bytes(1024));
  EXPECT_EQ(ParseQuantity<Bytes>("3 MB"), Bytes(3e6));
  EXPECT_EQ(ParseQuantity<Bytes>("3 MiB"), Bytes(3.0 * 1024 * 1024));
  EXPECT_EQ(ParseQuantity<Bytes>("80 GB"), Bytes(80e9));
  EXPECT_EQ(ParseQuantity<Bytes>("80 GiB"), Bytes(85899345920.0));  // 80 x 2^30
  EXPECT_EQ(ParseQuantity<Bytes>("2 TB"), Bytes(2e12));
  EXPECT_EQ(ParseQuantity<Bytes>("1 TiB"), Bytes(1099511627776.0));
  EXPECT_EQ(ParseQuantity<Seconds>("2 s"), Seconds(2));
  EXPECT_EQ(ParseQuantity<Seconds>("2 ms"), Seconds(0.002));
  EXPECT_EQ(ParseQuantity<Seconds>("7 ns"), Seconds(7e-9));
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("400 Gb/s"), BytesPerSecond(50e9));  // 400 / 8
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("400 GB/s"), BytesPerSecond(400e9));
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("8 Mb/s"), BytesPerSecond(1e6));
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("3.35 TB/s"), BytesPerSecond(3.35e12));
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("1.6 Tb/s"), BytesPerSecond(0.2e12));
  EXPECT_EQ(ParseQuantity<Flops>("5 EFLOP"), Flops(5e18));  // "5E" is no exponent
  EXPECT_EQ(ParseQuantity<FlopsPerSecond>("989 TFLOP/s"), FlopsPerSecond(989e12));
  EXPECT_EQ(ParseQuantity<FlopsPerSecond>("989 TFLOPS"), FlopsPerSecond(989e12));
}

TEST(ParseQuantity, BlanksAreFree) {
  EXPECT_EQ(ParseQuantity<Bytes>("80GiB"), 80_GiB);
  EXPECT_EQ(ParseQuantity<Bytes>("  80 \t GiB "), 80_GiB);
}

TEST(ParseQuantity, AgreesWithTheLiterals) {
  EXPECT_EQ(ParseQuantity<Seconds>("5 us"), 5_us);
  EXPECT_EQ(ParseQuantity<Seconds>("2.7 us"), 2.7_us);
  EXPECT_EQ(ParseQuantity<Seconds>("300 ns"), 300_ns);
  EXPECT_EQ(ParseQuantity<BytesPerSecond>("400 Gb/s"), 400_Gbps);
  EXPECT_EQ(ParseQuantity<FlopsPerSecond>("989.4 TFLOP/s"), 989.4_TFLOPS);
}

TEST(ParseQuantity, RefusesWhatIsNoQuantity) {
  for (const char* text : {"",         " ",        "400",        "GB",
                           "GB 4",     "4 gb",     "4 Gb",       "4 GB/s",
                           "4 G B",    "4,5 GB",   "0x10 GB",    "+4 GB",
                           "nan GB",   "inf GB",   "-inf GB",    "infinity 1 GB",
                           "1e400 GB", "1e308 GB", "4 GB extra", "4 s",
                           "- 4 GB",   "--4 GB"}) {
    EXPECT_EQ(ParseQuantity<Bytes>(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseQuantity<Bytes>("-4 GB"), Bytes(-4e9));  // a field's range refuses it
}

TEST(ExactText, ChoosesTheLargestUnitThatIsWhole) {
  EXPECT_EQ(ExactText(3350_GBps), "3350 GB/s");
  EXPECT_EQ(ExactText(80_GiB), "80 GiB");
  EXPECT_EQ(ExactText(80_GB), "80 GB");
  EXPECT_EQ(ExactText(100_Gbps), "100 Gb/s");  // 12.5 GB/s is not whole
  EXPECT_EQ(ExactText(400_Gbps), "50 GB/s");
  EXPECT_EQ(ExactText(2.5_us), "2500 ns");
  EXPECT_EQ(ExactText(5_us), "5 us");
  EXPECT_EQ(ExactText(Bytes(85520809985.0)), "85520809985 B");
  EXPECT_EQ(ExactText(Bytes(85520809984.0)), "81559 MiB");  // 81559 x 2^20
  EXPECT_EQ(ExactText(Bytes(0)), "0 B");
  EXPECT_EQ(ExactText(Bytes(0.5)), "0.5 B");
  EXPECT_EQ(ExactText(Bytes(-2e9)), "-2 GB");
  EXPECT_EQ(ExactText(989_TFLOPS), "989 TFLOP/s");
}

TEST(ExactText, ReadsBackAsTheSameDouble) {
  constexpr Dimension kDimensions[] = {{0, 1, 0}, {1, 0, 0}, {-1, 1, 0}, {0, 0, 1}, {-1, 0, 1}};
  std::mt19937_64 random(1);
  int tried = 0;
  while (tried < 20000) {
    // Any double at all, then whole multiples of units.
    double value = std::bit_cast<double>(random());
    if (tried % 2 == 1)
      value = static_cast<double>(random() % 100000) *
              std::pow(10, static_cast<int>(random() % 25) - 9);
    if (!std::isfinite(value)) continue;
    ++tried;
    for (const Dimension d : kDimensions) {
      const std::string text = ExactText(value, d);
      const auto back = ParseQuantity(text, d);
      ASSERT_TRUE(back.has_value()) << text;
      ASSERT_EQ(std::bit_cast<std::uint64_t>(*back), std::bit_cast<std::uint64_t>(value)) << text;
    }
  }
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(512)), "512 B");
  EXPECT_EQ(FormatBytes(Bytes(1023)), "1023 B");  // 0.9990 KiB is not yet 1.00 KiB
  EXPECT_EQ(FormatBytes(12.3_GiB), "12.3 GiB");
  EXPECT_EQ(FormatBytes(Bytes(1.5 * 1024)), "1.50 KiB");
  EXPECT_EQ(FormatBytes(2000_GiB), "1.95 TiB");  // 2000 / 1024
  EXPECT_EQ(FormatBytes(-1 * 12.3_GiB), "-12.3 GiB");
  EXPECT_EQ(FormatPayload(Bytes(67108864)), "67.1 MB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(1.234_ms), "1.23 ms");
  EXPECT_EQ(FormatSeconds(Seconds(0.99996)), "1.00 s");  // carries into the next unit
  EXPECT_EQ(FormatSeconds(Seconds(0.99944)), "999 ms");
  EXPECT_EQ(FormatSeconds(Seconds(9.996e-3)), "10.0 ms");
  EXPECT_EQ(FormatSeconds(Seconds(99.96e-3)), "100 ms");
  EXPECT_EQ(FormatSeconds(Seconds(1234)), "1234 s");
  EXPECT_EQ(FormatSeconds(Seconds(12345)), "12,345 s");
  EXPECT_EQ(FormatSeconds(Seconds(86400 * 2.5)), "2.50 days");
  EXPECT_EQ(FormatSeconds(Seconds(86400 * 1234567.0)), "1,234,567 days");
  EXPECT_EQ(FormatSeconds(Seconds(86400 * 1.5e20)), "1.50e+20 days");
  EXPECT_EQ(FormatSeconds(Seconds(2e-10)), "0.20 ns");
}

TEST(Format, RatesAndCounts) {
  EXPECT_EQ(FormatBandwidth(450_GBps), "450 GB/s");
  EXPECT_EQ(FormatFlopRate(989.4_TFLOPS), "989 TFLOP/s");
  EXPECT_EQ(FormatFlopRate(2250_TFLOPS), "2250 TFLOP/s");
  EXPECT_EQ(FormatFlops(Flops(3.1e15)), "3.10 PFLOP");
  EXPECT_EQ(FormatCount(70553706496.0), "70.6 B");
  EXPECT_EQ(FormatCount(671026419200.0), "671 B");
  EXPECT_EQ(FormatCount(12), "12.0");
  EXPECT_EQ(FormatInteger(70553706496), "70,553,706,496");
  EXPECT_EQ(FormatInteger(-1234), "-1,234");
  EXPECT_EQ(FormatInteger(999), "999");
  EXPECT_EQ(FormatInteger(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(UnitText, Durations) {
  EXPECT_EQ(ParseDuration("5s"), Seconds(5));
  EXPECT_EQ(ParseDuration("250 ms"), Seconds(0.25));
  EXPECT_EQ(ParseDuration("1.5min"), Seconds(90));
  EXPECT_EQ(ParseDuration("2 h"), Seconds(7200));
  EXPECT_EQ(ParseDuration("30d"), Seconds(2592000));
  for (const char* bad : {"", "5", "d", "1 day", "nan h", "1e308d", "5s d", "1hh"}) {
    EXPECT_EQ(ParseDuration(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace millwright
