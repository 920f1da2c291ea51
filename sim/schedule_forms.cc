// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_forms.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "sim/schedule_timing.h"

namespace millwright {
namespace {

enum Cost { kF, kB, kW, kPair, kTransfer, kCosts };
using Costs = std::array<double, kCosts>;

// Corners and middle of what layers have: B and W over F from little of either to a layer that is
// recomputed in full; pairs that hide nothing, or much; transfers that hardly matter, and that do.
constexpr Costs kRatios[] = {
    {1, 1, 1, 3, 0},         {1, 1, 1, 2.1, 0.1},      {1, 0.8, 0.4, 2.2, 0.03},
    {1, 0.8, 1.1, 2.6, 0},   {1, 2.5, 0.4, 3.9, 0},    {1, 2.5, 1.1, 3.4, 0.03},
    {1, 1.4, 0.7, 3.1, 0.2}, {1, 2, 0.9, 3, 0.1},      {1, 1.6, 0.4, 3, 0.01},
    {1, 1.6, 1.1, 3.7, 0.2}, {1, 1.1, 0.9, 3, 0.5},    {1, 2, 0.7, 3.7, 0.02},
    {1, 0.9, 0.7, 2, 0.15},  {1, 1.3, 0.9, 3.2, 0.02}, {1, 2.2, 0.55, 2.9, 0.15},
};

double Dot(const Costs& form, const Costs& costs) {
  double sum = 0;
  for (std::size_t i = 0; i < kCosts; ++i) sum += form[i] * costs[i];
  return sum;
}

ScheduleCosts StageCosts(const PipelineSchedule& schedule, const Costs& costs) {
  return EvenCosts(schedule,
                   {.forward = Seconds(costs[kF]),
                    .backward_input = Seconds(costs[kB]),
                    .backward_weight = Seconds(costs[kW]),
                    .overlapped = Seconds(costs[kPair])},
                   Seconds(costs[kTransfer]));
}

// Where each pass stands in its rank's order, and from there the longest path to the end.
class PathFinder {
 public:
  explicit PathFinder(const PipelineSchedule& schedule)
      : schedule_(schedule),
        micro_batches_(std::size_t(schedule.micro_batches_per_direction())),
        at_(2 * std::size_t(schedule.stages()) * micro_batches_) {
    for (const std::vector<Pass>& order : schedule.orders) {
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i].kind != PassKind::kBackwardWeight) Place(order[i]) = i;
      }
    }
  }

  double Makespan(const Costs& costs) const {
    return TimeSchedule(schedule_, StageCosts(schedule_, costs), PassTimes::kLeaveOut)
        .makespan.value;
  }

  Costs LongestPath(const Costs& costs) const {
    const ScheduleTiming timing = TimeSchedule(schedule_, StageCosts(schedule_, costs));
    std::size_t rank = 0, at = 0;
    const auto end = [&](std::size_t r, std::size_t i) { return timing.passes[r][i].end.value; };
    for (std::size_t r = 0; r < timing.passes.size(); ++r) {
      const std::size_t last = schedule_.orders[r].size() - 1;
      if (r == 0 || end(r, last) > end(rank, at)) rank = r, at = last;
    }
    Costs path{};
    const double chunk = 1.0 / schedule_.chunk_cost_divisor;
    for (;;) {
      const std::vector<Pass>& order = schedule_.orders[rank];
      // A pair is one slot, and starts when both of it can.
      if (at > 0 && order[at - 1].overlaps_next) --at;
      const bool pair = order[at].overlaps_next;
      Count(order[at], pair, chunk, path);
      // Of all that the slot may have waited for, what came last.
      std::size_t from_rank = rank, from_at = at;
      double latest = -1;
      bool transferred = false;
      if (at > 0) {
        latest = end(rank, at - 1);
        from_at = at - 1;
      }
      for (std::size_t i = at; i <= at + (pair ? 1 : 0); ++i) {
        ForEachInput(order[i], [&](std::size_t r, std::size_t place) {
          const bool over_wire = r != rank;
          const double ready = end(r, place) + (over_wire ? costs[kTransfer] : 0);
          if (ready <= latest) return;
          latest = ready;
          from_rank = r, from_at = place;
          transferred = over_wire;
        });
      }
      if (latest < 0) return path;
      if (transferred) path[kTransfer] += 1;
      rank = from_rank, at = from_at;
    }
  }

 private:
  std::size_t& Place(const Pass& pass) { return at_[Index(pass, pass.stage)]; }
  std::size_t Index(const Pass& pass, int stage) const {
    const bool backward = pass.kind != PassKind::kForward;
    return 2 * (std::size_t(stage) * micro_batches_ + std::size_t(pass.micro_batch)) +
           (backward ? 1 : 0);
  }

  template <class Act>
  void ForEachInput(const Pass& pass, const Act& act) const {
    const auto from = [&](PassKind kind, int stage) {
      const Pass input{.micro_batch = pass.micro_batch, .kind = kind};
      act(std::size_t(schedule_.rank_of_stage[std::size_t(stage)]), at_[Index(input, stage)]);
    };
    switch (pass.kind) {
      case PassKind::kForward:
        if (!schedule_.first_of_direction(pass.stage)) from(PassKind::kForward, pass.stage - 1);
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        from(PassKind::kForward, pass.stage);
        if (!schedule_.last_of_direction(pass.stage)) from(PassKind::kBackward, pass.stage + 1);
        break;
      case PassKind::kBackwardWeight:
        from(PassKind::kBackward, pass.stage);
        break;
    }
  }

  static void Count(const Pass& pass, bool pair, double chunk, Costs& path) {
    if (pair) {
      path[kPair] += chunk;
      return;
    }
    switch (pass.kind) {
      case PassKind::kForward:
        path[kF] += chunk;
        break;
      case PassKind::kBackward:
        path[kB] += chunk;
        path[kW] += chunk;
        break;
      case PassKind::kBackwardInput:
        path[kB] += chunk;
        break;
      case PassKind::kBackwardWeight:
        path[kW] += chunk;
        break;
    }
  }

  const PipelineSchedule& schedule_;
  std::size_t micro_batches_;
  std::vector<std::size_t> at_;
};

