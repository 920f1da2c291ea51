// SPDX-License-Identifier: Apache-2.0
#include "validate/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/check.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

constexpr std::size_t kWorstShown = 5;
constexpr double kOutlier = 10;

template <class T>
const T* As(const Measurement& row) {
  return std::get_if<T>(&row.operation);
}

bool IsForward(const MeasuredAttention& a) {
  return a.phase == AttentionPhase::kForward || a.phase == AttentionPhase::kPrefill;
}

bool FromNcclTests(const MeasuredCollective& c) { return c.library.starts_with("nccl-tests"); }

// A kernel of an inference engine: one-shot or two-shot over NVLink, not NCCL's.
bool IsCustom(const MeasuredCollective& c) { return c.library.starts_with("custom"); }

// What a table shows: its name, and which rows.
struct Selection {
  std::string_view name;
  bool (*takes)(const Measurement&);
};

constexpr std::array kSelections{
    Selection{"gemm", [](const Measurement& r) { return As<MeasuredGemm>(r) != nullptr; }},
    Selection{"gemm_512",
              [](const Measurement& r) {
                const auto* g = As<MeasuredGemm>(r);
                return g != nullptr && std::min({g->m, g->n, g->k}) >= 512;
              }},
    Selection{"attention",
              [](const Measurement& r) { return As<MeasuredAttention>(r) != nullptr; }},
    Selection{"attention_forward",
              [](const Measurement& r) {
                const auto* a = As<MeasuredAttention>(r);
                return a != nullptr && IsForward(*a);
              }},
    Selection{"attention_backward",
              [](const Measurement& r) {
                const auto* a = As<MeasuredAttention>(r);
                return a != nullptr && !IsForward(*a) && a->phase != AttentionPhase::kDecode;
              }},
    Selection{"collective",
              [](const Measurement& r) { return As<MeasuredCollective>(r) != nullptr; }},
    Selection{"collective_domain",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && c->nodes == 1 && FromNcclTests(*c);
              }},
    Selection{"collective_domain_16MB",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && c->nodes == 1 && FromNcclTests(*c) && c->bytes >= 16_MB;
              }},
    Selection{"collective_fabric",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && c->nodes > 1 && FromNcclTests(*c);
              }},
    Selection{"collective_fabric_64MB",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && c->nodes > 1 && FromNcclTests(*c) && c->bytes >= 64_MB;
              }},
    Selection{"collective_torch",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && !FromNcclTests(*c) && !IsCustom(*c);
              }},
    Selection{"collective_custom",
              [](const Measurement& r) {
                const auto* c = As<MeasuredCollective>(r);
                return c != nullptr && IsCustom(*c);
              }},
    Selection{"moe", [](const Measurement& r) { return As<MeasuredMoe>(r) != nullptr; }},
    Selection{"grouped_gemm",
              [](const Measurement& r) { return As<MeasuredGroupedGemm>(r) != nullptr; }},
    Selection{"memory_bound",
              [](const Measurement& r) { return As<MeasuredMemoryBound>(r) != nullptr; }},
    Selection{"memory_bound_16MB",
              [](const Measurement& r) {
                const auto* m = As<MeasuredMemoryBound>(r);
                return m != nullptr && m->bytes >= 16_MB;
              }},
};

std::string GroupOf(const Measurement& row) {
  if (const auto* c = As<MeasuredCollective>(row)) return row.gpu + "/" + c->op;
  if (const auto* m = As<MeasuredMemoryBound>(row)) return row.gpu + "/" + m->op;
  return row.gpu + "/" + row.dtype;
}

// Rows with one key did the same: a prediction cannot tell them apart.
std::string KeyOf(const Measurement& row) {
  std::string key = row.gpu + "|" + row.dtype + "|" + ShapeText(row.operation);
  if (const auto* c = As<MeasuredCollective>(row)) {
    key += IsCustom(*c) ? "|" + c->library : FromNcclTests(*c) ? "|" : "|torch";
    if (c->nodes > 1) key += "|" + c->topology;
  }
  return key;
}

