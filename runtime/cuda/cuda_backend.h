// SPDX-License-Identifier: Apache-2.0
//
// The backend on NVIDIA GPUs, one for each rank: what it asks of the GPU, in which order, on which
// stream, and what happens when something fails.  The calls themselves are a table
// (runtime/cuda/gpu_calls), so that all of this runs in tests without a GPU.
//
// Operations and collectives are on one stream, in the order of the calls; what is forked, on a
// second one.  Each direction between
// two pipeline ranks has a stream and an NCCL communicator of its own, so that a message waits for
// its receiver beside the computation; receives are made in the sender's order, whatever this rank
// asks for first, and what comes too early is kept.  A group's communicator is split from that of
// all ranks; rank 0's unique id reaches the others by the Communicator of the host.
//
// Nothing waits for ever.  The host never waits inside the driver: it polls events, and meanwhile
// NCCL's asynchronous errors and the host's Communicator, and gives up where nothing is done for
// `timeout`; it is never more than a few hundred operations ahead of the GPU.  Every failure is one
// GpuError that names the call; communicators are then aborted.
//
// The bytes that collectives have sent are those of the ring of sim/collectives, and of blocks of
// their own sizes what goes straight to each rank: which algorithm NCCL takes, it does not say.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/backend.h"
#include "runtime/communicator.h"
#include "runtime/communicator_splits.h"
#include "runtime/cuda/arena.h"
#include "runtime/cuda/gpu_calls.h"
#include "runtime/cuda/library_attention.h"

namespace millwright {

struct GpuOptions {
  ElementType type = ElementType::kBf16;
  int local_rank = 0;  // among the ranks of this machine: which GPU it takes
  // A hang, not a slow step: the host waits for some hundred operations at a time.
  Seconds timeout{300};
  std::int64_t arena_chunk = std::int64_t{256} << 20;
  // What rank 0 has to say meanwhile, a line without its end; on stderr where it is empty.
  std::function<void(const std::string&)> warn;
};

class CudaBackend final : public Backend {
 public:
  // All ranks construct it together, with the same groups.  The calls and the communicator must
  // outlive it.
  CudaBackend(const GpuCalls& calls, const std::vector<CommunicatorSplit>& splits,
              Communicator& communicator, const GpuOptions& options);
  CudaBackend(const GpuCalls& calls, const Workload& workload, Communicator& communicator,
              const GpuOptions& options)
      : CudaBackend(calls, SplitsOf(workload, communicator.rank()), communicator, options) {}
  ~CudaBackend() override;

  int WidthOf(Element element) const override;
  void Run(const Operation& operation) override;
  void Attend(const compute::Attention& attention) override;
  void AttendBackward(const compute::AttentionBackward& attention) override;
  std::string AttentionBy() const override;
  void Upload(std::span<const double> from, View to) override;
  void Upload(std::span<const std::int32_t> from, View to) override;
  std::vector<double> Download(ConstView from) override;
  void Receive(int from, int tag, View message) override;
  void Expect(int from, std::vector<int> tags) override;
  void StartFork() override;
  Fork Rejoin() override;
  void Join(Fork fork) override;
  void Synchronize() override;
  Mark MarkTime() override;
  Seconds Between(Mark start, Mark end) const override;
  void ForgetMarks() override;

  // Taken from the GPU for tensors, with what lies between them.
  std::int64_t arena_bytes() const { return arena_.chunk_bytes(); }

 protected:
  std::int64_t Carry(CollectiveKind kind, const RankGroup& group, View data,
                     Reduction reduction) override;
  std::int64_t CarryAllToAll(const RankGroup& group, ConstView out, View in) override;
  void CarryBlocks(const RankGroup& group, std::span<const ConstView> out,
                   std::span<const View> in) override;
  void CarryShift(const RankGroup& group, ConstView out, View in) override;
  void CarrySend(int to, int tag, Tensor message) override;
  std::byte* Allocate(std::int64_t bytes) override;
  void Free(std::byte* data, std::int64_t bytes) noexcept override;

 private:
  using Handle = GpuCalls::Handle;
  struct Channel {
    Handle comm = nullptr, stream = nullptr;
    std::deque<int> expected;                 // in the sender's order
    std::map<int, std::deque<Tensor>> early;  // by tag
  };
  struct Sent {
    Handle event = nullptr;
    Tensor message;
  };

  void Start(const std::vector<CommunicatorSplit>& splits);
  void StartNccl(const std::vector<CommunicatorSplit>& splits);
  void Stop() noexcept;
  // GpuError where the status is not empty.
  void Check(std::string_view call, const GpuCalls::Status& status);
  [[noreturn]] void Fail(const std::string& what);
  void WaitUntilReady(std::string_view call, Handle comm);
  void Wait(Handle event);
  template <class Done>
  void Poll(const Done& done, std::string_view waits_for);

  // False: it is for our own kernels.
  bool AttendByLibrary(const AttentionCall& call);
  Handle TakeEvent();
  void GiveEvent(Handle event) { free_events_.push_back(event); }
  // `later` goes on when `earlier` has done what it has now.
  void Order(Handle earlier, Handle later);
  void KeepPace();
  void ForgetSent();
  void Communicate(const NcclCall& call, Handle comm, Handle stream);
  void Grouped(const std::vector<NcclCall>& calls, Handle comm, Handle stream);
  void ReceiveNext(Channel& channel, View to);
  Handle CommOf(const RankGroup& group);
  Channel& ChannelOf(int from, int to);

  const GpuCalls& calls_;
  Communicator& communicator_;
  GpuOptions options_;
  RankGroup everyone_;
  Handle main_ = nullptr, beside_ = nullptr, products_ = nullptr;
  Handle stream_ = nullptr;       // of these two, that of the calls
  std::map<Fork, Handle> forks_;  // that nobody has joined, and the events after them
  Fork last_fork_ = 0;
  std::map<Handle, Handle> used_on_;  // by communicator, the stream of its last call
  std::vector<void*> chunks_;
  Arena arena_;
  Handle world_ = nullptr;
  std::map<RankGroup, Handle> comms_;
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
  std::list<Sent> sent_;
  std::vector<Handle> free_events_, marks_;
  std::deque<Handle> pace_;  // events after every so many operations
  int since_pace_ = 0;
  bool failed_ = false;
  LibraryAttention attention_;
};

}  // namespace millwright
