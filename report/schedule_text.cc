// SPDX-License-Identifier: Apache-2.0
#include "report/schedule_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/mistakes.h"
#include "sim/schedule_file.h"

namespace millwright {
namespace {

constexpr std::array<std::string_view, 5> kCostNames = {"F", "B", "W", "p2p", "pair"};
// Far from where a sum over a step would lose a unit.
constexpr double kMostCost = 1e9;
constexpr std::size_t kMostShown = 60;

// A number without its needless digits: "27", "25.5".
std::string NumberText(double number) { return fmt::format("{:.10g}", number); }

std::string NumberText(Seconds number) { return NumberText(number.value); }

// Small letters tell every other chunk of a rank, or DualPipe's reverse direction, apart.
std::string LetterOf(const PipelineSchedule& schedule, const Pass& pass) {
  const std::string_view letters =
      pass.stage / schedule.pipeline % 2 == 0 ? std::string_view("FBBW") : std::string_view("fbbw");
  return std::string(1, letters[std::size_t(pass.kind)]);
}

// The first of the labels that fits into `columns`, filled up to it.
std::string Fitting(const std::vector<std::string>& labels, std::size_t columns) {
  for (const std::string& label : labels) {
    if (label.size() <= columns) return label + std::string(columns - label.size(), '-');
  }
  return std::string(columns, '-');
}

std::string Lane(const PipelineSchedule& schedule, const ScheduleTiming& timing, std::size_t rank,
                 double scale, std::size_t columns) {
  std::string lane(columns, ' ');
  const std::vector<Pass>& order = schedule.orders[rank];
  for (std::size_t i = 0; i < order.size(); ++i) {
    const PassSpan& time = timing.passes[rank][i];
    const auto begin = static_cast<std::size_t>(std::lround(time.start.value * scale));
    const auto end =
        std::min(columns, static_cast<std::size_t>(std::lround(time.end.value * scale)));
    const auto full = [&](const Pass& pass) {
      return fmt::format("{}{}", LetterOf(schedule, pass), pass.micro_batch);
    };
    std::vector<std::string> labels{full(order[i]), LetterOf(schedule, order[i])};
    if (order[i].overlaps_next) {
      const Pass& next = order[++i];
      labels = {labels[0] + "&" + full(next), labels[1] + "&" + LetterOf(schedule, next), "&"};
    }
    if (begin < end) lane.replace(begin, end - begin, Fitting(labels, end - begin));
  }
  return lane;
}

std::string Counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string ScheduleLegend(const PipelineSchedule& schedule) {
  bool whole = false, split = false, pairs = false;
  for (const auto& order : schedule.orders) {
    for (const Pass& pass : order) {
      whole = whole || pass.kind == PassKind::kBackward;
      split = split || pass.kind == PassKind::kBackwardInput;
      pairs = pairs || pass.overlaps_next;
    }
  }
  std::string legend = "F forward";
  if (whole && !split) legend += ", B backward";
  if (!whole && split) legend += ", B gradient of the input, W of the weights";
  if (whole && split) {
    legend += ", B backward, where a W follows the gradient of the input alone, W of the weights";
  }
  if (pairs) legend += ", & overlapped";
  if (schedule.directions == 2) {
    legend += "; small letters: reverse direction";
  } else if (schedule.stages() > schedule.pipeline) {
    legend += schedule.stages() > 2 * schedule.pipeline ? "; small letters: every other chunk"
                                                        : "; small letters: second chunk";
  }
  return legend;
}

RankCosts ParseScheduleCosts(std::string_view text) {
  RankCosts costs;
  Mistakes mistakes("costs");
  std::array<bool, kCostNames.size()> given{};
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto found = std::find(kCostNames.begin(), kCostNames.end(), name);
    if (equals == std::string_view::npos) {
      mistakes.Add("", fmt::format("expected NAME=NUMBER, as in F=1,B=1,W=1,p2p=0, got \"{}\"",
                                   Printable(item, kMostShown)));
    } else if (found == kCostNames.end()) {
      const std::string_view nearest = NearestName(name, kCostNames);
      mistakes.Add(
          "", fmt::format(
                  "unknown cost \"{}\"{}; there are {}", Printable(name, kMostShown),
                  nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest),
                  fmt::join(kCostNames, ", ")));
    } else {
      const auto which = static_cast<std::size_t>(found - kCostNames.begin());
      const std::string_view value = item.substr(equals + 1);
      double number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (given[which]) {
        mistakes.Add("", fmt::format("{} is given twice", name));
      } else if (error != std::errc() || end != value.data() + value.size() ||
                 !(number >= 0 && number <= kMostCost)) {
        mistakes.Add("", fmt::format("{}: expected a number from 0 to 1e9, got \"{}\"", name,
                                     Printable(value, kMostShown)));
      }
      given[which] = true;
      const Seconds cost(number);
      switch (which) {
        case 0:
          costs.passes.forward = cost;
          break;
        case 1:
          costs.passes.backward_input = cost;
          break;
        case 2:
          costs.passes.backward_weight = cost;
          break;
        case 3:
          costs.transfer = cost;
          break;
        default:
          costs.passes.overlapped = cost;
      }
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  mistakes.ThrowIfAny();
  return costs;
}

std::string RankCostsText(const RankCosts& costs) {
  std::string text =
      fmt::format("F={},B={},W={},p2p={}", NumberText(costs.passes.forward),
                  NumberText(costs.passes.backward_input), NumberText(costs.passes.backward_weight),
                  NumberText(costs.transfer));
  if (costs.passes.overlapped) text += ",pair=" + NumberText(*costs.passes.overlapped);
  return text;
}

std::string ScheduleGantt(const PipelineSchedule& schedule, const ScheduleTiming& timing,
                          int width) {
  constexpr int kMostColumns = 10'000;
  constexpr double kColumnsOfShortest = 4;
  const std::size_t digits = fmt::format("{}", schedule.pipeline - 1).size();
  const int frame = static_cast<int>(digits) + 8;  // "rank N |" and "|"
  double shortest = timing.makespan.value;
  for (const auto& rank : timing.passes) {
    for (const PassSpan& pass : rank) {
      const double length = (pass.end - pass.start).value;
      if (length > 0) shortest = std::min(shortest, length);
    }
  }
  double columns = std::clamp(width - frame, 10, kMostColumns);
  double scale = 0;
  if (timing.makespan.value > 0) {
    scale = std::min(columns / timing.makespan.value, kColumnsOfShortest / shortest);
    // Whole columns where there is room, so that equal passes look equal.
    if (scale * shortest >= 1) scale = std::floor(scale * shortest) / shortest;
    columns = scale * timing.makespan.value;
  }
  std::string text;
  for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
    text += fmt::format("rank {:>{}} |{}|\n", r, digits,
                        Lane(schedule, timing, r, scale, std::size_t(std::lround(columns))));
  }
  return text;
}

std::string ScheduleText(const PipelineSchedule& schedule, const RankCosts& costs,
                         const ScheduleTiming& timing, int width) {
  std::string text =
      fmt::format("{}: {}, {}", schedule.name, Counted(schedule.pipeline, "pipeline rank"),
                  Counted(schedule.micro_batches, "micro-batch"));
  if (schedule.micro_batches != 1) text.insert(text.size() - 1, "e");
  if (schedule.directions == 2) text += " in both directions together";
  if (schedule.chunk_cost_divisor > 1) {
    text += fmt::format(", {} chunks a rank", schedule.chunk_cost_divisor);
  }
  text += fmt::format("; {} a rank\n\n", RankCostsText(costs));
  text += ScheduleGantt(schedule, timing, width);
  text +=
      fmt::format("{}\n\nmakespan {}\n\n", ScheduleLegend(schedule), NumberText(timing.makespan));

  // Ranks that agree are one row.
  using Row = std::array<std::string, 5>;
  std::vector<Row> rows{{"rank", "idle", "span", "in flight until W", "until B"}};
  for (std::size_t r = 0, first = 0; r < schedule.orders.size(); ++r) {
    const auto same = [&](std::size_t a, std::size_t b) {
      return timing.idle[a] == timing.idle[b] && timing.span[a] == timing.span[b] &&
             timing.in_flight_until_w[a] == timing.in_flight_until_w[b] &&
             timing.in_flight_until_b[a] == timing.in_flight_until_b[b];
    };
    if (r + 1 < schedule.orders.size() && same(first, r + 1)) continue;
    rows.push_back({first == r ? fmt::format("{}", r) : fmt::format("{}-{}", first, r),
                    NumberText(timing.idle[r]), NumberText(timing.span[r]),
                    fmt::format("{}", timing.in_flight_until_w[r]),
                    fmt::format("{}", timing.in_flight_until_b[r])});
    first = r + 1;
  }
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      text += fmt::format("{}{:>{}}", c == 0 ? "" : "  ", row[c], widths[c]);
    }
    text += '\n';
  }
  text += schedule.chunk_cost_divisor > 1
              ? fmt::format("In flight: micro-batch chunks, each 1/{} of a rank's layers.\n",
                            schedule.chunk_cost_divisor)
              : "In flight: micro-batches.\n";
  return text;
}

