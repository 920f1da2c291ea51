// SPDX-License-Identifier: Apache-2.0
#include "runtime/tcp_communicator.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/config_io.h"

namespace millwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kGreeting = 0x6d77'7263'0000'0001;  // "mwrc", and the version
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 34;
constexpr int kFarewell = -1;  // instead of a receiver: the sender is done,
constexpr int kFailure = -2;   //   or a rank has failed, as the message says

struct Greeting {
  std::uint64_t greeting = kGreeting;
  std::int32_t rank = 0, ranks = 0;
};
struct Header {
  std::int32_t from = 0, to = 0, tag = 0, unused = 0;
  std::uint64_t bytes = 0;
};

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

  bool Write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes = bytes.subspan(std::size_t(n));
    }
    return true;
  }
  bool Read(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = recv(fd_, bytes.data(), bytes.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes = bytes.subspan(std::size_t(n));
    }
    return true;
  }
  // Whether there is something to read, or an end.
  bool Readable(Clock::time_point until) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    pollfd wanted{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&wanted, 1, int(std::max<std::int64_t>(left.count(), 0))) > 0;
  }
  void AtOnce() const {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

 private:
  int fd_;
};

template <class T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Sockets of all addresses that a name has, the first that `use` takes.
template <class Use>
Socket FirstSocket(const char* host, int port, bool passive, const Use& use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* addresses = nullptr;
  if (getaddrinfo(host, std::to_string(port).c_str(), &hints, &addresses) != 0) return Socket();
  Socket found;
  for (const addrinfo* one = addresses; one != nullptr && found.fd() < 0; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    if (socket.fd() >= 0 && use(socket.fd(), one)) found = std::move(socket);
  }
  freeaddrinfo(addresses);
  return found;
}

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(const MeetingPlace& place, Seconds timeout) : place_(place) {
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(timeout.value));
    peers_.resize(place.rank == 0 ? std::size_t(place.ranks) : 1);
    place.rank == 0 ? Gather(until) : Join(until);
    for (std::size_t i = place.rank == 0 ? 1 : 0; i < peers_.size(); ++i) {
      peers_[i].reader = std::thread([this, i] { ReadFrom(int(i)); });
    }
  }

  // Where this is part of an error, the others see the connection end.
  ~TcpCommunicator() override {
    const bool failed = std::uncaught_exceptions() > 0 || WhatFailed();
    if (!failed) {
      if (place_.rank != 0) Write(peers_[0], {.from = place_.rank, .to = kFarewell}, {});
      // Rank 0 passes messages on until nobody has any.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return failure_ || std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
                 return peer.farewell || peer.socket.fd() < 0;
               });
      });
    }
    if (place_.rank == 0) {
      for (Peer& peer : peers_) {
        if (peer.socket.fd() >= 0 && !failed) Write(peer, {.to = kFarewell}, {});
      }
    }
    for (Peer& peer : peers_) {
      if (peer.socket.fd() >= 0) shutdown(peer.socket.fd(), SHUT_RDWR);
      if (peer.reader.joinable()) peer.reader.join();
    }
  }
  TcpCommunicator(const TcpCommunicator&) = delete;
  TcpCommunicator& operator=(const TcpCommunicator&) = delete;

  int rank() const override { return place_.rank; }
  int size() const override { return place_.ranks; }

  void Send(int to, int tag, std::span<const std::byte> message) override {
    ThrowIfFailed();
    const Header header{
        .from = place_.rank, .to = to, .tag = tag, .bytes = std::uint64_t(message.size())};
    MILLWRIGHT_CHECK(header.bytes <= kMostBytes);
    if (to == place_.rank) {
      Keep(header, {message.begin(), message.end()});
    } else if (!Write(peers_[place_.rank == 0 ? std::size_t(to) : 0], header, message)) {
      ThrowIfFailed();
      throw RankFailure(fmt::format("the connection to rank {} has ended", to));
    }
  }

  void Receive(int from, int tag, std::span<std::byte> message) override {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, tag}];
    changed_.wait(lock, [&] { return !box.empty() || failure_; });
    if (box.empty()) throw RankFailure(*failure_);
    const std::vector<std::byte> taken = std::move(box.front());
    box.pop_front();
    MILLWRIGHT_CHECK(taken.size() == message.size());
    std::copy(taken.begin(), taken.end(), message.begin());
  }

  void ThrowIfFailed() override {
    if (const std::optional<std::string> failure = WhatFailed()) throw RankFailure(*failure);
  }

 private:
  // Of rank 0 each other rank, of others rank 0.
  struct Peer {
    Socket socket;
    std::mutex writing;
    std::thread reader;
    bool farewell = false;
    Peer() = default;
    Peer(Peer&& other) noexcept : socket(std::move(other.socket)) {}
  };

  [[noreturn]] void NotThere(std::string_view what) const {
    throw ConfigError(
        fmt::format("{} at {}:{} (MASTER_ADDR, MASTER_PORT)", what, place_.address, place_.port));
  }

  void Gather(Clock::time_point until) {
    const Socket listening =
        FirstSocket(nullptr, place_.port, true, [](int fd, const addrinfo* address) {
          const int on = 1, off = 0;
          setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
          if (address->ai_family == AF_INET6) {
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
          }
          return bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1024) == 0;
        });
    if (listening.fd() < 0) {
      NotThere(fmt::format("rank 0 cannot listen ({})", std::strerror(errno)));
    }
    for (int missing = place_.ranks - 1; missing > 0;) {
      if (!listening.Readable(until)) {
        NotThere(fmt::format("{} of {} ranks did not come", missing, place_.ranks));
      }
      Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      Greeting greeting;
      // Whoever else connects is turned away, and is not waited for long.
      const auto soon = std::min(until, Clock::now() + std::chrono::seconds(5));
      if (socket.fd() < 0 || !socket.Readable(soon) || !socket.Read(BytesOf(greeting)) ||
          greeting.greeting != kGreeting) {
        continue;
      }
      if (greeting.ranks != place_.ranks || greeting.rank < 1 || greeting.rank >= place_.ranks ||
          peers_[std::size_t(greeting.rank)].socket.fd() >= 0) {
        throw ConfigError(
            fmt::format("rank {} of {} came where the ranks 1 to {} are expected once",
                        greeting.rank, greeting.ranks, place_.ranks - 1));
      }
      socket.AtOnce();
      peers_[std::size_t(greeting.rank)].socket = std::move(socket);
      --missing;
    }
  }

  void Join(Clock::time_point until) {
    while (true) {
      Socket socket = FirstSocket(place_.address.c_str(), place_.port, false,
                                  [](int fd, const addrinfo* address) {
                                    return connect(fd, address->ai_addr, address->ai_addrlen) == 0;
                                  });
      if (socket.fd() >= 0) {
        socket.AtOnce();
        const Greeting greeting{.rank = place_.rank, .ranks = place_.ranks};
        if (socket.Write(BytesOf(greeting))) {
          peers_[0].socket = std::move(socket);
          return;
        }
      }
      if (Clock::now() >= until) NotThere("rank 0 is not");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  bool Write(Peer& peer, const Header& header, std::span<const std::byte> message) {
    const std::lock_guard lock(peer.writing);
    return peer.socket.Write(BytesOf(header)) && peer.socket.Write(message);
  }

  void Keep(const Header& header, std::vector<std::byte> message) {
    const std::lock_guard lock(mutex_);
    boxes_[{header.from, header.tag}].push_back(std::move(message));
    changed_.notify_all();
  }

  std::optional<std::string> WhatFailed() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void ReadFrom(int index) {
    Peer& peer = peers_[std::size_t(index)];
    Header header;
    std::vector<std::byte> message;
    while (peer.socket.Read(BytesOf(header)) && header.bytes <= kMostBytes) {
      message.resize(header.bytes);
      if (!peer.socket.Read(message)) break;
      if (header.to == kFarewell) {
        const std::lock_guard lock(mutex_);
        peer.farewell = true;
        changed_.notify_all();
        return;
      }
      if (header.to == kFailure) {
        Fail({reinterpret_cast<const char*>(message.data()), message.size()});
        return;
      }
      if (header.to == place_.rank) {
        Keep(header, std::move(message));
        message = {};
      } else if (place_.rank == 0 && header.to > 0 && header.to < place_.ranks) {
        Write(peers_[std::size_t(header.to)], header, message);  // its own reader sees an end
      } else {
        break;
      }
    }
    Fail(fmt::format("rank {} has ended, and with it the run", index));
  }

  // Rank 0 tells the others.
  void Fail(const std::string& what) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = what;
      changed_.notify_all();
    }
    if (place_.rank != 0) return;
    for (Peer& peer : peers_) {
      if (peer.socket.fd() < 0) continue;
      Write(peer, {.to = kFailure, .bytes = what.size()}, std::as_bytes(std::span(what)));
    }
  }

  MeetingPlace place_;
  std::vector<Peer> peers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> boxes_;  // by sender and tag
  std::optional<std::string> failure_;
};

}  // namespace

