// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace millwright {
namespace {

constexpr std::uint32_t kNobody = ~std::uint32_t{0};

// One stream's way through its tasks.
struct Cursor {
  std::span<const TaskId> program;
  std::size_t next = 0;
  Seconds free;
  std::uint32_t also_waiting = kNobody;  // next stream that waits for the same task
  TaskId waits_for = kNoTask;
};

std::string Describe(const TaskGraph& graph, TaskId id) {
  const Task& t = graph.task(id);
  return fmt::format("rank {} {} \"{}\" (stage {}, micro-batch {})", t.rank, Name(t.stream),
                     graph.label(id), t.stage, t.micro_batch);
}

// Follows who waits for whom from a stuck stream until one comes round again.
std::string Chain(const TaskGraph& graph, const std::vector<Cursor>& cursors,
                  const std::vector<char>& done) {
  std::size_t at = 0;
  while (cursors[at].waits_for == kNoTask) ++at;
  std::vector<char> seen(cursors.size());
  std::string chain;
  while (!seen[at]) {
    seen[at] = 1;
    const Cursor& c = cursors[at];
    const TaskId own = c.program[c.next];
    chain += fmt::format("{} waits for {}\n", Describe(graph, own), Describe(graph, c.waits_for));
    const Task& awaited = graph.task(c.waits_for);
    MILLWRIGHT_CHECK(!done[c.waits_for]);
    at = std::size_t(awaited.rank) * kStreams + std::size_t(awaited.stream);
    const TaskId head = cursors[at].program[cursors[at].next];
    if (head != c.waits_for) {
      chain += fmt::format("which comes after {}\n", Describe(graph, head));
    }
  }
  chain.pop_back();
  return chain;
}

}  // namespace

// Streams of one rank give and take in order of time; ends before starts at the same moment.
void FindPeaks(const TaskGraph& graph, Timeline& timeline) {
  timeline.peak.assign(std::size_t(graph.ranks()), Bytes(0));
  timeline.peak_task.assign(std::size_t(graph.ranks()), kNoTask);
  struct Change {
    Seconds at;
    double bytes;
    TaskId task;
  };
  std::vector<Change> changes;
  for (int rank = 0; rank < graph.ranks(); ++rank) {
    changes.clear();
    for (int s = 0; s < kStreams; ++s) {
      for (TaskId id : graph.program(rank, static_cast<Stream>(s))) {
        const Task& t = graph.task(id);
        if (t.taken.value > 0) changes.push_back({timeline.start[id], t.taken.value, id});
        if (t.given_back.value > 0) changes.push_back({timeline.end[id], -t.given_back.value, id});
      }
    }
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.at != b.at ? a.at < b.at : a.bytes < b.bytes;
    });
    double held = 0;
    for (const Change& c : changes) {
      held += c.bytes;
      if (held > timeline.peak[std::size_t(rank)].value) {
        timeline.peak[std::size_t(rank)] = Bytes(held);
        timeline.peak_task[std::size_t(rank)] = c.task;
      }
    }
  }
}

Timeline Simulate(const TaskGraph& graph) {
  const std::size_t n = graph.size();
  Timeline timeline;
  timeline.start.resize(n);
  timeline.end.resize(n);
  std::vector<char> done(n);
  std::vector<std::uint32_t> waiting(n, kNobody);  // first stream that waits for a task

  std::vector<Cursor> cursors(std::size_t(graph.ranks()) * kStreams);
  std::vector<std::uint32_t> ready;
  for (int rank = graph.ranks() - 1; rank >= 0; --rank) {
    for (int s = kStreams - 1; s >= 0; --s) {
      const auto at = std::uint32_t(rank * kStreams + s);
      cursors[at].program = graph.program(rank, static_cast<Stream>(s));
      if (!cursors[at].program.empty()) ready.push_back(at);
    }
  }

  std::size_t finished = 0;
  while (!ready.empty()) {
    const std::uint32_t me = ready.back();
    ready.pop_back();
    Cursor& cursor = cursors[me];
    cursor.waits_for = kNoTask;
    while (cursor.next < cursor.program.size()) {
      const TaskId id = cursor.program[cursor.next];
      Seconds start = cursor.free;
      for (TaskId awaited : graph.waits(id)) {
        if (!done[awaited]) {
          cursor.waits_for = awaited;
          break;
        }
        start = std::max(start, timeline.end[awaited]);
      }
      if (cursor.waits_for != kNoTask) {
        cursor.also_waiting = waiting[cursor.waits_for];
        waiting[cursor.waits_for] = me;
        break;
      }
      const Seconds end = start + graph.task(id).duration;
      timeline.start[id] = start;
      timeline.end[id] = end;
      timeline.makespan = std::max(timeline.makespan, end);
      cursor.free = end;
      done[id] = 1;
      ++finished;
      ++cursor.next;
      for (std::uint32_t other = waiting[id]; other != kNobody;) {
        const std::uint32_t following = cursors[other].also_waiting;
        ready.push_back(other);
        other = following;
      }
    }
  }
  if (finished < n) {
    timeline.deadlock = Chain(graph, cursors, done);
    return timeline;
  }
  FindPeaks(graph, timeline);
  return timeline;
}

Seconds RankTime::total_busy() const {
  Seconds sum;
  for (Seconds s : busy) sum += s;
  return sum;
}

Seconds RankTime::total() const {
  Seconds sum = total_busy() + idle;
  for (Seconds s : waiting) sum += s;
  return sum;
}

RankTime TimeOfRank(const TaskGraph& graph, const Timeline& timeline, int rank) {
  RankTime time;
  Seconds now;
  for (TaskId id : graph.program(rank, Stream::kCompute)) {
    const Task& task = graph.task(id);
    const Seconds gap = timeline.start[id] - now;
    if (gap.value > 0) {
      TaskId last = kNoTask;
      for (TaskId awaited : graph.waits(id)) {
        if (last == kNoTask || timeline.end[awaited] > timeline.end[last]) last = awaited;
      }
      if (last == kNoTask) {
        time.idle += gap;
      } else {
        time.waiting[std::size_t(graph.task(last).cause)] += gap;
      }
    }
    time.busy[std::size_t(task.cause)] += task.duration;
    now = timeline.end[id];
  }
  time.idle += timeline.makespan - now;
  return time;
}

}  // namespace millwright
