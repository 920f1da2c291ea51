// SPDX-License-Identifier: Apache-2.0
#include "report/sensitivity_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "topologies/what_if.h"

namespace millwright {
namespace {

std::string Meaning(const std::string& name) {
  if (name == "flops") return "FLOP/s";
  if (name == "hbm") return "GPU memory";
  if (name == "hbm-bandwidth") return "memory bandwidth";
  if (name == "nvlink") return "NVLink bandwidth";
  if (name == "ib") return "NIC bandwidth";
  return name;
}

// Those that save something; the others by name.
std::string OptionsText(const SensitivityAnswer& answer, const Style& style) {
  constexpr double kLeast = 0.0005;
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("time a token");
  table.Column("best plan with it", Align::kLeft);
  std::string others;
  bool any = false;
  for (const OptionSensitivity& option : answer.options) {
    if (-answer.Change(option) < kLeast) {
      others += fmt::format("{}{}", others.empty() ? "" : ", ", option.flag);
      continue;
    }
    any = true;
    table.Row({option.flag, fmt::format("{:+.1f}%", 100 * answer.Change(option)),
               BriefName(option.best->plan)});
  }
  std::string text = Bold("What another option would buy", style) + '\n';
  if (any) text += table.Text(style);
  if (!others.empty()) text += Wrapped("Nothing: " + others + '.', style.width, 2) + '\n';
  return text;
}

}  // namespace

std::string SensitivityText(const SensitivityAnswer& answer, const Style& style) {
  constexpr int kBar = 16;
  const double now = answer.now.step.value;
  const auto change = [&](const std::optional<RankedPlan>& plan) {
    return plan ? plan->step.value / now - 1 : 0;
  };
  double most = 0;
  for (const Sensitivity& s : answer.resources) {
    most = std::max({most, std::abs(change(s.more)), std::abs(change(s.less))});
  }
  TextTable table;
  table.Column("Resource", Align::kLeft);
  table.Column("now");
  table.Column("10% less");
  table.Column("10% more");
  table.Column("", Align::kLeft);
  table.Column("another plan with 10% more", Align::kLeft);
  const auto cell = [&](const std::optional<RankedPlan>& plan) {
    if (!plan) return std::string("nothing fits");
    const double share = change(plan);
    return std::abs(share) < 0.00005 ? "0.0%" : fmt::format("{:+.1f}%", 100 * share);
  };
  for (const Sensitivity& s : answer.resources) {
    const bool other = s.more && s.more->plan != answer.now.plan;
    table.Row({Meaning(s.name), s.value, cell(s.less), cell(s.more),
               most > 0 ? Bar(std::max(0.0, -change(s.more)) / most, kBar) : std::string(),
               other ? BriefName(s.more->plan) : "-"});
  }
  table.DropIfAll("another plan with 10% more", "-");
  return Bold("What a tenth more of each resource would buy", style) +
         fmt::format(" (step of the best plan, searched again; now {} by the estimate)\n",
                     FormatSeconds(answer.now.step)) +
         table.Text(style) + '\n' + OptionsText(answer, style);
}

}  // namespace millwright
