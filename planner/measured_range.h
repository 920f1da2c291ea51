// SPDX-License-Identifier: Apache-2.0
//
// Which parts of a plan's time are extrapolated?
//
// A curve holds for the shapes that were measured; beyond them it follows its formula, with an
// error that nobody has seen.  Up to twice the largest, and down to half the smallest, are let
// pass: time is nearly proportional to the work there.
#pragma once

#include <optional>
#include <string>

#include "planner/estimator.h"

namespace millwright {

// One line that names the GEMMs of the plan's layers and head that lie further outside in any of
// their three passes; nullopt where there are none, or the GPU has no curves.
std::optional<std::string> OutsideMeasured(const Estimator& estimator, const ParallelConfig& plan);

}  // namespace millwright
