// SPDX-License-Identifier: Apache-2.0
#include "report/executed_runs_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "report/executed_report.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

std::string SignedPercent(double share) { return Signed(Percent(std::abs(share)), share < 0); }

std::string Sentence(const ErrorSummary& e) {
  return fmt::format("with a median error of {}, 90% within {}, bias {}", Percent(e.median_ape),
                     Percent(e.p90_ape), SignedPercent(e.bias));
}

Json ToJson(const ErrorSummary& e) {
  return {{"n", e.n}, {"median_ape", e.median_ape}, {"p90_ape", e.p90_ape}, {"bias", e.bias}};
}

// Predicted over measured, less one; null where one of them is missing.
Json ErrorJson(Seconds predicted, Seconds measured) {
  if (predicted.value <= 0 || measured.value <= 0) return nullptr;
  return predicted / measured - 1;
}

}  // namespace

std::string ExecutedRunsText(const ExecutedRunsReport& report, const Style& style) {
  std::string sentence =
      fmt::format("{} predicted {} (negative: predicted too fast).",
                  report.steps.n == 1 ? "1 executed step is"
                                      : fmt::format("{} executed steps are", report.steps.n),
                  Sentence(report.steps));
  if (report.of_processor.n > 0) {
    sentence += fmt::format(" Of the time for which a rank had a processor: {}.",
                            Sentence(report.of_processor));
  }
  TextTable runs;
  runs.Column("Executed run", Align::kLeft);
  runs.Column("plan", Align::kLeft);
  runs.Column("predicted");
  runs.Column("measured");
  runs.Column("error");
  runs.Column("processor");
  runs.Column("error");
  for (const ExecutedRunResult& one : report.results) {
    const ExecutedComparison& c = one.comparison;
    const bool processor = one.has_processor();
    runs.Row({one.file,
              fmt::format("{} {} {}", one.run.job.model.name, BriefName(one.run.job.parallel),
                          Name(one.run.type)),
              FormatSeconds(c.predicted), FormatSeconds(c.measured), SignedPercent(one.error()),
              processor ? FormatSeconds(c.processor) : "",
              processor ? SignedPercent(one.error_of_processor()) : ""});
  }
  constexpr std::size_t kMostShown = 15;
  TextTable operators;
  operators.Column("Operator, furthest off first", Align::kLeft);
  operators.Column("", Align::kLeft);
  for (const char* title : {"runs", "calls", "predicted", "measured", "error", "processor"}) {
    operators.Column(title);
  }
  for (std::size_t i = 0; i < report.operators.size() && i < kMostShown; ++i) {
    const OperatorOverRuns& one = report.operators[i];
    operators.Row({one.name, one.backward ? "backward" : "forward", FormatInteger(one.runs),
                   FormatInteger(one.calls), FormatSeconds(one.predicted),
                   FormatSeconds(one.measured), ExecutedError(one.predicted, one.measured),
                   FormatSeconds(one.processor)});
  }
  return Bold(Wrapped(sentence, style.width, 0), style) + "\n\n" + runs.Text(style) + "\n" +
         operators.Text(style);
}

std::string ExecutedRunsJson(const ExecutedRunsReport& report) {
  Json operators = Json::array(), rows = Json::array();
  for (const OperatorOverRuns& one : report.operators) {
    operators.push_back({{"operator", one.name},
                         {"pass", one.backward ? "backward" : "forward"},
                         {"runs", one.runs},
                         {"calls", one.calls},
                         {"predicted_s", one.predicted.value},
                         {"measured_s", one.measured.value},
                         {"error", ErrorJson(one.predicted, one.measured)},
                         {"processor_s", one.processor.value}});
  }
  for (const ExecutedRunResult& one : report.results) {
    const ExecutedComparison& c = one.comparison;
    Json of_operators = Json::array();
    for (const ComparedOperator& op : c.operators) {
      of_operators.push_back({{"operator", op.name},
                              {"pass", op.backward ? "backward" : "forward"},
                              {"calls", op.calls},
                              {"predicted_s", op.predicted.value},
                              {"measured_s", op.measured.value},
                              {"processor_s", op.processor.value}});
    }
    rows.push_back({{"file", one.file},
                    {"model", one.run.job.model.name},
                    {"plan", BriefName(one.run.job.parallel)},
                    {"ranks", one.run.measured.ranks},
                    {"backend", std::string(Name(one.run.backend))},
                    {"dtype", std::string(Name(one.run.type))},
                    {"machine", one.run.machine},
                    {"predicted_s", c.predicted.value},
                    {"measured_s", c.measured.value},
                    {"error", one.error()},
                    {"processor_s", one.has_processor() ? Json(c.processor.value) : Json(nullptr)},
                    {"error_of_processor",
                     one.has_processor() ? Json(one.error_of_processor()) : Json(nullptr)},
                    {"operators", std::move(of_operators)}});
  }
  const Json answer{{"overall", ToJson(report.steps)},
                    {"of_processor", ToJson(report.of_processor)},
                    {"operators", std::move(operators)},
                    {"rows", std::move(rows)},
                    {"warnings", report.warnings}};
  return answer.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace millwright
