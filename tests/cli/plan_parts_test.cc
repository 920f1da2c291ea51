// SPDX-License-Identifier: Apache-2.0
//
// `plan` shared by ranks, here threads of this process: the bytes of one.
#include "cli/plan_parts.h"

#include <gtest/gtest.h>

#include <mutex>
#include <sstream>

#include "tests/cli/run_command.h"

namespace millwright {
namespace {

// What rank 0 printed; the others print nothing that anybody reads.
Outcome PlanWithRanks(int ranks, const std::string& line) {
  Outcome outcome;
  const std::vector<std::string> args = Words(line);
  RunThreads(ranks, [&](Communicator& communicator) {
    std::ostringstream out, err;
    Console console{.out = out, .err = err, .progress = false};
    const int code = PlanRankCommand(args, console, communicator);
    if (communicator.rank() == 0) outcome = {code, out.str(), err.str()};
  });
  return outcome;
}

std::string WithoutTiming(const std::string& json) {
  return json.substr(0, json.find("\"timing\""));
}

TEST(PlanParts, SameBytesOnOneToFourRanks) {
  for (const char* question :
       {"--model llama-3.1-8b --cluster dgx-h100 --nodes 2 --global-batch 64 --seq 4096 "
        "--schedules all --no-simulate",
        // With simulation, and a search more for each of its parts.
        "--model mixtral-8x7b --cluster dgx-h100 --nodes 2 --global-batch 32 --seq 4096 --explain "
        "pp=2",
        // No plan: what would make it fit is searched too.
        "--model llama-3.1-8b --cluster dgx-h100 --gpus 1 --global-batch 8 --seq 8192"}) {
    SCOPED_TRACE(question);
    const Outcome alone = RunCommand(std::string("plan --json --threads 1 ") + question);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      SCOPED_TRACE(ranks);
      const Outcome shared = PlanWithRanks(ranks, std::string("--json --threads 1 ") + question);
      EXPECT_EQ(shared.code, alone.code);
      EXPECT_EQ(shared.err, alone.err);
      EXPECT_EQ(WithoutTiming(shared.out), WithoutTiming(alone.out));
    }
  }
}

TEST(PlanParts, GathersTextsOfAllRanksInOrder) {
  std::mutex mutex;
  int ranks_seen = 0;
  RunThreads(3, [&](Communicator& communicator) {
    // Of different lengths, and one empty.
    const std::string own(std::size_t(communicator.rank()) * 1000, char('a' + communicator.rank()));
    const std::vector<std::string> all = GatherTexts(communicator, own);
    const std::lock_guard lock(mutex);
    ++ranks_seen;
    EXPECT_EQ(all, (std::vector<std::string>{"", std::string(1000, 'b'), std::string(2000, 'c')}));
  });
  EXPECT_EQ(ranks_seen, 3);
}

}  // namespace
}  // namespace millwright
