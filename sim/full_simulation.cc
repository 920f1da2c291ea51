// SPDX-License-Identifier: Apache-2.0
#include "sim/full_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "core/mixed.h"
#include "sim/event_queue.h"
#include "sim/network.h"

namespace millwright {
namespace {

// Log-normal of mean 1, by Box and Muller.
double LogNormal(double sigma, std::uint64_t key) {
  constexpr double kUnit = 0x1p-53;
  const double u = (double(Mixed(key) >> 11) + 1) * kUnit;  // (0, 1]
  const double v = double(Mixed(~key) >> 11) * kUnit;
  const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  return std::exp(sigma * (normal - sigma / 2));
}

// The first of a member's group.
int LeaderOf(const Communication& group, int member) {
  const int block = group.stride * group.ranks;
  return member / block * block + member % group.stride;
}

}  // namespace

// What does not change from step to step.
struct FullSimulation::Prepared {
  // Tasks of other streams that wait for a task.
  std::vector<std::uint32_t> first_dependent;
  std::vector<TaskId> dependents;
  // Groups of ranks.  Those of a communication on a pipeline rank follow each other.
  std::vector<Group> groups;
  // The graph's, but that of a collective of all ranks each plane has a part of its own: the planes
  // have waited for each other before.
  std::vector<Communication> communications;
  std::vector<std::vector<int>> first_group;  // [communication][pipeline rank]; -1: not there
  std::vector<double> carried_alone;          // bytes on each link, of groups that have it alone
  bool disturbed_in_vain = false;
};

class FullSimulation::Running {
 public:
  Running(const FullSimulation& simulation, std::int64_t step,
          const std::function<void(double)>& progress)
      : s_(simulation),
        progress_(progress),
        graph_(s_.graph_),
        p_(*s_.prepared_),
        plane_(s_.options_.plane),
        tasks_(graph_.size()),
        streams_(std::size_t(graph_.ranks()) * kStreams),
        cursors_(streams_ * std::size_t(plane_)),
        arrivals_(p_.groups.size() * kStreams),
        key_(Mixed(Mixed(s_.options_.seed) ^ std::uint64_t(step))) {
    result_.ends.assign(tasks_ * std::size_t(plane_), -1);
    result_.ranks.resize(std::size_t(graph_.ranks()) * std::size_t(plane_));
    result_.finish.resize(result_.ranks.size());
    speed_.assign(result_.ranks.size(), 1);
    const std::vector<double>& speeds = s_.options_.disturbance.gpu_speed;
    if (!speeds.empty()) {
      for (std::size_t r = 0; r < speed_.size(); ++r) {
        speed_[r] = 1 / speeds[std::size_t(s_.GpuOf(int(r)))];
      }
    }
    drawn_.assign(result_.ranks.size(), 1);
    if (s_.options_.rank_jitter > 0) {
      for (std::size_t r = 0; r < drawn_.size(); ++r) {
        drawn_[r] = LogNormal(s_.options_.rank_jitter, key_ ^ Mixed(~std::uint64_t(r)));
      }
    }
    if (s_.options_.share_links) {
      network_ = s_.MakeNetwork();
      for (const Group& group : p_.groups) {
        if (group.network != kAlone) network_->AddGroup(s_.GpusOf(group));
      }
    }
  }

  FullStep Go() {
    for (int member = plane_ - 1; member >= 0; --member) {
      for (std::size_t stream = streams_; stream-- > 0;) {
        if (!Program(stream).empty()) ready_.push_back(At(member, stream));
      }
    }
    for (;;) {
      while (!ready_.empty()) {
        const std::uint32_t at = ready_.back();
        ready_.pop_back();
        Work(at);
      }
      const Seconds start = starts_.next_time();
      const Seconds event = network_ ? network_->NextEvent() : kNever;
      if (start <= event) {
        if (start == kNever) break;
        StartCall(start, starts_.Pop());
      } else {
        ended_.clear();
        network_->Advance(event, &ended_);
        for (const Completion& end : ended_) EndCall(end);
      }
    }
    if (finished_ != tasks_ * std::size_t(plane_)) throw InternalError(Starved());
    Finish();
    return std::move(result_);
  }

 private:
  static constexpr Seconds kNever{std::numeric_limits<double>::infinity()};
  static constexpr TaskId kInCollective = kNoTask - 1;

