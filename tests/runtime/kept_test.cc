// SPDX-License-Identifier: Apache-2.0
//
// What a rank really keeps from pass to pass against what the memory model charges for it.
//
// After a layer's forward pass, tensor by tensor: the elements that are held x the width that
// cost_models/operators charges are the bytes of its list, exactly; and nothing else is held. After
// the input gradients of a split backward: together what HeldForWeights says.  In a step, in the
// order executed: the peak of what is held is that of what the simulated step's tasks take and give
// back.
//
// Not the same, by name:
// - logits: charged are 10 bytes each (BF16, an fp32 softmax and an fp32 copy; 6 where the loss is
//   fused), kept is one element, from which with `maximum` and `sum` the softmax is computed again.
//   One element stands for these bytes here;
// - of each token of the head its label, `maximum` and `sum`, and of each routed row what it counts
//   and its indices are kept, and not charged;
// - rows of experts are charged as if routing were balanced: executed are gathered / (etp x sent)
// of
//   them, as RoutedRows counts them of the layer and micro-batch;
// - attention is always computed block by block: what keeps a softmax is not executed so.
// Transients are left out on both sides: the simulation's working sets, and whatever is given back
// within a layer's pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/cpu_backend.h"
#include "runtime/execution.h"
#include "sim/simulate.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

using ByTensor = std::map<std::string, double>;  // bytes

double LogitWidth(const TrainingConfig& training) { return training.fused_cross_entropy ? 6 : 10; }

// Of a unit's operators, what is charged from forward to backward.  `routed`: rows executed over
// rows charged, as a fraction.
ByTensor Charged(const Unit& unit, std::pair<double, double> routed) {
  ByTensor bytes;
  bool of_experts = false;
  for (const Operator& op : unit.operators) {
    of_experts = of_experts || op.name == "permute";
    for (const SavedTensor& tensor : op.saved) {
      if (unit.recomputed ? !tensor.layer_input : (tensor.modules & unit.recomputes) != 0) continue;
      const bool rows = of_experts && tensor.name != "norm input";
      const double executed =
          rows ? tensor.bytes.value * routed.first / routed.second : tensor.bytes.value;
      if (executed > 0) bytes[(rows ? "expert " : "") + std::string(tensor.name)] += executed;
    }
  }
  return bytes;
}

double ChargedForWeights(const Unit& unit, std::pair<double, double> routed) {
  double bytes = 0;
  bool of_experts = false;
  for (const Operator& op : unit.operators) {
    of_experts = of_experts || op.name == "permute";
    bytes += of_experts ? op.held_for_weight.value * routed.first / routed.second
                        : op.held_for_weight.value;
  }
  return bytes;
}

// The same of what is held, by the list's names and widths.
ByTensor Held(const Saved& s, double logit_width) {
  const SavedExperts& e = s.experts;
  ByTensor bytes;
  const auto add = [&](const char* name, double width,
                       std::initializer_list<const Tensor*> tensors) {
    double elements = 0;
    for (const Tensor* tensor : tensors) elements += double(tensor->size());
    if (elements > 0) bytes[name] = width * elements;
  };
  add("norm input", 2, {&s.input, &s.middle});
  add("norm output", 2, {&s.normed[0], &s.normed[1]});
  add("norm statistics", 4, {&s.statistics[0], &s.statistics[1]});
  add("qk norm input", 2, {&s.q_input, &s.k_input});
  add("qk norm statistics", 4, {&s.q_statistics, &s.k_statistics});
  add("query", 2, {&s.q});
  add("key", 2, {&s.k});
  add("value", 2, {&s.v});
  add("attention output", 2, {&s.attended});
  add("log-sum-exp", 4, {&s.log_sum});
  add("fc1 output", 2, {&s.fc1});
  add("fc2 input", 2, {&s.fc2_input});
  add("router logits", 4, {&e.logits});
  add("expert permuted tokens", 2, {&e.input});
  add("expert fc1 output", 2, {&e.fc1});
  add("expert fc2 input", 2, {&e.fc2_input});
  add("logits", logit_width, {&s.logits});
  return bytes;
}

double HeldForWeights(const Saved& s) {
  const SavedExperts& e = s.experts;
  double elements = 0;
  for (const Tensor* tensor :
       {&s.normed[0], &s.normed[1], &s.attended, &s.fc2_input, &s.dq, &s.dk, &s.dv, &s.dattention,
        &s.dfc1, &s.dfc2, &s.dlogits, &e.input, &e.fc2_input, &e.dfc1, &e.dfc2}) {
    elements += double(tensor->size());
  }
  return 2 * elements + 4 * double(e.dlogits.size());
}

