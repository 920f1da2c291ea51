// SPDX-License-Identifier: Apache-2.0
#include "report/simulate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "report/full_text.h"
#include "report/pass_spans.h"
#include "report/schedule_text.h"

namespace millwright {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string Figure(Bytes bytes) { return fmt::format("{:.1f}", bytes.value / kGiB); }

// "0.3% less", "1.2% more", "the same": of the estimate against the simulation.
std::string DifferenceText(double share) {
  constexpr double kLeast = 0.0005;  // what one decimal of a percentage shows
  if (std::abs(share) < kLeast) return "the same";
  return fmt::format("{} {}", Percent(std::abs(share)), share < 0 ? "less" : "more");
}

std::string MicroBatches(std::int64_t count) {
  return fmt::format("{} micro-batch{}", FormatInteger(count), count == 1 ? "" : "es");
}

// What a rank spent on a cause: its own time and what it waited.
Seconds Spent(const RankTime& time, Cause cause) {
  return time.busy[std::size_t(cause)] + time.waiting[std::size_t(cause)];
}

struct Row {
  int first, last;
  std::vector<std::string> cells;
};

// The rows to show of many: evenly over the ranks, and those that hold `wanted`.
std::set<std::size_t> Chosen(const std::vector<Row>& rows, std::initializer_list<int> wanted) {
  constexpr std::size_t kMost = 16;
  std::set<std::size_t> chosen;
  const std::size_t even = std::min(rows.size(), kMost);
  for (std::size_t i = 0; i < even; ++i) {
    chosen.insert(even == 1 ? 0 : i * (rows.size() - 1) / (even - 1));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int rank : wanted) {
      if (rows[i].first <= rank && rank <= rows[i].last) chosen.insert(i);
    }
  }
  return chosen;
}

std::string PlanLine(const Simulation& s) {
  return fmt::format("{}, {} of {}", BriefName(s.plan()), MicroBatches(s.estimate.micro_batches),
                     Counted(s.plan().micro_batch_size, "sequence"));
}

}  // namespace

std::string SimulationSentence(const Simulation& s, const GpuSpec& gpu) {
  const std::string estimate =
      s.estimate_is_of_it()
          ? fmt::format("estimate {}, {}", PerStep(s.estimate.step), DifferenceText(s.difference()))
          : fmt::format("estimate as {} {}, {}", s.estimated_schedule, PerStep(s.estimate.step),
                        DifferenceText(s.difference()));
  const std::string speed = fmt::format(
      "{} tokens/s/GPU, {} MFU", FormatRate(s.tokens_per_second_per_gpu()), Percent(s.mfu()));
  const std::string rank = s.step.peak.size() == 1
                               ? std::string("each GPU")
                               : fmt::format("rank {}, the fullest,", s.step.fullest());
  if (s.fits()) {
    return fmt::format("Simulated step {} under {} ({}), {}; {} peaks at {} of {}.",
                       PerStep(s.step.step()), s.schedule, estimate, speed, rank, Figure(s.peak()),
                       GiB(s.estimate.capacity));
  }
  return fmt::format(
      "Does not fit: {}. If the memory were there, the simulated step is {} under {} ({}), {}.",
      s.peak() > s.estimate.capacity
          ? fmt::format("{} needs {}, {} more than {}'s {}", rank, GiB(s.peak()),
                        GiB(s.peak() - s.estimate.capacity), gpu.name, GiB(s.estimate.capacity))
          : HostShortage(s.estimate),
      PerStep(s.step.step()), s.schedule, estimate, speed);
}

