// SPDX-License-Identifier: Apache-2.0
//
// How long does each operation take on a backend?
//
// Every rank of the backend measures the same case at the same time, as in a step, where they share
// memory and clocks: the time of what is computed is the mean of the ranks', of a collective that
// of the slowest.  A repeat is as many calls as a clock can tell apart, each with fresh memory for
// its output, as an execution calls it; a call before finds its outputs poisoned, and they are
// looked at after it, so that what writes nothing is not timed.  Inputs are random numbers of a
// seed.
//
// Whether to go on is agreed, so that no rank waits for one that has stopped.  What runs beside
// what is measured of a product and a message, which are all that a backend has on streams of their
// own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/backend.h"
#include "runtime/measured_case.h"
#include "runtime/stable_timing.h"

namespace millwright {

struct MeasureOptions {
  TimingLimits limits;
  // What is computed by the thread's processor time, for machines that others use at the same time;
  // waiting for a device would not count.  Collectives go by the clock all the same.
  bool by_processor = false;
  std::uint64_t seed = 1;
  Seconds shortest{100e-6};  // of a repeat: a clock is read to tens of nanoseconds
  std::function<bool()> stop = [] { return false; };  // this rank's wish
};

// A product while two ranks exchange messages of about its length, and each alone.
struct OverlapTimes {
  Seconds product, messages, together;
  double bytes = 0;  // of a message
  // Of the shorter.
  double hidden() const { return (product + messages - together) / std::min(product, messages); }
};

class Measurer {
 public:
  // The backend must outlive it.
  Measurer(Backend& backend, MeasureOptions options);

  // Every rank calls it with the same case.
  Timing Measure(const MeasuredCase& what);
  // Nothing on one rank, or where it was stopped.
  std::optional<OverlapTimes> Overlap(const GemmCase& product);
  // Whether any rank wants to stop; every rank calls it.
  bool Stops();

 private:
  Timing Of(const GemmCase& gemm);
  Timing Of(const AttentionCase& attention);
  Timing Of(const RowsCase& rows);
  Timing OfNorm(const RowsCase& rows);
  Timing OfWeighted(const RowsCase& rows);
  Timing OfExperts(const RowsCase& rows);
  Timing Of(const CollectiveCase& collective);

  enum class Joined : std::uint8_t { kMean, kSlowest };
  // Once more before, on poisoned memory: `output`, unless empty, must then have been written.
  Timing Time(const std::function<void()>& call, const Tensor& output, Joined joined);
  Seconds Repeat(const std::function<void()>& call, int calls, Joined joined);
  Tensor Random(std::int64_t rows, std::int64_t cols, Element element = Element::kValue);
  Tensor Fresh(std::int64_t rows, std::int64_t cols, Element element = Element::kValue);
  Tensor Positions(std::int64_t tokens);  // 0, 1, ...
  Tensor Indices(std::int64_t count, std::int64_t below);
  void CheckWritten(ConstView output);
  // This rank's time, and what all ranks then know.
  Seconds Agree(double own, Joined joined);

  Backend& backend_;
  MeasureOptions options_;
  RankGroup everyone_;
  Tensor shared_;  // time, wish to stop, clock
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Seconds now_;         // agreed at the last repeat,
  bool stops_ = false;  //   as is this
  bool poisons_ = false;
  std::uint64_t state_;
};

}  // namespace millwright
