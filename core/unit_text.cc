// SPDX-License-Identifier: Apache-2.0
#include "core/unit_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "core/check.h"

namespace millwright {
namespace {

// value = number * up / down, one of the two being 1 but for bits.
struct Unit {
  std::string_view name;
  double up = 1;
  double down = 1;
  bool written = true;  // ExactText may choose it
};

constexpr double kKi = 1024.0;
constexpr double kMi = kKi * 1024;
constexpr double kGi = kMi * 1024;
constexpr double kTi = kGi * 1024;

// Largest first.
constexpr Unit kByteUnits[] = {
    {"TiB", kTi}, {"TB", 1e12}, {"GiB", kGi}, {"GB", 1e9}, {"MiB", kMi},
    {"MB", 1e6},  {"KiB", kKi}, {"kB", 1e3},  {"B"},
};
constexpr Unit kSecondUnits[] = {
    {"s"},
    {"ms", 1, 1e3},
    {"us", 1, 1e6},
    {"ns", 1, 1e9},
};
constexpr Unit kBandwidthUnits[] = {
    {"TB/s", 1e12}, {"Tb/s", 1e12, 8, false}, {"GB/s", 1e9},           {"Gb/s", 1e9, 8},
    {"MB/s", 1e6},  {"Mb/s", 1e6, 8, false},  {"kB/s", 1e3, 1, false}, {"B/s"},
};
constexpr Unit kFlopUnits[] = {
    {"EFLOP", 1e18}, {"PFLOP", 1e15}, {"TFLOP", 1e12}, {"GFLOP", 1e9}, {"MFLOP", 1e6}, {"FLOP"},
};
constexpr Unit kFlopRateUnits[] = {
    {"EFLOP/s", 1e18},          {"PFLOP/s", 1e15},          {"TFLOP/s", 1e12},
    {"GFLOP/s", 1e9},           {"MFLOP/s", 1e6},           {"FLOP/s"},
    {"PFLOPS", 1e15, 1, false}, {"TFLOPS", 1e12, 1, false}, {"GFLOPS", 1e9, 1, false},
};

struct Family {
  Dimension dimension;
  std::span<const Unit> units;
  std::string_view base;
  std::string_view example;
};
constexpr Family kFamilies[] = {
    {{0, 1, 0}, kByteUnits, "B", "80 GiB"},
    {{1, 0, 0}, kSecondUnits, "s", "5 us"},
    {{-1, 1, 0}, kBandwidthUnits, "B/s", "400 Gb/s"},
    {{0, 0, 1}, kFlopUnits, "FLOP", "300 TFLOP"},
    {{-1, 0, 1}, kFlopRateUnits, "FLOP/s", "989 TFLOP/s"},
};

const Family& FamilyOf(Dimension dimension) {
  const auto it = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                               [&](const Family& f) { return f.dimension == dimension; });
  MILLWRIGHT_CHECK(it != std::end(kFamilies));
  return *it;
}

double InBase(double number, const Unit& unit) { return number * unit.up / unit.down; }

std::string Shortest(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  MILLWRIGHT_CHECK(error == std::errc());
  return std::string(buffer.data(), end);
}

struct Step {
  double scale;
  std::string_view unit;
};

// `steps` from large to small; the last takes what is left.
std::string ThreeDigits(double value, std::span<const Step> steps) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{} {}", value, steps.back().unit);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double x = value / steps[i].scale;
    // 0.9995 of a unit prints as 1.00 of it.
    if (std::abs(x) < 0.9995 && i + 1 < steps.size()) continue;
    const double size = std::abs(x);
    constexpr double kGrouped = 9999.5, kCounted = 1e15;
    if (size >= kCounted) return fmt::format("{:.2e} {}", x, steps[i].unit);
    if (size >= kGrouped)
      return fmt::format("{} {}", FormatInteger(std::llround(x)), steps[i].unit);
    if (size >= 999.5) return fmt::format("{:.0f} {}", x, steps[i].unit);
    const int decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    return fmt::format("{:.{}f} {}", x, decimals, steps[i].unit);
  }
  return {};
}

