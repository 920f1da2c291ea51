// SPDX-License-Identifier: Apache-2.0
#include "runtime/tcp_communicator.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/config_io.h"
#include "runtime/exchange.h"
#include "runtime/verification.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// Each rank's exception in words, or "".
std::vector<std::string> RunRanks(int ranks, const std::function<void(Communicator&)>& body) {
  const int port = FreePort();
  std::vector<std::string> failures;
  failures.resize(std::size_t(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = MakeTcpCommunicator(
            {.rank = rank, .ranks = ranks, .address = "127.0.0.1", .port = port}, Seconds(20));
        body(*communicator);
      } catch (const std::exception& error) {
        failures[std::size_t(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// A ring's messages all pass rank 0; a reduction over 4 ranks of 1, 2, 3 and 4 is 10.
TEST(TcpCommunicator, RanksReachEachOther) {
  const auto failures = RunRanks(4, [](Communicator& communicator) {
    Exchange exchange(communicator);
    std::vector<double> data(1000, communicator.rank() + 1.0);
    exchange.InPlace(CollectiveKind::kAllReduce, {.first = 0, .stride = 1, .ranks = 4},
                     std::span(data));
    EXPECT_EQ(data, std::vector<double>(1000, 10.0));
    exchange.Send(communicator.rank(), 5, std::span<const double>(data));  // to itself
    exchange.Receive(communicator.rank(), 5, std::span(data));
  });
  EXPECT_EQ(failures, std::vector<std::string>(4));
}

TEST(TcpCommunicator, AStepIsExecutedOverIt) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2, .pipeline = 2});
  const auto failures = RunRanks(4, [&](Communicator& communicator) {
    const RunOutcome outcome = RunSteps(workload, {.steps = 1, .verify = true}, communicator);
    EXPECT_TRUE(outcome.holds());
  });
  EXPECT_EQ(failures, std::vector<std::string>(4));
}

TEST(TcpCommunicator, ARankThatFailsEndsTheOthers) {
  const auto failures = RunRanks(3, [](Communicator& communicator) {
    if (communicator.rank() == 2) throw std::runtime_error("rank 2 has had enough");
    std::byte nothing{};
    communicator.Receive(2, 0, std::span(&nothing, 1));
  });
  // The first to notice can only have noticed rank 2; the other one may notice the first.
  const auto ended = [](int rank) {
    return "rank " + std::to_string(rank) + " has ended, and with it the run";
  };
  ASSERT_EQ(failures.size(), 3U);
  EXPECT_THAT(failures[0], testing::AnyOf(ended(1), ended(2)));
  EXPECT_THAT(failures[1], testing::AnyOf(ended(0), ended(2)));
  EXPECT_THAT(failures, testing::Contains(ended(2)));
  EXPECT_EQ(failures[2], "rank 2 has had enough");
}

TEST(TcpCommunicator, WhoDoesNotComeIsNamed) {
  const int port = FreePort();
  try {
    MakeTcpCommunicator({.rank = 0, .ranks = 3, .address = "127.0.0.1", .port = port},
                        Seconds(0.2));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), "2 of 3 ranks did not come at 127.0.0.1:" + std::to_string(port) +
                                " (MASTER_ADDR, MASTER_PORT)");
  }
  try {
    MakeTcpCommunicator({.rank = 1, .ranks = 3, .address = "127.0.0.1", .port = port},
                        Seconds(0.2));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(),
              "rank 0 is not at 127.0.0.1:" + std::to_string(port) + " (MASTER_ADDR, MASTER_PORT)");
  }
}

// Somebody else's connection, with words of their own, is turned away and the ranks meet all the
// same.
TEST(TcpCommunicator, StrangersAreTurnedAway) {
  const int port = FreePort();
  std::thread stranger([port] {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(std::uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int attempt = 0; attempt < 200; ++attempt) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        EXPECT_EQ(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
        char byte = 0;
        EXPECT_LE(recv(fd, &byte, 1, 0), 0);
        close(fd);
        return;
      }
      close(fd);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "rank 0 does not listen";
  });
  std::thread second([port, &stranger] {
    stranger.join();
    MakeTcpCommunicator({.rank = 1, .ranks = 2, .address = "127.0.0.1", .port = port}, Seconds(20));
  });
  MakeTcpCommunicator({.rank = 0, .ranks = 2, .address = "127.0.0.1", .port = port}, Seconds(20));
  second.join();
}

std::optional<MeetingPlace> PlaceOf(const std::map<std::string, std::string>& environment) {
  return PlaceOfTorchrun([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(TcpCommunicator, PlaceIsThatOfTorchrun) {
  EXPECT_FALSE(PlaceOf({{"MASTER_ADDR", "node0"}}));
  std::map<std::string, std::string> environment{{"RANK", "9"},
                                                 {"WORLD_SIZE", "16"},
                                                 {"LOCAL_RANK", "1"},
                                                 {"MASTER_ADDR", "node0"},
                                                 {"MASTER_PORT", "29500"}};
  const auto place = PlaceOf(environment);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 9);
  EXPECT_EQ(place->ranks, 16);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->address, "node0");
  EXPECT_EQ(place->port, 29500);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(PlaceOf(environment)->port, 29501);
  try {
    PlaceOf({{"RANK", "16"}, {"WORLD_SIZE", "16"}, {"MASTER_PORT", "http"}});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "environment variable RANK: expected an integer from 0 to 15, got \"16\"\n"
                 "environment variable MASTER_PORT: expected an integer from 1 to 65534, got "
                 "\"http\"\n"
                 "environment variable MASTER_ADDR: expected the machine of rank 0, got nothing");
  }
}

}  // namespace
}  // namespace millwright