std::optional<MeetingPlace> PlaceOfTorchrun(const std::function<const char*(const char*)>& get) {
  if (get("RANK") == nullptr || get("WORLD_SIZE") == nullptr) return std::nullopt;
  std::string problems;
  const auto complain = [&](const std::string& problem) {
    problems += (problems.empty() ? "" : "\n") + problem;
  };
  const auto number = [&](const char* name, int first, int last, const char* fallback) {
    const char* text = get(name) != nullptr ? get(name) : fallback;
    const std::string_view given = text == nullptr ? "" : text;
    int value = first;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error != std::errc() || end != given.data() + given.size() || value < first ||
        value > last) {
      complain(fmt::format("environment variable {}: expected an integer from {} to {}, got \"{}\"",
                           name, first, last, given));
      return first;
    }
    return value;
  };
  MeetingPlace place;
  place.ranks = number("WORLD_SIZE", 1, 1 << 20, nullptr);
  place.rank = number("RANK", 0, place.ranks - 1, nullptr);
  place.local_rank = number("LOCAL_RANK", 0, place.ranks - 1, "0");
  place.port = number("MASTER_PORT", 1, 65534, nullptr);
  place.address = get("MASTER_ADDR") == nullptr ? "" : get("MASTER_ADDR");
  if (place.address.empty()) {
    complain("environment variable MASTER_ADDR: expected the machine of rank 0, got nothing");
  }
  if (!problems.empty()) throw ConfigError(problems);
  const char* agent = get("TORCHELASTIC_USE_AGENT_STORE");
  if (agent != nullptr && std::string_view(agent) == "True") ++place.port;
  return place;
}

std::unique_ptr<Communicator> MakeTcpCommunicator(const MeetingPlace& place, Seconds timeout) {
  return std::make_unique<TcpCommunicator>(place, timeout);
}

}  // namespace millwright
