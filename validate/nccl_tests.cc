// SPDX-License-Identifier: Apache-2.0
#include "validate/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "core/config_io.h"
#include "core/gpu.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

// A program of nccl-tests and what the tables call its operation.
struct Program {
  std::string_view name, op;
};
constexpr std::array<Program, 6> kPrograms{{
    {"all_reduce_perf", "all_reduce"},
    {"all_gather_perf", "all_gather"},
    {"reduce_scatter_perf", "reduce_scatter"},
    {"alltoall_perf", "alltoall"},
    {"sendrecv_perf", "sendrecv"},
    {"broadcast_perf", "broadcast"},
}};

constexpr std::size_t kMostShown = 60;

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t start = line.find_first_not_of(" \t");
    if (start == line.npos) return words;
    line.remove_prefix(start);
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::optional<double> Positive(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value) ||
      value <= 0) {
    return std::nullopt;
  }
  return value;
}

// "NVIDIA H100 80GB HBM3" is H100-SXM here; a name that is not known stays as it is.
std::string GpuName(std::string_view driver_name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  if (driver_name.starts_with(kMaker)) driver_name.remove_prefix(kMaker.size());
  if (const GpuSpec* gpu = GpuNamed(driver_name)) return gpu->name;
  return std::string(driver_name);
}

// Reads from top to bottom; what a run's header says holds until the next header.
class Reader {
 public:
  Reader(const std::string& file, MeasurementSet& set) : set_(set), mistakes_(file) {}

  void Line(int number, std::string_view line) {
    number_ = number;
    const std::vector<std::string_view> words = Words(line);
    if (words.empty()) return;
    for (std::string_view word : words) {
      const std::string_view program = word.substr(word.rfind('/') + 1);
      for (const Program& p : kPrograms) {
        if (p.name == program) op_ = p.op;
      }
    }
    if (words[0] == "#") {
      Header(words, line);
    } else if (std::isdigit(static_cast<unsigned char>(words[0][0])) && words.size() >= 9) {
      Row(words);
    }
  }

  void Finish() {
    if (rows_ == 0 && mistakes_.count() == 0) {
      mistakes_.Add("", "expected rows of nccl-tests: size, count, type, redop, root, time, ...");
    }
    mistakes_.ThrowIfAny();
  }

 private:
  void Header(const std::vector<std::string_view>& words, std::string_view line) {
    if (words.size() > 1 && words[1] == "nThread") {  // a new run
      ranks_ = 0;
      hosts_.clear();
      gpu_.clear();
    }
    // # Rank 0 Group 0 Pid 1234 on HOST device 0 [0x07] NVIDIA H100 80GB HBM3
    if (words.size() < 3 || words[1] != "Rank") return;
    const auto on = std::find(words.begin(), words.end(), "on");
    const auto device = std::find(words.begin(), words.end(), "device");
    const std::size_t bracket = line.rfind(']');
    if (on == words.end() || on + 1 == words.end() || device == words.end() ||
        bracket == line.npos) {
      Mistake("rank", "expected \"Rank N ... on HOST device N [...] GPU NAME\"", line);
      return;
    }
    ++ranks_;
    hosts_.insert(std::string(*(on + 1)));
    const std::size_t name = line.find_first_not_of(" \t", bracket + 1);
    const std::string gpu = GpuName(name == line.npos ? "" : line.substr(name));
    if (!gpu_.empty() && gpu != gpu_) {
      Mistake("GPU", fmt::format("expected every rank on the same GPU, {}", gpu_), gpu);
    }
    gpu_ = gpu;
  }

  void Row(const std::vector<std::string_view>& words) {
    ++rows_;
    if (op_.empty() || ranks_ < 2) {
      if (!complained_) {
        mistakes_.Add(fmt::format("line {}", number_),
                      op_.empty() ? "which collective is this? Expected \"# Collective test "
                                    "starting: all_reduce_perf\" or the command line above it"
                                  : "expected a line \"# Rank N ... on HOST device N [...] GPU\" "
                                    "for each of two ranks or more above the rows");
      }
      complained_ = true;
      return;
    }
    const std::optional<double> bytes = Positive(words[0]);
    const std::optional<double> time = Positive(words[5]);
    if (!bytes || !time) {
      if (words[0] == "0") return;  // nccl-tests rounds sizes below an element a rank down to none
      const bool size_is_wrong = !bytes;
      Mistake(size_is_wrong ? "size" : "time", "expected a number above 0",
              words[size_is_wrong ? 0 : 5]);
      return;
    }
    set_.rows.push_back(
        {.gpu = gpu_,
         .dtype = std::string(words[2].substr(0, kMostShown)),
         .source = "nccl-tests",
         .time = Seconds(*time * 1e-6),
         .file = static_cast<int>(set_.files.size()) - 1,
         .line = number_,
         .operation = MeasuredCollective{.op = op_,
                                         .topology = "",
                                         .library = "nccl-tests",
                                         .nodes = static_cast<std::int64_t>(hosts_.size()),
                                         .gpus = ranks_,
                                         .bytes = Bytes(*bytes)}});
  }

  void Mistake(std::string_view column, std::string_view expected, std::string_view got) {
    mistakes_.Add(fmt::format("line {}, {}", number_, column),
                  fmt::format("{}, got \"{}\"", expected, Printable(got, kMostShown)));
  }

  MeasurementSet& set_;
  Mistakes mistakes_;
  int number_ = 0;
  std::size_t rows_ = 0;
  bool complained_ = false;
  std::string op_, gpu_;
  std::int64_t ranks_ = 0;
  std::set<std::string> hosts_;
};

}  // namespace

bool IsNcclTestsOutput(std::string_view text) {
  return text.find("nThread") != text.npos || text.find("algbw   busbw") != text.npos ||
         text.find("# Collective test starting") != text.npos;
}

void ReadNcclTests(const std::string& file, std::string_view text, MeasurementSet& set) {
  Reader reader(file, set);
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    reader.Line(number, line);
  }
  reader.Finish();
}

}  // namespace millwright