  struct Cursor {
    double free = 0;
    std::uint32_t next = 0;
    TaskId waits_for = kNoTask;
  };
  // Of a group, on one stream: who has come to the collective that is next.
  struct Arrival {
    double latest = 0;
    int count = 0;
  };
  // On the network, or about to be.
  struct Call {
    TaskId task = 0;
    int leader = 0;  // member: the first of the group
    int group = 0;
    double start = 0;
  };

  std::uint32_t At(int member, std::size_t stream) const {
    return std::uint32_t(std::size_t(member) * streams_ + stream);
  }
  std::span<const TaskId> Program(std::size_t stream) const {
    return graph_.program(int(stream / kStreams), static_cast<Stream>(stream % kStreams));
  }
  static std::size_t StreamOf(const Task& task) {
    return std::size_t(task.rank) * kStreams + std::size_t(task.stream);
  }
  std::size_t RankOf(int member, int pipeline_rank) const {
    return std::size_t(pipeline_rank) * std::size_t(plane_) + std::size_t(member);
  }

  void Work(std::uint32_t at) {
    const int member = int(at / streams_);
    const std::size_t stream = at % streams_;
    const std::span<const TaskId> program = Program(stream);
    const double* ends = result_.ends.data() + std::size_t(member) * tasks_;
    Cursor& cursor = cursors_[at];
    cursor.waits_for = kNoTask;
    while (cursor.next < program.size()) {
      const TaskId id = program[cursor.next];
      double start = cursor.free;
      TaskId last = kNoTask;
      for (TaskId awaited : graph_.waits(id)) {
        const double end = ends[awaited];
        if (end < 0) {
          cursor.waits_for = awaited;
          return;
        }
        if (last == kNoTask || end > ends[last]) last = awaited;
        start = std::max(start, end);
      }
      const Task& task = graph_.task(id);
      if (task.communication != kNoCommunication) {
        cursor.waits_for = kInCollective;
        if (!Arrive(member, id, start)) return;
        continue;  // it is over already
      }
      double seconds = task.duration.value;
      if (task.stream == Stream::kCompute) {
        const std::size_t rank = RankOf(member, task.rank);
        double factor = drawn_[rank];
        if (s_.options_.jitter > 0) {
          factor *= LogNormal(s_.options_.jitter, key_ ^ Mixed(rank << 32 | id));
        }
        seconds *= speed_[rank] * std::max(factor, s_.options_.fastest);
        if (task.routed) seconds *= Load(rank, id);
        RankTime& time = result_.ranks[rank];
        const double gap = start - cursor.free;
        if (gap > 0) {
          (last == kNoTask ? time.idle : time.waiting[std::size_t(graph_.task(last).cause)]) +=
              Seconds(gap);
        }
        time.busy[std::size_t(task.cause)] += Seconds(seconds);
      }
      End(member, cursor, id, start + seconds);
    }
  }

  void End(int member, Cursor& cursor, TaskId id, double end) {
    result_.ends[std::size_t(member) * tasks_ + id] = end;
    cursor.free = end;
    cursor.waits_for = kNoTask;
    ++cursor.next;
    constexpr std::size_t kTellEvery = std::size_t{1} << 18;
    if (++finished_ % kTellEvery == 0 && progress_) {
      progress_(double(finished_) / (double(tasks_) * plane_));
    }
    for (std::uint32_t i = p_.first_dependent[id]; i < p_.first_dependent[id + 1]; ++i) {
      const std::uint32_t other = At(member, StreamOf(graph_.task(p_.dependents[i])));
      if (cursors_[other].waits_for != id) continue;
      cursors_[other].waits_for = kNoTask;  // so that it is put there once
      ready_.push_back(other);
    }
  }

  // Of an expert rank, over the mean.
  double Load(std::size_t rank, TaskId id) const {
    if (s_.options_.routing <= 0) return 1;
    return LogNormal(s_.options_.routing, ~key_ ^ Mixed(rank << 32 | id));
  }
  double LargestLoad(TaskId id, int leader) const {
    const Task& task = graph_.task(id);
    if (!task.routed || s_.options_.routing <= 0) return 1;
    const Communication& c = p_.communications[task.communication];
    double most = 0;
    for (int i = 0; i < c.ranks; ++i) {
      most = std::max(most, Load(RankOf(leader + i * c.stride, task.rank), id));
    }
    return most;
  }

