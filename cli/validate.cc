// SPDX-License-Identifier: Apache-2.0
//
// millwright validate: how far off the predictions are, against what others measured.

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/html_flag.h"
#include "cli/progress.h"
#include "cli/validate_ops.h"
#include "planner/parallel_work.h"
#include "report/chosen_text.h"
#include "report/executed_runs_report.h"
#include "report/runs_report.h"
#include "report/validation_page.h"
#include "validate/chosen_layouts.h"
#include "validate/executed_runs.h"
#include "validate/fit_end_to_end.h"
#include "validate/runs.h"

namespace millwright {

int ValidateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line(
      "validate --runs FILE | --executed FILE | --ops FOLDER|FILE [OPTIONS]",
      "How far off predictions are, against measured training steps (--runs: per "
      "source, by kind of run, and the runs that are furthest off), steps that `run` executed "
      "(--executed: each, and the operators that are furthest off) or single "
      "operations (--ops: by table, GPU and dtype, and the worst rows). Exit code 1 "
      "where the median error of steps is above --max-error, or none could be compared.");
  std::optional<std::string> runs, html;
  OpsFlags ops;
  std::vector<std::string> executed;
  std::optional<double> max_error;
  std::optional<std::int64_t> cross_validate;
  bool json = false, against_best = false;
  line.Section("Measurements");
  line.Text("--runs", "FILE", runs, "a JSON array of training steps (README: validate)");
  line.Texts("--executed", "FILE", executed,
             "steps that `run --compare --record` wrote, predicted again by --calibration or, "
             "without it, by the curves that they were compared by");
  line.Int("--cross-validate", cross_validate, {.min = 2, .max = 100},
           "also fit the end-to-end parameters in so many parts by group, and predict each part by "
           "the fit to the others (half a minute for 700 runs in 5 parts)");
  line.Flag("--against-best", against_best,
            "instead set the fastest published layout of each question beside the planner's best "
            "(minutes for 700 runs)");
  ops.AddTo(line);
  line.Section("Output");
  line.Number("--max-error", max_error, {.min = 0, .max = 1000},
              "median step-time error, in percent, above which the exit code is 1");
  line.Text("--html", "FILE", html, "write predicted against measured as a page for a browser");
  line.Flag("--json", json, "the answer as JSON");
  line.Example("validate --runs my_runs.json --html validation.html");
  line.Example("validate --runs my_runs.json --calibration ours.json");
  line.Example("validate --executed run.json --calibration cpu.json");
  line.Example("validate --ops ../shared/data/ops");
  line.Example("validate --ops all_reduce.txt --ops gemm.csv --json");
  if (!line.Parse(args, console.out)) return 0;
  const int kinds = int(runs.has_value()) + int(!executed.empty()) + int(ops.given());
  if (kinds == 0) {
    line.Missing("--runs", "missing; give a file of measured training steps, --executed or --ops");
  }
  if (kinds > 1) {
    line.Problem(ops.given() ? "--ops" : "--executed",
                 fmt::format("goes without {}: one kind at a time",
                             ops.given() && !executed.empty() ? "--executed" : "--runs"));
  }
  if (!ops.given()) ops.Refuse(line);
  if (ops.calibration && (cross_validate || against_best)) {
    line.Problem("--calibration", "goes without --cross-validate and --against-best");
  }
  if (!runs && kinds > 0) {
    if (max_error && ops.given()) line.Problem("--max-error", "goes with --runs or --executed");
    if (html) line.Problem("--html", "goes with --runs");
    if (cross_validate) line.Problem("--cross-validate", "goes with --runs");
    if (against_best) line.Problem("--against-best", "goes with --runs");
  }
  if (against_best) {
    constexpr const char* kAlone = "goes without --against-best, which compares no steps";
    if (cross_validate) line.Problem("--cross-validate", kAlone);
    if (max_error) line.Problem("--max-error", kAlone);
    if (html) line.Problem("--html", kAlone);
  }
  CheckHtml(line, html);
  line.ThrowIfProblems();
  if (ops.given()) return ValidateMeasuredOps(ops, json, console);
  const auto above = [&](const ErrorSummary& steps) {
    // No comparison is no good comparison.
    if (steps.n == 0) return 1;
    constexpr double kPercent = 100;
    return max_error && kPercent * steps.median_ape > *max_error ? 1 : 0;
  };
  if (!executed.empty()) {
    const ExecutedRunsReport report = CompareWithExecuted(executed, ops.calibration);
    for (const std::string& warning : report.warnings) {
      console.err << fmt::format("millwright: warning: {}\n", warning);
    }
    console.out << (json ? ExecutedRunsJson(report) : ExecutedRunsText(report, console.style));
    return above(report.steps);
  }
  std::optional<FileWriter> page;
  if (html) page.emplace(*html);

  const PublishedRuns published = ReadPublishedRuns(*runs);
  for (const std::string& warning : published.warnings) {
    console.err << fmt::format("millwright: warning: {}\n", warning);
  }
  const RunSet set(published.runs, ops.calibration.value_or(""));
  if (against_best) {
    std::vector<ChosenLayout> layouts;
    {
      Progress progress(console);
      layouts = AgainstBest(set, Cores(), [&](double share) { progress.Show("searching", share); });
    }
    console.out << (json ? ChosenJson(set, layouts) : ChosenText(set, layouts, console.style));
    return layouts.empty() ? 1 : 0;
  }
  const RunsReport report = CompareWithRuns(set);
  if (cross_validate) {
    const CrossValidation cross = CrossValidate(set, int(*cross_validate));
    console.out << (json ? CrossValidationJson(report, cross)
                         : RunsText(report, console.style) + '\n' +
                               CrossValidationText(cross, console.style));
  } else {
    console.out << (json ? RunsJson(report) : RunsText(report, console.style));
  }
  if (page) {
    WriteValidationPage(report, *page);
    page->Commit();
    SayWritten(*page, console);
  }
  return above(report.overall);
}

}  // namespace millwright