std::string ScheduleJson(const PipelineSchedule& schedule, const RankCosts& costs,
                         const ScheduleTiming& timing) {
  using Json = nlohmann::ordered_json;
  const auto values = [](const std::vector<Seconds>& quantities) {
    Json array = Json::array();
    for (const Seconds& quantity : quantities) array.push_back(quantity.value);
    return array;
  };
  Json orders = Json::array();
  for (const auto& order : schedule.orders) orders.push_back(OrderText(order));
  Json prices = {{"F", costs.passes.forward.value},
                 {"B", costs.passes.backward_input.value},
                 {"W", costs.passes.backward_weight.value},
                 {"p2p", costs.transfer.value}};
  if (costs.passes.overlapped) prices["pair"] = costs.passes.overlapped->value;
  const Json json = {
      {"schedule", schedule.name},
      {"p", schedule.pipeline},
      {"m", schedule.micro_batches},
      {"virtual_stages", schedule.stages()},
      {"directions", schedule.directions},
      {"rank_of_stage", schedule.rank_of_stage},
      {"chunk_cost_divisor", schedule.chunk_cost_divisor},
      {"costs", std::move(prices)},
      {"orders", std::move(orders)},
      {"makespan", timing.makespan.value},
      {"idle", values(timing.idle)},
      {"span", values(timing.span)},
      {"peak_in_flight",
       {{"until_w", timing.in_flight_until_w}, {"until_b", timing.in_flight_until_b}}}};
  constexpr int kIndent = 2;
  return json.dump(kIndent) + "\n";
}

std::string DescribeSchedule(const ScheduleQuestion& question) {
  const RankCosts costs = ParseScheduleCosts(question.costs);
  const PipelineSchedule schedule = LoadSchedule(question.schedule, question.sizes);
  const ScheduleTiming timing =
      TimeSchedule(schedule, EvenCosts(schedule, costs.passes, costs.transfer),
                   question.json ? PassTimes::kLeaveOut : PassTimes::kKeep);
  return question.json ? ScheduleJson(schedule, costs, timing)
                       : ScheduleText(schedule, costs, timing, question.width);
}

}  // namespace millwright
