// SPDX-License-Identifier: Apache-2.0
//
// Which commands, with which words, does a shell script hold?
//
// For reading options out of launch scripts; nothing is run.  Understood: quotes, `\` at the end of
// a line, comments, here-documents (left out), NAME=value and NAME=(array), += of both, export, and
// the expansions $NAME, ${NAME}, ${NAME:-word} and its kin, ${NAME[@]}, $((integer arithmetic)).
// Every branch of if and case, and every body of a loop, is read as if it were run once, in the
// order in which it stands; `conditional_line` says where that first matters.  What only a run can
// know (a command's output, a variable that is not set, a function's argument) becomes kUnknown in
// the word that holds it.
//
// Limits: a megabyte of words, expanded, 64 levels of nesting; beyond, ConfigError.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millwright {

inline constexpr char kUnknown = '\x01';

struct ShellWord {
  std::string text;
  int line = 0;  // from 1
  bool operator==(const ShellWord&) const = default;
};
using ShellCommand = std::vector<ShellWord>;

struct ShellScript {
  std::vector<ShellCommand> commands;  // without their assignments; none is empty
  std::map<std::string, std::string> variables;
  std::map<std::string, std::vector<ShellWord>> arrays;
  std::vector<std::string> array_order;  // by their first assignment
  std::vector<ShellWord> comments;       // with their '#'
  int conditional_line = 0;              // 0: nothing is conditional
};

// `file` is for messages.
ShellScript ReadShell(const std::string& file, std::string_view text);

}  // namespace millwright
