// SPDX-License-Identifier: Apache-2.0
//
// How ranks that execute a step reach each other: messages, and nothing more.
//
// Collectives are made of messages in runtime/exchange, by the transfers of sim/collectives that
// are also simulated, so that a new way to send is these two functions.  There are three: threads
// of one process (below), MPI (runtime/mpi_communicator.h) and TCP (runtime/tcp_communicator.h).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"

namespace millwright {

// Another rank failed, and what is known of it.  Exit code 4.
struct RankFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns at once; the message is copied.
  virtual void Send(int to, int tag, std::span<const std::byte> message) = 0;
  // Waits for the next message of that sender and tag, which has this size.
  virtual void Receive(int from, int tag, std::span<std::byte> message) = 0;
  // RankFailure where another rank is known to have failed: for who waits for something else.
  virtual void ThrowIfFailed() {}
};

// The ranks of a plan on processes that count as GPUs do: each rank is the process of its GPU.
// `processes` must outlive it, and has as many as the plan has ranks.
class PlacedCommunicator final : public Communicator {
 public:
  PlacedCommunicator(Communicator& processes, const ParallelConfig& plan);
  int rank() const override { return rank_; }
  int size() const override { return processes_.size(); }
  void Send(int to, int tag, std::span<const std::byte> message) override {
    processes_.Send(process_of_[std::size_t(to)], tag, message);
  }
  void Receive(int from, int tag, std::span<std::byte> message) override {
    processes_.Receive(process_of_[std::size_t(from)], tag, message);
  }
  void ThrowIfFailed() override { processes_.ThrowIfFailed(); }

 private:
  Communicator& processes_;
  std::vector<int> process_of_;  // of each rank
  int rank_ = 0;
};

// A text of any length, as two messages.
void SendText(Communicator& communicator, int to, int tag, std::string_view text);
std::string ReceiveText(Communicator& communicator, int from, int tag);

// Runs `body` as `ranks` ranks, each a thread.  The first exception of one of them ends the wait
// of all others, and is thrown again here.
void RunThreads(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace millwright
