// SPDX-License-Identifier: Apache-2.0
//
// The words after `millwright COMMAND`: which options there are, what each was given, and every
// mistake in them at once.
//
// Values are read strictly (an integer is digits, a number is finite), an option that does not
// exist is answered with the nearest that does, and help is written from the same list.  No
// command-line library shows in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_io.h"

namespace millwright {

class CommandLine {
 public:
  // `usage` is what follows the program's name.
  CommandLine(std::string usage, std::string summary);

  // Options that follow stand under this title in the help.
  void Section(std::string title);
  void Positionals(const char* name, std::vector<std::string>& values, std::size_t most,
                   const char* help);
  void Flag(const char* name, bool& value, const char* help);
  // --NAME and --no-NAME.
  void Switch(const char* name, std::optional<bool>& value, const char* help);
  void Text(const char* name, const char* shown, std::optional<std::string>& value,
            const char* help);
  // May be given more than once.
  void Texts(const char* name, const char* shown, std::vector<std::string>& values,
             const char* help);
  void Int(const char* name, std::optional<std::int64_t>& value, IntRange range, const char* help);
  void Number(const char* name, std::optional<double>& value, NumberRange range, const char* help);
  template <class E>
  void Enum(const char* name, std::optional<E>& value, std::span<const EnumName<E>> names,
            const char* help) {
    std::vector<std::string_view> words;
    for (const auto& n : names) words.push_back(n.name);
    Choice(
        name, words, [&value, names](std::size_t i) { value = names[i].value; }, help);
  }
  void Choice(const char* name, std::vector<std::string_view> words,
              std::function<void(std::size_t)> chosen, const char* help);
  void Example(std::string text) { examples_.push_back(std::move(text)); }

  // Takes the arguments apart and notes what is wrong with them.  False where --help was among
  // them; it has then been written to `out`.
  bool Parse(std::span<const std::string> args, std::ostream& out);

  // Whether "--NAME" was among them.
  bool Given(std::string_view name) const;

  // "OPTION: WHAT", or a whole line (or several) where there is no option to name.
  void Problem(std::string_view option, std::string_view what);
  void Problem(std::string_view lines);
  // A problem unless that option has one already, of which this would only be a consequence.
  void Missing(std::string_view option, std::string_view what);
  // What is no mistake, but hardly what was meant.
  void Warning(std::string_view option, std::string_view what);
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Each warning on a line of `err`.
  void ShowWarnings(std::ostream& err) const;
  bool HasProblems() const { return !problems_.empty(); }
  // ConfigError with every problem, one a line.
  void ThrowIfProblems() const;

 private:
  struct Option {
    std::string name;
    std::string section;
    std::string shown;  // placeholder of the value; empty: a flag
    std::string help;
    std::function<void(const std::string&)> take;
    bool in_help = true;
    bool repeatable = false;
  };
  void Add(const char* name, std::string shown, const char* help,
           std::function<void(const std::string&)> take);
  const Option* Find(std::string_view name) const;
  std::string Help() const;

  std::string usage_, summary_, section_ = "Options";
  std::vector<Option> options_;
  std::vector<std::string> examples_;
  std::string positional_name_, positional_help_;
  std::vector<std::string>* positionals_ = nullptr;
  std::size_t most_positionals_ = 0;
  std::vector<std::string> problems_, warnings_, given_;
};

// Whole texts only: digits with an optional sign; a finite decimal.
std::optional<std::int64_t> ParseInteger(std::string_view text);
std::optional<double> ParseNumber(std::string_view text);

}  // namespace millwright
