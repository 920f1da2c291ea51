// SPDX-License-Identifier: Apache-2.0
//
// millwright sweep: the best plan, or the job's own, at each point of a grid.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <set>

#include "cli/commands.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/progress.h"
#include "core/mistakes.h"
#include "planner/obstacle.h"
#include "planner/parallel_work.h"
#include "planner/search.h"
#include "report/estimate_text.h"
#include "report/json.h"
#include "report/plan_text.h"
#include "report/sweep_text.h"

namespace millwright {
namespace {

// What may vary: options of the question, and knobs of the plan, as their options are called.
constexpr std::string_view kQuestion[] = {"seq",       "global-batch", "nodes",   "gpus",
                                          "gpu",       "model",        "cluster", "precision",
                                          "framework", "cuda-graph",   "what-if"};
constexpr std::string_view kPlan[] = {"tp",   "sp",         "cp",        "cp-kind",  "pp",
                                      "vpp",  "dp",         "ep",        "etp",      "micro-batch",
                                      "zero", "zero-shard", "recompute", "schedule", "cp-ulysses"};

bool IsOfPlan(std::string_view name) {
  return std::find(std::begin(kPlan), std::end(kPlan), name) != std::end(kPlan);
}

struct SweepFlags {
  std::optional<std::string> vary, csv;
  std::vector<std::string> require, forbid;
  bool own_plan = false, json = false, offload = false;
  std::optional<bool> simulate;
  std::optional<std::int64_t> threads;

  void AddTo(CommandLine& line) {
    line.Section("Sweep");
    line.Text("--vary", "NAME=VALUES,...", vary,
              "what changes: seq=4096..131072 (doubling), nodes=8..64+8, tp=1|2|4; of the question "
              "seq, global-batch, nodes, gpus, gpu, model, cluster, precision, framework, "
              "cuda-graph; of the plan tp, sp, cp, pp and all others");
    line.Flag("--estimate", own_plan, "cost the job's own plan instead of searching for the best");
    line.Flag("--offload", offload, "let plans move activations to host memory and back");
    line.Switch("--simulate", simulate,
                "rank the best 32 by simulated step, as plan does "
                "(default: on)");
    line.Texts("--require", "KNOB=V|V,...", require, "only such plans, as plan takes it");
    line.Texts("--forbid", "KNOB=V|V,...", forbid, "no such plans");
    line.Int("--threads", threads, {1, kMostThreads}, "of a search (default: one a core)");
    line.Section("Output");
    line.Text("--csv", "FILE", csv, "all points as CSV");
    line.Flag("--json", json, "the answer as JSON");
  }
};

class Sweep {
 public:
  Sweep(std::vector<std::string> base, const SweepFlags& flags)
      : base_(std::move(base)), flags_(flags) {}

  SweepRow At(const std::vector<SweepAxis>& axes, std::size_t index) {
    SweepRow row{.at = SweepPoint(axes, index)};
    try {
      Solve(axes, row);
    } catch (const ConfigError& error) {
      const std::string_view what = error.what();
      row.reason = what.substr(0, what.find('\n'));
      mistakes_.insert(error.what());
      ++bad_;
    }
    return row;
  }
  // Of all points, each once.
  const std::set<std::string>& warnings() const { return warnings_; }
  // Every point failed by the same mistake, which is then of the whole; empty otherwise.
  std::string CommonMistake(std::size_t points) const {
    return bad_ == points && mistakes_.size() == 1 ? *mistakes_.begin() : std::string();
  }

 private:
  void Solve(const std::vector<SweepAxis>& axes, SweepRow& row) {
    CommandLine line("sweep", "");
    JobFlags flags;
    PlanFlags plan_flags;
    flags.AddTo(line);
    if (flags_.own_plan) plan_flags.AddTo(line);
    std::vector<std::string> args = base_;
    PlanFilter filter;
    bool sized = false;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::string& name = axes[i].name;
      sized = sized || name == "nodes" || name == "gpus" || name == "cluster";
      if (flags_.own_plan && name == "sp") {
        args.push_back(row.at[i] == "off" || row.at[i] == "0" ? "--no-sp" : "--sp");
      } else if (flags_.own_plan || !IsOfPlan(name)) {
        args.push_back(fmt::format("--{}={}", name, row.at[i]));
      } else {
        std::string knob = name;
        std::replace(knob.begin(), knob.end(), '-', '_');
        filter.Require(fmt::format("{}={}", knob, row.at[i]), "--vary");
      }
    }
    std::ostream none(nullptr);
    line.Parse(args, none);
    Job job = flags.Resolve(line);
    if (flags_.own_plan) {
      job.parallel = plan_flags.Resolve(line, job, flags.sizes_cluster() || sized);
    }
    line.ThrowIfProblems();
    warnings_.insert(line.warnings().begin(), line.warnings().end());
    if (flags_.own_plan) {
      OwnPlan(job, row);
    } else {
      BestPlan(job, filter, row);
    }
  }

  static void OwnPlan(const Job& job, SweepRow& row) {
    const Cluster cluster(job.cluster);
    if (const Verdict verdict =
            CheckPlan(job.model, job.training, cluster.gpu(), cluster.gpus(), job.parallel)) {
      row.reason = verdict->detail;
      return;
    }
    const Estimator estimator(job.model, job.training, cluster);
    row.plan = Contender{estimator.Itemise(job.parallel), {}};
    row.fits = row.plan->estimate.fits();
    if (!row.fits) {
      row.reason = MissSentence(row.plan->estimate, row.plan->estimate.capacity, cluster.gpu());
    }
  }

