// SPDX-License-Identifier: Apache-2.0
#include "cli/validate_ops.h"

#include <ostream>

#include "report/ops_report.h"
#include "validate/calibrate.h"
#include "validate/measurement_files.h"
#include "validate/ops.h"

namespace millwright {

void OpsFlags::AddTo(CommandLine& line) {
  line.Texts("--ops", "FOLDER|FILE", paths,
             "measured operations: tables as CSV, nccl-tests output as text; or a folder of both");
  line.Text("--calibration", "FILE", calibration,
            "curves to judge, as calibrate writes them, for the GPU they are of; with --executed "
            "and --runs those to predict by");
  line.Flag("--left-out", left_out,
            "judge fits to four fifths of the shapes, five times, each by the shapes left out");
}

void OpsFlags::Refuse(CommandLine& line) const {
  if (left_out) line.Problem("--left-out", "goes with --ops");
}

int ValidateMeasuredOps(const OpsFlags& flags, bool json, Console& console) {
  if (flags.calibration && flags.left_out) {
    throw ConfigError("--left-out: fits its own curves, and judges no --calibration");
  }
  const MeasurementSet set = ReadMeasurements(flags.paths);
  std::optional<GpuCurves> curves;
  if (flags.calibration) {
    curves = ParseCurves(*flags.calibration, ReadTextFile(*flags.calibration));
  }
  const OpsValidation validation =
      ValidateOps(set, flags.left_out ? PredictLeftOut(set)
                                      : PredictOperations(set, curves ? &*curves : nullptr));
  console.out << (json ? OpsJson(validation, set) : OpsText(validation, set, console.style));
  return 0;
}

}  // namespace millwright
