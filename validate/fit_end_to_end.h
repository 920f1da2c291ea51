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

// How strongly each of EndToEndFields() is held where it starts: what moving it by a factor of e
// must gain, in mean error of a run.
using Pulls = std::vector<double>;
// The same for all, and weak.
Pulls WeakPulls();

// Fitted to the runs of these indices that have a step time.
EndToEnd FitEndToEnd(const RunSet& runs, const std::vector<std::size_t>& indices,
                     const EndToEnd& start, const Pulls& pulls = WeakPulls());

// What a user's own runs, of these indices and with step times, say beside what is shipped: the
// likeliest parameters where runs scatter as published ones do (Laplace, 6%: a median of 4%) and
// the shipped ones are known to their standard errors, no better than 5% for one's own cluster.
// Standard errors and the error of runs left out come of fits that leave out each run, or each
// tenth of them.
OwnEndToEnd FitOwn(const RunSet& runs, const std::vector<std::size_t>& indices);

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
