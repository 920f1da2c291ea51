// SPDX-License-Identifier: Apache-2.0
//
// What is drawn of a simulated step: what the compute stream of each pipeline rank does from the
// start to the end of the step, the tasks within, and what the rank holds.
//
// The bars of a rank fill the step without gaps: passes, what the rank waited for between them,
// the optimizer, and idle time.  A pass has a shape: how its time divides (what it waits for
// inside counts as the communication's) and its tasks.  Most passes of a step are alike, so shapes
// are shared: by passes whose tasks agree to the nanosecond.
//
// Limits: times are whole nanoseconds.  Where there are more bars than asked for, neighbours are
// merged until they are few enough, and memory is reduced to the most in each of equal slices of
// the step; the counts say how far that went.  Memory in use is without the allocator's slack,
// which the peak has.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/step_spec.h"

namespace millwright {

// What time is spent on, one colour each.
enum class Paint : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kRecompute,
  kTensor,
  kContext,
  kExpert,
  kData,
  kPipeline,  // the bubble: waiting for other stages, transfers included
  kOptimizer,
  kIdle,
  kHost,
};
inline constexpr int kPaints = 13;
std::string_view Name(Paint paint);

using PaintTimes = std::array<std::int64_t, kPaints>;  // ns

inline constexpr std::uint32_t kSeveralLabels = ~std::uint32_t{0};

struct PictureTask {
  std::uint32_t label = 0;  // into StepPicture::labels, or kSeveralLabels
  Stream stream = Stream::kCompute;
  Paint paint = Paint::kForward;
  std::int64_t start = 0, length = 0;  // of a pass: from the pass's start
  std::int32_t stage = 0, micro_batch = -1;
  std::int64_t count = 1;  // above 1: that many, merged
  bool waiting = false;    // the compute stream stands still for the task of that label
};

struct PassShape {
  PaintTimes times{};
  std::vector<PictureTask> tasks;
};

struct PictureBar {
  enum class Kind : std::uint8_t { kPass, kPair, kWait, kTask, kIdle, kMerged };
  Kind kind = Kind::kIdle;
  Paint paint = Paint::kIdle;  // of kWait and kTask
  std::int64_t length = 0;
  Pass pass, with;                                     // of kPass and kPair
  std::uint32_t shape = 0;                             // of kPass, kPair and kMerged
  std::uint32_t count = 1;                             // of kMerged
  std::uint32_t label = 0;                             // of the task, or of the one waited for
  std::int32_t rank = 0, stage = 0, micro_batch = -1;  // of the one waited for
};

struct PictureRank {
  std::vector<int> stages;
  std::vector<PictureBar> bars;
  std::vector<PictureTask> beside;    // of no pass: transfers, data parallelism
  PaintTimes times{};                 // of the whole step
  Bytes fixed, peak;                  // held all the time; most, with the allocator's slack
  std::vector<std::int64_t> moments;  // ns, from which on ...
  std::vector<Bytes> held;            //   ... the rank holds so much
};

struct StepPicture {
  std::int64_t length = 0;
  int stages_per_direction = 1;
  std::vector<PictureRank> ranks;
  std::vector<PassShape> shapes;
  std::vector<std::string> labels;
  std::int64_t passes = 0;         // drawn or merged; a pair is one
  std::int64_t merged_bars = 0;    // that are not drawn one by one
  std::int64_t merged_tasks = 0;   // of `beside`
  std::int64_t without_tasks = 0;  // passes of which no tasks are kept
  std::int64_t memory_slice = 0;   // ns; 0: memory is exact
};

struct PictureLimits {
  std::size_t bars = 40000;
  std::size_t tasks = 60000;    // of shapes, and again beside them; 0: keep none
  std::size_t moments = 60000;  // of memory, over all ranks; 0: keep none
};

StepPicture PictureOf(const SimulatedStep& step, const PictureLimits& limits);

}  // namespace millwright
