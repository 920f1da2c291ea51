// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <tuple>

#include "core/check.h"
#include "core/json_value.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

constexpr std::array<std::string_view, 8> kRead = {
    "schedule",           "p",          "m",     "virtual_stages", "rank_of_stage",
    "chunk_cost_divisor", "directions", "orders"};
constexpr std::array<std::string_view, 6> kNotRead = {"cases", "costs", "makespan",
                                                      "idle",  "span",  "peak_in_flight"};
constexpr std::size_t kMostShown = 60;

std::string_view Letters(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return "F";
    case PassKind::kBackward:
      return "BW";
    case PassKind::kBackwardInput:
      return "B";
    case PassKind::kBackwardWeight:
      return "W";
  }
  MILLWRIGHT_CHECK(false);
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int> TakeNumber(std::string_view& text, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > most || text.front() == '-') return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<Pass> TakePass(std::string_view& text) {
  Pass pass;
  if (Take(text, "F")) {
    pass.kind = PassKind::kForward;
  } else if (Take(text, "BW")) {
    pass.kind = PassKind::kBackward;
  } else if (Take(text, "B")) {
    pass.kind = PassKind::kBackwardInput;
  } else if (Take(text, "W")) {
    pass.kind = PassKind::kBackwardWeight;
  } else {
    return {};
  }
  const std::optional<int> micro_batch = TakeNumber(text, std::numeric_limits<int>::max() / 4);
  if (!micro_batch || !Take(text, ".")) return {};
  const std::optional<int> stage = TakeNumber(text, kMostStages - 1);
  if (!stage) return {};
  pass.micro_batch = *micro_batch;
  pass.stage = static_cast<std::uint16_t>(*stage);
  return pass;
}

// Appends the pass or pair that `word` stands for.
bool AddSlot(std::string_view word, std::vector<Pass>& order) {
  const bool pair = Take(word, "[");
  std::optional<Pass> first = TakePass(word);
  if (!first) return false;
  if (!pair) {
    order.push_back(*first);
    return word.empty();
  }
  if (first->kind != PassKind::kForward || !Take(word, "&")) return false;
  const std::optional<Pass> second = TakePass(word);
  if (!second || second->kind != PassKind::kBackward || word != "]") return false;
  first->overlaps_next = true;
  order.push_back(*first);
  order.push_back(*second);
  return true;
}

class Reader {
 public:
  Reader(const std::string& file, std::string_view text)
      : file_(file), mistakes_(file), document_(ParseJson(file, text, mistakes_)) {}

  PipelineSchedule Read() {
    if (document_.kind != JsonValue::Kind::kObject) {
      mistakes_.Add("", fmt::format("expected an object, got {}", Quote(document_)));
      mistakes_.ThrowIfAny();
    }
    CheckKeys();
    PipelineSchedule schedule{.name = "custom", .file = file_};
    ReadName(schedule.name);
    ReadOrders(schedule.orders);
    const int ranks = static_cast<int>(schedule.orders.size());
    schedule.pipeline = ReadInt("p", 1, kMostStages).value_or(ranks);
    schedule.directions = ReadInt("directions", 1, 2).value_or(1);
    const std::optional<int> m = ReadInt("m", 1, std::numeric_limits<int>::max() / 2);
    const std::optional<int> stages = ReadInt("virtual_stages", 1, kMostStages);
    const std::optional<int> divisor = ReadInt("chunk_cost_divisor", 1, kMostStages);
    ReadRanksOfStages(schedule.rank_of_stage, ranks);
    mistakes_.ThrowIfAny();  // what follows compares fields that are sound by themselves

    if (schedule.pipeline != ranks) {
      mistakes_.Add("/p", fmt::format("expected {}, one for each of orders, got {}", ranks,
                                      schedule.pipeline));
    }
    Derive(schedule, m, divisor);
    if (stages && *stages != schedule.stages()) {
      mistakes_.Add("/virtual_stages", fmt::format("expected {}, as many as stages have a rank, "
                                                   "got {}",
                                                   schedule.stages(), *stages));
    }
    if (schedule.stages() % schedule.directions != 0) {
      mistakes_.Add("/directions", fmt::format("expected 1, since {} stages do not divide by 2, "
                                               "got 2",
                                               schedule.stages()));
    }
    if (schedule.micro_batches % schedule.directions != 0) {
      mistakes_.Add("/m", fmt::format("expected an even number for 2 directions, got {}",
                                      schedule.micro_batches));
    }
    mistakes_.ThrowIfAny();
    for (const ScheduleMistake& mistake : MistakesIn(schedule)) {
      mistakes_.Add(fmt::format("/orders/{}", mistake.rank), mistake.what);
    }
    mistakes_.ThrowIfAny();
    return schedule;
  }

