// SPDX-License-Identifier: Apache-2.0
#include "validate/fit_end_to_end.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

namespace millwright {
namespace {

double Loss(double log_error) {
  constexpr double kKnee = 0.3, kBeyond = 1.0 / 3;
  const double e = std::abs(log_error);
  return e < kKnee ? e : kKnee + kBeyond * (e - kKnee);
}

double Pull(double strength, double value, double start) {
  const double log = std::log(value / start);
  return strength * log * log;
}

double LogError(const RunSet& runs, std::size_t i, const EndToEnd& parameters) {
  return std::log(runs.Step(i, parameters) / *runs.run(i).step);
}

class PatternSearch {
 public:
  PatternSearch(const RunSet& runs, std::vector<std::size_t> indices, const EndToEnd& start,
                const Pulls& pulls)
      : runs_(runs), indices_(std::move(indices)), pulls_(pulls), start_(start), best_(start) {
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
    bool gained = false;  // until then steps may only be too long
    for (int pass = 0; pass < kMostPasses; ++pass) {
      double gain = 0;
      for (Moved& m : fields) {
        if (m.step < kLeastStep) continue;
        const double better =
            std::max(Try(*m.field, m.positions, m.step), Try(*m.field, m.positions, -m.step));
        gain += better;
        m.step *= better > 0 ? 1.3 : 0.5;
      }
      if (gained && gain < kLeastGain) break;
      gained = gained || gain >= kLeastGain;
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
    const double strength = pulls_[std::size_t(&field - EndToEndFields().data())];
    double change = Pull(strength, value, start_.*field.value) -
                    Pull(strength, best_.*field.value, start_.*field.value);
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
  Pulls pulls_;
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

// Standard error of a parameter's log, of fits that each left a part out, about this value.
double Jackknife(std::span<const EndToEnd> fits, double EndToEnd::*value, double about) {
  double squares = 0;
  for (const EndToEnd& fit : fits) {
    const double d = std::log(fit.*value) - about;
    squares += d * d;
  }
  const double folds = double(fits.size());
  return std::sqrt((folds - 1) / folds * squares);
}

// FNV-1a, so that folds do not depend on the standard library.
std::uint64_t Hash(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (char c : text) hash = (hash ^ std::uint64_t(static_cast<unsigned char>(c))) * 1099511628211U;
  return hash;
}

}  // namespace

Pulls WeakPulls() {
  constexpr double kWeak = 4e-4;  // a factor of e from the start costs 0.04% of error a run
  return Pulls(EndToEndFields().size(), kWeak);
}

EndToEnd FitEndToEnd(const RunSet& runs, const std::vector<std::size_t>& indices,
                     const EndToEnd& start, const Pulls& pulls) {
  std::vector<std::size_t> timed;
  for (std::size_t i : indices) {
    if (runs.run(i).step) timed.push_back(i);
  }
  return timed.empty() ? start : PatternSearch(runs, std::move(timed), start, pulls).Run();
}

OwnEndToEnd FitOwn(const RunSet& runs, const std::vector<std::size_t>& indices) {
  constexpr double kScatter = 0.06, kKnown = 0.05, kMoved = 0.005;
  constexpr std::size_t kMostFolds = 10;
  const std::size_t n = indices.size();
  const auto fields = EndToEndFields();
  const auto known_to = [&](const EndToEndField& field) { return std::max(kKnown, field.error); };
  const auto fit = [&](const std::vector<std::size_t>& seen) {
    Pulls pulls;
    for (const EndToEndField& field : fields) {
      const double error = known_to(field);
      pulls.push_back(kScatter / (2 * error * error * double(seen.size())));
    }
    return FitEndToEnd(runs, seen, ShippedEndToEnd(), pulls);
  };
  const auto errors = [&](std::span<const std::size_t> of, const EndToEnd& by) {
    std::vector<double> all;
    for (std::size_t i : of) all.push_back(runs.Step(i, by) / *runs.run(i).step - 1);
    return all;
  };
  const EndToEnd fitted = fit(indices);
  OwnEndToEnd own{.runs = int(n),
                  .shipped_median_ape = Summarise(errors(indices, ShippedEndToEnd())).median_ape,
                  .median_ape = Summarise(errors(indices, fitted)).median_ape,
                  .parameters = {}};
  const std::size_t folds = n < 3 ? 0 : std::min(n, kMostFolds);
  std::vector<double> unseen;
  std::vector<EndToEnd> fits;
  for (std::size_t fold = 0; fold < folds; ++fold) {
    std::vector<std::size_t> in, out;
    for (std::size_t i = 0; i < n; ++i) (i % folds == fold ? out : in).push_back(indices[i]);
    fits.push_back(fit(in));
    const std::vector<double> left = errors(out, fits.back());
    unseen.insert(unseen.end(), left.begin(), left.end());
  }
  if (folds > 0) own.cv_median_ape = Summarise(unseen).median_ape;
  for (const EndToEndField& field : fields) {
    const double value = fitted.*field.value;
    if (std::abs(std::log(value / field.shipped)) < kMoved) continue;
    const double error =
        folds > 0 ? Jackknife(fits, field.value, std::log(value)) : known_to(field);
    own.parameters.push_back({std::string(field.name), {.value = value, .error = error * value}});
  }
  return own;
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
    double mean = 0;
    for (const EndToEnd& fit : fits) mean += std::log(fit.*field.value) / folds;
    result.spread.push_back(Jackknife(fits, field.value, mean));
  }
  return result;
}

}  // namespace millwright
