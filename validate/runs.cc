// SPDX-License-Identifier: Apache-2.0
#include "validate/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

Bytes MemoryOf(const Estimate& e, MemoryKind kind) {
  Bytes most;
  for (const StageMemory& stage : e.memory) {
    switch (kind) {
      case MemoryKind::kAllocated:
        most = std::max(most, stage.allocated());
        break;
      case MemoryKind::kReserved:
        most = std::max(most, stage.allocated() + stage[MemoryItem::kAllocatorSlack]);
        break;
      case MemoryKind::kDevice:
        most = std::max(most, stage.total());
        break;
      case MemoryKind::kModel:
        // The first stage's, as arXiv:2205.05198 gives it.
        if (stage.stage == 0) {
          most = stage[MemoryItem::kWeights] + stage[MemoryItem::kGradients] +
                 stage[MemoryItem::kOptimizer] + stage[MemoryItem::kActivations];
        }
        break;
    }
  }
  return most;
}

// What a ragged batch adds to the step of its whole micro-batches.
Seconds Ragged(const RunJob& job, const Cluster& cluster, const EndToEnd& end_to_end,
               Seconds whole) {
  if (job.ragged <= 0) return Seconds(0);
  const ParallelConfig& plan = job.job.parallel;
  TrainingConfig more = job.job.training;
  const int batches = plan.virtual_stages > 1 ? plan.pipeline : 1;
  more.global_batch_size += std::int64_t{1} * batches * plan.data * plan.micro_batch_size;
  const Estimator estimator(job.job.model, more, cluster, end_to_end);
  return job.ragged / batches * (estimator.Itemise(plan).step - whole);
}

std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;  // ties share their mean rank
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) ranks[order[k]] = 0.5 * double(i + end - 1);
    i = end;
  }
  return ranks;
}

std::vector<NamedSummary> ByName(const RunsReport& report,
                                 const std::function<std::string(const RunResult&)>& name) {
  std::map<std::string, std::vector<double>> errors;
  for (const RunResult& r : report.results) {
    const std::string key = name(r);
    if (r.run.step && !key.empty()) errors[key].push_back(r.step_error());
  }
  std::vector<NamedSummary> all;
  for (auto& [key, e] : errors) all.push_back({key, Summarise(std::move(e))});
  std::ranges::stable_sort(all,
                           [](const auto& a, const auto& b) { return a.errors.n > b.errors.n; });
  return all;
}

void Append(std::vector<NamedSummary>& to, std::vector<NamedSummary> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::vector<Sweep> SweepsOf(const RunsReport& report) {
  struct Times {
    std::string name;
    const ModelConfig* model = nullptr;
    std::vector<double> predicted, measured;
  };
  std::vector<Times> sweeps;
  for (const RunResult& r : report.results) {
    if (!r.run.step) continue;
    const ModelConfig& model = r.job.job.model;
    const std::string name =
        fmt::format("{}: {}, {} x {}, batch {} x {}", r.run.group(), r.run.model.name,
                    *r.run.num_gpus, r.run.gpu, *r.run.gbs, *r.run.model.seq);
    auto sweep = std::ranges::find_if(
        sweeps, [&](const Times& t) { return t.name == name && *t.model == model; });
    if (sweep == sweeps.end()) {
      sweeps.push_back({.name = name, .model = &model, .predicted = {}, .measured = {}});
      sweep = sweeps.end() - 1;
    }
    sweep->predicted.push_back(r.predicted.value);
    sweep->measured.push_back(r.run.step->value);
  }
  std::ranges::stable_sort(sweeps, {}, &Times::name);
  std::vector<Sweep> all;
  for (const Times& t : sweeps) {
    if (t.measured.size() < kLeastSweep) continue;
    const auto first = std::ranges::min_element(t.predicted) - t.predicted.begin();
    const double best = *std::ranges::min_element(t.measured);
    // Runs that are told apart by nothing are predicted alike.
    std::map<double, std::vector<double>> repeats;
    for (std::size_t i = 0; i < t.measured.size(); ++i) {
      repeats[t.predicted[i]].push_back(t.measured[i]);
    }
    std::vector<double> medians;
    for (const double predicted : t.predicted)
      medians.push_back(Quantile(repeats.at(predicted), 0.5));
    const bool named_alike = std::ranges::count(sweeps, t.name, &Times::name) > 1;
    all.push_back({.name = named_alike ? fmt::format("{} ({} layers of {}, {} heads)", t.name,
                                                     t.model->num_layers, t.model->hidden_size,
                                                     t.model->num_attention_heads)
                                       : t.name,
                   .n = t.measured.size(),
                   .spearman = Spearman(t.predicted, t.measured),
                   .most = repeats.size() < t.measured.size() ? Spearman(medians, t.measured) : 1,
                   .first_loss = t.measured[std::size_t(first)] / best - 1});
  }
  return all;
}

}  // namespace

