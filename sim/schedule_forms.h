// SPDX-License-Identifier: Apache-2.0
//
// What do a schedule's orders come to, without walking them again for each cost?
//
// The makespan of a schedule is the longest of many paths through its passes, and each path is
// linear in the costs: so many F, B, W, overlapped pairs and transfers.  The few paths that are
// longest at fifteen ratios of costs are found once, by walking the orders (sim/schedule_timing.h)
// and going back from the end; at any other costs of equal ranks the longest of these few is the
// answer, at tens of nanoseconds.  It is exact at the ratios tried and never too long between:
// 0.002% short in the mean and 2.4% at most over ratios drawn at random (tests/sim).
//
// With many micro-batches the orders repeat themselves, and `pipeline` more of them are one more
// turn of the longest circle.  So forms are walked for few micro-batches and answer for every
// number with the same remainder: 0.002% off in the mean and 1.4% at most (tests/sim).
//
// What a rank holds needs no times: a rank works its order off strictly, so the order alone says
// how many micro-batches are between F and W.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/units.h"
#include "sim/schedule.h"

namespace millwright {

// Of a rank with all its chunks, for one micro-batch.
struct RankPassCosts {
  Seconds forward, backward_input, backward_weight;
  Seconds overlapped;  // F and BW of a pair together; the sum where nothing overlaps
  Seconds transfer;    // between neighbours, of one chunk's boundary
  Seconds work() const { return forward + backward_input + backward_weight; }
  RankPassCosts& operator+=(const RankPassCosts& o) {
    forward += o.forward;
    backward_input += o.backward_input;
    backward_weight += o.backward_weight;
    overlapped += o.overlapped;
    transfer += o.transfer;
    return *this;
  }
  friend RankPassCosts operator+(RankPassCosts a, const RankPassCosts& b) { return a += b; }
  friend RankPassCosts operator*(double k, const RankPassCosts& c) {
    return {k * c.forward, k * c.backward_input, k * c.backward_weight, k * c.overlapped,
            k * c.transfer};
  }
};

// What a rank may hold at one time: of each of its chunks, in the order of their stages, the
// micro-batches between the start of F and the end of B or BW, which keep all that backward needs,
// and those between B and the end of W, which `waiting` keep what weight gradients need; and the
// same of the last stage, for the head.
struct ChunksHeld {
  // What runs meanwhile has beside this: a forward pass nothing, a backward pass the working set of
  // a layer, and where it begins with the head that of the larger of both.
  enum class Working : std::uint8_t { kNone, kLayer, kHead };
  std::vector<double> chunks, waiting;
  double at_head = 0, head_waiting = 0;
  Working working = Working::kNone;
  bool operator==(const ChunksHeld&) const = default;
};

class ScheduleForms {
 public:
  // `choice` must have nothing Unmet.
  explicit ScheduleForms(const ScheduleChoice& choice);

  // The choice of fewest micro-batches whose forms also answer for `choice`.
  static ScheduleChoice Shared(ScheduleChoice choice);
  // One like it with enough micro-batches to have a Pace.
  static ScheduleChoice Steady(ScheduleChoice choice);

  // Of equal ranks, and of the micro-batches given or any that share these forms.
  Seconds Makespan(const RankPassCosts& costs, double micro_batches) const;
  // A micro-batch's, once the pipeline is full: of the longest circle, and no shorter than its
  // work.
  Seconds Pace(const RankPassCosts& costs) const;
  // Of the micro-batches on a rank, those whose F and BW are slots of one pair.
  double OverlappedPairs(double micro_batches) const {
    return pairs_.walked + Turns(micro_batches) * pairs_.of_turn;
  }
  // Each moment at which a rank holds more than at every other, in some respect.
  const std::vector<ChunksHeld>& Held(int rank) const { return held_[std::size_t(rank)]; }
  // As a rank holds this many: all of them, where backward comes after every forward.
  double InFlight(double chunks, double micro_batches) const {
    return chunks == walked_ ? micro_batches : chunks;
  }
  bool splits_backward() const { return splits_backward_; }  // B and W apart, everywhere

 private:
  double Turns(double micro_batches) const { return (micro_batches - walked_) / pipeline_; }

  // How often a path goes through F, B, W, pairs and transfers, in those of whole ranks; and how
  // much more often for each turn.
  struct Form {
    std::array<double, 5> walked{}, of_turn{};
  };
  struct Pairs {
    double walked = 0, of_turn = 0;
  };
  double pipeline_ = 1, walked_ = 1;  // micro-batches
  std::vector<Form> forms_;
  Pairs pairs_;
  bool splits_backward_ = false;
  std::vector<std::vector<ChunksHeld>> held_;
};

// Forms that were asked for before, of any thread.
class KnownForms {
 public:
  // By the fields of a choice that is ScheduleForms::Shared.
  using Key = std::array<int, 4>;
  static Key KeyOf(const ScheduleChoice& shared) {
    return {static_cast<int>(shared.kind), shared.pipeline, shared.micro_batches,
            shared.virtual_stages};
  }
  // Valid as long as this is.
  const ScheduleForms& Of(const ScheduleChoice& shared);

 private:
  struct Entry {
    std::once_flag made;
    std::optional<ScheduleForms> forms;
  };
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace millwright
