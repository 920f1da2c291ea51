// millwright plan: the fastest plans that fit, and why.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <ostream>

#include "cli/commands.h"
#include "cli/job_flags.h"
#include "cli/progress.h"
#include "planner/remedies.h"
#include "planner/search.h"
#include "report/json.h"
#include "report/plan_text.h"

namespace millwright {
namespace {

constexpr int kMostTop = 10'000;
constexpr int kMostThreads = 1024;

// "5%", or a share such as 0.05.
std::optional<double> ParseMargin(std::string_view text) {
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  std::optional<double> value = ParseNumber(text);
  if (value && percent) *value /= 100;
  if (!value || *value < 0 || *value >= 1) return {};
  return value;
}

// Better now than after a long search.
void CheckWritable(CommandLine& line, const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::path(file).parent_path();
  if (fs::is_directory(file, ignored)) {
    line.Problem("--out", fmt::format("{} is a directory, not a file", file));
  } else if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    line.Problem("--out", fmt::format("there is no directory {}", folder.string()));
  }
}

// The first value of a knob that the filter allows.
int FirstAllowed(const PlanFilter& filter, Knob knob, int first, std::int64_t last) {
  for (int value = first; value <= last; ++value) {
    if (filter.Allows(knob, value)) return value;
  }
  return first;
}

// The plainest plan that the filter allows: what a rejection can speak of.
ParallelConfig Plainest(const PlanFilter& filter, const Job& job) {
  const std::int64_t gpus = job.cluster.gpus();
  ParallelConfig p;
  p.tensor = FirstAllowed(filter, Knob::kTp, 1, gpus);
  p.context = FirstAllowed(filter, Knob::kCp, 1, gpus);
  p.context_kind = static_cast<ContextParallelKind>(FirstAllowed(filter, Knob::kCpKind, 0, 1));
  p.pipeline = FirstAllowed(filter, Knob::kPp, 1, gpus);
  p.virtual_stages = FirstAllowed(filter, Knob::kVpp, 1, job.model.num_layers);
  p.schedule = p.virtual_stages > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  p.expert = FirstAllowed(filter, Knob::kEp, 1, gpus);
  p.expert_tensor = FirstAllowed(filter, Knob::kEtp, 1, gpus);
  p.micro_batch_size =
      FirstAllowed(filter, Knob::kMicroBatch, 1,
                   std::min<std::int64_t>(job.training.global_batch_size, 1 << 20));
  p.zero = filter.Allows(Knob::kZero, 1) ? 1 : FirstAllowed(filter, Knob::kZero, 0, 3);
  p.zero_shard = FirstAllowed(filter, Knob::kZeroShard, 0, gpus);
  const bool on = p.tensor > 1;
  p.sequence_parallel = filter.Allows(Knob::kSp, on ? 1 : 0) ? on : !on;
  const std::int64_t rest =
      gpus / std::max<std::int64_t>(1, std::int64_t{1} * p.tensor * p.context * p.pipeline);
  p.data = static_cast<int>(std::max<std::int64_t>(1, rest));
  if (!filter.Allows(Knob::kDp, p.data)) p.data = FirstAllowed(filter, Knob::kDp, 1, gpus);
  if (!filter.Allows(p.recompute)) {
    for (const Recompute& choice : RecomputeChoices(job.model)) {
      if (!filter.Allows(choice)) continue;
      p.recompute = choice;
      break;
    }
  }
  return p;
}

class PlanQuestion {
 public:
  PlanQuestion(const Job& job, const SearchOptions& options, Console& console)
      : job_(job),
        options_(options),
        cluster_(job.cluster),
        estimator_(job.model, job.training, cluster_),
        progress_(console.err, console.err_is_terminal) {}

  PlanAnswer Answer(const std::optional<std::string>& explain);

 private:
  SearchResult SearchUnder(const SearchOptions& options, const char* what) {
    SearchOptions shown = options;
    shown.progress = [this, what](double share) { progress_.Show(what, share); };
    return Search(job_.model, job_.training, cluster_, shown);
  }
  Estimate Itemise(const RankedPlan& plan) const { return estimator_.Itemise(plan.plan); }
  Verdict Check(const ParallelConfig& plan) const {
    return CheckPlan(job_.model, job_.training, cluster_.gpu(), cluster_.gpus(), plan);
  }
  Explanation Explain(const std::string& asked);

