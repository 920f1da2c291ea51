// SPDX-License-Identifier: Apache-2.0
#include "report/text.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

TEST(TextTable, AlignsColumns) {
  TextTable table;
  table.Column("Item", Align::kLeft);
  table.Column("time");
  table.Column("", Align::kLeft);
  table.Row({"compute", "52.1 s", "####"});
  table.Row({"bubble", "131 ms", ""});
  EXPECT_EQ(table.Text({}),
            "Item       time\n"
            "compute  52.1 s  ####\n"
            "bubble   131 ms\n");
  EXPECT_EQ(table.Text({}, 2),
            "  Item       time\n"
            "  compute  52.1 s  ####\n"
            "  bubble   131 ms\n");
}

TEST(TextTable, CountsCodePointsNotBytes) {
  TextTable table;
  table.Column("a");
  table.Column("b");
  table.Row({"\xC2\xB5s", "1"});  // a micro sign: two bytes, one column
  table.Row({"xyz", "2"});
  EXPECT_EQ(table.Text({}), "  a  b\n \xC2\xB5s  1\nxyz  2\n");
}

TEST(TextTable, BreaksTheLastColumnBehindCommas) {
  TextTable table;
  table.Column("#");
  table.Column("recompute", Align::kLeft);
  table.Row({"1", "core_attn,layernorm,mla_up_proj"});
  table.Row({"2", "none"});
  // 24 columns less "1" and the gap of two leave 21: core_attn,layernorm, has 20.
  EXPECT_EQ(table.Text({.width = 24}),
            "#  recompute\n"
            "1  core_attn,layernorm,\n"
            "   mla_up_proj\n"
            "2  none\n");
}

TEST(TextTable, DoesNotBreakNumbers) {
  TextTable table;
  table.Column("", Align::kLeft);
  table.Row({"1,127,019 optimizer state, 777,770 activations"});
  EXPECT_EQ(table.Text({.width = 30}),
            "1,127,019 optimizer state,\n"
            "777,770 activations\n");
}

TEST(TextTable, DropsColumnsThatSayNothing) {
  TextTable table;
  table.Column("tp");
  table.Column("ep");
  table.Row({"4", "1"});
  table.Row({"1", "1"});
  table.DropIfAll("tp", "1");
  table.DropIfAll("ep", "1");
  table.DropIfAll("absent", "1");
  EXPECT_EQ(table.Text({}), "tp\n 4\n 1\n");
}

TEST(TextTable, DropsColumnsForWantOfWidth) {
  TextTable table;
  table.Column("tp");
  table.Column("HFU");
  table.Column("recompute", Align::kLeft);
  table.Row({"4", "50.1%", "core_attn,mla_up_proj"});
  // "tp", "50.1%", and at least 12 for the last, two blanks apart: 2 + 2 + 5 + 2 + 12 = 23.
  table.DropIfWide("HFU", {.width = 23});
  EXPECT_EQ(table.Text({.width = 23}),
            "tp    HFU  recompute\n"
            " 4  50.1%  core_attn,\n"
            "           mla_up_proj\n");
  table.DropIfWide("HFU", {.width = 22});
  EXPECT_EQ(table.Text({}), "tp  recompute\n 4  core_attn,mla_up_proj\n");
}

TEST(Wrapped, BreaksAtBlanks) {
  EXPECT_EQ(Wrapped("one two three", 9, 0), "one two\nthree");
  EXPECT_EQ(Wrapped("one two three", 9, 2), "  one two\n  three");
  EXPECT_EQ(Wrapped("immeasurably long", 5, 0), "immeasurably\nlong");
  EXPECT_EQ(Wrapped("", 5, 0), "");
}

TEST(Style, ColoursOnlyWhereAsked) {
  EXPECT_EQ(Bold("x", {}), "x");
  EXPECT_EQ(Bold("x", {.color = true}), "\x1b[1mx\x1b[0m");
}

TEST(Figures, SharesAndCounts) {
  EXPECT_EQ(Percent(0.5012), "50.1%");
  EXPECT_EQ(Bar(0.5, 10), "#####");
  EXPECT_EQ(Bar(1.7, 10), "##########");
  EXPECT_EQ(Bar(-1, 10), "");
  EXPECT_EQ(Counted(1, "node"), "1 node");
  EXPECT_EQ(Counted(1024, "sequence"), "1,024 sequences");
}

}  // namespace
}  // namespace millwright
