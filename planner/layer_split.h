// SPDX-License-Identifier: Apache-2.0
//
// How should the layers of a model be divided among the stages of a pipeline?
//
// All micro-batches' work is the same however it is divided, so that the pace of the slowest rank
// decides; and memory, of which the first stages keep most micro-batches and the last has the
// logits.  Of all splits whose every rank fits, the one whose slowest rank is fastest, found by
// dynamic programming over the stages: exact for the plan's degrees, as tests/planner/
// layer_split_test.cc holds against trying every split.  Among equally fast ones the most even (the
// least sum of squares).  First (unless the backward is split) and last stage may be
// without layers, the others not.
//
// For schedules that give each rank one stage, or the stages k from the front and k from the back
// (V shapes, DualPipe).  Interleaved ranks have stages all over the model, whose lengths also
// decide how ranks wait for each other: LayersPerChunk keeps those even, and so they stay.
//
// Cost: states of the programme times sizes of a stage.  61 layers over 16 stages take 0.4 to 0.9
// ms one a rank and 5 to 8 ms mirrored, 126 layers over 32 mirrored stages 30 ms.
#pragma once

#include <optional>

#include "planner/estimator.h"

namespace millwright {

// Whether BestSplit knows how to split for this schedule.
bool CanSplit(const ParallelConfig& plan);

// `plan` with its layers divided best, where that is more than 0.1% faster by the estimate than as
// it is, or where it does not fit as it is; empty where no split is.  The plan must have passed
// CheckPlan.  `memory_limit` is what a rank may use.
std::optional<Estimate> BestSplit(const Estimator& estimator, const ParallelConfig& plan,
                                  Bytes memory_limit);

}  // namespace millwright
