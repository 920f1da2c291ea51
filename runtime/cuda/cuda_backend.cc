// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <thread>

#include "core/check.h"
#include "runtime/fp8.h"

namespace millwright {
namespace {

// CUDA's queue of launches is longer (1024 on today's GPUs), and a launch into a full one waits in
// the driver, where nobody looks for errors.
constexpr int kOperationsPerPace = 128;
constexpr std::size_t kMostPaces = 3;

// To the nearest, ties to even.
std::uint16_t ToBf16(double value) {
  auto bits = std::bit_cast<std::uint32_t>(float(value));
  if ((bits & 0x7fffffff) > 0x7f800000)
    return std::uint16_t((bits >> 16) | 0x40);  // a NaN stays one
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::uint16_t(bits >> 16);
}
double FromBf16(std::uint16_t bits) {
  return double(std::bit_cast<float>(std::uint32_t{bits} << 16));
}

template <class T>
std::vector<std::byte> AsBytes(std::span<const double> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = T(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::function<void(const std::string&)> WarnOf(const GpuOptions& options, int rank) {
  if (rank != 0) return {};
  if (options.warn) return options.warn;
  return [](const std::string& line) { fmt::print(stderr, "millwright: warning: {}\n", line); };
}

}  // namespace

CudaBackend::CudaBackend(const GpuCalls& calls, const std::vector<CommunicatorSplit>& splits,
                         Communicator& communicator, const GpuOptions& options)
    : Backend(communicator.rank(), communicator.size()),
      calls_(calls),
      communicator_(communicator),
      options_(options),
      everyone_{.first = 0, .stride = 1, .ranks = communicator.size()},
      arena_(
          [this](std::int64_t bytes) {
            void* data = nullptr;
            const GpuCalls::Status status = calls_.allocate(data, bytes);
            if (!status.empty()) {
              Fail(fmt::format("cudaMalloc of {} bytes beside {} bytes for tensors: {}", bytes,
                               arena_.chunk_bytes(), status));
            }
            chunks_.push_back(data);
            return static_cast<std::byte*>(data);
          },
          options.arena_chunk),
      attention_(calls, *this, options.type, WarnOf(options, communicator.rank())) {
  try {
    Start(splits);
  } catch (...) {
    failed_ = true;
    Stop();
    throw;
  }
}

CudaBackend::~CudaBackend() { Stop(); }

void CudaBackend::Start(const std::vector<CommunicatorSplit>& splits) {
  int count = 0;
  Check("cudaGetDeviceCount", calls_.device_count(count));
  if (count == 0) Fail("this machine has no GPU");
  if (options_.local_rank >= count) {
    Fail(fmt::format("ranks need a GPU each: of this machine's, from 0 on, there is none {}",
                     options_.local_rank));
  }
  Check("cudaSetDevice", calls_.set_device(options_.local_rank));
  Check("cudaStreamCreate", calls_.stream_create(main_));
  Check("cudaStreamCreate", calls_.stream_create(beside_));
  stream_ = main_;
  Check("cublasLtCreate", calls_.products_create(products_));
  if (ranks() > 1) StartNccl(splits);
}

void CudaBackend::StartNccl(const std::vector<CommunicatorSplit>& splits) {
  constexpr int kTag = (1 << 30) - 1;  // of no other message
  GpuCalls::UniqueId id{};
  if (rank() == 0) {
    Check("ncclGetUniqueId", calls_.unique_id(id));
    for (int other = 1; other < ranks(); ++other) communicator_.Send(other, kTag, id);
  } else {
    communicator_.Receive(0, kTag, id);
  }
  Check("ncclCommInitRank", calls_.comm_init(world_, ranks(), id, rank()));
  WaitUntilReady("ncclCommInitRank", world_);
  for (const CommunicatorSplit& split : splits) {
    Handle comm = nullptr;
    Check("ncclCommSplit", calls_.comm_split(world_, split.color, split.key, comm));
    WaitUntilReady("ncclCommSplit", world_);
    if (split.color < 0) continue;
    WaitUntilReady("ncclCommSplit", comm);
    if (split.channel) {
      Channel& channel = channels_[{split.group.member(0), split.group.member(1)}];
      channel.comm = comm;
      Check("cudaStreamCreate", calls_.stream_create(channel.stream));
    } else {
      comms_[split.group] = comm;
    }
  }
}

// What goes wrong here can no longer be told to anybody.
void CudaBackend::Stop() noexcept {
  // What is thrown through here leaves collectives behind that nobody will complete.
  failed_ = failed_ || std::uncaught_exceptions() > 0;
  const auto end = [&](Handle comm) {
    if (comm != nullptr) failed_ ? calls_.comm_abort(comm) : calls_.comm_destroy(comm);
  };
  for (auto& [ranks, channel] : channels_) end(channel.comm);
  for (auto& [group, comm] : comms_) end(comm);
  end(world_);
  for (Sent& sent : sent_) free_events_.push_back(sent.event);
  sent_.clear();
  for (auto& [ranks, channel] : channels_) {
    if (channel.stream != nullptr) calls_.stream_destroy(channel.stream);
  }
  channels_.clear();
  for (Handle stream : {main_, beside_}) {
    if (stream != nullptr) calls_.stream_destroy(stream);
  }
  for (const auto& [fork, event] : forks_) free_events_.push_back(event);
  if (products_ != nullptr) calls_.products_destroy(products_);
  free_events_.insert(free_events_.end(), marks_.begin(), marks_.end());
  free_events_.insert(free_events_.end(), pace_.begin(), pace_.end());
  for (Handle event : free_events_) calls_.event_destroy(event);
  for (void* chunk : chunks_) calls_.release(chunk);
}

void CudaBackend::Check(std::string_view call, const GpuCalls::Status& status) {
  if (!status.empty()) Fail(fmt::format("{}: {}", call, status));
}

void CudaBackend::Fail(const std::string& what) {
  failed_ = true;
  throw GpuError(ranks() == 1 ? what : fmt::format("rank {}: {}", rank(), what));
}

template <class Done>
void CudaBackend::Poll(const Done& done, std::string_view waits_for) {
  using Clock = std::chrono::steady_clock;
  using Micros = std::chrono::microseconds;
  const auto start = Clock::now();
  Micros pause{0};
  while (!done()) {
    bool ready = false;
    if (world_ != nullptr) {
      Check("ncclCommGetAsyncError", calls_.comm_state(world_, ready));
      for (const auto& [group, comm] : comms_) {
        Check("ncclCommGetAsyncError", calls_.comm_state(comm, ready));
      }
      for (const auto& [ranks, channel] : channels_) {
        Check("ncclCommGetAsyncError", calls_.comm_state(channel.comm, ready));
      }
    }
    try {
      communicator_.ThrowIfFailed();
    } catch (...) {
      failed_ = true;
      throw;
    }
    const std::chrono::duration<double> waited = Clock::now() - start;
    if (waited.count() > options_.timeout.value) {
      Fail(fmt::format("nothing was done for {:g} s: {}", options_.timeout.value, waits_for));
    }
    // First without sleeping, for what is nearly done.
    if (waited > Micros(50)) {
      pause = std::min(pause + Micros(20), Micros(1000));
      std::this_thread::sleep_for(pause);
    }
  }
}

void CudaBackend::WaitUntilReady(std::string_view call, Handle comm) {
  Poll(
      [&] {
        bool ready = false;
        Check(call, calls_.comm_state(comm, ready));
        return ready;
      },
      "a communicator is not made, another rank may have ended");
}

void CudaBackend::Wait(Handle event) {
  Poll(
      [&] {
        bool done = false;
        Check("cudaEventQuery", calls_.event_query(event, done));
        return done;
      },
      ranks() > 1 ? "a collective or a message may wait for a rank that has ended"
                  : "the GPU may hang");
}

auto CudaBackend::TakeEvent() -> Handle {
  if (free_events_.empty()) {
    Handle event = nullptr;
    Check("cudaEventCreate", calls_.event_create(event));
    return event;
  }
  const Handle event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void CudaBackend::Order(Handle earlier, Handle later) {
  const Handle event = TakeEvent();
  Check("cudaEventRecord", calls_.event_record(event, earlier));
  Check("cudaStreamWaitEvent", calls_.stream_wait(later, event));
  GiveEvent(event);  // the wait is for what was recorded when it was called
}

void CudaBackend::KeepPace() {
  if (++since_pace_ < kOperationsPerPace) return;
  since_pace_ = 0;
  pace_.push_back(TakeEvent());
  Check("cudaEventRecord", calls_.event_record(pace_.back(), stream_));
  if (pace_.size() <= kMostPaces) return;
  Wait(pace_.front());
  GiveEvent(pace_.front());
  pace_.pop_front();
}

int CudaBackend::WidthOf(Element element) const {
  if (element == Element::kIndex) return 4;
  if (IsFp8(element)) return 1;
  switch (options_.type) {
    case ElementType::kFp64:
      return 8;
    case ElementType::kFp32:
      return 4;
    case ElementType::kBf16:
      return element == Element::kValue ? 2 : 4;
  }
  return 0;
}

void CudaBackend::Run(const Operation& operation) {
  Check("launch", calls_.launch(operation, options_.type, products_, stream_));
  KeepPace();
}

bool CudaBackend::AttendByLibrary(const AttentionCall& call) {
  GpuCalls::Status problem;
  const bool done = attention_.Run(call, stream_, problem);
  if (!problem.empty()) Fail(fmt::format("attention by {}: {}", attention_.Name(), problem));
  if (done) KeepPace();
  return done;
}

void CudaBackend::Attend(const compute::Attention& attention) {
  if (!AttendByLibrary(attention)) Backend::Attend(attention);
}

void CudaBackend::AttendBackward(const compute::AttentionBackward& attention) {
  if (!AttendByLibrary(attention)) Backend::AttendBackward(attention);
}

std::string CudaBackend::AttentionBy() const { return attention_.Name(); }

void CudaBackend::Upload(std::span<const double> from, View to) {
  MILLWRIGHT_CHECK(std::int64_t(from.size()) == to.size());
  if (from.empty()) return;
  std::vector<std::byte> bytes;
  if (to.width == 8) {
    bytes = AsBytes<double>(from);
  } else if (to.width == 4) {
    bytes = AsBytes<float>(from);
  } else if (to.width == 1) {
    const Fp8Format format = FormatOf(to.element);
    for (const double value : from) bytes.push_back(std::byte(ToFp8(format, value)));
  } else {
    bytes.resize(from.size() * 2);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::uint16_t value = ToBf16(from[i]);
      std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
  }
  Check("cudaMemcpyAsync", calls_.copy_in(to.data, bytes.data(), to.bytes(), stream_));
}

void CudaBackend::Upload(std::span<const std::int32_t> from, View to) {
  MILLWRIGHT_CHECK(std::int64_t(from.size()) == to.size() && to.element == Element::kIndex);
  if (from.empty()) return;
  Check("cudaMemcpyAsync", calls_.copy_in(to.data, from.data(), to.bytes(), stream_));
}

std::vector<double> CudaBackend::Download(ConstView from) {
  Synchronize();
  std::vector<std::byte> bytes(std::size_t(from.bytes()));
  if (from.empty()) return {};
  Check("cudaMemcpyAsync", calls_.copy_out(bytes.data(), from.data, from.bytes(), stream_));
  std::vector<double> values;
  values.reserve(std::size_t(from.size()));
  for (std::size_t at = 0; at < bytes.size(); at += std::size_t(from.width)) {
    if (from.element == Element::kIndex) {
      std::int32_t value = 0;
      std::memcpy(&value, bytes.data() + at, 4);
      values.push_back(value);
    } else if (from.width == 8) {
      double value = 0;
      std::memcpy(&value, bytes.data() + at, 8);
      values.push_back(value);
    } else if (from.width == 4) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, 4);
      values.push_back(double(value));
    } else if (from.width == 1) {
      values.push_back(FromFp8(FormatOf(from.element), std::to_integer<std::uint8_t>(bytes[at])));
    } else {
      std::uint16_t value = 0;
      std::memcpy(&value, bytes.data() + at, 2);
      values.push_back(FromBf16(value));
    }
  }
  return values;
}

void CudaBackend::StartFork() {
  MILLWRIGHT_CHECK(stream_ == main_);
  Order(main_, beside_);
  stream_ = beside_;
}

auto CudaBackend::Rejoin() -> Fork {
  MILLWRIGHT_CHECK(stream_ == beside_);
  const Handle event = TakeEvent();
  Check("cudaEventRecord", calls_.event_record(event, beside_));
  stream_ = main_;
  forks_[++last_fork_] = event;
  return last_fork_;
}

// Forks are one after the other: who joins one has joined those before it.
void CudaBackend::Join(Fork fork) {
  const auto end = forks_.upper_bound(fork);
  if (end == forks_.begin()) return;
  Check("cudaStreamWaitEvent", calls_.stream_wait(main_, std::prev(end)->second));
  for (auto joined = forks_.begin(); joined != end; ++joined) GiveEvent(joined->second);
  forks_.erase(forks_.begin(), end);
}

void CudaBackend::Synchronize() {
  Join(last_fork_);
  const Handle event = TakeEvent();
  Check("cudaEventRecord", calls_.event_record(event, stream_));
  Wait(event);
  GiveEvent(event);
  for (Handle done : pace_) GiveEvent(done);
  pace_.clear();
  ForgetSent();
}

auto CudaBackend::MarkTime() -> Mark {
  marks_.push_back(TakeEvent());
  Check("cudaEventRecord", calls_.event_record(marks_.back(), stream_));
  return marks_.size() - 1;
}

Seconds CudaBackend::Between(Mark start, Mark end) const {
  double seconds = 0;
  const GpuCalls::Status status = calls_.event_elapsed(marks_[start], marks_[end], seconds);
  if (!status.empty()) throw GpuError(fmt::format("cudaEventElapsedTime: {}", status));
  return Seconds(seconds);
}

void CudaBackend::ForgetMarks() {
  for (Handle mark : marks_) GiveEvent(mark);
  marks_.clear();
}

// --- Communication

auto CudaBackend::CommOf(const RankGroup& group) -> Handle {
  if (group == everyone_) return world_;
  const auto found = comms_.find(group);
  MILLWRIGHT_CHECK(found != comms_.end());
  return found->second;
}

auto CudaBackend::ChannelOf(int from, int to) -> Channel& {
  const auto found = channels_.find({from, to});
  MILLWRIGHT_CHECK(found != channels_.end());
  return found->second;
}

void CudaBackend::Communicate(const NcclCall& call, Handle comm, Handle stream) {
  const auto name = [&] {
    switch (call.kind) {
      case NcclCall::Kind::kAllReduce:
        return "ncclAllReduce";
      case NcclCall::Kind::kReduceScatter:
        return "ncclReduceScatter";
      case NcclCall::Kind::kAllGather:
        return "ncclAllGather";
      case NcclCall::Kind::kBroadcast:
        return "ncclBroadcast";
      case NcclCall::Kind::kReduce:
        return "ncclReduce";
      case NcclCall::Kind::kSend:
        return "ncclSend";
      case NcclCall::Kind::kReceive:
        return "ncclRecv";
    }
    return "";
  };
  Check(name(), calls_.communicate(call, options_.type, comm, stream));
}

void CudaBackend::Grouped(const std::vector<NcclCall>& calls, Handle comm, Handle stream) {
  // A communicator's calls are one after the other, whatever streams they are on.
  Handle& last = used_on_[comm];
  if (last != nullptr && last != stream) Order(last, stream);
  last = stream;
  if (calls.size() > 1) Check("ncclGroupStart", calls_.group_start());
  for (const NcclCall& call : calls) Communicate(call, comm, stream);
  if (calls.size() > 1) Check("ncclGroupEnd", calls_.group_end());
  WaitUntilReady("ncclCommGetAsyncError", comm);
}

// Parts of one length are NCCL's own case; others are as many reductions or broadcasts.
std::int64_t CudaBackend::Carry(CollectiveKind kind, const RankGroup& group, View data,
                                Reduction reduction) {
  const std::int64_t n = group.ranks, elements = data.size();
  const auto part = [&](int member) {
    const auto [first, last] = PartOf(group, group.member(member), elements);
    return data.Part(first, last - first);
  };
  const auto one = [&](NcclCall::Kind one_kind, View from, View to, std::int64_t count, int root) {
    return NcclCall{.kind = one_kind,
                    .from = from.data,
                    .to = to.data,
                    .count = count,
                    .element = data.element,
                    .reduction = reduction,
                    .peer = root};
  };
  const bool even = elements % n == 0;
  const View own = part(IndexIn(group, rank()));
  std::vector<NcclCall> calls;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      calls.push_back(one(NcclCall::Kind::kAllReduce, data, data, elements, 0));
      break;
    case CollectiveKind::kReduceScatter:
      if (even) {
        calls.push_back(one(NcclCall::Kind::kReduceScatter, data, own, own.size(), 0));
        break;
      }
      for (int member = 0; member < n; ++member) {
        calls.push_back(
            one(NcclCall::Kind::kReduce, part(member), part(member), part(member).size(), member));
      }
      break;
    case CollectiveKind::kAllGather:
      if (even) {
        calls.push_back(one(NcclCall::Kind::kAllGather, own, data, own.size(), 0));
        break;
      }
      for (int member = 0; member < n; ++member) {
        calls.push_back(one(NcclCall::Kind::kBroadcast, part(member), part(member),
                            part(member).size(), member));
      }
      break;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBroadcast:
      MILLWRIGHT_CHECK(false);
  }
  Grouped(calls, CommOf(group), stream_);
  KeepPace();
  // On the ring a rank sends all parts but its own when they are added up, and all but the next
  // rank's when they are gathered.
  const std::int64_t next = part((IndexIn(group, rank()) + 1) % int(n)).size();
  const std::int64_t added = kind == CollectiveKind::kAllGather ? 0 : elements - own.size();
  const std::int64_t gathered = kind == CollectiveKind::kReduceScatter ? 0 : elements - next;
  return (added + gathered) * data.width;
}

std::int64_t CudaBackend::CarryAllToAll(const RankGroup& group, ConstView out, View in) {
  const std::int64_t block = out.size() / group.ranks;
  std::vector<NcclCall> calls;
  for (int member = 0; member < group.ranks; ++member) {
    calls.push_back({.kind = NcclCall::Kind::kSend,
                     .from = out.Part(member * block, block).data,
                     .count = block,
                     .element = out.element,
                     .peer = member});
    calls.push_back({.kind = NcclCall::Kind::kReceive,
                     .to = in.Part(member * block, block).data,
                     .count = block,
                     .element = in.element,
                     .peer = member});
  }
  Grouped(calls, CommOf(group), stream_);
  KeepPace();
  return block * (group.ranks - 1) * out.width;
}

void CudaBackend::CarryBlocks(const RankGroup& group, std::span<const ConstView> out,
                              std::span<const View> in) {
  std::vector<NcclCall> calls;
  for (int member = 0; member < group.ranks; ++member) {
    if (group.member(member) == rank()) continue;
    const ConstView& to = out[std::size_t(member)];
    const View& from = in[std::size_t(member)];
    if (!to.empty()) {
      calls.push_back({.kind = NcclCall::Kind::kSend,
                       .from = to.data,
                       .count = to.size(),
                       .element = to.element,
                       .peer = member});
    }
    if (!from.empty()) {
      calls.push_back({.kind = NcclCall::Kind::kReceive,
                       .to = from.data,
                       .count = from.size(),
                       .element = from.element,
                       .peer = member});
    }
  }
  if (calls.empty()) return;
  Grouped(calls, CommOf(group), stream_);
  KeepPace();
}

void CudaBackend::CarryShift(const RankGroup& group, ConstView out, View in) {
  const int n = group.ranks, own = IndexIn(group, rank());
  Grouped({{.kind = NcclCall::Kind::kSend,
            .from = out.data,
            .count = out.size(),
            .element = out.element,
            .peer = (own + 1) % n},
           {.kind = NcclCall::Kind::kReceive,
            .to = in.data,
            .count = in.size(),
            .element = in.element,
            .peer = (own + n - 1) % n}},
          CommOf(group), stream_);
  KeepPace();
}

void CudaBackend::CarrySend(int to, int, Tensor message) {
  ForgetSent();
  const Channel& channel = ChannelOf(rank(), to);
  Order(stream_, channel.stream);
  const ConstView view = message;
  Grouped({{.kind = NcclCall::Kind::kSend,
            .from = view.data,
            .count = view.size(),
            .element = view.element,
            .peer = 1}},
          channel.comm, channel.stream);
  const Handle event = TakeEvent();
  Check("cudaEventRecord", calls_.event_record(event, channel.stream));
  sent_.push_back({event, std::move(message)});
}

void CudaBackend::ForgetSent() {
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    bool done = false;
    Check("cudaEventQuery", calls_.event_query(sent->event, done));
    if (done) GiveEvent(sent->event);
    sent = done ? sent_.erase(sent) : std::next(sent);
  }
}

