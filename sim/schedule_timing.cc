// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/config_io.h"
#include "sim/schedule_file.h"

namespace millwright {
namespace {

constexpr double kNotYet = -1;

constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();

struct Stage {
  int rank;
  int previous_rank, next_rank;  // of the stages before and after it; -1: none
  double forward, backward_input, backward_weight;
  double overlapped;                   // kNotYet: of the sum
  double pair_share;                   //   so much
  double more_forward, more_backward;  // what embedding and head add to a pair
};

struct RankState {
  std::size_t next = 0;    // in its order
  double free = 0;         // since when
  double first = kNotYet;  // start
  double work = 0;
  int until_w = 0, until_b = 0;
  int peak_until_w = 0, peak_until_b = 0;
  std::size_t awaited = kNothing;  // index of an end, while blocked
};

class Walk {
 public:
  Walk(const PipelineSchedule& schedule, const ScheduleCosts& costs, PassTimes pass_times)
      : schedule_(schedule),
        transfer_(costs.transfer.value),
        keep_(pass_times == PassTimes::kKeep),
        micro_batches_(std::size_t(schedule.micro_batches_per_direction())),
        ends_(2 * std::size_t(schedule.stages()) * micro_batches_, kNotYet),
        ranks_(schedule.orders.size()) {
    const std::size_t given = costs.stages.size();
    MILLWRIGHT_CHECK(given == 1 || given == std::size_t(schedule.stages_per_direction()) ||
                     given == std::size_t(schedule.stages()));
    const auto rank = [&](int stage) { return schedule.rank_of_stage[std::size_t(stage)]; };
    for (int s = 0; s < schedule.stages(); ++s) {
      const bool first = schedule.first_of_direction(s), last = schedule.last_of_direction(s);
      const PassCosts& own = costs.stages[std::size_t(s) % given];
      PassCosts more;
      for (const PassCosts* end : {first ? &costs.first : nullptr, last ? &costs.last : nullptr}) {
        if (end == nullptr) continue;
        more.forward += end->forward;
        more.backward_input += end->backward_input;
        more.backward_weight += end->backward_weight;
      }
      const Stage stage{.rank = rank(s),
                        .previous_rank = first ? -1 : rank(s - 1),
                        .next_rank = last ? -1 : rank(s + 1),
                        .forward = (own.forward + more.forward).value,
                        .backward_input = (own.backward_input + more.backward_input).value,
                        .backward_weight = (own.backward_weight + more.backward_weight).value,
                        .overlapped = own.overlapped.value_or(Seconds(kNotYet)).value,
                        .pair_share = own.pair_share,
                        .more_forward = more.forward.value,
                        .more_backward = (more.backward_input + more.backward_weight).value};
      for (const double cost : {stage.forward, stage.backward_input, stage.backward_weight}) {
        MILLWRIGHT_CHECK(cost >= 0 && std::isfinite(cost));
      }
      MILLWRIGHT_CHECK(!own.overlapped || own.overlapped->value >= 0);
      stages_.push_back(stage);
    }
    MILLWRIGHT_CHECK(transfer_ >= 0 && std::isfinite(transfer_));
  }

  ScheduleTiming Run() {
    ScheduleTiming timing;
    if (keep_) {
      for (const auto& order : schedule_.orders) timing.passes.emplace_back(order.size());
    }
    for (int r = int(ranks_.size()) - 1; r >= 0; --r) runnable_.push_back(r);
    while (!runnable_.empty()) {
      const int r = runnable_.back();
      runnable_.pop_back();
      Advance(r, keep_ ? &timing.passes[std::size_t(r)] : nullptr);
    }
    double makespan = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next != schedule_.orders[r].size()) ReportDeadlock(int(r));
      makespan = std::max(makespan, ranks_[r].free);
    }
    timing.makespan = Seconds(makespan);
    for (const RankState& rank : ranks_) {
      timing.idle.emplace_back(makespan - rank.work);
      timing.span.emplace_back(rank.first == kNotYet ? 0 : rank.free - rank.first);
      timing.in_flight_until_w.push_back(rank.peak_until_w);
      timing.in_flight_until_b.push_back(rank.peak_until_b);
    }
    return timing;
  }

