// SPDX-License-Identifier: Apache-2.0
//
// `plan` under mpirun: each rank searches its part of the space, and all of them merge all parts.
//
// Every rank then has found the same; rank 0 simulates, prints and writes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "planner/search.h"
#include "runtime/communicator.h"

namespace millwright {

// Where this process is a rank of several: goes on as the program that has MPI, and does not
// return. ConfigError where there is none.
void GoOnWithMpi(std::span<const std::string> args);

// The texts of all ranks, in their order, on every rank.
std::vector<std::string> GatherTexts(Communicator& communicator, const std::string& own);

SearchPart PartOf(Communicator& communicator);

// Ranks on this machine, as mpirun says; 1 where nobody says.
int ProcessesHere();

}  // namespace millwright
