// SPDX-License-Identifier: Apache-2.0
#include "cli/validate_ops.h"

#include <ostream>

#include "report/ops_report.h"
#include "validate/measurement_files.h"
#include "validate/ops.h"

namespace millwright {

void OpsFlags::AddTo(CommandLine& line) {
  line.Texts("--ops", "FOLDER|FILE", paths,
             "measured operations: tables as CSV, nccl-tests output as text; or a folder of both");
}

int ValidateMeasuredOps(const OpsFlags& flags, bool json, Console& console) {
  const MeasurementSet set = ReadMeasurements(flags.paths);
  const OpsValidation validation = ValidateOps(set);
  console.out << (json ? OpsJson(validation, set) : OpsText(validation, set, console.style));
  return 0;
}

}  // namespace millwright
