// SPDX-License-Identifier: Apache-2.0
//
// millwright compare: schedules of one plan, or the plans of several jobs, by simulated step.

#include <fmt/format.h>

#include <chrono>
#include <ostream>

#include "cli/commands.h"
#include "cli/html_flag.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/progress.h"
#include "cli/simulated_plan.h"
#include "report/json.h"
#include "report/simulate_text.h"
#include "report/step_page.h"

namespace millwright {
namespace {

constexpr std::string_view kDefaultSchedules =
    "gpipe,1f1b,interleaved:2,bfs:2,zb-h1,zb-h2,zb-v,v-half,v-min,v-zb,dualpipe,dualpipe-v";

std::vector<ScheduleAsked> ParseSchedules(CommandLine& line, std::string_view text) {
  std::vector<ScheduleAsked> schedules;
  for (bool last = false; !last;) {
    const std::size_t comma = text.find(',');
    last = comma == text.npos;
    try {
      schedules.push_back(ParseScheduleAsked(text.substr(0, comma)));
    } catch (const ConfigError& error) {
      NoteError(line, "--schedules", error);
    }
    if (!last) text.remove_prefix(comma + 1);
  }
  return schedules;
}

class Comparer {
 public:
  // `drawn`: how many rows are to be drawn, 0 for none.
  Comparer(Console& console, std::size_t drawn) : progress_(console), drawn_(drawn) {}

  void Add(const Job& job, const Estimator& estimator, const std::string& name,
           const std::optional<ScheduleAsked>& asked, double share_done) {
    progress_.Show("simulating", share_done);
    ComparedPlan row{.name = name, .plan = job.parallel, .gpus = job.cluster.gpus()};
    try {
      auto result = SimulatePlan(job, estimator, asked);
      if (auto* simulation = std::get_if<Simulation>(&result)) {
        if (drawn_ > 0) row.picture = PictureOf(simulation->step, LimitsOfRow(drawn_));
        // The graph is not asked for again, and many of them are large.
        simulation->step.graph = TaskGraph(0);
        simulation->step.timeline = {.makespan = simulation->step.timeline.makespan};
        row.simulation = std::move(*simulation);
      } else {
        row.why_not = std::get<Rejection>(result).detail;
      }
    } catch (const ConfigError& error) {
      row.why_not = error.what();
    }
    comparison_.rows.push_back(std::move(row));
  }

  Comparison Finish() {
    progress_.Erase();
    comparison_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return std::move(comparison_);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Progress progress_;
  const std::size_t drawn_;
  Comparison comparison_;
};

// Every job, flags over it; problems of one are told apart by its file.
std::vector<Job> ResolveJobs(CommandLine& line, const JobFlags& flags,
                             const PlanFlags& plan_flags) {
  std::vector<Job> jobs;
  for (const std::string& file : flags.files()) {
    CommandLine of_file("", "");
    Job& job = jobs.emplace_back(flags.Resolve(of_file, file));
    job.parallel = plan_flags.Resolve(of_file, job, flags.sizes_cluster());
    job.has_parallel = true;
    try {
      of_file.ThrowIfProblems();
    } catch (const ConfigError& error) {
      // What is wrong in the file itself says so.
      const bool named = std::string_view(error.what()).starts_with(file);
      NoteError(line, named ? std::string_view() : std::string_view(file), error);
    }
  }
  return jobs;
}

}  // namespace

int CompareCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("compare [JOB.json ...] [OPTIONS]",
                   "Pipeline schedules of one plan, or the plans of several jobs, simulated and "
                   "put in one table. Exit code 1 where none fits.");
  JobFlags flags;
  PlanFlags plan_flags;
  std::optional<std::string> schedules, html;
  bool json = false;
  constexpr std::size_t kMostJobs = 1000;
  flags.AddTo(line, kMostJobs);
  plan_flags.AddWithoutScheduleTo(line);
  line.Section("Comparison");
  line.Text("--schedules", "NAME[:CHUNKS],...", schedules,
            "of one job (see: describe schedules; default: all that train)");
  line.Section("Output");
  line.Text("--html", "FILE", html, "write table and timelines as a page for a browser");
  line.Flag("--json", json, "the answer as JSON");
  line.Example("compare job.json --schedules 1f1b,interleaved:4,zb-h1,zb-v,dualpipe");
  line.Example("compare a.json b.json c.json --html compared.html");
  if (!line.Parse(args, console.out)) return 0;

  const bool of_jobs = flags.files().size() > 1;
  std::vector<ScheduleAsked> asked;
  if (of_jobs && schedules) {
    line.Problem("--schedules", "compares schedules of one job, and several are given");
  } else if (!of_jobs) {
    asked = ParseSchedules(line, schedules.value_or(std::string(kDefaultSchedules)));
  }
  CheckHtml(line, html);
  const std::size_t rows = of_jobs ? flags.files().size() : asked.size();
  Comparer comparer(console, html ? rows : 0);
  std::optional<FileWriter> page;  // before the work: what cannot be written is known now
  const auto write_page = [&](const Job* job, const Comparison& comparison) {
    if (!page) return;
    WriteComparisonPage(job, comparison, *page);
    page->Commit();
    SayWritten(*page, console);
  };
  if (of_jobs) {
    const std::vector<Job> jobs = ResolveJobs(line, flags, plan_flags);
    line.ThrowIfProblems();
    line.ShowWarnings(console.err);
    if (html) page.emplace(*html);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const Cluster cluster(jobs[i].cluster);
      comparer.Add(jobs[i], Estimator(jobs[i].model, jobs[i].training, cluster), flags.files()[i],
                   {}, double(i) / double(jobs.size()));
    }
    const Comparison comparison = comparer.Finish();
    write_page(nullptr, comparison);
    console.out << (json ? JobComparisonJson(comparison)
                         : JobComparisonText(comparison, console.style));
    return comparison.any_fits() ? 0 : 1;
  }

  Job job = flags.Resolve(line);
  job.parallel = plan_flags.Resolve(line, job, flags.sizes_cluster());
  job.has_parallel = true;
  line.ThrowIfProblems();
  line.ShowWarnings(console.err);
  if (html) page.emplace(*html);
  if (const Verdict verdict = CheckWithoutSchedule(job)) {
    if (html) console.err << fmt::format("millwright: no step, so {} is not written\n", *html);
    console.out << (json ? RejectedEstimateJson(job, *verdict, line.warnings())
                         : CannotRunText(job, *verdict, console.style));
    return 1;
  }
  if (!schedules && job.parallel.virtual_stages > 1) {  // the job's own, too
    asked.push_back(ParseScheduleAsked(fmt::format("interleaved:{}", job.parallel.virtual_stages)));
  }
  // A schedule brings its own chunks; the plan's are for those that let one choose.
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ScheduleAsked one = asked[i];
    if (!one.chunks && !ChoosesChunks(one.kind)) one.chunks = 1;
    comparer.Add(job, estimator, one.text, one, double(i) / double(asked.size()));
  }
  const Comparison comparison = comparer.Finish();
  write_page(&job, comparison);
  console.out << (json ? ScheduleComparisonJson(job, comparison)
                       : ScheduleComparisonText(job, comparison, console.style));
  return comparison.any_fits() ? 0 : 1;
}

}  // namespace millwright
