// SPDX-License-Identifier: Apache-2.0
#include "report/full_text.h"

#include <fmt/format.h>

#include <cmath>

#include "core/unit_text.h"
#include "report/estimate_text.h"

namespace millwright {
namespace {

std::string ContentionTable(const FullReport& r, const Style& style) {
  TextTable table;
  table.Column("Sharing links", Align::kLeft);
  for (const char* title : {"collectives", "held up", "worst", "in all"}) table.Column(title);
  for (std::vector<std::string> row : ContentionRows(r)) {
    row.front().insert(0, "  ");
    table.Row(std::move(row));
  }
  if (table.rows() == 0) {
    return r.options.share_links ? "No link is used by two groups of ranks.\n" : std::string();
  }
  return table.Text(style) +
         Wrapped(
             "(Collectives on links that other groups use too, or that are slow; worst: time "
             "over its price alone; in all: delays of all of them, most of it side by side.)",
             style.width, 2) +
         '\n';
}

std::string LinkTable(const FullReport& r, const Style& style) {
  if (r.link_kinds.empty()) return {};
  TextTable table;
  table.Column("Links", Align::kLeft);
  for (const char* title : {"in use", "mean", "busiest", "carries"}) table.Column(title);
  table.Column("which", Align::kLeft);
  for (const LinkUseReport& kind : r.link_kinds) {
    table.Row({fmt::format("  {}", kind.name), FormatInteger(kind.links), Percent(kind.mean),
               Percent(kind.utilisation), FormatBytes(kind.bytes), kind.busiest});
  }
  return table.Text(style);
}

std::string Distribution(const FullReport& r, const Style& style) {
  if (r.steps.size() < 2) return {};
  TextTable table;
  table.Column(Counted(std::int64_t(r.steps.size()), "step"), Align::kLeft);
  for (const char* title : {"mean", "least", "5%", "median", "95%", "most"}) table.Column(title);
  std::vector<std::string> times{"  time"}, over{"  over folded"};
  for (const Seconds s : {r.mean(), r.Percentile(0), r.Percentile(0.05), r.Percentile(0.5),
                          r.Percentile(0.95), r.Percentile(1)}) {
    times.push_back(PerStep(s));
    const double share = s / r.folded - 1;
    over.push_back(Signed(Percent(std::abs(share)), share < 0));
  }
  table.Row(std::move(times));
  table.Row(std::move(over));
  return table.Text(style);
}

}  // namespace

std::string FullSentence(const FullReport& r) {
  std::string text = fmt::format("Every rank: {} tasks on {} GPUs. ", FormatInteger(r.tasks),
                                 FormatInteger(r.ranks));
  if (r.steps.size() > 1) {
    text += fmt::format("Of {} steps the median one is shown. ",
                        FormatInteger(std::int64_t(r.steps.size())));
  }
  constexpr double kSame = 1e-6;
  const double difference = r.difference();
  text += std::abs(difference) < kSame
              ? fmt::format("The step is that of the folded simulation, {}.", PerStep(r.folded))
              : fmt::format("The step is {} {} than the folded simulation's {}.",
                            Percent(std::abs(difference), difference < 0.01 ? 2 : 1),
                            difference > 0 ? "longer" : "shorter", PerStep(r.folded));
  const double slower = r.slowest_computes / r.median_computes - 1;
  if (slower > 1e-3) {
    text += fmt::format(
        " GPU {} is the slowest: its compute takes {}, {} more than that of the median GPU of its "
        "stage.",
        r.slowest, PerStep(r.slowest_computes), Percent(slower));
  }
  if (r.disturbed_in_vain) text += " Nothing of the step crosses the links that are slow or down.";
  return text;
}

std::vector<std::vector<std::string>> ContentionRows(const FullReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (int i = 0; i < kCauses; ++i) {
    const Contention& c = report.contention[std::size_t(i)];
    if (c.collectives == 0) continue;
    const bool delayed = c.delayed > 0;
    rows.push_back({std::string(Name(static_cast<Cause>(i))), FormatInteger(c.collectives),
                    FormatInteger(c.delayed), delayed ? fmt::format("{:.2f} x", c.worst) : "-",
                    delayed ? PerStep(c.delay) : "-"});
  }
  return rows;
}

std::string FullReportText(const FullReport& report, const Style& style) {
  std::string text = Wrapped(FullSentence(report), style.width, 0) + '\n';
  for (const std::string& part :
       {Distribution(report, style), ContentionTable(report, style), LinkTable(report, style)}) {
    if (!part.empty()) text += '\n' + part;
  }
  return text;
}

}  // namespace millwright
