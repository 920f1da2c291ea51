// SPDX-License-Identifier: Apache-2.0
//
// millwright plan: the fastest plans that fit, and why.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <ostream>
#include <set>

#include "cli/aim_flags.h"
#include "cli/commands.h"
#include "cli/export_flags.h"
#include "cli/html_flag.h"
#include "cli/import_flags.h"
#include "cli/interrupt.h"
#include "cli/job_flags.h"
#include "cli/plan_parts.h"
#include "cli/progress.h"
#include "core/mistakes.h"
#include "core/unit_text.h"
#include "planner/measured_range.h"
#include "planner/obstacle.h"
#include "planner/parallel_work.h"
#include "planner/remedies.h"
#include "planner/robust.h"
#include "planner/search.h"
#include "planner/step_spec.h"
#include "planner/training_options.h"
#include "report/estimate_text.h"
#include "report/file_writer.h"
#include "report/json.h"
#include "report/plan_page.h"
#include "report/plan_text.h"
#include "report/sensitivity_text.h"
#include "sim/disturbance.h"

namespace millwright {
namespace {

constexpr int kMostTop = 10'000;
constexpr Seconds kMostBudget(30 * 86400);

// "5%", or a share such as 0.05.
std::optional<double> ParseMargin(std::string_view text) {
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  std::optional<double> value = ParseNumber(text);
  if (value && percent) *value /= 100;
  if (!value || *value < 0 || *value > kMostMemoryMargin) return {};
  return value;
}

// Better now than after a long search.
void CheckOut(CommandLine& line, const std::string& file) {
  if (file == "-") {
    line.Problem("--out", "expected a file: standard output is the answer's");
    return;
  }
  try {
    CheckWritable(file);
  } catch (const ConfigError& error) {
    NoteError(line, "--out", error);
  }
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// SIGINT asks for the best so far; once more, or SIGTERM, ends the program.
using Stopped = std::atomic<bool>;

class PlanQuestion {
 public:
  // `of`: which of several questions it is, shown with the progress.
  PlanQuestion(const Job& job, const SearchOptions& options, bool simulate, Stopped& stopped,
               Console& console, const std::string& of = {})
      : of_(of.empty() ? "" : " " + of),
        job_(job),
        options_(options),
        simulate_(simulate),
        stopped_(stopped),
        cluster_(job.cluster),
        estimator_(job.model, job.training, cluster_),
        progress_(console) {}

  // The plans, and where there is none the nearest miss or the reason.  Within `budget`, where it
  // is given: most of it to search, the rest to simulate.
  PlanAnswer Plans(std::optional<Seconds> budget, const std::optional<RobustOptions>& robust);
  // And the rest of the answer: what --explain asks, or else what would make it fit.
  void Complete(PlanAnswer& answer, const std::optional<std::string>& explain);

 private:
  SearchResult SearchUnder(const SearchOptions& options, const char* what) {
    SearchOptions shown = options;
    shown.stop = &stopped_;
    shown.progress = [this, what](double share) { Show(what, share); };
    return Search(job_.model, job_.training, cluster_, shown);
  }
  void Show(const char* what, std::optional<double> share) {
    if (const int signal = interrupts_.Take(); signal != 0) {
      // Of several processes each would stop elsewhere.
      if (signal != SIGINT || stopped_ || options_.part.count > 1) throw Interrupted{signal};
      stopped_ = true;
    }
    progress_.Show((what + of_).c_str(), share);
  }
  // As many as are simulated or listed, and the same where the estimate decides: what comes to its
  // own with its layers divided anew is among so many.
  static SearchOptions ForContenders(SearchOptions options) {
    options.top = std::max(options.top, kLeastContenders);
    return options;
  }
  Contenders Rank(const SearchResult& result, std::size_t most);
  Contenders Rank(const ParallelConfig& plan, Bytes limit) {
    return Rank({.plans = {{.plan = plan}}, .memory_limit = limit}, 1);
  }
  Estimate Itemise(const RankedPlan& plan) const { return estimator_.Itemise(plan.plan); }
  std::optional<Contender> InFramework(const PlanAnswer& answer);
  Explanation Explain(const std::string& asked);

  const std::string of_;
  const Job& job_;
  const SearchOptions& options_;
  const bool simulate_;
  Stopped& stopped_;
  const Cluster cluster_;
  const Estimator estimator_;
  Progress progress_;
  const Interrupts interrupts_;
  std::optional<Clock::time_point> simulate_until_;
};

// The best of what the framework runs, where that is not the best plan.
std::optional<Contender> PlanQuestion::InFramework(const PlanAnswer& answer) {
  constexpr std::size_t kFew = 8;
  const auto runs = [&](const ParallelConfig& plan) {
    return RunsIn(job_.training.framework, plan);
  };
  if (answer.plans().empty() || runs(answer.plans().front().estimate.plan)) return {};
  SearchResult few{.plans = answer.result.in_framework, .memory_limit = answer.result.memory_limit};
  if (few.plans.empty()) return {};
  if (few.plans.size() > kFew) few.plans.resize(kFew);
  return Rank(few, 1).plans.front();
}

Contenders PlanQuestion::Rank(const SearchResult& result, std::size_t most) {
  Contenders ranked =
      RankContenders(job_.model, job_.training, cluster_, ToSimulate(result),
                     {.simulate = simulate_ && options_.part.index == 0,
                      .objective = options_.objective,
                      .memory_limit = result.memory_limit,
                      .threads = options_.threads,
                      .deadline = simulate_until_,
                      .stop = &stopped_,
                      .progress = [this](double share) { Show("simulating", share); }});
  KeepBestOfLayouts(ranked, job_.training);
  if (ranked.plans.size() > most) ranked.plans.resize(most);
  return ranked;
}

Explanation PlanQuestion::Explain(const std::string& asked) {
  Explanation x{.asked = asked};
  if (const Verdict verdict = CheckPrecision(cluster_.gpu(), job_.training)) {
    x.why_not = verdict->detail;
    return x;
  }
  SearchOptions narrowed = options_;
  narrowed.filter.Require(asked, "--explain");
  narrowed.top = 1;
  x.result = SearchUnder(ForContenders(narrowed), "searching under --explain");
  if (!x.result.plans.empty()) {
    x.plan = Rank(x.result, 1).plans.front();
    x.fits = true;
  } else if (x.result.nearest_miss) {
    x.plan = Contender{Itemise(*x.result.nearest_miss), {}};
  } else {
    // The search leaves out what cannot be better (an odd zero_shard, more virtual stages); that
    // is still a plan that can be costed.
    x.why_not = Obstacle(job_, narrowed.filter);
    if (x.why_not.empty()) {
      x.plan = Rank(Plainest(job_, narrowed.filter), x.result.memory_limit).plans.front();
      x.fits = x.plan->estimate.FitsIn(x.result.memory_limit);
    }
  }
  return x;
}

PlanAnswer PlanQuestion::Plans(std::optional<Seconds> budget,
                               const std::optional<RobustOptions>& robust) {
  PlanAnswer answer{.job = job_, .objective = options_.objective};
  answer.threads = options_.threads;
  answer.seeks_remedies = !budget;
  if (const Verdict verdict = CheckPrecision(cluster_.gpu(), job_.training)) {
    answer.result.memory_limit = (1 - options_.memory_margin) * cluster_.gpu().hbm_capacity;
    ++answer.result.rejected[static_cast<std::size_t>(verdict->reason)];
    answer.why_not = verdict->detail;
    return answer;
  }
  const auto start = Clock::now();
  SearchOptions limited = ForContenders(options_);
  if (budget) {
    constexpr double kForSearch = 0.75;
    const auto after = [&](double share) {
      return start + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(share * budget->value));
    };
    limited.deadline = after(simulate_ ? kForSearch : 1);
    simulate_until_ = after(1);
  }
  answer.result = SearchUnder(limited, "searching");
  const auto searched = Clock::now();
  // More are drawn than may be listed.
  const auto listed = std::size_t(options_.top);
  answer.contenders = Rank(answer.result, robust ? std::max(listed, robust->plans) : listed);
  answer.simulate_seconds = SecondsSince(searched);
  if (answer.result.nearest_miss) answer.nearest_miss = Itemise(*answer.result.nearest_miss);
  if (answer.plans().empty() && !answer.nearest_miss) {
    answer.why_not = answer.result.certificate.unvisited > 0
                         ? (budget ? "none was costed in the time given (--budget)"
                                   : "none was costed in the time given")
                         : Obstacle(job_, options_.filter);
    if (answer.why_not.empty()) {
      answer.why_not = fmt::format("the search goes through no plan like {}, which estimate costs",
                                   BriefName(Plainest(job_, options_.filter)));
    }
  }
  if (robust && options_.part.index == 0 && !stopped_) {
    RobustOptions drawn = *robust;
    drawn.progress = [this](double share) { Show("drawing", share); };
    answer.robust =
        RankRobustly(job_.model, job_.training, cluster_, answer.contenders.plans, drawn);
    answer.robust->drawn = answer.robust->costs.size();
    if (answer.contenders.plans.size() > listed) answer.contenders.plans.resize(listed);
    if (answer.robust->costs.size() > listed) answer.robust->costs.resize(listed);
  }
  return answer;
}

void PlanQuestion::Complete(PlanAnswer& answer, const std::optional<std::string>& explain) {
  answer.in_framework = InFramework(answer);
  for (const RankedPlan& plan : answer.result.pareto) answer.pareto.push_back(Itemise(plan));
  if (explain && !stopped_) {
    answer.explanation = Explain(*explain);
  } else if (answer.nearest_miss && answer.seeks_remedies && !stopped_) {
    SearchOptions quietly = options_;
    quietly.stop = &stopped_;
    quietly.progress = [this](double share) { Show("looking for what would fit", share); };
    answer.remedies = Remedies(job_.model, job_.training, job_.cluster, quietly);
  }
  if (!stopped_) return;  // what searches are stopped half way say is not said
  answer.seeks_remedies = false;
  answer.explanation.reset();
  answer.remedies.clear();
}

SizeAnswer StartOf(const Job& job, SizeQuestion question) {
  return {
      .question = std::move(question),
      .tokens_of_step = double(job.training.global_batch_size) * double(job.training.seq_length),
      .sizes = {}};
}

// By which the best plan is ranked under --robust; what was not drawn has the interval alone.
std::optional<Seconds> HighOf(const PlanAnswer& answer) {
  if (!answer.robust) return {};
  const std::optional<RobustCost>& cost = answer.robust->costs.front();
  return cost ? cost->high : answer.robust->interval_high * answer.plans().front().step();
}

ClusterSize SizeOf(const PlanAnswer& answer) {
  const ClusterConfig& cluster = answer.job.cluster;
  ClusterSize size{.nodes = cluster.nodes, .gpus = cluster.gpus(), .best = {}, .reason = {}};
  if (answer.plans().empty()) {
    size.reason = Reason(answer);
  } else {
    size.best = answer.plans().front();
    size.high = HighOf(answer);
    if (answer.options) size.options = answer.options->NameOf(answer.options->chosen);
  }
  return size;
}

// How each of several questions is to be solved.
struct Solver {
  const SearchOptions& options;
  bool simulate = true;
  std::optional<Seconds> time;  // of each
  std::optional<RobustOptions> robust;
  std::vector<SweepAxis> axes;  // options of the training step to choose among
  Stopped& stopped;
  Console& console;

