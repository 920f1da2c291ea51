// SPDX-License-Identifier: Apache-2.0
//
// millwright validate: how far predictions are off what was measured.

#include <ostream>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/validate_ops.h"

namespace millwright {

int ValidateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("validate --ops FOLDER|FILE [OPTIONS]",
                   "How far predictions are off what was measured: errors by table, GPU and dtype, "
                   "and the worst rows.");
  OpsFlags ops;
  bool json = false;
  line.Section("Measurements");
  ops.AddTo(line);
  line.Section("Output");
  line.Flag("--json", json, "the answer as JSON");
  line.Example("validate --ops ../shared/data/ops");
  line.Example("validate --ops all_reduce.txt --ops gemm.csv --json");
  if (!line.Parse(args, console.out)) return 0;
  if (!ops.given()) line.Missing("--ops", "expected a folder or files of measurements");
  if (ops.calibration && ops.left_out)
    line.Problem("--left-out", "fits its own, not --calibration");
  line.ThrowIfProblems();
  return ValidateMeasuredOps(ops, json, console);
}

}  // namespace millwright
