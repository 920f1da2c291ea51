// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/check.h"
#include "core/mistakes.h"
#include "sim/v_shape.h"

namespace millwright {
namespace {

// Chunks of a rank: what the schedule needs, or 0 where one chooses.
int OwnChunks(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
    case ScheduleKind::kDualPipe:
      return 1;
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kVZb:
    case ScheduleKind::kDualPipeV:
      return 2;
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kBreadthFirst:
    case ScheduleKind::kForwardOnly:
      return 0;
  }
  MILLWRIGHT_CHECK(false);
}

// Appends passes to one rank's order; a rank of a V or of DualPipe has two stages.
class OrderWriter {
 public:
  OrderWriter(std::vector<Pass>& order, int stage0, int stage1 = 0) : order_(order) {
    stages_[0] = static_cast<std::uint16_t>(stage0);
    stages_[1] = static_cast<std::uint16_t>(stage1);
  }
  void Add(PassKind kind, int chunk, int micro_batch, bool overlaps_next = false) {
    order_.push_back({micro_batch, stages_[chunk], kind, overlaps_next});
  }

 private:
  std::vector<Pass>& order_;
  std::uint16_t stages_[2];
};

// Schedules in which chunk k of rank r is stage k p + r, and backward is one pass: all go through
// the same table of (micro-batch, chunk), and differ in how far forward runs ahead of backward.
void FillLooped(const ScheduleChoice& choice, PipelineSchedule& schedule) {
  const int p = choice.pipeline, m = choice.micro_batches, v = ChunksOfRank(choice);
  int group = m;
  if (choice.kind == ScheduleKind::kInterleaved) group = choice.group;
  if (choice.kind == ScheduleKind::kInterleaved && group == 0) group = GroupSize(p, m);
  if (choice.kind == ScheduleKind::kForwardOnly && m >= p) group = GroupSize(p, m);

  struct Entry {
    int micro_batch, chunk;
  };
  std::vector<Entry> table;
  table.reserve(std::size_t(m) * std::size_t(v));
  for (int first = 0; first < m; first += group) {
    const int last = std::min(m - first, group) + first;
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int i = first; i < last; ++i) table.push_back({i, chunk});
    }
  }

  for (int r = 0; r < p; ++r) {
    std::vector<Pass>& order = schedule.orders[std::size_t(r)];
    order.reserve(2 * table.size());
    const auto add = [&](PassKind kind, const Entry& entry, int chunk) {
      order.push_back({entry.micro_batch, static_cast<std::uint16_t>(chunk * p + r), kind});
    };
    const auto forward = [&](std::size_t k) { add(PassKind::kForward, table[k], table[k].chunk); };
    const auto backward = [&](std::size_t k) {
      add(PassKind::kBackward, table[k], v - 1 - table[k].chunk);
    };
    std::size_t ahead = table.size();
    if (choice.kind == ScheduleKind::k1F1B) {
      ahead = std::min(ahead, std::size_t(p - 1 - r));
    } else if (choice.kind == ScheduleKind::kInterleaved) {
      ahead = std::min(ahead, 2 * std::size_t(p - 1 - r) + std::size_t(v - 1) * std::size_t(group));
    }
    for (std::size_t k = 0; k < ahead; ++k) forward(k);
    if (schedule.forward_only) continue;
    for (std::size_t k = ahead; k < table.size(); ++k) {
      forward(k);
      backward(k - ahead);
    }
    for (std::size_t k = table.size() - ahead; k < table.size(); ++k) backward(k);
  }
}

// ZB-H1 and ZB-H2: so many forwards first; then B, the W of `lag` micro-batches before, and F.
void FillZeroBubble(const ScheduleChoice& choice, PipelineSchedule& schedule) {
  const int p = choice.pipeline, m = choice.micro_batches;
  const bool h1 = choice.kind == ScheduleKind::kZbH1;
  for (int r = 0; r < p; ++r) {
    std::vector<Pass>& order = schedule.orders[std::size_t(r)];
    order.reserve(3 * std::size_t(m));
    OrderWriter writer(order, r);
    const int lag = h1 ? r : 2 * r;
    int f = 0, w = 0;
    for (const int ahead = std::min(m, h1 ? p - r : 2 * (p - r) - 1); f < ahead;) {
      writer.Add(PassKind::kForward, 0, f++);
    }
    for (int b = 0; b < m; ++b) {
      writer.Add(PassKind::kBackwardInput, 0, b);
      if (b >= lag) writer.Add(PassKind::kBackwardWeight, 0, w++);
      if (f < m) writer.Add(PassKind::kForward, 0, f++);
    }
    while (w < m) writer.Add(PassKind::kBackwardWeight, 0, w++);
  }
}

