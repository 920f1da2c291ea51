// SPDX-License-Identifier: Apache-2.0
#include "runtime/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "runtime/cpu_backend.h"
#include "runtime/exchange.h"
#include "runtime/execution.h"
#include "runtime/reference.h"
#include "runtime/resident_memory.h"

namespace millwright {
namespace {

// max|a - b| / max|b|: what arithmetic in another order may be off.
struct Limits {
  double loss = 0, tensors = 0;
};
Limits LimitsOf(ElementType type, bool fp8) {
  switch (type) {
    case ElementType::kFp64:
      return {.loss = 1e-10, .tensors = 1e-10};
    case ElementType::kFp32:
      // An operand that is rounded to FP8 the other way moves the operands of later products by
      // more than lies between two that are rounded alike, and gradients are then as far from the
      // reference's as from those without FP8: some 20%, where loss is off by 0.2% at most.  In
      // double no rounding comes out another way.
      if (fp8) return {.loss = 1e-2, .tensors = 5e-1};
      return {.loss = 1e-4, .tensors = 1e-4};
    case ElementType::kBf16:
      // Each activation is rounded to 2^-9 of itself; a hundred such roundings, added as errors
      // that know nothing of each other, are 2%.  Of a gradient that a few tokens make it is more.
      return {.loss = 5e-2, .tensors = fp8 ? 5e-1 : 5e-2};
  }
  return {};
}

constexpr int kReportTag = 1 << 30;  // above every tag of a step

// Part of a tensor as one message: layer, which weight of it, first element, values.
using Message = std::vector<double>;

std::vector<Message> MessagesOf(const Workload& workload, const Execution& execution,
                                bool gradients) {
  std::vector<Message> messages;
  execution.ForEachTensor([&](const TensorPart& part, std::int64_t first,
                              std::span<const double> weights,
                              std::span<const double> of_gradients) {
    const std::vector<Weight> all = WeightsOf(workload.model, part.name.layer);
    const auto index =
        std::find_if(all.begin(), all.end(),
                     [&](const Weight& weight) { return weight.name == part.name.weight; }) -
        all.begin();
    const std::span<const double> values = gradients ? of_gradients : weights;
    Message message{double(part.name.layer), double(index), double(first)};
    message.insert(message.end(), values.begin(), values.end());
    messages.push_back(std::move(message));
  });
  return messages;
}

// What has come in of a tensor, and how far it is from the reference.
struct Arrived {
  std::vector<char> there;
  double off = 0;
};

class TensorComparison {
 public:
  TensorComparison(const Workload& workload, const Reference::Tensors& reference)
      : workload_(workload), reference_(reference) {
    for (const auto& [name, values] : reference) {
      arrived_[name].there.assign(values.size(), char(0));
    }
  }

  void Take(int rank, const Message& message) {
    const int layer = int(message[0]);
    const TensorPart part =
        PartsOf(workload_, layer, PlaceOf(workload_.parallel, rank)).at(std::size_t(message[1]));
    Arrived& arrived = arrived_.at(part.name);
    const std::vector<double>& reference = reference_.at(part.name);
    for (std::size_t i = 3; i < message.size(); ++i) {
      const std::int64_t element = std::int64_t(message[2]) + std::int64_t(i) - 3;
      const std::int64_t row = part.global_row(element / part.cols);
      const std::int64_t col = part.first_col + element % part.cols;
      double expected = 0;  // of padding
      if (row < part.whole.rows) {
        const auto at = std::size_t(row * part.whole.cols + col);
        expected = reference[at];
        arrived.there[at] = 1;
      }
      const double off = std::abs(message[i] - expected);
      arrived.off = off <= arrived.off   ? arrived.off
                    : std::isfinite(off) ? off
                                         : std::numeric_limits<double>::infinity();
    }
  }

  // Of each tensor, how far off its furthest element is.
  std::map<TensorName, double> off() const {
    std::map<TensorName, double> all;
    for (const auto& [name, arrived] : arrived_) all[name] = arrived.off;
    return all;
  }

