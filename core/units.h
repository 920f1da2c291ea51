// SPDX-License-Identifier: Apache-2.0
//
// Physical quantities whose dimensions the compiler checks.
//
// Every quantity is one double in SI base units: seconds, bytes, floating-point
// operations.  Dimensions combine by themselves (Bytes / BytesPerSecond is
// Seconds, Bytes / Bytes is a plain double), so nobody writes a conversion.
// Factors of ten appear only in the literals below and in core/unit_text.
//
// GB is 1e9 bytes, GiB is 2^30 bytes, Gb/s is 1e9 bits per second.
// A double counts bytes exactly up to 2^53 (9 PB).
#pragma once

#include <compare>

namespace millwright {

template <int Second, int Byte, int Flop>
struct Quantity {
  double value = 0;

  constexpr Quantity() = default;
  explicit constexpr Quantity(double v) : value(v) {}

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity q) {
    value += q.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity q) {
    value -= q.value;
    return *this;
  }
};

using Seconds = Quantity<1, 0, 0>;
using Bytes = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;
using BytesPerSecond = Quantity<-1, 1, 0>;
using FlopsPerSecond = Quantity<-1, 0, 1>;

template <int S, int B, int F>
constexpr Quantity<S, B, F> operator+(Quantity<S, B, F> a, Quantity<S, B, F> b) {
  return Quantity<S, B, F>(a.value + b.value);
}
template <int S, int B, int F>
constexpr Quantity<S, B, F> operator-(Quantity<S, B, F> a, Quantity<S, B, F> b) {
  return Quantity<S, B, F>(a.value - b.value);
}
template <int S, int B, int F>
constexpr Quantity<S, B, F> operator*(double k, Quantity<S, B, F> q) {
  return Quantity<S, B, F>(k * q.value);
}
template <int S, int B, int F>
constexpr Quantity<S, B, F> operator*(Quantity<S, B, F> q, double k) {
  return Quantity<S, B, F>(q.value * k);
}
template <int S, int B, int F>
constexpr Quantity<S, B, F> operator/(Quantity<S, B, F> q, double k) {
  return Quantity<S, B, F>(q.value / k);
}

// Dimensions add under *, subtract under /; a dimensionless result is a double.
template <int S, int B, int F>
constexpr auto MakeQuantity(double v) {
  if constexpr (S == 0 && B == 0 && F == 0) {
    return v;
  } else {
    return Quantity<S, B, F>(v);
  }
}
template <int S1, int B1, int F1, int S2, int B2, int F2>
constexpr auto operator*(Quantity<S1, B1, F1> a, Quantity<S2, B2, F2> b) {
  return MakeQuantity<S1 + S2, B1 + B2, F1 + F2>(a.value * b.value);
}
template <int S1, int B1, int F1, int S2, int B2, int F2>
constexpr auto operator/(Quantity<S1, B1, F1> a, Quantity<S2, B2, F2> b) {
  return MakeQuantity<S1 - S2, B1 - B2, F1 - F2>(a.value / b.value);
}

inline namespace literals {
constexpr Seconds operator""_s(long double v) { return Seconds(double(v)); }
constexpr Seconds operator""_s(unsigned long long v) { return Seconds(double(v)); }
constexpr Seconds operator""_ms(long double v) { return Seconds(double(v) / 1e3); }
constexpr Seconds operator""_ms(unsigned long long v) { return Seconds(double(v) / 1e3); }
constexpr Seconds operator""_us(long double v) { return Seconds(double(v) / 1e6); }
constexpr Seconds operator""_us(unsigned long long v) { return Seconds(double(v) / 1e6); }
constexpr Seconds operator""_ns(unsigned long long v) { return Seconds(double(v) / 1e9); }
constexpr Bytes operator""_B(unsigned long long v) { return Bytes(double(v)); }
constexpr Bytes operator""_MB(long double v) { return Bytes(double(v) * 1e6); }
constexpr Bytes operator""_MB(unsigned long long v) { return Bytes(double(v) * 1e6); }
constexpr Bytes operator""_GB(long double v) { return Bytes(double(v) * 1e9); }
constexpr Bytes operator""_GB(unsigned long long v) { return Bytes(double(v) * 1e9); }
constexpr Bytes operator""_MiB(unsigned long long v) { return Bytes(double(v) * 1048576.0); }
constexpr Bytes operator""_GiB(long double v) { return Bytes(double(v) * 1073741824.0); }
constexpr Bytes operator""_GiB(unsigned long long v) { return Bytes(double(v) * 1073741824.0); }
constexpr BytesPerSecond operator""_GBps(long double v) { return BytesPerSecond(double(v) * 1e9); }
constexpr BytesPerSecond operator""_GBps(unsigned long long v) {
  return BytesPerSecond(double(v) * 1e9);
}
constexpr BytesPerSecond operator""_Gbps(unsigned long long v) {
  return BytesPerSecond(double(v) * 1e9 / 8);
}
constexpr FlopsPerSecond operator""_TFLOPS(long double v) {
  return FlopsPerSecond(double(v) * 1e12);
}
constexpr FlopsPerSecond operator""_TFLOPS(unsigned long long v) {
  return FlopsPerSecond(double(v) * 1e12);
}
}  // namespace literals

}  // namespace millwright
