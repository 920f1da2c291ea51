// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes: messages by MPI.  runtime/launch starts them.
#pragma once

#include <memory>

#include "runtime/communicator.h"

namespace millwright {

// Initialises MPI, and finalises it.  One in a process.
std::unique_ptr<Communicator> MakeMpiCommunicator();

// Ends all ranks of this process's job, now, with that exit code.
[[noreturn]] void AbortMpi(int code);

}  // namespace millwright
