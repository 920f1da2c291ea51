// SPDX-License-Identifier: Apache-2.0
#include "report/runs_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/unit_text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

std::string SignedPercent(double share) { return Signed(Percent(std::abs(share)), share < 0); }

void AddSummary(TextTable& table, const std::string& name, const ErrorSummary& e) {
  table.Row({name, std::to_string(e.n), Percent(e.median_ape), Percent(e.p90_ape),
             SignedPercent(e.bias)});
}

std::vector<std::string> CoverageCells(const Coverage& c) {
  return {c.name, std::to_string(c.n), Percent(double(c.inside) / double(c.n))};
}

Json ToJson(const Coverage& c) { return {{"n", c.n}, {"inside", c.inside}}; }

TextTable SummaryTable(const char* title) {
  TextTable table;
  table.Column(title, Align::kLeft);
  table.Column("runs");
  table.Column("median");
  table.Column("p90");
  table.Column("bias");
  return table;
}

Json ToJson(const ErrorSummary& e) {
  return {{"n", e.n}, {"median_ape", e.median_ape}, {"p90_ape", e.p90_ape}, {"bias", e.bias}};
}

Json ToJson(const std::vector<NamedSummary>& summaries) {
  Json json = Json::object();
  for (const NamedSummary& s : summaries) json[s.name] = ToJson(s.errors);
  return json;
}

// Reasons with their numbers cut off, so that equal obstacles are counted together.
std::map<std::string, std::vector<std::string>> ByReason(const RunsReport& report) {
  std::map<std::string, std::vector<std::string>> reasons;
  for (const UnsupportedRun& u : report.unsupported) reasons[u.reason].push_back(u.run.id);
  return reasons;
}

}  // namespace

std::string RunsSentence(const RunsReport& report) {
  const ErrorSummary& all = report.overall;
  if (all.n == 0) {
    return fmt::format("{} of {} runs modelled, and no step time to compare.",
                       report.results.size(), report.results.size() + report.unsupported.size());
  }
  return fmt::format(
      "{} of {} runs modelled; {} step times are predicted with a median error of {}, 90% within "
      "{}, bias {} (negative: predicted too fast).",
      report.results.size(), report.results.size() + report.unsupported.size(), all.n,
      Percent(all.median_ape), Percent(all.p90_ape), SignedPercent(all.bias));
}

