// SPDX-License-Identifier: Apache-2.0
#include "cli/aim_flags.h"

#include <fmt/format.h>

#include "core/mistakes.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

constexpr Seconds kMostDeadline(1e4 * 86400);
constexpr double kMostTokens = 1e18;

// A number, of thousands (k), millions (M), billions (B, G) or trillions (T).
std::optional<double> ParseTokens(std::string_view text) {
  double scale = 1;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
        scale = 1e3;
        break;
      case 'M':
        scale = 1e6;
        break;
      case 'B':
      case 'G':
        scale = 1e9;
        break;
      case 'T':
        scale = 1e12;
        break;
      default:
        break;
    }
  }
  if (scale > 1) text.remove_suffix(1);
  std::optional<double> value = ParseNumber(text);
  if (value) *value *= scale;
  if (!value || *value < 1 || *value > kMostTokens) return {};
  return value;
}

}  // namespace

void AimFlags::AddTo(CommandLine& line) {
  line.Enum(
      "--objective", objective_, ObjectiveNames(),
      "the fastest plan, the cheapest a token, or the one that needs least memory; fastest and "
      "cheapest differ between cluster sizes alone (default: throughput; cost with --price and no "
      "--deadline)");
  line.Text("--tokens", "N", tokens_, "to be trained in all: 15T, 300B");
  line.Text(
      "--deadline", "TIME", deadline_,
      "for those, 30d or 12h: the smallest of the sizes that --nodes names which meets it; under "
      "--robust by the step that it ranks by, as --price too");
  line.Number("--price", price_, {.min = 1e-3, .max = 1e6},
              "USD for a GPU and hour: what it costs, and the cheapest size");
}

SizeQuestion AimFlags::Resolve(CommandLine& line, const std::vector<int>& nodes) const {
  SizeQuestion question{.nodes = nodes, .price = price_};
  if (tokens_) {
    question.tokens = ParseTokens(*tokens_);
    if (!question.tokens) {
      line.Problem(
          "--tokens",
          fmt::format("expected a number of tokens from 1 to 1e18, such as 15T, got \"{}\"",
                      Printable(*tokens_, kMostNameShown)));
    }
  }
  if (deadline_) {
    question.deadline = ParseDuration(*deadline_);
    if (!question.deadline || question.deadline->value <= 0 || *question.deadline > kMostDeadline) {
      line.Problem(
          "--deadline",
          fmt::format("expected a time above 0 s and up to 10000 d, such as 30d, got \"{}\"",
                      Printable(*deadline_, kMostNameShown)));
    }
    if (!tokens_) line.Problem("--deadline", "needs --tokens, which are to be trained by then");
  }
  question.objective =
      objective_.value_or(price_ && !deadline_ ? Objective::kCost : Objective::kThroughput);
  return question;
}

}  // namespace millwright
