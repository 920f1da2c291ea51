// SPDX-License-Identifier: Apache-2.0
//
// Which end-to-end parameters do measured steps imply, and how well do they predict steps that were
// not used to find them?
//
// The loss of a run is the absolute log error, past 30% only a third of it: a run with a mistake in
// its description pulls little.  Parameters are moved one after the other, each by a step of its
// own that grows where it helps and shrinks where it does not (pattern search in the logs), with a
// weak pull towards where they started, so that what a file does not determine stays.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cost_models/end_to_end.h"
#include "validate/runs.h"

namespace millwright {

// Fitted to the runs of these indices that have a step time.
EndToEnd FitEndToEnd(const RunSet& runs, const std::vector<std::size_t>& indices,
                     const EndToEnd& start);

// Of measured over predicted.
struct ClassQuantiles {
  std::string name;
  std::size_t n = 0;
  double low = 0, median = 0, high = 0;  // 5%, 50%, 95%
};

struct CrossValidation {
  EndToEnd fitted;             // to all runs
  std::vector<double> spread;  // of each field's log: jackknife standard error over folds
  RunsReport held_out;         // every run predicted by the fit that did not see its group
  std::vector<ClassQuantiles> quantiles;  // held out, by RunClass; memory last
  std::size_t groups = 0;
  int folds = 0;
};
// A group (source, model, GPU) is never in both parts; folds are dealt by the order of a hash of
// its name, so that the same file gives the same folds.
CrossValidation CrossValidate(const RunSet& runs, int folds);

}  // namespace millwright
