// SPDX-License-Identifier: Apache-2.0
#include "validate/measurement_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <tuple>
#include <unordered_set>

#include "core/config_io.h"
#include "core/gpu.h"
#include "core/mistakes.h"
#include "validate/csv.h"
#include "validate/links.h"
#include "validate/nccl_tests.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostShown = 60;
constexpr std::int64_t kMostCount = std::int64_t{1} << 40;

using Columns = std::vector<std::string_view>;
// In the order of kTableNames.  Nothing may be missing, so that a column that was misspelt or lost
// is not taken for a default.
const std::array<Columns, kTableNames.size()>& ColumnsOfTables() {
  static const std::array<Columns, kTableNames.size()> columns{{
      {"gpu", "dtype", "m", "n", "k", "time_us", "source"},
      {"gpu", "dtype", "phase", "batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim",
       "causal", "time_us", "source"},
      {"gpu", "topology", "nodes", "gpus", "op", "dtype", "bytes", "time_us", "algbw_GBs",
       "busbw_GBs", "library", "source"},
      {"gpu", "dtype", "num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep",
       "distribution", "time_us", "source"},
      {"gpu", "dtype", "num_groups", "m_per_group", "n", "k", "stage", "time_us", "source"},
      {"gpu", "op", "bytes", "time_us", "source"},
  }};
  return columns;
}

// The cells of one row by column, typed; what is wrong is noted once for the cell.
class Row {
 public:
  Row(const CsvRow& row, const std::map<std::string_view, std::size_t>& where, Mistakes& mistakes)
      : row_(row), where_(where), mistakes_(mistakes) {}

  const std::string& Cell(std::string_view column) const { return row_.cells[where_.at(column)]; }

  std::string Text(std::string_view column) {
    const std::string& text = Cell(column);
    if (text.empty()) Wrong(column, "a text");
    if (!IsPrintable(text)) Wrong(column, "printable text");
    return text;
  }
  std::int64_t Count(std::string_view column, std::int64_t most = kMostCount) {
    const std::string& text = Cell(column);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
      Wrong(column, fmt::format("an integer from 1 to {}", most));
      return 1;
    }
    return value;
  }
  double Positive(std::string_view column) {
    const std::string& text = Cell(column);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
        value <= 0) {
      Wrong(column, "a finite number above 0");
      return 1;
    }
    return value;
  }
  std::size_t OneOf(std::string_view column, std::span<const std::string_view> words) {
    const std::string& text = Cell(column);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == text) return i;
    }
    Wrong(column, fmt::format("one of {}", fmt::join(words, ", ")));
    return 0;
  }

 private:
  void Wrong(std::string_view column, std::string_view expected) {
    mistakes_.Add(
        fmt::format("line {}, {}", row_.line, column),
        fmt::format("expected {}, got \"{}\"", expected, Printable(Cell(column), kMostShown)));
  }

  const CsvRow& row_;
  const std::map<std::string_view, std::size_t>& where_;
  Mistakes& mistakes_;
};

MeasuredGemm ReadGemm(Row& row) {
  return {.m = row.Count("m"), .n = row.Count("n"), .k = row.Count("k")};
}

MeasuredAttention ReadAttention(Row& row) {
  static constexpr std::array<std::string_view, 5> kPhases{"fwd", "bwd", "fwd+bwd", "prefill",
                                                           "decode"};
  static constexpr std::array<std::string_view, 2> kCausal{"0", "1"};
  return {.phase = static_cast<AttentionPhase>(row.OneOf("phase", kPhases)),
          .batch = row.Count("batch"),
          .seq_q = row.Count("seq_q"),
          .seq_kv = row.Count("seq_kv"),
          .heads = row.Count("heads"),
          .kv_heads = row.Count("kv_heads"),
          .head_dim = row.Count("head_dim"),
          .causal = row.OneOf("causal", kCausal) == 1};
}