std::string RunsText(const RunsReport& report, const Style& style) {
  std::string text = Bold(Wrapped(RunsSentence(report), style.width, 0), style) + "\n\n";
  TextTable groups = SummaryTable("step time, by source");
  for (const NamedSummary& g : report.groups) AddSummary(groups, g.name, g.errors);
  AddSummary(groups, "all", report.overall);
  text += groups.Text(style) + "\n";
  TextTable classes = SummaryTable("step time, by kind");
  for (const NamedSummary& g : report.classes) AddSummary(classes, g.name, g.errors);
  text += classes.Text(style) + "\n";
  if (!report.memory.empty()) {
    TextTable memory = SummaryTable("memory");
    for (const NamedSummary& g : report.memory) AddSummary(memory, g.name, g.errors);
    text += memory.Text(style) + "\n";
  }
  if (report.out_of_memory > 0) {
    text += fmt::format("Of {} that ran out of memory, {} predicted not to fit.\n",
                        Counted(std::int64_t(report.out_of_memory), "run"),
                        report.out_of_memory_predicted);
  }
  text += fmt::format("Of {} that ran, {} predicted not to fit",
                      Counted(std::int64_t(report.results.size() - report.out_of_memory), "run"),
                      report.ran_but_predicted_not_to_fit.size());
  constexpr std::size_t kMostShown = 15;
  for (std::size_t i = 0; i < report.ran_but_predicted_not_to_fit.size() && i < kMostShown; ++i) {
    const RunResult& r = report.results[report.ran_but_predicted_not_to_fit[i]];
    text += fmt::format("{}{} ({:+.0f}%)", i == 0 ? ": " : ", ", r.run.id,
                        100 * (r.peak / r.capacity - 1));
  }
  if (report.ran_but_predicted_not_to_fit.size() > kMostShown) text += ", ...";
  text += ".\n\n";

  TextTable coverage;
  coverage.Column("inside the 90% interval", Align::kLeft);
  coverage.Column("runs");
  coverage.Column("inside");
  for (const Coverage& c : report.step_coverage) coverage.Row(CoverageCells(c));
  if (report.memory_coverage.n > 0) coverage.Row(CoverageCells(report.memory_coverage));
  if (coverage.rows() > 0) text += coverage.Text(style) + "\n";

  if (!report.sweeps.empty()) {
    TextTable sweeps;
    sweeps.Column("layouts of one job", Align::kLeft);
    sweeps.Column("runs");
    sweeps.Column("Spearman");
    sweeps.Column("at most");
    sweeps.Column("first is slower than best by");
    for (const Sweep& s : report.sweeps) {
      sweeps.Row({s.name, std::to_string(s.n), fmt::format("{:.2f}", s.spearman),
                  s.most < 1 ? fmt::format("{:.2f}", s.most) : "-", Percent(s.first_loss)});
    }
    text += sweeps.Text(style) + "\n";
  }

  std::vector<const RunResult*> worst;
  for (const RunResult& r : report.results) {
    if (r.run.step) worst.push_back(&r);
  }
  std::ranges::stable_sort(worst, [](const RunResult* a, const RunResult* b) {
    return std::abs(std::log1p(a->step_error())) > std::abs(std::log1p(b->step_error()));
  });
  TextTable rows;
  rows.Column("furthest off", Align::kLeft);
  rows.Column("model", Align::kLeft);
  rows.Column("GPUs");
  rows.Column("measured");
  rows.Column("predicted");
  rows.Column("error");
  rows.Column("plan", Align::kLeft);
  for (std::size_t i = 0; i < worst.size() && i < kMostShown; ++i) {
    const RunResult& r = *worst[i];
    rows.Row({r.run.id, r.job.job.model.name,
              fmt::format("{} {}", r.job.job.cluster.gpus(), r.job.job.cluster.gpu.name),
              FormatSeconds(*r.run.step), FormatSeconds(r.predicted), SignedPercent(r.step_error()),
              ShortName(r.job.job.parallel)});
  }
  if (rows.rows() > 0) text += rows.Text(style) + "\n";

  if (!report.unsupported.empty()) {
    text += "Not modelled\n";
    for (const auto& [reason, ids] : ByReason(report)) {
      std::string list;
      for (std::size_t i = 0; i < ids.size() && i < kMostShown; ++i) {
        list += fmt::format("{}{}", i == 0 ? "" : ", ", ids[i]);
      }
      if (ids.size() > kMostShown) list += ", ...";
      text += Wrapped(fmt::format("{} {}: {}", ids.size(), reason, list), style.width, 2) + "\n";
    }
  }
  return text;
}

