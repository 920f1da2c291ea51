// SPDX-License-Identifier: Apache-2.0
//
// millwright calibrate: measurements of one GPU in, its calibration file out.

#include "validate/calibrate.h"

#include <fmt/format.h>

#include <map>
#include <ostream>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "core/mistakes.h"
#include "report/calibration_text.h"
#include "validate/fit_end_to_end.h"
#include "validate/measurement_files.h"

namespace millwright {
namespace {

// Runs of `file` on `gpu`, whose step says something of the end-to-end parameters.
struct OwnRuns {
  std::vector<std::size_t> indices;   // of the set
  std::vector<std::string> left_out;  // how many others, and why
};
OwnRuns OwnRunsOf(const RunSet& set, const GpuSpec& gpu) {
  OwnRuns own;
  std::map<std::string, std::int64_t> others;
  for (const UnsupportedRun& run : set.unsupported()) ++others[run.reason];
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::string& on = set.job(i).job.cluster.gpu.name;
    if (on != gpu.name) {
      ++others["on " + on];
    } else if (!set.run(i).step) {
      ++others["without a step time"];
    } else {
      own.indices.push_back(i);
    }
  }
  for (const auto& [why, n] : others) {
    own.left_out.push_back(fmt::format("{}: {}", Counted(n, "run"), Printable(why, 200)));
  }
  return own;
}

GpuCurves FromRuns(const std::string& file, const GpuSpec& gpu, const std::string& base_file,
                   OwnRuns& own, Console& console) {
  GpuCurves curves{.gpu = gpu.name, .provenance = {}};
  if (!base_file.empty()) {
    curves = ParseCurves(base_file, ReadTextFile(base_file));
    const GpuSpec* const of = GpuNamed(curves.gpu);
    if (of == nullptr || of->name != gpu.name) {
      throw ConfigError(fmt::format("--base: is of {}, where the runs' curves are to be of {}",
                                    Printable(curves.gpu, kMostNameShown), gpu.name));
    }
  }
  const PublishedRuns published = ReadPublishedRuns(file);
  for (const std::string& warning : published.warnings) {
    console.err << fmt::format("millwright: warning: {}\n", warning);
  }
  const RunSet set(published.runs, base_file);
  own = OwnRunsOf(set, gpu);
  if (own.indices.empty()) {
    std::string why;
    for (const std::string& line : own.left_out) why += (why.empty() ? " (" : "; ") + line;
    throw ConfigError(
        fmt::format("--runs: {} has no run on {} with a step time that can be "
                    "modelled{}",
                    Printable(file, kMostNameShown), gpu.name, why.empty() ? why : why + ")"));
  }
  curves.end_to_end = FitOwn(set, own.indices);
  curves.provenance +=
      fmt::format("{}end-to-end parameters by {} on it", curves.provenance.empty() ? "" : "; ",
                  Counted(std::int64_t(own.indices.size()), "training step"));
  return curves;
}

}  // namespace

int CalibrateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("calibrate --ops FOLDER|FILE | --runs FILE --gpu NAME --out FILE [OPTIONS]",
                   "Fits the curves of one GPU to measured operations (--ops): GEMM, attention, "
                   "memory-bound operators and collectives inside a domain, with their errors. Or "
                   "the end-to-end parameters (clocks under load, what the host costs, what "
                   "overlapping leaves) to training steps of your own (--runs).");
  std::vector<std::string> paths;
  std::optional<std::string> runs, gpu, out, base_file;
  bool json = false;
  line.Section("Measurements");
  line.Texts("--ops", "FOLDER|FILE", paths,
             "measured operations: tables as CSV, nccl-tests output as text; or a folder of both");
  line.Text("--runs", "FILE", runs,
            "a JSON array of training steps (README: validate); as few as there are: what they do "
            "not tell stays as shipped");
  line.Text("--gpu", "NAME", gpu, "whose rows or runs to fit (see: describe gpus)");
  line.Text("--base", "FILE", base_file,
            "a calibration file that fits are drawn to, and where what was not measured comes "
            "from; with --runs the curves by which they are predicted, and which are kept");
  line.Section("Output");
  line.Text("--out", "FILE", out, "where the calibration goes");
  line.Flag("--json", json, "what is written, on stdout");
  line.Example("calibrate --ops ../shared/data/ops --gpu H100 --out h100.json");
  line.Example(
      "calibrate --ops gemm.csv --ops all_reduce.txt --gpu H200 --base h100.json --out "
      "ours.json");
  line.Example("calibrate --runs my_runs.json --gpu H100 --out ours.json");
  if (!line.Parse(args, console.out)) return 0;
  if (paths.empty() && !runs) {
    line.Missing("--ops", "expected a folder or files of measurements, or --runs");
  }
  if (!paths.empty() && runs) {
    line.Problem("--runs",
                 "goes without --ops: first curves, then --runs with their file as --base");
  }
  if (!gpu) line.Missing("--gpu", "expected the GPU whose rows to fit");
  if (!out) line.Missing("--out", "expected a file to write");
  line.ThrowIfProblems();

  CheckWritable(*out);
  if (runs) {
    OwnRuns own;
    const GpuCurves curves = FromRuns(*runs, FindGpu(*gpu), base_file.value_or(""), own, console);
    const std::string written = WriteCurves(curves);
    WriteTextFile(*out, written);
    console.out << (json ? written : OwnEndToEndText(curves, own.left_out, *out, console.style));
    return 0;
  }
  const MeasurementSet set = ReadMeasurements(paths);
  std::optional<GpuCurves> base;
  if (base_file) base = ParseCurves(*base_file, ReadTextFile(*base_file));
  std::vector<std::string> without_curve;
  const GpuCurves curves = Calibrate(set, *gpu, base ? &*base : nullptr, true, &without_curve);
  for (const std::string& note : without_curve) {
    console.err << "millwright: note: " << note << '\n';
  }
  const std::string written = WriteCurves(curves);
  WriteTextFile(*out, written);
  console.out << (json ? written : CalibrationText(curves, set, *out, console.style));
  return 0;
}

}  // namespace millwright
