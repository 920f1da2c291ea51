// SPDX-License-Identifier: Apache-2.0
#include "runtime/communicator.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "core/check.h"

namespace millwright {
namespace {

// The messages of all threads that have not been received.
class Post {
 public:
  void Put(int from, int to, int tag, std::span<const std::byte> message) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to, tag}].emplace_back(message.begin(), message.end());
    changed_.notify_all();
  }

  void Take(int from, int to, int tag, std::span<std::byte> message) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<std::byte>>& box = boxes_[{from, to, tag}];
    changed_.wait(lock, [&] { return !box.empty() || failure_; });
    if (box.empty()) throw RankFailure("another rank failed");
    const std::vector<std::byte> taken = std::move(box.front());
    box.pop_front();
    MILLWRIGHT_CHECK(taken.size() == message.size());
    if (!taken.empty()) std::memcpy(message.data(), taken.data(), taken.size());
  }

  void Fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    changed_.notify_all();
  }

  bool failed() {
    const std::lock_guard lock(mutex_);
    return failure_ != nullptr;
  }
  // After all threads have ended.
  const std::exception_ptr& failure() const { return failure_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes_;
  std::exception_ptr failure_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Post& post, int rank, int size) : post_(post), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Send(int to, int tag, std::span<const std::byte> message) override {
    post_.Put(rank_, to, tag, message);
  }
  void Receive(int from, int tag, std::span<std::byte> message) override {
    post_.Take(from, rank_, tag, message);
  }
  void ThrowIfFailed() override {
    if (post_.failed()) throw RankFailure("another rank failed");
  }

 private:
  Post& post_;
  int rank_, size_;
};

}  // namespace

PlacedCommunicator::PlacedCommunicator(Communicator& processes, const ParallelConfig& plan)
    : processes_(processes) {
  for (int rank = 0; rank < processes.size(); ++rank) {
    process_of_.push_back(int(GpuOf(plan, rank)));
    if (process_of_.back() == processes.rank()) rank_ = rank;
  }
}

void SendText(Communicator& communicator, int to, int tag, std::string_view text) {
  const std::uint64_t size = text.size();
  communicator.Send(to, tag, std::as_bytes(std::span(&size, 1)));
  if (size > 0) communicator.Send(to, tag, std::as_bytes(std::span(text)));
}

std::string ReceiveText(Communicator& communicator, int from, int tag) {
  std::uint64_t size = 0;
  communicator.Receive(from, tag, std::as_writable_bytes(std::span(&size, 1)));
  std::string text(size, '\0');
  if (size > 0) communicator.Receive(from, tag, std::as_writable_bytes(std::span(text)));
  return text;
}

void RunThreads(int ranks, const std::function<void(Communicator&)>& body) {
  Post post;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&post, &body, rank, ranks] {
      ThreadCommunicator communicator(post, rank, ranks);
      try {
        body(communicator);
      } catch (...) {
        post.Fail(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (post.failure()) std::rethrow_exception(post.failure());
}

}  // namespace millwright
