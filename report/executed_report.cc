// SPDX-License-Identifier: Apache-2.0
#include "report/executed_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/unit_text.h"
#include "report/estimate_text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

// Starts and ends are rounded, not durations, so that slices of a thread never overlap.
std::int64_t Nanoseconds(Seconds seconds) { return std::llround(seconds.value * 1e9); }
std::string Microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class TraceOfBoth {
 public:
  explicit TraceOfBoth(FileWriter& out) : out_(out) {}

  void Process(int pid, const std::string& name) {
    Event(fmt::format(R"("ph": "M", "name": "process_name", "pid": {}, "args": {{"name": {}}})",
                      pid, Quoted(name)));
    Event(fmt::format(
        R"("ph": "M", "name": "process_sort_index", "pid": {}, "args": {{"sort_index": {}}})", pid,
        pid));
    for (int s = 0; s < kStreams; ++s) {
      Event(fmt::format(
          R"("ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": {}}})", pid,
          s, Quoted(std::string(Name(static_cast<Stream>(s))))));
    }
  }
  void Slice(int pid, Stream stream, const std::string& name, Seconds from, Seconds to,
             int micro_batch) {
    const std::int64_t start = Nanoseconds(from), end = Nanoseconds(to);
    if (end <= start) return;
    Event(fmt::format(
        R"("ph": "X", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"micro_batch": {}}})",
        Quoted(name), pid, static_cast<int>(stream), Microseconds(start), Microseconds(end - start),
        micro_batch));
  }

 private:
  void Event(const std::string& fields) {
    out_.Write((first_ ? "\n{" : ",\n{") + fields + "}");
    first_ = false;
  }

  FileWriter& out_;
  bool first_ = true;
};

}  // namespace

std::string ExecutedError(Seconds predicted, Seconds measured) {
  if (predicted.value <= 0) return "not charged";
  if (measured.value <= 0) return "not executed";
  const double error = predicted / measured - 1;
  return Signed(Percent(std::abs(error)), error < 0);
}

std::string ExecutedComparisonText(const ExecutedComparison& comparison, const Style& style) {
  // A GPU's rank has a processor for nothing but asking.
  const bool by_processor = comparison.processor.value > 0;
  std::string sentence = fmt::format(
      "Simulated {}, executed {}: {}.", FormatSeconds(comparison.predicted),
      FormatSeconds(comparison.measured), ExecutedError(comparison.predicted, comparison.measured));
  if (by_processor) {
    sentence += fmt::format(" A rank had a processor for {} of it: {}.",
                            FormatSeconds(comparison.processor),
                            ExecutedError(comparison.predicted, comparison.processor));
  }
  const auto add_titles = [&](TextTable& table) {
    for (const char* title : {"predicted", "measured", "error"}) table.Column(title);
    if (by_processor) table.Column("processor");
  };
  const auto add_times = [&](std::vector<std::string> cells, const auto& one) {
    cells.insert(cells.end(), {FormatSeconds(one.predicted), FormatSeconds(one.measured),
                               ExecutedError(one.predicted, one.measured)});
    if (by_processor) cells.push_back(FormatSeconds(one.processor));
    return cells;
  };
  TextTable streams;
  streams.Column("Stream, mean of the ranks", Align::kLeft);
  add_titles(streams);
  for (const ComparedStream& one : comparison.streams) streams.Row(add_times({one.name}, one));
  streams.Row(add_times({"step"}, comparison));
  TextTable operators;
  operators.Column("Operator, all ranks", Align::kLeft);
  operators.Column("", Align::kLeft);
  operators.Column("calls");
  add_titles(operators);
  for (const ComparedOperator& one : comparison.operators) {
    operators.Row(add_times(
        {one.name, one.backward ? "backward" : "forward", FormatInteger(one.calls)}, one));
  }
  return Bold(Wrapped(sentence, style.width, 0), style) + "\n\n" + streams.Text(style) + "\n" +
         operators.Text(style);
}

void WriteExecutedTrace(const Job& job, const SimulatedStep& simulated,
                        const RecordedStep& executed, FileWriter& out) {
  out.Write(
      fmt::format("{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {{\"program\": \"millwright "
                  "run\", \"model\": "
                  "{}, \"plan\": {}}},\n\"traceEvents\": [",
                  Quoted(job.model.name), Quoted(BriefName(job.parallel))));
  TraceOfBoth trace(out);
  for (std::size_t rank = 0; rank < executed.ranks.size(); ++rank) {
    const int simulated_pid = 2 * int(rank), executed_pid = simulated_pid + 1;
    trace.Process(simulated_pid, fmt::format("simulated rank {}", rank));
    // Its pipeline rank, which stands for all of its plane.
    const int pipeline = PlaceOf(job.parallel, int(rank)).pipeline;
    for (int s = 0; s < kStreams; ++s) {
      for (TaskId id : simulated.graph.program(pipeline, static_cast<Stream>(s))) {
        trace.Slice(simulated_pid, static_cast<Stream>(s), std::string(simulated.graph.label(id)),
                    simulated.timeline.start[id], simulated.timeline.end[id],
                    simulated.graph.task(id).micro_batch);
      }
    }
    trace.Process(executed_pid, fmt::format("executed rank {}", rank));
    for (const RecordedOperator& op : executed.ranks[rank]) {
      trace.Slice(executed_pid, op.stream, op.name, op.start, op.end, op.micro_batch);
    }
  }
  out.Write("\n]}\n");
}

}  // namespace millwright