void CudaBackend::Expect(int from, std::vector<int> tags) {
  if (tags.empty()) return;
  Channel& channel = ChannelOf(from, rank());
  MILLWRIGHT_CHECK(channel.expected.empty() && channel.early.empty());
  channel.expected.assign(tags.begin(), tags.end());
}

void CudaBackend::ReceiveNext(Channel& channel, View to) {
  // What this memory was before is done with, then.
  Order(stream_, channel.stream);
  Grouped({{.kind = NcclCall::Kind::kReceive,
            .to = to.data,
            .count = to.size(),
            .element = to.element,
            .peer = 0}},
          channel.comm, channel.stream);
  Order(channel.stream, stream_);
}

void CudaBackend::Receive(int from, int tag, View message) {
  Channel& channel = ChannelOf(from, rank());
  if (const auto early = channel.early.find(tag); early != channel.early.end()) {
    Run(compute::Copy{.from = early->second.front(), .to = message});
    early->second.pop_front();
    if (early->second.empty()) channel.early.erase(early);
    return;
  }
  while (!channel.expected.empty() && channel.expected.front() != tag) {
    Tensor early(*this, message.rows, message.cols, message.element);
    ReceiveNext(channel, early);
    channel.early[channel.expected.front()].push_back(std::move(early));
    channel.expected.pop_front();
  }
  if (!channel.expected.empty()) channel.expected.pop_front();
  ReceiveNext(channel, message);
}

std::byte* CudaBackend::Allocate(std::int64_t bytes) { return arena_.Allocate(bytes); }
void CudaBackend::Free(std::byte* data, std::int64_t) noexcept { arena_.Free(data); }

}  // namespace millwright
