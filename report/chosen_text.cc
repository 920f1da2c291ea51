// SPDX-License-Identifier: Apache-2.0
#include "report/chosen_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "report/plan_text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

double MedianSlower(const std::vector<ChosenLayout>& layouts) {
  std::vector<double> slower;
  for (const ChosenLayout& one : layouts) slower.push_back(one.slower());
  return slower.empty() ? 0 : Quantile(std::move(slower), 0.5);
}

// "it loses 12.3 s (15.0%) to the best plan: 12.3 s in pipeline bubble; 61.2 GiB against 78.0 GiB".
std::string Why(const ChosenLayout& one) {
  if (one.best.step >= one.chosen.step) return {};
  return fmt::format("{}; {} against {}", LossSentence(one.chosen, one.best), GiB(one.chosen.peak),
                     GiB(one.best.peak));
}

}  // namespace

std::string ChosenText(const RunSet& runs, const std::vector<ChosenLayout>& layouts,
                       const Style& style) {
  const auto far = [](const ChosenLayout& one) { return one.slower() > kWorthAReason; };
  const auto best = std::count_if(layouts.begin(), layouts.end(), [](const ChosenLayout& one) {
    return one.best.plan == one.chosen.plan;
  });
  const auto slow = std::count_if(layouts.begin(), layouts.end(), far);
  std::string text = Wrapped(
      fmt::format("{} of published layouts. By the estimate the fastest layout published for a "
                  "question is the planner's best {} times, within {} of it {} times, and further "
                  "off {} times; in the median it is {} slower.",
                  Counted(std::int64_t(layouts.size()), "question"), best,
                  Percent(kWorthAReason, 0), std::int64_t(layouts.size()) - best - slow, slow,
                  Percent(MedianSlower(layouts))),
      style.width, 0);
  text += '\n';
  if (slow == 0) return text;
  std::vector<const ChosenLayout*> rows;
  for (const ChosenLayout& one : layouts) {
    if (far(one)) rows.push_back(&one);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ChosenLayout* a, const ChosenLayout* b) {
    return a->slower() > b->slower();
  });
  for (const ChosenLayout* one : rows) {
    const PublishedRun& run = runs.run(one->run);
    const ClusterConfig& cluster = runs.job(one->run).job.cluster;
    text += fmt::format("\n{}  {} on {} x {}: {} slower than the best\n", run.id, run.model.name,
                        FormatInteger(cluster.gpus()), cluster.gpu.name, Percent(one->slower()));
    for (const std::string& line :
         {"published  " + BriefName(one->chosen.plan), "best       " + BriefName(one->best.plan),
          "because    " + Why(*one)}) {
      text += Wrapped(line, style.width, 2) + '\n';
    }
  }
  return text;
}

std::string ChosenJson(const RunSet& runs, const std::vector<ChosenLayout>& layouts) {
  Json rows = Json::array();
  for (const ChosenLayout& one : layouts) {
    rows.push_back({{"id", runs.run(one.run).id},
                    {"layouts", one.layouts},
                    {"chosen", BriefName(one.chosen.plan)},
                    {"chosen_step_s", one.chosen.step.value},
                    {"best", BriefName(one.best.plan)},
                    {"best_step_s", one.best.step.value},
                    {"slower", one.slower()},
                    {"why", Why(one)}});
  }
  const Json json = {{"questions", layouts.size()},
                     {"median_slower", MedianSlower(layouts)},
                     {"rows", std::move(rows)}};
  return json.dump(2) + '\n';
}

}  // namespace millwright