 private:
  // F of a stage and micro-batch, or its B or BW; they lie side by side, as they are used together.
  std::size_t End(bool backward, const Pass& pass) const {
    return 2 * (pass.stage * micro_batches_ + std::size_t(pass.micro_batch)) + (backward ? 1 : 0);
  }
  std::size_t EndAt(bool backward, const Pass& pass, int stage) const {
    return End(backward, {pass.micro_batch, static_cast<std::uint16_t>(stage)});
  }

  // Lets `start` be no earlier than the inputs of `pass`; false, with what is awaited, where one
  // has no time yet.
  bool Await(const Pass& pass, double& start, std::size_t& awaited) const {
    const Stage& stage = stages_[pass.stage];
    const auto after = [&](std::size_t end, bool from_elsewhere) {
      awaited = end;
      if (ends_[end] == kNotYet) return false;
      start = std::max(start, ends_[end] + (from_elsewhere ? transfer_ : 0));
      return true;
    };
    switch (pass.kind) {
      case PassKind::kForward:
        return stage.previous_rank < 0 ||
               after(EndAt(false, pass, pass.stage - 1), stage.previous_rank != stage.rank);
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        return after(End(false, pass), false) &&
               (stage.next_rank < 0 ||
                after(EndAt(true, pass, pass.stage + 1), stage.next_rank != stage.rank));
      case PassKind::kBackwardWeight:
        return after(End(true, pass), false);
    }
    MILLWRIGHT_CHECK(false);
  }

  double Cost(const Pass& pass) const {
    const Stage& costs = stages_[pass.stage];
    switch (pass.kind) {
      case PassKind::kForward:
        return costs.forward;
      case PassKind::kBackward:
        return costs.backward_input + costs.backward_weight;
      case PassKind::kBackwardInput:
        return costs.backward_input;
      case PassKind::kBackwardWeight:
        return costs.backward_weight;
    }
    MILLWRIGHT_CHECK(false);
  }

  double Cost(const Pass& forward, const Pass& backward) const {
    const Stage& stage = stages_[forward.stage];
    if (stage.overlapped == kNotYet) return stage.pair_share * (Cost(forward) + Cost(backward));
    return stage.overlapped + stage.more_forward + stages_[backward.stage].more_backward;
  }

  // Makes the end of a pass known, and the rank that waits for it runnable.
  void Finish(const Pass& pass, double end) {
    if (pass.kind == PassKind::kBackwardWeight) return;
    const bool backward = pass.kind != PassKind::kForward;
    const std::size_t index = End(backward, pass);
    ends_[index] = end;
    // A rank can be behind only one pass, so one look finds who waits, if anybody does.
    const Stage& stage = stages_[pass.stage];
    const int consumer = backward ? stage.previous_rank : stage.next_rank;
    if (consumer >= 0 && ranks_[std::size_t(consumer)].awaited == index) {
      ranks_[std::size_t(consumer)].awaited = kNothing;
      runnable_.push_back(consumer);
    }
  }

  void Count(RankState& rank, PassKind kind) const {
    if (kind == PassKind::kForward) {
      rank.peak_until_w = std::max(rank.peak_until_w, ++rank.until_w);
      rank.peak_until_b = std::max(rank.peak_until_b, ++rank.until_b);
      if (!schedule_.forward_only) return;
    }
    if (kind != PassKind::kBackwardWeight) --rank.until_b;
    if (kind != PassKind::kBackwardInput) --rank.until_w;
  }

