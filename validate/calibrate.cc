// SPDX-License-Identifier: Apache-2.0
#include "validate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/gpu.h"
#include "core/mistakes.h"
#include "cost_models/collectives.h"
#include "validate/links.h"
#include "validate/robust_fit.h"
#include "validate/runs.h"
#include "validate/shapes.h"
#include "validate/source_class.h"

namespace millwright {
namespace {

constexpr int kFolds = 5;
constexpr std::size_t kLeastRows = 8;  // fewer do not tell seven parameters

template <class Shape>
struct Row {
  Shape shape;
  double seconds = 0;
  std::string source;
};

// Of which rows, for which GPU.
struct Question {
  const MeasurementSet& set;
  std::vector<std::size_t> rows;
  const GpuSpec& gpu;
  const GpuCurves* base;
  bool leave_out;
  BytesPerSecond link{};  // of collectives, where the cluster presets do not know it
  std::vector<std::string>* without_curve = nullptr;

  // Whether `rows` do not make a curve of `what`, which is noted.
  bool TooFew(const std::string& what, std::size_t count, std::size_t least = kLeastRows) const {
    if (count >= least) return false;
    if (without_curve != nullptr) {
      without_curve->push_back(
          fmt::format("no curve of {}: {} rows, and a fit needs {}", what, count, least));
    }
    return true;
  }
};

// How one kind of curve is fitted.
template <class Curve, class Shape>
struct Recipe {
  struct Parameter {
    Fitted Curve::*member;
    FitParameter fit;
  };
  std::vector<Parameter> parameters;
  Seconds (*formula)(const Curve&, const Shape&, const GpuSpec&);  // without the residual
  std::vector<double> (*at)(const Shape&);                         // of the residual
  std::vector<double> (*range)(const Shape&);
  GridTension tension;
  Covariance covariance = nullptr;  // beside the tension
  double noise = 0;                 // of a row, with that
};

// On what a residual is given: knots that cover the rows.
std::vector<double> Knots(double low, double high, double step) {
  std::vector<double> knots;
  const double first = std::floor(low / step) * step;
  for (double k = first; k < high + step - 1e-9; k += step) knots.push_back(k);
  return knots;
}

double Rounded(double value, int digits) {
  if (value == 0) return 0;
  const double scale = std::pow(10, digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

// FNV-1a, so that folds do not depend on the machine.
std::uint32_t HashOf(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash ^ hash >> 15;
}

std::string TextOf(const std::vector<double>& at) {
  std::string text;
  for (double x : at) text += fmt::format("{:.3f} ", x);
  return text;
}

template <class Curve, class Shape>
class CurveFit {
 public:
  CurveFit(const Recipe<Curve, Shape>& recipe, const Question& question, const Curve* base)
      : recipe_(recipe), gpu_(question.gpu), leave_out_(question.leave_out), base_(base) {}

  // `curve` has its names and the axes of its residual.
  void Run(Curve& curve, const std::vector<Row<Shape>>& rows) {
    axes_ = curve.residual.axes;
    Fit(curve, rows);
    const ErrorSummary in_sample = Summarise(Errors(curve, rows));
    std::vector<double> unseen;
    for (int fold = 0; fold < kFolds && leave_out_; ++fold) {
      std::vector<Row<Shape>> seen, left_out;
      for (const Row<Shape>& row : rows) {
        const bool out = HashOf(TextOf(recipe_.range(row.shape))) % kFolds == std::uint32_t(fold);
        (out ? left_out : seen).push_back(row);
      }
      if (seen.size() < kLeastRows || left_out.empty()) continue;
      Curve partial = curve;
      Fit(partial, seen);
      const std::vector<double> errors = Errors(partial, left_out);
      unseen.insert(unseen.end(), errors.begin(), errors.end());
    }
    const ErrorSummary cross = Summarise(std::move(unseen));
    std::set<std::string> sources;
    curve.range = {};
    for (const Row<Shape>& row : rows) {
      curve.range.Add(recipe_.range(row.shape));
      sources.insert(row.source);
    }
    std::string source;
    for (const std::string& s : sources) source += (source.empty() ? "" : "; ") + s;
    for (const auto& p : recipe_.parameters) {
      Fitted& fitted = curve.*p.member;
      fitted = {Rounded(fitted.value, 5), Rounded(fitted.error, 2)};
    }
    for (std::vector<double>* bound : {&curve.range.low, &curve.range.high}) {
      for (double& b : *bound) b = std::round(1000 * b) / 1000;
    }
    // A file keeps thousandths of a residual, and six digits of a knot.
    for (double& v : curve.residual.values) v = std::round(1000 * v) / 1000 + 0.0;
    for (std::vector<double>& knots : curve.residual.axes) {
      for (double& k : knots) k = std::round(1e5 * k) / 1e5;
    }
    curve.fit = {.rows = static_cast<int>(rows.size()),
                 .median_ape = Rounded(in_sample.median_ape, 4),
                 .p90_ape = Rounded(in_sample.p90_ape, 4),
                 .cv_median_ape = Rounded(cross.median_ape, 4),
                 .cv_p90_ape = Rounded(cross.p90_ape, 4),
                 .source = source};
  }

 private:
  void Fit(Curve& curve, const std::vector<Row<Shape>>& rows) {
    std::vector<FitParameter> parameters;
    for (const auto& p : recipe_.parameters) {
      FitParameter one = p.fit;
      if (base_ != nullptr) {
        const double value = (base_->*p.member).value;
        if (value > 0) one.typical = value;
      }
      parameters.push_back(one);
    }
    Curve trial = curve;
    const std::vector<Fitted> fitted = FitParameters(
        parameters, rows.size(), [&](std::span<const double> values, std::span<double> logs) {
          for (std::size_t j = 0; j < values.size(); ++j) {
            (trial.*recipe_.parameters[j].member).value = values[j];
          }
          for (std::size_t i = 0; i < rows.size(); ++i) logs[i] = -Log(trial, rows[i]);
        });
    for (std::size_t j = 0; j < fitted.size(); ++j) {
      curve.*recipe_.parameters[j].member = fitted[j];
    }
    std::vector<ResidualRow> left;
    curve.residual.axes = axes_;
    for (const Row<Shape>& row : rows) {
      left.push_back({recipe_.at(row.shape), Log(curve, row)});
      if (base_ != nullptr) left.back().log -= base_->residual.At(left.back().at);
    }
    FitResiduals(curve.residual, left, recipe_.tension);
    if (recipe_.covariance != nullptr) Blend(curve.residual, left);
    if (base_ != nullptr) AddTo(curve.residual, base_->residual, 1);
  }

  // Two smoothers err at other shapes: their mean is nearer than either.  That by covariance says
  // something of sizes beyond those measured and of each number of ranks, and has more knots.
  void Blend(ResidualGrid& grid, std::span<const ResidualRow> rows) const {
    constexpr double kShare = 0.65;
    constexpr int kBeyond = 3;  // octaves
    ResidualGrid wide{.axes = grid.axes};
    for (int i = 0; i < kBeyond; ++i) wide.axes[0].push_back(wide.axes[0].back() + 1);
    std::set<double> ranks(grid.axes[1].begin(), grid.axes[1].end());
    for (const ResidualRow& row : rows) ranks.insert(row.at[1]);
    wide.axes[1].assign(ranks.begin(), ranks.end());
    FitResiduals(wide, rows, recipe_.covariance, recipe_.noise);
    for (double& value : wide.values) value *= kShare;
    AddTo(wide, grid, 1 - kShare);
    grid = std::move(wide);
  }

  // `from`, at the knots of `grid`.
  static void AddTo(ResidualGrid& grid, const ResidualGrid& from, double times) {
    std::vector<std::size_t> knot(grid.axes.size(), 0);
    std::vector<double> at(grid.axes.size());
    for (double& value : grid.values) {
      for (std::size_t d = 0; d < at.size(); ++d) at[d] = grid.axes[d][knot[d]];
      value += times * from.At(at);
      for (std::size_t d = grid.axes.size(); d-- > 0;) {
        if (++knot[d] < grid.axes[d].size()) break;
        knot[d] = 0;
      }
    }
  }

  // log(measured / formula).
  double Log(const Curve& curve, const Row<Shape>& row) const {
    return std::log(row.seconds / recipe_.formula(curve, row.shape, gpu_).value);
  }

  std::vector<double> Errors(const Curve& curve, const std::vector<Row<Shape>>& rows) const {
    std::vector<double> errors;
    for (const Row<Shape>& row : rows) {
      const double log = curve.residual.At(recipe_.at(row.shape)) - Log(curve, row);
      errors.push_back(std::expm1(log));
    }
    return errors;
  }

  const Recipe<Curve, Shape>& recipe_;
  const GpuSpec& gpu_;
  bool leave_out_;
  const Curve* base_;
  std::vector<std::vector<double>> axes_;
};

template <class Shape>
void Cover(ResidualGrid& grid, const std::vector<Row<Shape>>& rows,
           std::vector<double> (*at)(const Shape&), std::span<const double> steps) {
  CoveredRange covered;
  for (const Row<Shape>& row : rows) covered.Add(at(row.shape));
  grid.axes.clear();
  for (std::size_t d = 0; d < steps.size(); ++d) {
    grid.axes.push_back(Knots(covered.low[d], covered.high[d], steps[d]));
  }
}

constexpr FitParameter Share(double typical) { return {ParameterKind::kShare, typical}; }
constexpr FitParameter Positive(double typical) { return {ParameterKind::kAboveZero, typical}; }

template <std::size_t N>
std::vector<double> List(const std::array<double, N>& values) {
  return {values.begin(), values.end()};
}

// Of a residual, in octaves of what the formulas know well, which are those of GPUs: blocks of 128
// queries are not what a CPU's loops are made of.
double KnotsApart(const GpuSpec& gpu) { return gpu.placeholder ? 1 : 2; }

// --- GEMMs

constexpr double kTypicalLaunch = 2.5e-6;  // seconds; H100 and B200

Recipe<GemmCurve, GemmShape> GemmRecipe(bool with_cast, bool deep_gemm) {
  // Typical values: fits of H100 and B200 rows in BF16, rounded.
  Recipe<GemmCurve, GemmShape> recipe{
      .parameters = {{&GemmCurve::efficiency, Share(0.8)},
                     {&GemmCurve::hbm_efficiency, Share(0.8)},
                     {&GemmCurve::k_overhead, Positive(100)},
                     {&GemmCurve::tile_overhead, Positive(20)},
                     {&GemmCurve::quantisation, Share(0.5)}},
      .formula = [](const GemmCurve& c, const GemmShape& s,
                    const GpuSpec& gpu) { return GemmFormula(c, s, gpu) + CastTime(c, s, gpu); },
      .at = [](const GemmShape& s) { return List(Coordinates(s)); },
      .range = [](const GemmShape& s) { return List(Coordinates(s)); },
      .tension = {.neighbours = 0.15, .zero = 0.003, .along = {1, 1, 0.5}}};
  if (deep_gemm) {
    recipe.parameters.push_back({&GemmCurve::slow_wave, Positive(2.5)});
    recipe.parameters.push_back({&GemmCurve::one_warpgroup, Positive(1)});
    recipe.parameters.push_back({&GemmCurve::odd_width, Positive(1)});
    recipe.parameters.push_back({&GemmCurve::ragged, Positive(0.3)});
  } else {
    recipe.parameters.push_back({&GemmCurve::split_cost, Positive(1)});
  }
  if (!with_cast) recipe.parameters.push_back({&GemmCurve::launch, Positive(kTypicalLaunch)});
  if (with_cast) {
    // Which of two kernels a launch belongs to no row tells: that of the product is BF16's.
    recipe.parameters.push_back({&GemmCurve::cast_launch, Positive(2e-6)});
    recipe.parameters.push_back({&GemmCurve::cast_efficiency, Share(0.5)});
  }
  return recipe;
}

struct GemmKey {
  std::string dtype, clocks, stage;
  auto operator<=>(const GemmKey&) const = default;
};

void FitGemms(const Question& question, GpuCurves& curves) {
  const GpuSpec& gpu = question.gpu;
  const GpuCurves* base = question.base;
  std::map<GemmKey, std::vector<Row<GemmShape>>> groups;
  for (std::size_t i : question.rows) {
    const Measurement& row = question.set.rows[i];
    const std::optional<GemmShape> shape = GemmShapeOf(row.operation);
    const std::string dtype = CurveDtype(row.dtype);
    if (!shape || PeakOf(dtype, gpu).value <= 0 || !IsGemmDtype(dtype)) continue;
    groups[{dtype, ClocksOf(row.source), StageOf(row.operation)}].push_back(
        {*shape, row.time.value, StackOf(row.source)});
  }
  for (const auto& [key, of_group] : groups) {
    if (question.TooFew(fmt::format("{} products", key.dtype), of_group.size())) continue;
    GemmCurve curve{.dtype = key.dtype, .clocks = key.clocks, .stage = key.stage};
    const bool cast = std::any_of(of_group.begin(), of_group.end(), [&](const auto& row) {
      return HoldsCast(key.dtype, row.source);
    });
    if (cast) {
      const GemmCurve* plain = FindGemm(curves, "bfloat16", key.clocks);
      curve.launch.value = plain != nullptr ? plain->launch.value : kTypicalLaunch;
    }
    const auto recipe = GemmRecipe(cast, key.dtype == "fp8_block" && key.stage.empty());
    const double octaves = KnotsApart(gpu);
    const std::array<double, 3> steps{1, octaves, octaves};
    Cover(curve.residual, of_group, recipe.at, steps);
    // A grouped or a sustained curve is near the plain or the burst one of the same GPU.
    const GemmCurve* prior =
        base == nullptr ? nullptr : FindGemm(*base, key.dtype, key.clocks, key.stage);
    if (prior == nullptr) prior = FindGemm(curves, key.dtype, key.clocks);
    CurveFit(recipe, question, prior).Run(curve, of_group);
    curves.gemm.push_back(std::move(curve));
  }
}

// --- Attention

Recipe<AttentionCurve, AttentionShape> AttentionRecipe() {
  return {.parameters = {{&AttentionCurve::rate_64, Share(0.45)},
                         {&AttentionCurve::rate_128, Share(0.6)},
                         {&AttentionCurve::rate_256, Share(0.6)},
                         {&AttentionCurve::hbm_efficiency, Share(0.5)},
                         {&AttentionCurve::launch, Positive(8e-6)},
                         {&AttentionCurve::overhead, Positive(100)},
                         {&AttentionCurve::quantisation, Share(0.5)}},
          .formula = [](const AttentionCurve& c, const AttentionShape& s,
                        const GpuSpec& gpu) { return AttentionFormula(c, s, gpu); },
          .at = [](const AttentionShape& s) { return List(Coordinates(s)); },
          .range = [](const AttentionShape& s) { return List(Coordinates(s)); },
          // Head sizes run different code: what one leaves over says little of the next.
          .tension = {.neighbours = 0.05, .zero = 0.01, .along = {1, 1, 0.02, 1}}};
}

void FitAttention(const Question& question, GpuCurves& curves) {
  const GpuCurves* base = question.base;
  std::map<std::string, std::vector<Row<AttentionShape>>> groups;
  for (std::size_t i : question.rows) {
    const Measurement& row = question.set.rows[i];
    const std::optional<AttentionShape> shape = AttentionShapeOf(row.operation);
    if (shape) {
      groups[KernelOf(row)].push_back({*shape, row.time.value, StackOf(row.source)});
    }
  }
  for (const auto& [kernel, of_group] : groups) {
    if (question.TooFew(fmt::format("attention {}", kernel), of_group.size())) continue;
    AttentionCurve curve{.kernel = kernel};
    const auto recipe = AttentionRecipe();
    const std::array<double, 4> steps{KnotsApart(question.gpu), 2, 1, 2};
    Cover(curve.residual, of_group, recipe.at, steps);
    std::set<double> sizes;
    for (const Row<AttentionShape>& row : of_group) {
      sizes.insert(std::round(1000 * std::log2(row.shape.head_size)) / 1000);
    }
    curve.residual.axes[2].assign(sizes.begin(), sizes.end());
    const AttentionCurve* prior = base == nullptr ? nullptr : FindAttention(*base, kernel);
    if (prior != nullptr && prior->kernel != kernel) prior = nullptr;
    CurveFit(recipe, question, prior).Run(curve, of_group);
    curves.attention.push_back(std::move(curve));
  }
}

// --- Memory-bound operators

void FitBandwidth(const Question& question, GpuCurves& curves) {
  const GpuCurves* base = question.base;
  std::map<std::pair<std::string, std::string>, std::vector<Row<Bytes>>> groups;
  for (std::size_t i : question.rows) {
    const Measurement& row = question.set.rows[i];
    if (const auto* m = std::get_if<MeasuredMemoryBound>(&row.operation)) {
      const std::string stack = StackOf(row.source);
      groups[{m->op, stack}].push_back({m->bytes, row.time.value, stack});
    }
  }
  const Recipe<BandwidthCurve, Bytes> recipe{
      .parameters = {{&BandwidthCurve::efficiency, Share(0.7)},
                     {&BandwidthCurve::launch, Positive(2e-6)}},
      .formula = [](const BandwidthCurve& c, const Bytes& b,
                    const GpuSpec& g) { return BandwidthFormula(c, b, g); },
      .at = [](const Bytes& b) { return std::vector{std::log2(b.value)}; },
      .range = [](const Bytes& b) { return std::vector{std::log2(b.value)}; },
      .tension = {.neighbours = 0.1, .zero = 0.02}};
  for (const auto& [key, of_group] : groups) {
    if (question.TooFew(fmt::format("{} ({})", key.first, key.second), of_group.size())) continue;
    BandwidthCurve curve{.op = key.first, .stack = key.second};
    constexpr std::array<double, 1> kSteps{0.5};
    Cover(curve.residual, of_group, recipe.at, kSteps);
    const BandwidthCurve* prior =
        base == nullptr ? nullptr : FindBandwidth(*base, key.first, key.second);
    CurveFit(recipe, question, prior).Run(curve, of_group);
    curves.bandwidth.push_back(std::move(curve));
  }
}

// --- Collectives

struct LinkedCollective {
  CollectiveShape shape;
  BytesPerSecond link;
};

// Larger messages take no less: where the rows' noise says otherwise, the sizes in question take
// their median (pool adjacent violators of the absolute error: the slow first calls of a series
// lift nothing).
void MakeMonotone(CollectiveCurve& curve, const LinkedCollective& like) {
  const std::vector<std::vector<double>>& axes = curve.residual.axes;
  const std::size_t lines = curve.residual.values.size() / axes[0].size();
  for (std::size_t line = 0; line < lines; ++line) {
    std::array<double, 4> at{};
    for (std::size_t d = axes.size(), rest = line; d-- > 1; rest /= axes[d].size()) {
      at[d] = axes[d][rest % axes[d].size()];
    }
    struct Pool {
      std::vector<double> logs;  // ascending
      double median = 0;
    };
    std::vector<Pool> pools;
    std::vector<double> formula;
    for (std::size_t b = 0; b < axes[0].size(); ++b) {
      at[0] = axes[0][b];
      const CollectiveShape shape = ShapeAt(at, like.shape);
      formula.push_back(std::log(CollectiveFormula(curve, shape, like.link).value));
      const double log = formula[b] + curve.residual.values[b * lines + line];
      pools.push_back({{log}, log});
      while (pools.size() > 1 && pools.back().median < pools[pools.size() - 2].median) {
        std::vector<double> last = std::move(pools.back().logs);
        pools.pop_back();
        std::vector<double>& logs = pools.back().logs;
        logs.insert(logs.end(), last.begin(), last.end());
        std::sort(logs.begin(), logs.end());
        pools.back().median = (logs[(logs.size() - 1) / 2] + logs[logs.size() / 2]) / 2;
      }
    }
    std::size_t b = 0;
    for (const Pool& pool : pools) {
      for (std::size_t i = 0; i < pool.logs.size(); ++i, ++b) {
        curve.residual.values[b * lines + line] =
            std::round(1000 * (pool.median - formula[b])) / 1000 + 0.0;
      }
    }
  }
}

struct CollectiveKey {
  bool single_fabric = false;  // after all of them together
  std::string op, library, fabric;
  auto operator<=>(const CollectiveKey&) const = default;
};

// How alike what two sizes leave over is, `octaves` apart: abruptly different, or smoothly
// (Matern's covariances of order 1/2 and 3/2).
double Abrupt(double octaves, double length) { return std::exp(-std::abs(octaves) / length); }
double Smooth(double octaves, double length) {
  const double x = std::sqrt(3.0) * std::abs(octaves) / length;
  return (1 + x) * std::exp(-x);
}

// Covariances and tensions: of those tried, what leaves the least error on shapes left out (three
// to five ways to divide them, and others that were not tried with).
//
// What two collectives of a ring leave over is alike by the share of a rank, at which protocols
// change, whatever the ranks and the operation; less by all of the bytes.  Where switches add up it
// is something else, integers differ smoothly, and so little between releases that it hardly
// counts.
double RingCovariance(std::span<const double> a, std::span<const double> b) {
  const double share = a[0] - b[0], ranks = a[1] - b[1], bytes = share + ranks;
  const CollectiveShape ring{.kind = CollectiveKind::kAllReduce};
  const CollectiveShape s = ShapeAt(a, ring), t = ShapeAt(b, ring);
  const double abrupt = Abrupt(share, 2), near = Abrupt(ranks, 3);
  double covariance = 0.05 * abrupt + 1.2 * Smooth(share, 8) + 0.007 * abrupt * near;
  if (s.in_switch == t.in_switch) covariance += 0.05 * abrupt * near + Smooth(share, 8);
  if (s.kind != t.kind) return covariance;
  covariance += 0.006 * abrupt * near + 0.0085 * Abrupt(bytes, 6);
  if (ranks != 0) return covariance;
  covariance += 0.0015 * abrupt;
  if (s.recent == t.recent) covariance += 0.0007 * abrupt;
  if (s.integers == t.integers) covariance += 0.0017 * Smooth(share, 8);
  return covariance;
}

// What is sent to each goes on in a line, which is also what a size beyond those measured takes.
double AllToAllCovariance(std::span<const double> a, std::span<const double> b) {
  const double share = a[0] - b[0], ranks = a[1] - b[1];
  const double abrupt = Abrupt(share, 1.7);
  double covariance = 32 * Smooth(share, 33) + 0.027 * abrupt * Abrupt(ranks, 6);
  if (ranks != 0) return covariance;
  covariance += 0.002 * Smooth(share, 9);
  if (a[3] == b[3]) covariance += 1e-5 * abrupt;
  return covariance;
}

GridTension TensionOf(const CollectiveKey& key) {
  // A ring's protocols change at one share of a rank, whatever the ranks and the operation, and
  // abruptly; a release's need not be at the others'.
  if (key.fabric.empty() && key.library == "nccl-tests" && key.op == "ring") {
    return {.neighbours = 0.006,
            .zero = 0.0003,
            .curvature = 0.006,
            .along = {0.05, 5, 0.5, 1},
            .parallel = {0, 0.08, 0.8, 0.002}};
  }
  // What is sent to each changes less, and not at the same share.
  if (key.fabric.empty() && key.library == "nccl-tests") {
    return {.neighbours = 0.13,
            .zero = 0.02,
            .along = {0.15, 0.3, 1, 0.2},
            .parallel = {0, 0.45, 0, 0.3}};
  }
  // Other kernels change at sizes of their own for each number of ranks.
  if (key.fabric.empty()) {
    return {.neighbours = 0.05, .zero = 0.01, .curvature = 0.05, .along = {0.5, 0.05, 1, 1}};
  }
  return {.neighbours = 0.03,
          .zero = 0.003,
          .curvature = 0.2,
          .along = {1.2, 0.3, 0.2, 1},
          .parallel = {0, 0.24, 0.01, 0}};
}

// Of collectives on links that are each GPU's own, or on PCIe; `reduces`: reduce-scatters among
// them.
Recipe<CollectiveCurve, LinkedCollective> CollectiveRecipe(const CollectiveKey& key, bool own_links,
                                                           bool reduces) {
  const bool across = !key.fabric.empty();
  // A step over NICs and switches takes longer (NCCL's tuning: 14 us), and so does starting.
  Recipe<CollectiveCurve, LinkedCollective> recipe{
      .parameters = {{&CollectiveCurve::base, Positive(across ? 20e-6 : 5e-6)},
                     {&CollectiveCurve::step, Positive(across ? 13e-6 : 0.8e-6)},
                     {&CollectiveCurve::efficiency, Positive(0.8)},
                     {&CollectiveCurve::sqrt_coefficient, Positive(across ? 10e-9 : 3e-9)}},
      .formula = [](const CollectiveCurve& c, const LinkedCollective& s,
                    const GpuSpec&) { return CollectiveFormula(c, s.shape, s.link); },
      .at = [](const LinkedCollective& s) { return List(ResidualCoordinates(s.shape)); },
      .range = [](const LinkedCollective& s) { return List(RangeCoordinates(s.shape)); },
      .tension = TensionOf(key)};
  if (!across && own_links && key.library == "nccl-tests") {
    recipe.covariance = key.op == "ring" ? RingCovariance : AllToAllCovariance;
    recipe.noise = key.op == "ring" ? 1e-3 : 1e-6;
  }
  if (!across) recipe.parameters.push_back({&CollectiveCurve::own_share, Positive(0.3)});
  if (!across && reduces) {
    recipe.parameters.push_back({&CollectiveCurve::own_reduced, Positive(0.2)});
  }
  if (!across && !own_links) {
    recipe.parameters.push_back({&CollectiveCurve::crowding, Positive(0.5)});
  }
  return recipe;
}

// In latency's realm two sizes are as good as three.
void ThinOut(std::vector<double>& sizes) {
  constexpr double kLatency = 12, kStep = 3;  // log2 of bytes
  std::erase_if(sizes, [](double s) { return s < kLatency && std::fmod(s, kStep) != 0; });
}

void FitCollectives(const Question& question, GpuCurves& curves) {
  const GpuSpec& gpu = question.gpu;
  const ClusterConfig* preset = PresetWithGpu(gpu);
  const bool bridged = preset != nullptr && preset->nvlink_bandwidth.value > 0;
  std::map<CollectiveKey, std::vector<Row<LinkedCollective>>> groups;
  for (std::size_t i : question.rows) {
    const Measurement& row = question.set.rows[i];
    const auto* c = std::get_if<MeasuredCollective>(&row.operation);
    if (c == nullptr) continue;
    const std::optional<CollectiveShape> shape = CollectiveShapeOf(row, gpu);
    const std::optional<PathProfile> path = PathOf(*c, gpu);
    if (!shape || !path || NarrowestLink(*path).value <= 0) continue;
    const std::string library = LibraryOf(*c), fabric = FabricOf(*c);
    const std::string op = CurveOp(shape->kind, !fabric.empty());
    const BytesPerSecond link = question.link.value > 0 ? question.link : NarrowestLink(*path);
    const Row<LinkedCollective> linked{{*shape, link}, row.time.value, library};
    groups[{!fabric.empty(), op, library, fabric}].push_back(linked);
    if (!fabric.empty()) {
      groups[{false, op, library, std::string(kAnyFabric)}].push_back(linked);
    }
  }
  for (const auto& [key, of_group] : groups) {
    // On top of all fabrics a few rows of one are enough.
    constexpr std::size_t kLeastOfFabric = 3;
    const std::size_t least = key.single_fabric ? kLeastOfFabric : kLeastRows;
    if (question.TooFew(fmt::format("{} ({})", key.op, key.library), of_group.size(), least)) {
      continue;
    }
    CollectiveCurve curve{.op = key.op, .library = key.library, .fabric = key.fabric};
    const bool reduces =
        std::any_of(of_group.begin(), of_group.end(), [](const Row<LinkedCollective>& row) {
          return row.shape.shape.kind == CollectiveKind::kReduceScatter;
        });
    const auto recipe = CollectiveRecipe(key, bridged && key.library != "torch, pairs", reduces);
    constexpr std::array<double, 4> kSteps{1, 1, 1, 1};
    Cover(curve.residual, of_group, recipe.at, kSteps);
    ThinOut(curve.residual.axes[0]);
    const CollectiveCurve* prior =
        key.single_fabric ? FindCollective(curves, key.op, key.library, kAnyFabric) : nullptr;
    if (prior == nullptr && question.base != nullptr) {
      prior = FindCollective(*question.base, key.op, key.library, key.fabric);
    }
    if (prior != nullptr) {
      // What was not measured here, but there; inside a domain the sizes are alike.
      for (std::size_t d = key.fabric.empty() ? 1 : 0; d < kSteps.size(); ++d) {
        const std::vector<double>& there = prior->residual.axes[d];
        std::vector<double>& here = curve.residual.axes[d];
        std::set<double> both(here.begin(), here.end());
        both.insert(there.begin(), there.end());
        here.assign(both.begin(), both.end());
      }
    }
    CurveFit(recipe, question, prior).Run(curve, of_group);
    MakeMonotone(curve, of_group[0].shape);
    curves.collective.push_back(std::move(curve));
  }
}

// The most that a row reached, and a tenth, so that no fit of noisy rows is beyond it.
MeasuredRates RatesOf(const MeasurementSet& set, const std::vector<std::size_t>& rows) {
  constexpr double kMargin = 1.1;
  MeasuredRates rates;
  for (std::size_t i : rows) {
    const Measurement& row = set.rows[i];
    const auto raise = [&](auto& to, auto amount) {
      to = std::max(to, kMargin * (amount / row.time));
    };
    if (const std::optional<GemmShape> g = GemmShapeOf(row.operation)) {
      const Flops flops(2 * g->groups * g->m * g->n * g->k);
      if (row.dtype == "float32") raise(rates.fp32, flops);
      if (row.dtype == "float64") raise(rates.fp64, flops);
    } else if (const auto* m = std::get_if<MeasuredMemoryBound>(&row.operation)) {
      raise(rates.memory, m->bytes);
    } else if (const auto* c = std::get_if<MeasuredCollective>(&row.operation)) {
      if (const CollectiveKind* kind = KindOf(c->op); kind != nullptr && c->nodes == 1) {
        raise(rates.link, RingBytesSentFactor(*kind, int(c->gpus)) * c->bytes);
      }
    }
  }
  return rates;
}

// What `base` has and `curves` lacks.
template <class Curve, class Same>
void Inherit(std::vector<Curve>& curves, const std::vector<Curve>& base, const std::string& from,
             const Same& same) {
  for (const Curve& b : base) {
    if (std::any_of(curves.begin(), curves.end(), [&](const Curve& c) { return same(c, b); })) {
      continue;
    }
    curves.push_back(b);
    if (b.fit.source.find("(of ") == std::string::npos) {
      curves.back().fit.source += fmt::format(" (of {})", from);
    }
  }
}

}  // namespace

GpuCurves Calibrate(const MeasurementSet& set, const std::string& gpu_name, const GpuCurves* base,
                    bool leave_out, std::vector<std::string>* without_curve) {
  GpuSpec gpu = FindGpu(gpu_name);
  std::vector<std::size_t> rows;
  std::set<std::string> others;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const GpuSpec* of_row = GpuNamed(set.rows[i].gpu);
    if (of_row != nullptr && of_row->name == gpu.name) {
      rows.push_back(i);
    } else {
      others.insert(Printable(set.rows[i].gpu, kMostNameShown));
    }
  }
  if (rows.empty() && base == nullptr) {
    std::string list;
    for (const std::string& other : others) list += (list.empty() ? "" : ", ") + other;
    throw ConfigError(fmt::format("no measurement is of {}; there are some of {}", gpu.name,
                                  list.empty() ? "nothing" : list));
  }
  GpuCurves curves{.gpu = gpu.name};
  curves.provenance = fmt::format("millwright calibrate, {} rows of {}", rows.size(), gpu.name);
  if (base != nullptr) curves.provenance += fmt::format("; the rest from {}", base->gpu);
  if (gpu.placeholder) {
    curves.rates = rows.empty() && base != nullptr ? base->rates : RatesOf(set, rows);
    gpu = WithRates(gpu, curves.rates);
  }
  const Question question{set, rows, gpu, base, leave_out, curves.rates.link, without_curve};
  FitGemms(question, curves);
  FitAttention(question, curves);
  FitBandwidth(question, curves);
  FitCollectives(question, curves);
  if (base != nullptr) {
    Inherit(curves.gemm, base->gemm, base->gpu, [](const GemmCurve& a, const GemmCurve& b) {
      return a.dtype == b.dtype && a.clocks == b.clocks && a.stage == b.stage;
    });
    Inherit(curves.attention, base->attention, base->gpu,
            [](const AttentionCurve& a, const AttentionCurve& b) { return a.kernel == b.kernel; });
    Inherit(curves.bandwidth, base->bandwidth, base->gpu,
            [](const BandwidthCurve& a, const BandwidthCurve& b) {
              return a.op == b.op && a.stack == b.stack;
            });
    Inherit(curves.collective, base->collective, base->gpu,
            [](const CollectiveCurve& a, const CollectiveCurve& b) {
              return a.op == b.op && a.library == b.library && a.fabric == b.fabric;
            });
  }
  return curves;
}

std::vector<OperationPrediction> PredictLeftOut(const MeasurementSet& set) {
  std::set<std::string> gpus;
  std::vector<int> folds;
  for (const Measurement& row : set.rows) {
    const GpuSpec* gpu = GpuNamed(row.gpu);
    if (gpu != nullptr) gpus.insert(gpu->name);
    folds.push_back(static_cast<int>(HashOf(ShapeText(row.operation)) % kFolds));
  }
  std::vector<OperationPrediction> predictions(set.rows.size());
  for (int fold = 0; fold < kFolds; ++fold) {
    MeasurementSet seen{.files = set.files};
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      if (folds[i] != fold) seen.rows.push_back(set.rows[i]);
    }
    std::map<std::string, GpuCurves> curves;
    const GpuCurves nothing;  // keeps a GPU with no rows to fit from having one with none
    for (const std::string& gpu : gpus) curves[gpu] = Calibrate(seen, gpu, &nothing, false);
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      if (folds[i] != fold) continue;
      const GpuSpec* gpu = GpuNamed(set.rows[i].gpu);
      predictions[i] = PredictOperation(set.rows[i], gpu == nullptr ? nullptr : &curves[gpu->name]);
    }
  }
  return predictions;
}

}  // namespace millwright
