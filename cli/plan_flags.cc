// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/mistakes.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/plan_filter.h"
#include "report/text.h"

namespace millwright {
namespace {

template <class T>
void Override(T& field, const std::optional<std::int64_t>& flag) {
  if (flag) field = static_cast<T>(*flag);
}

// Of one plan, as tables write it: none, full, full(N), selective(MODULE,...).
std::optional<Recompute> ParsePlanRecompute(std::string_view text) {
  bool any = false;
  std::optional<Recompute> recompute = ParseRecompute(text, any);
  if (!recompute || text == "full(all)" || recompute->full_layers > kMostLayers) return {};
  if (any && recompute->granularity == RecomputeGranularity::kSelective) return {};
  return recompute;
}

// Of one rank, as tables write it: the same, offload(N), or offload(N) behind the others.
std::optional<Recompute> ParseOfRank(std::string_view text) {
  constexpr std::string_view kOffload = "offload(";
  const std::size_t at = text.find(kOffload);
  if (at == std::string_view::npos) return ParsePlanRecompute(text);
  if (!text.ends_with(')') || (at > 0 && text[at - 1] != ' ')) return {};
  const auto layers =
      ParseInteger(text.substr(at + kOffload.size(), text.size() - at - kOffload.size() - 1));
  if (!layers || *layers < 1 || *layers > kMostLayers) return {};
  std::optional<Recompute> recompute =
      at == 0 ? Recompute{} : ParsePlanRecompute(text.substr(0, at - 1));
  if (!recompute || recompute->granularity == RecomputeGranularity::kFull) return {};
  recompute->offload_layers = int(*layers);
  return recompute;
}

}  // namespace

void PlanFlags::AddTo(CommandLine& line) {
  AddWithoutScheduleTo(line);
  line.Enum("--schedule", schedule_, TrainingScheduleNames(),
            "of the pipeline (default: interleaved with vpp above 1, else 1f1b)");
}

void PlanFlags::AddWithoutScheduleTo(CommandLine& line) {
  constexpr IntRange kDegree{.min = 1, .max = 1 << 20};
  line.Section("Plan");
  line.Int("--tp", tp_, kDegree, "tensor parallel (default: 1)");
  line.Switch("--sp", sp_, "sequence parallel (default: on with tp, where the model allows)");
  line.Int("--cp", cp_, kDegree, "context parallel (default: 1)");
  line.Enum("--cp-kind", cp_kind_, ContextParallelKindNames(),
            "how attention crosses context ranks (default: ring)");
  line.Int("--cp-ulysses", cp_ulysses_, {0, 1 << 20},
           "of --cp-kind nested: neighbouring context ranks that exchange heads (default: 0)");
  line.Int("--pp", pp_, kDegree, "pipeline parallel (default: 1)");
  line.Int("--vpp", vpp_, kDegree, "virtual stages of a pipeline rank (default: 1)");
  line.Text("--stage-layers", "N,KxN,...", stage_layers_,
            "layers of each stage, virtual ones too, in the order of a micro-batch: 7,14x8,7 "
            "(default: as even as can be)");
  line.Int("--dp", dp_, kDegree, "data parallel (default: what is left of the GPUs)");
  line.Enum("--order", order_, RankOrderNames(),
            "which ranks have neighbouring GPUs, innermost first (default: tp-cp-ep-dp-pp)");
  line.Int("--ep", ep_, kDegree, "expert parallel (default: 1)");
  line.Int("--etp", etp_, kDegree, "expert tensor parallel (default: 1)");
  line.Int("--micro-batch", micro_batch_, kDegree, "sequences in a micro-batch (default: 1)");
  line.Int("--zero", zero_, {0, 3},
           "sharded over data parallel ranks: 1 optimizer, 2 gradients too, 3 weights too "
           "(default: 1)");
  line.Int("--zero-shard", zero_shard_, {0, 1 << 20},
           "ranks that hold one copy of what is sharded, HSDP (default: 0, all of them)");
  line.Text("--recompute", "WHAT", recompute_,
            "none, full, full(N) of the first N layers of a stage, or selective(MODULE,...) "
            "(default: none)");
  line.Int("--recompute-layers", recompute_layers_, {1, 10'000}, "N of --recompute full");
  line.Text("--recompute-modules", "MODULE,...", recompute_modules_,
            "of --recompute selective: core_attn, mlp, moe, moe_act, layernorm, mla_up_proj");
  line.Int("--offload-layers", offload_layers_, {0, 10'000},
           "layers of each virtual stage whose activations wait in host memory (default: 0)");
  line.Text("--rank-recompute", "WHAT|KxWHAT|...", rank_recompute_,
            "in place of --recompute and --offload-layers, of each pipeline rank: "
            "'full(4)|2xfull(2)|none', with offload(N) alone or behind none or selective");
}

void PlanFlags::ResolveRecompute(CommandLine& line, Recompute& recompute) const {
  // As the filters of `plan` write it; one is made of up to three flags.
  if (!recompute_) {
    if (recompute_layers_) line.Problem("--recompute-layers", "needs --recompute full");
    if (recompute_modules_) line.Problem("--recompute-modules", "needs --recompute selective");
    return;
  }
  std::string text = *recompute_;
  if (recompute_layers_) {
    if (text != "full") {
      line.Problem("--recompute-layers",
                   fmt::format("needs --recompute full, got \"{}\"", *recompute_));
      return;
    }
    text = fmt::format("full({})", *recompute_layers_);
  }
  if (recompute_modules_) {
    if (text != "selective") {
      line.Problem("--recompute-modules",
                   fmt::format("needs --recompute selective, got \"{}\"", *recompute_));
      return;
    }
    text = fmt::format("selective({})", *recompute_modules_);
  }
  if (const std::optional<Recompute> parsed = ParsePlanRecompute(text)) {
    recompute = *parsed;
  } else if (text == "selective") {
    line.Problem("--recompute", "selective needs its modules: selective(MODULE,...)");
  } else {
    line.Problem("--recompute",
                 fmt::format("expected none, full, full(N) or selective(MODULE,...) of core_attn, "
                             "mlp, moe, moe_act, layernorm, mla_up_proj, got \"{}\"",
                             text));
  }
}

void PlanFlags::ResolveRankRecompute(CommandLine& line, ParallelConfig& plan) const {
  if (!rank_recompute_) {
    // A job's, of which flags change the ranks or what all of them do.
    if (plan.rank_recompute.empty()) return;
    if (recompute_ || offload_layers_ || plan.rank_recompute.size() != std::size_t(plan.pipeline)) {
      line.Warning("rank_recompute", fmt::format("the job's {} is left out: flags change the ranks "
                                                 "or what all of them recompute",
                                                 RecomputeName(plan)));
      plan.rank_recompute.clear();
    }
    return;
  }
  if (recompute_ || offload_layers_) {
    line.Problem("--rank-recompute", fmt::format("{} is given too; give one of them",
                                                 recompute_ ? "--recompute" : "--offload-layers"));
    return;
  }
  plan.recompute = {};
  plan.rank_recompute.clear();
  constexpr std::int64_t kMostRanks = 1 << 16;
  std::string_view rest = *rank_recompute_;
  bool wrong = false;
  std::set<std::string_view> shown;  // mistakes, each once
  for (bool last = false; !last;) {
    const std::size_t bar = rest.find('|');
    last = bar == std::string_view::npos;
    const std::string_view item = rest.substr(0, bar);
    if (!last) rest.remove_prefix(bar + 1);
    const std::size_t digits = std::min(item.find_first_not_of("0123456789"), item.size());
    const bool several = digits > 0 && item.substr(digits).starts_with('x');
    const std::optional<std::int64_t> ranks = several ? ParseInteger(item.substr(0, digits)) : 1;
    const std::optional<Recompute> recompute =
        ParseOfRank(several ? item.substr(digits + 1) : item);
    if (!recompute || !ranks || *ranks < 1 ||
        *ranks > kMostRanks - std::int64_t(plan.rank_recompute.size())) {
      wrong = true;
      if (!shown.insert(item).second) continue;
      line.Problem("--rank-recompute",
                   fmt::format("expected none, full, full(N), selective(MODULE,...), offload(N) or "
                               "selective(MODULE,...) offload(N), or Kx before one of them for K "
                               "ranks, divided by |, got \"{}\"",
                               Printable(item, kMostNameShown)));
      continue;
    }
    plan.rank_recompute.insert(plan.rank_recompute.end(), std::size_t(*ranks), *recompute);
  }
  if (!wrong && plan.rank_recompute.size() != std::size_t(plan.pipeline)) {
    line.Problem("--rank-recompute",
                 fmt::format("expected one for each of the {} pipeline ranks, got {}",
                             plan.pipeline, plan.rank_recompute.size()));
    return;
  }
  if (const std::vector<Recompute> all = plan.Recomputes(); !wrong && all.size() == 1) {
    plan.recompute = all.front();  // the same on all is no choice of each
    plan.rank_recompute.clear();
  }
}

void PlanFlags::ResolveStageLayers(CommandLine& line, ParallelConfig& plan) const {
  if (!stage_layers_) {
    if (pp_ || vpp_ || schedule_)
      DropOtherSplit(plan);  // a job's, of which flags change the stages
    return;
  }
  plan.stage_layers.clear();
  constexpr std::int64_t kMostOfStage = 10'000, kMostOfAll = 1 << 16;
  std::string_view rest = *stage_layers_;
  const auto wrong = [&](std::string_view item) {
    line.Problem("--stage-layers", fmt::format("expected numbers of layers, or STAGESxLAYERS, "
                                               "divided by commas, as in 7,14x8,7, got \"{}\"",
                                               item));
  };
  for (bool last = false; !last;) {
    const std::size_t comma = rest.find(',');
    last = comma == std::string_view::npos;
    const std::string_view item = rest.substr(0, comma);
    if (!last) rest.remove_prefix(comma + 1);
    const std::size_t times = item.find('x');
    const std::optional<std::int64_t> layers =
        ParseInteger(times == std::string_view::npos ? item : item.substr(times + 1));
    const std::optional<std::int64_t> stages =
        times == std::string_view::npos ? 1 : ParseInteger(item.substr(0, times));
    if (!layers || *layers < 0 || *layers > kMostOfStage || !stages || *stages < 1 ||
        *stages > kMostOfAll - std::int64_t(plan.stage_layers.size())) {
      return wrong(item);
    }
    plan.stage_layers.insert(plan.stage_layers.end(), std::size_t(*stages), int(*layers));
  }
}

// More layers than there are is all of them, which is hardly what was meant.
void PlanFlags::WarnOfLayers(CommandLine& line, const Job& job, const ParallelConfig& plan) const {
  const char* of_all = recompute_ ? "--recompute" : "--offload-layers";
  if (!recompute_ && !offload_layers_ && !rank_recompute_) return;
  if (CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), plan)) return;
  std::vector<int> longest(std::size_t(plan.pipeline));  // chunk of each rank
  for (const StageContent& stage : StagesOfPlan(job.model, plan)) {
    for (const std::vector<int>& chunk : stage.chunks) {
      int& most = longest[std::size_t(stage.ranks.front())];
      most = std::max(most, int(chunk.size()));
    }
  }
  const auto check = [&](const char* flag, const std::string& rank, const Recompute& recompute,
                         int layers) {
    if (std::max(recompute.full_layers, recompute.offload_layers) <= layers) return;
    line.Warning(flag, fmt::format("{}{} is all of the {} that a stage has at most", rank,
                                   ShortName(recompute), Counted(layers, "layer")));
  };
  if (plan.rank_recompute.empty()) {
    check(rank_recompute_ ? "--rank-recompute" : of_all, "", plan.recompute,
          *std::max_element(longest.begin(), longest.end()));
    return;
  }
  for (std::size_t rank = 0; rank < plan.rank_recompute.size(); ++rank) {
    check("--rank-recompute", fmt::format("rank {}: ", rank), plan.rank_recompute[rank],
          longest[rank]);
  }
}

ParallelConfig PlanFlags::Resolve(CommandLine& line, const Job& job, bool cluster_resized) const {
  ParallelConfig p = job.has_parallel ? job.parallel : ParallelConfig{};
  Override(p.tensor, tp_);
  Override(p.context, cp_);
  Override(p.pipeline, pp_);
  Override(p.virtual_stages, vpp_);
  Override(p.expert, ep_);
  Override(p.expert_tensor, etp_);
  Override(p.micro_batch_size, micro_batch_);
  Override(p.zero, zero_);
  Override(p.zero_shard, zero_shard_);
  if (cp_kind_) {
    p.context_kind = *cp_kind_;
    if (p.context_kind != ContextParallelKind::kNested) p.context_ulysses = 0;
  }
  Override(p.context_ulysses, cp_ulysses_);
  if (order_) p.order = *order_;
  ResolveRecompute(line, p.recompute);
  Override(p.recompute.offload_layers, offload_layers_);
  if (p.recompute.offload_layers > 0 && p.recompute.granularity == RecomputeGranularity::kFull) {
    line.Problem("--offload-layers", "full recompute leaves nothing to offload");
  }

  ResolveRankRecompute(line, p);

  if (schedule_) {
    p.schedule = *schedule_;
    // It takes the place of the job's chunks, too, where it has its own; not of --vpp.
    if (!vpp_ && !ChoosesChunks(p.schedule)) p.virtual_stages = 1;
  } else if (!job.has_parallel || (vpp_ && p.schedule != ScheduleKind::kBreadthFirst)) {
    p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  }
  ResolveStageLayers(line, p);
  if (line.HasProblems()) return p;  // what follows looks at the question

  if (sp_) {
    p.sequence_parallel = *sp_;
  } else if (tp_ || !job.has_parallel) {
    p.sequence_parallel = true;
    if (p.tensor == 1 || CheckContext(job.model, job.training, p)) p.sequence_parallel = false;
  }
  if (dp_) {
    p.data = static_cast<int>(*dp_);
  } else if (tp_ || cp_ || pp_ || cluster_resized || !job.has_parallel) {
    const double model_ranks = 1.0 * p.tensor * p.context * p.pipeline;
    p.data = std::max(1, static_cast<int>(double(job.cluster.gpus()) / model_ranks));
  }
  WarnOfLayers(line, job, p);
  return p;
}

}  // namespace millwright
