// SPDX-License-Identifier: Apache-2.0
//
// millwright measure: single operations timed on this machine, as tables that `calibrate` reads.

#include "runtime/measure.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <filesystem>
#include <optional>
#include <ostream>
#include <set>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/job_flags.h"
#include "cli/plan_flags.h"
#include "cli/ranks.h"
#include "core/mistakes.h"
#include "core/unit_text.h"
#include "cost_models/executed_curves.h"
#include "report/file_writer.h"
#include "report/measure_report.h"
#include "runtime/communicator_splits.h"
#include "runtime/cpu_backend.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/host_machine.h"
#include "validate/measurement_csv.h"

namespace millwright {
namespace {

struct MeasureAsked {
  std::string out;
  RunBackend backend = RunBackend::kMpi;
  ElementType type = ElementType::kFp64;
  std::string gpu;  // the preset that the rows are of
  int ranks = 1;
  Seconds budget;
  std::uint64_t seed = 1;
  bool json = false;
  bool by_processor = false;
  std::vector<MeasuredCase> cases;

  bool on_gpus() const { return backend == RunBackend::kCuda; }
};

// An interrupt is looked at between two repeats while this exists, so that it ends no file halfway.
class HeldInterrupt {
 public:
  HeldInterrupt() {
    sigemptyset(&held_);
    for (int signal : {SIGINT, SIGTERM}) sigaddset(&held_, signal);
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldInterrupt() {
    Take();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldInterrupt(const HeldInterrupt&) = delete;
  HeldInterrupt& operator=(const HeldInterrupt&) = delete;
  bool pending() const {
    sigset_t signals;
    sigpending(&signals);
    return sigismember(&signals, SIGINT) == 1 || sigismember(&signals, SIGTERM) == 1;
  }
  // The signal, which then is not pending any more; 0: none.
  int Take() {
    const timespec now{};
    return std::max(0, sigtimedwait(&held_, nullptr, &now));
  }

 private:
  sigset_t held_{}, before_{};
};

// All there is, so that collectives are among it.
int DefaultRanks(RunBackend backend) {
  constexpr int kMost = 8;
  if (backend != RunBackend::kCuda) return std::clamp(ThisMachine().processors, 1, kMost);
  int count = 0;
  const GpuCalls calls = RealGpuCalls().value();
  if (const std::string status = calls.device_count(count); !status.empty()) {
    throw GpuError("cudaGetDeviceCount: " + status);
  }
  if (count == 0) throw GpuError("this machine has no GPU");
  return std::min(count, kMost);
}

std::optional<MeasureAsked> Ask(std::span<const std::string> args, std::ostream& help) {
  CommandLine line("measure --out FOLDER [OPTIONS]",
                   "Times single operations on this machine as `run` executes them: matrix "
                   "products of all three passes, attention, operators bound by memory, "
                   "collectives and messages by size, kind and ranks. Writes them as tables that "
                   "calibrate reads. With --for (or a model) the sizes of that plan, else a sweep. "
                   "An interrupt keeps what was measured.");
  JobFlags flags;
  PlanFlags plan_flags;
  MeasureAsked asked;
  std::optional<std::string> out, job_file, budget;
  std::optional<RunBackend> backend;
  std::optional<ElementType> type;
  std::optional<std::int64_t> seed;
  bool quick = false, fp8 = false;
  flags.AddTo(line, 0);
  flags.AddRanksTo(line);
  plan_flags.AddTo(line);
  static constexpr std::array<EnumName<RunBackend>, 4> kBackends{{{RunBackend::kMpi, "cpu"},
                                                                  {RunBackend::kMpi, "mpi"},
                                                                  {RunBackend::kThreads, "threads"},
                                                                  {RunBackend::kCuda, "cuda"}}};
  line.Section("Measuring");
  line.Text("--out", "FOLDER", out, "where the tables go");
  line.Text("--for", "JOB.json", job_file, "the sizes of this job's plan");
  line.Enum("--backend", backend, std::span<const EnumName<RunBackend>>(kBackends),
            "as of run: cpu, or mpi, is processes that Open MPI joins (default: cpu)");
  line.Enum("--dtype", type, ElementTypeNames(),
            "what is computed in (default: fp64; with cuda bf16, and nothing else)");
  line.Flag("--fp8", fp8, "with cuda: products of FP8 (E4M3) operands too");
  line.Text("--budget", "TIME", budget, "about how long in all (default: 60 s; --quick: 15 s)");
  line.Flag("--quick", quick, "fewer sizes, as few as a fit needs");
  line.Flag("--processor-time", asked.by_processor,
            "time what CPUs compute by its processor time, where others use the machine too");
  line.Int("--seed", seed, {0, INT_MAX}, "of the data (default: 1)");
  line.Section("Output");
  line.Flag("--json", asked.json, "the answer as JSON");
  line.Example("measure --ranks 2 --out measured");
  line.Example("measure --for job.json --dtype fp32 --out measured --budget 2min");
  line.Example("measure --backend cuda --cluster dgx-h100 --out measured");
  if (!line.Parse(args, help)) return std::nullopt;

  if (!out) line.Missing("--out", "expected a folder for the tables");
  asked.budget = Seconds(quick ? 15 : 60);
  if (budget) {
    const std::optional<Seconds> time = ParseDuration(*budget);
    constexpr Seconds kLongest{86400};
    if (time && *time > Seconds(0) && *time <= kLongest) {
      asked.budget = *time;
    } else {
      line.Problem("--budget", fmt::format("expected a time up to a day such as 60s, got \"{}\"",
                                           Printable(*budget, kMostNameShown)));
    }
  }
  asked.backend = backend.value_or(RunBackend::kMpi);
  asked.seed = std::uint64_t(seed.value_or(1));
  if (asked.on_gpus() && asked.by_processor) {
    line.Problem("--processor-time", "a GPU's work is no processor's");
  }
  if (fp8 && !asked.on_gpus()) line.Problem("--fp8", "CPUs have none; give --backend cuda");
  const bool for_job = job_file || flags.gives_model();
  if (asked.on_gpus() && !for_job && !flags.cluster()) {
    line.Missing("--cluster", "expected the cluster preset whose GPUs are to be measured");
  }
  Job job;
  if (for_job) {
    job = job_file ? flags.Resolve(line, *job_file) : flags.Resolve(line);
    job.parallel = plan_flags.Resolve(line, job, flags.sizes_cluster());
    job.has_parallel = true;
  } else if (flags.cluster()) {
    job.cluster = flags.ResolveCluster(line, *flags.cluster());
  }
  line.ThrowIfProblems();
  asked.out = *out;
  asked.type = ElementTypeOn(asked.backend, type);
  asked.gpu = asked.on_gpus() ? job.cluster.gpu.name : "local-cpu";
  if (asked.on_gpus() && asked.type != ElementType::kBf16) {
    throw ConfigError("--dtype: a GPU's curves are of bf16, and " + std::string(Name(asked.type)) +
                      " was asked for");
  }
  if (fp8 && !(job.cluster.gpu.peak(Precision::kFp8).value > 0)) {
    throw ConfigError(fmt::format("--fp8: {} has none", job.cluster.gpu.name));
  }
  if (!for_job) {
    asked.ranks = flags.ranks() ? int(*flags.ranks()) : DefaultRanks(asked.backend);
    if (asked.ranks > kMostRanks) {
      throw ConfigError(
          fmt::format("--ranks: {} ranks on one machine: at most {}", asked.ranks, kMostRanks));
    }
    asked.cases = SweepCases(asked.ranks, quick, asked.on_gpus() ? SweepOf::kGpu : SweepOf::kCpu);
    if (fp8) asked.cases = WithFp8(asked.cases);
    return asked;
  }
  const std::variant<Workload, Rejection> workload = WorkloadOf(job, asked.seed, asked.backend);
  if (const auto* rejection = std::get_if<Rejection>(&workload)) {
    throw ConfigError(fmt::format("the plan cannot run: {}", rejection->detail));
  }
  asked.ranks = std::get<Workload>(workload).ranks();
  asked.cases = CasesOf(std::get<Workload>(workload));
  if (fp8) asked.cases = WithFp8(asked.cases);
  return asked;
}

MeasuredOn OnOf(const MeasureAsked& asked, const std::string& machine) {
  const ExecutedAs how = ExecutedOn(Name(asked.type), Name(asked.backend));
  return {.gpu = asked.gpu,
          .stack = how.stack,
          .library = how.library,
          .dtype = how.dtype,
          .machine = machine + (asked.by_processor ? "; processor time" : ""),
          .topology = asked.on_gpus() ? "NVLink of one machine" : "memory of one machine",
          .width = int(how.width),
          .ranks = asked.ranks};
}

// The table's file: of collectives one for what joins the ranks, so that both can be measured.
std::string FileOf(const MeasureAsked& asked, std::size_t table) {
  std::string name(kTableNames[table]);
  if (name == "collective") {
    name += "_" + std::string(Name(asked.backend));
  }
  return (std::filesystem::path(asked.out) / (name + ".csv")).string();
}

// Writes each table that has rows, whole.
std::vector<std::string> Write(const MeasureAsked& asked, const MeasureAnswer& answer) {
  std::vector<Measurement> rows;
  for (const MeasuredOperationTime& one : answer.measured) {
    for (const bool burst : {false, true}) {
      // Collectives are told apart by library, which has no room for a second time.
      if (burst && std::holds_alternative<CollectiveCase>(one.what)) continue;
      rows.push_back(RowOf(one.what, one.timing, burst, answer.on));
    }
  }
  std::set<std::size_t> tables;
  for (const Measurement& row : rows) tables.insert(row.operation.index());
  std::vector<std::string> files;
  for (std::size_t table : tables) {
    files.push_back(FileOf(asked, table));
    // Killed meanwhile, it leaves the table that was there.
    FileWriter out(files.back());
    out.Write(WriteTable(rows, table));
    out.Commit();
  }
  return files;
}

// One rank.  Rank 0 writes, every few seconds too: who is killed keeps what was measured.
MeasureAnswer MeasureAll(const MeasureAsked& asked, Backend& backend, const std::string& machine,
                         const HeldInterrupt& interrupt) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] {
    return Seconds(std::chrono::duration<double>(Clock::now() - start).count());
  };
  MeasureOptions options{.by_processor = asked.by_processor, .seed = asked.seed};
  // Of so many calls that a GPU's queue never runs dry.
  if (asked.on_gpus()) options.shortest = Seconds(2e-3);
  // Warming up, and what is shorter than its share, pay for what needs three repeats at any cost.
  options.limits.longest = std::min(
      Seconds(0.5), 0.8 * asked.budget / double(std::max<std::size_t>(1, asked.cases.size())));
  options.stop = [&] { return interrupt.pending() || seconds() > asked.budget; };
  Measurer measurer(backend, options);
  MeasureAnswer answer{.on = OnOf(asked, machine), .cases = asked.cases.size()};
  // A product that takes a core milliseconds, and a GPU tenths of one.
  const std::int64_t size = asked.on_gpus() ? 4096 : 256;
  answer.overlap = measurer.Overlap({.m = size, .n = size, .k = size});
  constexpr Seconds kBetweenFiles{2};
  constexpr int kFewest = 3;  // repeats of which there is a median
  Seconds written;
  for (const MeasuredCase& what : asked.cases) {
    if (measurer.Stops()) break;
    const Timing timing = measurer.Measure(what);
    answer.on.attention_by = backend.AttentionBy();
    if (timing.repeats < kFewest || timing.sustained.value <= 0) continue;
    answer.measured.push_back({what, timing});
    if (backend.rank() == 0 && seconds() - written > kBetweenFiles) {
      Write(asked, answer);
      written = seconds();
    }
  }
  answer.interrupted = interrupt.pending();
  if (backend.rank() == 0) answer.files = Write(asked, answer);
  answer.seconds = seconds();
  return answer;
}

MeasureAnswer MeasureOn(const MeasureAsked& asked, Communicator& communicator,
                        const HeldInterrupt& interrupt) {
  if (communicator.size() != asked.ranks) {
    throw ConfigError(fmt::format("{} ranks are to measure, and {} were started", asked.ranks,
                                  communicator.size()));
  }
  switch (asked.type) {
    case ElementType::kFp64: {
      CpuBackend<double> backend(communicator);
      return MeasureAll(asked, backend, ThisMachine().Text(), interrupt);
    }
    case ElementType::kFp32: {
      CpuBackend<float> backend(communicator);
      return MeasureAll(asked, backend, ThisMachine().Text(), interrupt);
    }
    case ElementType::kBf16: {
      const GpuCalls calls = RealGpuCalls().value();
      const int gpu = LocalRank();
      std::set<int> groups;
      for (const MeasuredCase& what : asked.cases) {
        if (const auto* one = std::get_if<CollectiveCase>(&what)) groups.insert(one->ranks);
      }
      CudaBackend backend(calls, SplitsOfFirst(groups, asked.ranks, communicator.rank()),
                          communicator, {.type = asked.type, .local_rank = gpu});
      std::string name;
      if (const std::string status = calls.device_name(gpu, name); !status.empty()) {
        throw GpuError("cudaGetDeviceProperties: " + status);
      }
      return MeasureAll(asked, backend, PlainCell(name), interrupt);
    }
  }
  return {};
}

int Answer(const MeasureAsked& asked, const MeasureAnswer& answer, int signal, Console& console) {
  console.out << (asked.json ? MeasureJson(answer) : MeasureText(answer, console.style));
  return signal == 0 ? 0 : kSignalled + signal;
}

void PrepareFolder(const MeasureAsked& asked) {
  std::error_code error;
  std::filesystem::create_directories(asked.out, error);
  if (error) {
    throw ConfigError(fmt::format("--out: cannot make the folder {}: {}",
                                  Printable(asked.out, kMostNameShown), error.message()));
  }
  for (std::size_t table = 0; table < kTableNames.size(); ++table) {
    CheckWritable(FileOf(asked, table));
  }
}

}  // namespace

int MeasureCommand(std::span<const std::string> args, Console& console) {
  const std::optional<MeasureAsked> asked = Ask(args, console.out);
  if (!asked) return 0;
  PrepareFolder(*asked);
  const RankedCommand command{
      .name = "measure", .args = args, .backend = asked->backend, .ranks = asked->ranks};
  std::optional<HeldInterrupt> interrupt;
  if (HasRanksHere(command)) interrupt.emplace();
  const int code = OnRanks(command, console, [&](Communicator& communicator) -> RankAnswer {
    return [&, answer = MeasureOn(*asked, communicator, *interrupt)] {
      return Answer(*asked, answer, interrupt->Take(), console);
    };
  });
  if (!interrupt && code > kSignalled) {
    std::error_code none;
    if (std::filesystem::is_empty(asked->out, none)) {
      console.err << "millwright: nothing was measured until then\n";
    } else {
      console.err << "millwright: what was measured until then is in "
                  << Printable(asked->out, kMostNameShown) << '\n';
    }
  }
  return code;
}

int MeasureRankCommand(std::span<const std::string> args, Console& console,
                       Communicator& communicator) {
  HeldInterrupt interrupt;
  const std::optional<MeasureAsked> asked = Ask(args, console.out);
  if (!asked) return 0;
  const MeasureAnswer answer = MeasureOn(*asked, communicator, interrupt);
  return communicator.rank() == 0 ? Answer(*asked, answer, 0, console) : 0;
}

}  // namespace millwright
