// SPDX-License-Identifier: Apache-2.0
//
// millwright estimate: what one plan costs, in time and memory, by item.

#include <fmt/format.h>

#include <ostream>

#include "cli/commands.h"
#include "cli/export_flags.h"
#include "cli/import_flags.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/measured_range.h"
#include "report/estimate_text.h"
#include "report/json.h"

namespace millwright {

int EstimateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("estimate [JOB.json] [OPTIONS]",
                   "What one plan costs: the seconds of a step and the bytes of each pipeline "
                   "stage, by item. Exit code 1 where it cannot run or does not fit.");
  JobFlags flags;
  PlanFlags plan_flags;
  bool json = false;
  flags.AddTo(line);
  plan_flags.AddTo(line);
  ImportFlags import;
  import.AddTo(line);
  line.Section("Output");
  line.Flag("--json", json, "the answer as JSON");
  std::optional<std::string> out;
  line.Text("--out", "FOLDER", out, "for the job file and the files of --export");
  ExportFlags exports;
  exports.AddTo(line);
  line.Example(
      "estimate --model llama-3.1-8b --cluster dgx-h100 --global-batch 64 --seq 8192 "
      "--tp 2");
  line.Example("estimate --from-megatron pretrain.sh --cluster dgx-h100");
  line.Example("estimate job.json --recompute 'selective(mlp)' --json");
  if (!line.Parse(args, console.out)) return 0;
  exports.Check(line, out);
  if (out && !exports.asked()) line.Problem("--out", "needs --export");
  Job job = import.asked() ? import.Resolve(line, flags) : flags.Resolve(line);
  // What a script says of the cluster's size has been taken into account.
  job.parallel = plan_flags.Resolve(line, job, flags.sizes_cluster() && !import.asked());
  job.has_parallel = true;
  line.ThrowIfProblems();
  line.ShowWarnings(console.err);
  import.ShowIgnored(console);

  const Cluster cluster(job.cluster);
  if (const Verdict verdict =
          CheckPlan(job.model, job.training, cluster.gpu(), cluster.gpus(), job.parallel)) {
    if (json) {
      console.out << RejectedEstimateJson(job, *verdict, line.warnings());
    } else {
      console.out << Bold(Wrapped(fmt::format("{} cannot run: {}.", BriefName(job.parallel),
                                              verdict->detail),
                                  console.style.width, 0),
                          console.style)
                  << "\n\n"
                  << QuestionText(job, console.style);
    }
    return 1;
  }
  const Estimator estimator(job.model, job.training, cluster);
  const Estimate estimate = estimator.Itemise(job.parallel);
  std::vector<std::string> warnings = line.warnings();
  if (const auto outside = OutsideMeasured(estimator, job.parallel)) {
    warnings.push_back(*outside);
    console.err << fmt::format("millwright: warning: {}\n", *outside);
  }
  std::optional<Exported> exported;
  if (exports.asked()) {
    job.has_model = job.has_training = job.has_cluster = true;
    exported = exports.Make(job);
  }
  console.out << (json ? EstimateJson(job, estimate, warnings, exported)
                       : EstimateText(job, estimate, console.style));
  console.out.flush();
  if (exported) ExportFlags::Write(*out, *exported, console);
  return estimate.fits() ? 0 : 1;
}

}  // namespace millwright
