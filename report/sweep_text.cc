// SPDX-License-Identifier: Apache-2.0
#include "report/sweep_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/unit_text.h"
#include "report/estimate_text.h"

namespace millwright {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// What the estimate says, at the pace of the step that counts.
double AtPaceOf(const Contender& c, double of_estimate) {
  return of_estimate * (c.estimate.step / c.step());
}

}  // namespace

double SweepRow::tokens_per_second_per_gpu() const {
  return plan ? AtPaceOf(*plan, plan->estimate.tokens_per_second_per_gpu) : 0;
}
double SweepRow::mfu() const { return plan ? AtPaceOf(*plan, plan->estimate.mfu) : 0; }

bool SweepAnswer::any_fits() const {
  return std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.fits; });
}

std::string SweepText(const SweepAnswer& answer, const Style& style) {
  TextTable table;
  for (const SweepAxis& axis : answer.axes) table.Column(axis.name);
  table.Column("step");
  table.Column("tokens/s/GPU");
  table.Column("MFU");
  table.Column("memory");
  table.Column(answer.own_plan ? "plan" : "best plan", Align::kLeft);
  for (const SweepRow& row : answer.rows) {
    std::vector<std::string> cells = row.at;
    if (row.plan && row.fits) {
      cells.push_back(FormatSeconds(row.plan->step()));
      cells.push_back(FormatRate(row.tokens_per_second_per_gpu()));
      cells.push_back(Percent(row.mfu()));
      cells.push_back(GiB(row.plan->peak()));
      cells.push_back(BriefName(row.plan->estimate.plan));
    } else {
      for (int i = 0; i < 4; ++i) cells.emplace_back("-");
      cells.push_back(row.reason);
    }
    table.Row(std::move(cells));
  }
  const auto fitting = std::count_if(answer.rows.begin(), answer.rows.end(),
                                     [](const SweepRow& row) { return row.fits; });
  return Bold(fmt::format("{}, {} with a plan that fits.",
                          Counted(std::int64_t(answer.rows.size()), "point"), fitting),
              style) +
         "\n\n" + table.Text(style);
}

std::string SweepCsv(const SweepAnswer& answer) {
  std::string csv;
  for (const SweepAxis& axis : answer.axes) csv += CsvCell(axis.name) + ',';
  csv +=
      "fits,step_time_s,estimate_step_time_s,simulated,tokens_per_s_per_gpu,mfu,peak_gib,plan,"
      "best_tp,best_sp,best_cp,best_pp,best_vpp,best_dp,best_ep,best_etp,best_micro_batch,"
      "best_zero,best_zero_shard,best_recompute,reason\r\n";
  for (const SweepRow& row : answer.rows) {
    for (const std::string& value : row.at) csv += CsvCell(value) + ',';
    csv += row.fits ? "true," : "false,";
    if (row.plan) {
      const ParallelConfig& p = row.plan->estimate.plan;
      csv += fmt::format("{},{},{},{},{},{},{},", row.plan->step().value,
                         row.plan->estimate.step.value, row.plan->simulated.has_value(),
                         row.tokens_per_second_per_gpu(), row.mfu(), row.plan->peak().value / kGiB,
                         CsvCell(BriefName(p)));
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},", p.tensor, p.sequence_parallel,
                         p.context, p.pipeline, p.virtual_stages, p.data, p.expert, p.expert_tensor,
                         p.micro_batch_size, p.zero, p.zero_shard, CsvCell(RecomputeName(p)));
    } else {
      csv += std::string(19, ',');
    }
    csv += CsvCell(row.reason) + "\r\n";
  }
  return csv;
}

}  // namespace millwright