std::string RankTable(const Simulation& s, const Style& style) {
  struct Column {
    const char* title;
    Cause cause;
  };
  constexpr Column kColumns[] = {
      {"compute", Cause::kCompute},   {"recompute", Cause::kRecompute},
      {"tp", Cause::kTensor},         {"cp", Cause::kContext},
      {"ep", Cause::kExpert},         {"dp", Cause::kData},
      {"host", Cause::kHost},         {"optimizer", Cause::kOptimizer},
      {"pipeline", Cause::kPipeline},
  };
  std::vector<Row> rows;
  for (int rank = 0; rank < int(s.step.ranks.size()); ++rank) {
    const RankTime& time = s.step.ranks[std::size_t(rank)];
    std::vector<std::string> cells;
    for (const Column& column : kColumns) cells.push_back(PerStep(Spent(time, column.cause)));
    cells.push_back(PerStep(time.idle));
    cells.push_back(Percent(s.bubble_share(rank)));
    cells.push_back(GiB(s.step.peak[std::size_t(rank)]));
    if (!rows.empty() && rows.back().cells == cells) {
      rows.back().last = rank;
    } else {
      rows.push_back({rank, rank, std::move(cells)});
    }
  }
  TextTable table;
  table.Column("Rank", Align::kLeft);
  for (const Column& column : kColumns) table.Column(column.title);
  for (const char* title : {"idle", "bubble", "peak"}) table.Column(title);
  const std::set<std::size_t> chosen = Chosen(rows, {s.step.fullest(), s.step.slowest()});
  for (std::size_t i : chosen) {
    std::vector<std::string> cells{rows[i].first == rows[i].last
                                       ? fmt::format("  {}", rows[i].first)
                                       : fmt::format("  {}-{}", rows[i].first, rows[i].last)};
    cells.insert(cells.end(), rows[i].cells.begin(), rows[i].cells.end());
    table.Row(std::move(cells));
  }
  for (const Column& column : kColumns) table.DropIfAll(column.title, "-");
  table.DropIfAll("idle", "-");
  std::string text = table.Text(style);
  if (chosen.size() < rows.size()) {
    text +=
        fmt::format("  ({} of {} different ranks; --json has all)\n", chosen.size(), rows.size());
  }
  return text +
         Wrapped(
             "(Waiting is under what is waited for; pipeline: for other stages, transfers "
             "included; idle: after the rank's last task; bubble: pipeline and idle.)",
             style.width, 2) +
         '\n';
}

std::string SimulatedGantt(const Simulation& s, const Style& style) {
  constexpr int kMostRanks = 16;
  constexpr std::size_t kMostDrawn = 200;  // a rank: half a column each
  const PipelineSchedule& schedule = s.step.spec.schedule;
  if (schedule.pipeline == 1) return {};
  std::size_t most = 0;
  for (const auto& order : schedule.orders) most = std::max(most, order.size());
  if (schedule.pipeline > kMostRanks || most > kMostDrawn) {
    return Wrapped(fmt::format("(Not drawn here: {} ranks with {} passes each are too many for a "
                               "terminal; --trace FILE writes them for Perfetto.)",
                               schedule.pipeline, FormatInteger(std::int64_t(most))),
                   style.width, 0) +
           '\n';
  }
  ScheduleTiming timing;
  timing.makespan = s.step.step();
  timing.passes = PassSpansOf(s.step);
  return ScheduleGantt(schedule, timing, style.width) +
         Wrapped(ScheduleLegend(schedule), style.width, 0) + '\n';
}

std::string SimulationText(const Job& job, const Simulation& s, const Style& style) {
  std::string text =
      Bold(Wrapped(SimulationSentence(s, job.cluster.gpu), style.width, 0), style) + "\n\n";
  text += QuestionText(job, style) + '\n';
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("", Align::kLeft);
  table.Row({"Plan", PlanLine(s)});
  const std::int64_t alike = job.cluster.gpus() / s.plan().pipeline;
  const std::string on = fmt::format("{} on {}", Counted(std::int64_t(s.step.graph.size()), "task"),
                                     Counted(s.plan().pipeline, "pipeline rank"));
  if (s.full) {
    table.Row({"Simulated",
               fmt::format("{}, for each of {} GPUs at a place in the pipeline; below: GPU {} and "
                           "those at its place in the other stages",
                           on, FormatInteger(alike), s.full->slowest)});
  } else {
    table.Row(
        {"Simulated", fmt::format("{}, {}standing for {}", on,
                                  s.plan().pipeline == 1 ? "" : "each ", Counted(alike, "GPU"))});
  }
  table.Row({"Bubble",
             fmt::format("{} of the step, on average over the ranks", Percent(s.bubble_share()))});
  text += table.Text(style) + '\n';
  if (s.full) text += FullReportText(*s.full, style) + '\n';
  text += RankTable(s, style);
  if (const std::string gantt = SimulatedGantt(s, style); !gantt.empty()) text += '\n' + gantt;
  return text;
}

std::string CannotRunText(const Job& job, const Rejection& rejection, const Style& style) {
  return Bold(Wrapped(fmt::format("{} cannot run: {}.", BriefName(job.parallel), rejection.detail),
                      style.width, 0),
              style) +
         "\n\n" + QuestionText(job, style);
}

namespace {

// The rows of which there is no simulation, each with its reason.
std::string Reasons(const Comparison& comparison, const Style& style) {
  std::string text;
  for (const ComparedPlan& row : comparison.rows) {
    if (row.simulation) continue;
    if (text.empty()) text = "\nNot simulated\n";
    std::string_view rest = row.why_not;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      text += Wrapped(fmt::format("{}: {}", row.name, line), style.width, 2) + '\n';
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    }
  }
  return text;
}