ErrorSummary Statistics(const std::vector<ComparedRow>& rows) {
  std::vector<double> errors;
  errors.reserve(rows.size());
  for (const ComparedRow& r : rows) errors.push_back(r.error);
  return Summarise(std::move(errors));
}

// Of the median of the rows with the same key, where there are several.
ErrorSummary Floor(const MeasurementSet& set, const std::vector<ComparedRow>& rows) {
  std::map<std::string, std::vector<double>> times;
  for (const ComparedRow& r : rows) {
    times[KeyOf(set.rows[r.row])].push_back(set.rows[r.row].time.value);
  }
  std::vector<double> errors;
  for (const auto& [key, same] : times) {
    if (same.size() < 2) continue;
    // Of two, any value between is as good; the geometric mean of the middle ones is one.
    std::vector<double> sorted = same;
    std::sort(sorted.begin(), sorted.end());
    const double best = std::sqrt(sorted[(sorted.size() - 1) / 2] * sorted[sorted.size() / 2]);
    for (double t : same) errors.push_back(best / t - 1);
  }
  return Summarise(std::move(errors));
}

void KeepWorst(std::vector<ComparedRow>& rows) {
  const auto off = [](const ComparedRow& r) { return std::abs(std::log1p(r.error)); };
  const std::size_t kept = std::min(rows.size(), kWorstShown);
  std::partial_sort(rows.begin(), rows.begin() + std::ptrdiff_t(kept), rows.end(),
                    [&](const ComparedRow& a, const ComparedRow& b) { return off(a) > off(b); });
  rows.resize(kept);
}

}  // namespace

OpsValidation ValidateOps(const MeasurementSet& set,
                          const std::vector<OperationPrediction>& predictions) {
  MILLWRIGHT_CHECK(predictions.size() == set.rows.size());
  OpsValidation result{.flagged = set.flagged};
  std::vector<ComparedRow> compared;
  std::map<std::pair<std::size_t, std::string>, int> unsupported;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const Measurement& row = set.rows[i];
    const OperationPrediction& p = predictions[i];
    if (p.unsupported.empty()) {
      compared.push_back({i, p.time, p.time / row.time - 1});
    } else {
      ++unsupported[{row.operation.index(), p.unsupported}];
    }
  }
  for (const auto& [key, n] : unsupported) {
    result.unsupported.push_back({std::string(kTableNames[key.first]), key.second, n});
  }
  for (const Selection& selection : kSelections) {
    std::vector<ComparedRow> rows;
    std::map<std::string, std::vector<ComparedRow>> groups;
    for (const ComparedRow& r : compared) {
      if (!selection.takes(set.rows[r.row])) continue;
      rows.push_back(r);
      groups[GroupOf(set.rows[r.row])].push_back(r);
    }
    if (rows.empty()) continue;
    OpsTable table{.name = std::string(selection.name),
                   .errors = Statistics(rows),
                   .floor = Floor(set, rows),
                   .groups = {}};
    for (auto& [name, of_group] : groups) {
      OpsGroup group{
          .name = name, .errors = Statistics(of_group), .floor = Floor(set, of_group), .worst = {}};
      const bool whole_table =
          std::find(kTableNames.begin(), kTableNames.end(), table.name) != kTableNames.end();
      for (const ComparedRow& r : of_group) {
        const double off = (1 + r.error) / (1 + group.errors.bias);
        if (!whole_table || (off < kOutlier && off > 1 / kOutlier)) continue;
        const Measurement& row = set.rows[r.row];
        result.flagged.push_back(
            {row.file, row.line,
             fmt::format("{:.4g} us, {:.0f} times {} than its neighbours: {}", row.time.value * 1e6,
                         off > 1 ? off : 1 / off, off > 1 ? "faster" : "slower",
                         Printable(ShapeText(row.operation), kMostNameShown))});
      }
      KeepWorst(of_group);
      group.worst = std::move(of_group);
      table.groups.push_back(std::move(group));
    }
    result.tables.push_back(std::move(table));
  }
  return result;
}

}  // namespace millwright