double PairsOfRank(const PipelineSchedule& schedule) {
  std::size_t most = 0;
  for (const std::vector<Pass>& order : schedule.orders) {
    most = std::max(most, std::size_t(std::count_if(order.begin(), order.end(), [](const Pass& p) {
                      return p.overlaps_next;
                    })));
  }
  return double(most) / schedule.chunk_cost_divisor;
}

bool HoldsNoMore(const ChunksHeld& a, const ChunksHeld& b) {
  for (std::size_t i = 0; i < a.chunks.size(); ++i) {
    if (a.chunks[i] > b.chunks[i] || a.waiting[i] > b.waiting[i]) return false;
  }
  return a.at_head <= b.at_head && a.head_waiting <= b.head_waiting &&
         (a.working == b.working || a.working == ChunksHeld::Working::kNone);
}

std::vector<ChunksHeld> HeldInOrder(const PipelineSchedule& schedule, int rank) {
  std::vector<int> chunk_of_stage(std::size_t(schedule.stages()), -1);
  ChunksHeld now;
  for (int s = 0; s < schedule.stages(); ++s) {
    if (schedule.rank_of_stage[std::size_t(s)] != rank) continue;
    chunk_of_stage[std::size_t(s)] = int(now.chunks.size());
    now.chunks.push_back(0);
    now.waiting.push_back(0);
  }
  std::vector<ChunksHeld> most;
  using Working = ChunksHeld::Working;
  const auto note = [&](Working working) {
    now.working = working;
    if (std::any_of(most.begin(), most.end(),
                    [&](const ChunksHeld& m) { return HoldsNoMore(now, m); })) {
      return;
    }
    std::erase_if(most, [&](const ChunksHeld& m) { return HoldsNoMore(m, now); });
    most.push_back(now);
  };
  bool in_pair = false;
  for (const Pass& pass : schedule.orders[std::size_t(rank)]) {
    const auto chunk = std::size_t(chunk_of_stage[pass.stage]);
    const double head = schedule.last_of_direction(pass.stage) ? 1 : 0;
    switch (pass.kind) {
      case PassKind::kForward:
        ++now.chunks[chunk];
        now.at_head += head;
        note(in_pair || pass.overlaps_next ? Working::kLayer : Working::kNone);
        break;
      case PassKind::kBackwardInput:
        note(head > 0 ? Working::kHead : Working::kLayer);
        --now.chunks[chunk];
        ++now.waiting[chunk];
        now.at_head -= head;
        now.head_waiting += head;
        note(Working::kLayer);
        break;
      case PassKind::kBackward:
        note(head > 0 ? Working::kHead : Working::kLayer);
        --now.chunks[chunk];
        now.at_head -= head;
        break;
      case PassKind::kBackwardWeight:
        --now.waiting[chunk];
        now.head_waiting -= head;
        break;
    }
    in_pair = pass.overlaps_next;
  }
  return most;
}

}  // namespace

