// SPDX-License-Identifier: Apache-2.0
//
// Orders for a pipeline folded into a V (rank r holds stages r and 2p-1-r) that keep a given
// number of micro-batch chunks in flight.
//
// Idea from arXiv:2405.15362: every micro-batch repeats one pattern of F and B passes, six units of
// time after the one before, and how far apart the pattern places neighbouring ranks decides how
// long activations live.  Here the pattern only gives the order of F and B; passes start as early
// as they can, W passes fill the gaps, and a forward that would put too many chunks in flight
// waits until a W has freed one.  Chunks are counted until their W, all passes take one unit.
//
//   v-half  p + 2 chunks (p + 1 for odd p), half of what ZB-V holds
//   v-min   2 ceil((p + 2) / 3) chunks, a third
//   v-zb    2 p chunks, idle p - 1 units for m >= p
//
// Makespans at equal costs are those of sail-sg/zero-bubble's greedy for v-half and v-min or less
// (compared at 274 sizes, p of 2..10, 12 and 16, m from 1 to 4 p).  With unequal costs V-Min is
// slow: its order leaves nothing to reorder.
#pragma once

#include <vector>

#include "sim/schedule.h"

namespace millwright {

// The chunks above.
int MostInFlight(ScheduleKind kind, int pipeline);

// The order of each rank; `kind` is one of the three.
std::vector<std::vector<Pass>> VShapeOrders(ScheduleKind kind, int pipeline, int micro_batches);

}  // namespace millwright
