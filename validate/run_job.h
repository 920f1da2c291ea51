// SPDX-License-Identifier: Apache-2.0
//
// What a published run is in the product's own terms: model, cluster, training and plan.
//
// Nothing here is fitted.  What a row does not say is taken from what its framework did by
// default at the time (RunJobOf says what, case by case); a row that cannot be expressed comes
// back with the reason.
#pragma once

#include <string>
#include <variant>

#include "planner/job.h"
#include "validate/published_run.h"

namespace millwright {

struct RunJob {
  Job job;
  // A global batch that data-parallel ranks and micro-batches do not divide: the step lies this
  // far between that of `job` (rounded down) and of one micro-batch more.
  double ragged = 0;
};

// `what` names the obstacle in a few words that recur ("Mamba layers are not modelled"), so that
// rows can be counted by it.
struct NotModelled {
  std::string what;
};

std::variant<RunJob, NotModelled> RunJobOf(const PublishedRun& run);

}  // namespace millwright
