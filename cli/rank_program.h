// SPDX-License-Identifier: Apache-2.0
//
// The program that MPI is loaded into, beside this one: a rank of `run` or `measure`, and of
// `plan` under mpirun.
#pragma once

#include <string>
#include <vector>

namespace millwright {

std::string RankProgram();

// Goes on as that program, with these words; ConfigError where it cannot be started.
[[noreturn]] void BecomeRank(const std::string& program, std::vector<std::string> words);

}  // namespace millwright