MeasuredCollective ReadCollective(Row& row) {
  static constexpr std::array<std::string_view, 8> kOps{
      "all_reduce", "all_gather", "reduce_scatter",      "alltoall",
      "sendrecv",   "broadcast",  "deepep_dispatch_fp8", "deepep_combine_bf16"};
  MeasuredCollective c{.op = std::string(kOps[row.OneOf("op", kOps)]),
                       .topology = row.Text("topology"),
                       .library = row.Text("library"),
                       .nodes = row.Count("nodes", kMaxGpus),
                       .gpus = row.Count("gpus", kMaxGpus),
                       .bytes = Bytes(row.Positive("bytes"))};
  row.Positive("algbw_GBs");
  row.Positive("busbw_GBs");
  return c;
}

MeasuredMoe ReadMoe(Row& row) {
  return {.tokens = row.Count("num_tokens"),
          .hidden = row.Count("hidden"),
          .inter = row.Count("inter"),
          .topk = row.Count("topk"),
          .experts = row.Count("num_experts"),
          .tensor = row.Count("moe_tp"),
          .expert = row.Count("moe_ep"),
          .distribution = row.Text("distribution")};
}

MeasuredGroupedGemm ReadGroupedGemm(Row& row) {
  static constexpr std::array<std::string_view, 3> kStages{"fwd", "bwd_grad_act", "bwd_grad_w"};
  return {.stage = static_cast<GroupedGemmStage>(row.OneOf("stage", kStages)),
          .groups = row.Count("num_groups"),
          .m_per_group = row.Count("m_per_group"),
          .n = row.Count("n"),
          .k = row.Count("k")};
}

MeasuredMemoryBound ReadMemoryBound(Row& row) {
  return {.op = row.Text("op"), .bytes = Bytes(row.Positive("bytes"))};
}

MeasuredOperation ReadOperation(std::size_t table, Row& row) {
  switch (table) {
    case 0:
      return ReadGemm(row);
    case 1:
      return ReadAttention(row);
    case 2:
      return ReadCollective(row);
    case 3:
      return ReadMoe(row);
    case 4:
      return ReadGroupedGemm(row);
    default:
      return ReadMemoryBound(row);
  }
}

// The table that a file's columns are of, or one mistake that says what is wrong with them.
std::size_t TableOf(const std::vector<std::string>& columns, Mistakes& mistakes) {
  std::size_t best = 0, most = 0;
  for (std::size_t t = 0; t < kTableNames.size(); ++t) {
    std::size_t shared = 0;
    for (std::string_view wanted : ColumnsOfTables()[t]) {
      shared += static_cast<std::size_t>(std::count(columns.begin(), columns.end(), wanted));
    }
    // Of two tables with as many columns in common, the one with fewer missing.
    if (shared > most || (shared == most && shared > 0 &&
                          ColumnsOfTables()[t].size() < ColumnsOfTables()[best].size())) {
      best = t;
      most = shared;
    }
  }
  constexpr std::size_t kEnough = 3;
  if (most < kEnough) {
    mistakes.Add("line 1", fmt::format("expected the columns of a table of measurements ({}), "
                                       "got \"{}\"",
                                       fmt::join(kTableNames, ", "),
                                       Printable(fmt::format("{}", fmt::join(columns, ",")),
                                                 kMostNameShown)));
    return best;
  }
  const Columns& wanted = ColumnsOfTables()[best];
  Columns missing;
  for (std::string_view w : wanted) {
    if (std::count(columns.begin(), columns.end(), w) == 0) missing.push_back(w);
  }
  if (!missing.empty()) {
    mistakes.Add("line 1",
                 fmt::format("expected the columns of {} ({}); missing: {}", kTableNames[best],
                             fmt::join(wanted, ","), fmt::join(missing, ", ")));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string shown = Printable(columns[i], kMostShown);
    if (std::count(wanted.begin(), wanted.end(), columns[i]) == 0) {
      const std::string_view nearest = NearestName(columns[i], missing);
      mistakes.Add("line 1",
                   fmt::format("unknown column \"{}\"{}", shown,
                               nearest.empty() ? std::string()
                                               : fmt::format(", did you mean \"{}\"?", nearest)));
    } else if (std::count(columns.begin(), columns.begin() + std::ptrdiff_t(i), columns[i]) > 0) {
      mistakes.Add("line 1", fmt::format("column \"{}\" is there twice", shown));
    }
  }
  return best;
}

struct LeastTimeOf {
  const GpuSpec& gpu;
  const std::string& dtype;

