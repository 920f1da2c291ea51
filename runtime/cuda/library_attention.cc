// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/library_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace millwright {
namespace {

// Of BF16 with its 8 bits, to the nearest.
constexpr double kRounding = 1.0 / 512;
// A kernel on tensor cores rounds the softmax, or its gradient, to BF16 before it multiplies, and
// like ours what comes out: of sums of many numbers of either sign each is a rounding of the sum,
// about.  16 of them leave room for numbers that cancel; a wrong mask, scale or head is off by all
// of it.
constexpr double kMostOff = 16 * kRounding;

struct Output {
  std::string_view name;
  View* view;
  std::int64_t row = 1;  // elements that belong together: a row of a head
};

std::vector<Output> OutputsOf(AttentionCall& call) {
  if (auto* op = std::get_if<compute::Attention>(&call)) {
    return {{"the output", &op->output, op->layout.head_size}, {"the log sum", &op->log_sum}};
  }
  auto& op = std::get<compute::AttentionBackward>(call);
  const std::int64_t e = op.layout.head_size;
  return {{"dq", &op.dq, e}, {"dk", &op.dk, e}, {"dv", &op.dv, e}};
}

double Norm(std::span<const double> row) {
  double sum = 0;
  for (double value : row) sum += value * value;
  return std::sqrt(sum);
}

// The largest difference of two rows, of the own one and the mean one together, so that rows of
// next to nothing (dq of a sequence's first token is 0) do not count; infinite where one is no
// number.
double FurthestRow(const std::vector<double>& own, const std::vector<double>& other,
                   std::int64_t row) {
  const auto width = std::size_t(row);
  const double mean = Norm(own) * std::sqrt(double(width) / double(own.size()));
  double furthest = 0;
  std::vector<double> difference(width);
  for (std::size_t at = 0; at < own.size(); at += width) {
    const std::span<const double> ours(own.data() + at, width);
    for (std::size_t i = 0; i < width; ++i) difference[i] = other[at + i] - ours[i];
    const double off = Norm(difference);
    if (off == 0) continue;
    const double of_all = off / (Norm(ours) + mean);
    if (!std::isfinite(of_all)) return std::numeric_limits<double>::infinity();
    furthest = std::max(furthest, of_all);
  }
  return furthest;
}

// Of logarithms, whose differences are shares of the softmax.
double FurthestLogarithm(const std::vector<double>& own, const std::vector<double>& other) {
  double furthest = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double off = std::abs(other[i] - own[i]);
    if (!std::isfinite(off)) return std::numeric_limits<double>::infinity();
    furthest = std::max(furthest, off);
  }
  return furthest;
}

}  // namespace

LibraryAttention::LibraryAttention(const GpuCalls& calls, Backend& backend, ElementType type,
                                   std::function<void(const std::string&)> warn)
    : calls_(calls), backend_(backend), type_(type), warn_(std::move(warn)) {}

LibraryAttention::~LibraryAttention() {
  if (handle_ != nullptr) calls_.attention_destroy(handle_);
}

auto LibraryAttention::ShapeOf(const AttentionCall& call) -> Shape {
  return std::visit(
      [&](const auto& op) -> Shape {
        return {.pass = call.index(), .rows = op.q.rows, .layout = op.layout};
      },
      call);
}

// Sequences of one token have nothing to attend to.
bool LibraryAttention::Takes(const Shape& shape) const {
  return calls_.attention_takes && shape.rows > shape.layout.sequences &&
         calls_.attention_takes(shape.layout, type_);
}

bool LibraryAttention::Run(const AttentionCall& call, GpuCalls::Handle stream,
                           GpuCalls::Status& problem) {
  const auto [found, first] = choices_.try_emplace(ShapeOf(call));
  const auto& [shape, choice] = *found;
  if (first) {
    if (Takes(shape)) found->second = Choose(call, shape, stream);
    ++(choice.library ? by_library_ : by_own_);
    return choice.library;
  }
  if (!choice.library) return false;
  problem = Call(call, choice.workspace, stream);
  return true;
}

auto LibraryAttention::Choose(const AttentionCall& call, const Shape& shape,
                              GpuCalls::Handle stream) -> Choice {
  Choice choice;
  std::string problem = Start();
  if (problem.empty()) problem = calls_.attention_prepare(handle_, call, choice.workspace);
  if (problem.empty()) {
    AttentionCall poisoned = call;
    for (const Output& output : OutputsOf(poisoned)) {
      backend_.Run(
          compute::Fill{.to = *output.view, .value = std::numeric_limits<double>::quiet_NaN()});
    }
    problem = Call(call, choice.workspace, stream);
  }
  if (problem.empty()) problem = Difference(call);
  choice.library = problem.empty();
  if (!choice.library && !std::exchange(warned_, true) && warn_) {
    const AttentionLayout& layout = shape.layout;
    warn_(fmt::format(
        "attention is computed by our own kernels where {} cannot: {} of {} x {} tokens, {} heads "
        "of {} for {} of keys: {}",
        name_.empty() ? "a library" : name_, shape.pass == 0 ? "forward" : "backward",
        layout.sequences, shape.rows / layout.sequences, layout.heads, layout.head_size,
        layout.groups, problem));
  }
  return choice;
}

GpuCalls::Status LibraryAttention::Start() {
  if (handle_ == nullptr && missing_.empty()) {
    missing_ = calls_.attention_create(handle_, name_);
    if (!missing_.empty()) handle_ = nullptr;
  }
  return missing_;
}

GpuCalls::Status LibraryAttention::Call(const AttentionCall& call, std::int64_t workspace,
                                        GpuCalls::Handle stream) {
  Tensor scratch(backend_, 1, workspace, Element::kFp8);  // of elements of a byte
  return calls_.attention_run(handle_, call, scratch.view().data, stream);
}

std::string LibraryAttention::Difference(const AttentionCall& call) {
  AttentionCall theirs = call, ours = call;
  const std::vector<Output> theirs_of = OutputsOf(theirs), ours_of = OutputsOf(ours);
  std::vector<Tensor> tensors;
  for (const Output& output : ours_of) {
    const View& like = *output.view;
    *output.view = tensors.emplace_back(backend_, like.rows, like.cols, like.element);
  }
  if (const auto* op = std::get_if<compute::Attention>(&ours)) {
    backend_.Backend::Attend(*op);
  } else {
    backend_.Backend::AttendBackward(std::get<compute::AttentionBackward>(ours));
  }
  for (std::size_t i = 0; i < ours_of.size(); ++i) {
    const std::vector<double> own = backend_.Download(*ours_of[i].view),
                              other = backend_.Download(*theirs_of[i].view);
    const bool logarithm = ours_of[i].row == 1;
    const double off =
        logarithm ? FurthestLogarithm(own, other) : FurthestRow(own, other, ours_of[i].row);
    const double most = logarithm ? kRounding : kMostOff;
    if (!(off <= most)) {
      return fmt::format("{} is off by {:.2g} where BF16 leaves {:.2g}", ours_of[i].name, off,
                         most);
    }
  }
  return "";
}

std::string LibraryAttention::Name() const {
  if (by_library_ == 0) return "own kernels";
  if (by_own_ == 0) return name_;
  return fmt::format("{}, own kernels of {} of {} shapes", name_, by_own_, by_library_ + by_own_);
}

}  // namespace millwright
