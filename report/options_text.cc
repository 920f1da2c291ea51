// SPDX-License-Identifier: Apache-2.0
#include "report/options_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "core/unit_text.h"
#include "report/estimate_text.h"

namespace millwright {

std::string OptionsSentence(const OptionsAnswer& answer, Objective objective) {
  const auto& best = answer.choices[answer.chosen].best;
  const std::string of = Counted(std::ssize(answer.choices), "choice") + " of options";
  const std::string name = answer.NameOf(answer.chosen);
  if (!best && answer.choices.size() == 1) return fmt::format("No plan with {} fits.", name);
  if (!best) return fmt::format("None of {} has a plan that fits.", of);
  if (objective == Objective::kMemory) {
    return fmt::format("Least memory of {} needs {}: {}.", of, name, FormatBytes(best->peak()));
  }
  const auto& high = answer.choices[answer.chosen].high;
  return fmt::format("The fastest of {} is {}: {} a step{}.", of, name, PerStep(best->step()),
                     high ? fmt::format(", {} at the end of its range", PerStep(*high)) : "");
}

std::string OptionsText(const OptionsAnswer& answer, Objective objective, const Style& style) {
  TextTable table;
  for (const SweepAxis& axis : answer.axes) table.Column(axis.name, Align::kLeft);
  const bool robust = std::ranges::any_of(
      answer.choices, [](const OptionsAnswer::Choice& choice) { return choice.high.has_value(); });
  table.Column("step");
  if (robust) table.Column("high");
  for (const char* title : {"slower", "peak"}) table.Column(title);
  table.Column("best plan", Align::kLeft);
  // By step, those without a plan last.
  std::vector<std::size_t> order(answer.choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto step = [&](std::size_t i) {
    const OptionsAnswer::Choice& choice = answer.choices[i];
    return choice.best ? choice.high.value_or(choice.best->step()) : Seconds(1e300);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return step(a) < step(b); });
  for (const std::size_t i : order) {
    const OptionsAnswer::Choice& choice = answer.choices[i];
    std::vector<std::string> row = SweepPoint(answer.axes, i);
    if (choice.best) {
      const double slower = step(i) / step(order.front()) - 1;
      row.push_back(PerStep(choice.best->step()));
      if (robust) row.push_back(choice.high ? PerStep(*choice.high) : "-");
      row.push_back(i == order.front() ? "" : fmt::format("{:+.1f}%", 100 * slower));
      row.push_back(GiB(choice.best->peak()));
      row.push_back(BriefName(choice.best->estimate.plan));
    } else {
      row.push_back("-");
      if (robust) row.emplace_back("-");
      row.insert(row.end(), {"", "-", choice.reason});
    }
    table.Row(std::move(row));
  }
  return Bold(Wrapped(OptionsSentence(answer, objective), style.width, 0), style) + "\n\n" +
         table.Text(style) + "What an option does to the loss is not looked at.\n\n";
}

}  // namespace millwright
