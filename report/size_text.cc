// SPDX-License-Identifier: Apache-2.0
#include "report/size_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/unit_text.h"
#include "report/estimate_text.h"

namespace millwright {
namespace {

std::string Usd(double usd) {
  return usd >= 1e6 ? fmt::format("{:.3g} M", usd / 1e6) : FormatInteger(std::llround(usd));
}

bool ByDraws(const SizeAnswer& answer) {
  return std::any_of(answer.sizes.begin(), answer.sizes.end(),
                     [](const ClusterSize& size) { return size.high.has_value(); });
}

// What the numbers of a size are by, where that is not the step itself.
std::string_view How(const SizeAnswer& answer) {
  return ByDraws(answer) ? " (by the step that --robust ranks by)" : "";
}

}  // namespace

std::string SizeSentence(const SizeAnswer& answer) {
  const SizeQuestion& q = answer.question;
  const ClusterSize& size = answer.sizes[answer.chosen];
  if (!size.best) {
    return fmt::format("No plan fits {}.",
                       answer.sizes.size() == 1 ? Counted(size.nodes, "node") : "any of the sizes");
  }
  const std::string tokens = q.tokens ? FormatCount(*q.tokens) + " tokens" : "";
  const std::string nodes = Counted(size.nodes, "node");
  std::string what;
  if (!answer.met) {
    return fmt::format("No size trains {} within {}: the fastest, {}, takes {}{}.", tokens,
                       FormatSeconds(*q.deadline), nodes, FormatSeconds(answer.TimeOf(size)),
                       How(answer));
  }
  switch (q.objective) {
    case Objective::kThroughput:
      what = q.deadline ? "smallest" : "fastest";
      break;
    case Objective::kCost:
      what = "cheapest";
      break;
    case Objective::kMemory:
      what = "size whose plan needs least memory";
      break;
  }
  if (answer.sizes.size() == 1) {
    what = nodes;
  } else {
    what = fmt::format(
        "The {} of {}{}", what, Counted(std::ssize(answer.sizes), "cluster size"),
        q.deadline ? fmt::format(" that trains {} within {}", tokens, FormatSeconds(*q.deadline))
                   : "");
    what += " is " + nodes;
  }
  std::string text = fmt::format("{}: {} tokens/s", what, FormatRate(answer.TokensPerSecond(size)));
  if (q.tokens) text += fmt::format(", {} for {}", FormatSeconds(answer.TimeOf(size)), tokens);
  if (q.price && q.tokens) text += fmt::format(", {} USD", Usd(answer.UsdOf(size)));
  if (q.price) {
    text +=
        fmt::format(", {} tokens/USD", FormatRate(1 / (*q.price * answer.GpuHoursPerToken(size))));
  }
  return fmt::format("{}{}.", text, How(answer));
}

std::string SizeText(const SizeAnswer& answer, const Style& style) {
  const SizeQuestion& q = answer.question;
  TextTable table;
  const bool by_draws = ByDraws(answer);
  for (const char* title : {"nodes", "GPUs", "step"}) table.Column(title);
  if (by_draws) table.Column("95% and interval");
  for (const char* title : {"tokens/s", "tok/s/GPU"}) table.Column(title);
  if (q.tokens) table.Column("in all");
  if (q.tokens && q.price) table.Column("USD");
  if (q.price) table.Column("tokens/USD");
  const bool chosen = !answer.sizes.front().options.empty();
  if (chosen) table.Column("options", Align::kLeft);
  table.Column("best plan", Align::kLeft);
  for (const ClusterSize& size : answer.sizes) {
    std::vector<std::string> row = {FormatInteger(size.nodes), FormatInteger(size.gpus)};
    const auto add = [&](const auto& text) {
      row.push_back(size.best ? std::string(text()) : "-");
    };
    add([&] { return PerStep(size.best->step()); });
    if (by_draws) add([&] { return PerStep(size.step()); });
    add([&] { return FormatRate(answer.TokensPerSecond(size)); });
    add([&] { return FormatRate(answer.TokensPerSecond(size) / double(size.gpus)); });
    if (q.tokens) add([&] { return FormatSeconds(answer.TimeOf(size)); });
    if (q.tokens && q.price) add([&] { return Usd(answer.UsdOf(size)); });
    if (q.price) add([&] { return FormatRate(1 / (*q.price * answer.GpuHoursPerToken(size))); });
    if (chosen) row.push_back(size.best ? size.options : "-");
    row.push_back(size.best ? BriefName(size.best->estimate.plan) : size.reason);
    table.Row(std::move(row));
  }
  return Bold(Wrapped(SizeSentence(answer), style.width, 0), style) + "\n\n" + table.Text(style) +
         '\n';
}

}  // namespace millwright
