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
  if (!best) return fmt::format("None of {} has a plan that fits.", of);
  const std::string name = answer.NameOf(answer.chosen);
  if (objective == Objective::kMemory) {
    return fmt::format("Least memory of {} needs {}: {}.", of, name, FormatBytes(best->peak()));
  }
  return fmt::format("The fastest of {} is {}: {} a step.", of, name, PerStep(best->step()));
}

std::string OptionsText(const OptionsAnswer& answer, Objective objective, const Style& style) {
  TextTable table;
  for (const SweepAxis& axis : answer.axes) table.Column(axis.name, Align::kLeft);
  for (const char* title : {"step", "slower", "peak"}) table.Column(title);
  table.Column("best plan", Align::kLeft);
  // By step, those without a plan last.
  std::vector<std::size_t> order(answer.choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto step = [&](std::size_t i) {
    const auto& best = answer.choices[i].best;
    return best ? best->step() : Seconds(1e300);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return step(a) < step(b); });
  for (const std::size_t i : order) {
    const OptionsAnswer::Choice& choice = answer.choices[i];
    std::vector<std::string> row = SweepPoint(answer.axes, i);
    if (choice.best) {
      const double slower = step(i) / step(order.front()) - 1;
      row.push_back(PerStep(step(i)));
      row.push_back(i == order.front() ? "" : fmt::format("{:+.1f}%", 100 * slower));
      row.push_back(GiB(choice.best->peak()));
      row.push_back(BriefName(choice.best->estimate.plan));
    } else {
      row.insert(row.end(), {"-", "", "-", choice.reason});
    }
    table.Row(std::move(row));
  }
  return Bold(Wrapped(OptionsSentence(answer, objective), style.width, 0), style) + "\n\n" +
         table.Text(style) + "What an option does to the loss is not looked at.\n\n";
}

}  // namespace millwright
