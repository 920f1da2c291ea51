// SPDX-License-Identifier: Apache-2.0
//
// How far off are the predictions, against training steps that others measured?
//
// Every run of a file is put in the product's own terms (validate/run_job), predicted by the
// estimate, and compared: step time, and memory by the kind that was measured.  Runs that cannot be
// expressed are kept with their reason.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost_models/interval.h"
#include "planner/estimator.h"
#include "validate/published_run.h"
#include "validate/run_job.h"

namespace millwright {

// What a figure of memory counts.
enum class MemoryKind {
  kAllocated,  // torch's max_memory_allocated, the fullest rank
  kReserved,   // what the allocator took from the device
  kDevice,     // nvidia-smi: all of that, context and communicators
  kModel,      // state and activations alone
};
inline constexpr int kMemoryKinds = 4;
std::string_view Name(MemoryKind kind);
MemoryKind MemoryKindOf(std::string_view mem_kind);

struct RunResult {
  PublishedRun run;
  RunJob job;
  Seconds predicted;
  Bytes predicted_memory;  // of the kind measured; of the device where none was
  Bytes peak, capacity;    // of the device
  StepTime time;           // by cause, of the whole micro-batches
  bool fits() const { return peak <= capacity; }
  RunClass run_class() const {
    return ClassOf(job.job.model, job.job.training, job.job.cluster.gpu);
  }
  bool moe() const { return job.job.model.has_moe(); }
  // Relative errors, predicted / measured - 1; zero where nothing was measured.
  double step_error() const { return run.step ? predicted / *run.step - 1 : 0; }
  double memory_error() const { return run.memory ? predicted_memory / *run.memory - 1 : 0; }
};

struct UnsupportedRun {
  PublishedRun run;
  std::string reason;
};

// Of relative errors e: quantiles of |e|, and the median of e (negative: predictions too fast).
struct ErrorSummary {
  std::size_t n = 0;
  double median_ape = 0, p90_ape = 0, bias = 0;
};
ErrorSummary Summarise(std::vector<double> errors);
// By linear interpolation between order statistics; `values` need not be sorted.
double Quantile(std::vector<double> values, double q);

struct NamedSummary {
  std::string name;
  ErrorSummary errors;
};

// Layouts of one model (not only of its name: BLOOM's trials have several shapes) on the same GPUs
// with the same batch.
struct Sweep {
  std::string name;
  std::size_t n = 0;
  double spearman = 0;  // of predicted with measured step times
  double most =
      1;  // of what was measured with its own median over like runs: no prediction's is higher
  double first_loss = 0;  // measured step of the layout predicted fastest, over the best, - 1
};
inline constexpr std::size_t kLeastSweep = 8;
double Spearman(const std::vector<double>& a, const std::vector<double>& b);

// Of a class of runs, how many were measured inside the interval that is shipped for it.
struct Coverage {
  std::string name;
  std::size_t n = 0, inside = 0;
};

struct RunsReport {
  std::vector<RunResult> results;  // in the file's order
  std::vector<UnsupportedRun> unsupported;
  ErrorSummary overall;
  std::vector<NamedSummary> groups;   // by what precedes the dash of the id, largest first
  std::vector<NamedSummary> classes;  // dense, MoE, precision, GPU
  std::vector<NamedSummary> memory;   // by kind, and all
  std::vector<Sweep> sweeps;
  std::vector<Coverage> step_coverage;  // by RunClass, and all
  Coverage memory_coverage;
  std::size_t out_of_memory = 0, out_of_memory_predicted = 0;  // runs that did not fit
  std::vector<std::size_t> ran_but_predicted_not_to_fit;       // indices of results
};

// The runs of a file that can be modelled, with their clusters built: predicting them again under
// other parameters costs tens of microseconds a run.
class RunSet {
 public:
  // With the curves of a calibration file for the runs on the GPU that it is of.
  explicit RunSet(const std::vector<PublishedRun>& runs, const std::string& calibration_file = {});
  std::size_t size() const { return runs_.size(); }
  const PublishedRun& run(std::size_t i) const { return runs_[i].run; }
  const RunJob& job(std::size_t i) const { return runs_[i].job; }
  const std::vector<UnsupportedRun>& unsupported() const { return unsupported_; }
  Seconds Step(std::size_t i, const EndToEnd& end_to_end) const;
  RunResult Predict(std::size_t i, const EndToEnd& end_to_end) const;

 private:
  struct Ready {
    PublishedRun run;
    RunJob job;
    const Cluster* cluster;
  };
  std::vector<Ready> runs_;
  std::vector<UnsupportedRun> unsupported_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
};

// Without parameters by those of the calibration file that a run has, or the shipped ones.
RunsReport CompareWithRuns(const RunSet& runs, const std::optional<EndToEnd>& end_to_end = {});
// The statistics of results already there.
void Summarise(RunsReport& report);

}  // namespace millwright
