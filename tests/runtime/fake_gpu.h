// SPDX-License-Identifier: Apache-2.0
//
// GPUs and NCCL in host memory, one GPU for each rank, as asynchronous as the real ones: a stream
// is a thread that works off what it was given, an event is what it reaches, a collective or a
// message waits on its stream for the other ranks.  So what is called without the events that it
// needs computes with what is not there yet, and what would wait for ever on GPUs does so here.
//
// Kernels are those of runtime/cpu_kernels; fp64 and fp32.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "runtime/communicator.h"
#include "runtime/cpu_backend.h"
#include "runtime/cpu_kernels.h"
#include "runtime/cuda/gpu_calls.h"

namespace millwright {

// What the ranks' communicators share.
class FakeNccl {
 public:
  struct Group {
    int ranks = 0;  // known once all have joined
    int joined = 0;
    std::atomic<bool> aborted = false;
    struct Meeting {
      std::vector<const NcclCall*> calls;
      int arrived = 0;
      bool done = false;
    };
    std::map<std::int64_t, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<const NcclCall*>> sends;
    std::map<std::pair<int, int>, std::int64_t> consumed;  // of the sends
    std::map<int, Group*> splits;                          // by number of the split: who has called
  };
  struct Comm {
    Group* group = nullptr;
    int rank = 0;
    std::int64_t calls = 0, splits = 0;
    Group* pending = nullptr;  // of a split that others have not called yet
    std::map<int, std::int64_t> sent;
  };

  Comm* Join(const GpuCalls::UniqueId& id, int ranks, int rank) {
    const std::lock_guard lock(mutex_);
    Group*& group = by_id_[id];
    if (group == nullptr) group = &groups_.emplace_back();
    group->ranks = ranks;
    ++group->joined;
    return NewComm(group, rank);
  }
  Comm* Split(Comm* parent, int color, int key) {
    const std::lock_guard lock(mutex_);
    const std::int64_t number = parent->splits++;
    Group*& callers = split_callers_[{parent->group, number}];
    if (callers == nullptr) callers = &groups_.emplace_back();
    callers->ranks = parent->group->ranks;
    ++callers->joined;
    parent->pending = callers;
    if (color < 0) return nullptr;
    Group*& group = by_color_[{parent->group, number, color}];
    if (group == nullptr) group = &groups_.emplace_back();
    group->joined = ++group->ranks;
    return NewComm(group, key);
  }
  bool Ready(const Comm* comm) {
    const std::lock_guard lock(mutex_);
    const auto full = [](const Group* group) { return group->joined == group->ranks; };
    return full(comm->group) && (comm->pending == nullptr || full(comm->pending));
  }
  void Abort(Comm* comm) {
    const std::lock_guard lock(mutex_);
    comm->group->aborted = true;
    changed_.notify_all();
  }

  // On a stream's thread: the calls of one group, in the way of NCCL all at once.
  // False where the communicator was aborted meanwhile.
  bool Carry(Comm* comm, const std::vector<NcclCall>& calls, ElementType type) {
    for (const NcclCall& call : calls) {
      if (call.kind == NcclCall::Kind::kSend) {
        const std::lock_guard lock(mutex_);
        comm->group->sends[{comm->rank, call.peer}].push_back(&call);
        ++comm->sent[call.peer];
        changed_.notify_all();
      }
    }
    for (const NcclCall& call : calls) {
      if (call.kind == NcclCall::Kind::kSend) continue;
      call.kind == NcclCall::Kind::kReceive ? Receive(comm, call, type) : Meet(comm, call, type);
    }
    std::unique_lock lock(mutex_);
    for (const NcclCall& call : calls) {
      if (call.kind != NcclCall::Kind::kSend) continue;
      changed_.wait(lock, [&] {
        return comm->group->aborted ||
               comm->group->consumed[{comm->rank, call.peer}] >= comm->sent[call.peer];
      });
    }
    return !comm->group->aborted;
  }

