// SPDX-License-Identifier: Apache-2.0
//
// millwright simulate: one step of a plan, task by task, under any pipeline schedule.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>

#include "cli/commands.h"
#include "cli/full_flags.h"
#include "cli/html_flag.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/progress.h"
#include "cli/simulated_plan.h"
#include "core/mistakes.h"
#include "planner/measured_range.h"
#include "report/file_writer.h"
#include "report/json.h"
#include "report/simulate_text.h"
#include "report/step_page.h"
#include "report/trace.h"

namespace millwright {
namespace {

// "0,7" into ranks, ascending and each once.
std::vector<int> ParseRanks(CommandLine& line, std::string_view text, int pipeline) {
  constexpr std::size_t kMostShown = 60;
  std::vector<int> ranks;
  for (bool last = false; !last;) {
    const std::size_t comma = text.find(',');
    last = comma == text.npos;
    const std::string_view word = text.substr(0, comma);
    const std::optional<std::int64_t> rank = ParseInteger(word);
    if (!rank || *rank < 0 || *rank >= pipeline) {
      line.Problem("--trace-ranks", fmt::format("expected pipeline ranks from 0 to {}, got \"{}\"",
                                                pipeline - 1, Printable(word, kMostShown)));
    } else {
      ranks.push_back(int(*rank));
    }
    if (!last) text.remove_prefix(comma + 1);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

int SimulateCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("simulate [JOB.json] [OPTIONS]",
                   "One training step of a plan, simulated task by task under any pipeline "
                   "schedule: where the time of each pipeline rank goes, what it waits for, and "
                   "what its memory peaks at. Exit code 1 where it cannot run or does not fit.");
  JobFlags flags;
  PlanFlags plan_flags;
  std::optional<std::string> schedule, trace, trace_ranks, html;
  bool json = false;
  flags.AddTo(line);
  plan_flags.AddWithoutScheduleTo(line);
  line.Text("--schedule", "NAME[:CHUNKS]|FILE", schedule,
            "of the pipeline, built in (see: describe schedules) or from a file as describe "
            "schedule --json writes it (default: the job file's; interleaved with vpp above 1, "
            "else 1f1b)");
  FullFlags full_flags;
  full_flags.AddTo(line);
  line.Section("Output");
  line.Text("--trace", "FILE", trace, "write the timeline for Perfetto or chrome://tracing");
  line.Text("--trace-ranks", "RANK,...", trace_ranks, "only these pipeline ranks (default: all)");
  line.Text("--html", "FILE", html, "write the step as a page for a browser");
  line.Flag("--json", json, "the answer as JSON");
  line.Example("simulate job.json --schedule zb-h1");
  line.Example(
      "simulate --model gpt2 --cluster dgx-h100 --global-batch 64 --seq 1024 --pp 4 --vpp 3");
  line.Example("simulate job.json --html step.html --trace step.json --trace-ranks 0,3");
  line.Example("simulate job.json --slow gpu:17=0.8 --jitter 0.03 --steps 100");
  if (!line.Parse(args, console.out)) return 0;
  Job job = flags.Resolve(line);
  job.parallel = plan_flags.Resolve(line, job, flags.sizes_cluster());
  job.has_parallel = true;
  std::optional<ScheduleAsked> asked;
  if (schedule) {
    try {
      asked = ParseScheduleAsked(*schedule);
      // A schedule asked for here takes the place of the job file's chunks, not of --vpp.
      if (!plan_flags.gives_virtual_stages() && (asked->chunks || !ChoosesChunks(asked->kind))) {
        job.parallel.virtual_stages = 1;
        job.parallel.schedule = ScheduleKind::k1F1B;
      }
      const int vpp = job.parallel.virtual_stages;
      if (asked->chunks && vpp > 1 && *asked->chunks != vpp) {
        line.Problem("--schedule",
                     fmt::format("{} has {} virtual stages a rank, and the plan has {} (--vpp)",
                                 *schedule, *asked->chunks, vpp));
      }
    } catch (const ConfigError& error) {
      NoteError(line, "--schedule", error);
    }
  }
  full_flags.Check(line, job.model.has_moe());
  TraceOptions trace_options;
  if (trace_ranks && !trace) line.Problem("--trace-ranks", "needs --trace");
  if (trace_ranks && trace) {
    trace_options.ranks = ParseRanks(line, *trace_ranks, job.parallel.pipeline);
  }
  CheckHtml(line, html);
  if (html && trace && *html == *trace) line.Problem("--html", "is the file of --trace");
  std::vector<std::string> inputs = flags.files();
  if (schedule) inputs.push_back(*schedule);
  CheckNotInput(line, "--trace", trace, inputs);
  CheckNotInput(line, "--html", html, inputs);
  if (line.HasProblems() && job.has_cluster) full_flags.NoteParts(line, job.cluster);
  line.ThrowIfProblems();
  line.ShowWarnings(console.err);

  std::optional<FileWriter> out, page;  // before the work: what cannot be written is known now
  if (trace) out.emplace(*trace);
  if (html) page.emplace(*html);
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  std::optional<FullAsked> full;
  if (full_flags.asks_for_full()) full = full_flags.Resolve(cluster);
  auto result = SimulatePlan(job, estimator, asked);
  if (const auto* rejection = std::get_if<Rejection>(&result)) {
    for (const auto& file : {trace, html}) {
      if (file) console.err << fmt::format("millwright: no step, so {} is not written\n", *file);
    }
    if (json) {
      console.out << RejectedEstimateJson(job, *rejection, line.warnings());
    } else {
      console.out << CannotRunText(job, *rejection, console.style);
    }
    return 1;
  }
  auto& simulation = std::get<Simulation>(result);
  if (const auto outside = OutsideMeasured(estimator, job.parallel)) {
    console.err << fmt::format("millwright: warning: {}\n", *outside);
  }
  if (full) {
    Progress progress(console);
    full->progress = [&](double share) { progress.Show("simulating every rank", share); };
    const auto start = std::chrono::steady_clock::now();
    simulation.full = SimulateEveryRank(estimator, simulation.plan(), *full, simulation.step);
    simulation.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (out) {
    Progress progress(console);
    trace_options.progress = [&](double share) { progress.Show("writing the trace", share); };
    WriteTrace(job, simulation, trace_options, *out);
    out->Commit();
    progress.Erase();
    SayWritten(*out, console);
  }
  if (page) {
    WriteStepPage(job, simulation, *page);
    page->Commit();
    SayWritten(*page, console);
  }
  console.out << (json ? SimulationJson(job, simulation)
                       : SimulationText(job, simulation, console.style));
  return simulation.fits() ? 0 : 1;
}

}  // namespace millwright
