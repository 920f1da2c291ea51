// SPDX-License-Identifier: Apache-2.0
#include "validate/published_run.h"

#include <gtest/gtest.h>

#include "tests/read_config.h"

namespace millwright {
namespace {

TEST(PublishedRuns, WhatIsAbsentOrNullIsNotKnown) {
  const PublishedRuns read =
      ParsePublishedRuns("r.json", R"([{"id": "ours-1", "gpu": "H100-80GB", "tp": 8, "pp": null,
                     "model": {"layers": 32, "moe": null},
                     "measured": {"step_s": 1.5, "mem_gb": 2, "mem_unit": "GiB"}}, {}])");
  ASSERT_EQ(read.runs.size(), 2U);
  const PublishedRun& run = read.runs[0];
  EXPECT_EQ(run.group(), "ours");
  EXPECT_EQ(run.tp, 8);
  EXPECT_EQ(run.pp, std::nullopt);
  EXPECT_EQ(run.model.layers, 32);
  EXPECT_FALSE(run.model.moe);
  EXPECT_EQ(run.step, Seconds(1.5));
  EXPECT_EQ(run.memory, 2_GiB);
  EXPECT_EQ(read.runs[1].id, "run-1");  // its place in the file
  EXPECT_TRUE(read.warnings.empty());
}

TEST(PublishedRuns, MemoryWithoutAUnitIsInGigabytes) {
  const PublishedRuns read = ParsePublishedRuns("r.json", R"([{"measured": {"mem_gb": 3}}])");
  EXPECT_EQ(read.runs[0].memory, 3_GB);
}

TEST(PublishedRuns, EveryMistakeOfAFileAtOnce) {
  EXPECT_EQ(Complaint([] {
              ParsePublishedRuns("r.json", R"([
          {"id": "a", "tp": 0, "zero": 4, "sp": "on", "gbs": 1.5, "model": [],
           "measured": {"step_s": -1, "mem_gb": 80000000000, "mem_unit": "MB"}},
          {"id": "a", "model": {"layers": 1e400, "moe": {"experts": "8"}},
           "measured": {"step_s": NaN}},
          7])");
            }),
            "r.json: at /0/model: expected an object, got []\n"
            "r.json: at /0/tp: expected an integer from 1 to 1048576, got 0\n"
            "r.json: at /0/sp: expected true or false, got \"on\"\n"
            "r.json: at /0/zero: expected an integer from 0 to 3, got 4\n"
            "r.json: at /0/gbs: expected an integer from 1 to 1073741824, got 1.5\n"
            "r.json: at /0/measured/step_s: expected a number above 0, at most 1000000, got -1\n"
            "r.json: at /0/measured/mem_gb: expected a number above 0.01, at most 10000, got "
            "80000000000\n"
            "r.json: at /0/measured/mem_unit: expected one of \"GB\", \"GiB\", got \"MB\"\n"
            "r.json: at /1/model/layers: expected an integer from 1 to 10000, got 1e400 (beyond "
            "the range "
            "of a double)\n"
            "r.json: at /1/model/moe/experts: expected an integer from 1 to 65536, got \"8\"\n"
            "r.json: at /1/measured/step_s: expected a number above 0, at most 1000000, got NaN\n"
            "r.json: at /1/id: expected an id of its own, got \"a\", which an earlier run has\n"
            "r.json: at /2: expected a run, got 7");
  EXPECT_EQ(Complaint([] { ParsePublishedRuns("r.json", "{}"); }),
            "r.json: expected an array of runs, got {}");
}

// Files of others hold keys that nothing here reads; only a slip of the pen is worth a word.
TEST(PublishedRuns, KeysNearlySpeltAsOneThatIsReadAreWarnedOf) {
  const PublishedRuns read =
      ParsePublishedRuns("r.json", R"([{"trust": "A", "num_gpu": 8, "measured": {"step_sec": 1},
                     "traits": {"cuda_graph": "maybe"}}])");
  const std::vector<std::string> expected = {
      "r.json: at /0/measured/step_sec: this key is not read; did you mean \"step_s\"?",
      "r.json: at /0/num_gpu: this key is not read; did you mean \"num_gpus\"?",
      "r.json: at /0/traits/cuda_graph: taken as not said: \"maybe\" is none of none, partial, "
      "full",
  };
  EXPECT_EQ(read.warnings, expected);
}

}  // namespace
}  // namespace millwright
