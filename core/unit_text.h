// SPDX-License-Identifier: Apache-2.0
//
// Physical quantities as text: "400 Gb/s" to 5e10 bytes a second and back, and the short forms
// that tables show.
//
// B is byte, b is bit; k, M, G, T, P are powers of ten, Ki, Mi, Gi, Ti powers of two.  Scales are
// exact integers, multiplied by or divided by once, so that "5 us" and the literal 5_us are the
// same double; nothing here depends on the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/units.h"

namespace millwright {

struct Dimension {
  int second = 0;
  int byte = 0;
  int flop = 0;
  bool operator==(const Dimension&) const = default;
};
template <int S, int B, int F>
constexpr Dimension DimensionOf(Quantity<S, B, F>) {
  return {S, B, F};
}

// A number and a unit, blanks between them or not, in the SI base unit; empty where `text` is
// anything else or not finite.
std::optional<double> ParseQuantity(std::string_view text, Dimension dimension);

// Whether `text` is a number and a unit, but one that no double holds: "1e400 GB/s".
bool BeyondDouble(std::string_view text, Dimension dimension);

template <class Q>
std::optional<Q> ParseQuantity(std::string_view text) {
  const std::optional<double> value = ParseQuantity(text, DimensionOf(Q{}));
  return value ? std::optional<Q>(Q(*value)) : std::nullopt;
}

// The shortest whole number of a unit, else a decimal, that reads back as the same double:
// "3350 GB/s", "80 GiB", "2500 ns".
std::string ExactText(double value, Dimension dimension);
template <int S, int B, int F>
std::string ExactText(Quantity<S, B, F> q) {
  return ExactText(q.value, DimensionOf(q));
}

// A time that people wait for: a number of s, min, h or d, or of smaller units ("5s", "1.5 h");
// empty where it is anything else.
std::optional<Seconds> ParseDuration(std::string_view text);

// For messages: the units accepted ("B, kB, ...") and a value as one should be written.
std::string UnitList(Dimension dimension);
std::string_view ExampleText(Dimension dimension);
std::string_view BaseUnit(Dimension dimension);

// Three significant digits for people: "12.3 GiB", "1.23 ms", "450 GB/s", "989 TFLOP/s"; more
// than four before the point in groups of three.
std::string FormatBytes(Bytes bytes);        // in powers of two, as memory is sold
std::string FormatPayload(Bytes bytes);      // in powers of ten, as networks count
std::string FormatSeconds(Seconds seconds);  // from a day on in days
std::string FormatBandwidth(BytesPerSecond bandwidth);
std::string FormatFlops(Flops flops);
std::string FormatFlopRate(FlopsPerSecond rate);
std::string FormatCount(double count);            // "70.6 B" (1e9) parameters
std::string FormatInteger(std::int64_t integer);  // "70,553,706,496"

}  // namespace millwright
