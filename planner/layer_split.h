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
// Recomputation may be chosen with it, for each rank by itself (BestByRank): of 1F1B the first rank
// keeps as many micro-batches as there are ranks and the last one keeps one, so that the first may
// have to recompute where the last need not, and may have fewer layers for it.  Time and memory of
// a rank depend on its own layers and choice alone, so that of all choices that fit the fastest is
// a rank's best whatever the others do, and the programme is the same with one more least to take.
// Of splits with an equally fast slowest rank it takes the one with least work of all ranks
// together, which is what fill and drain take, and then the most even.  Of 1F1B, whose step follows
// from the slowest rank and the work of all, a slower slowest rank with less work in all is taken
// where the step is shorter by it.  The test holds it against every split with every choice on
// every rank.
//
// For schedules that give each rank one stage, or the stages k from the front and k from the back
// (V shapes, DualPipe).  Interleaved ranks have stages all over the model, whose lengths also
// decide how ranks wait for each other: LayersPerChunk keeps those even, and so they stay, while
// recomputation is chosen by rank all the same.
//
// Cost: states of the programme times sizes of a stage.  61 layers over 16 stages take 0.4 to 0.9
// ms one a rank and 5 to 8 ms mirrored, 126 layers over 32 mirrored stages 30 ms.  With
// recomputation by rank a plan of 61 or 80 layers takes some 2 to 8 ms.
#pragma once

#include <optional>
#include <span>

#include "planner/estimator.h"

namespace millwright {

// Whether BestSplit knows how to split for this schedule.
bool CanSplit(const ParallelConfig& plan);

// `plan` with its layers divided best, where that is more than 0.1% faster by the estimate than as
// it is, or where it does not fit as it is; empty where no split is.  The plan must have passed
// CheckPlan.  `memory_limit` is what a rank may use.
std::optional<Estimate> BestSplit(const Estimator& estimator, const ParallelConfig& plan,
                                  Bytes memory_limit);

// The same, or with one of `choices` of recomputation on all ranks in the place of its own where
// that is faster: the plan may fit or come to its own with another.  Where nothing fits with the
// one of them that keeps least, none of the others is tried; how much more can be kept is found by
// halving.  What takes `limit` or more is of no interest, and may be missing.
std::optional<Estimate> BestSplitOfAny(const Estimator& estimator, const ParallelConfig& plan,
                                       Bytes memory_limit, std::span<const Recompute> choices,
                                       Seconds limit);

// The same with the best of `choices` on each pipeline rank, and with layers divided anew or as
// they are, whichever is faster.  Offloading among the choices must go with the plan's schedule.
std::optional<Estimate> BestByRank(const Estimator& estimator, const ParallelConfig& plan,
                                   Bytes memory_limit, std::span<const Recompute> choices);

}  // namespace millwright