// ZB-V is written for at least 2p - 1 micro-batches; with fewer, those that are not there are left
// out.
void FillZbV(const ScheduleChoice& choice, PipelineSchedule& schedule) {
  const int p = choice.pipeline, m = choice.micro_batches;
  const int n = std::max(2 * p - 1, m);
  for (int r = 0; r < p; ++r) {
    std::vector<Pass>& order = schedule.orders[std::size_t(r)];
    order.reserve(6 * std::size_t(m));
    OrderWriter writer(order, r, 2 * p - 1 - r);
    int f[2] = {0, 0}, b[2] = {0, 0}, w[2] = {0, 0};
    const auto add = [&](PassKind kind, int chunk, int& next) {
      if (next < m) writer.Add(kind, chunk, next);
      ++next;
    };
    const auto forward = [&](int chunk) { add(PassKind::kForward, chunk, f[chunk]); };
    const auto input = [&](int chunk) { add(PassKind::kBackwardInput, chunk, b[chunk]); };
    const auto weight = [&](int chunk) { add(PassKind::kBackwardWeight, chunk, w[chunk]); };

    for (int i = 0; i < 2 * (p - r) - 1; ++i) forward(0);
    for (int i = 0; i < r; ++i) forward(1), forward(0);
    for (int i = 0; i < p - r; ++i) forward(1), input(1), weight(1);
    while (f[1] < f[0] || f[0] < n) {
      if (f[0] < n) forward(0);
      input(0), weight(0);
      forward(1), input(1), weight(1);
    }
    for (int i = 0; i < r; ++i) input(0), input(1);
    for (int i = 0; i < p - r; ++i) input(0), weight(0);
    while (w[1] < n) weight(1);
    while (w[0] < n) weight(0);
    MILLWRIGHT_CHECK(b[0] == n && b[1] == n);
  }
}

// DualPipe and DualPipeV: the same eight phases.  In DualPipeV the two streams of a rank are its
// two chunks; in DualPipe they are the two directions, and a rank stands as far from the middle
// as its mirror image.
void FillDualPipe(const ScheduleChoice& choice, PipelineSchedule& schedule) {
  const int p = choice.pipeline;
  const bool v = choice.kind == ScheduleKind::kDualPipeV;
  const int n = v ? p : p / 2;  // ranks from the end of the pipeline to its middle
  const int m = schedule.micro_batches_per_direction();
  for (int rank = 0; rank < p; ++rank) {
    const int r = v ? rank : std::min(rank, p - 1 - rank);
    std::vector<Pass>& order = schedule.orders[std::size_t(rank)];
    order.reserve(6 * std::size_t(m));
    // Stream 0 is what enters the pipeline on this rank's side.
    const int down = rank, up = 2 * p - 1 - rank;
    OrderWriter writer(order, r == rank ? down : up, r == rank ? up : down);

    int f[2] = {0, 0}, b[2] = {0, 0};
    struct Weight {
      int stream, micro_batch;
    };
    std::vector<Weight> later;
    std::size_t weighted = 0;
    const auto forward = [&](int s) { writer.Add(PassKind::kForward, s, f[s]++); };
    const auto backward = [&](int s) { writer.Add(PassKind::kBackward, s, b[s]++); };
    const auto input = [&](int s) {
      later.push_back({s, b[s]});
      writer.Add(PassKind::kBackwardInput, s, b[s]++);
    };
    const auto weight = [&] {
      const Weight& next = later[weighted++];
      writer.Add(PassKind::kBackwardWeight, next.stream, next.micro_batch);
    };
    const auto both = [&](int forward_stream, int backward_stream) {
      writer.Add(PassKind::kForward, forward_stream, f[forward_stream]++, true);
      backward(backward_stream);
    };

    for (int i = 0; i < 2 * (n - r - 1); ++i) forward(0);
    for (int i = 0; i < r + 1; ++i) forward(0), forward(1);
    for (int i = 0; i < n - r - 1; ++i) input(1), weight(), forward(1);
    for (int i = 0; i < m - 2 * n + r + 1; ++i) {
      if (i == 0 && r == n - 1) {  // the middle has no transfer to hide
        forward(0), backward(1);
      } else {
        both(0, 1);
      }
      both(1, 0);
    }
    for (int i = 0; i < n - r - 1; ++i) backward(1), both(1, 0);
    bool split = false;
    for (int i = 0; i < r + 1; ++i) {
      for (const int stream : {1, 0}) {
        split = split || (i == (r + 1) / 2 && stream == r % 2);
        if (split) {
          input(stream);
        } else {
          backward(stream);
        }
      }
    }
    for (int i = 0; i < n - r - 1; ++i) weight(), input(0);
    for (int i = 0; i < r + 1; ++i) weight();
    MILLWRIGHT_CHECK(f[0] == m && f[1] == m && b[0] == m && b[1] == m && weighted == later.size());
  }
}

