// SPDX-License-Identifier: Apache-2.0
#include "planner/obstacle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/unit_text.h"
#include "planner/feasibility.h"
#include "planner/search_space.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

constexpr Knob kNumbers[] = {Knob::kTp,    Knob::kSp,         Knob::kCp,        Knob::kCpKind,
                             Knob::kPp,    Knob::kVpp,        Knob::kDp,        Knob::kEp,
                             Knob::kEtp,   Knob::kZero,       Knob::kZeroShard, Knob::kSchedule,
                             Knob::kOrder, Knob::kMicroBatch, Knob::kOffload,   Knob::kCpUlysses};

std::vector<int> UpTo(int first, std::int64_t last) {
  std::vector<int> values(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first + 1)));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// The values that this question leaves to a knob, and what they are: "the 8 GPUs".
struct Values {
  std::vector<int> values;
  std::string whole;  // what bounds them; empty: they are all there are
  std::int64_t most = 0;
  bool divide = true;  // `whole`; else up to it
};
Values ValuesOf(const Job& job, Knob knob) {
  const std::int64_t gpus = job.cluster.gpus();
  const std::string all_gpus =
      fmt::format("the {} GPU{}", FormatInteger(gpus), gpus == 1 ? "" : "s");
  switch (knob) {
    case Knob::kTp:
    case Knob::kCp:
    case Knob::kPp:
    case Knob::kDp:
    case Knob::kEp:
    case Knob::kEtp:
      return {Divisors(gpus, gpus), all_gpus, gpus};
    case Knob::kZeroShard:
      return {UpTo(0, gpus), all_gpus, gpus, false};
    case Knob::kOffload:
      return {UpTo(0, job.model.num_layers),
              fmt::format("the {} layers", FormatInteger(job.model.num_layers)),
              job.model.num_layers, false};
    case Knob::kVpp:
      return {UpTo(1, job.model.num_layers),
              fmt::format("the {} layers", FormatInteger(job.model.num_layers)),
              job.model.num_layers, false};
    case Knob::kMicroBatch: {
      const std::int64_t batch = job.training.global_batch_size;
      return {Divisors(batch, batch), fmt::format("the global batch of {}", FormatInteger(batch)),
              batch};
    }
    case Knob::kZero:
      return {UpTo(0, 3), "", 3};
    case Knob::kSp:
    case Knob::kOrder:
      return {UpTo(0, 1), "", 1};
    case Knob::kCpKind:
      return {UpTo(0, 2), "", 2};
    case Knob::kCpUlysses: {
      Values values{{0}, all_gpus, gpus};
      for (int ranks : Divisors(gpus, gpus / 2)) {
        if (ranks > 1) values.values.push_back(ranks);
      }
      return values;
    }
    case Knob::kSchedule: {
      Values values;
      for (const auto& name : TrainingScheduleNames()) {
        values.values.push_back(static_cast<int>(name.value));
      }
      return values;
    }
    case Knob::kRecompute:
      break;
  }
  return {};
}

std::string_view NameOf(Knob knob) { return KnobNames()[static_cast<std::size_t>(knob)]; }

std::string Conflict(const PlanFilter::OfKnob& about, Knob knob) {
  return about.terms > 1 ? fmt::format("{} conflict: no {} is left", about.written, NameOf(knob))
                         : fmt::format("{} leaves no {}", about.written, NameOf(knob));
}

std::vector<Recompute> Recomputes(const ModelConfig& model) {
  std::vector<Recompute> all = RecomputeChoices(model);
  std::stable_partition(all.begin(), all.end(), [](const Recompute& r) {
    return r.granularity == RecomputeGranularity::kNone;
  });
  for (int layers = 1; layers < model.num_layers; ++layers) {
    all.push_back({.granularity = RecomputeGranularity::kFull, .full_layers = layers});
  }
  return all;
}

}  // namespace

std::string ImpossibleKnob(const Job& job, const PlanFilter& filter) {
  for (Knob knob : kNumbers) {
    const PlanFilter::OfKnob about = filter.About(knob);
    if (about.terms == 0) continue;
    const auto [values, whole, most, divide] = ValuesOf(job, knob);
    if (std::any_of(values.begin(), values.end(), [&](int v) { return filter.Allows(knob, v); })) {
      continue;
    }
    if (about.required && about.values.empty()) return Conflict(about, knob);
    if (!about.required) {
      return fmt::format(
          "{} {} no {}{}", about.written, about.terms > 1 ? "leave" : "leaves", NameOf(knob),
          whole.empty() ? std::string()
                        : fmt::format(" {} {}", divide ? "that divides" : "up to", whole));
    }
    const int least = *std::min_element(about.values.begin(), about.values.end());
    return fmt::format("{} {} {} {}", NameOf(knob), fmt::join(about.values, "|"),
                       least > most ? "is more than" : "does not divide", whole);
  }
  // A recomputation that is asked for by name is for CheckPlan to judge.
  const PlanFilter::OfKnob about = filter.About(Knob::kRecompute);
  const std::vector<Recompute> all = Recomputes(job.model);
  const bool any =
      std::any_of(all.begin(), all.end(), [&](const Recompute& r) { return filter.Allows(r); });
  if (!any && about.recomputes.empty()) return Conflict(about, Knob::kRecompute);
  return "";
}

