// SPDX-License-Identifier: Apache-2.0
#include "validate/fit_end_to_end.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

namespace millwright {
namespace {

double Loss(double log_error) {
  constexpr double kKnee = 0.3, kBeyond = 1.0 / 3;
  const double e = std::abs(log_error);
  return e < kKnee ? e : kKnee + kBeyond * (e - kKnee);
}

double Pull(double value, double start) {
  constexpr double kStrength = 4e-4;  // a factor of e from the start costs 0.04% of error a run
  const double log = std::log(value / start);
  return kStrength * log * log;
}

double LogError(const RunSet& runs, std::size_t i, const EndToEnd& parameters) {
  return std::log(runs.Step(i, parameters) / *runs.run(i).step);
}

class PatternSearch {
 public:
  PatternSearch(const RunSet& runs, std::vector<std::size_t> indices, const EndToEnd& start)
      : runs_(runs), indices_(std::move(indices)), start_(start), best_(start) {
    for (std::size_t i : indices_) losses_.push_back(Loss(LogError(runs_, i, best_)));
  }

  EndToEnd Run() {
    constexpr int kMostPasses = 12;
    constexpr double kFirstStep = 0.15, kLeastStep = 0.004, kLeastGain = 2e-6;
    struct Moved {
      const EndToEndField* field;
      std::vector<std::size_t> positions;  // of the runs that it moves
      double step = kFirstStep;
    };
    std::vector<Moved> fields;
    for (const EndToEndField& field : EndToEndFields()) {
      Moved moved{.field = &field, .positions = Moves(field)};
      if (!moved.positions.empty()) fields.push_back(std::move(moved));
    }
    for (int pass = 0; pass < kMostPasses; ++pass) {
      double gain = 0;
      for (Moved& m : fields) {
        if (m.step < kLeastStep) continue;
        const double better =
            std::max(Try(*m.field, m.positions, m.step), Try(*m.field, m.positions, -m.step));
        gain += better;
        m.step *= better > 0 ? 1.3 : 0.5;
      }
      if (gain < kLeastGain) break;
    }
    return best_;
  }

 private:
  std::vector<std::size_t> Moves(const EndToEndField& field) const {
    EndToEnd other = best_;
    other.*field.value *= 0.7;
    std::vector<std::size_t> positions;
    for (std::size_t k = 0; k < indices_.size(); ++k) {
      if (runs_.Step(indices_[k], other) != runs_.Step(indices_[k], best_)) positions.push_back(k);
    }
    return positions;
  }

  // Takes the step if it helps, and says by how much a run.
  double Try(const EndToEndField& field, const std::vector<std::size_t>& positions, double step) {
    EndToEnd other = best_;
    double& value = other.*field.value;
    value = std::min(value * std::exp(step), field.most);
    std::vector<double> losses;
    double change =
        Pull(value, start_.*field.value) - Pull(best_.*field.value, start_.*field.value);
    for (std::size_t k : positions) {
      losses.push_back(Loss(LogError(runs_, indices_[k], other)));
      change += (losses.back() - losses_[k]) / double(indices_.size());
    }
    if (change >= 0) return 0;
    best_ = other;
    for (std::size_t k = 0; k < positions.size(); ++k) losses_[positions[k]] = losses[k];
    return -change;
  }

  const RunSet& runs_;
  std::vector<std::size_t> indices_;
  EndToEnd start_, best_;
  std::vector<double> losses_;
};

std::vector<ClassQuantiles> QuantilesOf(const RunsReport& report) {
  std::map<RunClass, std::vector<double>> classes;
  std::vector<double> memory;
  for (const RunResult& r : report.results) {
    if (r.run.step) classes[r.run_class()].push_back(*r.run.step / r.predicted);
    if (r.run.memory && !r.run.out_of_memory()) {
      memory.push_back(*r.run.memory / r.predicted_memory);
    }
  }
  std::vector<ClassQuantiles> all;
  const auto add = [&](std::string_view name, const std::vector<double>& ratios) {
    all.push_back({std::string(name), ratios.size(), Quantile(ratios, 0.05), Quantile(ratios, 0.5),
                   Quantile(ratios, 0.95)});
  };
  for (const auto& [kind, ratios] : classes) add(Name(kind), ratios);
  if (!memory.empty()) add("memory", memory);
  return all;
}

// FNV-1a, so that folds do not depend on the standard library.
std::uint64_t Hash(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (char c : text) hash = (hash ^ std::uint64_t(static_cast<unsigned char>(c))) * 1099511628211U;
  return hash;
}

}  // namespace

EndToEnd FitEndToEnd(const RunSet& runs, const std::vector<std::size_t>& indices,
                     const EndToEnd& start) {
  std::vector<std::size_t> timed;
  for (std::size_t i : indices) {
    if (runs.run(i).step) timed.push_back(i);
  }
  return timed.empty() ? start : PatternSearch(runs, std::move(timed), start).Run();
}

CrossValidation CrossValidate(const RunSet& runs, int folds) {
  CrossValidation result{.folds = folds};
  std::map<std::pair<std::uint64_t, std::string>, std::vector<std::size_t>> groups;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PublishedRun& run = runs.run(i);
    const std::string name = run.group() + "|" + run.model.name + "|" + run.gpu;
    groups[{Hash(name), name}].push_back(i);
    all.push_back(i);
  }
  result.groups = groups.size();
  std::vector<int> fold_of(runs.size());
  int next = 0;
  for (const auto& [name, members] : groups) {
    for (std::size_t i : members) fold_of[i] = next;
    next = (next + 1) % folds;
  }
  const EndToEnd start;  // not the shipped one, which has seen all of the published runs
  result.fitted = FitEndToEnd(runs, all, start);
  std::vector<EndToEnd> fits;
  for (int fold = 0; fold < folds; ++fold) {
    std::vector<std::size_t> seen;
    for (std::size_t i : all) {
      if (fold_of[i] != fold) seen.push_back(i);
    }
    fits.push_back(FitEndToEnd(runs, seen, start));
  }
  result.held_out.unsupported = runs.unsupported();
  for (std::size_t i : all) {
    result.held_out.results.push_back(runs.Predict(i, fits[std::size_t(fold_of[i])]));
  }
  Summarise(result.held_out);
  result.quantiles = QuantilesOf(result.held_out);
  for (const EndToEndField& field : EndToEndFields()) {
    double mean = 0, squares = 0;
    for (const EndToEnd& fit : fits) mean += std::log(fit.*field.value) / folds;
    for (const EndToEnd& fit : fits) {
      const double d = std::log(fit.*field.value) - mean;
      squares += d * d;
    }
    result.spread.push_back(std::sqrt((folds - 1.0) / folds * squares));
  }
  return result;
}

}  // namespace millwright
