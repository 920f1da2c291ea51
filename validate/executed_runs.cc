// SPDX-License-Identifier: Apache-2.0
#include "validate/executed_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/mistakes.h"

namespace millwright {
namespace {

// Does `work`; what is wrong with the input is noted, and not thrown.
template <class Work>
void Gather(std::string& mistakes, const Work& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    mistakes += (mistakes.empty() ? "" : "\n") + std::string(error.what());
  }
}

}  // namespace

ExecutedRunsReport CompareWithExecuted(std::span<const std::string> files,
                                       const std::optional<std::string>& calibration) {
  std::string mistakes;
  ExecutedRunsReport report;
  for (const std::string& file : files) {
    Gather(mistakes, [&] {
      report.results.push_back({file, ParseExecutedRun(file, ReadTextFile(file)), {}});
    });
  }
  // A step counts once.
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const std::string text = WriteExecutedRun(report.results[i].run);
    for (std::size_t other = 0; other < i; ++other) {
      if (WriteExecutedRun(report.results[other].run) != text) continue;
      Gather(mistakes, [&] {
        throw ConfigError(fmt::format("{}: holds the same step as {}; expected each step once",
                                      report.results[i].file, report.results[other].file));
      });
      break;
    }
  }
  // Of each file of curves, read once.
  std::map<std::string, GpuCurves> read;
  const auto curves_of = [&](const ExecutedRunResult& result) -> std::optional<std::string> {
    if (result.run.on_gpus()) return std::nullopt;
    const std::string& own = result.run.job.cluster.gpu.calibration_file;
    if (!calibration && own.empty()) {
      throw ConfigError(
          fmt::format("{}: expected --calibration, or a calibration file in its job, got neither",
                      result.file));
    }
    return calibration.value_or(own);
  };
  for (ExecutedRunResult& result : report.results) {
    Gather(mistakes, [&] {
      const std::optional<std::string> file = curves_of(result);
      if (file && read.count(*file) == 0) {
        read[*file] = ParseCurves(*file, ReadTextFile(*file));
      }
    });
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
  for (ExecutedRunResult& result : report.results) {
    Gather(mistakes, [&] {
      const std::optional<std::string> file = curves_of(result);
      const Workload workload = ExecutableWorkload(result.run.job, std::uint64_t(result.run.seed));
      const std::optional<GpuCurves> curves = file ? std::optional(read.at(*file)) : std::nullopt;
      if (curves && !calibration && curves->provenance != result.run.calibration) {
        report.warnings.push_back(fmt::format(
            "{}: {} holds other curves now than when the step was executed", result.file, *file));
      }
      if (curves && !SameName(curves->gpu, result.run.job.cluster.gpu.name)) {
        report.warnings.push_back(
            fmt::format("{}: was executed on {}, and {} is of {}", result.file,
                        Printable(result.run.job.cluster.gpu.name, kMostNameShown), *file,
                        Printable(curves->gpu, kMostNameShown)));
      }
      result.comparison = PredictRun(result.run, workload, curves, file.value_or("")).comparison;
    });
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
  Summarise(report);
  return report;
}

void Summarise(ExecutedRunsReport& report) {
  std::vector<double> errors, of_processor;
  std::map<std::pair<std::string, bool>, OperatorOverRuns> operators;
  for (const ExecutedRunResult& result : report.results) {
    errors.push_back(result.error());
    if (result.has_processor()) of_processor.push_back(result.error_of_processor());
    for (const ComparedOperator& one : result.comparison.operators) {
      OperatorOverRuns& sum = operators[{one.name, one.backward}];
      sum.name = one.name;
      sum.backward = one.backward;
      ++sum.runs;
      sum.calls += one.calls;
      sum.predicted += one.predicted;
      sum.measured += one.measured;
      sum.processor += one.processor;
    }
  }
  report.steps = Summarise(errors);
  report.of_processor = Summarise(of_processor);
  report.operators.clear();
  for (auto& [key, sum] : operators) report.operators.push_back(std::move(sum));
  const auto off = [](const OperatorOverRuns& one) {
    return std::abs((one.predicted - one.measured).value);
  };
  std::stable_sort(
      report.operators.begin(), report.operators.end(),
      [&](const OperatorOverRuns& a, const OperatorOverRuns& b) { return off(a) > off(b); });
}

}  // namespace millwright
