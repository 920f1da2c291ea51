// SPDX-License-Identifier: Apache-2.0
#include "report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "report/estimate_text.h"
#include "report/pass_spans.h"
#include "sim/schedule_file.h"

namespace millwright {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kPassThread = 0;  // streams follow

// With its quotes.  Names come from files, and files may hold anything.
std::string Quoted(std::string_view text) {
  using Json = nlohmann::json;
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Starts and ends are rounded, not durations, so that slices of a thread never overlap.
std::int64_t Nanoseconds(Seconds seconds) { return std::llround(seconds.value * 1e9); }
std::string Microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

class TraceWriter {
 public:
  TraceWriter(const Job& job, const Simulation& simulation, FileWriter& out)
      : step_(simulation.step), out_(out) {
    out_.Write(fmt::format(
        "{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {{\"program\": \"millwright simulate\", "
        "\"model\": {}, \"cluster\": {}, \"plan\": {}, \"schedule\": {}}},\n\"traceEvents\": [",
        Quoted(job.model.name), Quoted(job.cluster.name), Quoted(BriefName(simulation.plan())),
        Quoted(simulation.schedule)));
    for (TaskId id = 0; id < step_.graph.size(); ++id) {
      const std::size_t label = step_.graph.task(id).label;
      if (label >= labels_.size()) labels_.resize(label + 1);
      if (labels_[label].empty()) labels_[label] = Quoted(step_.graph.label(id));
    }
  }

  void Rank(int rank, const std::vector<PassSpan>& passes) {
    Names(rank);
    Passes(rank, passes);
    for (int s = 0; s < kStreams; ++s) Tasks(rank, static_cast<Stream>(s));
    Memory(rank);
    LinkLoad(rank);
  }

  void End() { out_.Write("\n]}\n"); }

 private:
  template <class... T>
  void Event(fmt::format_string<T...> form, T&&... values) {
    line_ = first_ ? "\n{" : ",\n{";
    first_ = false;
    fmt::format_to(std::back_inserter(line_), form, std::forward<T>(values)...);
    line_ += '}';
    out_.Write(line_);
  }

  void Names(int rank) {
    const PipelineSchedule& schedule = step_.spec.schedule;
    std::vector<std::string> stages;
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      if (schedule.rank_of_stage[std::size_t(stage)] == rank) {
        stages.push_back(fmt::format("{}", stage));
      }
    }
    constexpr std::size_t kMostStages = 8;
    std::string name = fmt::format("pipeline rank {}, stage{} {}", rank,
                                   stages.size() == 1 ? "" : "s", stages.front());
    for (std::size_t i = 1; i < std::min(stages.size(), kMostStages); ++i) name += ", " + stages[i];
    if (stages.size() > kMostStages) name += ", ...";
    Event(R"("ph": "M", "name": "process_name", "pid": {}, "args": {{"name": {}}})", rank,
          Quoted(name));
    Event(R"("ph": "M", "name": "process_sort_index", "pid": {}, "args": {{"sort_index": {}}})",
          rank, rank);
    for (int thread = 0; thread <= kStreams; ++thread) {
      const std::string_view title =
          thread == kPassThread ? "passes" : Name(static_cast<Stream>(thread - 1));
      if (thread != kPassThread &&
          step_.graph.program(rank, static_cast<Stream>(thread - 1)).empty()) {
        continue;
      }
      Event(R"("ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": {}}})",
            rank, thread, Quoted(title));
      Event(
          R"("ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, "args": {{"sort_index": {}}})",
          rank, thread, thread);
    }
  }

  void Passes(int rank, const std::vector<PassSpan>& spans) {
    const std::vector<Pass>& order = step_.spec.schedule.orders[std::size_t(rank)];
    for (std::size_t i = 0; i < order.size(); ++i) {
      const PassSpan& span = spans[i];
      std::string name = PassText(order[i]);
      if (order[i].overlaps_next) {
        ++i;
        name = fmt::format("{}&{}", name, PassText(order[i]));
      }
      const std::int64_t start = Nanoseconds(span.start), end = Nanoseconds(span.end);
      if (end == start) continue;
      Event(R"("ph": "X", "name": "{}", "cat": "pass", "pid": {}, "tid": {}, "ts": {}, "dur": {})",
            name, rank, kPassThread, Microseconds(start), Microseconds(end - start));
    }
  }