// A number and a unit; not finite where it is beyond a double.
std::optional<double> Parse(std::string_view text, Dimension dimension) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  // from_chars would take "inf" and "nan".
  if (text.empty() || text.find_first_of("0123456789") > 2) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) number = std::numeric_limits<double>::infinity();
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  for (const Unit& unit : FamilyOf(dimension).units) {
    if (unit.name != text) continue;
    return InBase(number, unit);
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> ParseQuantity(std::string_view text, Dimension dimension) {
  const std::optional<double> value = Parse(text, dimension);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

bool BeyondDouble(std::string_view text, Dimension dimension) {
  const std::optional<double> value = Parse(text, dimension);
  return value && !std::isfinite(*value);
}

std::optional<Seconds> ParseDuration(std::string_view text) {
  struct Long {
    std::string_view name;
    double seconds;
  };
  for (const Long unit : {Long{"min", 60}, Long{"h", 3600}, Long{"d", 86400}}) {
    if (!text.ends_with(unit.name)) continue;
    const std::string in_seconds =
        std::string(text.substr(0, text.size() - unit.name.size())).append("s");
    const std::optional<Seconds> number = ParseQuantity<Seconds>(in_seconds);
    if (!number || !std::isfinite(unit.seconds * number->value)) return {};
    return unit.seconds * *number;
  }
  return ParseQuantity<Seconds>(text);
}

std::string ExactText(double value, Dimension dimension) {
  MILLWRIGHT_CHECK(std::isfinite(value));
  const Family& family = FamilyOf(dimension);
  constexpr double kWhole = 1e15;  // below, a double shows a whole number digit by digit
  if (value != 0) {
    for (const Unit& unit : family.units) {
      if (!unit.written) continue;
      const double number = std::round(value * unit.down / unit.up);
      if (number == 0 || std::abs(number) > kWhole || InBase(number, unit) != value) continue;
      return fmt::format("{:.0f} {}", number, unit.name);
    }
  }
  return fmt::format("{} {}", Shortest(value), family.base);
}

std::string UnitList(Dimension dimension) {
  const auto units = FamilyOf(dimension).units;
  std::string list;
  for (const Unit& unit : units) {
    if (!list.empty()) list += ", ";
    list += unit.name;
  }
  return list;
}

std::string_view ExampleText(Dimension dimension) { return FamilyOf(dimension).example; }

std::string_view BaseUnit(Dimension dimension) { return FamilyOf(dimension).base; }

std::string FormatBytes(Bytes bytes) {
  static constexpr Step kSteps[] = {
      {kTi, "TiB"}, {kGi, "GiB"}, {kMi, "MiB"}, {kKi, "KiB"}, {1, "B"}};
  return ThreeDigits(bytes.value, kSteps);
}

std::string FormatPayload(Bytes bytes) {
  static constexpr Step kSteps[] = {{1e15, "PB"}, {1e12, "TB"}, {1e9, "GB"},
                                    {1e6, "MB"},  {1e3, "kB"},  {1, "B"}};
  return ThreeDigits(bytes.value, kSteps);
}

std::string FormatSeconds(Seconds seconds) {
  constexpr double kDay = 86400;
  static constexpr Step kSteps[] = {
      {kDay, "days"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  return ThreeDigits(seconds.value, kSteps);
}

std::string FormatBandwidth(BytesPerSecond bandwidth) {
  static constexpr Step kSteps[] = {
      {1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}};
  return ThreeDigits(bandwidth.value, kSteps);
}

std::string FormatFlops(Flops flops) {
  static constexpr Step kSteps[] = {{1e21, "ZFLOP"}, {1e18, "EFLOP"}, {1e15, "PFLOP"},
                                    {1e12, "TFLOP"}, {1e9, "GFLOP"},  {1e6, "MFLOP"},
                                    {1, "FLOP"}};
  return ThreeDigits(flops.value, kSteps);
}

std::string FormatFlopRate(FlopsPerSecond rate) {
  // A GPU's rate stays in TFLOP/s well past a thousand, as every datasheet has it.
  static constexpr Step kSteps[] = {
      {1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}, {1, "FLOP/s"}};
  return ThreeDigits(rate.value, kSteps);
}

std::string FormatCount(double count) {
  static constexpr Step kSteps[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
  std::string text = ThreeDigits(count, kSteps);
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string FormatInteger(std::int64_t integer) {
  std::string digits = std::to_string(integer);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace millwright
