// SPDX-License-Identifier: Apache-2.0
//
// What plan and estimate have found out, before it is text or JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/cluster_size.h"
#include "planner/contenders.h"
#include "planner/estimator.h"
#include "planner/job.h"
#include "planner/remedies.h"
#include "planner/robust.h"
#include "planner/search.h"
#include "planner/sensitivity.h"
#include "planner/training_options.h"
#include "report/export.h"

namespace millwright {

// What becomes of one plan, or of the best of those that --explain allows.
struct Explanation {
  std::string asked;              // the text of --explain
  std::optional<Contender> plan;  // costed, where there is one; it may not fit
  bool fits = false;              // by the estimate
  std::string why_not;            // where it is rejected before it is costed
  SearchResult result;            // of the narrowed search
};

struct PlanAnswer {
  Job job;  // the question; its search limits are those of the search
  Objective objective = Objective::kThroughput;
  std::vector<std::string> warnings;
  SearchResult result;
  Contenders contenders;  // of result.plans; of its plans those to be listed
  // Where the framework of the question does not run the best plan: the best of those it runs.
  std::optional<Contender> in_framework;
  std::vector<Estimate> pareto;  // of result.pareto
  std::optional<Estimate> nearest_miss;
  std::vector<Remedy> remedies;
  bool seeks_remedies = true;  // false: there was no time for it
  std::string why_not;         // where there is no plan, not even one that does not fit
  std::optional<Explanation> explanation;
  std::optional<Exported> exported;  // of the best plan
  std::optional<SensitivityAnswer> sensitivity;
  std::optional<SizeAnswer> sizes;       // of which this is the answer of the chosen one
  std::optional<OptionsAnswer> options;  // the same of options of the training step
  std::optional<RobustAnswer> robust;    // by which the plans are in order
  double search_seconds = 0;             // wall time, the only part that differs between runs
  double simulate_seconds = 0;           // of it
  int threads = 0;

  const std::vector<Contender>& plans() const { return contenders.plans; }
};

}  // namespace millwright