  // The tensor that comes nearest to its limit, or is furthest over it.  `also` may be off beside
  // `limit`, of each tensor.
  Agreement Result(std::string what, double limit, const std::map<TensorName, double>& also) const {
    Agreement result{.what = std::move(what), .limit = limit};
    for (const auto& [name, arrived] : arrived_) {
      const std::vector<double>& reference = reference_.at(name);
      double largest = 0;
      for (double value : reference) largest = std::max(largest, std::abs(value));
      double error = largest > 0 ? arrived.off / largest : arrived.off;
      if (std::count(arrived.there.begin(), arrived.there.end(), char(0)) > 0) {
        error = std::numeric_limits<double>::infinity();
      }
      const auto more = also.find(name);
      const double own = limit + (more != also.end() && largest > 0 ? more->second / largest : 0);
      if (result.compared == 0 || error / own > result.error / result.limit) {
        result.error = error;
        result.limit = own;
        result.worst = Text(name, workload_.model);
      }
      ++result.compared;
      result.elements += std::int64_t(reference.size());
    }
    return result;
  }

 private:
  const Workload& workload_;
  const Reference::Tensors& reference_;
  std::map<TensorName, Arrived> arrived_;
};

// Rank 0: of all ranks against the reference; others send theirs.  What each tensor is off by.
std::map<TensorName, double> Compare(const Workload& workload, const Execution& execution,
                                     bool gradients, const Reference* reference, double limit,
                                     const std::map<TensorName, double>& also,
                                     Communicator& communicator, RunOutcome& outcome) {
  const std::vector<Message> own = MessagesOf(workload, execution, gradients);
  if (communicator.rank() != 0) {
    const std::uint64_t count = own.size();
    communicator.Send(0, kReportTag, std::as_bytes(std::span(&count, 1)));
    for (const Message& message : own) {
      const std::uint64_t size = message.size();
      communicator.Send(0, kReportTag, std::as_bytes(std::span(&size, 1)));
      communicator.Send(0, kReportTag, std::as_bytes(std::span(message)));
    }
    return {};
  }
  TensorComparison comparison(workload, gradients ? reference->gradients() : reference->weights());
  for (const Message& message : own) comparison.Take(0, message);
  for (int rank = 1; rank < communicator.size(); ++rank) {
    std::uint64_t count = 0, size = 0;
    communicator.Receive(rank, kReportTag, std::as_writable_bytes(std::span(&count, 1)));
    for (std::uint64_t i = 0; i < count; ++i) {
      communicator.Receive(rank, kReportTag, std::as_writable_bytes(std::span(&size, 1)));
      Message message(size);
      communicator.Receive(rank, kReportTag, std::as_writable_bytes(std::span(message)));
      comparison.Take(rank, message);
    }
  }
  outcome.agreements.push_back(comparison.Result(gradients ? "gradients" : "weights", limit, also));
  return comparison.off();
}

void CheckSameWorkload(const Workload& workload, Exchange& exchange) {
  Workload copy = workload;
  std::string text = WriteConfig([&](ConfigIo& io) {
    io.Object("model", "", [&] { Fields(io, copy.model); });
    io.Object("training", "", [&] { Fields(io, copy.training); });
    io.Object("parallel", "", [&] { Fields(io, copy.parallel); });
  });
  text +=
      fmt::format("{} {} {}", workload.schedule.name, workload.schedule.passes(), workload.seed);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (char c : text) hash = (hash ^ std::uint64_t(static_cast<unsigned char>(c))) * 0x100000001b3;
  const double value = double(hash >> 12);  // exact
  std::vector<double> both{value, -value};
  exchange.InPlace(CollectiveKind::kAllReduce, {.first = 0, .stride = 1, .ranks = workload.ranks()},
                   std::span(both), Reduction::kMaximum);
  if (both[0] != -both[1]) throw ConfigError("the ranks were given different jobs");
}

// Where rounding may send a token to another expert than the reference, nothing can be compared.
void CheckDecided(const Reference& reference, const Workload& workload, ElementType type) {
  // Of logits around 1: what they are off by, with a factor of ten to spare.
  const bool rounds = MultipliesFp8(workload) && type != ElementType::kFp64;
  const double least = rounds                       ? 1e-1
                       : type == ElementType::kFp64 ? 1e-12
                       : type == ElementType::kFp32 ? 1e-5
                                                    : 1e-2;
  if (reference.routing_margin() >= least) return;
  throw ConfigError(fmt::format(
      "with seed {} a token's last expert is ahead of the next by a logit of {:.1e} only, so that "
      "rounding may choose the other: --verify needs {}",
      workload.seed, reference.routing_margin(), rounds ? "--dtype fp64" : "another --seed"));
}

// Calls of a step by name and kind, as lines; rank 0 adds up those of all ranks.
void CollectSent(const std::vector<ExecutedCall>& calls, const RankOfRun& own,
                 Communicator& communicator, RunOutcome& outcome) {
  std::vector<SentBytes> sums;
  const auto add = [](std::vector<SentBytes>& to, const SentBytes& one) {
    const auto known = std::find_if(to.begin(), to.end(), [&](const SentBytes& sum) {
      return sum.name == one.name && sum.kind == one.kind;
    });
    SentBytes& sum = known != to.end() ? *known : to.emplace_back(one.name, one.kind, 0, 0);
    sum.calls += one.calls;
    sum.bytes += one.bytes;
  };
  for (const ExecutedCall& call : calls) {
    if (call.ranks == 1 && call.kind != CollectiveKind::kSendRecv) continue;
    add(sums, {std::string(call.name), call.kind, 1, call.sent_bytes});
  }
  std::string text = fmt::format("{} {} {} {} {}\n", own.sent, own.peak, own.resident,
                                 own.busy.value, own.step.value);
  for (const SentBytes& sum : sums) {
    text += fmt::format("{} {} {} {}\n", int(sum.kind), sum.calls, sum.bytes, sum.name);
  }
  if (communicator.rank() != 0) {
    SendText(communicator, 0, kReportTag, text);
    return;
  }
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::istringstream lines(rank == 0 ? text : ReceiveText(communicator, rank, kReportTag));
    RankOfRun& of_rank = outcome.ranks.emplace_back(RankOfRun{.rank = rank});
    lines >> of_rank.sent >> of_rank.peak >> of_rank.resident >> of_rank.busy.value >>
        of_rank.step.value;
    for (int kind = 0; lines >> kind;) {
      SentBytes one{.kind = CollectiveKind(kind)};
      lines >> one.calls >> one.bytes >> std::ws;
      std::getline(lines, one.name);
      add(outcome.sent, one);
    }
  }
}

using Records = std::vector<ExecutedOperator>;

// Of all ranks' records of each step, rank 0 takes those of the median step.
void CollectRecords(const std::vector<Records>& steps, Communicator& communicator,
                    RunOutcome& outcome) {
  std::vector<std::size_t> order;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return outcome.seconds[a] < outcome.seconds[b];
  });
  const std::size_t median = order[(order.size() - 1) / 2];
  std::string text;
  for (const ExecutedOperator& op : steps[median]) {
    text += fmt::format("{} {} {} {} {} {} {} {} {}\n", int(op.stream), int(op.pass),
                        int(op.recomputed), op.stage, op.micro_batch, op.start.value, op.end.value,
                        op.processor.value, op.name);
  }
  if (communicator.rank() != 0) {
    SendText(communicator, 0, kReportTag, text);
    return;
  }
  outcome.recorded.number = int(median);
  outcome.recorded.step = outcome.seconds[median];
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::istringstream lines(rank == 0 ? text : ReceiveText(communicator, rank, kReportTag));
    std::vector<RecordedOperator>& of_rank = outcome.recorded.ranks.emplace_back();
    for (int stream = 0; lines >> stream;) {
      RecordedOperator op{.stream = Stream(stream)};
      int pass = 0;
      lines >> pass >> op.recomputed >> op.stage >> op.micro_batch >> op.start.value >>
          op.end.value >> op.processor.value >> std::ws;
      op.pass = PassKind(pass);
      std::getline(lines, op.name);
      of_rank.push_back(std::move(op));
    }
  }
}

}  // namespace