// Elements that nothing is charged for.
std::int64_t NotCharged(const Saved& s) {
  const SavedExperts& e = s.experts;
  std::int64_t elements = 0;
  for (const Tensor* tensor :
       {&s.labels, &s.maximum, &s.sum, &e.routes.chosen, &e.routes.tokens, &e.routes.slots,
        &e.routes.copies, &e.routes.sorted, &e.routes.unsorted, &e.row_weights, &e.row_numbers}) {
    elements += tensor->size();
  }
  return elements;
}

double Sum(const ByTensor& bytes) {
  double sum = 0;
  for (const auto& [name, of_tensor] : bytes) sum += of_tensor;
  return sum;
}

// Every element is as wide in fp32, indices too: what the tensors of `bytes` really take.
std::int64_t RealBytes(const Saved& s) {
  std::int64_t elements = NotCharged(s);
  for (const auto& [name, bytes] : Held(s, 2)) {
    const bool wide =
        name.ends_with("statistics") || name == "log-sum-exp" || name == "router logits";
    elements += std::int64_t(bytes / (wide ? 4 : 2));
  }
  return 4 * elements;
}

// Rows executed, over `etp` x rows sent: what is charged at a moe_imbalance of 1.
std::pair<double, double> RoutedShare(const Execution& execution, const Unit& unit, int micro_batch,
                                      int expert_tensor) {
  for (const RoutedRows& rows : execution.routed()) {
    if (rows.layer == unit.layer && rows.micro_batch == micro_batch) {
      return {double(rows.gathered), double(expert_tensor) * double(rows.sent)};
    }
  }
  return {1, 1};
}

std::string Name(const ModelConfig& model, const ParallelConfig& parallel) {
  return fmt::format("{} {} {}{}", ShortName(parallel), NameOf(parallel.schedule),
                     model.has_moe() ? "experts " : "",
                     model.normalization == Normalization::kLayerNorm ? "LayerNorm" : "RMSNorm");
}

// Layer by layer, forward and after a split backward's input gradients.
void ExpectKept(const ModelConfig& model, const ParallelConfig& parallel,
                bool fused_swiglu = false) {
  Workload workload = TinyWorkload(model, parallel, 8);
  workload.training.fused_swiglu = fused_swiglu;
  ASSERT_EQ(WhyNotExecutable(workload), std::vector<std::string>());
  std::mutex mutex;
  int forward = 0, for_weights = 0;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Execution execution(workload, backend);
    std::int64_t used = 0;
    execution.WatchKept([&](const Unit& unit, const Pass& pass, const Saved& saved) {
      const std::lock_guard lock(mutex);
      SCOPED_TRACE(fmt::format("{} rank {} layer {}", Name(model, parallel), communicator.rank(),
                               unit.layer));
      const auto routed = RoutedShare(execution, unit, pass.micro_batch, parallel.expert_tensor);
      const std::int64_t before = std::exchange(used, backend.used_bytes());
      if (pass.kind == PassKind::kForward) {
        ++forward;
        EXPECT_EQ(Held(saved, LogitWidth(workload.training)), Charged(unit, routed));
        // From layer to layer what goes on is as large, so that this is all.
        if (unit.layer > 0 && unit.layer < model.num_layers && unit.stage == 0) {
          EXPECT_EQ(used - before, RealBytes(saved));
        }
      } else if (pass.kind == PassKind::kBackwardInput) {
        ++for_weights;
        EXPECT_EQ(HeldForWeights(saved), ChargedForWeights(unit, routed));
      }
    });
    execution.ComputeGradients(0);
  });
  EXPECT_GT(forward, 0);
  EXPECT_EQ(for_weights > 0, parallel.schedule == ScheduleKind::kZbH1);
}

// The same under a schedule with backward passes in two parts.
void ExpectKeptByBoth(const ModelConfig& model, ParallelConfig parallel) {
  ExpectKept(model, parallel);
  parallel.pipeline = 2;
  parallel.schedule = ScheduleKind::kZbH1;
  ExpectKept(model, parallel);
}

ModelConfig WithHeadNorms(ModelConfig model) {
  model.qk_layernorm = true;
  return model;
}

ModelConfig WithWindows(ModelConfig model) {
  model.layers = {{.count = 2, .kind = {.sliding_window = 5}}, {.count = 2, .kind = {}}};
  EXPECT_TRUE(Inconsistencies(model).empty());
  return model;
}

