// SPDX-License-Identifier: Apache-2.0
#include "report/step_picture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "report/pass_spans.h"

namespace millwright {
namespace {

std::int64_t Nanoseconds(Seconds seconds) { return std::llround(seconds.value * 1e9); }

Paint PaintOf(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return Paint::kForward;
    case PassKind::kBackward:
      return Paint::kBackward;
    case PassKind::kBackwardInput:
      return Paint::kBackwardInput;
    case PassKind::kBackwardWeight:
      return Paint::kBackwardWeight;
  }
  MILLWRIGHT_CHECK(false);
}

// `compute`: of what pass the task is.
Paint PaintOf(Cause cause, Paint compute) {
  switch (cause) {
    case Cause::kCompute:
      return compute;
    case Cause::kRecompute:
      return Paint::kRecompute;
    case Cause::kTensor:
      return Paint::kTensor;
    case Cause::kContext:
      return Paint::kContext;
    case Cause::kExpert:
      return Paint::kExpert;
    case Cause::kHost:
      return Paint::kHost;
    case Cause::kPipeline:
      return Paint::kPipeline;
    case Cause::kData:
      return Paint::kData;
    case Cause::kOptimizer:
      return Paint::kOptimizer;
  }
  MILLWRIGHT_CHECK(false);
}

std::int64_t Sum(const PaintTimes& times) {
  return std::accumulate(times.begin(), times.end(), std::int64_t{0});
}

// Whether two shapes are drawn alike: starts of equal passes differ in their last bits.
bool Alike(const PassShape& a, const PassShape& b) {
  if (a.tasks.size() != b.tasks.size()) return false;
  constexpr std::int64_t kTenThousandth = 10000;
  const std::int64_t most = 1 + Sum(a.times) / kTenThousandth;
  for (std::size_t i = 0; i < a.times.size(); ++i) {
    if (std::abs(a.times[i] - b.times[i]) > most) return false;
  }
  return std::equal(a.tasks.begin(), a.tasks.end(), b.tasks.begin(),
                    [](const PictureTask& x, const PictureTask& y) {
                      return x.label == y.label && x.stream == y.stream && x.paint == y.paint &&
                             x.waiting == y.waiting && std::abs(x.start - y.start) <= 1 &&
                             std::abs(x.length - y.length) <= 1;
                    });
}

class Painter {
 public:
  Painter(const SimulatedStep& step, const PictureLimits& limits)
      : step_(step), limits_(limits), pass_of_(PassOfEachTask(step)) {
    picture_.length = Nanoseconds(step.step());
    picture_.stages_per_direction = step.spec.schedule.stages_per_direction();
    for (TaskId id = 0; id < step.graph.size(); ++id) {
      const std::size_t label = step.graph.task(id).label;
      if (label >= picture_.labels.size()) picture_.labels.resize(label + 1);
      if (picture_.labels[label].empty()) picture_.labels[label] = step.graph.label(id);
    }
  }

  StepPicture Draw() {
    for (int rank = 0; rank < step_.graph.ranks(); ++rank) {
      PictureRank& of_rank = picture_.ranks.emplace_back();
      const PipelineSchedule& schedule = step_.spec.schedule;
      for (int stage = 0; stage < schedule.stages(); ++stage) {
        if (schedule.rank_of_stage[std::size_t(stage)] == rank) of_rank.stages.push_back(stage);
      }
      of_rank.fixed = step_.fixed[std::size_t(rank)].total();
      of_rank.peak = step_.peak[std::size_t(rank)];
      Bars(rank, of_rank);
      if (limits_.tasks > 0) Beside(rank, of_rank);
      if (limits_.moments > 0) Memory(rank, of_rank);
    }
    MergeBars();
    MergeBeside();
    return std::move(picture_);
  }

 private:
  std::int64_t Start(TaskId id) const { return Nanoseconds(step_.timeline.start[id]); }
  std::int64_t End(TaskId id) const { return Nanoseconds(step_.timeline.end[id]); }
  const std::vector<Pass>& Order(int rank) const {
    return step_.spec.schedule.orders[std::size_t(rank)];
  }