 private:
  void CheckKeys() {
    for (const JsonMember& member : document_.members) {
      const auto is = [&](std::string_view key) { return key == member.key; };
      if (std::any_of(kRead.begin(), kRead.end(), is)) continue;
      if (std::any_of(kNotRead.begin(), kNotRead.end(), is)) continue;
      const std::string_view nearest = NearestName(member.key, kRead);
      mistakes_.Add(PointerTo("", member.key),
                    nearest.empty()
                        ? fmt::format("unknown key; there are {}", fmt::join(kRead, ", "))
                        : fmt::format("unknown key, did you mean \"{}\"?", nearest));
    }
  }

  void ReadName(std::string& name) {
    const JsonValue* value = document_.find("schedule");
    if (value == nullptr) return;
    if (value->kind != JsonValue::Kind::kText) {
      mistakes_.Add("/schedule", fmt::format("expected a text, got {}", Quote(*value)));
    } else {
      name = Printable(value->text, kMostShown);
    }
  }

  std::optional<int> ReadInt(const char* key, int min, int max) {
    const JsonValue* value = document_.find(key);
    if (value == nullptr) return {};
    return IntOf(*value, fmt::format("/{}", key), min, max);
  }

  std::optional<int> IntOf(const JsonValue& value, const std::string& pointer, int min, int max) {
    if (value.kind == JsonValue::Kind::kInteger && value.integer >= min && value.integer <= max) {
      return static_cast<int>(value.integer);
    }
    mistakes_.Add(pointer,
                  fmt::format("expected an integer from {} to {}, got {}", min, max, Quote(value)));
    return {};
  }

  void ReadOrders(std::vector<std::vector<Pass>>& orders) {
    const JsonValue* value = document_.find("orders");
    const std::string_view expected =
        "expected an array of texts, one a rank, as in "
        "[\"F0.0 BW0.0\"]";
    if (value == nullptr) {
      mistakes_.Add("/orders", fmt::format("{}, got nothing", expected));
      return;
    }
    if (value->kind != JsonValue::Kind::kArray || value->items.empty() ||
        value->items.size() > std::size_t(kMostStages)) {
      mistakes_.Add("/orders", fmt::format("{}, got {}", expected, Quote(*value)));
      return;
    }
    for (const JsonValue& item : value->items) {
      const std::string pointer = fmt::format("/orders/{}", orders.size());
      std::vector<Pass>& order = orders.emplace_back();
      if (item.kind != JsonValue::Kind::kText) {
        mistakes_.Add(pointer, fmt::format("expected a text, got {}", Quote(item)));
        continue;
      }
      ReadOrder(item.text, pointer, order);
    }
  }

  void ReadOrder(std::string_view text, const std::string& pointer, std::vector<Pass>& order) {
    constexpr std::string_view kBlanks = " \t\n\r";
    int slot = 0;
    while (!mistakes_.full()) {
      const std::size_t begin = text.find_first_not_of(kBlanks);
      if (begin == std::string_view::npos) return;
      text.remove_prefix(begin);
      const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
      text.remove_prefix(word.size());
      ++slot;
      if (AddSlot(word, order)) continue;
      mistakes_.Add(pointer,
                    fmt::format("pass {}: expected F, B, W or BW with micro-batch and stage, as in "
                                "F3.4, or a pair as in [F7.0&BW3.7], got \"{}\"",
                                slot, Printable(word, kMostShown)));
    }
  }