  void BestPlan(const Job& job, PlanFilter filter, SweepRow& row) const {
    const Cluster cluster(job.cluster);
    if (const Verdict verdict = CheckPrecision(cluster.gpu(), job.training)) {
      row.reason = verdict->detail;
      return;
    }
    SearchOptions options{.top = kLeastContenders, .memory_margin = job.search.memory_margin};
    options.offload = flags_.offload || job.search.offload;
    options.recompute_by_rank = job.search.recompute_by_rank;
    options.threads = int(flags_.threads.value_or(Cores()));
    const bool required = !flags_.require.empty(), forbidden = !flags_.forbid.empty();
    for (const std::string& text : required ? flags_.require : job.search.require) {
      filter.Require(text);
    }
    for (const std::string& text : forbidden ? flags_.forbid : job.search.forbid) {
      filter.Forbid(text);
    }
    options.filter = filter;
    const bool simulate = flags_.simulate.value_or(true);
    const SearchResult result = Search(job.model, job.training, cluster, options);
    if (!result.plans.empty()) {
      row.plan = RankContenders(job.model, job.training, cluster, ToSimulate(result),
                                {.simulate = simulate,
                                 .memory_limit = result.memory_limit,
                                 .threads = options.threads})
                     .plans.front();
      row.fits = true;
    } else if (result.nearest_miss) {
      const Estimator estimator(job.model, job.training, cluster);
      row.reason = MissSentence(estimator.Itemise(result.nearest_miss->plan), result.memory_limit,
                                cluster.gpu());
    } else {
      row.reason = Obstacle(job, filter);
      if (row.reason.empty()) row.reason = "the search goes through no such plan";
    }
  }

  std::vector<std::string> base_;
  const SweepFlags& flags_;
  std::set<std::string> mistakes_, warnings_;
  std::size_t bad_ = 0;
};

// The arguments without sweep's own.
std::vector<std::string> WithoutSweepOptions(std::span<const std::string> args) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].substr(0, args[i].find('='));
    if (name == "--vary" || name == "--csv" || name == "--require" || name == "--forbid" ||
        name == "--threads") {
      if (name.size() == args[i].size()) ++i;
    } else if (name != "--estimate" && name != "--json" && name != "--offload" &&
               name != "--simulate" && name != "--no-simulate") {
      rest.push_back(args[i]);
    }
  }
  return rest;
}

}  // namespace

int SweepCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("sweep [JOB.json] --vary NAME=VALUES,... [OPTIONS]",
                   "The best plan at each point of a grid of questions, or with --estimate the "
                   "job's own plan: a table, and CSV or JSON for other programs. A point without a "
                   "plan says why. Exit code 1 where no point has one.");
  JobFlags job_flags;
  PlanFlags plan_flags;
  SweepFlags flags;
  job_flags.AddTo(line);
  // Searched plans have filters in place of degrees.
  const auto given = [&](std::string_view flag) {
    return std::find(args.begin(), args.end(), flag) != args.end();
  };
  if (given("--estimate") || given("--help")) plan_flags.AddTo(line);
  flags.AddTo(line);
  line.Example("sweep job.json --vary seq=4096..131072,nodes=8..64 --csv out.csv");
  line.Example(
      "sweep --model llama-3.1-8b --cluster dgx-h100 --global-batch 64 --seq 8192 --estimate "
      "--vary tp=1|2|4|8");
  if (!line.Parse(args, console.out)) return 0;
  SweepAnswer answer{.own_plan = flags.own_plan};
  if (!flags.vary) {
    line.Problem("--vary", "missing; give what changes, such as seq=4096..131072");
  } else {
    std::vector<std::string_view> names(std::begin(kQuestion), std::end(kQuestion));
    names.insert(names.end(), std::begin(kPlan), std::end(kPlan));
    try {
      answer.axes = ParseSweep(*flags.vary, names);
      for (const SweepAxis& axis : answer.axes) {
        const std::string option = "--" + axis.name;
        if (std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
              return arg.substr(0, arg.find('=')) == option;
            })) {
          line.Problem(option, "varies (--vary); leave it out here");
        }
      }
    } catch (const ConfigError& error) {
      NoteError(line, "--vary", error);
    }
  }
  if (flags.own_plan && (!flags.require.empty() || !flags.forbid.empty())) {
    line.Problem("--estimate", "has one plan: --require and --forbid are of a search");
  }
  for (const std::string& text : flags.require) {
    try {
      PlanFilter().Require(text);
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
  }
  for (const std::string& text : flags.forbid) {
    try {
      PlanFilter().Forbid(text);
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
  }
  if (flags.csv) {
    try {
      CheckWritable(*flags.csv);
    } catch (const ConfigError& error) {
      NoteError(line, "--csv", error);
    }
  }
  line.ThrowIfProblems();

  const auto start = std::chrono::steady_clock::now();
  Progress progress(console);
  Sweep sweep(WithoutSweepOptions(args), flags);
  const std::size_t points = SweepPoints(answer.axes);
  for (std::size_t i = 0; i < points; ++i) {
    progress.Show("sweeping", double(i) / double(points));
    answer.rows.push_back(sweep.At(answer.axes, i));
  }
  progress.Erase();
  if (const std::string mistake = sweep.CommonMistake(points); !mistake.empty()) {
    throw ConfigError(mistake);
  }
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const std::string& warning : sweep.warnings()) {
    console.err << fmt::format("millwright: warning: {}\n", warning);
    answer.warnings.push_back(warning);
  }
  console.out << (flags.json ? SweepJson(answer) : SweepText(answer, console.style));
  console.out.flush();
  if (flags.csv) {
    try {
      WriteTextFile(*flags.csv, SweepCsv(answer));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("--csv: {}", error.what()));
    }
  }
  return answer.any_fits() ? 0 : 1;
}

}  // namespace millwright
