// SPDX-License-Identifier: Apache-2.0
#include "runtime/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <vector>

#include "core/check.h"

namespace millwright {
namespace {

// MPI's counts are ints; what is longer goes in pieces.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// MPI's default handler ends all ranks at the first error, so that no call returns one.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiCommunicator() override {
    for (Message& message : sent_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    MPI_Finalize();
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void Send(int to, int tag, std::span<const std::byte> message) override {
    ForgetArrived();
    do {
      const auto piece = message.first(std::min(message.size(), kMostBytes));
      Message& copy = sent_.emplace_back();
      copy.bytes.assign(piece.begin(), piece.end());
      MPI_Isend(copy.bytes.data(), int(copy.bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD,
                &copy.request);
      message = message.subspan(piece.size());
    } while (!message.empty());
  }

  void Receive(int from, int tag, std::span<std::byte> message) override {
    do {
      const auto piece = message.first(std::min(message.size(), kMostBytes));
      MPI_Status status;
      MPI_Recv(piece.data(), int(piece.size()), MPI_BYTE, from, tag, MPI_COMM_WORLD, &status);
      int received = 0;
      MPI_Get_count(&status, MPI_BYTE, &received);
      MILLWRIGHT_CHECK(received == int(piece.size()));
      message = message.subspan(piece.size());
    } while (!message.empty());
  }

 private:
  struct Message {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void ForgetArrived() {
    for (auto it = sent_.begin(); it != sent_.end();) {
      int done = 0;
      MPI_Test(&it->request, &done, MPI_STATUS_IGNORE);
      it = done != 0 ? sent_.erase(it) : std::next(it);
    }
  }

  int rank_ = 0, size_ = 1;
  std::list<Message> sent_;  // that may still be on their way
};

}  // namespace

std::unique_ptr<Communicator> MakeMpiCommunicator() { return std::make_unique<MpiCommunicator>(); }

void AbortMpi(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();
}

}  // namespace millwright