  void ReadRanksOfStages(std::vector<int>& rank_of_stage, int ranks) {
    const JsonValue* value = document_.find("rank_of_stage");
    if (value == nullptr) return;
    if (value->kind != JsonValue::Kind::kArray || value->items.empty() ||
        value->items.size() > std::size_t(kMostStages)) {
      mistakes_.Add("/rank_of_stage",
                    fmt::format("expected an array of ranks, one a stage, got {}", Quote(*value)));
      return;
    }
    for (const JsonValue& item : value->items) {
      const std::string pointer = fmt::format("/rank_of_stage/{}", rank_of_stage.size());
      rank_of_stage.push_back(IntOf(item, pointer, 0, std::max(ranks, 1) - 1).value_or(0));
    }
  }

  // What the file leaves out.
  void Derive(PipelineSchedule& schedule, std::optional<int> m, std::optional<int> divisor) {
    int last_micro_batch = 0, last_stage = 0;
    schedule.forward_only = true;
    for (const auto& order : schedule.orders) {
      for (const Pass& pass : order) {
        last_micro_batch = std::max(last_micro_batch, pass.micro_batch);
        last_stage = std::max(last_stage, int{pass.stage});
        if (pass.kind != PassKind::kForward) schedule.forward_only = false;
      }
    }
    schedule.micro_batches = m.value_or((last_micro_batch + 1) * schedule.directions);
    if (schedule.rank_of_stage.empty()) {
      constexpr int kNowhere = -1;
      schedule.rank_of_stage.assign(std::size_t(last_stage) + 1, kNowhere);
      for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
        for (const Pass& pass : schedule.orders[r]) {
          int& rank = schedule.rank_of_stage[pass.stage];
          if (rank == kNowhere) rank = static_cast<int>(r);
        }
      }
      for (std::size_t s = 0; s < schedule.rank_of_stage.size() && !mistakes_.full(); ++s) {
        if (schedule.rank_of_stage[s] == kNowhere) {
          mistakes_.Add("/orders", fmt::format("stage {} of 0 to {} has no pass", s, last_stage));
        }
      }
    }
    schedule.chunk_cost_divisor = divisor.value_or(
        std::max(1, schedule.stages_per_direction() / std::max(1, schedule.pipeline)));
  }

  std::string file_;
  Mistakes mistakes_;
  JsonValue document_;
};

}  // namespace

std::string PassText(const Pass& pass) {
  return fmt::format("{}{}.{}", Letters(pass.kind), pass.micro_batch, pass.stage);
}

std::string OrderText(std::span<const Pass> order) {
  std::string text;
  bool pair = false;
  for (const Pass& pass : order) {
    if (!text.empty()) text += pair ? '&' : ' ';
    if (pass.overlaps_next) text += '[';
    text += PassText(pass);
    if (pair) text += ']';
    pair = pass.overlaps_next;
  }
  return text;
}