std::string_view Name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kAllocated:
      return "max allocated";
    case MemoryKind::kReserved:
      return "reserved";
    case MemoryKind::kDevice:
      return "device (nvidia-smi)";
    case MemoryKind::kModel:
      return "state and activations";
  }
  return {};
}

MemoryKind MemoryKindOf(std::string_view mem_kind) {
  if (mem_kind.starts_with("max_allocated")) return MemoryKind::kAllocated;
  if (mem_kind.find("reserved") != mem_kind.npos) return MemoryKind::kReserved;
  if (mem_kind.find("no framework overhead") != mem_kind.npos) return MemoryKind::kModel;
  return MemoryKind::kDevice;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = q * double(values.size() - 1);
  const auto below = std::size_t(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - double(below)) * (values[above] - values[below]);
}

ErrorSummary Summarise(std::vector<double> errors) {
  std::vector<double> absolute;
  absolute.reserve(errors.size());
  for (double e : errors) absolute.push_back(std::abs(e));
  return {.n = errors.size(),
          .median_ape = Quantile(absolute, 0.5),
          .p90_ape = Quantile(absolute, 0.9),
          .bias = Quantile(std::move(errors), 0.5)};
}

double Spearman(const std::vector<double>& a, const std::vector<double>& b) {
  MILLWRIGHT_CHECK(a.size() == b.size());
  const std::vector<double> x = Ranks(a), y = Ranks(b);
  const double mean = 0.5 * (double(a.size()) - 1);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

void Cover(RunsReport& report) {
  std::vector<Coverage> classes(kRunClasses);
  Coverage all{.name = "all"};
  report.memory_coverage = {.name = "memory"};
  const auto count = [](Coverage& c, const Interval& interval, double measured_over_predicted) {
    ++c.n;
    c.inside += interval.low <= measured_over_predicted && measured_over_predicted <= interval.high;
  };
  for (const RunResult& r : report.results) {
    if (r.run.step) {
      const RunClass kind = r.run_class();
      const double ratio = *r.run.step / r.predicted;
      classes[std::size_t(kind)].name = Name(kind);
      count(classes[std::size_t(kind)], StepInterval(kind), ratio);
      count(all, StepInterval(kind), ratio);
    }
    if (r.run.memory && !r.run.out_of_memory()) {
      count(report.memory_coverage, MemoryInterval(), *r.run.memory / r.predicted_memory);
    }
  }
  std::erase_if(classes, [](const Coverage& c) { return c.n == 0; });
  if (all.n > 0) classes.push_back(std::move(all));
  report.step_coverage = std::move(classes);
}

void Summarise(RunsReport& report) {
  std::vector<double> all, memory;
  std::map<MemoryKind, std::vector<double>> by_kind;
  report.out_of_memory = report.out_of_memory_predicted = 0;
  report.ran_but_predicted_not_to_fit.clear();
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const RunResult& r = report.results[i];
    if (r.run.step) all.push_back(r.step_error());
    if (r.run.memory && !r.run.out_of_memory()) {
      by_kind[MemoryKindOf(r.run.memory_kind)].push_back(r.memory_error());
      memory.push_back(r.memory_error());
    }
    if (r.run.out_of_memory()) {
      ++report.out_of_memory;
      report.out_of_memory_predicted += r.fits() ? 0 : 1;
    } else if (!r.fits()) {
      report.ran_but_predicted_not_to_fit.push_back(i);
    }
  }
  report.overall = Summarise(std::move(all));
  report.groups = ByName(report, [](const RunResult& r) { return r.run.group(); });
  report.classes = ByName(report, [](const RunResult& r) { return r.moe() ? "MoE" : "dense"; });
  Append(report.classes,
         ByName(report, [](const RunResult& r) { return r.job.job.cluster.gpu.name; }));
  Append(report.classes, ByName(report, [](const RunResult& r) {
           for (const auto& name : PrecisionNames()) {
             if (name.value == r.job.job.training.precision) return std::string(name.name);
           }
           return std::string();
         }));
  report.memory.clear();
  for (auto& [kind, errors] : by_kind) {
    report.memory.push_back({std::string(Name(kind)), Summarise(std::move(errors))});
  }
  if (!memory.empty()) report.memory.push_back({"all", Summarise(std::move(memory))});
  report.sweeps = SweepsOf(report);
  Cover(report);
}

