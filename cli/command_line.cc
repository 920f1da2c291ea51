// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <ostream>

#include "core/mistakes.h"
#include "report/text.h"

namespace millwright {
namespace {

constexpr std::size_t kMostShown = 60;

std::string Got(std::string_view text) {
  return fmt::format("got \"{}\"", Printable(text, kMostShown));
}

std::string Describe(NumberRange range) {
  constexpr double kMost = std::numeric_limits<double>::max();
  if (range.min > -kMost && range.max < kMost) {
    return fmt::format("a number between {} and {}", range.min, range.max);
  }
  if (range.min > -kMost) {
    return fmt::format("a number {} {}", range.min_open ? "above" : "of at least", range.min);
  }
  return "a number";
}

}  // namespace

std::optional<std::int64_t> ParseInteger(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<double> ParseNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

CommandLine::CommandLine(std::string usage, std::string summary)
    : usage_(std::move(usage)), summary_(std::move(summary)) {}

void CommandLine::Section(std::string title) { section_ = std::move(title); }

void CommandLine::Positionals(const char* name, std::vector<std::string>& values, std::size_t most,
                              const char* help) {
  positional_name_ = name;
  positional_help_ = help;
  positionals_ = &values;
  most_positionals_ = most;
}

void CommandLine::Add(const char* name, std::string shown, const char* help,
                      std::function<void(const std::string&)> take) {
  options_.push_back({.name = name,
                      .section = section_,
                      .shown = std::move(shown),
                      .help = help,
                      .take = std::move(take)});
}

void CommandLine::Flag(const char* name, bool& value, const char* help) {
  Add(name, "", help, [&value](const std::string&) { value = true; });
}

void CommandLine::Switch(const char* name, std::optional<bool>& value, const char* help) {
  const auto set = [this, name, &value](bool to) {
    return [this, name, &value, to](const std::string&) {
      if (value && *value != to) {
        Problem(name, fmt::format("--no-{} is given too; give one of them", name + 2));
      }
      value = to;
    };
  };
  Add(name, "", help, set(true));
  Add(fmt::format("--no-{}", name + 2).c_str(), "", "", set(false));
  options_.back().in_help = false;
}

void CommandLine::Text(const char* name, const char* shown, std::optional<std::string>& value,
                       const char* help) {
  Add(name, shown, help, [&value](const std::string& text) { value = text; });
}

void CommandLine::Texts(const char* name, const char* shown, std::vector<std::string>& values,
                        const char* help) {
  Add(name, shown, help, [&values](const std::string& text) { values.push_back(text); });
  options_.back().repeatable = true;
}

void CommandLine::Int(const char* name, std::optional<std::int64_t>& value, IntRange range,
                      const char* help) {
  Add(name, "N", help, [this, name, &value, range](const std::string& text) {
    const std::optional<std::int64_t> parsed = ParseInteger(text);
    if (!parsed || *parsed < range.min || *parsed > range.max) {
      Problem(name, fmt::format("expected an integer between {} and {}, {}", range.min, range.max,
                                Got(text)));
      value = range.min;  // so that one mistake is not reported as another too
    } else {
      value = *parsed;
    }
  });
}

void CommandLine::Number(const char* name, std::optional<double>& value, NumberRange range,
                         const char* help) {
  Add(name, "X", help, [this, name, &value, range](const std::string& text) {
    const std::optional<double> parsed = ParseNumber(text);
    if (!parsed || *parsed < range.min || *parsed > range.max ||
        (range.min_open && *parsed == range.min)) {
      Problem(name, fmt::format("expected {}, {}", Describe(range), Got(text)));
      value = range.min;
    } else {
      value = *parsed;
    }
  });
}

void CommandLine::Choice(const char* name, std::vector<std::string_view> words,
                         std::function<void(std::size_t)> chosen, const char* help) {
  const std::string shown = fmt::format("{}", fmt::join(words, "|"));
  Add(name, shown, help,
      [this, name, words = std::move(words), chosen = std::move(chosen)](const std::string& text) {
        const auto it = std::find(words.begin(), words.end(), text);
        if (it != words.end()) return chosen(static_cast<std::size_t>(it - words.begin()));
        const std::string_view nearest = NearestName(text, words);
        Problem(name,
                fmt::format("expected one of {}, {}{}", fmt::join(words, ", "), Got(text),
                            nearest.empty() ? std::string()
                                            : fmt::format("; did you mean \"{}\"?", nearest)));
      });
}

const CommandLine::Option* CommandLine::Find(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

bool CommandLine::Given(std::string_view name) const {
  return std::find(given_.begin(), given_.end(), name) != given_.end();
}

bool CommandLine::Parse(std::span<const std::string> args, std::ostream& out) {
  // Options that do not exist are dealt with first, so that the value behind one is not taken
  // for something else.
  std::vector<std::string> known;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      out << Help();
      return false;
    }
    if (arg.empty()) {
      Problem("an argument is empty");
      continue;
    }
    if (arg.size() < 2 || arg[0] != '-') {
      known.push_back(arg);
      continue;
    }
    const std::string name = arg.substr(0, arg.find('='));
    const bool inline_value = name.size() < arg.size();
    const Option* option = Find(name);
    if (option != nullptr && option->shown.empty() && inline_value) {
      Problem(name, "takes no value");
    } else if (option != nullptr && inline_value && name.size() + 1 == arg.size()) {
      Problem(name, fmt::format("expected a value ({})", option->shown));
    } else if (option != nullptr) {
      known.push_back(arg);
      given_.push_back(name);
      if (option->shown.empty() || inline_value) continue;
      // The next word is its value, whatever it looks like, unless it is an option.
      if (i + 1 == args.size() || args[i + 1].empty() ||
          Find(args[i + 1].substr(0, args[i + 1].find('='))) != nullptr) {
        Problem(name, fmt::format("expected a value ({})", option->shown));
        known.pop_back();
        if (i + 1 < args.size() && args[i + 1].empty()) ++i;  // that was meant to be it
      } else {
        known.back() += '=' + args[++i];
      }
    } else {
      std::vector<std::string_view> names;
      for (const Option& o : options_) names.push_back(o.name);
      const std::string_view nearest = NearestName(name, names);
      Problem(fmt::format(
          "unknown option \"{}\"{}", Printable(name, kMostShown),
          nearest.empty() ? "; --help lists all" : fmt::format(", did you mean \"{}\"?", nearest)));
      const Option* meant = Find(nearest);
      const bool takes_value = meant == nullptr || !meant->shown.empty();
      if (takes_value && !inline_value && i + 1 < args.size() && !args[i + 1].starts_with('-')) ++i;
    }
  }

  CLI::App app;
  app.set_help_flag();
  for (const Option& option : options_) {
    if (option.shown.empty()) {
      app.add_flag_function(option.name, [&option](std::int64_t) { option.take(""); });
    } else {
      app.add_option_function<std::vector<std::string>>(
             option.name,
             [this, &option](const std::vector<std::string>& values) {
               if (values.size() > 1 && !option.repeatable) {
                 Problem(option.name, fmt::format("given {} times", values.size()));
               }
               for (const std::string& value : values) option.take(value);
             })
          ->expected(1)
          ->allow_extra_args(false)  // a vector would swallow the words behind its value
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
  }
  app.allow_extras();
  try {
    std::reverse(known.begin(), known.end());  // as CLI11 pops them
    app.parse(known);
  } catch (const CLI::ParseError& error) {
    Problem(error.what());
  }
  for (const std::string& word : app.remaining()) {
    if (positionals_ != nullptr && positionals_->size() < most_positionals_) {
      positionals_->push_back(word);
    } else {
      Problem(fmt::format("unexpected argument \"{}\"", Printable(word, kMostShown)));
    }
  }
  return true;
}

void CommandLine::Problem(std::string_view option, std::string_view what) {
  problems_.push_back(fmt::format("{}: {}", option, what));
}

void CommandLine::Problem(std::string_view lines) { problems_.emplace_back(lines); }

void CommandLine::Missing(std::string_view option, std::string_view what) {
  const std::string start = fmt::format("{}: ", option);
  const bool known = std::any_of(problems_.begin(), problems_.end(),
                                 [&](const std::string& one) { return one.starts_with(start); });
  if (!known) Problem(option, what);
}

void CommandLine::Warning(std::string_view option, std::string_view what) {
  warnings_.push_back(fmt::format("{}: {}", option, what));
}

void CommandLine::ShowWarnings(std::ostream& err) const {
  for (const std::string& one : warnings_) err << "millwright: warning: " << one << '\n';
}

void CommandLine::ThrowIfProblems() const {
  if (HasProblems()) throw ConfigError(fmt::format("{}", fmt::join(problems_, "\n")));
}

std::string CommandLine::Help() const {
  constexpr int kHelpColumn = 32, kWidth = 100;
  std::string text =
      fmt::format("Usage: millwright {}\n\n{}\n", usage_, Wrapped(summary_, kWidth, 0));
  const auto entry = [&](std::string head, std::string_view help) {
    std::string body = Wrapped(help, kWidth, kHelpColumn);
    body.erase(0, std::min(body.find_first_not_of(' '), body.size()));
    head = fmt::format("  {:<{}}", head, kHelpColumn - 2);
    if (int(head.size()) > kHelpColumn || !head.ends_with(' ')) {
      head += fmt::format("\n{:{}}", "", kHelpColumn);
    }
    text += head + body + '\n';
  };
  if (!positional_name_.empty()) {
    text += '\n';
    entry(positional_name_, positional_help_);
  }
  std::string_view section;
  for (const Option& option : options_) {
    if (!option.in_help) continue;
    if (option.section != section) {
      text += fmt::format("\n{}:\n", option.section);
      section = option.section;
    }
    const Option* opposite = Find("--no-" + option.name.substr(2));
    std::string head = option.name;
    if (opposite != nullptr && !opposite->in_help) head = "--[no-]" + option.name.substr(2);
    if (!option.shown.empty()) head += ' ' + option.shown;
    entry(head, option.help);
  }
  if (!examples_.empty()) text += "\nExamples:\n";
  for (const std::string& example : examples_) text += fmt::format("  millwright {}\n", example);
  return text;
}

}  // namespace millwright