std::string_view Name(RunBackend backend) {
  switch (backend) {
    case RunBackend::kMpi:
      return "mpi";
    case RunBackend::kThreads:
      return "threads";
    case RunBackend::kCuda:
      return "cuda";
  }
  return "";
}

RunOutcome RunSteps(const Workload& workload, const RunOptions& options, Communicator& communicator,
                    Backend& backend) {
  const bool single = options.type != ElementType::kFp64;
  const Limits limits = LimitsOf(options.type, MultipliesFp8(workload));
  const bool compares = options.verify && communicator.rank() == 0;
  Exchange exchange(communicator);
  const RankGroup everyone{.first = 0, .stride = 1, .ranks = workload.ranks()};
  CheckSameWorkload(workload, exchange);
  Execution execution(workload, backend);
  std::optional<Reference> reference;
  if (compares) reference.emplace(workload, single);
  const Reference* of_reference = reference ? &*reference : nullptr;

  RunOutcome outcome;
  Agreement losses{.what = "loss", .worst = {}, .limit = limits.loss};
  RankOfRun own;
  std::vector<Records> records;
  std::map<TensorName, double> adam_makes;  // of what gradients are off
  for (int step = 0; step < options.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    outcome.losses.push_back(execution.ComputeGradients(step));
    const auto pause = std::chrono::steady_clock::now();
    double expected = 0;
    if (compares) {
      expected = reference->ComputeGradients(step);
      if (step == 0) CheckDecided(*reference, workload, options.type);
    }
    if (options.verify && step == 0) {
      adam_makes = Compare(workload, execution, true, of_reference, limits.tensors, {},
                           communicator, outcome);
      // A gradient that is zero but for rounding, as a key bias's is without rotation, is divided
      // by epsilon alone.
      for (auto& [name, off] : adam_makes) {
        if (!std::isfinite(off)) off = 0;  // not a matter of rounding
        off *= options.steps * options.adam.rate / options.adam.epsilon;
      }
    }
    if (compares) {
      const double error = std::abs(outcome.losses.back() - expected) / std::abs(expected);
      if (losses.compared == 0 || !(error <= losses.error)) {
        losses.error = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        losses.worst = fmt::format("step {}", step + 1);
      }
      ++losses.compared;
      ++losses.elements;
      reference->Update(options.adam);
    }
    if (options.verify) {
      // Or the others' update would be timed with their wait for rank 0's reference.
      double ready = 0;
      exchange.InPlace(CollectiveKind::kAllReduce, everyone, std::span(&ready, 1));
    }
    const auto go_on = std::chrono::steady_clock::now();
    execution.Update(options.adam);
    backend.Synchronize();
    const auto end = std::chrono::steady_clock::now();
    own.step = Seconds(std::chrono::duration<double>((pause - start) + (end - go_on)).count());
    double slowest = own.step.value;
    exchange.InPlace(CollectiveKind::kAllReduce, everyone, std::span(&slowest, 1),
                     Reduction::kMaximum);
    outcome.seconds.emplace_back(slowest);
    if (options.record) records.push_back(execution.operators());
  }
  outcome.attention_by = backend.AttentionBy();
  own.peak = backend.peak_bytes();
  own.resident = PeakResidentBytes();
  for (const ExecutedCall& call : execution.calls()) own.sent += call.sent_bytes;
  for (const ExecutedOperator& op : execution.operators()) {
    if (op.of_pass()) own.busy += op.end - op.start;
  }
  CollectSent(execution.calls(), own, communicator, outcome);
  if (options.record) CollectRecords(records, communicator, outcome);
  if (compares) outcome.agreements.insert(outcome.agreements.begin(), losses);
  // In single precision Adam turns the sign of a gradient near zero into a whole step.
  if (options.verify && !single) {
    Compare(workload, execution, false, of_reference, limits.tensors, adam_makes, communicator,
            outcome);
  }
  return outcome;
}

RunOutcome RunSteps(const Workload& workload, const RunOptions& options,
                    Communicator& communicator) {
  switch (options.type) {
    case ElementType::kFp64: {
      CpuBackend<double> backend(communicator);
      return RunSteps(workload, options, communicator, backend);
    }
    case ElementType::kFp32: {
      CpuBackend<float> backend(communicator);
      return RunSteps(workload, options, communicator, backend);
    }
    case ElementType::kBf16:
      throw ConfigError(
          "--dtype bf16 is for --backend cuda: on CPUs fp64 and fp32 are computed in");
  }
  return {};
}

}  // namespace millwright