std::string Got(int number) { return fmt::format(", got {}", number); }

}  // namespace

bool ChoosesChunks(ScheduleKind kind) { return OwnChunks(kind) == 0; }

int ChunksOfRank(const ScheduleChoice& choice) {
  const int own = OwnChunks(choice.kind);
  return own == 0 ? choice.virtual_stages : own;
}

bool SplitsBackward(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kBreadthFirst:
    case ScheduleKind::kForwardOnly:
      return false;
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kVZb:
    case ScheduleKind::kDualPipe:
    case ScheduleKind::kDualPipeV:
      return true;
  }
  return false;
}

ScheduleChoice ScheduleOf(const ParallelConfig& plan, std::int64_t micro_batches) {
  return {.kind = plan.schedule,
          .pipeline = plan.pipeline,
          .micro_batches = int(micro_batches),
          .virtual_stages = plan.virtual_stages};
}

int StagesPerCopy(const ParallelConfig& plan) {
  return plan.pipeline * ChunksOfRank(ScheduleOf(plan, 1));
}

void DropOtherSplit(ParallelConfig& plan) {
  if (int(plan.stage_layers.size()) != StagesPerCopy(plan)) plan.stage_layers.clear();
}

int CopiesOfModel(ScheduleKind kind) { return kind == ScheduleKind::kDualPipe ? 2 : 1; }

std::vector<int> RankOfStage(const ScheduleChoice& choice) {
  const int p = choice.pipeline, copies = CopiesOfModel(choice.kind);
  const bool folded = OwnChunks(choice.kind) == 2 || copies == 2;
  std::vector<int> ranks;
  for (int s = 0; s < copies * p * ChunksOfRank(choice); ++s) {
    ranks.push_back(folded && s >= p ? 2 * p - 1 - s : s % p);
  }
  return ranks;
}

std::size_t PipelineSchedule::passes() const {
  std::size_t sum = 0;
  for (const auto& order : orders) sum += order.size();
  return sum;
}

ScheduleChoice ParseScheduleChoice(std::string_view text) {
  constexpr std::size_t kMostShown = 60;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::vector<std::string_view> names;
  ScheduleChoice choice;
  bool found = false;
  for (const auto& known : ScheduleKindNames()) {
    names.push_back(known.name);
    if (known.name != name) continue;
    choice.kind = known.value;
    found = true;
  }
  if (!found) {
    const std::string_view nearest = NearestName(name, names);
    throw ConfigError(fmt::format(
        "unknown schedule \"{}\"{}; there are {}", Printable(name, kMostShown),
        nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest),
        fmt::join(names, ", ")));
  }
  if (colon == std::string_view::npos) return choice;
  const std::string_view chunks = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(chunks.data(), chunks.data() + chunks.size(), choice.virtual_stages);
  if (error != std::errc() || end != chunks.data() + chunks.size() || choice.virtual_stages < 1) {
    throw ConfigError(fmt::format(
        "schedule \"{}\": expected a number of virtual stages of at least 1 behind the colon, as "
        "in interleaved:4, got \"{}\"",
        Printable(text, kMostShown), Printable(chunks, kMostShown)));
  }
  return choice;
}

int GroupSize(int pipeline, int micro_batches) {
  MILLWRIGHT_CHECK(micro_batches >= pipeline);
  int group = pipeline;
  while (micro_batches % group != 0 && micro_batches % group < pipeline) ++group;
  return group;
}