 private:
  Comm* NewComm(Group* group, int rank) {
    Comm& comm = comms_.emplace_back();
    comm.group = group;
    comm.rank = rank;
    return &comm;
  }

  static std::size_t WidthOf(const NcclCall& call, ElementType type) {
    return call.element == Element::kIndex || type == ElementType::kFp32 ? 4 : 8;
  }

  void Receive(Comm* comm, const NcclCall& call, ElementType type) {
    std::unique_lock lock(mutex_);
    const std::pair key{call.peer, comm->rank};
    changed_.wait(lock, [&] { return comm->group->aborted || !comm->group->sends[key].empty(); });
    if (comm->group->aborted) return;
    const NcclCall* send = comm->group->sends[key].front();
    comm->group->sends[key].pop_front();
    MILLWRIGHT_CHECK(send->count == call.count && send->element == call.element);
    std::memcpy(call.to, send->from, std::size_t(call.count) * WidthOf(call, type));
    ++comm->group->consumed[key];
    changed_.notify_all();
  }

  void Meet(Comm* comm, const NcclCall& call, ElementType type) {
    std::unique_lock lock(mutex_);
    Group& group = *comm->group;
    if (group.aborted) return;  // who came before has left, and its call with it
    Group::Meeting& meeting = group.meetings[comm->calls++];
    meeting.calls.resize(std::size_t(group.ranks));
    meeting.calls[std::size_t(comm->rank)] = &call;
    if (++meeting.arrived == group.ranks) {
      type == ElementType::kFp64 ? Compute<double>(meeting.calls) : Compute<float>(meeting.calls);
      meeting.done = true;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return group.aborted || meeting.done; });
  }

  template <class T>
  static void Compute(const std::vector<const NcclCall*>& calls) {
    const NcclCall& first = *calls.front();
    const auto count = std::size_t(first.count), ranks = calls.size();
    for (const NcclCall* call : calls) {
      MILLWRIGHT_CHECK(call->kind == first.kind && call->count == first.count &&
                       call->peer == first.peer && call->reduction == first.reduction);
    }
    const auto from = [&](std::size_t rank) { return static_cast<const T*>(calls[rank]->from); };
    const auto to = [&](std::size_t rank) { return static_cast<T*>(calls[rank]->to); };
    const auto reduced = [&](std::size_t first_element, std::size_t elements) {
      std::vector<T> result(from(0) + first_element, from(0) + first_element + elements);
      for (std::size_t rank = 1; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < elements; ++i) {
          const T value = from(rank)[first_element + i];
          result[i] =
              first.reduction == Reduction::kSum ? result[i] + value : std::max(result[i], value);
        }
      }
      return result;
    };
    switch (first.kind) {
      case NcclCall::Kind::kAllReduce: {
        const std::vector<T> result = reduced(0, count);
        for (std::size_t r = 0; r < ranks; ++r) std::copy(result.begin(), result.end(), to(r));
        return;
      }
      case NcclCall::Kind::kReduceScatter: {
        const std::vector<T> result = reduced(0, count * ranks);
        for (std::size_t r = 0; r < ranks; ++r)
          std::copy_n(result.data() + r * count, count, to(r));
        return;
      }
      case NcclCall::Kind::kAllGather: {
        std::vector<T> result;
        for (std::size_t r = 0; r < ranks; ++r)
          result.insert(result.end(), from(r), from(r) + count);
        for (std::size_t r = 0; r < ranks; ++r) std::copy(result.begin(), result.end(), to(r));
        return;
      }
      case NcclCall::Kind::kReduce: {
        const std::vector<T> result = reduced(0, count);
        std::copy(result.begin(), result.end(), to(std::size_t(first.peer)));
        return;
      }
      case NcclCall::Kind::kBroadcast: {
        const std::vector<T> result(from(std::size_t(first.peer)),
                                    from(std::size_t(first.peer)) + count);
        for (std::size_t r = 0; r < ranks; ++r) std::copy(result.begin(), result.end(), to(r));
        return;
      }
      case NcclCall::Kind::kSend:
      case NcclCall::Kind::kReceive:
        return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Group> groups_;
  std::list<Comm> comms_;
  std::map<GpuCalls::UniqueId, Group*> by_id_;
  std::map<std::pair<Group*, std::int64_t>, Group*> split_callers_;
  std::map<std::tuple<Group*, std::int64_t, int>, Group*> by_color_;
};

class FakeGpu {
 public:
  explicit FakeGpu(FakeNccl& nccl) : nccl_(nccl) {}

