// SPDX-License-Identifier: Apache-2.0
#include "cost_models/layer_cost.h"

#include <algorithm>
#include <cmath>

namespace millwright {
namespace {

// Sustained rate of large GEMMs, of the BF16 peak; 0: not measured.
double Efficiency(Precision p, const GemmCalibration& g) {
  switch (p) {
    case Precision::kFp16:
    case Precision::kBf16:
      return g.efficiency;
    case Precision::kFp8:
      return g.fp8_efficiency;
    case Precision::kMxfp8:
      return g.mxfp8_efficiency;
    case Precision::kNvfp4:
      return g.nvfp4_efficiency;
  }
  return 0;
}

double InputWidth(Precision p) {
  switch (p) {
    case Precision::kFp16:
    case Precision::kBf16:
      return 2;
    case Precision::kFp8:
    case Precision::kMxfp8:
      return 1;
    case Precision::kNvfp4:
      return 0.5625;  // 4 bits and an 8-bit scale for each 16
  }
  return 2;
}

Seconds HbmTime(Bytes bytes, const GpuSpec& gpu, const Calibration& c) {
  return bytes / (gpu.hbm_bandwidth * c.memory.efficiency);
}

struct Passes {
  Seconds forward, backward;
  Seconds weight_gradient;  // of backward
};

Passes GemmPasses(const Operator& op, const CostContext& x) {
  const Precision precision = op.low_precision || !LowPrecision(x.training.precision)
                                  ? x.training.precision
                                  : Precision::kBf16;
  const auto time = [&](double m, double n, double k) {
    return GemmTime(m, n, k, op.groups, precision, x.gpu, x.calibration);
  };
  const double factor = x.calibration.gemm.backward_factor;
  Passes t{.forward = time(op.m, op.n, op.k),
           .backward = factor * time(op.m, op.k, op.n),
           .weight_gradient = factor * time(op.n, op.k, op.m)};
  t.backward += t.weight_gradient;
  if (LowPrecision(precision)) {
    const double bytes = x.calibration.gemm.cast_bytes_per_element;
    t.forward += HbmTime(Bytes(bytes * op.groups * op.m * op.k), x.gpu, x.calibration);
    t.backward += HbmTime(Bytes(bytes * op.groups * op.m * op.n), x.gpu, x.calibration);
  }
  return t;
}

Passes AttentionPasses(const Operator& op, const CostContext& x) {
  const AttentionCalibration& a = x.calibration.attention;
  if (!op.fused) {
    // Two batched products over the whole square of scores, and the softmax between them.
    const double sequence = op.attention_tokens;
    const double batch = op.scores_square / (sequence * sequence);
    const Precision p = Precision::kBf16;
    // A head that is no multiple of 8 keeps cuBLAS off its fast kernels: one configuration measured
    // (head 108, BLOOM's trials), about 6 x.
    const double misaligned = std::fmod(op.qk_head, 8) == 0 ? 1 : 6;
    const Seconds products =
        misaligned * GemmTime(sequence, sequence, op.qk_head, batch, p, x.gpu, x.calibration) +
        misaligned * GemmTime(sequence, op.v_head, sequence, batch, p, x.gpu, x.calibration);
    const Seconds scores =
        HbmTime(Bytes(a.unfused_score_bytes * op.scores_square), x.gpu, x.calibration);
    return {products + scores, 2 * products + a.unfused_backward_factor * scores, Seconds(0)};
  }
  // Between head sizes 64 and 128 the rate is interpolated.
  const double head = std::clamp(std::max(op.qk_head, op.v_head), 64.0, 128.0);
  const double head_factor = a.head_64_factor + (1 - a.head_64_factor) * (head - 64) / 64;
  const FlopsPerSecond rate = x.gpu.peak_bf16 * (a.efficiency * head_factor * op.attention_tokens /
                                                 (op.attention_tokens + a.roll_off));
  const Seconds forward = op.forward_flops(MfuConvention::kCausal) / rate;
  const Seconds launches = double(op.kernels) * a.launch;
  return {launches + forward, launches + a.backward_factor * forward, Seconds(0)};
}

// Dispatch and combine with each token sent once to a destination, not once per expert.
// Expected distinct destinations of topk draws among n: n (1 - (1 - 1/n)^topk).
Seconds DeduplicatedExchange(Bytes payload, const PathProfile& path, const CostContext& x) {
  const CollectiveCalibration& c = x.calibration.collective;
  const double topk = std::max(1, x.moe_topk);
  const auto destinations = [&](double n) { return n * (1 - std::pow(1 - 1 / n, topk)); };
  const Bytes own = payload / topk;  // one copy of every token
  const double per_domain = path.max_ranks_per_domain;
  double domains = destinations(path.domains);
  if (x.moe_topk_groups > 0) {
    // Node-limited routing: a group of experts lies on this many domains.
    const double of_group = std::max(1.0, double(path.domains) / std::max(1, x.moe_num_groups));
    domains = std::min(domains, x.moe_topk_groups * of_group);
  }
  // Arrivals in a domain fan out to its GPUs over NVLink; copies for itself stay.
  const double gpu_copies = std::min(destinations(path.ranks), topk);
  const Bytes inside = own * gpu_copies * ((per_domain - 1) / per_domain);
  Seconds base = c.all_to_all_base;
  Seconds transfer;
  if (per_domain > 1) transfer = inside / (path.domain_bandwidth * c.all_to_all_efficiency);
  if (path.domains > 1) {
    const double away = domains * double(path.domains - 1) / path.domains;
    transfer = std::max(transfer, own * away / (path.fabric_bandwidth * c.fabric_efficiency));
    base += c.fabric_step;
  }
  return base + transfer;
}

Seconds& SlotOf(GroupKind group, PassTime& pass) {
  switch (group) {
    case GroupKind::kTensor:
      return pass.tensor;
    case GroupKind::kRing:
    case GroupKind::kUlysses:
      return pass.context;
    case GroupKind::kExpert:
    case GroupKind::kExpertTensor:
      return pass.expert;
  }
  return pass.tensor;
}

// By the slowest GPU.
OperatorCost Slowed(OperatorCost cost, double compute_speed) {
  for (Seconds* time : {&cost.forward.compute, &cost.backward.compute, &cost.weight_gradient}) {
    *time = *time / compute_speed;
  }
  return cost;
}

}  // namespace

SteadyCurve CurveOf(Precision precision, const GemmCalibration& g) {
  switch (precision) {
    case Precision::kFp16:
    case Precision::kBf16:
      return {g.bf16_curve, g.sustained_bf16};
    case Precision::kFp8:
      return {g.fp8_curve, g.sustained_fp8};
    case Precision::kMxfp8:
      return {g.fp8_curve, g.sustained_mxfp8};
    case Precision::kNvfp4:
      return {g.nvfp4_curve, g.sustained_nvfp4};
  }
  return {};
}

const PathProfile& PathOf(GroupKind group, const LayerPaths& paths) {
  switch (group) {
    case GroupKind::kTensor:
      return paths.tensor;
    case GroupKind::kRing:
      return paths.ring;
    case GroupKind::kExpert:
      return paths.expert;
    case GroupKind::kExpertTensor:
      return paths.expert_tensor;
    case GroupKind::kUlysses:
      return paths.ulysses;
  }
  return paths.tensor;
}

Seconds GemmTime(double m, double n, double k, double groups, Precision precision,
                 const GpuSpec& gpu, const Calibration& calibration) {
  const GemmCalibration& g = calibration.gemm;
  if (m <= 0 || n <= 0 || k <= 0 || groups <= 0) return Seconds(0);
  if (const SteadyCurve measured = CurveOf(precision, g);
      measured.curve != nullptr && PeakOf(measured.curve->dtype, gpu).value > 0) {
    const Seconds time = TimeOf(*measured.curve, {.m = m, .n = n, .k = k, .groups = groups}, gpu,
                                measured.sustained);
    if (groups <= 1) return time;
    return time / (LowPrecision(precision) ? g.grouped_factor_low : g.grouped_factor);
  }
  FlopsPerSecond rate = Efficiency(precision, g) * gpu.peak_bf16;
  // Not measured: the same fraction of this precision's own peak as in BF16.
  if (rate.value <= 0) rate = g.efficiency * gpu.peak(precision);
  // A faster unit needs larger operands to be kept busy.
  const double x0 = g.roll_off * std::sqrt(rate / (g.efficiency * gpu.peak_bf16));
  if (groups > 1) rate = rate * (LowPrecision(precision) ? g.grouped_factor_low : g.grouped_factor);
  const double shape = (m / (m + x0)) * (n / (n + x0)) * (k / (k + x0));
  const Seconds arithmetic = Flops(2 * m * n * k * groups) / (rate * shape);
  const Bytes traffic(groups * (InputWidth(precision) * (m * k + n * k) + 2 * m * n));
  return g.launch + std::max(arithmetic, HbmTime(traffic, gpu, calibration));
}

OperatorCost CostOfOperator(const Operator& op, const LayerPaths& paths, const CostContext& x) {
  if (x.calibration.executed && op.kind != OperatorKind::kCollective) {
    return Slowed(ExecutedCost(op, *x.calibration.executed, x.gpu), x.calibration.compute_speed);
  }
  OperatorCost cost{.forward = {}, .backward = {}, .modules = op.modules};
  switch (op.kind) {
    case OperatorKind::kGemm:
    case OperatorKind::kGroupedGemm: {
      const Passes t = GemmPasses(op, x);
      cost.forward.compute = t.forward;
      cost.backward.compute = t.backward;
      cost.weight_gradient = t.weight_gradient;
      break;
    }
    case OperatorKind::kAttention: {
      const Passes t = AttentionPasses(op, x);
      cost.forward.compute = t.forward;
      cost.backward.compute = t.backward;
      break;
    }
    case OperatorKind::kMemoryBound: {
      const MemoryCalibration& m = x.calibration.memory;
      const Seconds t = HbmTime(m.bytes_factor * op.bytes, x.gpu, x.calibration);
      cost.forward.compute = m.launch + t;
      cost.backward.compute = m.launch + (op.backward_as_forward ? 1 : m.backward_factor) * t;
      break;
    }
    case OperatorKind::kCollective: {
      const PathProfile& path = PathOf(op.group, paths);
      cost.sm_share = SmShareOf(
          op.forward ? op.forward_collective : op.backward_collective, path,
          op.group == GroupKind::kExpert ? x.training.moe_dispatcher : MoeDispatcher::kAllToAll,
          x.gpu);
      const auto time = [&](CollectiveKind kind) {
        if (op.group == GroupKind::kExpert && path.ranks > 1 &&
            x.training.moe_dispatcher == MoeDispatcher::kDeepEp) {
          return DeduplicatedExchange(op.payload, path, x);
        }
        return double(op.repeats) *
               CostOfCollective(kind, op.payload, path, x.calibration.collective).time;
      };
      if (op.forward) SlotOf(op.group, cost.forward) = time(op.forward_collective);
      if (op.backward) {
        SlotOf(op.group, cost.backward) = op.backward_repeats * time(op.backward_collective);
      }
      if (op.group == GroupKind::kExpert && x.training.expert_overlap) {
        const double exposed = x.calibration.overlap.expert_exposed;
        cost.forward = exposed * cost.forward;
        cost.backward = exposed * cost.backward;
      }
      break;
    }
    case OperatorKind::kHost: {
      const HostCalibration& host = x.calibration.host;
      if (op.waits_for_experts > 0) {
        const Seconds wait = host.moe_sync + op.waits_for_experts * host.moe_sync_per_expert;
        cost.forward.compute = cost.backward.compute = 0.5 * wait;
      } else {
        // Backward launches twice the kernels.
        cost.forward.compute = host.layer_gap / 3;
        cost.backward.compute = 2 * host.layer_gap / 3;
      }
      break;
    }
  }
  return Slowed(cost, x.calibration.compute_speed);
}

TensorOverlap OverlapOf(const std::vector<Operator>& operators, std::size_t i,
                        const LayerPaths& paths, const CostContext& x) {
  TensorOverlap overlap;
  const Operator& op = operators[i];
  if (!x.training.tp_comm_overlap || op.kind != OperatorKind::kCollective ||
      op.group != GroupKind::kTensor || !op.beside_gemm || op.hidden_under >= 0) {
    return overlap;
  }
  // At the entry of a block: a gather, or nothing but its backward.
  overlap.gathers = !op.forward || op.forward_collective == CollectiveKind::kAllGather;
  const bool sharded = (overlap.gathers ? op.backward_collective : op.forward_collective) !=
                       CollectiveKind::kAllReduce;
  const std::size_t gemm = overlap.gathers ? i + 1 : i - 1;
  if (gemm >= operators.size() || operators[gemm].kind != OperatorKind::kGemm) return overlap;
  const double contention = x.calibration.overlap.tp_contention;
  const OperatorCost collective = CostOfOperator(op, paths, x);
  const OperatorCost whole = CostOfOperator(operators[gemm], paths, x);
  const auto cut = [&](Seconds compute, Seconds communication) {
    const int n = paths.tensor.ranks;
    ChunkedGemm chunks{.chunks = n, .gemm = compute / n, .exchange = communication / (n - 1)};
    chunks.slowed = contention * std::min(chunks.gemm, chunks.exchange);
    return chunks;
  };
  overlap.gemm = int(gemm);
  // All-reduces are not cut.
  if (op.forward && sharded) {
    overlap.forward = cut(whole.forward.compute, collective.forward.tensor);
  }
  if (op.backward && sharded) {
    overlap.backward =
        cut(whole.backward.compute - whole.weight_gradient, collective.backward.tensor);
  }
  if (op.backward && overlap.gathers) {
    overlap.with_weight_gradient = true;
    overlap.slowed = contention * std::min(whole.weight_gradient, collective.backward.tensor);
  }
  return overlap;
}

OperatorCost LaunchWait(const PassTime& forward, const PassTime& backward,
                        const HostCalibration& host) {
  OperatorCost wait;
  // A smooth maximum of what the GPU and what the host need: order 6, 12% above the larger where
  // both are equal.
  const auto beyond = [](Seconds gpu, Seconds floor) {
    if (floor.value <= 0) return Seconds(0);
    const double larger = std::max(gpu.value, floor.value);
    const double a = gpu.value / larger, b = floor.value / larger;
    return Seconds(larger * std::pow(std::pow(a, 6) + std::pow(b, 6), 1.0 / 6)) - gpu;
  };
  wait.forward.compute = beyond(forward.total(), host.launch_floor / 3);
  wait.backward.compute = beyond(backward.total(), 2 * host.launch_floor / 3);
  return wait;
}

PassTime LayerCost::Recomputed(ModuleMask modules) const {
  PassTime sum;
  for (const OperatorCost& op : operators) {
    if (op.modules & modules) sum += op.forward;
  }
  return sum;
}

Bytes LayerCost::Saved(ModuleMask recomputed) const {
  Bytes sum;
  for (const SavedTensor& s : saved) {
    if ((s.modules & recomputed) == 0) sum += s.bytes;
  }
  return sum;
}

LayerCost CostOfLayer(const std::vector<Operator>& operators, const LayerPaths& paths,
                      const CostContext& context) {
  LayerCost layer;
  layer.operators.reserve(operators.size());
  for (const Operator& op : operators) {
    OperatorCost cost = CostOfOperator(op, paths, context);
    if (const TensorOverlap overlap =
            OverlapOf(operators, std::size_t(&op - operators.data()), paths, context);
        overlap.gemm >= 0) {
      const OperatorCost gemm = CostOfOperator(operators[overlap.gemm], paths, context);
      cost.sm_share = 0;
      // What both take together beyond the GEMM.
      if (overlap.forward.chunks > 1) {
        cost.forward.tensor = overlap.forward.total() - gemm.forward.compute;
      }
      if (overlap.with_weight_gradient) {
        cost.backward.tensor = std::max(gemm.weight_gradient, cost.backward.tensor) +
                               overlap.slowed - gemm.weight_gradient;
      } else if (overlap.backward.chunks > 1) {
        cost.backward.tensor =
            overlap.backward.total() - (gemm.backward.compute - gemm.weight_gradient);
      }
    }
    if (op.kind == OperatorKind::kCollective && op.hidden_under >= 0 &&
        !context.calibration.executed) {
      const Operator& cover = operators[op.hidden_under];
      const OperatorCost& covering = layer.operators[op.hidden_under];
      if (cover.kind != OperatorKind::kAttention) cost.sm_share = 0;
      const auto expose = [&](Seconds& communication, Seconds window) {
        const Seconds slowed = SlowedBeside(window, communication, cost.sm_share);
        communication = std::max(slowed, communication - window);
      };
      if (cover.kind == OperatorKind::kAttention) {
        // Of a ring's steps the first computes on what the rank holds; each later one hides the
        // exchange before it.
        const double share = double(op.repeats) / (op.repeats + 1);
        expose(SlotOf(op.group, cost.forward), share * covering.forward.compute);
        expose(SlotOf(op.group, cost.backward), share * covering.backward.compute);
      } else {
        const Seconds gathered = SlotOf(op.group, cost.backward);
        layer.backward_weight += gathered;
        expose(SlotOf(op.group, cost.backward),
               covering.backward.compute - covering.weight_gradient);
        layer.split_more += gathered - SlotOf(op.group, cost.backward);
      }
      cost.sm_share = 0;
    }
    layer.forward += cost.forward;
    layer.backward += cost.backward;
    layer.backward_weight += cost.weight_gradient;
    layer.operators.push_back(cost);
    for (const SavedTensor& s : op.saved) layer.saved.push_back(s);
    // In backward an operator holds the gradients of its output, its input and, before it is added
    // to the one that is kept, its weight.
    Bytes gradient;
    if (op.kind == OperatorKind::kGemm) {
      gradient = Bytes(2 * (op.m * (op.n + op.k) + op.n * op.k));
    } else if (op.kind == OperatorKind::kGroupedGemm) {
      gradient = Bytes(2 * op.groups * op.m * (op.n + op.k));
    }
    layer.largest_gradient = std::max(layer.largest_gradient, gradient);
  }
  layer.input = LayerInputBytes(operators);
  layer.held_for_weights = HeldForWeights(operators);
  layer.launch_wait = LaunchWait(layer.forward, layer.backward, context.calibration.host);
  layer.forward += layer.launch_wait.forward;
  layer.backward += layer.launch_wait.backward;
  return layer;
}

}  // namespace millwright