std::vector<std::string> Unmet(const ScheduleChoice& choice) {
  std::vector<std::string> unmet;
  const int p = choice.pipeline, m = choice.micro_batches, v = choice.virtual_stages;
  const int own = OwnChunks(choice.kind);
  if (p < 1) unmet.push_back("needs at least 1 pipeline rank" + Got(p));
  if (m < 1) unmet.push_back("needs at least 1 micro-batch" + Got(m));
  if (v < 1) unmet.push_back("needs at least 1 virtual stage a rank" + Got(v));
  if (v > 1 && own != 0 && v != own) {
    unmet.push_back(
        fmt::format("has {} virtual stage{} a rank{}", own, own == 1 ? "" : "s", Got(v)));
  }
  if (choice.group != 0 && choice.kind != ScheduleKind::kInterleaved) {
    unmet.push_back("takes no micro-batch group" + Got(choice.group));
  }
  if (!unmet.empty()) return unmet;

  switch (choice.kind) {
    case ScheduleKind::kInterleaved:
      if (v < 2) unmet.push_back("needs at least 2 virtual stages a rank" + Got(v));
      if (m < p) {
        unmet.push_back(
            fmt::format("needs at least {} micro-batches, one a pipeline rank{}", p, Got(m)));
      } else if (choice.group != 0 && (choice.group < p || choice.group > m)) {
        unmet.push_back(fmt::format(
            "needs a micro-batch group from {}, the pipeline ranks, to {}, the micro-batches{}", p,
            m, Got(choice.group)));
      } else if (choice.group != 0 && m % choice.group != 0 && m % choice.group < p) {
        unmet.push_back(fmt::format(
            "needs a micro-batch group that leaves none of {} micro-batches over, or at least {}, "
            "the pipeline ranks, got {}, which leaves {}",
            m, p, choice.group, m % choice.group));
      }
      break;
    case ScheduleKind::kDualPipe:
      if (p % 2 != 0) unmet.push_back("needs an even number of pipeline ranks" + Got(p));
      if (m % 2 != 0) unmet.push_back("needs an even number of micro-batches" + Got(m));
      [[fallthrough]];
    case ScheduleKind::kDualPipeV:
      if (m < 2LL * p) {
        unmet.push_back(
            fmt::format("needs at least {} micro-batches, two a pipeline rank{}", 2LL * p, Got(m)));
      }
      break;
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kVZb:
    case ScheduleKind::kBreadthFirst:
    case ScheduleKind::kForwardOnly:
      break;
  }

  const std::int64_t stages = std::int64_t{CopiesOfModel(choice.kind)} * p * ChunksOfRank(choice);
  // F, B and W of each: what a schedule has at most.
  const double passes = 3.0 * double(stages) * m / CopiesOfModel(choice.kind);
  if (stages > kMostStages) {
    unmet.push_back(fmt::format("can have at most {} stages, got {}", kMostStages, stages));
  } else if (passes > double(kMostPasses)) {
    unmet.push_back(fmt::format("can have at most {} passes, got {:.0f}", kMostPasses, passes));
  }
  return unmet;
}

PipelineSchedule BuildSchedule(const ScheduleChoice& choice) {
  std::vector<std::string> unmet = Unmet(choice);
  if (!unmet.empty()) {
    for (std::string& what : unmet)
      what = fmt::format("schedule {}: {}", NameOf(choice.kind), what);
    throw ConfigError(fmt::format("{}", fmt::join(unmet, "\n")));
  }
  const int p = choice.pipeline;
  PipelineSchedule schedule{.name = std::string(NameOf(choice.kind)),
                            .pipeline = p,
                            .micro_batches = choice.micro_batches,
                            .directions = CopiesOfModel(choice.kind),
                            .chunk_cost_divisor = ChunksOfRank(choice),
                            .forward_only = choice.kind == ScheduleKind::kForwardOnly,
                            .rank_of_stage = RankOfStage(choice)};
  schedule.orders.resize(std::size_t(p));
  switch (choice.kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kBreadthFirst:
    case ScheduleKind::kForwardOnly:
      FillLooped(choice, schedule);
      break;
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
      FillZeroBubble(choice, schedule);
      break;
    case ScheduleKind::kZbV:
      FillZbV(choice, schedule);
      break;
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kVZb:
      schedule.orders = VShapeOrders(choice.kind, p, choice.micro_batches);
      break;
    case ScheduleKind::kDualPipe:
    case ScheduleKind::kDualPipeV:
      FillDualPipe(choice, schedule);
      break;
  }
  return schedule;
}

}  // namespace millwright
