// SPDX-License-Identifier: Apache-2.0
#include "core/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config_io.h"

namespace millwright {
namespace {

using testing::ElementsAre;

// Each command's words, as bash would divide them.
std::vector<std::vector<std::string>> Commands(std::string_view text) {
  std::vector<std::vector<std::string>> all;
  for (const ShellCommand& command : ReadShell("test.sh", text).commands) {
    all.emplace_back();
    for (const ShellWord& word : command) all.back().push_back(word.text);
  }
  return all;
}
const std::string kWhoKnows(1, kUnknown);

TEST(ShellWords, DivideAtBlanksAndOperators) {
  EXPECT_THAT(Commands("a  b\tc; d && e|f &\n# g\nh#i # j\n"),
              ElementsAre(ElementsAre("a", "b", "c"), ElementsAre("d"), ElementsAre("e"),
                          ElementsAre("f"), ElementsAre("h#i")));
}

TEST(ShellWords, GoOnBehindABackslash) {
  EXPECT_THAT(Commands("a \\\n  b\\\nc \\\r\n d"), ElementsAre(ElementsAre("a", "bc", "d")));
}

TEST(ShellWords, Quotations) {
  EXPECT_THAT(
      Commands("'a b' \"c $X d\" e\\ f \"\" \"\\$g \\\"h\\\" \\i\" '$X'"),
      ElementsAre(ElementsAre("a b", "c " + kWhoKnows + " d", "e f", "", "$g \"h\" \\i", "$X")));
}

TEST(ShellWords, VariablesAreSplitWhereTheyAreNotQuoted) {
  EXPECT_THAT(Commands("A='x  y'\nf $A \"$A\" ${A}z -$A\n"),
              ElementsAre(ElementsAre("f", "x", "y", "x  y", "x", "yz", "-x", "y")));
  EXPECT_THAT(Commands("A=1; A+=2 B=$A export C=${A}3; export D\nf $A $B $C"),
              ElementsAre(ElementsAre("f", "12", "12", "123")));
}

TEST(ShellWords, Defaults) {
  EXPECT_THAT(Commands("E=; f ${A:-1} ${1:-2} ${E:-3} ${E-4}x ${A:+5}x ${E:=6} ${A:-\"7 8\"}"),
              ElementsAre(ElementsAre("f", "1", "2", "3", "x", "x", "6", "7", "8")));
  EXPECT_THAT(Commands("f ${A:-${B:-${C:-9}}}"), ElementsAre(ElementsAre("f", "9")));
}

TEST(ShellWords, Arrays) {
  EXPECT_THAT(Commands("A=(\n --x 1 # one\n  --y '2 3'\n)\nA+=(--z)\nE=()\n"
                       "f \"${A[@]}\" ${A[@]} $A ${E[@]} \"${E[@]}\" g"),
              ElementsAre(ElementsAre("f", "--x", "1", "--y", "2 3", "--z", "--x", "1", "--y", "2",
                                      "3", "--z", "--x", "g")));
}

TEST(ShellWords, KeepTheLineOfAnArraysElement) {
  const ShellScript script = ReadShell("test.sh", "A=(\n--x\n--y\n)\nf \\\n g ${A[@]}\n");
  ASSERT_EQ(script.commands.size(), 1U);
  std::vector<int> lines;
  for (const ShellWord& word : script.commands[0]) lines.push_back(word.line);
  EXPECT_THAT(lines, ElementsAre(5, 6, 2, 3));
}

TEST(ShellWords, Arithmetic) {
  EXPECT_THAT(Commands("G=8; N=4; W=$((G*$N)); f $W $(( (${N}+1) * 2 - 10/3 )) $((7%4)) $((1/0)) "
                       "$((X)) $((9223372036854775807+1))"),
              ElementsAre(ElementsAre("f", "32", "7", "3", kWhoKnows, kWhoKnows, kWhoKnows)));
}

TEST(ShellWords, WhatOnlyARunKnows) {
  EXPECT_THAT(Commands("f $1 $(date +%s) `hostname` $? ${A%x} ${#A} x$(echo \")\" )y"),
              ElementsAre(ElementsAre("f", kWhoKnows, kWhoKnows, kWhoKnows, kWhoKnows, kWhoKnows,
                                      kWhoKnows, "x" + kWhoKnows + "y")));
}

TEST(ShellWords, RedirectionsAndHereDocumentsAreLeftOut) {
  EXPECT_THAT(
      Commands("f a 2>&1 >log.txt <in b\ng <<EOF c\nh i\n$(\nEOF\nj 2\n"),
      ElementsAre(ElementsAre("f", "a", "b"), ElementsAre("g", "c"), ElementsAre("j", "2")));
}

TEST(ShellWords, BranchesAreRead) {
  const ShellScript script =
      ReadShell("test.sh", "A=1\nif [ $A = 2 ]; then\n  B=3\nelse B=4; fi\nf $B\n");
  EXPECT_EQ(script.commands.back().back().text, "4");  // the later one
  EXPECT_EQ(script.conditional_line, 2);
}

TEST(ShellWords, WhatIsNotClosed) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      ReadShell("test.sh", text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message("\n'a"), "test.sh: line 2: a quotation is not closed: expected \"'\"");
  EXPECT_EQ(message("\"a"), "test.sh: line 1: a quotation is not closed: expected '\"'");
  EXPECT_EQ(message("A=(a\n"), "test.sh: line 2: an array is not closed: expected \")\"");
  EXPECT_EQ(message("f ${A"), "test.sh: line 1: an expansion is not closed: expected \"}\"");
  EXPECT_EQ(message("f $((1"), "test.sh: line 1: a parenthesis is not closed: expected \")\"");
}

TEST(ShellWords, GrowOnlySoFar) {
  // Doubled 40 times, four bytes would be four terabytes.
  std::string text = "A=abcd\n";
  for (int i = 0; i < 40; ++i) text += "A=$A$A\n";
  try {
    ReadShell("test.sh", text);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("holds more than a megabyte of words, expanded"));
  }
  std::string nested = "f ";
  for (int i = 0; i < 100; ++i) nested += "${A:-";
  EXPECT_THROW(ReadShell("test.sh", nested), ConfigError);
}

}  // namespace
}  // namespace millwright