  FlopsPerSecond Peak() const {
    if (dtype.find("fp4") != std::string::npos) return gpu.peak_fp4;
    if (dtype.find("fp8") != std::string::npos) return gpu.peak_fp8;
    return gpu.peak_bf16;
  }
  Seconds Work(double flops) const {
    const FlopsPerSecond peak = Peak();
    return peak.value > 0 ? Flops(flops) / peak : Seconds(0);
  }

  Seconds operator()(const MeasuredGemm& g) const {
    return Work(2 * double(g.m) * double(g.n) * double(g.k));
  }
  Seconds operator()(const MeasuredAttention& a) const {
    const double scores = double(a.batch) * double(a.heads) * double(a.seq_q) * double(a.seq_kv) *
                          (a.causal && a.seq_q > 1 ? 0.5 : 1);
    return Work(4 * scores * double(a.head_dim));
  }
  Seconds operator()(const MeasuredCollective& c) const {
    if (c.op.starts_with("deepep")) return Seconds(0);  // its bytes count copies that are not sent
    const std::optional<PathProfile> path = PathOf(c, gpu);
    if (!path || path->ranks < 2 || path->domain_bandwidth.value <= 0) return Seconds(0);
    return c.bytes * (double(path->ranks - 1) / path->ranks) / path->domain_bandwidth;
  }
  Seconds operator()(const MeasuredMoe&) const { return Seconds(0); }  // experts need not be hit
  Seconds operator()(const MeasuredGroupedGemm& g) const {
    return Work(2 * double(g.groups) * double(g.m_per_group) * double(g.n) * double(g.k));
  }
  Seconds operator()(const MeasuredMemoryBound& m) const {
    constexpr double kCache = 3;
    return m.bytes / (kCache * gpu.hbm_bandwidth);
  }
};

// Below this no kernel ends, whatever its work: launching one takes 2 us or more (FINDINGS.md of
// the shared data, t0 of every fit), a graph's replay of one at least a few hundred nanoseconds.
constexpr Seconds kShortest{0.2e-6};
// Peaks are at the boost clock of the datasheet; some parts boost beyond it.
constexpr double kPeakMargin = 0.9;
// A unit that is wrong is so by 1000; the slowest rows of small shapes are 30 times their bound
// plus a launch.
constexpr double kTooSlow = 100;
constexpr Seconds kLaunch{10e-6};

// Flags rows that no GPU can do; a file of which most are such has its unit wrong.
void CheckPlausible(std::span<const Measurement> rows, Mistakes& mistakes, MeasurementSet& set,
                    std::vector<bool>& keep) {
  std::size_t fast = 0, slow = 0;
  const Measurement* example = nullptr;
  std::vector<FlaggedRow> flags;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Measurement& row = rows[i];
    if (const GpuSpec* gpu = GpuNamed(row.gpu); gpu != nullptr && gpu->placeholder) continue;
    const Seconds least = LeastTime(row);
    if (row.time < kShortest || row.time < kPeakMargin * least) {
      ++fast;
      keep[i] = false;
      flags.push_back({row.file, row.line,
                       fmt::format("{:.4g} us is less than {} can take ({:.4g} us at its peak)",
                                   row.time.value * 1e6, Printable(row.gpu, kMostShown),
                                   std::max(least, kShortest).value * 1e6)});
      if (example == nullptr) example = &row;
    } else if (row.time > kTooSlow * (kLaunch + least)) {
      ++slow;
      if (example == nullptr) example = &row;
    }
  }
  if (2 * std::max(fast, slow) > rows.size()) {
    mistakes.Add(fmt::format("line {}, time_us", example->line),
                 fmt::format("expected microseconds, got {:.6g}: {} of {} rows take {} the "
                             "datasheet allows; is the unit another?",
                             example->time.value * 1e6, std::max(fast, slow), rows.size(),
                             fast > slow ? "less than" : "over a hundred times what"));
    return;
  }
  set.flagged.insert(set.flagged.end(), flags.begin(), flags.end());
}