  // True where that was the last member to come, and the collective takes its price.
  bool Arrive(int member, TaskId id, double start) {
    const Task& task = graph_.task(id);
    const Communication& c = p_.communications[task.communication];
    int leader = member, place = member;
    if (c.to < 0) {
      leader = LeaderOf(c, member);
      place = member / (c.stride * c.ranks) * c.stride + member % c.stride;
    }
    const int group = p_.first_group[task.communication][task.rank] + place;
    if (c.to < 0) {
      Arrival& arrival = arrivals_[std::size_t(group) * kStreams + std::size_t(task.stream)];
      arrival.latest = std::max(arrival.latest, start);
      if (++arrival.count < c.ranks) return false;
      start = arrival.latest;
      arrival = {};
    }
    if (network_ && p_.groups[std::size_t(group)].network != kAlone) {
      std::uint32_t slot = std::uint32_t(calls_.size());
      if (free_calls_.empty()) {
        calls_.emplace_back();
      } else {
        slot = free_calls_.back();
        free_calls_.pop_back();
      }
      calls_[slot] = {.task = id, .leader = leader, .group = group, .start = start};
      starts_.Push(Seconds(start), slot);
      return false;
    }
    EndOfAll(id, leader, start + LargestLoad(id, leader) * task.duration.value, member);
    return true;
  }

  // All but `running`, whose stream is being worked off, are put where they go on.
  void EndOfAll(TaskId id, int leader, double end, int running) {
    const Task& task = graph_.task(id);
    const Communication& c = p_.communications[task.communication];
    const std::size_t stream = StreamOf(task);
    const int count = c.to < 0 ? c.ranks : 1;
    for (int i = 0; i < count; ++i) {
      const int member = leader + i * c.stride;
      const std::uint32_t at = At(member, stream);
      End(member, cursors_[at], id, end);
      if (member != running) ready_.push_back(at);
    }
  }

  void StartCall(Seconds now, std::uint32_t slot) {
    const Call& call = calls_[slot];
    const Task& task = graph_.task(call.task);
    const Communication& c = p_.communications[task.communication];
    const double load = LargestLoad(call.task, call.leader);
    network_->Start(now,
                    {.group = p_.groups[std::size_t(call.group)].network,
                     .kind = c.kind,
                     .payload = load * c.payload,
                     .loads = {},
                     .price = load * task.duration},
                    slot);
  }

  void EndCall(const Completion& end) {
    const auto slot = std::uint32_t(end.tag);
    const Call call = calls_[slot];
    free_calls_.push_back(slot);
    const Task& task = graph_.task(call.task);
    Contention& contention = result_.contention[std::size_t(task.cause)];
    ++contention.collectives;
    const double price = LargestLoad(call.task, call.leader) * task.duration.value,
                 took = end.time.value - call.start;
    constexpr double kRounding = 1e-6;
    if (took > price * (1 + kRounding)) {
      ++contention.delayed;
      contention.delay += Seconds(took - price);
      contention.worst = std::max(contention.worst, took / price);
    }
    EndOfAll(call.task, call.leader, end.time.value, kNobody);
  }

  void Finish() {
    double makespan = 0;
    for (int rank = 0; rank < graph_.ranks(); ++rank) {
      for (int member = 0; member < plane_; ++member) {
        double finish = 0;
        for (int s = 0; s < kStreams; ++s) {
          finish = std::max(
              finish, cursors_[At(member, std::size_t(rank) * kStreams + std::size_t(s))].free);
        }
        result_.finish[RankOf(member, rank)] = Seconds(finish);
        makespan = std::max(makespan, finish);
      }
    }
    result_.makespan = Seconds(makespan);
    for (int rank = 0; rank < graph_.ranks(); ++rank) {
      for (int member = 0; member < plane_; ++member) {
        const Cursor& compute = cursors_[At(member, std::size_t(rank) * kStreams)];
        result_.ranks[RankOf(member, rank)].idle += Seconds(makespan - compute.free);
      }
    }
    result_.tasks = std::int64_t(finished_);
    if (!network_) return;
    std::vector<double> bytes = p_.carried_alone;
    for (const LinkLoad& load : network_->Loads(result_.makespan)) {
      bytes[std::size_t(load.link)] += load.bytes.value;
    }
    for (std::size_t link = 0; link < bytes.size(); ++link) {
      if (bytes[link] <= 0) continue;
      const double most = network_->CapacityOf(int(link)).value * makespan;
      result_.links.push_back({.link = int(link),
                               .bytes = Bytes(bytes[link]),
                               .utilisation = most > 0 ? bytes[link] / most : 0});
    }
  }