ParallelConfig Plainest(const Job& job, const PlanFilter& filter) {
  const std::int64_t gpus = job.cluster.gpus();
  // The first value allowed that is not below `least`, if there is one; else the first allowed.
  const auto first = [&](Knob knob, int least = 0) {
    int found = -1;
    for (int value : ValuesOf(job, knob).values) {
      if (!filter.Allows(knob, value)) continue;
      if (value >= least) return value;
      if (found < 0) found = value;
    }
    return std::max(found, 0);
  };
  const auto needs = [&](Knob knob, int yes) {
    return filter.Allows(knob, yes) && !filter.Allows(knob, 1 - yes);
  };
  ParallelConfig p;
  const auto allows = [&](ScheduleKind kind) {
    return filter.Allows(Knob::kSchedule, static_cast<int>(kind));
  };
  // 1F1B or interleaved by the virtual stages; else the first that is allowed.
  ScheduleKind plainest = ScheduleKind::k1F1B;
  if (!allows(plainest)) plainest = ScheduleKind::kInterleaved;
  for (const auto& name : TrainingScheduleNames()) {
    if (!allows(plainest) && allows(name.value)) plainest = name.value;
  }
  const bool in_chunks = ChoosesChunks(plainest);
  p.tensor = first(Knob::kTp, needs(Knob::kSp, 1) ? 2 : 1);
  // The first kind that is allowed, or nested where ranks of an all-to-all are asked for.
  p.context_kind = static_cast<ContextParallelKind>(first(Knob::kCpKind));
  if (!filter.Allows(Knob::kCpUlysses, 0) &&
      filter.Allows(Knob::kCpKind, static_cast<int>(ContextParallelKind::kNested))) {
    p.context_kind = ContextParallelKind::kNested;
  }
  const bool nested = p.context_kind == ContextParallelKind::kNested;
  p.context = first(Knob::kCp, p.context_kind == ContextParallelKind::kUlysses ? 2 : 1);
  p.context_ulysses = first(Knob::kCpUlysses, nested ? 2 : 0);
  for (int context : ValuesOf(job, Knob::kCp).values) {
    const int inner = p.context_ulysses;
    if (!nested || inner == 0 || context <= inner || context % inner != 0) continue;
    if (!filter.Allows(Knob::kCp, context)) continue;
    p.context = context;
    break;
  }
  p.virtual_stages = first(Knob::kVpp, in_chunks ? 2 : 1);
  const bool needs_pipeline = p.virtual_stages > 1 || !FollowsFromStages(plainest);
  p.pipeline = first(Knob::kPp, needs_pipeline ? 2 : 1);
  p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  if (!allows(p.schedule)) p.schedule = plainest;
  p.expert = first(Knob::kEp);
  p.expert_tensor = first(Knob::kEtp);
  p.micro_batch_size = first(Knob::kMicroBatch);
  p.order = static_cast<RankOrder>(first(Knob::kOrder));
  p.zero = first(Knob::kZero, 1);
  p.zero_shard = first(Knob::kZeroShard);
  const bool on = p.tensor > 1;
  p.sequence_parallel = filter.Allows(Knob::kSp, on ? 1 : 0) ? on : !on;
  const std::int64_t rest = gpus / (std::int64_t{1} * p.tensor * p.context * p.pipeline);
  p.data = static_cast<int>(std::max<std::int64_t>(1, rest));
  if (!filter.Allows(Knob::kDp, p.data)) p.data = first(Knob::kDp);
  if (!filter.Allows(p.recompute)) {
    const std::vector<Recompute> all = Recomputes(job.model);
    const auto allowed =
        std::find_if(all.begin(), all.end(), [&](const Recompute& r) { return filter.Allows(r); });
    if (allowed != all.end()) {
      p.recompute = *allowed;
    } else if (const auto named = filter.About(Knob::kRecompute).recomputes; !named.empty()) {
      p.recompute = named.front();
    }
  }
  p.recompute.offload_layers = first(Knob::kOffload);
  return p;
}

std::string Obstacle(const Job& job, const PlanFilter& filter) {
  if (const Verdict verdict = CheckPrecision(job.cluster.gpu, job.training)) return verdict->detail;
  if (std::string knob = ImpossibleKnob(job, filter); !knob.empty()) return knob;
  const Verdict verdict = CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(),
                                    Plainest(job, filter));
  return verdict ? verdict->detail : "";
}

}  // namespace millwright
