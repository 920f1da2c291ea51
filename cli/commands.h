// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program: `millwright COMMAND ...`.
//
// Everything is written to the streams given, so that a test can run a command and read it.
// Exit codes: 0 yes; 1 the answer is no (nothing fits); 2 the input is wrong; 3 our own bug; 4 a
// rank of a run died; 128 and the signal's number where one interrupted.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

#include "report/text.h"

namespace millwright {

struct Console {
  std::ostream& out;
  std::ostream& err;
  Style style{};                 // of what goes to `out`
  bool err_is_terminal = false;  // then progress is one line that rewrites itself
  bool progress = true;          // a test reads `err`, and how long it takes is not its business
};

// The whole program: args without its name.  Throws nothing.
int Run(std::span<const std::string> args, Console& console);

// One command each, args without its name; they throw ConfigError.
int PlanCommand(std::span<const std::string> args, Console& console);
int EstimateCommand(std::span<const std::string> args, Console& console);
int SimulateCommand(std::span<const std::string> args, Console& console);
int SweepCommand(std::span<const std::string> args, Console& console);
int CompareCommand(std::span<const std::string> args, Console& console);
int CalibrateCommand(std::span<const std::string> args, Console& console);
int RunPlanCommand(std::span<const std::string> args, Console& console);
int MeasureCommand(std::span<const std::string> args, Console& console);
int ValidateCommand(std::span<const std::string> args, Console& console);
int DescribeCommand(std::span<const std::string> args, Console& console);

// One rank of `run`, `measure` or `plan`; the first of args is the command, the others are its own.
class Communicator;
int RankCommand(std::span<const std::string> args, Console& console, Communicator& communicator);
// One rank of `plan` under mpirun; args are those of `plan`.
int PlanRankCommand(std::span<const std::string> args, Console& console,
                    Communicator& communicator);
int RunRankCommand(std::span<const std::string> args, Console& console, Communicator& communicator);
int MeasureRankCommand(std::span<const std::string> args, Console& console,
                       Communicator& communicator);

}  // namespace millwright
