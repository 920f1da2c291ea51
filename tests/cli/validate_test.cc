// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/page.h"
#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kRuns[] = "tests/data/runs.json";

TEST(Validate, Json) {
  const Outcome outcome = RunCommand({"validate", "--runs", kRuns, "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["overall"]["n"], 7);  // the eighth ran out of memory
  EXPECT_EQ(json["rows"].size(), 8);
  EXPECT_EQ(json["unsupported"].size(), 0);
  EXPECT_EQ(json["groups"]["megatron"]["n"], 2);
  for (const Json& row : json["rows"]) {
    if (row["measured_step_s"].is_null()) continue;
    // The error is what it says it is.
    EXPECT_DOUBLE_EQ(
        row["error"].get<double>(),
        row["predicted_step_s"].get<double>() / row["measured_step_s"].get<double>() - 1);
  }
  // The same file, the same bytes.
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--json"}).out, outcome.out);
}

TEST(Validate, ExitCodeOneAboveTheErrorAllowed) {
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--max-error", "30"}).code, 0);
  EXPECT_EQ(RunCommand({"validate", "--runs", kRuns, "--max-error", "0"}).code, 1);
}

TEST(Validate, Text) {
  const Outcome outcome = RunCommand({"validate", "--runs", kRuns});
  EXPECT_THAT(outcome.out, StartsWith("8 of 8 runs modelled; 7 step times are predicted with"));
  EXPECT_THAT(outcome.out, HasSubstr("Of 1 run that ran out of memory, 1 predicted not to fit."));
}

TEST(Validate, WrongInput) {
  EXPECT_EQ(RunCommand(std::string("validate")).err,
            "millwright: --runs: missing; give a file of measured training steps, --executed or "
            "--ops\n");
  const Outcome none = RunCommand({"validate", "--runs", "no_such_file.json"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, StartsWith("millwright: no_such_file.json: "));
}

class ValidateFile : public InFolder {};

TEST_F(ValidateFile, RunsThatCannotBeModelledAreListed) {
  Write("r.json", R"([{"id": "ours-1", "gpu": "TPU"}, {"id": "ours-2"}])");
  const Outcome outcome = RunCommand({"validate", "--runs", "r.json"});
  EXPECT_EQ(outcome.code, 1);  // nothing could be compared
  EXPECT_THAT(outcome.out, HasSubstr("Not modelled\n"
                                     "  1 no cluster preset with the GPU TPU: ours-1\n"
                                     "  1 the GPU is not given: ours-2\n"));
}

TEST_F(ValidateFile, PageNamesEveryRunAndHoldsNoMarkupOfTheirs) {
  if (!HasPageLibrary()) GTEST_SKIP() << NoPageLibrary();
  const std::string run = R"({"id": "ours-%", "gpu": "H100", "num_gpus": 8, "gbs": 8, "mbs": 1,
      "model": {"name": "</script><b>", "layers": 2, "hidden": 1024, "heads": 8, "vocab": 1000,
                "seq": 1024}, "measured": {"step_s": 1}})";
  std::string first = run, second = run;
  first.replace(first.find('%'), 1, "1");
  second.replace(second.find('%'), 1, "2");
  Write("r.json", "[" + first + "," + second + "]");
  const Outcome outcome = RunCommand("validate --runs r.json --html v.html");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, StartsWith("millwright: wrote v.html, "));
  const std::string page = Read("v.html");
  EXPECT_THAT(page, HasSubstr("\"id\":\"ours-1\""));
  EXPECT_THAT(page, HasSubstr("\"id\":\"ours-2\""));
  EXPECT_THAT(page, testing::Not(HasSubstr("</script><b>")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cb>"));
}

}  // namespace
}  // namespace millwright
