// SPDX-License-Identifier: Apache-2.0
#include "report/schedule_list.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

// What it does; sim/schedule.h has the rules and their sources.
std::string_view Meaning(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
      return "every forward, then every backward";
    case ScheduleKind::k1F1B:
      return "one forward, one backward: at most p micro-batches in flight";
    case ScheduleKind::kInterleaved:
      return "1F1B over several chunks a rank: a smaller bubble, more transfers";
    case ScheduleKind::kZbH1:
      return "weight gradients fill a part of the bubble, memory as in 1F1B";
    case ScheduleKind::kZbH2:
      return "the rest of the bubble too, for about twice the activations";
    case ScheduleKind::kZbV:
      return "two chunks a rank in a V: no bubble, memory as in 1F1B";
    case ScheduleKind::kVHalf:
      return "a V with about half of 1F1B's activations";
    case ScheduleKind::kVMin:
      return "a V with about a third of 1F1B's activations";
    case ScheduleKind::kVZb:
      return "a V with no bubble, built as v-half and v-min are";
    case ScheduleKind::kDualPipe:
      return "from both ends at once, two copies of the model: transfers under compute";
    case ScheduleKind::kDualPipeV:
      return "DualPipe folded into a V: one copy of the model";
    case ScheduleKind::kBreadthFirst:
      return "every micro-batch through a chunk before the next chunk";
    case ScheduleKind::kForwardOnly:
      return "inference: no backward pass";
  }
  MILLWRIGHT_CHECK(false);
}

std::string_view Needs(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
      return "2 or more chunks, p micro-batches";
    case ScheduleKind::kDualPipe:
      return "even p, an even number of 2p micro-batches or more";
    case ScheduleKind::kDualPipeV:
      return "2p micro-batches";
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
      return {};
  }
  MILLWRIGHT_CHECK(false);
}

}  // namespace

std::string SchedulesText(const Style& style) {
  TextTable table;
  table.Column("Schedule", Align::kLeft);
  table.Column("on p pipeline ranks", Align::kLeft);
  for (const auto& schedule : ScheduleKindNames()) {
    std::string what(Meaning(schedule.value));
    if (const std::string_view needs = Needs(schedule.value); !needs.empty()) {
      what.append("; needs ").append(needs);
    }
    table.Row({std::string(schedule.name), std::move(what)});
  }
  return table.Text(style);
}

std::string SchedulesJson() {
  using Json = nlohmann::ordered_json;
  Json schedules = Json::array();
  for (const auto& schedule : ScheduleKindNames()) {
    schedules.push_back({{"name", schedule.name},
                         {"meaning", Meaning(schedule.value)},
                         {"needs", Needs(schedule.value)}});
  }
  constexpr int kIndent = 2;
  return Json{{"schedules", std::move(schedules)}}.dump(kIndent) + "\n";
}

}  // namespace millwright