  void Advance(int r, std::vector<PassSpan>* times) {
    RankState& rank = ranks_[std::size_t(r)];
    const std::vector<Pass>& order = schedule_.orders[std::size_t(r)];
    while (rank.next < order.size()) {
      const Pass& pass = order[rank.next];
      const Pass* partner = pass.overlaps_next ? &order[rank.next + 1] : nullptr;
      double start = rank.free;
      std::size_t awaited = 0;
      if (!Await(pass, start, awaited) ||
          (partner != nullptr && !Await(*partner, start, awaited))) {
        rank.awaited = awaited;
        return;
      }
      const double cost = partner == nullptr ? Cost(pass) : Cost(pass, *partner);
      const double end = start + cost;
      if (rank.first == kNotYet) rank.first = start;
      rank.free = end;
      rank.work += cost;
      if (times != nullptr) (*times)[rank.next] = {Seconds(start), Seconds(end)};
      ++rank.next;
      Count(rank, pass.kind);
      Finish(pass, end);
      if (partner == nullptr) continue;
      if (times != nullptr) (*times)[rank.next] = {Seconds(start), Seconds(end)};
      ++rank.next;
      Count(rank, partner->kind);
      Finish(*partner, end);
    }
  }

  Pass PassOfEnd(std::size_t end) const {
    const std::size_t of = end / 2;
    return {static_cast<std::int32_t>(of % micro_batches_),
            static_cast<std::uint16_t>(of / micro_batches_),
            end % 2 == 0 ? PassKind::kForward : PassKind::kBackwardInput};
  }

  // From a blocked rank to the one it waits for, and so on, until a rank comes up again: the chain
  // from there on is the circle.
  [[noreturn]] void ReportDeadlock(int r) const {
    std::vector<int> chain;
    while (std::find(chain.begin(), chain.end(), r) == chain.end()) {
      chain.push_back(r);
      r = stages_[PassOfEnd(ranks_[std::size_t(r)].awaited).stage].rank;
    }
    chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), r));
    std::string what = "the orders wait for each other without end:";
    for (const int waiting : chain) {
      const RankState& rank = ranks_[std::size_t(waiting)];
      const Pass awaited = PassOfEnd(rank.awaited);
      const int by = stages_[awaited.stage].rank;
      const std::vector<Pass>& awaited_order = schedule_.orders[std::size_t(by)];
      const auto found =
          std::find_if(awaited_order.begin(), awaited_order.end(), [&](const Pass& pass) {
            return pass.stage == awaited.stage && pass.micro_batch == awaited.micro_batch &&
                   pass.kind != PassKind::kBackwardWeight &&
                   (pass.kind == PassKind::kForward) == (awaited.kind == PassKind::kForward);
          });
      MILLWRIGHT_CHECK(found != awaited_order.end());
      what +=
          fmt::format("{} rank {} at {} for {} of {}", waiting == chain.front() ? "" : ",", waiting,
                      PassText(schedule_.orders[std::size_t(waiting)][rank.next]), PassText(*found),
                      by == waiting ? std::string("its own") : fmt::format("rank {}", by));
    }
    if (!schedule_.file.empty()) throw ConfigError(fmt::format("{}: {}", schedule_.file, what));
    throw InternalError(
        fmt::format("this is a bug in Millwright: schedule {} of {} ranks and {} "
                    "micro-batches: {}",
                    schedule_.name, schedule_.pipeline, schedule_.micro_batches, what));
  }

  const PipelineSchedule& schedule_;
  double transfer_;
  bool keep_;
  std::size_t micro_batches_;
  std::vector<Stage> stages_;
  std::vector<double> ends_;
  std::vector<RankState> ranks_;
  std::vector<int> runnable_;
};

}  // namespace

ScheduleCosts EvenCosts(const PipelineSchedule& schedule, const PassCosts& rank, Seconds transfer) {
  const double chunks = schedule.chunk_cost_divisor;
  PassCosts stage{rank.forward / chunks, rank.backward_input / chunks,
                  rank.backward_weight / chunks};
  if (rank.overlapped) stage.overlapped = *rank.overlapped / chunks;
  return {.stages = {stage}, .transfer = transfer};
}

ScheduleTiming TimeSchedule(const PipelineSchedule& schedule, const ScheduleCosts& costs,
                            PassTimes pass_times) {
  return Walk(schedule, costs, pass_times).Run();
}

}  // namespace millwright