  std::string Starved() const {
    std::string text = "a simulated step starves:";
    constexpr int kMostShown = 8;
    int shown = 0;
    for (std::size_t at = 0; at < cursors_.size() && shown < kMostShown; ++at) {
      const Cursor& cursor = cursors_[at];
      if (cursor.waits_for == kNoTask) continue;
      ++shown;
      const TaskId own = Program(at % streams_)[cursor.next];
      text += fmt::format("\nmember {} of pipeline rank {}, {} \"{}\", waits for {}", at / streams_,
                          graph_.task(own).rank, Name(graph_.task(own).stream), graph_.label(own),
                          cursor.waits_for == kInCollective ? "the others of its group"
                                                            : graph_.label(cursor.waits_for));
    }
    return text;
  }

  static constexpr int kNobody = -1;

  const FullSimulation& s_;
  const std::function<void(double)>& progress_;
  const TaskGraph& graph_;
  const Prepared& p_;
  const int plane_;
  const std::size_t tasks_, streams_;
  std::vector<Cursor> cursors_;    // [member][stream of the graph]
  std::vector<Arrival> arrivals_;  // [group][stream]
  std::vector<std::uint32_t> ready_;
  EventQueue<std::uint32_t> starts_;  // calls that wait for their time to come
  std::vector<Call> calls_;
  std::vector<std::uint32_t> free_calls_;
  std::unique_ptr<FairShareNetwork> network_;
  std::vector<Completion> ended_;
  std::vector<double> speed_, drawn_;  // seconds for each second of a task, by rank
  std::uint64_t key_;
  std::size_t finished_ = 0;
  FullStep result_;
};

FullSimulation::FullSimulation(const TaskGraph& graph, const Cluster& cluster,
                               const CollectiveCalibration& calibration, FullOptions options)
    : graph_(graph), cluster_(cluster), calibration_(calibration), options_(std::move(options)) {
  MILLWRIGHT_CHECK(options_.plane >= 1 && graph.ranks() * options_.plane <= cluster.gpus());
  const std::size_t ranks = std::size_t(graph.ranks()) * std::size_t(options_.plane);
  MILLWRIGHT_CHECK(options_.gpu_of_rank.empty() || options_.gpu_of_rank.size() == ranks);
  const std::vector<double>& speeds = options_.disturbance.gpu_speed;
  MILLWRIGHT_CHECK(speeds.empty() || speeds.size() >= ranks);
  prepared_ = Prepare();
}

FullSimulation::~FullSimulation() = default;

std::unique_ptr<FairShareNetwork> FullSimulation::MakeNetwork() const {
  auto network = std::make_unique<FairShareNetwork>(cluster_, calibration_);
  for (const auto& [link, factor] : options_.disturbance.slow_links) network->Slow(link, factor);
  for (const int link : options_.disturbance.failed_links) network->Fail(link);
  return network;
}

int FullSimulation::GpuOf(int rank) const {
  return options_.gpu_of_rank.empty() ? rank : options_.gpu_of_rank[std::size_t(rank)];
}

std::vector<int> FullSimulation::GpusOf(const Group& group) const {
  std::vector<int> gpus;
  gpus.reserve(std::size_t(group.ranks));
  for (int i = 0; i < group.ranks; ++i) gpus.push_back(GpuOf(group.first + i * group.stride));
  return gpus;
}

std::unique_ptr<const FullSimulation::Prepared> FullSimulation::Prepare() const {
  auto prepared = std::make_unique<Prepared>();
  Prepared& p = *prepared;
  const std::size_t n = graph_.size();

  const auto for_each_dependence = [&](const auto& visit) {
    for (TaskId id = 0; id < n; ++id) {
      const Task& task = graph_.task(id);
      for (TaskId awaited : graph_.waits(id)) {
        const Task& other = graph_.task(awaited);
        if (other.rank != task.rank || other.stream != task.stream) visit(id, awaited);
      }
    }
  };
  p.first_dependent.assign(n + 1, 0);
  for_each_dependence([&](TaskId, TaskId awaited) { ++p.first_dependent[awaited + 1]; });
  for (std::size_t i = 0; i < n; ++i) p.first_dependent[i + 1] += p.first_dependent[i];
  p.dependents.resize(p.first_dependent[n]);
  std::vector<std::uint32_t> at(p.first_dependent.begin(), p.first_dependent.end() - 1);
  for_each_dependence([&](TaskId id, TaskId awaited) { p.dependents[at[awaited]++] = id; });

  // How often each communication takes place on each pipeline rank, and at what price.
  std::vector<Communication>& communications = p.communications;
  communications.assign(graph_.communications().begin(), graph_.communications().end());
  for (Communication& c : communications) {
    if (c.everyone) c.ranks = options_.plane;
  }
  const auto ranks = std::size_t(graph_.ranks());
  struct Use {
    std::int64_t times = 0;
    Seconds price;
  };
  std::vector<std::vector<Use>> uses(communications.size(), std::vector<Use>(ranks));
  for (const Task& task : graph_.tasks()) {
    if (task.communication == kNoCommunication) continue;
    Use& use = uses[task.communication][task.rank];
    use.price = use.times++ == 0 ? task.duration : std::min(use.price, task.duration);
  }

  // Groups; the same members are one, whatever they communicate.
  p.first_group.assign(communications.size(), std::vector<int>(ranks, -1));
  const int plane = options_.plane;
  for (std::size_t c = 0; c < communications.size(); ++c) {
    const Communication& what = communications[c];
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (uses[c][rank].times == 0) continue;
      int& first = p.first_group[c][rank];
      for (std::size_t known = 0; known < c && first < 0; ++known) {
        const Communication& other = communications[known];
        if (other.to == what.to &&
            (what.to >= 0 || (other.stride == what.stride && other.ranks == what.ranks))) {
          first = p.first_group[known][rank];
        }
      }
      if (first >= 0) continue;
      first = int(p.groups.size());
      const int base = int(rank) * plane;
      if (what.to >= 0) {
        for (int member = 0; member < plane; ++member) {
          p.groups.push_back(
              {.first = base + member, .stride = (what.to - int(rank)) * plane, .ranks = 2});
        }
        continue;
      }
      const int block = what.stride * what.ranks;
      MILLWRIGHT_CHECK(plane % block == 0);
      for (int member = 0; member < plane; ++member) {
        if (LeaderOf(what, member) != member) continue;
        p.groups.push_back({.first = base + member, .stride = what.stride, .ranks = what.ranks});
      }
    }
  }
  if (!options_.share_links) return prepared;