  // From its `after`-th call on, that call of the table fails so.
  void FailAt(std::string call, std::string message, int after = 0) {
    failing_ = std::move(call);
    message_ = std::move(message);
    after_ = after;
  }
  // NCCL finds an error by itself, once so many collectives or messages were called.
  void FailByItself(std::string message, int after) {
    own_error_ = std::move(message);
    own_error_after_ = after;
  }
  int devices = 1;

  // A library of attention, whose calls are in the table if it is there; it computes what the
  // kernels do, times `factor`, in what they compute in.
  struct Attention {
    bool is_there = false;
    std::string missing, refusal, failure;  // what its calls say
    double factor = 1;                      // 0: it writes nothing
    int created = 0, prepared = 0, run = 0;
  } attention;

  GpuCalls Calls() {
    using Status = GpuCalls::Status;
    using Handle = GpuCalls::Handle;
    GpuCalls calls;
    calls.device_count = [this](int& count) {
      count = devices;
      return Injected("cudaGetDeviceCount");
    };
    calls.device_name = [this](int, std::string& name) {
      name = "Fake GPU";
      return Injected("cudaGetDeviceProperties");
    };
    calls.set_device = [this](int) { return Injected("cudaSetDevice"); };
    calls.allocate = [this](void*& data, std::int64_t bytes) -> Status {
      if (Status status = Injected("cudaMalloc"); !status.empty()) return status;
      data = ::operator new(std::size_t(bytes));
      std::memset(data, 0xff, std::size_t(bytes));
      ++chunks;
      return {};
    };
    calls.release = [this](void* data) -> Status {
      ::operator delete(data);
      --chunks;
      return {};
    };
    calls.copy_in = [this](void* to, const void* from, std::int64_t bytes, Handle stream) {
      const auto* first = static_cast<const std::byte*>(from);
      Of(stream).Put([to, copy = std::vector<std::byte>(first, first + bytes)] {
        std::memcpy(to, copy.data(), copy.size());
      });
      return Injected("cudaMemcpyAsync");
    };
    calls.copy_out = [this](void* to, const void* from, std::int64_t bytes, Handle stream) {
      if (!Of(stream).IsIdleSoon()) return Status("the stream is not idle");
      std::memcpy(to, from, std::size_t(bytes));
      return Injected("cudaMemcpyAsync");
    };
    calls.stream_create = [this](Handle& stream) {
      stream = &streams_.emplace_back();
      return Injected("cudaStreamCreate");
    };
    calls.stream_destroy = [this](Handle stream) -> Status {
      streams_.remove_if([&](const Stream& one) { return &one == stream; });
      return {};
    };
    calls.event_create = [this](Handle& event) {
      event = &events_.emplace_back();
      return Injected("cudaEventCreate");
    };
    calls.event_destroy = [](Handle) -> Status { return {}; };
    calls.event_record = [this](Handle event, Handle stream) {
      Reached* reached = &reached_.emplace_back();
      static_cast<Event*>(event)->reached = reached;
      Of(stream).Put([reached] { reached->Set(); });
      return Injected("cudaEventRecord");
    };
    calls.stream_wait = [this](Handle stream, Handle event) {
      Reached* reached = static_cast<Event*>(event)->reached;
      Stream* waiting = &Of(stream);
      waiting->Put([reached, waiting] { reached->Wait(*waiting); });
      return Injected("cudaStreamWaitEvent");
    };
    calls.event_query = [this](Handle event, bool& done) {
      done = static_cast<Event*>(event)->reached->is();
      return Injected("cudaEventQuery");
    };
    calls.event_elapsed = [](Handle start, Handle end, double& seconds) -> Status {
      const auto time = [](Handle event) { return static_cast<Event*>(event)->reached->time(); };
      seconds = std::chrono::duration<double>(time(end) - time(start)).count();
      return {};
    };
    calls.products_create = [this](Handle& products) {
      products = this;
      return Injected("cublasLtCreate");
    };
    calls.products_destroy = [](Handle) -> Status { return {}; };
    calls.launch = [this](const Operation& operation, ElementType type, Handle, Handle stream) {
      if (!RunsHere(type)) return Status("no such kernel");
      Of(stream).Put([operation, type] {
        type == ElementType::kFp64 ? ComputeOnCpu<double>(operation)
                                   : ComputeOnCpu<float>(operation);
      });
      return Injected("launch");
    };
    if (attention.is_there) AddAttention(calls);
    calls.unique_id = [this](GpuCalls::UniqueId& id) {
      id.fill(std::byte{7});
      return Injected("ncclGetUniqueId");
    };
    calls.comm_init = [this](Handle& comm, int ranks, const GpuCalls::UniqueId& id, int rank) {
      comm = nccl_.Join(id, ranks, rank);
      return Injected("ncclCommInitRank");
    };
    calls.comm_split = [this](Handle comm, int color, int key, Handle& part) {
      part = nccl_.Split(static_cast<FakeNccl::Comm*>(comm), color, key);
      return Injected("ncclCommSplit");
    };
    calls.comm_state = [this](Handle comm, bool& ready) {
      ready = nccl_.Ready(static_cast<FakeNccl::Comm*>(comm));
      return communicated_ > own_error_after_ ? own_error_ : "";
    };
    calls.comm_destroy = [](Handle) -> Status { return {}; };
    calls.comm_abort = [this](Handle comm) -> Status {
      nccl_.Abort(static_cast<FakeNccl::Comm*>(comm));
      return {};
    };
    calls.group_start = [this] {
      in_group_ = true;
      return Injected("ncclGroupStart");
    };
    calls.group_end = [this] {
      in_group_ = false;
      Submit();
      return Injected("ncclGroupEnd");
    };
    calls.communicate = [this](const NcclCall& call, ElementType type, Handle comm, Handle stream) {
      ++communicated_;
      group_.push_back(call);
      group_comm_ = static_cast<FakeNccl::Comm*>(comm);
      group_stream_ = &Of(stream);
      group_type_ = type;
      if (!in_group_) Submit();
      return Injected("communicate");
    };
    return calls;
  }

