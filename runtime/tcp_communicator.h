// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes that somebody else has started and told by environment variables where they
// meet, as torchrun does: messages by TCP.
//
// All messages go by way of rank 0, so this is for what is said beside the collectives of NCCL: its
// unique id, times, and what is compared.  A rank that ends without saying so ends the others.
//
// What connects is not authenticated: as with torchrun's own store, the network is trusted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/units.h"
#include "runtime/communicator.h"

namespace millwright {

struct MeetingPlace {
  int rank = 0, ranks = 1;
  int local_rank = 0;  // among those of this machine
  std::string address;
  int port = 0;
};

// Of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which `get` returns, or null;
// nothing where the first two are not there, ConfigError where others are missing or make no sense.
// torchrun itself listens on MASTER_PORT where TORCHELASTIC_USE_AGENT_STORE is True: the port above
// it is taken then.
std::optional<MeetingPlace> PlaceOfTorchrun(const std::function<const char*(const char*)>& get);

// Returns when all ranks are there; ConfigError where they do not come within the time.
std::unique_ptr<Communicator> MakeTcpCommunicator(const MeetingPlace& place, Seconds timeout);

}  // namespace millwright