  // Who is alone on links?
  const std::unique_ptr<FairShareNetwork> network = MakeNetwork();
  for (const Group& group : p.groups) network->AddGroup(GpusOf(group));
  const auto for_each_group = [&](const auto& visit) {
    for (std::size_t c = 0; c < communications.size(); ++c) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const int first = p.first_group[c][rank];
        // What all ranks sum is a few bytes: latency alone.
        if (first < 0 || communications[c].everyone) continue;
        const int count = communications[c].to >= 0 ? plane : plane / communications[c].ranks;
        for (int group = first; group < first + count; ++group) {
          visit(group,
                CollectiveCall{.group = group,
                               .kind = communications[c].kind,
                               .payload = communications[c].payload,
                               .loads = {},
                               .price = uses[c][rank].price},
                double(uses[c][rank].times));
        }
      }
    }
  };
  const Disturbance& disturbance = options_.disturbance;
  if (!disturbance.slow_links.empty() || !disturbance.failed_links.empty()) {
    std::vector<char> disturbed(cluster_.links().size());
    for (const auto& [link, factor] : disturbance.slow_links) disturbed[std::size_t(link)] = 1;
    for (const int link : disturbance.failed_links) disturbed[std::size_t(link)] = 1;
    FairShareNetwork sound(cluster_, calibration_);
    for (const Group& group : p.groups) sound.AddGroup(GpusOf(group));
    p.disturbed_in_vain = true;
    for_each_group([&](int, const CollectiveCall& call, double) {
      for (const LinkUse& use : sound.UsesOf(call).uses) {
        if (disturbed[std::size_t(use.link)]) p.disturbed_in_vain = false;
      }
    });
  }
  constexpr int kNobody = -1, kSeveral = -2;
  std::vector<int> owner(cluster_.links().size(), kNobody);
  std::vector<char> alone(p.groups.size(), 1);
  for_each_group([&](int group, const CollectiveCall& call, double) {
    for (const LinkUse& use : network->UsesOf(call).uses) {
      int& of_link = owner[std::size_t(use.link)];
      if (of_link == kNobody) of_link = group;
      if (of_link != group) of_link = kSeveral;
    }
    constexpr double kRounding = 1e-9;
    if (network->StretchAlone(call) > 1 + kRounding) alone[std::size_t(group)] = 0;
  });
  for_each_group([&](int group, const CollectiveCall& call, double) {
    for (const LinkUse& use : network->UsesOf(call).uses) {
      if (owner[std::size_t(use.link)] != group) alone[std::size_t(group)] = 0;
    }
  });
  p.carried_alone.assign(owner.size(), 0);
  for_each_group([&](int group, const CollectiveCall& call, double times) {
    if (!alone[std::size_t(group)]) return;
    const FairShareNetwork::Footprint& footprint = network->UsesOf(call);
    const double lane_bytes = times * call.payload.value * footprint.lane_bytes;
    for (const LinkUse& use : footprint.uses) {
      p.carried_alone[std::size_t(use.link)] += lane_bytes * use.lanes;
    }
  });
  int numbered = 0;
  for (std::size_t group = 0; group < p.groups.size(); ++group) {
    if (!alone[group]) p.groups[group].network = numbered++;
  }
  return prepared;
}

