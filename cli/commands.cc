// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <ostream>
#include <string_view>

#include "cli/interrupt.h"
#include "core/check.h"
#include "core/config_io.h"
#include "core/mistakes.h"
#include "runtime/backend.h"
#include "runtime/communicator.h"

namespace millwright {
namespace {

constexpr std::string_view kVersion = "millwright 0.1.0";

constexpr std::string_view kHelp =
    "Usage: millwright COMMAND ...\n"
    "\n"
    "Simulates training of large transformers on a GPU cluster and plans its parallelism.\n"
    "\n"
    "Commands:\n"
    "  plan      the fastest plans that fit a model on a cluster, and why\n"
    "  estimate  what one plan costs: time and memory by item\n"
    "  simulate  one step of a plan, event by event, under any pipeline schedule\n"
    "  sweep     the best plan at each point of a grid of questions\n"
    "  compare   schedules of one plan, or several plans, by simulated step\n"
    "  run       a step of a plan computed for real on CPUs, and verified\n"
    "  measure   single operations timed on this machine, as `run` executes them\n"
    "  calibrate measurements of a GPU in, its calibration file out\n"
    "  validate  how far off predictions are, against what was measured\n"
    "  describe  the presets, what a file says, and every field of every config\n"
    "\n"
    "Examples:\n"
    "  millwright plan --model llama-3.1-70b --cluster dgx-h100 --nodes 16 --global-batch 1024 "
    "--seq 8192\n"
    "  millwright describe models\n"
    "\n"
    "millwright COMMAND --help lists a command's options; millwright --version.\n";

struct Command {
  std::string_view name;
  int (*run)(std::span<const std::string>, Console&);
};
constexpr std::array<Command, 10> kCommands{{
    {"plan", PlanCommand},
    {"estimate", EstimateCommand},
    {"simulate", SimulateCommand},
    {"sweep", SweepCommand},
    {"compare", CompareCommand},
    {"calibrate", CalibrateCommand},
    {"run", RunPlanCommand},
    {"measure", MeasureCommand},
    {"validate", ValidateCommand},
    {"describe", DescribeCommand},
}};

int Dispatch(std::span<const std::string> args, Console& console) {
  if (args.empty()) {
    console.err << kHelp;
    return 2;
  }
  const std::string& name = args.front();
  if (name == "--help" || name == "-h" || name == "help") {
    console.out << kHelp;
    return 0;
  }
  if (name == "--version") {
    console.out << kVersion << '\n';
    return 0;
  }
  std::array<std::string_view, kCommands.size()> names;
  for (std::size_t i = 0; i < kCommands.size(); ++i) {
    if (kCommands[i].name == name) return kCommands[i].run(args.subspan(1), console);
    names[i] = kCommands[i].name;
  }
  const std::string_view nearest = NearestName(name, names);
  constexpr std::size_t kMostShown = 60;
  throw ConfigError(fmt::format(
      "unknown command \"{}\"{}; there are plan, estimate, simulate, sweep, compare, run, "
      "measure, calibrate, validate and describe",
      Printable(name, kMostShown),
      nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest)));
}

void Complain(std::ostream& err, std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    err << "millwright: " << line << '\n';
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
}

}  // namespace

int RankCommand(std::span<const std::string> args, Console& console, Communicator& communicator) {
  if (args.empty()) throw ConfigError("a rank is started by run, measure and plan, not by hand");
  if (args.front() == "run") return RunRankCommand(args.subspan(1), console, communicator);
  if (args.front() == "measure") return MeasureRankCommand(args.subspan(1), console, communicator);
  if (args.front() == "plan") return PlanRankCommand(args.subspan(1), console, communicator);
  throw ConfigError("a rank is started by run, measure and plan, not by hand");
}

int Run(std::span<const std::string> args, Console& console) {
  try {
    return Dispatch(args, console);
  } catch (const Interrupted& interrupted) {
    Complain(console.err, "interrupted");
    return kSignalled + interrupted.signal;
  } catch (const ConfigError& error) {
    Complain(console.err, error.what());
    return 2;
  } catch (const GpuError& error) {
    Complain(console.err, error.what());
    return 4;
  } catch (const RankFailure& error) {
    Complain(console.err, error.what());
    return 4;
  } catch (const std::bad_alloc&) {
    Complain(console.err, "this machine has too little memory for a cluster or a search this big");
    return 2;
  } catch (const std::exception& error) {
    Complain(console.err, error.what());
    return 3;
  }
}

}  // namespace millwright