  PlanAnswer Plans(const Job& job, const std::string& of) const {
    return PlanQuestion(job, options, simulate, stopped, console, of).Plans(time, robust);
  }
  // Only the first process has simulated, and knows which it is.
  std::size_t ChosenByFirst(std::size_t chosen) const {
    const SearchPart& part = options.part;
    return part.count > 1 ? std::stoul(part.gather(std::to_string(chosen)).front()) : chosen;
  }
  // Of every choice of options the best.
  PlanAnswer Best(const Job& job, const std::string& of) const;
  // Of several sizes, each with its best choice, the one that answers the question.
  PlanAnswer BestSize(const Job& job, SizeQuestion question) const;
};

PlanAnswer Solver::Best(const Job& job, const std::string& of) const {
  if (axes.empty()) return Plans(job, of);
  OptionsAnswer chosen{.axes = axes};
  std::vector<PlanAnswer> answers;
  for (std::size_t i = 0; i < SweepPoints(axes); ++i) {
    Job one = job;
    one.training = ChoiceOf(job.training, axes, i);
    if (one.training == job.training) chosen.as_asked = i;
    answers.push_back(Plans(one, of + (of.empty() ? "" : ", ") + chosen.NameOf(i)));
    const PlanAnswer& answer = answers.back();
    OptionsAnswer::Choice& choice = chosen.choices.emplace_back();
    choice.reason = Reason(answer);
    if (answer.plans().empty()) continue;
    choice.best = answer.plans().front();
    choice.high = HighOf(answer);
  }
  Choose(chosen, options.objective);
  chosen.chosen = ChosenByFirst(chosen.chosen);
  PlanAnswer best = std::move(answers[chosen.chosen]);
  best.options = std::move(chosen);
  return best;
}

PlanAnswer Solver::BestSize(const Job& job, SizeQuestion question) const {
  SizeAnswer sizes = StartOf(job, std::move(question));
  std::vector<PlanAnswer> answers;
  for (const int nodes : sizes.question.nodes) {
    Job sized = job;
    sized.cluster.nodes = nodes;
    if (const auto problems = Inconsistencies(sized.cluster); !problems.empty()) {
      // It cannot be asked about; of the table that is a reason like another.
      PlanAnswer& none = answers.emplace_back(PlanAnswer{.job = sized});
      none.why_not = fmt::format("{}: {}", problems.front().field, problems.front().what);
    } else {
      answers.push_back(Best(sized, Counted(nodes, "node")));
    }
    sizes.sizes.push_back(SizeOf(answers.back()));
  }
  Choose(sizes);
  sizes.chosen = ChosenByFirst(sizes.chosen);
  PlanAnswer best = std::move(answers[sizes.chosen]);
  best.sizes = std::move(sizes);
  return best;
}

// The call as a shell takes it.
std::string CommandText(std::span<const std::string> args) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  std::string text = "./mw plan";
  for (const std::string& arg : args) {
    text += ' ';
    if (!arg.empty() && arg.find_first_not_of(kPlain) == arg.npos) {
      text += arg;
      continue;
    }
    text += '\'';
    for (const char c : arg) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

// To be drawn; empty where there are too many tasks for a page.
std::optional<SimulatedStep> StepOf(const Estimator& estimator, const Estimate& estimate) {
  constexpr double kMostTasks = 4e6;
  StepSpec spec =
      StepSpecOf(estimator, estimate.plan, ScheduleOf(estimate.plan, estimate.micro_batches));
  if (TaskCount(spec) > kMostTasks) return {};
  return SimulateStep(estimator, estimate.plan, std::move(spec));
}

// What one of the processes that search together does: the first alone simulates, prints and
// writes.
int PlanPart(std::span<const std::string> args, Console& console, const SearchPart& part,
             int processes_here) {
  CommandLine line("plan [JOB.json] [OPTIONS]",
                   "The fastest plans that fit a model on a cluster: tensor, pipeline, data, "
                   "context and expert parallel degrees, micro-batch, ZeRO stage and "
                   "recomputation; how long a step takes, and why.");
  JobFlags flags;
  flags.AddWithSizesTo(line);
  ImportFlags import;
  import.AddTo(line);
  std::optional<std::int64_t> top, threads;
  std::vector<std::string> require, forbid;
  std::optional<std::string> explain, margin, schedules, choose, out, html, budget;
  std::optional<bool> simulate;
  bool json = false, robust = false;
  AimFlags aim;
  std::optional<double> gpu_jitter;
  std::optional<std::int64_t> seed;
  std::vector<std::string> slow;
  const bool first = part.index == 0;
  SearchOptions options{.part = part};
  line.Section("Search");
  line.Int("--top", top, {1, kMostTop}, "how many layouts to list (default: 10)");
  line.Texts("--require", "KNOB=V|V,...", require,
             "only such plans: tp=8,pp=4|8 (see: describe filters); schedules, offloading, orders "
             "and shards that are not searched otherwise are where they are required");
  line.Texts("--forbid", "KNOB=V|V,...", forbid, "no such plans: zero=3,recompute=full");
  line.Text("--schedules", "NAME,...", schedules,
            "these pipeline schedules, or all that train (default: 1f1b,interleaved; see: describe "
            "schedules)");
  line.Text("--choose", "OPTION=V|V,...", choose,
            "search these options of the training step too, every combination: "
            "precision=bf16|fp8,tp-comm-overlap=off|on; an option is spelled as it is here");
  line.Text("--explain", "KNOB=V,...", explain,
            "what becomes of that plan, and what it loses to the best, item by item");
  bool sensitivity = false;
  line.Flag("--sensitivity", sensitivity,
            "what a tenth more and less of each of FLOP/s, memory, its bandwidth, NVLink and NICs "
            "would do to the best plan");
  bool offload = false, by_rank = false;
  line.Flag("--offload", offload,
            "let plans move activations to host memory and back; off by default, since no measured "
            "run holds its cost closely and few frameworks have it with pipelines");
  line.Flag("--recompute-by-rank", by_rank,
            "choose recomputation, and the layers with it, for each pipeline rank of the best "
            "plans; interleaved ranks keep their layers; no framework can be told the result");
  line.Text("--memory-margin", "X%", margin,
            "GPU memory that a plan must leave free (default: 5%)");
  line.Switch("--simulate", simulate,
              "simulate the best 32, or all that are listed, and rank them by that (default: on)");
  aim.AddTo(line);
  line.Flag(
      "--robust", robust,
      "rank the best 8 by the 95% quantile of steps drawn with GPUs that are not alike, and the "
      "90% interval on top");
  line.Number("--gpu-jitter", gpu_jitter, {.min = 0, .max = 1},
              "of --robust: sigma of a GPU's pace for a step (default: 0.02)");
  line.Texts("--slow", "PART=SPEED", slow, "of --robust: gpu:17=0.8, node:3=0.8");
  line.Int("--seed", seed, {0, std::int64_t{1} << 53}, "of --robust (default: 0)");
  line.Text(
      "--budget", "TIME", budget,
      "answer after 5s, 2min: the best so far, and by a bound how far from the best it can be "
      "at most");
  line.Flag(
      "--exact", options.exhaustive,
      "cost every candidate, where otherwise bounds rule most of them out: the same plans, and "
      "proof of it, in many times the time");
  line.Int("--threads", threads, {1, kMostThreads}, "of the search (default: one a core)");
  line.Section("Output");
  line.Text("--out", "JOB.json", out,
            "write the question and the best plan as a job file; with --export, the folder for it "
            "and the exported files");
  ExportFlags exports;
  exports.AddTo(line);
  line.Text("--html", "FILE", html, "write the answer as a page for a browser");
  line.Flag("--json", json, "the answer as JSON");
  line.Example(
      "plan --model llama-3.1-70b --cluster dgx-h100 --nodes 16 --global-batch 1024 "
      "--seq 8192");
  line.Example("plan job.json --nodes 32 --require tp=8,pp=4|8 --json");
  line.Example("plan job.json --explain tp=8,pp=2 --html plan.html");
  if (!line.Parse(args, console.out)) return 0;

  options.top = static_cast<int>(top.value_or(options.top));
  options.threads = static_cast<int>(threads.value_or(std::max(1, Cores() / processes_here)));
  std::optional<double> share;
  if (margin) {
    share = ParseMargin(*margin);
    if (!share) {
      line.Problem("--memory-margin",
                   fmt::format("expected a share from 0% to {:g}%, got \"{}\"",
                               100 * kMostMemoryMargin, Printable(*margin, kMostNameShown)));
    }
  }
  const auto filter = [&](auto&& add) {
    try {
      add();
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
  };
  for (const std::string& text : require) filter([&] { options.filter.Require(text); });
  for (const std::string& text : forbid) filter([&] { options.filter.Forbid(text); });
  if (schedules) {
    if (("," + *schedules + ",").find(",all,") != std::string::npos) {
      schedules->clear();
      for (const auto& name : TrainingScheduleNames()) {
        *schedules += fmt::format("{}{}", schedules->empty() ? "" : ",", name.name);
      }
    }
    *schedules = "schedule=" + *schedules;
    std::replace(schedules->begin(), schedules->end(), ',', '|');
    filter([&] { options.filter.Require(*schedules, "--schedules"); });
  }
  if (explain) filter([&] { PlanFilter().Require(*explain, "--explain"); });
  std::optional<Seconds> time;
  if (budget) {
    time = ParseDuration(*budget);
    if (!time || time->value <= 0 || *time > kMostBudget) {
      line.Problem("--budget",
                   fmt::format("expected a time above 0 s and up to 30 d, such as 5s, got "
                               "\"{}\"",
                               Printable(*budget, kMostNameShown)));
    }
    if (options.exhaustive)
      line.Problem("--exact", "costs every candidate, whatever --budget says");
    if (explain) line.Problem("--explain", "searches again, whatever --budget says");
    if (sensitivity) line.Problem("--sensitivity", "searches again, whatever --budget says");
  }
  exports.Check(line, out);
  if (out && !exports.asked() && first) CheckOut(line, *out);
  const std::vector<int> nodes = flags.TakeNodes(line);
  SizeQuestion aimed = aim.Resolve(line, nodes);
  options.objective = aimed.objective;
  if (aimed.objective == Objective::kMemory && budget) {
    line.Problem("--budget", "bounds the time; give --objective throughput");
  }
  if (aimed.objective == Objective::kMemory && aimed.deadline) {
    line.Problem("--deadline", "asks for speed; give --objective throughput or cost");
  }
  if (aimed.objective == Objective::kMemory && by_rank) {
    line.Problem("--recompute-by-rank", "is for speed; give --objective throughput or cost");
  }
  if (!robust) {
    if (gpu_jitter) line.Problem("--gpu-jitter", "needs --robust");
    if (seed) line.Problem("--seed", "needs --robust");
    if (!slow.empty()) line.Problem("--slow", "needs --robust");
  } else if (!simulate.value_or(true)) {
    line.Problem("--robust", "needs --simulate");
  } else if (aimed.objective == Objective::kMemory) {
    line.Problem("--robust", "ranks by time; give --objective throughput");
  }
  Job job = import.asked() ? import.Resolve(line, flags) : flags.Resolve(line);
  std::vector<SweepAxis> choices;
  if (choose) {
    try {
      choices = ParseChoices(*choose, job.model);
    } catch (const ConfigError& error) {
      NoteError(line, "--choose", error);
    }
  }
  for (const SweepAxis& axis : choices) {
    for (const char* before : {"--", "--no-"}) {
      const std::string flag = before + axis.name;
      if (!line.Given(flag)) continue;
      line.Problem("--choose", fmt::format("{} is searched, and {} is given too; give one of them",
                                           axis.name, flag));
    }
  }
  CheckHtml(line, html);
  if (html && out && *html == *out) line.Problem("--html", "is the file of --out");
  CheckNotInput(line, "--html", html, flags.files());
  line.ThrowIfProblems();
  line.ShowWarnings(console.err);
  import.ShowIgnored(console);

  // What flags leave open the job file says.
  if (share) job.search.memory_margin = *share;
  options.memory_margin = job.search.memory_margin;
  job.search.offload = job.search.offload || offload;
  options.offload = job.search.offload;
  // Of the job's own, with an objective that it is not for, nothing is made.
  job.search.recompute_by_rank =
      (job.search.recompute_by_rank && aimed.objective != Objective::kMemory) || by_rank;
  options.recompute_by_rank = job.search.recompute_by_rank;
  if (require.empty()) {
    for (const std::string& text : job.search.require) {
      options.filter.Require(text, "the job file's require");
    }
  } else {
    job.search.require = std::move(require);
  }
  if (schedules) job.search.require.push_back(*schedules);
  if (forbid.empty()) {
    for (const std::string& text : job.search.forbid) {
      options.filter.Forbid(text, "the job file's forbid");
    }
  } else {
    job.search.forbid = std::move(forbid);
  }

  std::optional<RobustOptions> unlike;
  if (robust) {
    // What is slow must be a part of every size.
    ClusterConfig smallest = job.cluster;
    if (!aimed.nodes.empty()) smallest.nodes = aimed.nodes.front();
    unlike = RobustOptions{.gpu_jitter = gpu_jitter.value_or(RobustOptions{}.gpu_jitter),
                           .slow = ReadDisturbance(slow, {}, Cluster(smallest)),
                           .slow_names = slow,
                           .seed = std::uint64_t(seed.value_or(0)),
                           .threads = options.threads,
                           .progress = {}};
    if (!unlike->slow.slow_links.empty()) {
      throw ConfigError("--slow: of --robust takes GPUs and nodes; links are for simulate");
    }
  }
  std::optional<FileWriter> page;  // before the work: what cannot be written is known now
  if (html && first) page.emplace(*html);
  const bool asks_size = !nodes.empty() || aim.given();
  // The time is shared out among all searches.
  const std::size_t searches =
      (choices.empty() ? 1 : SweepPoints(choices)) * std::max<std::size_t>(1, aimed.nodes.size());
  if (time) time = (1 / double(searches)) * *time;
  const auto start = Clock::now();
  Stopped stopped = false;
  const Solver solver{options, simulate.value_or(true), time, unlike, choices, stopped, console};
  PlanAnswer answer = aimed.nodes.size() > 1 ? solver.BestSize(job, aimed) : solver.Best(job, "");
  job.cluster = answer.job.cluster;
  job.training = answer.job.training;
  PlanQuestion(job, options, solver.simulate, stopped, console).Complete(answer, explain);
  if (stopped && answer.plans().empty()) throw Interrupted{SIGINT};
  if (stopped) console.err << "millwright: interrupted: the best so far\n";
  answer.search_seconds = SecondsSince(start);
  if (asks_size && !answer.sizes) {
    answer.sizes = StartOf(job, std::move(aimed));
    answer.sizes->question.nodes = {job.cluster.nodes};
    answer.sizes->sizes.push_back(SizeOf(answer));
    Choose(*answer.sizes);
  }
  answer.warnings = line.warnings();
  std::optional<SimulatedStep> best;
  if (!answer.plans().empty()) {
    const Cluster cluster(job.cluster);
    const Estimator estimator(job.model, job.training, cluster);
    if (page) best = StepOf(estimator, answer.plans().front().estimate);
    if (const auto outside = OutsideMeasured(estimator, answer.plans().front().estimate.plan)) {
      answer.warnings.push_back(*outside);
      console.err << fmt::format("millwright: warning: {}\n", *outside);
    }
  }
  if (sensitivity && !answer.plans().empty() && !stopped) {
    Progress progress(console);
    Interrupts interrupts;
    SearchOptions watched = options;
    watched.stop = &stopped;
    watched.progress = [&](double) {
      const int signal = interrupts.Take();
      if (signal == 0) return;
      if (signal != SIGINT || stopped || options.part.count > 1) throw Interrupted{signal};
      stopped = true;
    };
    answer.sensitivity = FindSensitivity(job, watched, [&](const std::string& name) {
      progress.Show(("changing " + name).c_str());
    });
    progress.Erase();
    if (stopped) {  // what it was about is there
      answer.sensitivity.reset();
      console.err << "millwright: interrupted: without --sensitivity\n";
    }
  }
  Job solved = job;
  if (!answer.plans().empty()) {
    solved.has_model = solved.has_training = solved.has_cluster = solved.has_parallel =
        solved.has_search = true;
    solved.parallel = answer.plans().front().estimate.plan;
    if (exports.asked()) answer.exported = exports.Make(solved, SubstituteOf(answer));
  }
  console.out << (json ? PlanAnswerJson(answer) : PlanAnswerText(answer, console.style));
  if (answer.sensitivity && !json) {
    console.out << '\n' << SensitivityText(*answer.sensitivity, console.style);
  }
  console.out.flush();  // a long search is not lost where a file cannot be written
  if (page) {
    WritePlanPage(answer, best, CommandText(args), *page);
    page->Commit();
    SayWritten(*page, console);
  }
  if (!first) {
    // Somebody else's to write.
  } else if (answer.exported) {
    ExportFlags::Write(*out, *answer.exported, console);
  } else if (out && !answer.plans().empty()) {
    try {
      WriteTextFile(*out, WriteJob(solved));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("--out: {}", error.what()));
    }
  } else if (out) {
    console.err << fmt::format("millwright: no plan, so {} is not written\n",
                               Printable(*out, kMostNameShown));
  }
  if (stopped) return kSignalled + SIGINT;
  if (answer.sizes && !answer.sizes->met) return 1;
  const bool yes = answer.explanation ? answer.explanation->fits : !answer.plans().empty();
  return yes ? 0 : 1;
}

}  // namespace

int PlanCommand(std::span<const std::string> args, Console& console) {
  GoOnWithMpi(args);
  return PlanPart(args, console, {}, 1);
}

int PlanRankCommand(std::span<const std::string> args, Console& console,
                    Communicator& communicator) {
  const SearchPart part = PartOf(communicator);
  if (part.index == 0) return PlanPart(args, console, part, ProcessesHere());
  std::ostream nowhere(nullptr);
  Console quiet{.out = nowhere, .err = nowhere, .style = console.style, .progress = false};
  PlanPart(args, quiet, part, ProcessesHere());
  return 0;  // the exit code is the first's
}

}  // namespace millwright
