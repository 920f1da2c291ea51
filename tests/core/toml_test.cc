// SPDX-License-Identifier: Apache-2.0
#include "core/toml.h"

#include <gtest/gtest.h>

#include "core/config_io.h"

namespace millwright {
namespace {

std::string MessageOf(std::string_view text) {
  try {
    ParseToml("a.toml", text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

// The tree as JSON says it.
std::string Text(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kArray: {
      std::string all = "[";
      for (const JsonValue& one : value.items) all += Text(one) + ";";
      return all + "]";
    }
    case JsonValue::Kind::kObject: {
      std::string all = "{";
      for (const JsonMember& one : value.members) all += one.key + "=" + Text(one.value) + ";";
      return all + "}";
    }
    case JsonValue::Kind::kText:
      return "'" + value.text + "'";
    case JsonValue::Kind::kBool:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kInteger:
      return std::to_string(value.integer);
    default:
      return std::to_string(value.number);
  }
}
std::string Tree(std::string_view text) { return Text(ParseToml("a.toml", text)); }

TEST(Toml, TablesAndValues) {
  EXPECT_EQ(
      Tree("top = 1 # one\n[a]\nb = -2\r\n\"c d\" = 1_000\n[a.e]\nf = 'g\\n'\n[h]\ni.j = true\n"),
      "{top=1;a={b=-2;c d=1000;e={f='g\\n';};};h={i={j=true;};};}");
  EXPECT_EQ(Tree("a = \"b\\\"\\n\"\nc = 1.5\nd = +7\ne = false"),
            "{a='b\"\n';c=1.500000;d=7;e=false;}");
  EXPECT_EQ(Tree("a = [1, [2, # two\n 3],\n 'x',]\nb = {c = 1, d = [ ]}\n"),
            "{a=[1;[2;3;];'x';];b={c=1;d=[];};}");
  EXPECT_EQ(Tree(""), "{}");
}

TEST(Toml, Mistakes) {
  EXPECT_EQ(MessageOf("a = 1\na = 2"), "a.toml: line 2: a is given twice");
  EXPECT_EQ(MessageOf("[a]\nb = 1\n[a]\n"), "a.toml: line 3: table a is given twice");
  EXPECT_EQ(MessageOf("a = 1\n[a.b]"), "a.toml: line 2: a is a value, not a table");
  EXPECT_EQ(MessageOf("a 1"), "a.toml: line 1: expected \"=\"");
  EXPECT_EQ(MessageOf("\n= 1"), "a.toml: line 2: expected a key");
  EXPECT_EQ(MessageOf("a = yes"), "a.toml: line 1: expected a value, got \"yes\"");
  EXPECT_EQ(MessageOf("a ="), "a.toml: line 1: expected a value, got \"\"");
  EXPECT_EQ(MessageOf("a = \"b\nc\""), "a.toml: line 1: a string is not closed");
  EXPECT_EQ(MessageOf("a = \"\"\"b\"\"\""),
            "a.toml: line 1: strings over several lines are not read");
  EXPECT_EQ(MessageOf("a = [1 2]"), "a.toml: line 1: expected \",\" or \"]\"");
  EXPECT_EQ(MessageOf("a = [1,\n"), "a.toml: line 2: an array is not closed: expected \"]\"");
  EXPECT_EQ(MessageOf("a = 1 b"), "a.toml: line 1: expected the end of the line");
  EXPECT_EQ(MessageOf("[[a]]"), "a.toml: line 1: arrays of tables are not read");
  EXPECT_EQ(MessageOf("a = " + std::string(100, '[')),
            "a.toml: line 1: more than 64 levels of nesting");
}

}  // namespace
}  // namespace millwright
