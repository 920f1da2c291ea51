// SPDX-License-Identifier: Apache-2.0
#include "report/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/unit_text.h"
#include "cost_models/interval.h"
#include "planner/megatron_args.h"
#include "report/estimate_text.h"
#include "report/megatron_settings.h"
#include "report/options_text.h"
#include "report/size_text.h"

namespace millwright {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string SignedSeconds(Seconds s) {
  if (s == Seconds(0)) return "-";
  return Signed(FormatSeconds(Seconds(std::abs(s.value))), s < Seconds(0));
}
std::string SignedGiB(Bytes b) {
  constexpr double kLeast = 0.05;  // rounds to nothing
  const double gib = b.value / kGiB;
  return std::abs(gib) < kLeast ? "-" : fmt::format("{:+.1f} GiB", gib);
}

// What was rejected for which reason, the most first; equal ones stay in order.
std::vector<std::pair<RejectionReason, std::int64_t>> Most(const SearchResult& result) {
  std::vector<std::pair<RejectionReason, std::int64_t>> sorted;
  for (std::size_t i = 0; i < kRejectionReasons; ++i) {
    if (result.rejected[i] > 0) {
      sorted.emplace_back(static_cast<RejectionReason>(i), result.rejected[i]);
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string SignedPercent(double share) {
  const std::string percent = Percent(std::abs(share));
  return percent == "0.0%" ? percent : Signed(percent, share < 0);
}

// With the simulation's, where there is one.
std::string ResultSentence(const Contender& c) {
  std::string text = ResultSentence(c.estimate);
  if (c.simulated) {
    text +=
        fmt::format("; simulated {} and {}", PerStep(c.simulated->step), GiB(c.simulated->peak));
  }
  return text;
}

// The modules of selective recompute speak for themselves.
std::string RecomputeCell(const ParallelConfig& plan) {
  std::string name = RecomputeName(plan);
  constexpr std::string_view kSelective = "selective(";
  for (std::size_t at = 0; (at = name.find(kSelective)) != std::string::npos;) {
    name.erase(name.find(')', at), 1);
    name.erase(at, kSelective.size());
  }
  return name;
}

std::string ParetoText(const std::vector<Estimate>& pareto, const Style& style) {
  constexpr std::size_t kMost = 10;
  TextTable table;
  table.Column("step");
  table.Column("memory");
  table.Column("free");
  table.Column("plan", Align::kLeft);
  const std::size_t shown = std::min(kMost, pareto.size());
  for (std::size_t i = 0; i < shown; ++i) {
    // First and last always, the others evenly between.
    const Estimate& e = pareto[shown == 1 ? 0 : i * (pareto.size() - 1) / (shown - 1)];
    table.Row({PerStep(e.step), GiB(e.peak), GiB(e.capacity - e.peak), BriefName(e.plan)});
  }
  std::string text = Bold(Wrapped("What less memory costs: by the estimate no evenly divided plan "
                                  "is faster and smaller",
                                  style.width, 0),
                          style) +
                     '\n' + table.Text(style, 2);
  if (shown < pareto.size()) {
    text += fmt::format("  ({} of {}; --json has all)\n", shown, pareto.size());
  }
  return text;
}

std::string SearchedText(const PlanAnswer& answer) {
  std::string text =
      fmt::format("at least {:g}% of the memory left free", 100 * answer.job.search.memory_margin);
  for (const std::string& one : answer.job.search.require) text += fmt::format(", only {}", one);
  for (const std::string& one : answer.job.search.forbid) text += fmt::format(", not {}", one);
  return text;
}

std::string RemediesText(const PlanAnswer& answer, const Style& style) {
  std::string text = Bold("What would make it fit", style) + '\n';
  if (answer.remedies.empty()) {
    return text +
           "  Nothing that was tried: more nodes up to 64 times as many, or narrower state.\n";
  }
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("", Align::kLeft);
  for (const Remedy& remedy : answer.remedies) {
    table.Row({remedy.change, fmt::format("{}: {} a step, {}", BriefName(remedy.plan.plan),
                                          PerStep(remedy.plan.step), GiB(remedy.plan.peak))});
  }
  return text + table.Text(style, 2);
}

// Which of the plans listed are as good as the first for all that is known.
std::string ToldApartText(const PlanAnswer& answer, const Style& style) {
  const std::vector<Contender>& plans = answer.plans();
  const double enough =
      ToldApart(ClassOf(answer.job.model, answer.job.training, answer.job.cluster.gpu));
  const auto near = std::count_if(plans.begin(), plans.end(), [&](const Contender& c) {
    return c.step() / plans.front().step() - 1 < enough;
  });
  if (near < 2) return {};
  return Wrapped(fmt::format("The {}{} cannot be told apart: within {} of the first, 90% intervals "
                             "overlap by more than half.",
                             near == std::ssize(plans) ? "" : "first ", near, Percent(enough)),
                 style.width, 4) +
         '\n';
}

// What the best plan is, or the nearest.
std::string AnswerSentence(const PlanAnswer& answer) {
  if (!answer.plans().empty()) {
    const Contender& best = answer.plans().front();
    const std::optional<RobustCost> drawn =
        answer.robust ? answer.robust->costs.front() : std::nullopt;
    return fmt::format("Best: {}: {}{}.", BriefName(best.estimate.plan), ResultSentence(best),
                       drawn ? fmt::format("; ranked by {} (--robust)", PerStep(drawn->high)) : "");
  }
  if (!answer.nearest_miss) return fmt::format("No plan: {}.", answer.why_not);
  const ClusterConfig& cluster = answer.job.cluster;
  const bool all_seen = answer.result.certificate.unvisited == 0;
  return fmt::format("{} {} on {}. {} least memory is {}: {}.",
                     all_seen ? "No plan fits" : "In the time given no plan was found that fits",
                     answer.job.model.name, Counted(cluster.gpus(), "GPU"),
                     all_seen ? "The one that needs" : "Of those visited the one that needs",
                     BriefName(answer.nearest_miss->plan),
                     MissSentence(*answer.nearest_miss, answer.result.memory_limit, cluster.gpu));
}

// What the framework lacks of a plan that it does not run.
std::string_view LacksOf(Framework framework, const ParallelConfig& plan) {
  if (!RunsIn(framework, plan.schedule)) return NameOf(plan.schedule);
  if (!plan.rank_recompute.empty()) return "recomputation by pipeline rank";
  if (!OffloadsIn(framework, plan.pipeline, plan.recompute)) {
    return "offloaded layers with pipelines or recomputation";
  }
  return "ZeRO 2 or 3 with a pipeline";
}

// Where the best plan is none of the framework's, the best of those.
std::string InFrameworkNote(const PlanAnswer& answer) {
  const Framework framework = answer.job.training.framework;
  const Contender& best = answer.plans().front();
  const std::string lacks =
      fmt::format("The framework, {}, has no {}.", NameIn(FrameworkNames(), framework),
                  LacksOf(framework, best.estimate.plan));
  if (!answer.in_framework) return lacks + " No plan that it runs was searched and fits.";
  const Contender& c = *answer.in_framework;
  return fmt::format("{} The fastest plan that it runs is {}: {} a step, {} more than {}.", lacks,
                     BriefName(c.estimate.plan), PerStep(c.step()),
                     Percent(c.step() / best.step() - 1), PerStep(best.step()));
}

// Which of the plans listed the framework would stop at, and why, the first of each reason's.
std::string RefusedNote(const PlanAnswer& answer) {
  const Framework framework = answer.job.training.framework;
  std::vector<std::string> sharded, exchanged, offloaded, overlapped;
  std::string why;
  for (std::size_t i = 0; i < answer.plans().size(); ++i) {
    const ParallelConfig& plan = answer.plans()[i].estimate.plan;
    const std::string row = fmt::format("#{}", i + 1);
    if (!ShardsIn(framework, plan.pipeline, plan.zero)) sharded.push_back(row);
    if (!OffloadsIn(framework, plan.pipeline, plan.recompute)) offloaded.push_back(row);
    if (framework != Framework::kMegatron) continue;
    const TrainingConfig& training = answer.job.training;
    if (plan.expert > 1 && training.expert_overlap &&
        !WrittenExpertOverlap(answer.job.model, training, plan)) {
      overlapped.push_back(row);
    }
    const std::string refused = RefusedExchange(answer.job.model, plan);
    if (refused.empty()) continue;
    if (exchanged.empty()) why = refused;
    exchanged.push_back(row);
  }
  std::vector<std::string> reasons;
  if (!sharded.empty()) {
    reasons.push_back(
        fmt::format("{}: ZeRO 2 and 3 have no pipeline there", fmt::join(sharded, ", ")));
  }
  if (!offloaded.empty()) {
    reasons.push_back(
        fmt::format("{}: layers are not offloaded there with pipelines or recomputation",
                    fmt::join(offloaded, ", ")));
  }
  if (!overlapped.empty()) {
    reasons.push_back(
        fmt::format("{}: experts' exchanges are overlapped there with virtual stages, where there "
                    "are stages, and without recomputing layers or experts as a whole",
                    fmt::join(overlapped, ", ")));
  }
  if (!exchanged.empty()) {
    reasons.push_back(fmt::format("{}: {}{}", fmt::join(exchanged, ", "), why,
                                  exchanged.size() > 1 ? ", in the first of them" : ""));
  }
  if (reasons.empty()) return {};
  return fmt::format("Not as they are in the framework: {}.", fmt::join(reasons, "; "));
}

std::string FrameworkText(const PlanAnswer& answer, const Style& style) {
  std::string text;
  for (const std::string& note : FrameworkNotes(answer)) {
    text += Wrapped(note, style.width, 2) + '\n';
  }
  return text;
}

std::string NoPlanText(const PlanAnswer& answer, const Style& style) {
  std::string text = Bold(Wrapped(AnswerSentence(answer), style.width, 0), style) + "\n\n" +
                     QuestionText(answer.job, style, SearchedText(answer));
  if (answer.nearest_miss) {
    if (answer.seeks_remedies) text += '\n' + RemediesText(answer, style);
    text += '\n' + Bold("The nearest miss: " + BriefName(answer.nearest_miss->plan), style) + '\n' +
            MemoryText(*answer.nearest_miss, style);
  }
  return text + '\n' + CertificateText(answer, style) + RejectionText(answer.result, style);
}

std::string LeastMemory(const Estimate& e, const PlanAnswer& answer) {
  return fmt::format("the plan that needs least memory is {}: {}", BriefName(e.plan),
                     MissSentence(e, answer.result.memory_limit, answer.job.cluster.gpu));
}

std::string ComparisonText(const Estimate& plan, const Estimate& winner, const Style& style) {
  TextTable time;
  time.Column("Time of a step", Align::kLeft);
  time.Column("this plan");
  time.Column("best");
  time.Column("difference");
  for (int i = 0; i < kTimeItems; ++i) {
    const auto item = static_cast<TimeItem>(i);
    const Seconds here = plan.time[item], there = winner.time[item];
    if (here == Seconds(0) && there == Seconds(0)) continue;
    time.Row({std::string("  ").append(Label(item)), PerStep(here), PerStep(there),
              SignedSeconds(here - there)});
  }
  time.Row({"  total", PerStep(plan.step), PerStep(winner.step),
            SignedSeconds(plan.step - winner.step)});

  const StageMemory& here = plan.memory[std::size_t(plan.peak_stage)];
  const StageMemory& there = winner.memory[std::size_t(winner.peak_stage)];
  TextTable memory;
  memory.Column("Memory of the fullest stage", Align::kLeft);
  memory.Column("this plan");
  memory.Column("best");
  memory.Column("difference");
  for (int i = 0; i < kMemoryItems; ++i) {
    const auto item = static_cast<MemoryItem>(i);
    if (here[item] == Bytes(0) && there[item] == Bytes(0)) continue;
    memory.Row({std::string("  ").append(Name(item)), GiB(here[item]), GiB(there[item]),
                SignedGiB(here[item] - there[item])});
  }
  memory.Row({"  total", GiB(plan.peak), GiB(winner.peak), SignedGiB(plan.peak - winner.peak)});
  return time.Text(style) + '\n' + memory.Text(style);
}

// What becomes of what --explain asks about.
std::string ExplanationSentence(const PlanAnswer& answer) {
  const Explanation& x = *answer.explanation;
  if (!x.plan) return fmt::format("{}: no plan: {}.", x.asked, x.why_not);
  const Estimate& plan = x.plan->estimate;
  if (!x.fits) return fmt::format("{}: does not fit; {}.", x.asked, LeastMemory(plan, answer));
  const bool winner = !answer.plans().empty();
  if (winner && plan.plan == answer.plans().front().estimate.plan) {
    return fmt::format("{}: includes the best plan, {}: {}.", x.asked, BriefName(plan.plan),
                       ResultSentence(*x.plan));
  }
  return fmt::format("{}: {} at best, {}{}{}.", x.asked, BriefName(plan.plan),
                     ResultSentence(*x.plan), winner ? "; " : "",
                     winner ? LossSentence(*x.plan, answer.plans().front()) : "");
}

// What there is beside it.
std::string BestSentence(const PlanAnswer& answer) {
  if (answer.plans().empty()) return {};
  return fmt::format("The best plan{} is {}: {}.", answer.explanation->plan ? "" : " without it",
                     BriefName(answer.plans().front().estimate.plan),
                     ResultSentence(answer.plans().front()));
}

std::string ExplanationText(const PlanAnswer& answer, const Style& style) {
  const Explanation& x = *answer.explanation;
  std::string text = Bold(Wrapped(ExplanationSentence(answer), style.width, 0), style) + '\n';
  if (const std::string best = BestSentence(answer); !best.empty()) {
    text += Wrapped(best, style.width, 0) + '\n';
  }
  text += '\n' + QuestionText(answer.job, style, SearchedText(answer));
  if (!x.plan) return text;
  const Estimate& plan = x.plan->estimate;
  return text + '\n' +
         (answer.plans().empty() ? TimeText(plan, style) + '\n' + MemoryText(plan, style)
                                 : ComparisonText(plan, answer.plans().front().estimate, style));
}

}  // namespace

namespace {

// In few columns: "zb-v", "bfs:4", "1f1b", and "1f1b:4" where it is interleaved.
std::string ScheduleCell(const ParallelConfig& p) {
  const ScheduleKind kind = FollowsFromStages(p.schedule) ? ScheduleKind::k1F1B : p.schedule;
  return p.virtual_stages > 1 ? fmt::format("{}:{}", NameOf(kind), p.virtual_stages)
                              : std::string(NameOf(kind));
}

}  // namespace

std::string PlanTable(const std::vector<Contender>& plans, const Style& style) {
  TextTable table;
  for (const char* title :
       {"#", "tp", "sp", "cp", "pp", "vpp", "schedule", "dp", "ep", "etp", "mbs"}) {
    table.Column(title, Align::kRight, 1);
  }
  for (const char* title : {"zero", "simulated", "slower", "estimate", "off", "tok/s/GPU",
                            "TFLOP/s", "MFU", "HFU", "GiB"}) {
    table.Column(title);
  }
  table.Column("recompute", Align::kLeft);
  table.Column("layers", Align::kLeft);  // of each stage, where they are not even
  table.Column("order", Align::kLeft);   // of ranks, where it is not Megatron's default
  bool any_ulysses = false, any_nested = false;
  // Of 1F1B and interleaved the virtual stages say which it is.
  const bool name_schedules = std::any_of(plans.begin(), plans.end(), [](const Contender& c) {
    return !FollowsFromStages(c.estimate.plan.schedule);
  });
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Estimate& e = plans[i].estimate;
    const ParallelConfig& p = e.plan;
    any_ulysses = any_ulysses || (p.context > 1 && p.context_kind == ContextParallelKind::kUlysses);
    any_nested = any_nested || p.context_kind == ContextParallelKind::kNested;
    const double behind = plans[i].step() / plans.front().step() - 1;
    const bool simulated = plans[i].simulated.has_value();
    const double speed = e.step / plans[i].step();  // of the simulation, which is ranked by
    table.Row(
        {std::to_string(i + 1),
         std::to_string(p.tensor),
         p.sequence_parallel ? "on" : "-",
         ContextCell(p),
         std::to_string(p.pipeline),
         name_schedules ? "1" : std::to_string(p.virtual_stages),
         name_schedules ? ScheduleCell(p) : "-",
         std::to_string(p.data),
         std::to_string(p.expert),
         std::to_string(p.expert_tensor),
         std::to_string(p.micro_batch_size),
         p.zero_shard > 0 ? fmt::format("{}/{}", p.zero, p.zero_shard) : std::to_string(p.zero),
         simulated ? PerStep(plans[i].simulated->step) : "-",
         i == 0 ? "" : SignedPercent(behind),
         PerStep(e.step),
         simulated ? SignedPercent(plans[i].difference()) : "-",
         FormatRate(speed * e.tokens_per_second_per_gpu),
         fmt::format("{:.0f}", speed * e.model_flops_per_gpu.value / 1e12),
         Percent(speed * e.mfu),
         Percent(speed * e.hfu),
         fmt::format("{:.1f}", e.peak.value / kGiB),
         RecomputeCell(p),
         p.stage_layers.empty() ? "-" : RunsOf(p.stage_layers),
         p.placed_otherwise() ? "pp-dp" : "-"});
  }
  for (const char* title : {"cp", "vpp", "ep", "etp"}) table.DropIfAll(title, "1");
  for (const char* title : {"schedule", "sp", "simulated", "off", "layers", "order"})
    table.DropIfAll(title, "-");
  table.DropIfAll("recompute", "none");
  for (const char* title : {"HFU", "TFLOP/s", "MFU", "tok/s/GPU", "off", "layers", "slower"}) {
    table.DropIfWide(title, style);
  }
  if (std::any_of(plans.begin(), plans.end(), [](const Contender& c) { return c.simulated; })) {
    table.DropIfWide("estimate", style);
  }
  return table.Text(style) +
         (any_nested    ? "    (u: Ulysses; 16u8: a ring of Ulysses groups of 8; else a ring)\n"
          : any_ulysses ? "    (u: Ulysses; other context parallelism is ring)\n"
                        : "");
}

std::vector<MemoryItem> OutOfMemoryItems(const SearchResult& result) {
  const auto count = [&](MemoryItem item) {
    return result.out_of_memory[static_cast<std::size_t>(item)].count;
  };
  std::vector<MemoryItem> items;
  for (int i = 0; i < kMemoryItems; ++i) {
    if (count(static_cast<MemoryItem>(i)) > 0) items.push_back(static_cast<MemoryItem>(i));
  }
  std::stable_sort(items.begin(), items.end(),
                   [&](MemoryItem a, MemoryItem b) { return count(a) > count(b); });
  return items;
}

std::string CertificateText(const PlanAnswer& answer, const Style& style) {
  const SearchResult& result = answer.result;
  const Certificate& c = result.certificate;
  if (c.space == 0) return {};
  std::vector<std::pair<std::int64_t, Bound>> bounds;
  for (std::size_t i = 0; i < kBounds; ++i) {
    if (c.ruled_out[i] > 0) bounds.emplace_back(c.ruled_out[i], static_cast<Bound>(i));
  }
  std::stable_sort(bounds.begin(), bounds.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  if (!c.exact()) {
    text = fmt::format("{} of {} with layers divided evenly were not visited in the time given; ",
                       FormatInteger(c.unvisited), Counted(c.space, "candidate"));
    text += result.plans.empty() ? "of the others none fits"
            : c.gap > 0
                ? fmt::format(
                      "by a bound none is faster than {}, {} below the {} of the best of those "
                      "that were",
                      PerStep(c.best_bound), Percent(c.gap / (1 + c.gap)),
                      PerStep((1 + c.gap) * c.best_bound))
                : std::string("by a bound none of them is faster than the best by the estimate");
  } else if (std::isinf(c.best_bound.value)) {
    text = fmt::format("Proven that none of {} fits with its layers divided evenly",
                       Counted(c.space, "candidate"));
  } else {
    text = fmt::format("Proven best of {} with layers divided evenly, by the estimate",
                       Counted(c.space, "candidate"));
    // No bound covers what is made of the fastest of them, nor how they are ranked.
    const Estimate* const shown =
        answer.plans().empty() ? nullptr : &answer.plans().front().estimate;
    if (shown != nullptr && answer.objective != Objective::kMemory &&
        shown->step > (1 + 1e-9) * c.best_bound) {
      text = fmt::format(
          "Of {} with layers divided evenly none is faster than {} by the estimate, which is "
          "proven; the best plan, {} by the estimate, is so by {}",
          Counted(c.space, "candidate"), PerStep(c.best_bound), PerStep(shown->step),
          answer.robust ? "its draws" : "its simulated step");
    } else if (shown != nullptr && shown->step < (1 - 1e-9) * c.best_bound) {
      const ParallelConfig& best = shown->plan;
      const bool by_rank = !best.rank_recompute.empty(), split = !best.stage_layers.empty();
      text = fmt::format(
          "The best plan is a candidate with its {}. Of {} with layers "
          "divided evenly{} none is faster than {} by the estimate, which is proven",
          by_rank ? fmt::format("recomputation{} chosen by rank", split ? " and layers" : "")
                  : "layers divided anew",
          Counted(c.space, "candidate"), by_rank ? " and recomputed alike" : "",
          PerStep(c.best_bound));
    }
  }
  text += fmt::format(": {} costed", FormatInteger(c.costed));
  for (const auto& [count, bound] : bounds) {
    text += fmt::format(", {} {}", FormatInteger(count), Name(bound));
  }
  if (c.by_rank > 0) {
    text += fmt::format(
        ". Of {} whose ranks may each recompute as is best for them {} {} faster than their layout "
        "without",
        Counted(c.by_rank, "plan"), FormatInteger(c.faster_by_rank),
        c.faster_by_rank == 1 ? "is" : "are");
  }
  if (c.undivided > 0) {
    text += fmt::format(". For {} there was no time to divide the layers anew",
                        Counted(c.undivided, "plan"));
  }
  if (c.not_by_rank > 0) {
    text += fmt::format(". For {} there was no time to choose recomputation by rank",
                        Counted(c.not_by_rank, "plan"));
  }
  return Wrapped(text + '.', style.width, 2) + '\n';
}

std::string RobustText(const PlanAnswer& answer, const Style& style) {
  if (!answer.robust) return {};
  const RobustAnswer& r = *answer.robust;
  TextTable table;
  for (const char* title : {"#", "simulated", "median", "95%", "and interval"}) table.Column(title);
  table.Column("plan", Align::kLeft);
  for (std::size_t i = 0; i < r.costs.size(); ++i) {
    const Contender& plan = answer.plans()[i];
    const auto cell = [&](Seconds RobustCost::*part) {
      return r.costs[i] ? PerStep(*r.costs[i].*part) : std::string("-");
    };
    table.Row({std::to_string(i + 1), PerStep(plan.step()), cell(&RobustCost::median),
               cell(&RobustCost::p95), cell(&RobustCost::high), BriefName(plan.estimate.plan)});
  }
  std::string slow;
  for (const std::string& name : r.options.slow_names) slow += ", " + name;
  const std::string how = fmt::format(
      "Ranked by the 95% quantile of {} draws in which GPUs differ by {} (sigma, seed {}){}; with "
      "the "
      "upper end of the 90% interval, {:.2f} times, on top.",
      r.options.draws, Percent(r.options.gpu_jitter), r.options.seed, slow, r.interval_high);
  return Bold("Where GPUs are not alike", style) + '\n' + table.Text(style, 2) +
         Wrapped(how, style.width, 2) + "\n\n";
}

std::string RejectionText(const SearchResult& result, const Style& style) {
  std::string text =
      Bold(fmt::format("{} costed; what was rejected", Counted(result.searched, "plan")), style) +
      '\n';
  TextTable table;
  table.Column("", Align::kRight);
  table.Column("", Align::kLeft);
  for (const auto& [reason, count] : Most(result)) {
    if (reason != RejectionReason::kOutOfMemory) {
      table.Row({FormatInteger(count), std::string(Name(reason))});
      continue;
    }
    table.Row({FormatInteger(count), "out of memory; most of the fullest stage is"});
    for (MemoryItem item : OutOfMemoryItems(result)) {
      const OutOfMemory& of_item = result.out_of_memory[static_cast<std::size_t>(item)];
      std::string what = fmt::format("  {:>{}}  {}", FormatInteger(of_item.count),
                                     FormatInteger(count).size(), Name(item));
      if (of_item.nearest) {
        what += fmt::format(" (nearest: {} over on stage {}, {})",
                            GiB(of_item.nearest->peak - result.memory_limit), of_item.stage,
                            BriefName(of_item.nearest->plan));
      }
      table.Row({"", what});
    }
  }
  if (table.rows() == 0) return text + "  nothing\n";
  return text + table.Text(style, 2);
}

std::string SimulatedText(const PlanAnswer& answer, const Style& style) {
  const Contenders& all = answer.contenders;
  std::vector<std::string> lines;
  if (all.simulated == 1) {
    lines.push_back(
        fmt::format("The estimate is {} off the simulation.", Percent(all.largest_difference)));
  } else if (all.simulated > 1) {
    const bool smallest = answer.objective == Objective::kMemory;
    std::string ranked =
        fmt::format("Ranked by simulated {}, of the {} {} by the estimate",
                    smallest ? "peak" : "step", all.simulated, smallest ? "smallest" : "fastest");
    if (answer.robust) {
      ranked = fmt::format(
          "The {} fastest by the estimate were simulated, of these the best {} ranked by "
          "draws",
          all.simulated, answer.robust->drawn);
    }
    lines.push_back(fmt::format("{}; {} is {} off at the median and {} at most.", ranked,
                                answer.robust ? "the estimate" : "it",
                                Percent(all.median_difference), Percent(all.largest_difference)));
  }
  if (all.too_large > 0) {
    lines.push_back(fmt::format(
        "{} of {} have no simulated step and keep their estimate: a step of theirs is over {} "
        "tasks "
        "(simulate takes it).",
        all.too_large, all.too_large + all.simulated, FormatCount(ContenderOptions{}.most_tasks)));
  }
  if (all.too_late > 0) {
    lines.push_back(fmt::format("For {} there was no time to simulate: they keep their estimate.",
                                Counted(all.too_late, "plan")));
  }
  if (all.none_fits_simulated) {
    lines.push_back(
        fmt::format("By the simulation none leaves the margin free: the best holds {} of {}.",
                    GiB(all.plans.front().peak()), GiB(answer.result.memory_limit)));
  }
  for (const Contender& c : all.left_out) {
    lines.push_back(
        fmt::format("Left out: {} would take {}, and fits by the estimate, but the "
                    "simulation holds {}, {} too much.",
                    BriefName(c.estimate.plan), PerStep(c.step()), GiB(c.peak()),
                    GiB(c.peak() - answer.result.memory_limit)));
  }
  std::string text;
  for (const std::string& line : lines) text += Wrapped(line, style.width, 2) + '\n';
  return text;
}

std::string LossSentence(const Contender& contender, const Contender& best) {
  const Estimate &plan = contender.estimate, &winner = best.estimate;
  const Seconds loss = plan.step - winner.step;
  const Seconds simulated_loss = contender.step() - best.step();
  // The estimate's items add up to its own difference: where that is a gain they explain nothing.
  if (loss <= Seconds(0)) {
    return fmt::format("by the estimate it gains {} on the best plan, by the simulation it {} {}",
                       FormatSeconds(Seconds(-loss.value)),
                       simulated_loss < Seconds(0) ? "gains" : "loses",
                       FormatSeconds(Seconds(std::abs(simulated_loss.value))));
  }
  if (simulated_loss < Seconds(0)) {
    return fmt::format("by the simulation it gains {} on the best plan; by the estimate {}",
                       FormatSeconds(Seconds(-simulated_loss.value)), LossSentence(plan, winner));
  }
  return LossSentence(plan, winner);
}

std::string LossSentence(const Estimate& plan, const Estimate& winner) {
  const Seconds loss = plan.step - winner.step;
  std::vector<std::pair<Seconds, TimeItem>> causes;
  for (int i = 0; i < kTimeItems; ++i) {
    const auto item = static_cast<TimeItem>(i);
    causes.emplace_back(plan.time[item] - winner.time[item], item);
  }
  std::stable_sort(causes.begin(), causes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = fmt::format("it loses {} ({}) to the best plan", FormatSeconds(loss),
                                 Percent(loss / winner.step));
  // Those that together explain most of it.
  Seconds named;
  std::string list;
  for (const auto& [seconds, item] : causes) {
    if (seconds <= 0.05 * loss || named >= 0.9 * loss) break;
    list +=
        fmt::format("{}{} in {}", list.empty() ? "" : ", ", FormatSeconds(seconds), Label(item));
    named += seconds;
  }
  if (!list.empty()) text += ": " + list;
  const auto& [gain, gained] = causes.back();
  if (gain < -0.05 * loss) {
    text +=
        fmt::format(" (and gains {} in {})", FormatSeconds(Seconds(-gain.value)), Label(gained));
  }
  return text;
}

std::string PlanSentence(const PlanAnswer& answer) {
  if (!answer.explanation) return AnswerSentence(answer);
  const std::string best = BestSentence(answer);
  return ExplanationSentence(answer) + (best.empty() ? "" : " " + best);
}

std::vector<std::string> FrameworkNotes(const PlanAnswer& answer) {
  std::vector<std::string> notes;
  if (!answer.plans().empty() &&
      !RunsIn(answer.job.training.framework, answer.plans().front().estimate.plan)) {
    notes.push_back(InFrameworkNote(answer));
  }
  const std::string refused = RefusedNote(answer);
  if (!refused.empty()) notes.push_back(refused);
  return notes;
}

std::optional<Substitute> SubstituteOf(const PlanAnswer& answer) {
  if (!answer.in_framework) return {};
  const Contender &best = answer.plans().front(), &runs = *answer.in_framework;
  return Substitute{
      runs.estimate.plan,
      fmt::format(
          "it has no {}; written is the fastest plan that it runs, {}: {} a step{}, {} more "
          "than {} of {}",
          LacksOf(answer.job.training.framework, best.estimate.plan), BriefName(runs.estimate.plan),
          PerStep(runs.step()), runs.simulated ? " as simulated" : "",
          Percent(runs.step() / best.step() - 1), PerStep(best.step()),
          BriefName(best.estimate.plan))};
}

std::string Reason(const PlanAnswer& answer) {
  if (!answer.plans().empty()) return "";
  return answer.nearest_miss ? LeastMemory(*answer.nearest_miss, answer) : answer.why_not;
}

std::string Reason(const Explanation& x, const PlanAnswer& answer) {
  if (x.fits) return "";
  return x.plan ? LeastMemory(x.plan->estimate, answer) : x.why_not;
}

namespace {

std::string TextOfOne(const PlanAnswer& answer, const Style& style) {
  if (answer.explanation) return ExplanationText(answer, style);
  if (answer.plans().empty()) return NoPlanText(answer, style);
  const Estimate& best = answer.plans().front().estimate;
  std::string text = Bold(Wrapped(AnswerSentence(answer), style.width, 0), style) + "\n\n" +
                     QuestionText(answer.job, style, SearchedText(answer)) + '\n';
  const char* best_layouts = answer.objective == Objective::kMemory ? "layouts of least memory"
                             : answer.robust                        ? "layouts that draws put first"
                                                                    : "fastest layouts";
  const std::string title =
      answer.plans().size() == 1
          ? std::string(answer.objective == Objective::kMemory ? "The layout of least memory"
                                                               : "The fastest layout")
          : fmt::format("The {} {}, each with its best schedule, ZeRO stage and recomputation",
                        answer.plans().size(), best_layouts);
  text += Bold(Wrapped(title, style.width, 0), style) + '\n' + PlanTable(answer.plans(), style) +
          ToldApartText(answer, style) + SimulatedText(answer, style) +
          FrameworkText(answer, style) + CertificateText(answer, style) + '\n';
  text += RobustText(answer, style);
  text += Bold("The best plan", style) + '\n' + PlanText(answer.job, best, style) + '\n' +
          TimeText(best, style) + '\n' + MemoryText(best, style) + '\n';
  text += ParetoText(answer.pareto, style) + '\n' + RejectionText(answer.result, style);
  return text;
}

}  // namespace

std::string PlanAnswerText(const PlanAnswer& answer, const Style& style) {
  return (answer.sizes ? SizeText(*answer.sizes, style) : "") +
         (answer.options ? OptionsText(*answer.options, answer.objective, style) : "") +
         TextOfOne(answer, style);
}

}  // namespace millwright