std::vector<ScheduleMistake> MistakesIn(const PipelineSchedule& schedule, std::size_t most) {
  std::vector<ScheduleMistake> mistakes;
  const auto add = [&](int rank, std::string what) {
    if (mistakes.size() < most) mistakes.push_back({rank, std::move(what)});
  };
  const int stages = schedule.stages(), m = schedule.micro_batches_per_direction();

  struct Found {
    Pass pass;
    int rank;
    std::size_t position;
  };
  std::vector<Found> found;
  found.reserve(schedule.passes());
  for (std::size_t r = 0; r < schedule.orders.size(); ++r) {
    const auto& order = schedule.orders[r];
    const int rank = static_cast<int>(r);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Pass& pass = order[i];
      if (pass.stage >= stages || pass.micro_batch < 0 || pass.micro_batch >= m) {
        add(rank, fmt::format("{} is outside of {} stages and {} micro-batches{}", PassText(pass),
                              stages, m, schedule.directions == 2 ? " a direction" : ""));
      } else if (schedule.rank_of_stage[pass.stage] != rank) {
        add(rank, fmt::format("{} is of a stage on rank {}", PassText(pass),
                              schedule.rank_of_stage[pass.stage]));
      }
      if (pass.overlaps_next && (pass.kind != PassKind::kForward || i + 1 == order.size() ||
                                 order[i + 1].kind != PassKind::kBackward)) {
        add(rank, fmt::format("{} overlaps something else than a BW", PassText(pass)));
      }
      found.push_back({pass, rank, i + 1});
    }
  }
  const auto key = [](const Found& f) {
    return std::tuple(f.pass.stage, f.pass.micro_batch, f.pass.kind, f.rank, f.position);
  };
  std::sort(found.begin(), found.end(),
            [&](const Found& a, const Found& b) { return key(a) < key(b); });

  auto at = found.begin();
  for (int stage = 0; stage < stages && mistakes.size() < most; ++stage) {
    const int rank = schedule.rank_of_stage[std::size_t(stage)];
    for (int i = 0; i < m && mistakes.size() < most; ++i) {
      const auto is_here = [&] {
        return at != found.end() && at->pass.stage == stage && at->pass.micro_batch == i;
      };
      // What lies before belongs to no micro-batch and has been reported.
      while (at != found.end() &&
             std::tuple(int{at->pass.stage}, at->pass.micro_batch) < std::tuple(stage, i)) {
        ++at;
      }
      std::array<bool, 4> has{};
      for (; is_here(); ++at) {
        bool& one = has[std::size_t(at->pass.kind)];
        if (one) {
          const Found& before = *(at - 1);
          add(at->rank,
              before.rank == at->rank
                  ? fmt::format("{} stands twice, as passes {} and {}", PassText(at->pass),
                                before.position, at->position)
                  : fmt::format("{} stands on rank {} as well", PassText(at->pass), before.rank));
        }
        one = true;
      }
      const bool whole = has[std::size_t(PassKind::kBackward)];
      const bool input = has[std::size_t(PassKind::kBackwardInput)];
      const bool weight = has[std::size_t(PassKind::kBackwardWeight)];
      const auto complain = [&](std::string_view form) {
        add(rank, fmt::format(fmt::runtime(form), fmt::format("{}.{}", i, stage)));
      };
      if (!has[std::size_t(PassKind::kForward)]) complain("F{0} is missing");
      if (schedule.forward_only) {
        if (whole || input || weight) complain("forward only, yet {0} has a backward pass");
      } else if (whole && (input || weight)) {
        complain(input ? "BW{0} stands beside B{0}" : "BW{0} stands beside W{0}");
      } else if (!whole && !input && !weight) {
        complain("BW{0}, or B{0} and W{0}, is missing");
      } else if (!whole && !(input && weight)) {
        complain(input ? "W{0} is missing" : "B{0} is missing");
      }
    }
  }
  return mistakes;
}

PipelineSchedule ReadSchedule(const std::string& file, std::string_view text) {
  return Reader(file, text).Read();
}

bool NamesScheduleFile(std::string_view name) {
  constexpr std::string_view kSuffix = ".json";
  return name.find('/') != std::string_view::npos ||
         (name.size() > kSuffix.size() && name.ends_with(kSuffix));
}

void CheckSizes(const PipelineSchedule& schedule, int pipeline, int micro_batches) {
  Mistakes mistakes(schedule.file);
  if (pipeline != 0 && pipeline != schedule.pipeline) {
    mistakes.Add("", fmt::format("has {} pipeline ranks, and {} were asked for", schedule.pipeline,
                                 pipeline));
  }
  if (micro_batches != 0 && micro_batches != schedule.micro_batches) {
    mistakes.Add("", fmt::format("has {} micro-batches, and {} were asked for",
                                 schedule.micro_batches, micro_batches));
  }
  mistakes.ThrowIfAny();
}

PipelineSchedule LoadSchedule(const std::string& name, const ScheduleChoice& sizes) {
  if (!NamesScheduleFile(name)) {
    ScheduleChoice choice = sizes;
    const ScheduleChoice named = ParseScheduleChoice(name);
    choice.kind = named.kind;
    if (named.virtual_stages != 1) choice.virtual_stages = named.virtual_stages;
    return BuildSchedule(choice);
  }
  PipelineSchedule schedule = ReadSchedule(name, ReadTextFile(name));
  CheckSizes(schedule, sizes.pipeline, sizes.micro_batches);
  return schedule;
}

}  // namespace millwright
