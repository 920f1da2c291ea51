// SPDX-License-Identifier: Apache-2.0
#include "validate/chosen_layouts.h"

#include <algorithm>
#include <map>
#include <string>

#include "planner/parallel_work.h"
#include "planner/search.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

// What a run's layout is an answer to.
std::string QuestionOf(Job job) {
  job.parallel = {};
  job.has_parallel = false;
  return WriteJob(job);
}

}  // namespace

std::vector<ChosenLayout> AgainstBest(const RunSet& runs, int threads,
                                      const std::function<void(double)>& progress) {
  std::map<std::string, std::vector<std::size_t>> layouts_of;
  std::vector<const std::vector<std::size_t>*> questions;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.run(i).out_of_memory()) continue;
    std::vector<std::size_t>& layouts = layouts_of[QuestionOf(runs.job(i).job)];
    if (layouts.empty()) questions.push_back(&layouts);
    layouts.push_back(i);
  }
  std::vector<ChosenLayout> all(questions.size());
  ForEachInParallel(
      questions.size(), threads,
      [&](int, std::size_t q) {
        ChosenLayout& one = all[q];
        const Job& question = runs.job(questions[q]->front()).job;
        const Cluster cluster(question.cluster);
        const Estimator estimator(question.model, question.training, cluster);
        one.layouts = questions[q]->size();
        Bytes most = cluster.gpu().hbm_capacity;
        std::string schedules = "schedule=1f1b|interleaved";
        for (const std::size_t i : *questions[q]) {
          Estimate layout = estimator.Itemise(runs.job(i).job.parallel);
          most = std::max(most, layout.peak);
          if (!FollowsFromStages(layout.plan.schedule)) {
            schedules += "|" + std::string(NameOf(layout.plan.schedule));
          }
          if (i != questions[q]->front() && layout.step >= one.chosen.step) continue;
          one.run = i;
          one.chosen = std::move(layout);
        }
        SearchOptions options{.top = 1,
                              .memory_margin = 1 - most / cluster.gpu().hbm_capacity,
                              .threads = 1,
                              .filter = {},
                              .progress = {}};
        options.filter.Require(schedules);
        const SearchResult found = Search(question.model, question.training, cluster, options);
        one.best = one.chosen;
        if (!found.plans.empty() && found.plans.front().step < one.chosen.step) {
          one.best = estimator.Itemise(found.plans.front().plan);
        }
      },
      progress);
  return all;
}

}  // namespace millwright