  void Tasks(int rank, Stream stream) {
    for (TaskId id : step_.graph.program(rank, stream)) {
      const Task& task = step_.graph.task(id);
      const std::int64_t start = Nanoseconds(step_.timeline.start[id]);
      const std::int64_t end = Nanoseconds(step_.timeline.end[id]);
      if (end == start) continue;
      std::string place = fmt::format("\"stage\": {}", task.stage);
      if (task.micro_batch >= 0) place += fmt::format(", \"micro_batch\": {}", task.micro_batch);
      Event(
          R"("ph": "X", "name": {}, "cat": "{}", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}})",
          labels_[task.label], Name(task.cause), rank, static_cast<int>(stream) + 1,
          Microseconds(start), Microseconds(end - start), place);
    }
  }

  // A value that tasks raise and lower.
  struct Change {
    std::int64_t at;
    double by;
  };
  void Counter(int rank, const char* name, const char* unit, double base,
               std::vector<Change> changes) {
    std::stable_sort(changes.begin(), changes.end(),
                     [](const Change& a, const Change& b) { return a.at < b.at; });
    const auto count = [&](std::int64_t at, double value) {
      Event(R"("ph": "C", "name": "{}", "pid": {}, "ts": {}, "args": {{"{}": {:.6g}}})", name, rank,
            Microseconds(at), unit, value);
    };
    double value = base;
    if (changes.empty() || changes.front().at > 0) count(0, value);
    for (std::size_t i = 0; i < changes.size(); ++i) {
      value += changes[i].by;
      const bool last_of_moment = i + 1 == changes.size() || changes[i + 1].at > changes[i].at;
      if (last_of_moment) count(changes[i].at, value);
    }
    // Else the viewer draws no end of the last value.
    count(Nanoseconds(step_.step()), value);
  }

  void Memory(int rank) {
    std::vector<Change> changes;
    for (int s = 0; s < kStreams; ++s) {
      for (TaskId id : step_.graph.program(rank, static_cast<Stream>(s))) {
        const Task& task = step_.graph.task(id);
        if (task.taken.value > 0) {
          changes.push_back({Nanoseconds(step_.timeline.start[id]), task.taken.value / kGiB});
        }
        if (task.given_back.value > 0) {
          changes.push_back({Nanoseconds(step_.timeline.end[id]), -task.given_back.value / kGiB});
        }
      }
    }
    Counter(rank, "memory in use", "GiB", step_.fixed[std::size_t(rank)].total().value / kGiB,
            std::move(changes));
  }

  // What the rank's communication puts on its links, each spread over the time it takes.
  void LinkLoad(int rank) {
    std::vector<Change> changes;
    for (int s = 0; s < kStreams; ++s) {
      for (TaskId id : step_.graph.program(rank, static_cast<Stream>(s))) {
        const std::uint16_t communication = step_.graph.task(id).communication;
        if (communication == kNoCommunication) continue;
        const Communication& c = step_.graph.communications()[communication];
        const std::int64_t start = Nanoseconds(step_.timeline.start[id]);
        const std::int64_t end = Nanoseconds(step_.timeline.end[id]);
        if (end == start) continue;
        // Bytes a nanosecond are GB/s.
        const double rate =
            RingBytesSentFactor(c.kind, c.ranks) * c.payload.value / double(end - start);
        changes.push_back({start, rate});
        changes.push_back({end, -rate});
      }
    }
    if (!changes.empty()) Counter(rank, "sent over links", "GB/s", 0, std::move(changes));
  }

  const SimulatedStep& step_;
  FileWriter& out_;
  std::vector<std::string> labels_;
  std::string line_;
  bool first_ = true;
};

}  // namespace

void WriteTrace(const Job& job, const Simulation& simulation, const TraceOptions& options,
                FileWriter& out) {
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    for (int rank = 0; rank < simulation.step.graph.ranks(); ++rank) ranks.push_back(rank);
  }
  const std::vector<std::vector<PassSpan>> passes = PassSpansOf(simulation.step);
  TraceWriter writer(job, simulation, out);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (options.progress) options.progress(double(i) / double(ranks.size()));
    writer.Rank(ranks[i], passes[std::size_t(ranks[i])]);
  }
  writer.End();
}

}  // namespace millwright
