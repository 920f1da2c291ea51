// SPDX-License-Identifier: Apache-2.0
#include "report/validation_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/page.h"
#include "report/page_parts.h"
#include "report/runs_report.h"
#include "report/text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

Json SummaryRows(const std::vector<NamedSummary>& summaries) {
  Json rows = Json::array();
  for (const NamedSummary& s : summaries) {
    rows.push_back({s.name, std::to_string(s.errors.n), Percent(s.errors.median_ape),
                    Percent(s.errors.p90_ape), fmt::format("{:+.1f}%", 100 * s.errors.bias)});
  }
  return rows;
}

Json Table(const char* title, std::vector<std::string> titles, Json rows) {
  return {{"title", title}, {"titles", std::move(titles)}, {"rows", std::move(rows)}};
}

}  // namespace

void WriteValidationPage(const RunsReport& report, FileWriter& out) {
  Json groups = Json::array(), runs = Json::array(), tables = Json::array();
  for (const NamedSummary& g : report.groups) {
    groups.push_back({{"name", g.name},
                      {"n", g.errors.n},
                      {"median", g.errors.median_ape},
                      {"p90", g.errors.p90_ape},
                      {"bias", g.errors.bias}});
  }
  for (const RunResult& r : report.results) {
    if (!r.run.step) continue;
    runs.push_back({{"id", r.run.id},
                    {"group", r.run.group()},
                    {"model", r.job.job.model.name},
                    {"gpus", r.job.job.cluster.gpus()},
                    {"gpu", r.job.job.cluster.gpu.name},
                    {"plan", ShortName(r.job.job.parallel)},
                    {"measured", r.run.step->value},
                    {"predicted", r.predicted.value},
                    {"error", r.step_error()}});
  }
  const std::vector<std::string> titles = {"", "runs", "median", "p90", "bias"};
  tables.push_back(Table("Step time, by kind", titles, SummaryRows(report.classes)));
  if (!report.memory.empty()) {
    tables.push_back(Table("Memory", titles, SummaryRows(report.memory)));
  }
  if (!report.unsupported.empty()) {
    Json rows = Json::array();
    for (const UnsupportedRun& u : report.unsupported) rows.push_back({u.run.id, u.reason});
    tables.push_back(Table("Not modelled", {"run", "why"}, std::move(rows)));
  }
  const Json data = {{"heading", "Predictions against measured training steps"},
                     {"sentence", RunsSentence(report)},
                     {"groups", std::move(groups)},
                     {"runs", std::move(runs)},
                     {"tables", std::move(tables)}};
  WritePage({.title = "Predictions against measured steps",
             .data = data.dump(-1, ' ', false, Json::error_handler_t::replace),
             .scripts = {ValidationScript()}},
            out);
}

}  // namespace millwright