ScheduleChoice ScheduleForms::Steady(ScheduleChoice choice) {
  constexpr int kTurns = 4;
  choice.micro_batches = kTurns * choice.pipeline + choice.micro_batches % choice.pipeline;
  return choice;
}

ScheduleChoice ScheduleForms::Shared(ScheduleChoice choice) {
  const ScheduleChoice steady = Steady(choice);
  return choice.micro_batches < steady.micro_batches ? choice : steady;
}

ScheduleForms::ScheduleForms(const ScheduleChoice& choice)
    : pipeline_(choice.pipeline), walked_(Shared(choice).micro_batches) {
  const ScheduleChoice shared = Shared(choice);
  const PipelineSchedule schedule = BuildSchedule(shared);
  const PathFinder finder(schedule);
  // A turn less: of one remainder, so that its order is the same but for the turn.
  const bool repeats = shared.micro_batches > 3 * shared.pipeline;
  std::optional<PipelineSchedule> shorter;
  std::optional<PathFinder> shorter_finder;
  if (repeats) {
    ScheduleChoice less = shared;
    less.micro_batches -= less.pipeline;
    shorter = BuildSchedule(less);
    shorter_finder.emplace(*shorter);
    pairs_.of_turn = PairsOfRank(schedule) - PairsOfRank(*shorter);
  }
  pairs_.walked = PairsOfRank(schedule);

  constexpr double kClose = 1e-4;
  for (const Costs& costs : kRatios) {
    double known = 0, known_turn = 0;
    for (const Form& form : forms_) {
      const double length = Dot(form.walked, costs);
      if (length <= known) continue;
      known = length;
      known_turn = Dot(form.of_turn, costs);
    }
    const double makespan = finder.Makespan(costs);
    const double turn = repeats ? makespan - shorter_finder->Makespan(costs) : 0;
    if (known >= (1 - kClose) * makespan && known_turn >= (1 - kClose) * turn) continue;
    Form form{.walked = finder.LongestPath(costs)};
    if (repeats) {
      const Costs less = shorter_finder->LongestPath(costs);
      for (std::size_t i = 0; i < kCosts; ++i) form.of_turn[i] = form.walked[i] - less[i];
    }
    forms_.push_back(form);
  }

  for (int rank = 0; rank < choice.pipeline; ++rank) held_.push_back(HeldInOrder(schedule, rank));
  splits_backward_ = std::all_of(
      schedule.orders.begin(), schedule.orders.end(), [](const std::vector<Pass>& order) {
        return std::none_of(order.begin(), order.end(),
                            [](const Pass& p) { return p.kind == PassKind::kBackward; });
      });
}

Seconds ScheduleForms::Pace(const RankPassCosts& c) const {
  const Costs costs{c.forward.value, c.backward_input.value, c.backward_weight.value,
                    c.overlapped.value, c.transfer.value};
  double longest = 0;
  for (const Form& form : forms_) longest = std::max(longest, Dot(form.of_turn, costs));
  return Seconds(longest / pipeline_);
}

Seconds ScheduleForms::Makespan(const RankPassCosts& c, double micro_batches) const {
  const Costs costs{c.forward.value, c.backward_input.value, c.backward_weight.value,
                    c.overlapped.value, c.transfer.value};
  const double turns = Turns(micro_batches);
  double longest = 0;
  for (const Form& form : forms_) {
    double length = 0;
    for (std::size_t i = 0; i < kCosts; ++i) {
      length += (form.walked[i] + turns * form.of_turn[i]) * costs[i];
    }
    longest = std::max(longest, length);
  }
  return Seconds(longest);
}

const ScheduleForms& KnownForms::Of(const ScheduleChoice& shared) {
  const auto entry = [&]() -> Entry& {
    const std::lock_guard lock(mutex_);
    return entries_[KeyOf(shared)];
  };
  Entry& e = entry();  // others are made meanwhile
  std::call_once(e.made, [&] { e.forms.emplace(shared); });
  return *e.forms;
}

}  // namespace millwright
