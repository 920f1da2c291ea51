// SPDX-License-Identifier: Apache-2.0
#include "report/ops_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/mistakes.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFlagsShown = 20;

std::string FileName(const MeasurementSet& set, int file) {
  const std::string name = std::filesystem::path(set.files[std::size_t(file)]).filename().string();
  return Printable(name, kMostNameShown);
}

std::string Error(double share) { return Signed(Percent(std::abs(share)), share < 0); }

std::string Floor(const ErrorSummary& floor) {
  if (floor.n == 0) return "";
  return fmt::format("{} / {}", Percent(floor.median_ape), Percent(floor.p90_ape));
}

std::vector<std::string> Cells(std::string table, std::string group, const ErrorSummary& errors,
                               const ErrorSummary& floor) {
  return {std::move(table),
          std::move(group),
          std::to_string(errors.n),
          Percent(errors.median_ape),
          Percent(errors.p90_ape),
          Error(errors.bias),
          Floor(floor)};
}

Json ToJson(const ErrorSummary& s) {
  return {{"n", s.n}, {"median_ape", s.median_ape}, {"p90_ape", s.p90_ape}, {"bias", s.bias}};
}

Json WithFloor(const ErrorSummary& errors, const ErrorSummary& floor) {
  Json json = ToJson(errors);
  if (floor.n > 0) {
    json["floor"] = {{"n", floor.n}, {"median_ape", floor.median_ape}, {"p90_ape", floor.p90_ape}};
  }
  return json;
}

Json ToJson(const FlaggedRow& flag, const MeasurementSet& set) {
  return {{"file", FileName(set, flag.file)}, {"line", flag.line}, {"what", flag.what}};
}

}  // namespace

std::string OpsText(const OpsValidation& validation, const MeasurementSet& set,
                    const Style& style) {
  std::size_t compared = 0;
  for (const OpsTable& table : validation.tables) {
    if (std::find(kTableNames.begin(), kTableNames.end(), table.name) != kTableNames.end()) {
      compared += std::size_t(table.errors.n);
    }
  }
  std::string text = fmt::format(
      "{}\n\n",
      Bold(fmt::format("{} measured operations in {}; {} "
                       "compared.",
                       set.rows.size(), Counted(std::int64_t(set.files.size()), "file"), compared),
           style));
  text +=
      "Errors are predicted over measured, less one; the floor is what one number for each\n"
      "operation that was measured more than once would reach.\n\n";

  TextTable sums;
  for (const char* title : {"table", "GPU"}) sums.Column(title, Align::kLeft);
  for (const char* title : {"rows", "median", "p90", "bias", "floor"}) sums.Column(title);
  for (const OpsTable& table : validation.tables) {
    sums.Row(Cells(table.name, "all", table.errors, table.floor));
    for (const OpsGroup& group : table.groups) {
      sums.Row(Cells("", Printable(group.name, kMostNameShown), group.errors, group.floor));
    }
  }
  text += sums.Text(style);

  TextTable worst;
  for (const char* title : {"table", "GPU"}) worst.Column(title, Align::kLeft);
  for (const char* title : {"measured us", "predicted us", "error"}) worst.Column(title);
  for (const char* title : {"row", "operation"}) worst.Column(title, Align::kLeft);
  for (const OpsTable& table : validation.tables) {
    if (std::find(kTableNames.begin(), kTableNames.end(), table.name) == kTableNames.end()) {
      continue;  // a part of another
    }
    for (const OpsGroup& group : table.groups) {
      constexpr std::size_t kShown = 2;
      for (std::size_t i = 0; i < std::min(group.worst.size(), kShown); ++i) {
        const ComparedRow& r = group.worst[i];
        const Measurement& row = set.rows[r.row];
        worst.Row({table.name, Printable(group.name, kMostNameShown),
                   fmt::format("{:.4g}", row.time.value * 1e6),
                   fmt::format("{:.4g}", r.predicted.value * 1e6), Error(r.error),
                   fmt::format("{}:{}", FileName(set, row.file), row.line),
                   Printable(ShapeText(row.operation), kMostNameShown)});
      }
    }
  }
  if (worst.rows() > 0) text += "\nThe worst rows\n" + worst.Text(style);

  if (!validation.unsupported.empty()) {
    TextTable table;
    table.Column("rows");
    table.Column("table", Align::kLeft);
    table.Column("not compared, because", Align::kLeft);
    for (const UnsupportedRows& u : validation.unsupported) {
      table.Row({std::to_string(u.n), u.table, u.reason});
    }
    text += "\n" + table.Text(style);
  }
  if (!validation.flagged.empty()) {
    text += fmt::format("\n{} doubtful\n", Counted(std::int64_t(validation.flagged.size()), "row"));
    for (std::size_t i = 0; i < std::min(validation.flagged.size(), kFlagsShown); ++i) {
      const FlaggedRow& flag = validation.flagged[i];
      text += fmt::format("  {}:{}: {}\n", FileName(set, flag.file), flag.line, flag.what);
    }
    if (validation.flagged.size() > kFlagsShown) {
      text += fmt::format("  and {} more (--json lists all)\n",
                          validation.flagged.size() - kFlagsShown);
    }
  }
  return text;
}

std::string OpsJson(const OpsValidation& validation, const MeasurementSet& set) {
  Json tables = Json::object(), overall = Json::object();
  for (const OpsTable& table : validation.tables) {
    Json& groups = tables[table.name] = Json::object();
    for (const OpsGroup& group : table.groups) {
      Json json = WithFloor(group.errors, group.floor);
      Json& worst = json["worst"] = Json::array();
      for (const ComparedRow& r : group.worst) {
        const Measurement& row = set.rows[r.row];
        worst.push_back({{"file", FileName(set, row.file)},
                         {"line", row.line},
                         {"operation", ShapeText(row.operation)},
                         {"measured_s", row.time.value},
                         {"predicted_s", r.predicted.value},
                         {"error", r.error}});
      }
      groups[group.name] = std::move(json);
    }
    overall[table.name] = WithFloor(table.errors, table.floor);
  }
  Json unsupported = Json::array(), flagged = Json::array(), files = Json::array();
  for (const UnsupportedRows& u : validation.unsupported) {
    unsupported.push_back({{"table", u.table}, {"reason", u.reason}, {"n", u.n}});
  }
  for (const FlaggedRow& flag : validation.flagged) flagged.push_back(ToJson(flag, set));
  for (std::size_t i = 0; i < set.files.size(); ++i) files.push_back(FileName(set, int(i)));
  const Json json = {{"files", std::move(files)},
                     {"rows", set.rows.size()},
                     {"tables", std::move(tables)},
                     {"overall", std::move(overall)},
                     {"unsupported", std::move(unsupported)},
                     {"flagged", std::move(flagged)}};
  return json.dump(2) + "\n";
}

}  // namespace millwright
