// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a run as processes of this machine, by Open MPI's mpirun, and waits for them.
//
// mpirun's own words are kept from the user: of what the ranks wrote to standard error each line of
// ours ("millwright: ...") is kept once, and a rank that was killed becomes a line of its own.
// Session files and shared memory of the run are in a folder of its own, which is removed at the
// end. An interrupt ends the ranks first; if this process is killed, mpirun is told to end.
#pragma once

#include <string>
#include <vector>

namespace millwright {

struct LaunchOutcome {
  int code = 0;                       // of the ranks; kRankDied where one was killed
  std::string out;                    // what they wrote
  std::vector<std::string> messages;  // without "millwright: "
};
inline constexpr int kRankDied = 4;

// ConfigError where there is no mpirun.
LaunchOutcome LaunchRanks(const std::string& program, const std::vector<std::string>& args,
                          int ranks);

// Whether this process has been started as a rank, by mpirun or by srun with PMI.
bool UnderMpirun();

}  // namespace millwright