std::string FitsText(const Simulation& s) {
  if (s.fits()) return "yes";
  return s.peak() > s.estimate.capacity ? "no" : "no: hosts";
}

std::string Slower(const Comparison& comparison, const ComparedPlan& row) {
  constexpr double kRounding = 1e-9;
  const double share = comparison.Slower(row);
  if (std::abs(share) < kRounding) return {};
  return Signed(Percent(std::abs(share)), share < 0);
}

TextTable AsText(const ComparisonTable& table) {
  TextTable text;
  for (std::size_t i = 0; i < table.titles.size(); ++i) {
    text.Column(table.titles[i], i == 0 ? Align::kLeft : Align::kRight);
  }
  for (const auto& row : table.rows) text.Row(row);
  return text;
}

}  // namespace

std::string BestSentence(const Comparison& comparison, std::string_view noun) {
  const std::size_t best = comparison.best();
  if (best == comparison.rows.size()) return fmt::format("No {} can be simulated.", noun);
  const ComparedPlan& row = comparison.rows[best];
  const std::string_view fastest =
      comparison.same_work() ? "Fastest" : "Jobs differ in their work; by tokens/s/GPU the fastest";
  return fmt::format("{} {}: {} a step, {} tokens/s/GPU, {} MFU, {} of {}.",
                     row.fits() ? fmt::format("{} {} that fits is", fastest, noun)
                                : fmt::format("No {} fits; {} is", noun,
                                              comparison.same_work() ? "fastest" : "the fastest"),
                     row.name, PerStep(row.simulation->step.step()),
                     FormatRate(row.simulation->tokens_per_second_per_gpu()),
                     Percent(row.simulation->mfu()), Figure(row.simulation->peak()),
                     GiB(row.simulation->estimate.capacity));
}

ComparisonTable ScheduleTable(const Comparison& comparison) {
  ComparisonTable table{
      .titles = {"Schedule", "step", "slower", "tok/s/GPU", "MFU", "bubble", "peak GiB", "fits"}};
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.simulation) {
      table.rows.push_back({row.name, "-", "", "", "", "", "", "-"});
      continue;
    }
    const Simulation& s = *row.simulation;
    table.rows.push_back({row.name, PerStep(s.step.step()), Slower(comparison, row),
                          FormatRate(s.tokens_per_second_per_gpu()), Percent(s.mfu()),
                          Percent(s.bubble_share()), Figure(s.peak()), FitsText(s)});
  }
  return table;
}

ComparisonTable JobTable(const Comparison& comparison) {
  ComparisonTable table{.titles = {"Job", "GPUs", "estimate", "simulated", "slower", "tok/s/GPU",
                                   "MFU", "bubble", "peak GiB", "fits"}};
  for (const ComparedPlan& row : comparison.rows) {
    const std::string gpus = FormatInteger(row.gpus);
    if (!row.simulation) {
      table.rows.push_back({row.name, gpus, "", "-", "", "", "", "", "", "-"});
      continue;
    }
    const Simulation& s = *row.simulation;
    table.rows.push_back({row.name, gpus, PerStep(s.estimate.step), PerStep(s.step.step()),
                          Slower(comparison, row), FormatRate(s.tokens_per_second_per_gpu()),
                          Percent(s.mfu()), Percent(s.bubble_share()), Figure(s.peak()),
                          FitsText(s)});
  }
  return table;
}

std::string ScheduleComparisonText(const Job& job, const Comparison& comparison,
                                   const Style& style) {
  std::string text =
      Bold(Wrapped(BestSentence(comparison, "schedule"), style.width, 0), style) + "\n\n";
  text += QuestionText(job, style) + '\n';
  TextTable plan;
  plan.Column("", Align::kLeft);
  plan.Column("", Align::kLeft);
  plan.Row({"Plan", BriefName(job.parallel)});
  text += plan.Text(style) + '\n';
  return text + AsText(ScheduleTable(comparison)).Text(style) + Reasons(comparison, style);
}

std::string JobComparisonText(const Comparison& comparison, const Style& style) {
  std::string text = Bold(Wrapped(BestSentence(comparison, "job"), style.width, 0), style) + "\n\n";
  TextTable plans;
  plans.Column("Job", Align::kLeft);
  plans.Column("plan", Align::kLeft);
  for (const ComparedPlan& row : comparison.rows) {
    plans.Row({row.name, BriefName(row.plan)});
  }
  return text + AsText(JobTable(comparison)).Text(style) + '\n' + plans.Text(style) +
         Reasons(comparison, style);
}

}  // namespace millwright