  const Job& job_;
  const SearchOptions& options_;
  const Cluster cluster_;
  const Estimator estimator_;
  Progress progress_;
};

Explanation PlanQuestion::Explain(const std::string& asked) {
  Explanation x{.asked = asked};
  SearchOptions narrowed = options_;
  narrowed.filter.Require(asked, "--explain");
  narrowed.top = 1;
  x.result = SearchUnder(narrowed, "searching under --explain");
  if (!x.result.plans.empty()) {
    x.plan = Itemise(x.result.plans.front());
    x.fits = true;
  } else if (x.result.nearest_miss) {
    x.plan = Itemise(*x.result.nearest_miss);
  } else {
    // The search leaves out what cannot be better (an odd zero_shard, more virtual stages); that
    // is still a plan that can be costed.
    const ParallelConfig plain = Plainest(narrowed.filter, job_);
    if (const Verdict verdict = Check(plain)) {
      x.why_not = verdict->detail;
    } else if (narrowed.filter.Allows(plain)) {
      x.plan = estimator_.Itemise(plain);
      x.fits = x.plan->peak <= x.result.memory_limit;
    }
  }
  return x;
}

PlanAnswer PlanQuestion::Answer(const std::optional<std::string>& explain) {
  PlanAnswer answer{.job = job_, .memory_margin = options_.memory_margin};
  answer.threads = options_.threads;
  if (const Verdict verdict = CheckPrecision(cluster_.gpu(), job_.training)) {
    answer.result.memory_limit = (1 - options_.memory_margin) * cluster_.gpu().hbm_capacity;
    ++answer.result.rejected[static_cast<std::size_t>(verdict->reason)];
    answer.why_not = verdict->detail;
    if (explain) answer.explanation = Explanation{.asked = *explain, .why_not = verdict->detail};
    return answer;
  }
  const auto start = std::chrono::steady_clock::now();
  answer.result = SearchUnder(options_, "searching");
  for (const RankedPlan& plan : answer.result.plans) answer.plans.push_back(Itemise(plan));
  for (const RankedPlan& plan : answer.result.pareto) answer.pareto.push_back(Itemise(plan));
  if (answer.result.nearest_miss) answer.nearest_miss = Itemise(*answer.result.nearest_miss);
  if (explain) {
    answer.explanation = Explain(*explain);
  } else if (answer.nearest_miss) {
    SearchOptions quietly = options_;
    quietly.progress = [this](double) { progress_.Show("looking for what would fit"); };
    answer.remedies = Remedies(job_.model, job_.training, job_.cluster, quietly);
  } else if (answer.plans.empty() && !options_.filter.empty()) {
    // What stands in the way of the plainest plan that is allowed, for example.
    const Verdict verdict = Check(Plainest(options_.filter, job_));
    if (verdict) answer.why_not = verdict->detail;
  }
  answer.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return answer;
}

}  // namespace

int PlanCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("plan [JOB.json] [OPTIONS]",
                   "The fastest plans that fit a model on a cluster: tensor, pipeline, data, "
                   "context and expert parallel degrees, micro-batch, ZeRO stage and "
                   "recomputation; how long a step takes, and why.");
  JobFlags flags;
  flags.AddTo(line);
  std::optional<std::int64_t> top, threads;
  std::vector<std::string> require, forbid;
  std::optional<std::string> explain, margin, out;
  bool json = false;
  line.Section("Search");
  line.Int("--top", top, {1, kMostTop}, "how many layouts to list (default: 10)");
  line.Texts("--require", "KNOB=V|V,...", require,
             "only such plans: tp=8,pp=4|8 (see: describe filters)");
  line.Texts("--forbid", "KNOB=V|V,...", forbid, "no such plans: zero=3,recompute=full");
  line.Text("--explain", "KNOB=V,...", explain,
            "what becomes of that plan, and what it loses to the best, item by item");
  line.Text("--memory-margin", "X%", margin,
            "GPU memory that a plan must leave free (default: 5%)");
  line.Int("--threads", threads, {1, kMostThreads}, "of the search (default: one a core)");
  line.Section("Output");
  line.Text("--out", "JOB.json", out, "write the question and the best plan as a job file");
  line.Flag("--json", json, "the answer as JSON");
  line.Example(
      "plan --model llama-3.1-70b --cluster dgx-h100 --nodes 16 --global-batch 1024 "
      "--seq 8192");
  line.Example("plan job.json --nodes 32 --require tp=8,pp=4|8 --json");
  line.Example("plan job.json --explain tp=8,pp=2");
  if (!line.Parse(args, console.out)) return 0;

  SearchOptions options;
  options.top = static_cast<int>(top.value_or(options.top));
  options.threads = static_cast<int>(threads.value_or(0));
  if (margin) {
    const std::optional<double> share = ParseMargin(*margin);
    if (!share) {
      line.Problem("--memory-margin",
                   fmt::format("expected a share from 0% to less than 100%, got \"{}\"", *margin));
    }
    options.memory_margin = share.value_or(0);
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
  if (explain) filter([&] { PlanFilter().Require(*explain, "--explain"); });
  if (out) CheckWritable(line, *out);
  const Job job = flags.Resolve(line);
  line.ThrowIfProblems();

  PlanAnswer answer = PlanQuestion(job, options, console).Answer(explain);
  answer.require = std::move(require);
  answer.forbid = std::move(forbid);
  if (out && !answer.plans.empty()) {
    Job solved = job;
    solved.has_model = solved.has_training = solved.has_cluster = solved.has_parallel = true;
    solved.parallel = answer.plans.front().plan;
    WriteTextFile(*out, WriteJob(solved));
  } else if (out) {
    console.err << fmt::format("millwright: no plan, so {} is not written\n", *out);
  }
  console.out << (json ? PlanAnswerJson(answer) : PlanAnswerText(answer, console.style));
  const bool yes = answer.explanation ? answer.explanation->fits : !answer.plans.empty();
  return yes ? 0 : 1;
}

}  // namespace millwright
