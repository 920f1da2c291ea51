// SPDX-License-Identifier: Apache-2.0
#include "report/plan_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "cost_models/interval.h"
#include "report/estimate_text.h"
#include "report/json.h"
#include "report/options_text.h"
#include "report/page.h"
#include "report/page_parts.h"
#include "report/plan_text.h"
#include "report/size_text.h"
#include "report/step_page.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

// A table is read up to here, and the page stays below a few MB.
constexpr std::size_t kMostPlans = 200;

// The keys of the answer's JSON, and what a reader calls them.
template <class Item, class Label>
Json LabelsOf(int count, Label label) {
  Json labels = Json::array();
  for (int i = 0; i < count; ++i) {
    const auto item = static_cast<Item>(i);
    labels.push_back({std::string(JsonKey(item)), std::string(label(item))});
  }
  return labels;
}

template <class List, class Plan>
Json NamesOf(const List& list, Plan plan) {
  Json names = Json::array();
  for (const auto& one : list) names.push_back(BriefName(plan(one)));
  return names;
}

// The best plan of each, or why there is none.
template <class List>
Json BestNames(const List& list) {
  Json names = Json::array();
  for (const auto& one : list) {
    names.push_back(one.best ? BriefName(one.best->estimate.plan) : one.reason);
  }
  return names;
}

Json RejectedRows(const SearchResult& result) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < kRejectionReasons; ++i) {
    if (result.rejected[i] > 0) {
      rows.push_back({std::string(Name(static_cast<RejectionReason>(i))), result.rejected[i]});
    }
  }
  return rows;
}

Json OutOfMemoryRows(const SearchResult& result) {
  Json rows = Json::array();
  for (const MemoryItem item : OutOfMemoryItems(result)) {
    const OutOfMemory& of_item = result.out_of_memory[static_cast<std::size_t>(item)];
    const bool named = of_item.nearest.has_value();
    rows.push_back({std::string(Name(item)), of_item.count,
                    named ? GiB(of_item.nearest->peak - result.memory_limit) : "",
                    named ? std::to_string(of_item.stage) : "",
                    named ? BriefName(of_item.nearest->plan) : ""});
  }
  return rows;
}

}  // namespace

void WritePlanPage(const PlanAnswer& answer, const std::optional<SimulatedStep>& best,
                   const std::string& command, FileWriter& out) {
  Json whole = Json::parse(PlanAnswerJson(answer));
  whole.erase("timing");
  Json& plans = whole["plans"];
  if (plans.size() > kMostPlans) {
    plans.erase(plans.begin() + std::ptrdiff_t(kMostPlans), plans.end());
  }
  Json facts = Json::array();
  for (const auto& [what, asked] : QuestionRows(answer.job)) facts.push_back({what, asked});
  const RunClass kind = ClassOf(answer.job.model, answer.job.training, answer.job.cluster.gpu);
  Json data = {
      {"heading", answer.job.model.name},
      {"cluster", answer.job.cluster.name},
      {"sentence", PlanSentence(answer)},
      {"command", command},
      {"facts", std::move(facts)},
      {"names", NamesOf(answer.plans(), [](const Contender& c) { return c.estimate.plan; })},
      {"pareto_names", NamesOf(answer.pareto, [](const Estimate& e) { return e.plan; })},
      {"remedy_names", NamesOf(answer.remedies, [](const Remedy& r) { return r.plan.plan; })},
      {"nearest_name", answer.nearest_miss ? BriefName(answer.nearest_miss->plan) : ""},
      {"times", LabelsOf<TimeItem>(kTimeItems, [](TimeItem i) { return Label(i); })},
      {"items", LabelsOf<MemoryItem>(kMemoryItems, [](MemoryItem i) { return Name(i); })},
      {"told_apart", ToldApart(kind)},
      {"gpu", answer.job.cluster.gpu.name},
      {"capacity", answer.job.cluster.gpu.hbm_capacity.value},
      {"rejected", RejectedRows(answer.result)},
      {"out_of_memory", OutOfMemoryRows(answer.result)},
      {"answer", std::move(whole)},
      {"sizes_sentence", answer.sizes ? SizeSentence(*answer.sizes) : ""},
      {"size_names", answer.sizes ? BestNames(answer.sizes->sizes) : Json::array()},
      {"options_sentence",
       answer.options ? OptionsSentence(*answer.options, answer.objective) : ""},
      {"option_names", answer.options ? BestNames(answer.options->choices) : Json::array()},
      {"timeline", best ? Json::parse(TimelineJson(*best)) : Json(nullptr)}};
  // The timeline's scripts find its names where the other pages have them.
  for (const char* key : {"paints", "streams"}) {
    data[key] = best ? data["timeline"][key] : Json::array();
  }
  WritePage({.title = fmt::format("{}: plans", answer.job.model.name),
             .data = data.dump(-1, ' ', false, Json::error_handler_t::replace),
             .scripts = {TimelineScript(), ChartsScript(), PlanScript()}},
            out);
}

}  // namespace millwright