RunSet::RunSet(const std::vector<PublishedRun>& runs, const std::string& calibration_file) {
  std::string measured;  // GPU
  if (!calibration_file.empty()) {
    measured = ParseCurves(calibration_file, ReadTextFile(calibration_file)).gpu;
  }
  // Clusters repeat from row to row, and building one takes longer than an estimate on it.
  std::vector<std::pair<ClusterConfig, const Cluster*>> built;
  for (const PublishedRun& run : runs) {
    auto job = RunJobOf(run);
    if (auto* why = std::get_if<NotModelled>(&job)) {
      unsupported_.push_back({run, why->what});
      continue;
    }
    RunJob& good = std::get<RunJob>(job);
    GpuSpec& gpu = good.job.cluster.gpu;
    const GpuSpec* const of = measured.empty() ? nullptr : GpuNamed(measured);
    if (of != nullptr && of->name == gpu.name) gpu.calibration_file = calibration_file;
    auto known = std::ranges::find(built, good.job.cluster, [](const auto& b) { return b.first; });
    if (known == built.end()) {
      clusters_.push_back(std::make_unique<Cluster>(good.job.cluster));
      known = built.insert(built.end(), {good.job.cluster, clusters_.back().get()});
    }
    runs_.push_back({run, std::move(good), known->second});
  }
}

Seconds RunSet::Step(std::size_t i, const EndToEnd& end_to_end) const {
  const Job& job = runs_[i].job.job;
  const Estimator estimator(job.model, job.training, *runs_[i].cluster, end_to_end);
  const Seconds whole = estimator.Itemise(job.parallel).step;
  return whole + Ragged(runs_[i].job, *runs_[i].cluster, end_to_end, whole);
}

RunResult RunSet::Predict(std::size_t i, const EndToEnd& end_to_end) const {
  RunResult result{.run = runs_[i].run, .job = runs_[i].job};
  const Job& job = result.job.job;
  const Estimate e =
      Estimator(job.model, job.training, *runs_[i].cluster, end_to_end).Itemise(job.parallel);
  result.predicted = e.step + Ragged(result.job, *runs_[i].cluster, end_to_end, e.step);
  result.time = e.time;
  result.peak = e.peak;
  result.capacity = e.capacity;
  result.predicted_memory =
      MemoryOf(e, result.run.memory ? MemoryKindOf(result.run.memory_kind) : MemoryKind::kDevice);
  return result;
}

RunsReport CompareWithRuns(const RunSet& runs, const std::optional<EndToEnd>& end_to_end) {
  RunsReport report;
  report.unsupported = runs.unsupported();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const GpuSpec& gpu = runs.job(i).job.cluster.gpu;
    report.results.push_back(runs.Predict(i, end_to_end ? *end_to_end : EndToEndFor(gpu)));
  }
  Summarise(report);
  return report;
}

}  // namespace millwright