  // The pass that a task belongs to; of a pair, the first.
  std::uint32_t Slot(int rank, TaskId id) const {
    const std::uint32_t pass = pass_of_[id];
    if (pass == kNoPass || pass == 0) return pass;
    return Order(rank)[pass - 1].overlaps_next ? pass - 1 : pass;
  }
  Paint PaintOfTask(int rank, TaskId id) const {
    const Paint compute =
        pass_of_[id] == kNoPass ? Paint::kIdle : PaintOf(Order(rank)[pass_of_[id]].kind);
    return PaintOf(step_.graph.task(id).cause, compute);
  }

  // Of each task of the compute stream; what slows a pass down from inside belongs to it.
  std::vector<std::uint32_t> Slots(int rank, std::span<const TaskId> program) const {
    std::vector<std::uint32_t> slots;
    for (const TaskId id : program) slots.push_back(Slot(rank, id));
    std::size_t before = program.size();  // the last task of a pass
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kNoPass) continue;
      if (before < i && slots[before] == slots[i]) {
        std::fill(slots.begin() + std::ptrdiff_t(before), slots.begin() + std::ptrdiff_t(i),
                  slots[i]);
      }
      before = i;
    }
    return slots;
  }

  void Bars(int rank, PictureRank& of_rank) {
    const std::span<const TaskId> program = step_.graph.program(rank, Stream::kCompute);
    const std::vector<std::uint32_t> slots = Slots(rank, program);
    SortTasks(rank, program, slots);
    std::uint32_t open = kNoPass;
    PaintTimes times{};
    std::int64_t now = 0, begin = 0;
    const auto close = [&] {
      if (open != kNoPass) AddPass(rank, open, begin, now, times, of_rank);
      open = kNoPass;
      times = {};
      waits_.clear();
    };
    for (std::size_t i = 0; i < program.size(); ++i) {
      const TaskId id = program[i];
      const bool inside = open != kNoPass && slots[i] == open;
      const std::int64_t start = Start(id), end = End(id);
      if (!inside) close();
      if (start > now) {
        const PictureBar wait = Wait(id, start - now);
        of_rank.times[std::size_t(wait.paint)] += wait.length;
        if (inside) {
          times[std::size_t(wait.paint)] += wait.length;
          waits_.push_back({.label = wait.label,
                            .paint = wait.paint,
                            .start = now - begin,
                            .length = wait.length,
                            .waiting = true});
        } else {
          of_rank.bars.push_back(wait);
        }
        now = start;
      }
      const Paint paint = PaintOfTask(rank, id);
      of_rank.times[std::size_t(paint)] += end - start;
      if (!inside && slots[i] != kNoPass) {
        open = slots[i];
        begin = start;
      }
      if (open != kNoPass) {
        times[std::size_t(paint)] += end - start;
      } else if (end > start) {
        of_rank.bars.push_back({.kind = PictureBar::Kind::kTask,
                                .paint = paint,
                                .length = end - start,
                                .label = step_.graph.task(id).label});
      }
      now = end;
    }
    close();
    if (picture_.length > now) {
      of_rank.bars.push_back({.kind = PictureBar::Kind::kIdle, .length = picture_.length - now});
      of_rank.times[std::size_t(Paint::kIdle)] += picture_.length - now;
    }
  }

  PictureBar Wait(TaskId id, std::int64_t length) const {
    const auto last_of = [&](TaskId waiting) {
      TaskId last = kNoTask;
      for (const TaskId awaited : step_.graph.waits(waiting)) {
        if (last == kNoTask || step_.timeline.end[awaited] > step_.timeline.end[last]) {
          last = awaited;
        }
      }
      return last;
    };
    TaskId awaited = last_of(id);
    if (awaited == kNoTask) return {.kind = PictureBar::Kind::kIdle, .length = length};
    // A receive only waits for its send.
    if (step_.graph.task(awaited).stream == Stream::kReceive) {
      if (const TaskId send = last_of(awaited); send != kNoTask) awaited = send;
    }
    const Task& task = step_.graph.task(awaited);
    return {.kind = PictureBar::Kind::kWait,
            .paint = PaintOf(task.cause, Paint::kPipeline),
            .length = length,
            .label = task.label,
            .rank = task.rank,
            .stage = task.stage,
            .micro_batch = task.micro_batch};
  }

  // The tasks of each pass of a rank, in the order in which they were launched.
  void SortTasks(int rank, std::span<const TaskId> program, std::span<const std::uint32_t> slots) {
    tasks_.clear();
    if (limits_.tasks == 0) return;
    const auto add = [&](std::uint32_t slot, TaskId id) {
      if (slot != kNoPass && End(id) > Start(id)) tasks_.emplace_back(slot, id);
    };
    for (std::size_t i = 0; i < program.size(); ++i) add(slots[i], program[i]);
    for (const Stream stream : {Stream::kTensor, Stream::kContext, Stream::kExpert}) {
      for (const TaskId id : step_.graph.program(rank, stream)) add(Slot(rank, id), id);
    }
    std::sort(tasks_.begin(), tasks_.end());
  }

  void AddPass(int rank, std::uint32_t slot, std::int64_t begin, std::int64_t end,
               const PaintTimes& times, PictureRank& of_rank) {
    const Pass& pass = Order(rank)[slot];
    PictureBar bar{.kind = PictureBar::Kind::kPass, .length = end - begin, .pass = pass};
    if (pass.overlaps_next) {
      bar.kind = PictureBar::Kind::kPair;
      bar.with = Order(rank)[slot + 1];
    }
    PassShape shape{.times = times};
    const auto first = std::lower_bound(tasks_.begin(), tasks_.end(), std::pair(slot, TaskId{0}));
    for (auto it = first; it != tasks_.end() && it->first == slot; ++it) {
      const Task& task = step_.graph.task(it->second);
      const std::int64_t start = Start(it->second);
      shape.tasks.push_back({.label = task.label,
                             .stream = task.stream,
                             .paint = PaintOfTask(rank, it->second),
                             .start = start - begin,
                             .length = End(it->second) - start});
    }
    if (!shape.tasks.empty()) shape.tasks.insert(shape.tasks.end(), waits_.begin(), waits_.end());
    bar.shape = ShapeIndex(std::move(shape));
    if (picture_.shapes[bar.shape].tasks.empty()) ++picture_.without_tasks;
    ++picture_.passes;
    of_rank.bars.push_back(bar);
  }

  std::uint32_t ShapeIndex(PassShape shape) {
    // Only shapes of the same tasks are compared, and the latest of them.
    constexpr std::size_t kMostCompared = 32;
    for (;;) {
      std::uint64_t hash = 14695981039346656037U;  // FNV-1a
      const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211U; };
      for (const PictureTask& task : shape.tasks) {
        mix(task.label);
        mix(std::uint64_t(task.stream));
        mix(std::uint64_t(task.paint));
        mix(std::uint64_t(task.waiting));
      }
      std::vector<std::uint32_t>& same = shapes_of_[hash];
      for (std::size_t i = 0; i < std::min(same.size(), kMostCompared); ++i) {
        const std::uint32_t index = same[same.size() - 1 - i];
        if (Alike(shape, picture_.shapes[index])) return index;
      }
      if (!shape.tasks.empty() && shape_tasks_ + shape.tasks.size() > limits_.tasks) {
        shape.tasks.clear();
        continue;
      }
      shape_tasks_ += shape.tasks.size();
      same.push_back(std::uint32_t(picture_.shapes.size()));
      picture_.shapes.push_back(std::move(shape));
      return same.back();
    }
  }

  void Beside(int rank, PictureRank& of_rank) {
    for (const Stream stream :
         {Stream::kSend, Stream::kReceive, Stream::kData, Stream::kToHost, Stream::kFromHost}) {
      for (const TaskId id : step_.graph.program(rank, stream)) {
        const Task& task = step_.graph.task(id);
        const std::int64_t start = Start(id), end = End(id);
        if (end == start) continue;
        of_rank.beside.push_back({.label = task.label,
                                  .stream = stream,
                                  .paint = PaintOfTask(rank, id),
                                  .start = start,
                                  .length = end - start,
                                  .stage = task.stage,
                                  .micro_batch = task.micro_batch});
      }
    }
  }

  void Memory(int rank, PictureRank& of_rank) {
    struct Change {
      std::int64_t at;
      double bytes;
    };
    std::vector<Change> changes;
    for (int s = 0; s < kStreams; ++s) {
      for (const TaskId id : step_.graph.program(rank, static_cast<Stream>(s))) {
        const Task& task = step_.graph.task(id);
        if (task.taken.value > 0) changes.push_back({Start(id), task.taken.value});
        if (task.given_back.value > 0) changes.push_back({End(id), -task.given_back.value});
      }
    }
    // Ends before starts at the same moment, as the simulation counts its peak.
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.at != b.at ? a.at < b.at : a.bytes < b.bytes;
    });
    const std::size_t most =
        std::max<std::size_t>(100, limits_.moments / std::size_t(step_.graph.ranks()));
    const bool exact = changes.size() <= most;
    const std::int64_t slice =
        exact ? 1 : std::max<std::int64_t>(1, picture_.length / std::int64_t(most) + 1);
    if (!exact) picture_.memory_slice = std::max(picture_.memory_slice, slice);
    double held = 0;
    of_rank.moments.push_back(0);
    of_rank.held.push_back(of_rank.fixed);
    for (std::size_t i = 0; i < changes.size();) {
      const std::int64_t begin = changes[i].at / slice * slice;
      double highest = exact ? 0 : held;
      for (; i < changes.size() && changes[i].at < begin + slice; ++i) {
        held += changes[i].bytes;
        highest = std::max(highest, held);
      }
      const auto add = [&](std::int64_t at, double bytes) {
        if (of_rank.moments.back() != at) {
          of_rank.moments.push_back(at);
          of_rank.held.emplace_back();
        }
        of_rank.held.back() = of_rank.fixed + Bytes(bytes);
      };
      add(begin, exact ? held : highest);
      // Where nothing changes for a while, what is held is what the slice ended with.
      if (!exact && (i == changes.size() || changes[i].at >= begin + 2 * slice)) {
        add(begin + slice, held);
      }
    }
  }

  // Bars shorter than `least`, in a row, make one that is as long or a little longer.
  std::vector<PictureBar> Merged(const std::vector<PictureBar>& bars, std::int64_t least,
                                 bool write) {
    std::vector<PictureBar> merged;
    for (std::size_t i = 0; i < bars.size();) {
      std::size_t end = i;
      std::int64_t length = 0;
      while (end < bars.size() && bars[end].length < least && length < least) {
        length += bars[end++].length;
      }
      if (end <= i + 1) {
        merged.push_back(bars[i++]);
        continue;
      }
      PictureBar bar{
          .kind = PictureBar::Kind::kMerged, .length = length, .count = std::uint32_t(end - i)};
      if (write) {
        PassShape sum;
        for (; i < end; ++i) AddTimes(bars[i], sum.times);
        bar.shape = std::uint32_t(picture_.shapes.size());
        picture_.shapes.push_back(std::move(sum));
        picture_.merged_bars += bar.count;
      }
      merged.push_back(bar);
      i = end;
    }
    return merged;
  }
  void AddTimes(const PictureBar& bar, PaintTimes& times) const {
    switch (bar.kind) {
      case PictureBar::Kind::kPass:
      case PictureBar::Kind::kPair:
      case PictureBar::Kind::kMerged:
        for (std::size_t i = 0; i < times.size(); ++i) {
          times[i] += picture_.shapes[bar.shape].times[i];
        }
        return;
      case PictureBar::Kind::kWait:
      case PictureBar::Kind::kTask:
      case PictureBar::Kind::kIdle:
        times[std::size_t(bar.paint)] += bar.length;
        return;
    }
  }

  void MergeBars() {
    const auto count = [&](std::int64_t least) {
      std::size_t bars = 0;
      for (const PictureRank& rank : picture_.ranks) bars += Merged(rank.bars, least, false).size();
      return bars;
    };
    std::int64_t least = 0;
    while (count(least) > limits_.bars && least <= picture_.length) {
      least = std::max(2 * least, 1 + picture_.length / std::int64_t(limits_.bars));
    }
    if (least == 0) return;
    for (PictureRank& rank : picture_.ranks) rank.bars = Merged(rank.bars, least, true);
    DropUnusedShapes();
  }

  void DropUnusedShapes() {
    constexpr std::uint32_t kUnused = ~std::uint32_t{0};
    std::vector<std::uint32_t> place(picture_.shapes.size(), kUnused);
    std::vector<PassShape> used;
    for (PictureRank& rank : picture_.ranks) {
      for (PictureBar& bar : rank.bars) {
        if (bar.kind == PictureBar::Kind::kWait || bar.kind == PictureBar::Kind::kTask ||
            bar.kind == PictureBar::Kind::kIdle) {
          continue;
        }
        std::uint32_t& at = place[bar.shape];
        if (at == kUnused) {
          at = std::uint32_t(used.size());
          used.push_back(std::move(picture_.shapes[bar.shape]));
        }
        bar.shape = at;
      }
    }
    picture_.shapes = std::move(used);
  }

  // Tasks of a stream in a row, less than `gap` apart, are one.
  static std::vector<PictureTask> Joined(const std::vector<PictureTask>& tasks, std::int64_t gap) {
    std::vector<PictureTask> joined;
    for (const PictureTask& task : tasks) {
      if (!joined.empty() && joined.back().stream == task.stream &&
          task.start - (joined.back().start + joined.back().length) < gap) {
        PictureTask& last = joined.back();
        last.length = task.start + task.length - last.start;
        last.count += task.count;
        if (last.label != task.label) last.label = kSeveralLabels;
        if (last.stage != task.stage) last.stage = -1;
        if (last.micro_batch != task.micro_batch) last.micro_batch = -1;
      } else {
        joined.push_back(task);
      }
    }
    return joined;
  }
  void MergeBeside() {
    if (limits_.tasks == 0) return;
    const auto count = [&](std::int64_t gap) {
      std::size_t tasks = 0;
      for (const PictureRank& rank : picture_.ranks) {
        tasks += gap > 0 ? Joined(rank.beside, gap).size() : rank.beside.size();
      }
      return tasks;
    };
    std::int64_t gap = 0;
    while (count(gap) > limits_.tasks && gap <= picture_.length) {
      gap = std::max(2 * gap, 1 + picture_.length / std::int64_t(limits_.tasks));
    }
    if (gap == 0) return;
    for (PictureRank& rank : picture_.ranks) {
      rank.beside = Joined(rank.beside, gap);
      for (const PictureTask& task : rank.beside) {
        if (task.count > 1) picture_.merged_tasks += task.count;
      }
    }
  }

  const SimulatedStep& step_;
  const PictureLimits limits_;
  const std::vector<std::uint32_t> pass_of_;
  StepPicture picture_;
  std::vector<std::pair<std::uint32_t, TaskId>> tasks_;  // pass, task
  std::vector<PictureTask> waits_;                       // within the pass that is being drawn
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> shapes_of_;
  std::size_t shape_tasks_ = 0;
};

}  // namespace

std::string_view Name(Paint paint) {
  switch (paint) {
    case Paint::kForward:
      return "forward";
    case Paint::kBackward:
      return "backward";
    case Paint::kBackwardInput:
      return "input gradient";
    case Paint::kBackwardWeight:
      return "weight gradient";
    case Paint::kRecompute:
      return "recompute";
    case Paint::kTensor:
      return "exposed tensor parallel";
    case Paint::kContext:
      return "exposed context parallel";
    case Paint::kExpert:
      return "exposed expert parallel";
    case Paint::kData:
      return "exposed data parallel";
    case Paint::kPipeline:
      return "bubble";
    case Paint::kOptimizer:
      return "optimizer";
    case Paint::kIdle:
      return "idle";
    case Paint::kHost:
      return "exposed copies to and from the host";
  }
  MILLWRIGHT_CHECK(false);
}

StepPicture PictureOf(const SimulatedStep& step, const PictureLimits& limits) {
  return Painter(step, limits).Draw();
}

}  // namespace millwright
