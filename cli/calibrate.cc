// SPDX-License-Identifier: Apache-2.0
//
// millwright calibrate: measurements of one GPU in, its calibration file out.

#include "validate/calibrate.h"

#include <ostream>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "report/calibration_text.h"
#include "validate/measurement_files.h"

namespace millwright {

int CalibrateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("calibrate --ops FOLDER|FILE --gpu NAME --out FILE [OPTIONS]",
                   "Fits the curves of one GPU to measured operations: GEMM, attention, "
                   "memory-bound operators and collectives inside a domain, with their errors.");
  std::vector<std::string> paths;
  std::optional<std::string> gpu, out, base_file;
  line.Section("Measurements");
  line.Texts("--ops", "FOLDER|FILE", paths,
             "measured operations: tables as CSV, nccl-tests output as text; or a folder of both");
  line.Text("--gpu", "NAME", gpu, "whose rows to fit (see: describe gpus)");
  line.Text("--base", "FILE", base_file,
            "a calibration file that fits are drawn to, and where what was not measured comes "
            "from");
  line.Section("Output");
  line.Text("--out", "FILE", out, "where the calibration goes");
  line.Example("calibrate --ops ../shared/data/ops --gpu H100 --out h100.json");
  line.Example(
      "calibrate --ops gemm.csv --ops all_reduce.txt --gpu H200 --base h100.json --out "
      "ours.json");
  if (!line.Parse(args, console.out)) return 0;
  if (paths.empty()) line.Missing("--ops", "expected a folder or files of measurements");
  if (!gpu) line.Missing("--gpu", "expected the GPU whose rows to fit");
  if (!out) line.Missing("--out", "expected a file to write");
  line.ThrowIfProblems();

  CheckWritable(*out);
  const MeasurementSet set = ReadMeasurements(paths);
  std::optional<GpuCurves> base;
  if (base_file) base = ParseCurves(*base_file, ReadTextFile(*base_file));
  std::vector<std::string> without_curve;
  const GpuCurves curves = Calibrate(set, *gpu, base ? &*base : nullptr, true, &without_curve);
  for (const std::string& note : without_curve) {
    console.err << "millwright: note: " << note << '\n';
  }
  WriteTextFile(*out, WriteCurves(curves));
  console.out << CalibrationText(curves, set, *out, console.style);
  return 0;
}

}  // namespace millwright