void ReadTable(const std::string& file, std::string_view text, MeasurementSet& set) {
  Mistakes mistakes(file);
  const CsvTable csv = ReadCsv(text, mistakes);
  if (csv.columns.empty()) mistakes.ThrowIfAny();
  const std::size_t before = mistakes.count();
  const std::size_t table = TableOf(csv.columns, mistakes);
  if (mistakes.count() > before) mistakes.ThrowIfAny();
  std::map<std::string_view, std::size_t> where;
  for (std::size_t i = 0; i < csv.columns.size(); ++i) where[csv.columns[i]] = i;
  if (csv.rows.empty() && mistakes.count() == 0)
    mistakes.Add("", "expected rows under the column names, got none");

  std::vector<Measurement> rows;
  rows.reserve(csv.rows.size());
  std::vector<bool> keep;
  std::unordered_set<std::string> seen;
  for (const CsvRow& cells : csv.rows) {
    Row row(cells, where, mistakes);
    Measurement one{.gpu = row.Text("gpu"),
                    .dtype = where.contains("dtype") ? row.Text("dtype") : "bfloat16",
                    .source = row.Text("source"),
                    .time = Seconds(row.Positive("time_us") * 1e-6),
                    .file = static_cast<int>(set.files.size()) - 1,
                    .line = cells.line};
    one.operation = ReadOperation(table, row);
    keep.push_back(true);
    if (!seen.insert(fmt::format("{}", fmt::join(cells.cells, "\x1f"))).second) {
      keep.back() = false;
      set.flagged.push_back({one.file, one.line, "the same row is there already; it counts once"});
    }
    if (const auto* c = std::get_if<MeasuredCollective>(&one.operation);
        c != nullptr && mistakes.count() == 0) {
      // Two columns say the same, so that one of them in another unit shows.
      const double algbw = c->bytes.value / one.time.value / 1e9;
      const double given = row.Positive("algbw_GBs");
      if (std::abs(given / algbw - 1) > 0.2 && std::abs(given - algbw) > 0.02) {
        keep.back() = false;
        set.flagged.push_back(
            {one.file, one.line,
             fmt::format("algbw_GBs says {:.4g}, but bytes over time_us are {:.4g} GB/s", given,
                         algbw)});
      }
      if (c->nodes > c->gpus) {
        mistakes.Add(
            fmt::format("line {}, nodes", cells.line),
            fmt::format("expected at most as many as gpus, {}, got {}", c->gpus, c->nodes));
      }
    }
    rows.push_back(std::move(one));
  }
  mistakes.ThrowIfAny();
  CheckPlausible(rows, mistakes, set, keep);
  mistakes.ThrowIfAny();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (keep[i]) set.rows.push_back(std::move(rows[i]));
  }
}

bool IsMeasurementFile(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".csv" || extension == ".txt" || extension == ".log";
}

// The files that a path stands for, in the order of their names.
std::vector<std::string> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file(error) && IsMeasurementFile(entry.path())) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    throw ConfigError(fmt::format(
        "{}: expected a folder with .csv, .txt or .log files of measurements, found none",
        Printable(path, kMostNameShown)));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::span<const std::string_view> ColumnsOfTable(std::size_t table) {
  return ColumnsOfTables()[table];
}

Seconds LeastTime(const Measurement& row) {
  const GpuSpec* gpu = GpuNamed(row.gpu);
  return gpu == nullptr ? Seconds(0) : std::visit(LeastTimeOf{*gpu, row.dtype}, row.operation);
}

void ReadMeasurementFile(const std::string& file, std::string_view text, MeasurementSet& set) {
  set.files.push_back(file);
  if (IsNcclTestsOutput(text)) {
    ReadNcclTests(file, text, set);
  } else {
    ReadTable(file, text, set);
  }
}

MeasurementSet ReadMeasurements(std::span<const std::string> paths) {
  MeasurementSet set;
  std::string mistakes;
  for (const std::string& path : paths) {
    try {
      for (const std::string& file : FilesOf(path)) {
        try {
          ReadMeasurementFile(file, ReadTextFile(file), set);
        } catch (const ConfigError& error) {
          mistakes += (mistakes.empty() ? "" : "\n") + std::string(error.what());
        }
      }
    } catch (const ConfigError& error) {
      mistakes += (mistakes.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
  return set;
}

}  // namespace millwright