  int chunks = 0;  // that are not given back

 private:
  class Stream {
   public:
    Stream() : thread_([this] { Work(); }) {}
    ~Stream() {
      {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
      }
      thread_.join();
    }
    void Put(std::function<void()> work) {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
      changed_.notify_all();
    }
    // What an event has been recorded by may still be about to end.
    bool IsIdleSoon() {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (std::chrono::steady_clock::now() < end) {
        {
          const std::lock_guard lock(mutex_);
          if (work_.empty()) return true;
        }
        std::this_thread::yield();
      }
      return false;
    }
    // Nothing is done any more, and no event reached.
    void Die() { dead_ = true; }
    bool stopped() const { return stopped_; }

   private:
    void Work() {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [&] { return stopped_ || !work_.empty(); });
        if (stopped_) return;
        const std::function<void()>& work = work_.front();
        lock.unlock();
        if (!dead_) work();
        lock.lock();
        work_.pop_front();
      }
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> work_;  // the first is being done
    std::atomic<bool> stopped_ = false, dead_ = false;
    std::thread thread_;
  };

  // One recording of an event.
  class Reached {
   public:
    void Set() {
      const std::lock_guard lock(mutex_);
      time_ = std::chrono::steady_clock::now();
      is_ = true;
      changed_.notify_all();
    }
    void Wait(const Stream& stream) {
      std::unique_lock lock(mutex_);
      while (!is_ && !stream.stopped()) changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    bool is() {
      const std::lock_guard lock(mutex_);
      return is_;
    }
    std::chrono::steady_clock::time_point time() {
      const std::lock_guard lock(mutex_);
      return time_;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_ = false;
    std::chrono::steady_clock::time_point time_;
  };
  struct Event {
    Reached* reached = nullptr;
  };

  void AddAttention(GpuCalls& calls) {
    static constexpr std::int64_t kWorkspace = 1000;
    calls.attention_takes = [](const AttentionLayout& layout, ElementType type) {
      return RunsHere(type) && layout.window == 0;
    };
    calls.attention_create = [this](GpuCalls::Handle& made, std::string& name) {
      ++attention.created;
      made = this;
      name = "Fake 1.0";
      return attention.missing;
    };
    calls.attention_destroy = [this](GpuCalls::Handle) -> GpuCalls::Status {
      --attention.created;
      return {};
    };
    calls.attention_prepare = [this](GpuCalls::Handle, const AttentionCall&,
                                     std::int64_t& workspace) {
      ++attention.prepared;
      workspace = kWorkspace;
      return attention.refusal;
    };
    calls.attention_run = [this](GpuCalls::Handle, const AttentionCall& call, void* workspace,
                                 GpuCalls::Handle stream) {
      ++attention.run;
      if (!attention.failure.empty()) return attention.failure;
      Of(stream).Put([call, workspace, factor = attention.factor] {
        std::memset(workspace, 0xff, kWorkspace);
        const int width = std::visit([](const auto& op) { return op.q.width; }, call);
        width == 8 ? Attend<double>(call, factor) : Attend<float>(call, factor);
      });
      return GpuCalls::Status();
    };
  }

  template <class T>
  static void Attend(const AttentionCall& call, double factor) {
    if (factor == 0) return;
    const auto scale = [&](View view) {
      T* values = reinterpret_cast<T*>(view.data);
      for (std::int64_t i = 0; i < view.size(); ++i) values[i] *= T(factor);
    };
    // A device's memory is the host's here.
    RunThreads(1, [&](Communicator& communicator) {
      CpuBackend<T> cpu(communicator);
      if (const auto* op = std::get_if<compute::Attention>(&call)) {
        cpu.Attend(*op);
        scale(op->output);
      } else {
        const auto& gradient = std::get<compute::AttentionBackward>(call);
        cpu.AttendBackward(gradient);
        for (const View& view : {gradient.dq, gradient.dk, gradient.dv}) scale(view);
      }
    });
  }

  static bool RunsHere(ElementType type) { return type != ElementType::kBf16; }
  static Stream& Of(GpuCalls::Handle stream) { return *static_cast<Stream*>(stream); }

  GpuCalls::Status Injected(std::string_view call) {
    return call == failing_ && after_-- <= 0 ? message_ : "";
  }

  void Submit() {
    if (group_.empty()) return;
    group_stream_->Put([this, calls = std::move(group_), comm = group_comm_, type = group_type_,
                        stream = group_stream_] {
      if (!nccl_.Carry(comm, calls, type)) stream->Die();
    });
    group_.clear();
  }

  FakeNccl& nccl_;
  std::string failing_, message_;
  int after_ = 0;
  std::string own_error_;
  int own_error_after_ = 0, communicated_ = 0;
  bool in_group_ = false;
  std::vector<NcclCall> group_;
  FakeNccl::Comm* group_comm_ = nullptr;
  Stream* group_stream_ = nullptr;
  ElementType group_type_ = ElementType::kFp64;
  std::list<Event> events_;
  std::list<Reached> reached_;
  std::list<Stream> streams_;  // the last, so that they end before what they use
};

}  // namespace millwright
