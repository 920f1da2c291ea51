// SPDX-License-Identifier: Apache-2.0
//
// Each schedule against its rule, written a second time, and against what every schedule must be.
#include "sim/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sim/schedule_file.h"
#include "sim/v_shape.h"

namespace millwright {
namespace {

using testing::ElementsAre;

std::vector<std::string> Orders(const ScheduleChoice& choice) {
  std::vector<std::string> orders;
  for (const auto& order : BuildSchedule(choice).orders) orders.push_back(OrderText(order));
  return orders;
}

std::string Complaint(const ScheduleChoice& choice) {
  try {
    BuildSchedule(choice);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// Text of an order, written pass by pass.
class Line {
 public:
  void Add(std::string_view kind, int micro_batch, int stage) {
    Word(fmt::format("{}{}.{}", kind, micro_batch, stage));
  }
  void Word(const std::string& word) { text_ += (text_.empty() ? "" : " ") + word; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Calls `check` for every (p, m) that `Unmet` lets through, with p of 1 to 16 and m to 4 p.
template <class Check>
void ForSizes(ScheduleChoice choice, const Check& check) {
  int built = 0;
  for (choice.pipeline = 1; choice.pipeline <= 16; ++choice.pipeline) {
    for (choice.micro_batches = 1; choice.micro_batches <= 4 * choice.pipeline;
         ++choice.micro_batches) {
      if (!Unmet(choice).empty()) continue;
      SCOPED_TRACE(
          fmt::format("{} p={} m={}", NameOf(choice.kind), choice.pipeline, choice.micro_batches));
      ++built;
      check(choice);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(built, 0);
}

// ---- rules, each derived anew ----

TEST(Schedule, GpipeRunsAllForwardsFirst) {
  EXPECT_THAT(Orders({ScheduleKind::kGpipe, 2, 3}),
              ElementsAre("F0.0 F1.0 F2.0 BW0.0 BW1.0 BW2.0", "F0.1 F1.1 F2.1 BW0.1 BW1.1 BW2.1"));
}

// 1F1B is what a rank does that prefers a backward to a forward and never holds more than p - r
// micro-batches, if all passes take as long; with at most one forward between two backwards that
// is a rule without times: forward while fewer than p - r are in flight, else backward.
TEST(Schedule, OneForwardOneBackwardHoldsAsManyAsRanksFollow) {
  ForSizes({ScheduleKind::k1F1B}, [](const ScheduleChoice& choice) {
    const std::vector<std::string> orders = Orders(choice);
    for (int r = 0; r < choice.pipeline; ++r) {
      Line line;
      for (int f = 0, b = 0; b < choice.micro_batches;) {
        if (f < choice.micro_batches && f - b < choice.pipeline - r) {
          line.Add("F", f++, r);
        } else {
          line.Add("BW", b++, r);
        }
      }
      ASSERT_EQ(orders[std::size_t(r)], line.text());
    }
  });
}

// Megatron's own arithmetic for micro-batches in groups of p (get_model_chunk_id and
// get_microbatch_id_in_model_chunk): the k-th pass is of chunk (k mod p v) / p and of micro-batch
// (k / (p v)) p + k mod p.
TEST(Schedule, InterleavedCountsAsMegatronDoes) {
  for (const int v : {2, 3, 4}) {
    ForSizes({ScheduleKind::kInterleaved, 1, 1, v}, [v](const ScheduleChoice& choice) {
      const int p = choice.pipeline, m = choice.micro_batches;
      if (m % p != 0) return;
      const std::vector<std::string> orders = Orders(choice);
      for (int r = 0; r < p; ++r) {
        Line line;
        const int total = m * v;
        const int warm = std::min(total, 2 * (p - 1 - r) + (v - 1) * p);
        const auto add = [&](bool forward, int k) {
          const int chunk = k % (p * v) / p;
          line.Add(forward ? "F" : "BW", k / (p * v) * p + k % p,
                   (forward ? chunk : v - 1 - chunk) * p + r);
        };
        for (int k = 0; k < warm; ++k) add(true, k);
        for (int k = warm; k < total; ++k) add(true, k), add(false, k - warm);
        for (int k = total - warm; k < total; ++k) add(false, k);
        ASSERT_EQ(orders[std::size_t(r)], line.text());
      }
    });
  }
}

// 6 micro-batches over 4 ranks: groups of 4 would leave 2, fewer than ranks, groups of 5 leave 1;
// so one group of 6.  Warm-up of the last rank: (v - 1) 6 = 6.
TEST(Schedule, InterleavedTakesTheSmallestGroupThatLeavesNoStub) {
  EXPECT_EQ(Orders({ScheduleKind::kInterleaved, 4, 6, 2})[3],
            "F0.3 F1.3 F2.3 F3.3 F4.3 F5.3 F0.7 BW0.7 F1.7 BW1.7 F2.7 BW2.7 F3.7 BW3.7 F4.7 BW4.7 "
            "F5.7 BW5.7 BW0.3 BW1.3 BW2.3 BW3.3 BW4.3 BW5.3");
  EXPECT_EQ(GroupSize(4, 8), 4);
  EXPECT_EQ(GroupSize(4, 9), 5);   // 5 and 4
  EXPECT_EQ(GroupSize(4, 13), 7);  // 7 and 6; 4 would leave 1, 5 leave 3, 6 leave 1
}

// PyTorch's ScheduleInterleaved1F1B forms max(1, m / p) rounds of m / rounds micro-batches and
// refuses an m that rounds do not divide.  Where it does not, we agree.
TEST(Schedule, GroupsAgreeWithPyTorchs) {
  int agreed = 0;
  for (int p = 1; p <= 16; ++p) {
    for (int m = p; m <= 6 * p; ++m) {
      const int rounds = std::max(1, m / p);
      if (m % rounds != 0) continue;
      ++agreed;
      EXPECT_EQ(GroupSize(p, m), m / rounds) << p << " " << m;
    }
  }
  EXPECT_GT(agreed, 200);
}

TEST(Schedule, InterleavedTakesAGroupAskedFor) {
  // Groups of 3 over 2 ranks: 0 1 2 through chunk 0, then chunk 1; then 3 4 5.
  EXPECT_EQ(Orders({ScheduleKind::kInterleaved, 2, 6, 2, 3})[1],
            "F0.1 F1.1 F2.1 F0.3 BW0.3 F1.3 BW1.3 F2.3 BW2.3 F3.1 BW0.1 F4.1 BW1.1 F5.1 BW2.1 "
            "F3.3 BW3.3 F4.3 BW4.3 F5.3 BW5.3 BW3.1 BW4.1 BW5.1");
}

TEST(Schedule, BreadthFirstFinishesAChunkBeforeTheNext) {
  EXPECT_THAT(Orders({ScheduleKind::kBreadthFirst, 2, 2, 2}),
              ElementsAre("F0.0 F1.0 F0.2 F1.2 BW0.2 BW1.2 BW0.0 BW1.0",
                          "F0.1 F1.1 F0.3 F1.3 BW0.3 BW1.3 BW0.1 BW1.1"));
}

TEST(Schedule, ForwardOnlyHasNoBackward) {
  EXPECT_THAT(Orders({ScheduleKind::kForwardOnly, 2, 3}),
              ElementsAre("F0.0 F1.0 F2.0", "F0.1 F1.1 F2.1"));
  EXPECT_THAT(Orders({ScheduleKind::kForwardOnly, 2, 4, 2}),
              ElementsAre("F0.0 F1.0 F0.2 F1.2 F2.0 F3.0 F2.2 F3.2",
                          "F0.1 F1.1 F0.3 F1.3 F2.1 F3.1 F2.3 F3.3"));
}

// H1: p-1-r forwards; then F, B and, from the r-th B on, W; the other W at the end.
TEST(Schedule, ZbH1FollowsItsRule) {
  ForSizes({ScheduleKind::kZbH1}, [](const ScheduleChoice& choice) {
    const std::vector<std::string> orders = Orders(choice);
    for (int r = 0; r < choice.pipeline; ++r) {
      Line line;
      int f = 0, w = 0;
      while (f < std::min(choice.micro_batches, choice.pipeline - 1 - r)) line.Add("F", f++, r);
      for (int b = 0; b < choice.micro_batches; ++b) {
        if (f < choice.micro_batches) line.Add("F", f++, r);
        line.Add("B", b, r);
        if (b >= r) line.Add("W", w++, r);
      }
      while (w < choice.micro_batches) line.Add("W", w++, r);
      ASSERT_EQ(orders[std::size_t(r)], line.text());
    }
  });
}

// H2: 2(p-r)-1 forwards; then B, from the 2r-th on W, and F.  Such an F never makes more than 2p-1
// in flight until W, which is asked here instead of taken from the rule.
TEST(Schedule, ZbH2KeepsTwicePipelineLessOneInFlight) {
  ForSizes({ScheduleKind::kZbH2}, [](const ScheduleChoice& choice) {
    const int p = choice.pipeline, m = choice.micro_batches;
    const std::vector<std::string> orders = Orders(choice);
    for (int r = 0; r < p; ++r) {
      Line line;
      int f = 0, b = 0, w = 0;
      while (f < std::min(m, 2 * (p - r) - 1)) line.Add("F", f++, r);
      while (b < m) {
        line.Add("B", b++, r);
        if (b > 2 * r) line.Add("W", w++, r);
        if (f < m && f - w < 2 * p - 1) line.Add("F", f++, r);
      }
      while (w < m) line.Add("W", w++, r);
      ASSERT_EQ(orders[std::size_t(r)], line.text());
    }
  });
}

// Of ZB-V for n micro-batches, those that are not there drop out.
TEST(Schedule, ZbVWithFewMicroBatchesIsALongerOneWithoutTheRest) {
  for (int p = 1; p <= 16; ++p) {
    const int n = 2 * p - 1;
    const PipelineSchedule full = BuildSchedule({ScheduleKind::kZbV, p, n});
    for (int m = 1; m < n; ++m) {
      const PipelineSchedule part = BuildSchedule({ScheduleKind::kZbV, p, m});
      for (int r = 0; r < p; ++r) {
        std::vector<Pass> expected = full.orders[std::size_t(r)];
        std::erase_if(expected, [&](const Pass& pass) { return pass.micro_batch >= m; });
        ASSERT_EQ(OrderText(part.orders[std::size_t(r)]), OrderText(expected));
      }
    }
  }
}

// ZB-V's rule for m >= 2p - 1, phase by phase, in the letters of PyTorch's comment.
TEST(Schedule, ZbVFollowsItsRule) {
  ForSizes({ScheduleKind::kZbV}, [](const ScheduleChoice& choice) {
    const int p = choice.pipeline, m = choice.micro_batches;
    if (m < 2 * p - 1) return;
    const std::vector<std::string> orders = Orders(choice);
    for (int r = 0; r < p; ++r) {
      Line line;
      std::map<std::string, int> next;  // "F0" and so on
      const auto run = [&](const char* what) {
        line.Add(std::string_view(what, 1), next[what]++, what[1] == '0' ? r : 2 * p - 1 - r);
      };
      for (int i = 0; i < 2 * (p - r) - 1; ++i) run("F0");
      for (int i = 0; i < r; ++i) run("F1"), run("F0");
      for (int i = 0; i < p - r; ++i) run("F1"), run("B1"), run("W1");
      while (next["F1"] < m) {
        if (next["F0"] < m) run("F0");
        run("B0"), run("W0"), run("F1"), run("B1"), run("W1");
      }
      while (next["B1"] < m) run("B0"), run("B1");
      while (next["B0"] < m) run("B0"), run("W0");
      while (next["W1"] < m) run("W1");
      while (next["W0"] < m) run("W0");
      ASSERT_EQ(orders[std::size_t(r)], line.text());
    }
  });
}

// DualPipe's two halves mirror each other: rank p-1-r does what r does with directions swapped.
TEST(Schedule, DualPipeIsItsOwnMirrorImage) {
  ForSizes({ScheduleKind::kDualPipe}, [](const ScheduleChoice& choice) {
    const PipelineSchedule schedule = BuildSchedule(choice);
    const int p = choice.pipeline;
    for (int r = 0; r < p; ++r) {
      std::vector<Pass> mirror = schedule.orders[std::size_t(p - 1 - r)];
      for (Pass& pass : mirror) pass.stage = static_cast<std::uint16_t>((pass.stage + p) % (2 * p));
      ASSERT_EQ(schedule.orders[std::size_t(r)], mirror);
    }
  });
}

// The first half of DualPipe on p ranks is DualPipeV on p/2 with half of the micro-batches: what
// leaves the middle for the other half comes back from it.
TEST(Schedule, DualPipeVIsDualPipeFolded) {
  ForSizes({ScheduleKind::kDualPipe}, [](const ScheduleChoice& choice) {
    const PipelineSchedule whole = BuildSchedule(choice);
    const int n = choice.pipeline / 2;
    const PipelineSchedule folded =
        BuildSchedule({ScheduleKind::kDualPipeV, n, choice.micro_batches / 2});
    for (int r = 0; r < n; ++r) {
      std::vector<Pass> expected = whole.orders[std::size_t(r)];
      for (Pass& pass : expected) {  // the reverse direction's stage 4n-1-r is chunk 1's, 2n-1-r
        if (pass.stage >= 2 * n) pass.stage = static_cast<std::uint16_t>(pass.stage - 2 * n);
      }
      ASSERT_EQ(folded.orders[std::size_t(r)], expected);
    }
  });
}

// Eight phases in the letters of deepseek-ai/DualPipe's step comments (nF0, nF0F1, nB1W1F1,
// nF0B1F1B0, nB1F1B0, nB1B0, nWB0, nW).
TEST(Schedule, DualPipeVFollowsItsRule) {
  ForSizes({ScheduleKind::kDualPipeV}, [](const ScheduleChoice& choice) {
    const int n = choice.pipeline, m = choice.micro_batches;
    const std::vector<std::string> orders = Orders(choice);
    for (int r = 0; r < n; ++r) {
      Line line;
      int f[2] = {}, b[2] = {};
      std::vector<std::string> weights;
      const auto at = [&](int i, int chunk) {
        return fmt::format("{}.{}", i, chunk == 0 ? r : 2 * n - 1 - r);
      };
      const auto forward = [&](int c) { line.Word("F" + at(f[c]++, c)); };
      const auto whole = [&](int c) { line.Word("BW" + at(b[c]++, c)); };
      const auto input = [&](int c) {
        weights.push_back("W" + at(b[c], c));
        line.Word("B" + at(b[c]++, c));
      };
      const auto weight = [&] {
        line.Word(weights.front());
        weights.erase(weights.begin());
      };
      const auto pair = [&](int c, int d) {
        line.Word("[F" + at(f[c]++, c) + "&BW" + at(b[d]++, d) + "]");
      };
      for (int i = 0; i < (n - r - 1) * 2; ++i) forward(0);
      for (int i = 0; i < r + 1; ++i) forward(0), forward(1);
      for (int i = 0; i < n - r - 1; ++i) input(1), weight(), forward(1);
      for (int i = 0; i < m - 2 * n + r + 1; ++i) {
        if (i == 0 && r == n - 1) {
          forward(0), whole(1);
        } else {
          pair(0, 1);
        }
        pair(1, 0);
      }
      for (int i = 0; i < n - r - 1; ++i) whole(1), pair(1, 0);
      // Of these 2(r+1) the last r+1 are split: halves of pairs come from r's parity.
      for (int i = 0; i < 2 * (r + 1); ++i) {
        const int chunk = 1 - i % 2;
        if (i < r + 1) {
          whole(chunk);
        } else {
          input(chunk);
        }
      }
      for (int i = 0; i < n - r - 1; ++i) weight(), input(0);
      for (int i = 0; i < r + 1; ++i) weight();
      ASSERT_EQ(orders[std::size_t(r)], line.text());
      ASSERT_TRUE(weights.empty());
    }
  });
}

// ---- what every schedule must be ----

class EverySchedule : public testing::TestWithParam<ScheduleChoice> {};

TEST_P(EverySchedule, RunsEachPassOnceWhereItsStageLies) {
  ForSizes(GetParam(), [](const ScheduleChoice& choice) {
    const PipelineSchedule schedule = BuildSchedule(choice);
    ASSERT_EQ(schedule.pipeline, choice.pipeline);
    ASSERT_EQ(schedule.micro_batches, choice.micro_batches);
    ASSERT_EQ(schedule.orders.size(), std::size_t(choice.pipeline));
    ASSERT_EQ(schedule.stages(),
              schedule.directions * schedule.pipeline * schedule.chunk_cost_divisor);
    for (const ScheduleMistake& mistake : MistakesIn(schedule)) {
      FAIL() << mistake.rank << ": " << mistake.what;
    }
  });
}

// Micro-batches pass a stage in order, so that a first-in-first-out channel carries them.
TEST_P(EverySchedule, KeepsMicroBatchesInOrderOnAStage) {
  ForSizes(GetParam(), [](const ScheduleChoice& choice) {
    for (const auto& order : BuildSchedule(choice).orders) {
      std::map<std::pair<int, bool>, int> last;
      for (const Pass& pass : order) {
        if (pass.kind == PassKind::kBackwardWeight) continue;
        int& before =
            last.try_emplace({pass.stage, pass.kind == PassKind::kForward}, -1).first->second;
        ASSERT_EQ(pass.micro_batch, before + 1);
        before = pass.micro_batch;
      }
    }
  });
}

std::string ParamName(const testing::TestParamInfo<ScheduleChoice>& info) {
  std::string name(NameOf(info.param.kind));
  std::replace(name.begin(), name.end(), '-', '_');
  return fmt::format("{}_{}", name, info.param.virtual_stages);
}

INSTANTIATE_TEST_SUITE_P(
    Schedule, EverySchedule,
    testing::Values(ScheduleChoice{ScheduleKind::kGpipe}, ScheduleChoice{ScheduleKind::k1F1B},
                    ScheduleChoice{ScheduleKind::kInterleaved, 1, 1, 2},
                    ScheduleChoice{ScheduleKind::kInterleaved, 1, 1, 3},
                    ScheduleChoice{ScheduleKind::kInterleaved, 1, 1, 5},
                    ScheduleChoice{ScheduleKind::kZbH1}, ScheduleChoice{ScheduleKind::kZbH2},
                    ScheduleChoice{ScheduleKind::kZbV}, ScheduleChoice{ScheduleKind::kVHalf},
                    ScheduleChoice{ScheduleKind::kVMin}, ScheduleChoice{ScheduleKind::kVZb},
                    ScheduleChoice{ScheduleKind::kDualPipe},
                    ScheduleChoice{ScheduleKind::kDualPipeV},
                    ScheduleChoice{ScheduleKind::kBreadthFirst},
                    ScheduleChoice{ScheduleKind::kBreadthFirst, 1, 1, 3},
                    ScheduleChoice{ScheduleKind::kForwardOnly},
                    ScheduleChoice{ScheduleKind::kForwardOnly, 1, 1, 2}),
    ParamName);

// ---- what cannot be built ----

TEST(Schedule, SaysWhatItNeeds) {
  EXPECT_EQ(Complaint({ScheduleKind::kDualPipe, 3, 7}),
            "schedule dualpipe: needs an even number of pipeline ranks, got 3\n"
            "schedule dualpipe: needs an even number of micro-batches, got 7");
  EXPECT_EQ(Complaint({ScheduleKind::kDualPipe, 4, 6}),
            "schedule dualpipe: needs at least 8 micro-batches, two a pipeline rank, got 6");
  EXPECT_EQ(Complaint({ScheduleKind::kDualPipeV, 4, 7}),
            "schedule dualpipe-v: needs at least 8 micro-batches, two a pipeline rank, got 7");
  EXPECT_EQ(Complaint({ScheduleKind::kInterleaved, 4, 3}),
            "schedule interleaved: needs at least 2 virtual stages a rank, got 1\n"
            "schedule interleaved: needs at least 4 micro-batches, one a pipeline rank, got 3");
  EXPECT_EQ(Complaint({ScheduleKind::kInterleaved, 4, 8, 2, 3}),
            "schedule interleaved: needs a micro-batch group from 4, the pipeline ranks, to 8, the "
            "micro-batches, got 3");
  EXPECT_EQ(Complaint({ScheduleKind::kInterleaved, 4, 8, 2, 6}),
            "schedule interleaved: needs a micro-batch group that leaves none of 8 micro-batches "
            "over, or at least 4, the pipeline ranks, got 6, which leaves 2");
  EXPECT_EQ(Complaint({ScheduleKind::kGpipe, 0, -1, 0, 4}),
            "schedule gpipe: needs at least 1 pipeline rank, got 0\n"
            "schedule gpipe: needs at least 1 micro-batch, got -1\n"
            "schedule gpipe: needs at least 1 virtual stage a rank, got 0\n"
            "schedule gpipe: takes no micro-batch group, got 4");
  EXPECT_EQ(Complaint({ScheduleKind::k1F1B, 4, 8, 2}),
            "schedule 1f1b: has 1 virtual stage a rank, got 2");
  EXPECT_EQ(Complaint({ScheduleKind::kZbV, 4, 8, 3}),
            "schedule zb-v: has 2 virtual stages a rank, got 3");
  EXPECT_EQ(Complaint({ScheduleKind::kVHalf, 4, 8, 2}), "");
  EXPECT_EQ(Complaint({ScheduleKind::kInterleaved, 1024, 1024, 65}),
            "schedule interleaved: can have at most 65536 stages, got 66560");
  EXPECT_EQ(Complaint({ScheduleKind::kZbH1, 1000, 1'000'000}),
            "schedule zb-h1: can have at most 134217728 passes, got 3000000000");
}

TEST(Schedule, NamesAreParsed) {
  EXPECT_EQ(ParseScheduleChoice("interleaved:4"),
            (ScheduleChoice{.kind = ScheduleKind::kInterleaved, .virtual_stages = 4}));
  EXPECT_EQ(ParseScheduleChoice("zb-h2"), (ScheduleChoice{.kind = ScheduleKind::kZbH2}));
  const auto complaint = [](const char* text) -> std::string {
    try {
      ParseScheduleChoice(text);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(complaint("dualpip"),
            "unknown schedule \"dualpip\", did you mean \"dualpipe\"?; there are gpipe, 1f1b, "
            "interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, v-zb, dualpipe, dualpipe-v, bfs, "
            "forward-only");
  EXPECT_EQ(complaint("interleaved:x"),
            "schedule \"interleaved:x\": expected a number of virtual stages of at least 1 behind "
            "the colon, as in interleaved:4, got \"x\"");
  EXPECT_EQ(complaint("interleaved:"),
            "schedule \"interleaved:\": expected a number of virtual stages of at least 1 behind "
            "the colon, as in interleaved:4, got \"\"");
}

TEST(SplitsBackward, IsWhatTheOrdersDo) {
  for (const auto& name : ScheduleKindNames()) {
    SCOPED_TRACE(name.name);
    const PipelineSchedule schedule =
        BuildSchedule({.kind = name.value,
                       .pipeline = 4,
                       .micro_batches = 8,
                       .virtual_stages = ChoosesChunks(name.value) ? 2 : 1});
    bool split = false;
    for (const std::vector<Pass>& order : schedule.orders) {
      for (const Pass& pass : order) split = split || pass.kind == PassKind::kBackwardWeight;
    }
    EXPECT_EQ(SplitsBackward(name.value), split);
  }
}

}  // namespace
}  // namespace millwright
