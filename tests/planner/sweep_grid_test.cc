// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config_io.h"

namespace millwright {
namespace {

using testing::ElementsAre;

const std::vector<std::string_view> kNames{"seq", "nodes", "tp"};

std::vector<std::string> ValuesOf(const std::string& text) {
  return ParseSweep("seq=" + text, kNames).front().values;
}
std::string MessageOf(const std::string& text) {
  try {
    ParseSweep(text, kNames);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(SweepGrid, Values) {
  EXPECT_THAT(ValuesOf("4096..32768"), ElementsAre("4096", "8192", "16384", "32768"));
  EXPECT_THAT(ValuesOf("3..20"), ElementsAre("3", "6", "12"));  // 24 is past it
  EXPECT_THAT(ValuesOf("8..32+8"), ElementsAre("8", "16", "24", "32"));
  EXPECT_THAT(ValuesOf("1..81*3"), ElementsAre("1", "3", "9", "27", "81"));
  EXPECT_THAT(ValuesOf("5..5"), ElementsAre("5"));
  EXPECT_THAT(ValuesOf("bf16|fp8"), ElementsAre("bf16", "fp8"));
  EXPECT_THAT(ValuesOf("a=b"), ElementsAre("a=b"));
  EXPECT_EQ(ValuesOf("1..9223372036854775807").size(), 63U);  // powers of two below 2^63
}

TEST(SweepGrid, LastAxisChangesFastest) {
  const std::vector<SweepAxis> axes = ParseSweep("seq=1|2|3,tp=4|8", kNames);
  ASSERT_EQ(SweepPoints(axes), 6U);
  EXPECT_THAT(SweepPoint(axes, 0), ElementsAre("1", "4"));
  EXPECT_THAT(SweepPoint(axes, 1), ElementsAre("1", "8"));
  EXPECT_THAT(SweepPoint(axes, 2), ElementsAre("2", "4"));
  EXPECT_THAT(SweepPoint(axes, 5), ElementsAre("3", "8"));
}

TEST(SweepGrid, Mistakes) {
  EXPECT_EQ(
      MessageOf("sep=1,seq=9..3,tp=,tp=1,nodes=1..9*1"),
      "unknown \"sep\", did you mean \"seq\"?; there are seq, nodes, tp\n"
      "seq: expected FIRST..LAST, FIRST..LAST+STEP or FIRST..LAST*FACTOR with at most 10000 "
      "values, got \"9..3\"\n"
      "tp: expected values, got \"\"\n"
      "tp is given twice\n"
      "nodes: expected FIRST..LAST, FIRST..LAST+STEP or FIRST..LAST*FACTOR with at most 10000 "
      "values, got \"1..9*1\"");
  EXPECT_EQ(MessageOf("seq=1..1000+1,nodes=1..1000+1"), "1000000 points are more than 10000");
  EXPECT_EQ(MessageOf("seq=1..99999999+1").substr(0, 5), "seq: ");
}

}  // namespace
}  // namespace millwright