std::vector<ModelConfig> EveryKind() {
  return {TinyModel(),
          TinyGpt(),
          WithHeadNorms(TinyModel()),
          WithHeadNorms(TinyGpt()),
          WithWindows(TinyModel()),
          TinyMoe(),
          WithBiases(TinyMoe(24))};
}

TEST(Kept, OfEveryKindOfLayer) {
  for (const ModelConfig& model : EveryKind()) ExpectKeptByBoth(model, {.micro_batch_size = 2});
}

TEST(Kept, OfEveryCut) {
  for (const ModelConfig& model : EveryKind()) {
    for (const int tensor : {2, 4}) {
      if (!model.has_moe()) ExpectKeptByBoth(model, {.tensor = tensor});
      ExpectKeptByBoth(model, {.tensor = tensor, .sequence_parallel = true});
    }
    for (const ContextParallelKind kind :
         {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
      if (model.layers.front().kind.sliding_window > 0 && kind == ContextParallelKind::kRing) {
        continue;
      }
      ExpectKeptByBoth(model, {.context = 2, .context_kind = kind});
      // Two KV heads on two tensor ranks and two or four context ranks: spread by Ulysses.
      ExpectKeptByBoth(
          model, {.tensor = 2, .sequence_parallel = true, .context = 2, .context_kind = kind});
      ExpectKept(model, {.context = 4, .context_kind = kind});
    }
    if (model.layers.front().kind.sliding_window > 0) continue;
    // All-to-alls that divide two KV heads, that repeat them, and that repeat the one of a tensor
    // rank.
    constexpr ContextParallelKind kNested = ContextParallelKind::kNested;
    ExpectKeptByBoth(model, {.context = 4, .context_kind = kNested, .context_ulysses = 2});
    ExpectKept(model, {.context = 8, .context_kind = kNested, .context_ulysses = 4});
    ExpectKeptByBoth(model, {.tensor = 2,
                             .sequence_parallel = true,
                             .context = 4,
                             .context_kind = kNested,
                             .context_ulysses = 2});
  }
}

TEST(Kept, OfNestedContextWithAttentionRecomputed) {
  for (const ModelConfig& model : {TinyModel(), TinyGpt()}) {
    for (const RecomputeGranularity granularity :
         {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
      ParallelConfig parallel{.tensor = 2,
                              .sequence_parallel = true,
                              .context = 4,
                              .context_kind = ContextParallelKind::kNested,
                              .context_ulysses = 2};
      parallel.recompute.granularity = granularity;
      if (granularity == RecomputeGranularity::kSelective) {
        parallel.recompute.modules = {RecomputeModule::kCoreAttn};
      }
      ExpectKeptByBoth(model, parallel);
    }
  }
}

TEST(Kept, OfExpertsOnOtherRanks) {
  for (const ModelConfig& model : {TinyMoe(), WithBiases(TinyMoe(24))}) {
    ExpectKeptByBoth(model, {.data = 4, .expert = 4});
    ExpectKeptByBoth(model, {.data = 4, .expert = 2, .expert_tensor = 2});
    ExpectKeptByBoth(
        model,
        {.tensor = 2, .sequence_parallel = true, .data = 2, .expert = 2, .expert_tensor = 2});
  }
}

TEST(Kept, OfEveryRecomputation) {
  for (const ModelConfig& model : EveryKind()) {
    for (const ContextParallelKind kind :
         {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
      if (model.layers.front().kind.sliding_window > 0 && kind == ContextParallelKind::kRing) {
        continue;
      }
      ParallelConfig parallel{
          .tensor = 2, .sequence_parallel = true, .context = 2, .context_kind = kind};
      parallel.recompute.granularity = RecomputeGranularity::kFull;
      ExpectKeptByBoth(model, parallel);
      parallel.recompute.granularity = RecomputeGranularity::kSelective;
      for (const RecomputeModule module :
           {RecomputeModule::kCoreAttn, RecomputeModule::kMlp, RecomputeModule::kMoe,
            RecomputeModule::kMoeAct, RecomputeModule::kLayerNorm}) {
        const bool of_experts =
            module == RecomputeModule::kMoe || module == RecomputeModule::kMoeAct;
        if (of_experts && !model.has_moe()) continue;
        parallel.recompute.modules = {module};
        ExpectKeptByBoth(model, parallel);
      }
      parallel.recompute.modules = {RecomputeModule::kCoreAttn, RecomputeModule::kLayerNorm};
      ExpectKeptByBoth(model, parallel);
    }
  }
}

TEST(Kept, OfAFusedSwiglu) {
  for (const ModelConfig& model : {TinyModel(), TinyMoe(24)}) {
    ExpectKept(model, {}, true);
    ExpectKept(model, {.pipeline = 2, .schedule = ScheduleKind::kZbH1}, true);
  }
}

// A rank's events in a step: what of its layers, embedding and head it holds after each.
void ExpectSamePeak(const ModelConfig& model, const ParallelConfig& parallel) {
  const Workload workload = TinyWorkload(model, parallel, 16);
  StepSpec spec = SpecOf(workload);
  for (LayerPasses& kind : spec.kinds) kind.working_set = Bytes(0);
  spec.embedding.working_set = spec.head.working_set = Bytes(0);
  const Timeline timeline = Simulate(BuildStepGraph(spec));
  const bool overlaps =
      std::any_of(workload.schedule.orders.front().begin(), workload.schedule.orders.front().end(),
                  [](const Pass& pass) { return pass.overlaps_next; });
  const std::vector<Piece>& backward = spec.kinds.front().backward;
  const bool gathers_first = backward.front().stream != Stream::kCompute;
  std::mutex mutex;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    Execution execution(workload, backend);
    const int pipeline = PlaceOf(parallel, communicator.rank()).pipeline;
    std::map<std::pair<const Unit*, int>, double> held;
    double now = 0, peak = 0, charged = 0, charged_peak = 0;
    execution.WatchKept([&](const Unit& unit, const Pass& pass, const Saved& saved) {
      const bool for_weights = pass.kind == PassKind::kBackwardInput;
      double& of_unit = held[{&unit, pass.micro_batch}];
      now -= of_unit;
      of_unit =
          for_weights ? HeldForWeights(saved) : Sum(Held(saved, LogitWidth(workload.training)));
      now += of_unit;
      peak = std::max(peak, now);
      // What the simulated step's tasks of this layer take and give back, in this order.
      const int in_stage = unit.layer - LayersOfStage(workload, unit.stage).first;
      const LayerPasses& passes =
          unit.layer < 0 ? spec.embedding
          : unit.layer == model.num_layers
              ? spec.head
              : spec.kinds[std::size_t(
                    spec.layers_of_stage[std::size_t(unit.stage)][std::size_t(in_stage)])];
      switch (pass.kind) {
        case PassKind::kForward:
          charged += passes.saved.value;
          break;
        case PassKind::kBackward:
          charged -= passes.saved.value;
          break;
        case PassKind::kBackwardInput:
          charged += passes.held_for_weight.value - passes.saved.value;
          break;
        case PassKind::kBackwardWeight:
          charged -= passes.held_for_weight.value;
          break;
      }
      charged_peak = std::max(charged_peak, charged);
    });
    execution.ComputeGradients(0);
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(fmt::format("{} rank {}", Name(model, parallel), communicator.rank()));
    EXPECT_EQ(now, 0);
    EXPECT_EQ(charged, 0);
    EXPECT_GT(peak, 0);
    EXPECT_EQ(peak, charged_peak);
    // In time a pair of passes takes turns by tasks, not by operators, and what begins with a
    // collective begins under the pass before.
    if (!overlaps && !gathers_first) {
      EXPECT_EQ(peak, timeline.peak[std::size_t(pipeline)].value);
    }
  });
}

TEST(Kept, PeakOfEverySchedule) {
  const ModelConfig model = WithLayers(TinyModel(), 8);
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    for (const RecomputeGranularity granularity :
         {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
          RecomputeGranularity::kFull}) {
      ParallelConfig parallel{.tensor = 2,
                              .sequence_parallel = true,
                              .pipeline = 4,
                              .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                              .schedule = name.value};
      parallel.recompute.granularity = granularity;
      if (granularity == RecomputeGranularity::kSelective) {
        parallel.recompute.modules = {RecomputeModule::kMlp};
        ExpectSamePeak(model, parallel);
        parallel.sequence_parallel = false;
      }
      ExpectSamePeak(model, parallel);
    }
  }
}

// One expert rank, whose rows are those of balanced routing; a dense layer among the others; a tied
// head; layers recomputed in part.
TEST(Kept, PeakOfOtherModels) {
  for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    ExpectSamePeak(TinyMoe(24), {.pipeline = 2, .schedule = kind});
    ExpectSamePeak(TinyGpt(), {.pipeline = 2, .schedule = kind});
    ParallelConfig partly{.pipeline = 2, .schedule = kind};
    partly.recompute = {
        .granularity = RecomputeGranularity::kFull, .modules = {}, .full_layers = 1};
    ExpectSamePeak(WithLayers(TinyModel(), 8), partly);
  }
}

}  // namespace
}  // namespace millwright
