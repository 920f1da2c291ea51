// SPDX-License-Identifier: Apache-2.0
#include "runtime/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/config_io.h"

namespace millwright {
namespace {

constexpr std::string_view kOurs = "millwright: ";

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void Reset(int fd) {
    Close();
    fd_ = fd;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    // Where shared memory is, so that what ranks exchange stays in memory.
    for (const char* base : {"/dev/shm", "/tmp"}) {
      std::string name = std::string(base) + "/millwright.XXXXXX";
      if (mkdtemp(name.data()) != nullptr) {
        path_ = name;
        return;
      }
    }
    throw ConfigError(fmt::format("cannot make a folder in /dev/shm or /tmp for the ranks: {}",
                                  std::strerror(errno)));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Interrupts come as data to read while this exists.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&held, signal);
    sigprocmask(SIG_BLOCK, &held, &before_);
    descriptor_.Reset(signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~HeldSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  int descriptor() const { return descriptor_.get(); }
  const sigset_t& before() const { return before_; }
  int Take() const {  // 0: none
    signalfd_siginfo info{};
    return read(descriptor_.get(), &info, sizeof info) == ssize_t(sizeof info) ? int(info.ssi_signo)
                                                                               : 0;
  }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// "... process rank 1 with PID 0 on node x exited on signal 9 (Killed)."
std::string DeathOf(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + " ";
  constexpr std::string_view kRank = "process rank ", kSignal = "exited on signal ";
  const std::size_t rank = all.find(kRank), signal = all.find(kSignal);
  if (rank == all.npos || signal == all.npos || signal < rank) return {};
  const int number = std::atoi(all.c_str() + rank + kRank.size());
  const int which = std::atoi(all.c_str() + signal + kSignal.size());
  return fmt::format("rank {} was ended by signal {} ({}), and with it the run", number, which,
                     strsignal(which));
}

}  // namespace

bool UnderMpirun() {
  return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

LaunchOutcome LaunchRanks(const std::string& program, const std::vector<std::string>& args,
                          int ranks) {
  const ScratchFolder scratch;
  std::vector<std::string> words{
      "mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "orte_tmpdir_base", scratch.path(),
      "--mca", "btl_vader_backing_directory", scratch.path(), "--mca", "btl", "self,vader",
      // Ranks that wait leave the core to those that work.
      "--mca", "mpi_yield_when_idle", "1",
      // Nothing is started on another machine.
      "--mca", "plm", "isolated"};
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), {"-n", std::to_string(ranks), program});
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const HeldSignals signals;
  std::array<int, 2> out{}, err{}, failure{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0 ||
      pipe2(failure.data(), O_CLOEXEC) != 0) {
    throw ConfigError(fmt::format("cannot start mpirun: {}", std::strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw ConfigError(fmt::format("cannot start mpirun: {}", std::strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execvp(argv[0], argv.data());
    const int error = errno;
    if (write(failure[1], &error, sizeof error) != ssize_t(sizeof error)) _exit(126);
    _exit(127);
  }
  Descriptor from_out(out[0]), from_err(err[0]), from_failure(failure[0]);
  for (int fd : {out[1], err[1], failure[1]}) close(fd);
  int exec_error = 0;
  const bool started = read(from_failure.get(), &exec_error, sizeof exec_error) <= 0;

  LaunchOutcome outcome;
  std::string errors;
  int interrupted = 0;
  while (started && (from_out.get() >= 0 || from_err.get() >= 0)) {
    std::array<pollfd, 3> waits{{{from_out.get(), POLLIN, 0},
                                 {from_err.get(), POLLIN, 0},
                                 {signals.descriptor(), POLLIN, 0}}};
    if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) break;
    if (const int signal = signals.Take(); signal != 0) {
      interrupted = signal;
      kill(child, SIGTERM);
    }
    const auto take = [](const pollfd& wait, Descriptor& from, std::string& to) {
      if (wait.fd < 0 || wait.revents == 0) return;
      std::array<char, 4096> buffer{};
      const ssize_t n = read(from.get(), buffer.data(), buffer.size());
      if (n > 0) {
        to.append(buffer.data(), std::size_t(n));
      } else if (n == 0 || errno != EINTR) {
        from.Close();
      }
    };
    take(waits[0], from_out, outcome.out);
    take(waits[1], from_err, errors);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!started) {
    throw ConfigError(fmt::format("cannot start mpirun: {}; --backend threads runs without it",
                                  std::strerror(exec_error)));
  }

  const std::vector<std::string> lines = Lines(errors);
  for (const std::string& line : lines) {
    if (!line.starts_with(kOurs)) continue;
    const std::string message = line.substr(kOurs.size());
    if (std::find(outcome.messages.begin(), outcome.messages.end(), message) ==
        outcome.messages.end()) {
      outcome.messages.push_back(message);
    }
  }
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : kRankDied;
  if (interrupted != 0) {
    outcome.code = 128 + interrupted;
    outcome.messages = {"interrupted; the ranks were ended"};
  } else if (const std::string death = DeathOf(lines); !death.empty()) {
    outcome.code = kRankDied;
    outcome.messages = {death};
  } else if (outcome.code > 1 && outcome.messages.empty()) {
    // mpirun itself: what it says is all there is.
    outcome.code = kRankDied;
    outcome.messages = {lines.empty()
                            ? "mpirun ended without a word: a rank was killed, by hand or "
                              "for its memory"
                            : "mpirun failed:"};
    outcome.messages.insert(outcome.messages.end(), lines.begin(), lines.end());
  }
  return outcome;
}

}  // namespace millwright