namespace {

Json ReportJson(const RunsReport& report) {
  Json json;
  json["overall"] = ToJson(report.overall);
  json["groups"] = ToJson(report.groups);
  json["classes"] = ToJson(report.classes);
  json["memory"] = ToJson(report.memory);
  json["out_of_memory"] = {
      {"runs", report.out_of_memory},
      {"predicted", report.out_of_memory_predicted},
      {"ran_but_predicted_not_to_fit", report.ran_but_predicted_not_to_fit.size()}};
  json["coverage"] = Json::object();
  for (const Coverage& c : report.step_coverage) json["coverage"][c.name] = ToJson(c);
  json["coverage"]["memory"] = ToJson(report.memory_coverage);
  json["sweeps"] = Json::array();
  for (const Sweep& s : report.sweeps) {
    json["sweeps"].push_back({{"name", s.name},
                              {"n", s.n},
                              {"spearman", s.spearman},
                              {"spearman_at_most", s.most},
                              {"first_slower_than_best", s.first_loss}});
  }
  json["rows"] = Json::array();
  for (const RunResult& r : report.results) {
    Json row = {{"id", r.run.id},
                {"group", r.run.group()},
                {"model", r.job.job.model.name},
                {"gpu", r.run.gpu},
                {"num_gpus", r.job.job.cluster.gpus()},
                {"plan", ShortName(r.job.job.parallel)},
                {"predicted_step_s", r.predicted.value},
                {"measured_step_s", nullptr},
                {"error", nullptr},
                {"predicted_memory_bytes", r.predicted_memory.value},
                {"measured_memory_bytes", nullptr},
                {"memory_kind", nullptr},
                {"memory_error", nullptr},
                {"predicted_peak_bytes", r.peak.value},
                {"capacity_bytes", r.capacity.value},
                {"predicted_fits", r.fits()},
                {"ran", !r.run.out_of_memory()}};
    if (r.run.step) {
      row["measured_step_s"] = r.run.step->value;
      row["error"] = r.step_error();
    }
    if (r.run.memory) {
      row["measured_memory_bytes"] = r.run.memory->value;
      row["memory_kind"] = std::string(Name(MemoryKindOf(r.run.memory_kind)));
      row["memory_error"] = r.memory_error();
    }
    json["rows"].push_back(std::move(row));
  }
  json["unsupported"] = Json::array();
  for (const UnsupportedRun& u : report.unsupported) {
    json["unsupported"].push_back({{"id", u.run.id}, {"reason", u.reason}});
  }
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string RunsJson(const RunsReport& report) { return Dump(ReportJson(report)); }

std::string CrossValidationText(const CrossValidation& cross, const Style& style) {
  const ErrorSummary& e = cross.held_out.overall;
  std::string text =
      Bold(Wrapped(fmt::format("Fitted to the other groups of {} in {} parts, held-out runs are "
                               "predicted with a median error of {}, 90% within {}, bias {}.",
                               cross.groups, cross.folds, Percent(e.median_ape), Percent(e.p90_ape),
                               SignedPercent(e.bias)),
                   style.width, 0),
           style);
  text += "\n\n";
  if (cross.groups < 20) {
    text +=
        Wrapped(fmt::format("{} say little of {} parameters: do not use these.",
                            Counted(std::int64_t(cross.groups), "group"), EndToEndFields().size()),
                style.width, 0) +
        "\n\n";
  }
  TextTable groups = SummaryTable("held out, by source");
  for (const NamedSummary& g : cross.held_out.groups) AddSummary(groups, g.name, g.errors);
  for (const NamedSummary& g : cross.held_out.classes) AddSummary(groups, g.name, g.errors);
  text += groups.Text(style) + "\n";
  TextTable intervals;
  intervals.Column("held out, measured over predicted", Align::kLeft);
  for (const char* title : {"runs", "5%", "median", "95%"}) intervals.Column(title);
  for (const ClassQuantiles& q : cross.quantiles) {
    intervals.Row({q.name, std::to_string(q.n), fmt::format("{:.3f}", q.low),
                   fmt::format("{:.3f}", q.median), fmt::format("{:.3f}", q.high)});
  }
  text += intervals.Text(style) + "\n";
  TextTable fitted;
  fitted.Column("parameter", Align::kLeft);
  for (const char* title : {"shipped", "fitted", "+-"}) fitted.Column(title);
  for (std::size_t i = 0; i < EndToEndFields().size(); ++i) {
    const EndToEndField& field = EndToEndFields()[i];
    fitted.Row({std::string(field.name), fmt::format("{:.4g}", field.shipped),
                fmt::format("{:.4g}", cross.fitted.*field.value), Percent(cross.spread[i], 0)});
  }
  return text + fitted.Text(style);
}

std::string CrossValidationJson(const RunsReport& report, const CrossValidation& cross) {
  Json json = ReportJson(report);
  Json& out = json["cross_validation"];
  out = {{"folds", cross.folds},
         {"groups", cross.groups},
         {"overall", ToJson(cross.held_out.overall)},
         {"by_source", ToJson(cross.held_out.groups)},
         {"by_kind", ToJson(cross.held_out.classes)}};
  for (const ClassQuantiles& q : cross.quantiles) {
    out["measured_over_predicted"][q.name] = {
        {"n", q.n}, {"p05", q.low}, {"median", q.median}, {"p95", q.high}};
  }
  for (std::size_t i = 0; i < EndToEndFields().size(); ++i) {
    const EndToEndField& field = EndToEndFields()[i];
    out["parameters"][std::string(field.name)] = {{"shipped", field.shipped},
                                                  {"fitted", cross.fitted.*field.value},
                                                  {"relative_error", cross.spread[i]}};
  }
  return Dump(json);
}

}  // namespace millwright