bool FullSimulation::disturbed_in_vain() const { return prepared_->disturbed_in_vain; }

FullStep FullSimulation::Run(std::int64_t step, const std::function<void(double)>& progress) const {
  return Running(*this, step, progress).Go();
}

Bytes FullSimulation::MemoryFor(std::size_t tasks, int ranks_of_graph, int plane) {
  constexpr double kOfTask = 8;
  constexpr double kOfRank = 2000;  // cursors, arrivals, times by cause, groups
  return Bytes(double(plane) * (kOfTask * double(tasks) + kOfRank * ranks_of_graph));
}

Timeline FullSimulation::TimelineOf(const FullStep& result, int member) const {
  const std::size_t n = graph_.size();
  Timeline timeline;
  timeline.start.resize(n);
  timeline.end.resize(n);
  timeline.makespan = result.makespan;
  // When a member was ready for a task: all that it waits for has ended.
  std::vector<TaskId> before(n, kNoTask);
  for (int rank = 0; rank < graph_.ranks(); ++rank) {
    for (int s = 0; s < kStreams; ++s) {
      const std::span<const TaskId> program = graph_.program(rank, static_cast<Stream>(s));
      for (std::size_t i = 1; i < program.size(); ++i) before[program[i]] = program[i - 1];
    }
  }
  const auto ready = [&](int of, TaskId id) {
    const double* ends = result.ends.data() + std::size_t(of) * n;
    double at = before[id] == kNoTask ? 0 : ends[before[id]];
    for (TaskId awaited : graph_.waits(id)) at = std::max(at, ends[awaited]);
    return at;
  };
  for (TaskId id = 0; id < n; ++id) {
    timeline.end[id] = Seconds(result.ends[std::size_t(member) * n + id]);
    double start = ready(member, id);
    const std::uint16_t communication = graph_.task(id).communication;
    if (communication != kNoCommunication) {
      const Communication& c = prepared_->communications[communication];
      if (c.to < 0) {
        const int leader = LeaderOf(c, member);
        for (int i = 0; i < c.ranks; ++i) start = std::max(start, ready(leader + i * c.stride, id));
      }
    }
    timeline.start[id] = Seconds(start);
  }
  FindPeaks(graph_, timeline);
  return timeline;
}

int FullStep::latest() const {
  constexpr double kRounding = 1e-9;
  const double least = makespan.value * (1 - kRounding);
  const auto last =
      std::find_if(finish.begin(), finish.end(), [&](Seconds at) { return at.value >= least; });
  return int(last - finish.begin());
}

}  // namespace millwright
