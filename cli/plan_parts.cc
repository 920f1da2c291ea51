// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_parts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <span>

#include "cli/rank_program.h"
#include "core/config_io.h"
#include "runtime/launch.h"

namespace millwright {
namespace {

constexpr int kTag = 1;

// The first of these variables that is set.
int FromEnvironment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name); text != nullptr) return std::max(1, std::atoi(text));
  }
  return 1;
}

}  // namespace

int ProcessesHere() {
  return FromEnvironment(
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"});
}

void GoOnWithMpi(std::span<const std::string> args) {
  const int ranks = FromEnvironment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  if (ranks == 1 || !UnderMpirun()) return;
  const std::string program = RankProgram();
  if (access(program.c_str(), X_OK) != 0) {
    throw ConfigError(
        "this program was built without MPI (Debian: libopenmpi-dev), and cannot share a search "
        "between ranks");
  }
  std::vector<std::string> words = {"plan"};
  words.insert(words.end(), args.begin(), args.end());
  BecomeRank(program, std::move(words));
}

std::vector<std::string> GatherTexts(Communicator& communicator, const std::string& own) {
  const int ranks = communicator.size();
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  if (communicator.rank() > 0) {
    SendText(communicator, 0, kTag, own);
    for (std::string& text : texts) text = ReceiveText(communicator, 0, kTag);
    return texts;
  }
  texts[0] = own;
  for (int rank = 1; rank < ranks; ++rank)
    texts[std::size_t(rank)] = ReceiveText(communicator, rank, kTag);
  for (int rank = 1; rank < ranks; ++rank) {
    for (const std::string& text : texts) SendText(communicator, rank, kTag, text);
  }
  return texts;
}

SearchPart PartOf(Communicator& communicator) {
  return {
      .index = communicator.rank(),
      .count = communicator.size(),
      .gather = [&communicator](const std::string& own) { return GatherTexts(communicator, own); }};
}

}  // namespace millwright
